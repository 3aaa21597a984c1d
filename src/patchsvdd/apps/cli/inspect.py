"""``patchsvdd inspect``."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from patchsvdd.apps.cli.console import (
    ClusterOption,
    DeviceOption,
    EngineOption,
    JsonOption,
    MinAreaOption,
    PrecisionOption,
    RoiOption,
    SearchOption,
    StageBars,
    escape,
    load_any_detector,
    one_line_errors,
    print_json,
    print_table,
    progress_bar,
    say,
    stdout,
    warn_of_skipped,
)
from patchsvdd.apps.cli.inspect_cluster import HeatMaps, inspect_archive

if TYPE_CHECKING:
    from collections.abc import Sequence

    from patchsvdd.detector.base import Detector
    from patchsvdd.detector.detector import PatchSVDD
    from patchsvdd.report.inspection_run import InspectionInputs
    from patchsvdd.report.model_card import ModelCard
    from patchsvdd.report.results_file import ResultsFile
    from patchsvdd.runtime import Detector as Runner

EXAMPLE = "Example: patchsvdd inspect models/part photos/new --out inspected"
ANOMALY_FOUND = 3
"""Exit code of --fail-on-anomaly."""
WORTH_OPENING = 5
"""Fewest files for which opening an engine other than PyTorch, which takes half a second, pays off."""
WORTH_MEASURING = 100
"""Fewest files for which measuring the fastest engine, which takes some seconds, pays off."""
SHOWN = 10
"""Images listed in the terminal, worst first."""


@one_line_errors
def inspect(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="Model folder, or a file written by patchsvdd export: starts in a second."
        ),
    ],
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="IMAGE_OR_FOLDER...",
            help="Images or folders; with --cluster also patterns, Parquet or CSV files of paths, s3://bucket/folder.",
        ),
    ],
    out: Annotated[
        str,
        typer.Option(
            help="Folder for results.jsonl, results.csv, overlays and index.html; with --cluster, for Parquet."
        ),
    ],
    fail_on_anomaly: Annotated[
        bool, typer.Option("--fail-on-anomaly", help=f"Exit with {ANOMALY_FOUND} if any image is anomalous.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Inspect images again that an earlier run has inspected.")
    ] = False,
    maps: Annotated[bool, typer.Option("--maps", help="Also write each anomaly map as a .npy file.")] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Explain each anomalous image by its nearest normal patches.")
    ] = False,
    roi: RoiOption = None,
    min_area: MinAreaOption = None,
    device: DeviceOption = "auto",
    engine: EngineOption = "auto",
    precision: PrecisionOption = "float32",
    search: SearchOption = "auto",
    cluster: ClusterOption = None,
    heat_maps: Annotated[
        HeatMaps, typer.Option(help="With --cluster: which images get an overlay. Without it, all do.")
    ] = HeatMaps.anomalous,
    shards: Annotated[
        int | None,
        typer.Option(help="With --cluster: split a memory that is too large for one machine into this many parts."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Inspect images and write verdicts, heat maps and a report with the worst images first.

    With --cluster, inspect a whole archive on many machines and write Parquet. Run the same command again to
    continue an interrupted run.
    """
    if cluster is not None:
        anomalous = inspect_archive(
            *(model, inputs, out),
            address=cluster,
            overlays=heat_maps.value,
            save_maps=maps,
            overwrite=overwrite,
            engine=engine,
            precision=precision,
            search=search,
            min_area=min_area,
            shards=shards,
            worst=SHOWN,
            unsupported={"--explain": explain, "--roi": roi is not None, "--device": device != "auto"},
            json=json,
        )
        if fail_on_anomaly and anomalous:
            raise typer.Exit(ANOMALY_FOUND)
        return
    from patchsvdd.core.errors import DatasetError, Interrupted
    from patchsvdd.core.files import require_writable
    from patchsvdd.report.inspection_run import find_inputs, inspect_into
    from patchsvdd.report.results_file import ResultsFile

    trained, folder, sources = Path(model), Path(out), find_inputs([Path(path) for path in inputs])
    detector: Detector | Runner
    if _may_be_exported(trained):
        defaults = {"--device": device == "auto", "--engine": engine == "auto", "--precision": precision == "float32"}
        defaults |= {"--search": search == "auto", "--min-area": min_area is None, "--roi": roi is None}
        defaults |= {"--explain": not explain}
        changed = [name for name, is_default in defaults.items() if not is_default]
        detector, card = _open_export(trained, changed, len(sources.images))
    else:
        detector, card = _load_model(trained, sources, device, engine, precision, search, min_area, roi, explain)
    require_writable(folder)
    if detector.calibration is None:
        advice = f"set one with: patchsvdd calibrate {escape(model)} GOOD"
        say(f"[yellow]warning:[/] this model has no threshold, so no image is called anomalous; {advice}")
    failures: list[str] = []
    with progress_bar("{task.fields[note]}") as progress:
        task = progress.add_task("inspecting", total=None, note="")
        anomalous = 0

        def on_progress(done: int, total: int, row: dict[str, Any] | None) -> None:
            nonlocal anomalous
            if row is not None and "error" in row:
                failures.append(f"{row['image']}: {row['error']}")
            anomalous += row is not None and bool(row.get("is_anomalous"))
            note = "" if row is None else f"{anomalous} anomalous"
            progress.update(task, completed=done, total=total, note=note)

        try:
            summary = inspect_into(
                folder,
                detector,
                sources,
                model_name=trained.resolve().name,
                card=card,
                overwrite=overwrite,
                save_maps=maps,
                explain=explain,
                on_progress=on_progress,
            )
        except KeyboardInterrupt:
            raise Interrupted(f"finished results are in {out}; run the same command to continue") from None
    warn_of_skipped(failures)
    if json:
        explanations = {"explanations": _explanations(ResultsFile(folder))} if explain else {}
        print_json(summary.to_json() | explanations)
    else:
        rows = [row for row, _ in zip(ResultsFile(folder).rows_worst_first(), range(SHOWN), strict=False)]
        _print_worst([row for row in rows if "error" not in row], detector)
        if summary.already_done:
            say(f"{summary.already_done} images were already inspected (--overwrite inspects them again)")
        stdout().print(
            f"{summary.images} images: {summary.anomalous} anomalous, {summary.good} good, "
            f"{summary.unreadable} unreadable. Report: {escape(str(summary.page))}"
        )
    if summary.images == summary.unreadable:
        raise DatasetError(f"none of the {summary.images} images could be read; see {folder / 'results.csv'}")
    if fail_on_anomaly and summary.anomalous:
        raise typer.Exit(ANOMALY_FOUND)


