"""The tables of README.md and docs/ from the result files, between markers.

python benchmarks/tables.py            # rewrite them
python benchmarks/tables.py --check    # fail if a table differs from its result file or is typed by hand

A table outside the markers must not contain a number that looks measured (MEASURED), unless the line
``<!-- typed: why -->`` precedes it.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean
from types import MappingProxyType
from typing import Any

from cluster_simulation import inputs_table, simulation_table
from critic_study_report import changes_table, sizes_table
from patchsvdd.apps.line.signal_table import node_table, register_table
from patchsvdd.evaluation.benchmark import markdown_table
from patchsvdd.evaluation.published import METHOD_OF, categories, methods, published
from record import RESULTS
from study_report import selection_table, study_table
from teaching_report import kinds_table, names_table
from verdict_report import aims_table, dirty_table, nominal_table, states_table, verdicts_table

ROOT = RESULTS.parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
MARKER = re.compile(r"(<!-- table: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
TYPED = re.compile(r"(<!-- typed: .+? -->\n+)?((?:^\|.*\n)+)", re.MULTILINE)
"""A table outside the markers, with the reason for typing it, if any."""
MEASURED = re.compile(
    r"(?<![\d.,])\d+[.,]\d+(?![\d.])|\de[-+]?\d|\d ?%|\d (?:[kMG]?B|[mµ]?s|seconds|minutes|hours|times)\b"
)
"""A number with a decimal point, a thousands separator, an exponent, a percent sign or a unit."""
CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
TASKS = ("detection_auroc", "segmentation_auroc")


def benchmark_paper() -> str:
    return markdown_table(_read("benchmark-paper"))


def benchmark_best() -> str:
    return markdown_table(_read("benchmark-best"))


def benchmark_encoder() -> str:
    return markdown_table(_read("benchmark-encoder"))


def parts() -> str:
    """Results of the memory, the critic and both together; the mean over seeds in each cell."""
    lines = ["| category | the memory | the critic | both |", "|---|---|---|---|"]
    for name, row in _read("benchmark-best")["categories"].items():
        cells = [
            _pair({task: None if part[task] is None else part[task]["mean"] for task in TASKS})
            for part in (row["parts"]["memory"], row["parts"]["critic"], row)
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def study() -> str:
    return study_table(_read("study")["rows"])


def selection() -> str:
    return selection_table(_read("study")["rows"])


def image_sizes() -> str:
    return sizes_table(_read("critic-study")["rows"])


def critic_changes() -> str:
    return changes_table(_read("critic-study")["rows"])


def losses() -> str:
    return _comparison(_read("paper-losses"))


def hierarchy() -> str:
    return _comparison(_read("paper-hierarchy"))


def loss_schedule() -> str:
    """Losses without L_SSL along the training: AUROC and the spread of the embeddings of 32-px patches."""
    found = {one["objective"]: one["rows"] for one in _read("loss-schedule")["results"]}
    rows = (
        [f"{one['step']:,}", *(cell for each in (one, two) for cell in (_pair(each), f"{each['spread']['32']:.0e}"))]
        for one, two in zip(found["svdd"], found["svdd-prime"], strict=True)
    )
    return _markdown(["steps", "L_SVDD", "its spread", "L_SVDD′", "its spread"], rows)


def lambda_sweep() -> str:
    data = _read("paper-lambda")
    values = [f"{value:g}" for value in data["lambdas"]]
    rows = ([name, *(_pair(row[one]) or "collapsed" for one in values)] for name, row in data["categories"].items())
    return _markdown(["λ", *values], rows)


def dimension() -> str:
    """AUROC and intrinsic dimension of 64-px patches by the length of embeddings."""
    data = _read("paper-dimension")
    header = ["category", *(f"D = {length}" for length in data["dimensions"])]
    rows = (
        [name, *(f"{_pair(one)}, {one['intrinsic_dimension']:.1f}" for one in row.values())]
        for name, row in data["categories"].items()
    )
    return _markdown(header, rows)


def deep_svdd_variants() -> str:
    """Detection AUROC of Deep SVDD with some of its choices changed."""
    data = _read("deep-svdd-variants")
    rows = (
        [
            variant,
            *(f"{row[variant]['0']['detection_auroc']:.3f}" for row in data["categories"].values()),
            f"{mean:.3f}",
        ]
        for variant, mean in data["means"].items()
    )
    return _markdown(["variant", *data["categories"], "mean"], rows)


def intrinsic_dimension() -> str:
    data = _read("paper-intrinsic-dimension")
    losses = list(data["means"]["32"])
    header = ["category", *(f"{loss}, {size} px" for size in data["means"] for loss in losses)]
    rows = (
        [name, *(f"{row[loss][size]:.1f}" for size in data["means"] for loss in losses)]
        for name, row in data["categories"].items()
    )
    return _markdown(header, rows)


def methods_detection() -> str:
    return _methods("detection_auroc", ("paper", "deep-svdd", "l2-ae", "ssim-ae"))


def methods_segmentation() -> str:
    return _methods("segmentation_auroc", ("paper", "l2-ae", "ssim-ae"))


def _methods(task: str, presets: Sequence[str]) -> str:
    """Values measured here beside published ones, for all categories of MVTec AD."""
    names = {"paper": "Patch SVDD", **METHOD_OF}
    compared = _read("paper-methods")["categories"]
    alone = {one: _read(f"benchmark-{one}")["categories"] for one in presets}  # of categories that were not compared
    others = [one for one in methods() if task in one.average]

    def cell(value: float | None) -> str:
        return "" if value is None else f"{value:.3f}"

    def row(category: str) -> list[str]:
        if category in compared:
            measured = [compared[category][names[one]].get(task) for one in presets]
        else:
            measured = [(alone[one].get(category, {}).get(task) or {}).get("mean") for one in presets]
        printed = [published("patch_svdd", category).get(task)]
        printed += [one.categories.get(category, {}).get(task) for one in others]
        return [category, *map(cell, (*measured, *printed))]

    rows = [row(category) for category in categories()]
    means = (published("average", "patch_svdd").get(task), *(one.average[task] for one in others))
    rows.append(["mean", *("" for _ in presets), *map(cell, means)])
    header = [*(f"{names[one]}, here" for one in presets), "Patch SVDD, published", *(one.name for one in others)]
    return _markdown(["category", *header], rows)


def baselines() -> str:
    categories = _read("paper-baselines")["categories"]
    lines = [
        "| category | " + " | ".join(f"{kind}, {one}" for kind in ("random", "raw") for one in _MAPS.values()) + " |"
    ]
    lines.append("|---" * (1 + 2 * len(_MAPS)) + "|")
    for name, entry in categories.items():
        cells = [_pair(entry[kind][one]) for kind in ("random", "raw") for one in _MAPS]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def speed_cpu() -> str:
    """The first model's setups against the patch-by-patch procedure, and start-up and memory of every model."""
    models = _read("inspection")["models"]
    first = models[0]
    plain = first["reference"]["seconds_per_image"]
    known = {(one["engine"], "graph"): one for one in first["auroc"]}
    lines = [
        "| engine | search | times faster: one by one | in batches | encode : search : map | AUROC |",
        "|---" * 6 + "|",
    ]
    seen = set()
    for setup in first["setups"]:
        key = (setup["engine"], setup["search"])
        if setup["batch"] != 1 or key in seen:
            continue
        seen.add(key)
        seconds = setup["latency_ms"]["p50"] / 1000
        parts = setup["parts_ms_per_image"].values()
        shares = " : ".join(f"{value / sum(parts):.0%}" for value in parts)
        pair = "" if key not in known else " / ".join(f"{known[key][task]:.4f}" for task in TASKS)
        ratios = [f"{plain[kind] / seconds:.{0 if plain[kind] / seconds >= 10 else 1}f}" for kind in plain]
        lines.append(f"| {key[0]} | {key[1]} | {ratios[1]} | {ratios[0]} | {shares} | {pair} |")
    lines += ["", "| memory | one by one | in batches | AUROC float32 | AUROC float16 |", "|---" * 5 + "|"]
    for model in models:
        ratios = [1000 * plain[kind] / model["setups"][0]["latency_ms"]["p50"] for kind in ("one by one", "in batches")]
        pairs = [" / ".join(f"{one[task]:.4f}" for task in TASKS) for one in model["auroc"]]
        lines.append(f"| {model['memory']} | {ratios[0]:.0f} | {ratios[1]:.0f} | {' | '.join(pairs)} |")
    return "\n".join(lines) + "\n"


