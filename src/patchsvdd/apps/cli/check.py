"""``patchsvdd check``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from patchsvdd.apps.cli.console import (
    DeviceOption,
    EngineOption,
    JsonOption,
    SearchOption,
    StageBars,
    escape,
    load_any_detector,
    one_line_errors,
    print_json,
    print_table,
    progress_bar,
    say,
    warn_of_skipped,
)
from patchsvdd.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from patchsvdd.detector.golden_images import GoldenCheck

EXAMPLE = "Example: patchsvdd check models/part --add photos/golden-good --verdict good"


@one_line_errors
def check(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Model folder.")],
    add: Annotated[
        list[Path] | None,
        typer.Option(metavar="IMAGES", help="Store an image, or those of a folder, as golden images; needs --verdict."),
    ] = None,
    verdict: Annotated[str | None, typer.Option(help="What the model must say about them: good or anomalous.")] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Add them even if the model says otherwise; its checks then fail.")
    ] = False,
    remove: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Remove a golden image.")] = None,
    list_only: Annotated[bool, typer.Option("--list", help="List the golden images without inspecting them.")] = False,
    device: DeviceOption = "auto",
    engine: EngineOption = "auto",
    search: SearchOption = "auto",
    json: JsonOption = False,
) -> None:
    """Check a model with golden images, whose verdicts are known; exits with code 1 if one is judged differently.

    The images are stored with the model, without changing it. If the model has not changed since an image was added,
    its score must be the same too, within 2 % of the threshold.
    """
    from patchsvdd.detector.golden_images import add_golden_images, check_golden_images, remove_golden_images
    from patchsvdd.detector.model_folder import read_index

    if (add is None) != (verdict is None):
        raise ConfigError("--add and --verdict belong together: which images, and what the model must say about them")
    read_index(model)  # raises an error before anything is changed
    if remove:
        remove_golden_images(model, remove)
    if list_only and not add:
        _list(model, json)
        return
    if remove and not add:
        say(f"removed {escape(', '.join(remove))}")
        _list(model, json)
        return
    detector = load_any_detector(model, device, engine, "float32", search)
    with progress_bar() as progress:
        bars = StageBars(progress)
        if add and verdict is not None:
            paths = _images(add)
            add_golden_images(
                model, detector, paths, verdict, force=force, on_progress=lambda done, of: bars("adding", done, of)
            )
        found = check_golden_images(model, detector, on_progress=lambda done, of: bars("checking", done, of))
    if not found.results and found.damage is None:
        raise ConfigError(f"'{model}' has no golden images; store some with --add IMAGES --verdict good")
    if json:
        print_json({"model": str(model), **found.to_json()})
    else:
        _print(found)
    if found.problem is not None:
        if not json:
            say(f"[red]error:[/] the check failed: {escape(found.problem)}")
        raise typer.Exit(1)


def _images(given: Sequence[Path]) -> list[Path]:
    """The given images and those in given folders; unreadable ones in folders are reported and skipped."""
    from patchsvdd.images.image_files import find_images

    paths: list[Path] = []
    for path in given:
        if path.is_dir():
            found, errors = find_images(path)
            warn_of_skipped(errors)
            paths += found
        else:
            paths.append(path)
    return paths


def _list(model: Path, json: bool) -> None:
    from dataclasses import asdict

    from patchsvdd.detector.golden_images import golden_images

    images = golden_images(model)
    if json:
        print_json({"model": str(model), "golden": [asdict(one) for one in images]})
    else:
        print_table(("image", "verdict", "score"), [(one.name, one.verdict, f"{one.score:.4g}") for one in images])


def _print(found: GoldenCheck) -> None:
    rows = [
        (
            one.name,
            one.expected,
            one.verdict or "–",
            f"{one.recorded_score:.4g}",
            "–" if one.score is None else f"{one.score:.4g}",
            "passed" if one.problem is None else "failed",
        )
        for one in found.results
    ]
    print_table(("image", "expected", "verdict", "score before", "score", "result"), rows)