def _print_worst(rows: Sequence[dict[str, Any]], detector: Detector | Runner) -> None:
    """The worst images, with what their first regions resemble if the model was taught defects."""
    titles = ["image (worst first)", "verdict", "score" if detector.calibration is None else "score / threshold"]
    cells = [[row["image"], row["verdict"], _ratio(row["score"], detector.threshold)] for row in rows]
    likes = [row["regions"][0].get("like") if row.get("regions") else None for row in rows]
    if any(likes):
        titles.append("resembles")
        cells = [[*line, (like or "").removeprefix("like ")] for line, like in zip(cells, likes, strict=True)]
    print_table(titles, cells)


def _may_be_exported(path: Path) -> bool:
    """Whether the model is a file, not a folder, and no image that was given in its place."""
    from patchsvdd.images.image_files import opens_as_image

    return path.is_file() and (path.suffix in (".onnx", ".openvino") or not opens_as_image(path))


def _open_export(path: Path, unsupported: Sequence[str], count: int) -> tuple[Runner, ModelCard]:
    """An exported file and its card; PyTorch is not imported, which takes seconds."""
    from patchsvdd.core.errors import ConfigError
    from patchsvdd.report.export_card import export_card
    from patchsvdd.runtime import Detector as Runner
    from patchsvdd.runtime.detector import FEW

    if unsupported:
        raise ConfigError(f"'{path}' is an exported file, which has no {', '.join(unsupported)}; name a model folder")
    runner = Runner(path, few=count < FEW)
    return runner, export_card(runner.about, path.name)


def _load_model(
    model: Path,
    sources: InspectionInputs,
    device: str,
    engine: str,
    precision: str,
    search: str,
    min_area: int | None,
    roi: str | None,
    explain: bool,
) -> tuple[Detector, ModelCard]:
    """The detector of a model folder and its card."""
    from patchsvdd.core.errors import ConfigError
    from patchsvdd.detector.detector import PatchSVDD
    from patchsvdd.images.roi_input import roi_for
    from patchsvdd.report.detector_card import detector_card

    count = len(sources.images)
    few = engine == "auto" and precision == "float32" and count < WORTH_OPENING
    detector = load_any_detector(model, device, "torch" if few else engine, precision, search)
    asked = {"--min-area": min_area is not None, "--roi": roi is not None, "--explain": explain}
    if isinstance(detector, PatchSVDD):
        detector = detector if min_area is None else detector.with_min_area(min_area)
        if roi is not None:
            detector = detector.with_roi(roi_for(roi, ((str(image.path), image.path) for image in sources.images)))
        if engine == "auto" and precision == "float32" and count >= WORTH_MEASURING:
            _find_engines(detector, model)
    elif any(asked.values()):
        options = ", ".join(name for name, given in asked.items() if given)
        raise ConfigError(f"{model} holds a baseline ({detector.config.preset}), which has no {options}")
    return detector, detector_card(detector, model.resolve().name)


def _explanations(results: ResultsFile) -> list[dict[str, Any]]:
    """The explanations of anomalous images, worst first."""
    rows = results.rows_worst_first()
    return [{"image": row["image"], **row["explanation"]} for row in rows if "explanation" in row]


def _find_engines(detector: PatchSVDD, model: Path) -> None:
    """Measure which engines are fastest on this machine, unless that is known."""
    from patchsvdd.detector.prepare import engines_are_known, find_engines

    if detector.device.type != "cpu" or engines_are_known(detector, model):
        return
    with progress_bar() as progress:
        choices = find_engines(detector, model, StageBars(progress))
    measured = [f"{choice.engine} for the {name}" for name, choice in choices.items() if choice.measured]
    if measured:
        say(f"fastest engine here: {', '.join(measured)} (saved in {model / 'engines'})")


def _ratio(score: float, threshold: float) -> str:
    """score ÷ threshold, as text; the threshold is 0 if all good images are alike, infinite if there is none."""
    if math.isinf(threshold):
        return f"{score:.2f}"
    return f"{score / threshold:.2f}" if threshold > 0 else "–" if score == 0 else "∞"