def parity() -> str:
    def row(name: str, one: dict[str, Any]) -> list[str]:
        return [
            name,
            *(_pair(one["scales"][size]) for size in ("32", "64")),
            f"**{_pair(one)}**",
            _pair(one["published"]),
        ]

    categories = _read("parity")["categories"]
    return _markdown(["", "K = 32", "K = 64", "product", "the paper"], (row(*item) for item in categories.items()))


def export() -> str:
    def cell(one: dict[str, Any]) -> str:
        verdicts = f"{one['same_verdicts']} of {one['images']}"
        sizes = f"{one['bytes'] / 1e6:.0f} MB / {one['runner_peak_megabytes'] / 1e3:.2f} GB"
        return f"{one['largest_map_error']:.1e} / {verdicts} / {one['time_ratio']:.2f} / {sizes}"

    def row(name: str, one: dict[str, Any]) -> list[str]:
        model = one["model"]
        height, width = model["image_size"]
        kind = model["preset"] + (", position normalisation" if model["position_normalization"] else "")
        patches = f"{sum(model['patches'].values()):,}"
        return [name, kind, f"{width} × {height}", patches, cell(one["onnx"]), cell(one["openvino"])]

    categories = _read("export")["categories"]
    header = ["category", "model", "images", "patches", "ONNX Runtime", "OpenVINO"]
    return _markdown(header, (row(*item) for item in categories.items()))


