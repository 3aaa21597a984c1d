"""``patchsvdd drift``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from patchsvdd.apps.cli.console import (
    DeviceOption,
    EngineOption,
    JsonOption,
    PrecisionOption,
    SearchOption,
    check_share,
    escape,
    load_detector,
    one_line_errors,
    print_facts,
    print_json,
    print_table,
    progress_bar,
    say,
    warn_of_skipped,
)

if TYPE_CHECKING:
    from patchsvdd.core.errors import ImageError
    from patchsvdd.detector.drift import DriftTest

EXAMPLE = "Example: patchsvdd drift models/part photos/this-week --rate 0.01"
DRIFT_FOUND = 3
"""Exit code with --fail-on-drift, the same as of `inspect --fail-on-anomaly`; 2 means wrong usage."""


@one_line_errors
def drift(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Model folder.")],
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Images taken since calibration, mostly good.")],
    rate: Annotated[float, typer.Option(help="Probability of a false alarm, over all images together.")] = 0.01,
    fail_on_drift: Annotated[
        bool, typer.Option("--fail-on-drift", help=f"Exit with {DRIFT_FOUND} if something changed.")
    ] = False,
    device: DeviceOption = "auto",
    engine: EngineOption = "auto",
    precision: PrecisionOption = "float32",
    search: SearchOption = "auto",
    json: JsonOption = False,
) -> None:
    """Test whether light, contrast, colour, focus or material have changed since calibration.

    Images are processed in order of modification time. The probability of a false alarm is at most --rate, no matter
    how many images are tested. The result lists the changes that this number of calibration images can detect.
    """
    from patchsvdd.detector.drift import drift_test, follow
    from patchsvdd.images.image_files import find_images

    check_share("--rate", rate)
    detector = load_detector(model, device, engine, precision, search)
    test = drift_test(detector, rate)
    files, broken = find_images(folder)
    files.sort(key=lambda path: (path.stat().st_mtime_ns, str(path)))
    skipped: list[ImageError] = list(broken)
    with progress_bar() as progress:
        task = progress.add_task("images", total=len(files))
        follow(
            test,
            detector,
            files,
            skipped.append,
            lambda *_: progress.update(task, advance=1),
        )
    warn_of_skipped(skipped)
    if json:
        print_json({"model": str(model), **_to_json(test), "skipped": [str(one) for one in skipped]})
    else:
        _print(test, model)
    if fail_on_drift and test.changes:
        raise typer.Exit(DRIFT_FOUND)


def _to_json(test: DriftTest) -> dict[str, Any]:
    """The result of a drift test as a JSON-ready dictionary."""
    from patchsvdd.detector.drift import noticed

    return {
        "images": test.count,
        "rate": test.rate,
        "changed": bool(test.changes),
        "changes": [change.to_json() for change in test.changes.values()],
        "traits": {
            trait: {"evidence": evidence, "limit": test.limit_as_power, "changed": trait in test.changes}
            for trait, evidence in test.evidence.items()
        },
        "noticed": noticed(test.references),
    }


def _print(test: DriftTest, model: Path) -> None:
    from patchsvdd.detector.drift import noticed_in_words
    from patchsvdd.detector.image_statistics import TRAITS

    rows = []
    for trait, evidence in test.evidence.items():
        change = test.changes.get(trait)
        words = "no change"
        if change is not None:
            words = (
                f"{change.direction} since {escape(change.image)} (image {change.number}): "
                f"{change.now:.4g}, {change.before:.4g} before"
            )
        rows.append((trait, TRAITS[trait], f"{evidence:+.1f} of {test.limit_as_power:.1f}", words))
    print_table(("statistic", "meaning", "evidence", "result"), rows)
    print_facts(
        "Drift detected" if test.changes else "No drift detected",
        {
            "images": str(test.count),
            "false alarm": f"with probability at most {test.rate:.1%}, over all images",
            "calibration": f"{test.references} images",
            "detects": noticed_in_words(test.references),
        },
    )
    if test.changes:
        say(
            f"Check the camera and the light first. If good parts will look like this from now on: "
            f"patchsvdd calibrate {escape(str(model))} GOOD --dry-run (says whether good images score higher, and what "
            f"the new threshold costs)"
        )
