"""The size of cluster an archive needs: inputs measured on this machine, and ten million images simulated with them.

    python benchmarks/cluster_sizing.py --out benchmarks/results/cluster-sizing.json
        [--model MODEL --images FOLDER] [--paths 100000] [--chart docs/pictures/cluster-sizing.png]
        [--docs docs/cluster.md] [--assume gets_per_second=11000 …] [--only-simulate]

Without --model, a tiny model is trained on demo images. Seconds are CPU time of one core; the speed of a GPU is read
from gpu-inspection.json. ``--docs`` writes the tables of benchmarks/results/cluster-sizing.json between their markers;
``--only-docs`` measures nothing. ``--only-simulate`` simulates again with what ``--out`` has measured and the present
speed of a GPU. cluster_simulation.py describes the simulation.
"""

from __future__ import annotations

import argparse
import io
import json
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from cluster_simulation import Assumed, Measured, Outcome, simulate_all
from patchsvdd import PatchSVDD
from patchsvdd.apps.cluster.chunk_inspection import OutputOptions, inspect_chunk
from patchsvdd.apps.cluster.image_listing import find_archive
from patchsvdd.apps.cluster.job import CHUNK, Chunk, Job
from patchsvdd.apps.cluster.job_summary import summarise
from patchsvdd.apps.cluster.storage import StoragePath
from patchsvdd.apps.demo.dataset import draw_dataset
from patchsvdd.detector.inspections import to_inspections
from patchsvdd.images.image_files import find_images
from patchsvdd.images.image_set import each_image, load_image
from patchsvdd.report.overlay import draw_overlay
from plots import PICTURES, cluster_sizing
from record import RESULTS, circumstances, write_result
from tables import fill

OUT = RESULTS / "cluster-sizing.json"
GPU_FILE = "gpu-inspection.json"
GPU_MEMORY, GPU_BATCH = "100%", 64
GROUPS = (100, 5000)
"""Numbers of chunks of two plans; their difference gives the cost of opening a plan per chunk."""
FIRST = "import sys; from patchsvdd import PatchSVDD; PatchSVDD.load(sys.argv[1], 'cpu').inspect(sys.argv[2])"
"""Start of a worker until its first image is inspected."""
CHUNKS = (40, 160)
"""Numbers of chunks of two jobs; their difference gives the cost per chunk for the driver."""


def timed(work: Callable[[], Any], repeats: int = 1, clock: Callable[[], float] = time.process_time) -> float:
    """Median CPU seconds, which other load on the machine affects little."""
    taken = []
    for _ in range(repeats):
        start = clock()
        work()
        taken.append(clock() - start)
    return statistics.median(taken)


def tiny_model(folder: Path) -> tuple[Path, list[Path]]:
    """A model trained briefly on demo images, and images to inspect."""
    drawn = draw_dataset(folder / "demo", size=128, train=12, test_good=8, per_defect=2, categories=["washer"])
    settings: dict[str, Any] = {"image_size": 128, "steps": 4, "batch_size": 2, "stop": "end"}
    settings |= {"aim": "few-alarms", "synthetic_defects": 0}
    PatchSVDD.fit(drawn["washer"], preset="encoder", device="cpu", **settings).save(folder / "model")
    return folder / "model", find_images(drawn["washer"] / "test")[0]