def export_speed() -> str:
    def row(name: str, one: dict[str, Any], library: dict[str, Any], images: int) -> list[str]:
        aurocs = [
            f"{one[f'{kind}_auroc']:.4f} ({library[f'{kind}_auroc']:.4f})" for kind in ("detection", "segmentation")
        ]
        sizes = [f"{one['megabytes']:.0f} MB", f"{one['runner_peak_megabytes'] / 1e3:.2f} GB"]
        errors = f"{one['parity']['largest_map_error']:.1e} / {one['parity']['largest_score_error']:.1e}"
        verdicts = f"{one['same_verdicts']} of {images}"
        return [name, f"{one['ratio']:.2f}", *sizes, verdicts, *aurocs, errors, f"{one['export_seconds']:.0f} s"]

    models = _read("export-speed-x86")["models"]
    names = {"onnx": "ONNX Runtime", "openvino": "OpenVINO"}
    header = ["", "time", "file", "peak memory", "equal verdicts", "detection (library)", "segmentation (library)"]
    header += ["largest error of a map / a score", "export with its check"]
    rows = (
        row(f"{category}, {names[kind]}", model[kind], model["library"], model["test_images"])
        for category, model in models.items()
        for kind in names
    )
    return _markdown(header, rows)


def cold_start() -> str:
    def row(name: str, one: dict[str, Any]) -> list[str]:
        seconds, sizes = one["median_seconds"], one["megabytes"]
        files = (f"{seconds[kind]:.1f} s ({sizes[kind]:.0f} MB)" for kind in ("onnx", "openvino"))
        return [name, f"{seconds['model folder']:.1f} s", *files]

    models = _read("cold-start-x86")["models"]
    return _markdown(["", "model folder", "ONNX file", "OpenVINO file"], (row(*item) for item in models.items()))


def peers() -> str:
    """Time of each contestant as a multiple of that of ``best``, on the same images."""
    categories = [
        (f"{category}, {machine}", entry)
        for name, machine in (("peers-x86", "without AMX"), ("peers-x86-amx", "with AMX"))
        for category, entry in _read(name)["categories"].items()
    ]

    def cell(category: dict[str, Any], name: str) -> str:
        if name not in category["contestants"]:
            return ""
        if name == "paper":
            return f"{1 / category['best_over_paper']:.2f}"
        if name == "best-bfloat16":
            best = category["contestants"]["best"]["milliseconds_median"]
            return f"{category['contestants'][name]['milliseconds_median'] / best:.2f}"
        return f"{({'best': 1.0} | category['ratios']['best'])[name]:.2f}"

    ours = {"best": "`best`", "best-bfloat16": "`best`, critic in bfloat16", "paper": "`paper`"}
    peers = [name for name in categories[0][1]["contestants"] if name not in (*ours, "reference in batches")]
    rows = ([ours.get(name, name), *(cell(entry, name) for _, entry in categories)] for name in (*ours, *peers))
    return _markdown(["", *(title for title, _ in categories)], rows)


