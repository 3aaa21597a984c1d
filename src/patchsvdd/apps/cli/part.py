"""``patchsvdd part``: parts with several views."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from patchsvdd.apps.cli.console import (
    DeviceOption,
    EngineOption,
    JsonOption,
    PrecisionOption,
    SearchOption,
    StageBars,
    check_share,
    escape,
    named_folders,
    one_line_errors,
    print_facts,
    print_json,
    print_table,
    progress_bar,
    say,
    stdout,
    warn_of_skipped,
)

if TYPE_CHECKING:
    from patchsvdd.detector.parts import CalibratedParts
    from patchsvdd.images.part_files import PartFiles
    from patchsvdd.report.rows import Row
    from patchsvdd.scoring.part_calibration import PartCalibration

NOT_GOOD = 3
"""Exit code of --fail-on-anomaly, the same as of `inspect`."""
SHOWN = 10
"""Parts listed in the terminal, worst first."""
PatternOption = Annotated[
    str | None,
    typer.Option(
        metavar="REGEX",
        help="How paths below the folder name part and view: a regular expression with groups part and view. Without "
        "it, each view has a folder of its name.",
    ),
]

part = typer.Typer(
    help="Judge parts with several views: one verdict, with one false-alarm rate over all views.",
    no_args_is_help=True,
    epilog="Example: patchsvdd part inspect part.json photos/new --out inspected",
)


@part.command(
    "calibrate",
    epilog="Example: patchsvdd part calibrate photos/good --view top=models/top --view side=models/side "
    "--pattern '(?P<part>.+)_(?P<view>top|side)\\.png' --out part.json",
)
@one_line_errors
def calibrate(
    good: Annotated[
        Path | None,
        typer.Argument(
            metavar="[GOOD]",
            help="Folder of good parts with all their views, which no model has seen. Without it, the models' own "
            "calibrations set the limits, which misses more.",
        ),
    ] = None,
    view: Annotated[
        list[str] | None, typer.Option(metavar="NAME=MODEL", help="A view and its model folder; repeat for each view.")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="The part file to write.")] = None,
    pattern: PatternOption = None,
    false_alarm_rate: Annotated[float, typer.Option(help="Share of good parts that may be called anomalous.")] = 0.01,
    incomplete_is_anomalous: Annotated[
        bool, typer.Option("--incomplete-is-anomalous", help="Call parts anomalous that lack a view.")
    ] = False,
    device: DeviceOption = "auto",
    engine: EngineOption = "auto",
    precision: PrecisionOption = "float32",
    search: SearchOption = "auto",
    json: JsonOption = False,
) -> None:
    """Set limits for all views of a part, so that one false-alarm rate holds for the part as a whole.

    A part is anomalous if a view's score is above that view's limit. The views may depend on each other in any way.
    """
    from patchsvdd.apps.cli.console import load_detector
    from patchsvdd.detector.parts import PartInspector
    from patchsvdd.images.part_files import group_parts

    check_share("--false-alarm-rate", false_alarm_rate)
    folders = _folders(view or [])
    if out is None:
        raise typer.BadParameter("name the part file to write", param_hint="--out")
    if good is None and pattern is not None:
        raise typer.BadParameter("it needs a folder of good parts", param_hint="--pattern")
    files = None if good is None else group_parts(good, folders, pattern)
    inspector = PartInspector(
        {name: load_detector(folder, device, engine, precision, search) for name, folder in folders.items()}
    )
    errors: list[object] = []
    incomplete: Any = "anomalous" if incomplete_is_anomalous else "incomplete"
    done = None
    if files is None:
        calibration = inspector.calibrate_from_views(false_alarm_rate, incomplete=incomplete)
    else:
        with progress_bar() as progress:
            bars = StageBars(progress)
            done = inspector.calibrate(
                files.parts,
                false_alarm_rate,
                incomplete=incomplete,
                on_error=lambda _part, _view, error: errors.append(error),
                on_progress=lambda count, total: bars("good parts", count, total),
            )
        calibration = done.calibration
    inspector.save(out, folders)
    warn_of_skipped(errors)
    if json:
        print_json({"file": str(out), **_to_json(calibration, files, done), "skipped": [str(one) for one in errors]})
        return
    _print_calibration(out, calibration, files, done)


@part.command("inspect", epilog="Example: patchsvdd part inspect part.json photos/new --out inspected")
@one_line_errors
def inspect(
    file: Annotated[Path, typer.Argument(metavar="PART", help="File written by patchsvdd part calibrate.")],
    images: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder with the images of the parts.")],
    out: Annotated[Path, typer.Option(help="Folder for parts.jsonl, parts.csv, and a report for each view.")],
    pattern: PatternOption = None,
    fail_on_anomaly: Annotated[
        bool, typer.Option("--fail-on-anomaly", help=f"Exit with {NOT_GOOD} if any part is not good.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Inspect images again that an earlier run has inspected.")
    ] = False,
    device: DeviceOption = "auto",
    engine: EngineOption = "auto",
    precision: PrecisionOption = "float32",
    search: SearchOption = "auto",
    json: JsonOption = False,
) -> None:
    """Inspect parts with several views and write one verdict for each: good, anomalous or incomplete.

    A part that lacks a view is never good. Run the same command again to continue an interrupted run.
    """
    from patchsvdd.core.files import require_writable
    from patchsvdd.detector.parts import PartInspector, read_part
    from patchsvdd.images.part_files import group_parts
    from patchsvdd.report.part_run import inspect_parts_into

    stored = read_part(file)
    files = group_parts(images, stored.calibration.names, pattern)
    require_writable(out)
    options: dict[str, Any] = {"engine": engine, "precision": precision, "search": search}
    inspector = PartInspector.load(file, device, **options)
    errors: list[str] = []
    with progress_bar() as progress:
        bars = StageBars(progress)

        def on_image(done: int, total: int, row: Row | None) -> None:
            bars("images", done, total)
            if row is not None and "error" in row:
                errors.append(f"{row['path']}: {row['error']}")

        run = inspect_parts_into(out, inspector, files, images, overwrite=overwrite, on_image=on_image)
    warn_of_skipped(errors)
    _note_ignored(files)
    counts = run.counts
    if json:
        print_json({"out": str(out), **run.to_json(), "ignored": [str(path) for path in files.ignored]})
    else:
        views = stored.calibration.names
        print_table(["part (worst first)", "verdict", *views], [_line(row, views) for row in run.rows[:SHOWN]])
        counted = ", ".join(f"{counts[verdict]} {verdict}" for verdict in counts)
        stdout().print(
            f"{len(run.rows)} parts: {counted}. Reports: {escape(str(out / views[0] / 'index.html'))} and others"
        )
    if fail_on_anomaly and counts["good"] < len(run.rows):
        raise typer.Exit(NOT_GOOD)


def _folders(views: Sequence[str]) -> dict[str, Path]:
    folders = named_folders(views, "--view", "top=models/top")
    for name in folders:
        if "/" in name or name.startswith("."):
            raise typer.BadParameter(f"a view's name names a folder of results; got {name}", param_hint="--view")
    if not folders:
        raise typer.BadParameter("name each view and its model, as in --view top=models/top", param_hint="--view")
    return folders


def _to_json(calibration: PartCalibration, files: PartFiles | None, done: CalibratedParts | None) -> dict[str, Any]:
    return {
        "basis": calibration.basis,
        "false_alarm_rate": calibration.false_alarm_rate,
        "promised_rate": calibration.rate,
        "rate_at_confidence": calibration.rate_at_confidence,
        "smallest_rate": calibration.smallest_rate,
        "promise": calibration.guarantee,
        "caveat": calibration.caveat,
        "parts": len(calibration.parts),
        "views": {
            one.view: {"identity": one.identity, "limit": one.limit, "images": len(one.scores)}
            for one in calibration.views
        },
        "known": [] if done is None else list(done.known),
        "copies": [] if done is None else list(done.copies),
        "unusable": [] if done is None else list(done.unusable),
        "ignored": [] if files is None else [str(path) for path in files.ignored],
    }


def _print_calibration(
    out: Path, calibration: PartCalibration, files: PartFiles | None, done: CalibratedParts | None
) -> None:
    if done is not None and done.known:
        say(
            f"[yellow]note:[/] {len(done.known)} parts were left out: a model was trained or calibrated with images of "
            f"them"
        )
    if done is not None and done.copies:
        say(f"[yellow]note:[/] {len(done.copies)} parts were left out: they have an image of an earlier part")
    if files is not None:
        _note_ignored(files)
    if calibration.caveat:
        say(f"[yellow]note:[/] {calibration.caveat}")
    facts = {"false alarms": calibration.guarantee}
    facts |= {f"limit of {one.view}": f"{one.limit:.4g}" for one in calibration.views}
    print_facts(f"Calibrated {out}", facts)


def _note_ignored(files: PartFiles) -> None:
    if files.ignored:
        say(f"[yellow]note:[/] {len(files.ignored)} images belong to no part, as {escape(str(files.ignored[0]))}")


def _line(row: Row, views: Sequence[str]) -> list[str]:
    cells = [f"{row['views'][view]['relative']:.2f}" if view in row["views"] else "missing" for view in views]
    return [row["part"], row["verdict"], *cells]