def measure_inspection(model: Path, images: Sequence[Path], folder: Path) -> dict[str, float]:
    """Times of a chunk inspected by one thread, as in a worker, and of its parts."""
    detector = PatchSVDD.load(model, "cpu")
    job = Job(StoragePath.of(folder / "job"))
    job.open({"model": detector.identity})
    repeats = -(-64 // len(images))
    names = [(f"{number}-{path.name}", str(path)) for number in range(repeats) for path in images]
    job.extend(((name, path) for name, path in names), len(images))
    chunks = job.chunks()
    each = [timed(lambda chunk=chunk: inspect_chunk(detector, job, chunk, OutputOptions())) for chunk in chunks]  # type: ignore[misc]
    rows = list(job.results())
    loaded = [load_image(image, detector.config, name) for name, image in each_image(list(images))]
    maps = [next(iter(detector.map_batches([one.tensor[None]]))) for one in loaded]
    inspections = list(detector.inspect_many(list(images)))
    overlays = [_as_jpeg(one) for one in inspections]
    size = sum(path.stat().st_size for path in (folder / "job" / "results").rglob("*.parquet"))
    return {
        "image_seconds": statistics.median(each) / len(images),
        "decode_seconds": timed(lambda: [load_image(path, detector.config, path.name) for path in images], 3)
        / len(images),
        "record_seconds": timed(
            lambda: [
                one.to_json()
                for image, found in zip(loaded, maps, strict=True)
                for one in to_inspections([image], found, detector.config, detector.calibration, 0)
            ],
            3,
        )
        / len(images),
        "commit_seconds": timed(lambda: job.commit(Chunk(0, 0, CHUNK), (rows * CHUNK)[:CHUNK]), 5),
        "overlay_seconds": timed(lambda: [_as_jpeg(one) for one in inspections], 3) / len(images),
        "image_bytes": statistics.mean(path.stat().st_size for path in images),
        "result_bytes": size / len(rows),
        "overlay_bytes": statistics.mean(map(len, overlays)),
        "load_seconds": timed(
            lambda: subprocess.run([sys.executable, "-c", FIRST, model, images[0]], check=True), 3, time.perf_counter
        ),
        "model_bytes": float(
            sum(len((StoragePath.of(model) / name).read_bytes()) for name in StoragePath.of(model).below())
        ),
    }


def _as_jpeg(inspection: Any) -> bytes:
    content = io.BytesIO()
    draw_overlay(inspection).save(content, format="JPEG", quality=90, subsampling=0)
    return content.getvalue()


def measure_planning(folder: Path, paths: int) -> dict[str, float]:
    """Times to find and plan a list of paths, to open plans, and to summarise results."""
    import pyarrow as pa
    from pyarrow import parquet

    names = [f"line-{index % 7}/2026-{index % 12 + 1:02d}/part-{index:08d}.png" for index in range(paths)]
    listed = folder / "paths.parquet"
    parquet.write_table(pa.table({"path": [f"s3://factory/photos/{name}" for name in names]}), listed)
    tracemalloc.start()
    found = list(find_archive([str(listed)]))
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    find_seconds = timed(lambda: list(find_archive([str(listed)])))
    job = Job(StoragePath.of(folder / "planned"))
    plan_seconds = timed(lambda: job.extend(found))
    plan_bytes = sum(path.stat().st_size for path in (folder / "planned" / "plan").iterdir())
    opened = []
    for groups in GROUPS:
        other = Job(StoragePath.of(folder / f"plan-of-{groups}"))
        other.extend(found[: groups * 2], 2)
        seconds = timed(lambda other=other: other.images(Chunk(0, 1, 2)), 5)  # type: ignore[misc]
        path = next((folder / f"plan-of-{groups}" / "plan").iterdir())
        footer = int.from_bytes(path.read_bytes()[-8:-4], "little")
        opened.append((seconds, footer))
    row = {"image": "part.png", "path": "s3://factory/photos/part.png", "verdict": "good", "score": 1.0}
    parts = job.chunks()[:100]
    for chunk in parts:
        job.commit(chunk, [row] * chunk.images)
    between = GROUPS[1] - GROUPS[0]
    return {
        "find_seconds": find_seconds / paths,
        "plan_seconds": plan_seconds / paths,
        "plan_bytes": plan_bytes / paths,
        "driver_bytes": held / paths,
        "open_seconds": max(0.0, opened[1][0] - opened[0][0]) / between,
        "open_bytes": (opened[1][1] - opened[0][1]) / between,
        "part_seconds": timed(lambda: summarise(job)) / len(parts),
    }


def measure_driver(model: Path, image: Path, folder: Path) -> float:
    """CPU seconds of the driver per chunk, with a cluster on this machine."""
    from patchsvdd.apps.cluster.ray_connection import connected
    from patchsvdd.apps.cluster.ray_inspect import Loading, inspect_archive

    spent = []
    with connected("local"):
        for chunks in CHUNKS:
            job = Job(StoragePath.of(folder / f"driver-{chunks}"))
            job.open({"model": None})
            job.extend(((f"{index}.png", f"{image.parent}/./{'./' * index}{image.name}") for index in range(chunks)), 1)
            loading = Loading(str(model), engine="torch")
            before = time.process_time()
            inspect_archive(job, loading, OutputOptions(), 1, lambda _: None)
            spent.append(time.process_time() - before)
    return max(0.0, spent[1] - spent[0]) / (CHUNKS[1] - CHUNKS[0])


def gpu_rate() -> tuple[float, str]:
    """Images per second of a GPU, and the source of the number."""
    memories = json.loads((RESULTS / GPU_FILE).read_text())["memories"]
    for index, memory in enumerate(memories):
        for at, row in enumerate(memory["throughput"]):
            if (memory["memory"], row["batch"]) == (GPU_MEMORY, GPU_BATCH):
                return float(row["images_per_second"]), f"{GPU_FILE}: memories[{index}].throughput[{at}]"
    raise SystemExit(
        f"{GPU_FILE} has no memory {GPU_MEMORY} in batches of {GPU_BATCH}; run benchmarks/gpu_inspection.py"
    )


UNITS = {"seconds": "s", "bytes": "bytes", "gigabits": "Gbit/s", "hour": "per hour", "second": "1/s"}
WHAT_IS_MEASURED = {
    "image_seconds": "an image on one core, from file to row",
    "decode_seconds": "of that: read and decoded",
    "record_seconds": "of that: from its map to its row",
    "commit_seconds": f"the results of a chunk of {CHUNK} written",
    "overlay_seconds": "a heat map drawn",
    "image_bytes": "an image",
    "result_bytes": "its results, in Parquet",
    "overlay_bytes": "a heat map",
    "find_seconds": "an image found on a list",
    "plan_seconds": "an image planned",
    "plan_bytes": "an image in the plan",
    "driver_bytes": "an image in the driver's memory while it plans",
    "open_seconds": "a plan opened, for each chunk in it",
    "open_bytes": "read when a plan is opened, for each chunk in it",
    "part_seconds": "the results of a chunk read for the summary",
    "chunk_seconds": "the driver, for each block handed out",
    "load_seconds": "a worker until its first image is inspected",
    "model_bytes": "the model, sent to every worker",
    "gpu_images_per_second": "images/s of a GPU, decoded images to maps",
}
WHAT_IS_ASSUMED = {
    "images": "images",
    "nic_gigabits": "network of a machine",
    "cpu_workers_per_machine": "cores of a machine",
    "gpu_workers_per_machine": "GPUs of a machine",
    "cpu_readers": "images on their way to a worker on a core",
    "gpu_readers": "images on their way to a worker on a GPU",
    "request_seconds": "a request to the store",
    "page_seconds": "a request that lists names",
    "page_names": "names that it lists",
    "gets_per_second": "GET per prefix",
    "puts_per_second": "PUT per prefix",
    "prefixes": "prefixes that images lie under",
    "store_gigabits": "bandwidth of the store",
    "anomalous_share": "share of images with a heat map",
    "spread": "standard deviation of a block's time, as a share",
    "core_hour": "price of a core",
    "gpu_hour": "price of a GPU",
    "seed": "seed of the simulation",
}


def described(values: dict[str, float], words: dict[str, str], sources: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Every input with its value, unit, meaning, and source if it is not this run."""
    return {
        name: {"value": value, "unit": UNITS.get(name.rpartition("_")[2], ""), "what": words[name]}
        | ({"source": sources[name]} if name in sources else {})
        for name, value in values.items()
    }


def assumptions(texts: Sequence[str]) -> Assumed:
    """The assumptions, with given values such as "gets_per_second=11000"."""
    kinds = {name: type(value) for name, value in asdict(Assumed()).items()}
    given = {}
    for text in texts:
        name, _, value = text.partition("=")
        if name not in kinds:
            raise SystemExit(f"there is no assumption '{name}'; known: {', '.join(kinds)}")
        given[name] = kinds[name](value)
    return replace(Assumed(), **given)


def measure(model: Path | None, images: Path | None, paths: int) -> tuple[Measured, dict[str, Any]]:
    """All inputs measured here, and the model."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as every worker does
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if model is None:
            stored, found = tiny_model(folder)
        elif images is None:
            raise SystemExit("--model requires --images, a folder of images to inspect")
        else:
            stored, found = model, find_images(images)[0][:64]
        told = PatchSVDD.load(stored, "cpu")
        height, width, _ = load_image(found[0], told.config, "first").pixels.shape
        size = (height, width)
        about = {
            "model": "tiny, of demo images" if model is None else model.name,
            "preset": told.config.preset,
            "patches": {str(size): len(scale.embeddings) for size, scale in told.memory.scales.items()},
            "images_inspected": len(found),
            "image_size": list(size),
            "engine": told.embedder.engine_for(size),
            "paths": paths,
        }
        values = measure_inspection(stored, found, folder) | measure_planning(folder, paths)
        values["chunk_seconds"] = measure_driver(stored, found[0], folder)
    torch.set_num_threads(threads)
    return Measured(**values, gpu_images_per_second=gpu_rate()[0]), about


def result(measured: Measured, about: dict[str, Any], assumed: Assumed) -> dict[str, Any]:
    """The result file."""
    outcomes: list[Outcome] = simulate_all(measured, assumed)
    return {
        "command": shlex.join(["benchmarks/cluster_sizing.py", *sys.argv[1:]]),
        **circumstances(torch.device("cpu")),
        "seed": assumed.seed,
        "threads": 1,
        "about": about,
        "measured": described(asdict(measured), WHAT_IS_MEASURED, {"gpu_images_per_second": gpu_rate()[1]}),
        "assumed": described(asdict(assumed), WHAT_IS_ASSUMED, {}),
        "cases": [one.to_json() for one in outcomes],
    }


def simulated_again(data: dict[str, Any]) -> dict[str, Any]:
    """The result file with the same inputs, except for the speed of a GPU."""
    rate, source = gpu_rate()
    measured = Measured(**{name: one["value"] for name, one in data["measured"].items()})
    measured = replace(measured, gpu_images_per_second=rate)
    assumed = Assumed(**{name: one["value"] for name, one in data["assumed"].items()})
    data["measured"]["gpu_images_per_second"] |= {"value": rate, "source": source}
    made = circumstances(torch.device("cpu"))
    data["simulated"] = {name: made[name] for name in ("date", "commit")}
    return {**data, "cases": [one.to_json() for one in simulate_all(measured, assumed)]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--images", type=Path)
    parser.add_argument("--paths", type=int, default=100_000)
    parser.add_argument("--assume", nargs="*", default=[], metavar="NAME=VALUE")
    parser.add_argument("--chart", type=Path, default=PICTURES / "cluster-sizing.png")
    parser.add_argument("--docs", type=Path)
    parser.add_argument("--only-docs", action="store_true", help="only write --docs and --chart, from the given --out")
    parser.add_argument("--only-simulate", action="store_true", help="measure nothing, and simulate --out again")
    args = parser.parse_args()
    if args.only_simulate:
        write_result(args.out, simulated_again(json.loads(args.out.read_text())))
    elif not args.only_docs:
        measured, about = measure(args.model, args.images, args.paths)
        write_result(args.out, result(measured, about, assumptions(args.assume)))
    data = json.loads(args.out.read_text())
    for case in data["cases"]:
        print(f"{case['workers']:4d} {case['kind']}: {case['seconds'] / 3600:8.2f} h, first {case['first']}")
    cluster_sizing(data, args.chart)
    if args.docs is not None:
        args.docs.write_text(fill(args.docs.read_text()))


if __name__ == "__main__":
    main()