def exact_search() -> str:
    """Exact search by cells against comparing with every patch."""
    rows = []
    for name, machine in (("exact-search", "two ARM cores"), ("exact-search-x86", "two x86 cores")):
        for size, one in _read(name)["scales"].items():
            equal = f"{one['images_with_equal_results']} of {one['images']}"
            rows.append(
                [machine, f"{one['rows']:,} of {size} px", f"{one['ratio']:.1f}", f"{one['lowest_ratio']:.1f}", equal]
            )
    return _markdown(["", "patches", "times faster", "lowest of an image", "equal results"], rows)


def train_minutes() -> str:
    """Time limits of a training on a CPU: what was trained in them, and what it reached."""

    def row(one: dict[str, Any]) -> list[str]:
        critic = one["critic"]
        return [
            one["category"],
            f"{one['minutes']:.0f}",
            f"{one['training_minutes']['clock']:.1f}",
            f"{critic['steps']:,} × {critic['batch_size']}",
            str(critic["width"]),
            f"{one['fusion']['share']:g}",
            f"{_pair(one['evaluation'])} / {one['evaluation']['aupro']:.3f}",
        ]

    rows = sorted(_read("train-minutes-x86")["rows"], key=lambda one: (one["category"], one["minutes"]))
    header = ["", "limit in minutes", "minutes used", "critic's steps × batch", "width", "weight of the memory"]
    return _markdown([*header, "AUROC, AUPRO"], map(row, rows))


def serve_load() -> str:
    data = _read("serve-load")
    half, over = data["half_load"], data["overload"]
    memory = over["megabytes"]
    answers = ", ".join(f"{count:,} × {status}" for status, count in over["answers"].items())
    silent = over["sent"] - over["answered"] or "none"
    rows = {
        f"saturated by {data['clients']} clients, against `inspect_many` four at a time in the same run": (
            f"{data['ratio']:.2f} of its images per second"
        ),
        "against `inspect_many` with default arguments": f"{data['ratio_to_default']:.2f}",
        "at half the load, latency": (
            f"median {half['ms']['p50']} ms, p99 {half['ms']['p99']} ms ({sum(half['answers'].values())} requests)"
        ),
        f"{over['minutes']:.0f} minutes of twice the load": (
            f"{over['sent']:,} requests: {answers}, {silent} unanswered"
        ),
        "memory during these minutes": (
            f"{over['memory'][0]['server']:.0f} MB after {over['memory'][0]['at']:.0f} s, "
            f"{memory['second_quarter']:.0f} MB in the second quarter, {memory['last_quarter']:.0f} MB in the last, "
            f"{memory['most']:.0f} MB at most"
        ),
        "inspections acknowledged in the whole run, and in the store": (
            f"{data['acknowledged']:,} and {data['acknowledged_in_store']:,}"
        ),
    }
    return _markdown(["", ""], rows.items())


def shadow() -> str:
    """What a candidate costs the live model, and what switches and kills lose."""
    data = _read("shadow-under-load")

    def latency(name: str) -> str:
        found = data[f"ms_{name}"]
        return f"median {found['p50']:.0f} ms, p99 {found['p99']:.0f} ms ({found['requests']:,} requests)"

    wrong = data["answered_by_the_wrong_model"] + data["with_another_score_than_the_model's_own"]
    lost = data["answered_but_not_stored"] + data["stored_differently"]
    compared = data["shadow"]
    rows = {
        "latency without a candidate": latency("without_candidate"),
        "with a candidate in the shadow": latency("with_candidate"),
        "p99 with a candidate, against p99 without": f"{data['p99_ratio']:.2f}",
        "images that the candidate inspected, and dropped": f"{compared['images']:,}, {compared['dropped']}",
        "switches, roll backs, kills": f"{data['switches']}, {data['rollbacks']}, {data['kills']}",
        "answers; by the wrong model; not stored as answered": f"{data['answers']['200']:,}; {wrong}; {lost}",
        "requests that the kills left without an answer": str(data["unanswered_because_of_kills"]),
    }
    return _markdown(["", ""], rows.items())


def line_load() -> str:
    """A line under constant load: what became of the triggers, and how long they took."""
    data = _read("line-soak")
    calm = data["constant_load"]
    wrong = len(calm["check_answered_but_not_stored"]) + len(calm["check_stored_twice"])
    wrong += len(calm["check_other_verdict_in_the_store"]) + len(calm["check_stored_without_trigger"])
    rows = {
        "parts in minutes": f"{calm['parts']:,} in {calm['minutes']:g}, {calm['parts_per_minute']:.0f} per minute",
        "verdicts": ", ".join(f"{many:,} {verdict}" for verdict, many in calm["verdicts"].items()),
        "not stored, stored twice or with another verdict than on the bus": str(wrong),
    }
    for bus, name in (("opcua", "OPC UA"), ("modbus", "Modbus")):
        found = calm["trigger_to_verdict"][bus]
        rows[f"from trigger to verdict, {name}"] = (
            f"median {found['p50_ms']:.0f} ms, p99 {found['p99_ms']:.0f} ms, longest {found['max_ms']:.0f} ms"
        )
    return _markdown(["", ""], rows.items())


def line_faults() -> str:
    """What a line does when something fails."""
    data = _read("line-soak")
    rows = []
    for one in data["faults"]:
        shown = [(at, name) for at, name, _ in one["on_the_page"] if at > one["caused_after_seconds"]]
        words = ", ".join(f"{name} after {at - one['caused_after_seconds']:.1f} s" for at, name in shown[:2])
        verdicts = ", ".join(f"{many} {verdict}" for verdict, many in one["verdicts"].items())
        rows.append([one["fault"], words or "–", verdicts, f"{one['good_parts_after']} of 10"])
    return _markdown(["fault", "shown as", "parts during it and the ten after it", "judged after it"], rows)


def region() -> str:
    data = _read("region")
    part = f"{data['share']:.0%} of it"
    names = {"whole": "the whole image", "learned": f"{part}, `train --roi`", "inspected": f"{part}, `inspect --roi`"}
    rows = (
        [names[name], f"{one['time_ratio']:.2f}", *(f"{sum(one[key].values()):,}" for key in _PATCHES)]
        for name, one in data["rows"].items()
    )
    return _markdown(["inspected", "time", *_PATCHES.values()], rows)


def drift_power() -> str:
    rows = [row for row in _read("drift-power")["power"] if row["after"] == 0 and row["scale"] == 1]
    shifts = sorted({row["shift"] for row in rows if row["shift"]})
    within = {(row["references"], row["shift"]): row["new"]["images"]["90%"] for row in rows}
    return _markdown(
        ["calibration images", *(f"{shift:g}" for shift in shifts)],
        (
            [str(count), *("–" if within[count, shift] is None else f"{within[count, shift]:g}" for shift in shifts)]
            for count in sorted({row["references"] for row in rows})
        ),
    )


_PATCHES = {"patches_searched": "patches searched", "patches_in_memory": "patches in the memory"}


def resident() -> str:
    names = {"auto": "the fastest (OpenVINO)", "torch": "`--engine torch`"}
    lines = ["| memory | engine | resident beyond PyTorch |", "|---" * 3 + "|"]
    for row in _read("resident")["rows"]:
        lines.append(f"| {row['memory']} | {names[row['engine']]} | {row['megabytes']['beyond pytorch']:.0f} MB |")
    return "\n".join(lines) + "\n"


def speed_gpu() -> str:
    lines = ["| memory | batch | images per second | encode | search | map | AUROC |", "|---" * 7 + "|"]
    for memory in _read("gpu-inspection")["memories"]:
        parts = memory["parts_ms_per_image"]["64"]
        alone = memory["one_image_ms"]["recorded"]
        rate = f"{alone['p50']:.2f} ms each, p99 {alone['p99']:.2f} ms"
        lines.append(f"| {memory['memory']} | 1, alone | {rate} |  |  |  |  |")
        for one in memory["throughput"]:
            cells = (
                [f"{parts[name]:.3f} ms" for name in ("encode", "search", "map")] if one["batch"] == 64 else [""] * 3
            )
            pair = _pair(memory["auroc"]) if one["batch"] == 64 else ""
            rate = f"{one['images_per_second']:,.0f}"
            lines.append(f"| {memory['memory']} | {one['batch']} | {rate} | {' | '.join(cells)} | {pair} |")
    return "\n".join(lines) + "\n"


def thinning() -> str:
    """Mean over seeds of every method and size; H200 seconds of selection for the largest memory."""
    rows = _read("thinning")["rows"]
    categories = list(dict.fromkeys(row["category"] for row in rows))
    names = {
        "all": "everything",
        "k-center": "k-center",
        "settled": "settled",
        "per-place": "per place",
        "random": "random",
    }
    lines = [
        "| kept | " + " | ".join(categories) + " | selection seconds (bottle) |",
        "|---" * (2 + len(categories)) + "|",
    ]
    for method, name in names.items():
        for size in dict.fromkeys(row["size"] for row in sorted(rows, key=lambda row: -row["bytes"])):
            cells, seconds = [], ""
            for category in categories:
                found = [r for r in rows if (r["category"], r["method"], r["size"]) == (category, method, size)]
                means = {task: sum(row[task] for row in found) / len(found) for task in TASKS} if found else {}
                cells.append(_pair(means))
                if found and category == "bottle" and method != "all":
                    seconds = f"{found[0]['thinning_seconds']:.1f}"
            if any(cells):
                lines.append(f"| {size}, {name} | {' | '.join(cells)} | {seconds} |")
    return "\n".join(lines) + "\n"


def sampling() -> str:
    rows = _read("sampling")["rows"]
    budgets = sorted({row["budget"] for row in rows})
    lines = [
        "| category, seed | " + " | ".join(f"{kind}, {b:.0f} s" for kind in ("cut", "dense") for b in budgets) + " |",
        "|---" * (1 + 2 * len(budgets)) + "|",
    ]
    for category, seed in sorted({(row["category"], row["seed"]) for row in rows}):
        cells = []
        for kind in ("patches", "dense"):
            for budget in budgets:
                wanted = (category, seed, kind, budget)
                found = [r for r in rows if (r["category"], r["seed"], r["sampling"], r["budget"]) == wanted]
                cells.append(_pair(found[0]) if found else "")
        lines.append(f"| {category}, {seed} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


QUANTITIES = {
    "memory_seconds": "building the memory, time",
    "index_seconds": "building the graphs, time",
    "threshold_seconds": "threshold, time",
    "encode_milliseconds": "encoding an image, time",
    "search_milliseconds": "searching an image, time",
    "map_milliseconds": "map of an image, time",
    "memory_bytes": "memory beyond PyTorch while inspecting",
    "disk_bytes": "model on disk",
}


def growth() -> str:
    """Exponents: of all points, and of the last two."""
    cpu, gpu = _read("growth-cpu"), _read("growth-gpu")
    lines = ["| against | quantity | CPU | its last two points | GPU | its last two points |", "|---" * 6 + "|"]
    for part, rows, axis, words in (("images", "images", "images", "images"), ("size", "sizes", "size", "pixels")):
        ends = f"{cpu[rows][0][axis]:,} → {cpu[rows][-1][axis]:,}"
        label = f"training images, {ends}" if words == "images" else f"pixels of an image, {ends} px a side"
        for quantity, name in QUANTITIES.items():
            slopes = cpu["exponents"][part].get(quantity)
            if slopes is None or (part == "size" and quantity == "disk_bytes"):
                continue
            # The GPU has only three points by number of images.
            theirs = gpu["exponents"][part].get(quantity) if part == "size" else None
            cells = [f"{one[key]:.2f}" if one else "" for one in (slopes, theirs) for key in ("all", "last")]
            lines.append(f"| {label} | {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


_MAPS = {"32": "32 px", "64": "64 px", "product": "product", "published": "paper"}


def cluster_inputs() -> str:
    data = _read("cluster-sizing")
    return inputs_table(data["measured"], data["assumed"])


def cluster_cases() -> str:
    return simulation_table(_read("cluster-sizing")["cases"])


def verdicts() -> str:
    return verdicts_table(_read("verdict-table"))


def verdicts_by_aim() -> str:
    return aims_table(_read("verdict-table"))


def nominal_and_realised() -> str:
    return nominal_table(_read("verdict-table"))


def states() -> str:
    """``best`` before and after the changes for parts that it was not developed on."""
    files = {"before": "verdicts-before", "Muon": "verdicts-muon", "today": "verdicts-best"}
    return states_table({name: _read(f"{file}-a")["rows"] + _read(f"{file}-b")["rows"] for name, file in files.items()})


def larger_patches() -> str:
    """Memories of trained and untrained encoders, as measured by ``encoder_study.py``."""
    rows = [row for row in _read("encoder-study")["rows"] if row["centering"] == "channel"]
    names = {
        "trained": "trained, larger patches untrained",
        "trained, larger patches too": "trained, larger patches alike",
        "untrained": "untrained, larger patches untrained",
    }
    categories = sorted({row["category"] for row in rows})
    lines = [f"| category | {' | '.join(names)} |", "|---|---|---|---|"]
    means: dict[str, dict[str, list[float]]] = {name: {"detection": [], "segmentation": []} for name in names}
    for category in categories:
        cells = []
        for name, key in names.items():
            for metric, values in means[name].items():
                values.append(fmean(row["found"][key][metric] for row in rows if row["category"] == category))
            cells.append(" / ".join(f"{values[-1]:.3f}" for values in means[name].values()))
        lines.append(f"| {category} | {' | '.join(cells)} |")
    cells = [" / ".join(f"{fmean(values):.3f}" for values in means[name].values()) for name in names]
    return "\n".join([*lines, f"| **mean** | {' | '.join(cells)} |"]) + "\n"


def dirty_sets() -> str:
    return dirty_table(_read("dirty-sets")["rows"])


def teaching() -> str:
    return kinds_table(_read("teaching"))


def teaching_names() -> str:
    return names_table(_read("teaching"))


def part_views() -> str:
    """False alarms / found defects of parts, simulated."""
    rows = [row for row in _read("part-false-alarms")["simulated"] if (row["calibration"], row["rate"]) == (200, 0.05)]
    ways = {"joint": "from parts", "union": "from each view", "known": "known", "threshold units": "threshold units"}
    return _markdown(
        ["views", "copula, correlation", *ways.values()],
        (
            [
                str(row["views"]),
                f"{row['copula']}, {row['correlation']:g}",
                *(f"{row[way]['false_alarms']:.1%} / {row[way]['found']:.0%}" for way in ways),
            ]
            for row in rows
            if row["views"] > 1
        ),
    )


def part_halves() -> str:
    """False alarms / found defects of halves of real images."""
    ways = {"joint": "from parts", "union": "from each view"}
    alone = "each view's own threshold"
    return _markdown(
        ["set", "rate", *(f"{name}: stated" for name in ways.values()), *ways.values(), alone],
        (
            [
                one["category"],
                f"{row['rate']:.0%}",
                *(f"{row[way]['stated']:.1%}" for way in ways),
                *(f"{row[way]['false_alarms']:.1%} / {row[way]['found']:.0%}" for way in (*ways, alone)),
            ]
            for one in _read("part-false-alarms")["real"]
            for row in one["rows"]
        ),
    )


def product_choice() -> str:
    """Images whose product is recognised, and of those without a model, those that show none."""
    data = _read("product-choice")
    lines = [
        [
            name,
            str(row["images"]),
            f"{row['right']['share']:.3f}",
            f"{row['none_of_good']['images']} of {row['good']}",
            f"{row['stated_rate']:.1%}",
            f"{row['left_out_none']['share']:.3f}",
        ]
        for name, row in data["sets"].items()
    ]
    none_of_good = f"{data['none_of_good']['images']} of {data['good']}"
    total = [f"{data['right']['share']:.3f}", none_of_good, f"{data['stated_for_good']:.1%}"]
    left = fmean(row["left_out_none"]["share"] for row in data["sets"].values())
    lines.append(["**all**", str(data["images"]), *total, f"{left:.3f}"])
    header = ["set", "images", "right", "good images not recognised", "stated rate", "none, if left out"]
    return _markdown(header, lines)


TABLES: dict[str, Callable[[], str]] = {
    "line-nodes": node_table,
    "line-registers": register_table,
    "benchmark-paper": benchmark_paper,
    "losses": losses,
    "loss-schedule": loss_schedule,
    "lambda": lambda_sweep,
    "dimension": dimension,
    "deep-svdd-variants": deep_svdd_variants,
    "intrinsic-dimension": intrinsic_dimension,
    "methods-detection": methods_detection,
    "methods-segmentation": methods_segmentation,
    "hierarchy": hierarchy,
    "baselines": baselines,
    "speed-cpu": speed_cpu,
    "speed-gpu": speed_gpu,
    "thinning": thinning,
    "sampling": sampling,
    "growth": growth,
    "drift-power": drift_power,
    "resident": resident,
    "study": study,
    "selection": selection,
    "image-sizes": image_sizes,
    "critic-changes": critic_changes,
    "best": benchmark_best,
    "encoder": benchmark_encoder,
    "parts": parts,
    "verdicts": verdicts,
    "verdicts-by-aim": verdicts_by_aim,
    "nominal-and-realised": nominal_and_realised,
    "states": states,
    "larger-patches": larger_patches,
    "dirty-sets": dirty_sets,
    "teaching": teaching,
    "teaching-names": teaching_names,
    "cluster-inputs": cluster_inputs,
    "cluster-cases": cluster_cases,
    "parity": parity,
    "export": export,
    "export_speed": export_speed,
    "cold_start": cold_start,
    "peers": peers,
    "exact_search": exact_search,
    "train_minutes": train_minutes,
    "serve-load": serve_load,
    "shadow": shadow,
    "line-load": line_load,
    "line-faults": line_faults,
    "region": region,
    "part-views": part_views,
    "part-halves": part_halves,
    "product-choice": product_choice,
}
"""Name in a marker → function that returns the table; each is used in a document."""


def _comparison(data: dict[str, Any]) -> str:
    """Variants as columns, categories as rows; "detection / segmentation" in each cell."""
    variants = list(data["means"])
    lines = ["| category | " + " | ".join(variants) + " |", "|---" * (1 + len(variants)) + "|"]
    for name, row in data["categories"].items():
        lines.append(f"| {name} | {' | '.join(_pair(row[variant]) for variant in variants)} |")
    spreads = data.get("spreads", {})
    means = (_pair(data["means"][variant], spreads.get(variant, {})) for variant in variants)
    lines.append(f"| **mean** | {' | '.join(means)} |")
    theirs = [_pair(data["published"].get(variant, {})) for variant in variants]
    lines.append(f"| the paper, mean of 15 categories | {' | '.join(theirs)} |")
    return "\n".join(lines) + "\n"


def _markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of cells."""
    lines = [f"| {' | '.join(cells)} |" for cells in (header, *rows)]
    lines.insert(1, "|---" * len(header) + "|")
    return "\n".join(lines) + "\n"


def _pair(values: Mapping[str, float | None], spreads: Mapping[str, float | None] = MappingProxyType({})) -> str:
    """ "0.987 / 0.981"; with ``spreads`` "0.987 ± 0.002 / 0.981 ± 0.001"."""

    def cell(task: str) -> str:
        value, spread = values.get(task), spreads.get(task)
        return "–" if value is None else f"{value:.3f}" + ("" if spread is None else f" ± {spread:.3f}")

    return "" if not any(values.get(task) is not None for task in TASKS) else " / ".join(map(cell, TASKS))


def _read(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text())


def fill(text: str) -> str:
    """The document with every marked table generated from its result file."""
    return MARKER.sub(lambda match: match[1] + "\n" + _table(match[2]) + "\n" + match[3], text)


def typed_by_hand(text: str) -> list[str]:
    """The first line of every table outside the markers that has a measured number without a reason."""
    outside = CODE.sub("", MARKER.sub("", text))
    return [table.splitlines()[0] for why, table in TYPED.findall(outside) if not why and MEASURED.search(table)]


def _table(name: str) -> str:
    if name in TABLES:
        return TABLES[name]()
    raise SystemExit(f"there is no table {name}; known: {', '.join(TABLES)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    for path in DOCUMENTS:
        before = path.read_text()
        after = fill(before)
        typed = typed_by_hand(after)
        if args.check and typed:
            raise SystemExit(f"{path.name}: a table is typed by hand: {typed[0]}")
        if before == after:
            continue
        if args.check:
            raise SystemExit(f"{path.name}: a table differs from its result file; run python benchmarks/tables.py")
        path.write_text(after)
        print(f"{path.name} rewritten")


if __name__ == "__main__":
    main()
