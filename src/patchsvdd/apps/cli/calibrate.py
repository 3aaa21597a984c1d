"""``patchsvdd calibrate``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from patchsvdd.apps.cli.aims import AimOption, aim_facts, checked_aim, misses_to_json
from patchsvdd.apps.cli.console import (
    DeviceOption,
    EngineOption,
    JsonOption,
    PrecisionOption,
    SearchOption,
    StageBars,
    check_share,
    one_line_errors,
    print_facts,
    print_json,
    progress_bar,
    say,
    warn_of_skipped,
)
from patchsvdd.apps.cli.info import min_area_fact
from patchsvdd.apps.cli.review_proposal import propose_from_reviews

if TYPE_CHECKING:
    from patchsvdd.core.errors import ImageError
    from patchsvdd.detector.recalibration import Recalibration

EXAMPLE = "Example: patchsvdd calibrate models/part photos/good-of-this-week --false-alarm-rate 0.01"


@one_line_errors
def calibrate(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Model folder; its thresholds are replaced.")],
    good: Annotated[
        Path | None,
        typer.Argument(
            metavar="[GOOD]",
            help="Folder of good images, preferably not used in training. Without it, --aim or --false-alarm-rate "
            "chooses a threshold from the scores that the model stores.",
        ),
    ] = None,
    aim: AimOption = None,
    false_alarm_rate: Annotated[
        float | None,
        typer.Option(
            help="Share of good images that may be called anomalous (default: the model's own); implies the aim "
            "few-alarms."
        ),
    ] = None,
    threshold: Annotated[
        float | None, typer.Option(help="Set this threshold, without a folder of good images.")
    ] = None,
    pixel_rate: Annotated[
        float | None,
        typer.Option(help="Share of a good image's pixels above the pixel threshold (default: the same)."),
    ] = None,
    min_area: Annotated[
        int | None,
        typer.Option(
            metavar="PIXELS",
            help="Ignore regions smaller than this many pixels of the original image from now on; 0 for none.",
        ),
    ] = None,
    defects: Annotated[
        Path | None,
        typer.Option(help="Folder of defective images: also report the miss rate and a threshold that fits both."),
    ] = None,
    reviews: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Propose a threshold from reviewed parts: the service's history as CSV. Nothing changes without "
            "--apply.",
        ),
    ] = None,
    apply: Annotated[
        bool, typer.Option("--apply", help="Store the threshold that --reviews proposes, if the reviews support it.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Report what would change without changing it.")] = False,
    device: DeviceOption = "auto",
    engine: EngineOption = "auto",
    precision: PrecisionOption = "float32",
    search: SearchOption = "auto",
    json: JsonOption = False,
) -> None:
    """Set a model's thresholds from good images and report what they guarantee.

    Thresholds are ranks among the scores of good images (conformal prediction). They hold for good images like these,
    for any distribution of scores. With --reviews, the threshold comes from what people said about inspected parts, for
    example: patchsvdd calibrate models/part --reviews inspections.csv
    """
    from patchsvdd.detector.recalibration import recalibrate_model
    from patchsvdd.detector.threshold_choice import choose_threshold

    for name, rate in (("--false-alarm-rate", false_alarm_rate), ("--pixel-rate", pixel_rate)):
        if rate is not None:
            check_share(name, rate)
    chosen = checked_aim(aim)
    if apply and reviews is None:
        raise typer.BadParameter("it stores what --reviews proposes; give --reviews too", param_hint="--apply")
    if reviews is not None:
        others = (good, false_alarm_rate, threshold, pixel_rate, min_area, defects)
        if any(other is not None for other in others):
            raise typer.BadParameter("only --aim, --apply, --dry-run and --json go with it", param_hint="--reviews")
        propose_from_reviews(model, reviews, chosen, apply=apply, dry_run=dry_run, json=json)
        return
    skipped: list[ImageError] = []
    if good is None:
        ways = [way for way in (chosen, false_alarm_rate, threshold) if way is not None]
        if not ways:
            raise typer.BadParameter(
                "give a folder of good images, --reviews, --aim, --false-alarm-rate or --threshold", param_hint="GOOD"
            )
        if threshold is not None and len(ways) > 1:
            raise typer.BadParameter("it replaces --aim and --false-alarm-rate; give one", param_hint="--threshold")
        if pixel_rate is not None or min_area is not None or defects is not None:
            raise typer.BadParameter(
                "--pixel-rate, --min-area and --defects require a folder of good images", param_hint="GOOD"
            )
        done = choose_threshold(model, chosen, false_alarm_rate, threshold=threshold, dry_run=dry_run)
        _report(done, model, dry_run, skipped, json)
        return
    if threshold is not None:
        raise typer.BadParameter("good images set the threshold; leave one of the two out", param_hint="--threshold")
    options: dict[str, Any] = {"device": device, "engine": engine, "precision": precision, "search": search}
    with progress_bar() as progress:
        bars = StageBars(progress)
        done = recalibrate_model(
            model,
            good,
            false_alarm_rate,
            aim=chosen,
            pixel_rate=pixel_rate,
            min_area=min_area,
            defects=defects,
            dry_run=dry_run,
            on_error=skipped.append,
            on_progress=partial(bars, "good images"),
            **options,
        )
    _report(done, model, dry_run, skipped, json)


def _report(done: Recalibration, model: Path, dry_run: bool, skipped: list[ImageError], json: bool) -> None:
    warn_of_skipped(skipped)
    if json:
        skipped_files = [str(error) for error in skipped]
        print_json({"model": str(model), "changed": not dry_run, **_to_json(done), "skipped": skipped_files})
    else:
        _print(done, model, dry_run)


def _to_json(done: Recalibration) -> dict[str, Any]:
    from patchsvdd.scoring.calibration import BASES

    calibration, guarantee = done.calibration, done.calibration.conformal_guarantee
    return {
        "threshold": calibration.threshold,
        "threshold_before": done.before if done.before != float("inf") else None,
        "aim": calibration.aim,
        **misses_to_json(calibration),
        "false_alarm_rate": calibration.false_alarm_rate,
        "guaranteed": calibration.is_guaranteed,
        "promised_rate": guarantee.rate if calibration.is_guaranteed and not guarantee.is_estimate else None,
        "confidence": guarantee.confidence,
        "rate_at_confidence": guarantee.rate_at_confidence if calibration.is_guaranteed else None,
        "smallest_rate": guarantee.smallest_rate,
        "promise": calibration.guarantee,
        "images": len(calibration.scores),
        "separate": done.separate,
        "known": done.known,
        "unusable": list(done.unusable),
        "copies": list(done.copies),
        "basis": calibration.basis,
        "basis_in_words": BASES[calibration.basis],
        "pixel_threshold": calibration.pixel_threshold,
        "pixel_rate": calibration.pixel_rate,
        "min_area": done.min_area,
        "caveat": calibration.caveat,
        "defects": done.defects.to_json() if done.defects is not None else None,
        "shift": done.shift.to_json() if done.shift is not None else None,
    }


def _print(done: Recalibration, model: Path, dry_run: bool) -> None:
    values = _to_json(done)
    if done.unusable:
        say(
            f"[yellow]note:[/] {len(done.unusable)} images were left out: the model's critic was trained on them, "
            f"or its memory is a coreset"
        )
    if done.copies:
        say(
            f"[yellow]note:[/] {len(done.copies)} images were left out: they are copies or near-copies of images in "
            f"the model's memory, or of each other"
        )
    if values["caveat"]:
        say(f"[yellow]note:[/] {values['caveat']}")
    _warn_of_shift(done, dry_run)
    before = f" (was {done.before:.4g})" if values["threshold_before"] is not None else ""
    facts = {
        "threshold": f"{values['threshold']:.4g}{before}",
        "false alarms": values["promise"],
        "based on": f"{values['images']} good images: {values['basis_in_words']}",
        **aim_facts(done.calibration),
    }
    if values["pixel_threshold"] is not None:
        facts["pixels above"] = (
            f"{values['pixel_threshold']:.4g} (at most {values['pixel_rate']:.2%} of a good image's pixels)"
        )
    facts |= min_area_fact(done.min_area)
    defects = values["defects"]
    if defects is not None:
        low, high = defects["miss_rate_interval"]
        facts["defects found"] = (
            f"{defects['found']} of {defects['images']}: {defects['miss_rate']:.1%} are missed "
            f"(95% confidence: {low:.1%} to {high:.1%})"
        )
        facts["fits both"] = (
            f"a threshold of {defects['suggested_threshold']:.4g}: {defects['suggested_miss_rate']:.1%} missed, "
            f"{defects['suggested_false_alarm_rate']:.1%} false alarms on these images"
        )
    print_facts(f"{'Would calibrate' if dry_run else 'Calibrated'} {model}", facts)


def _warn_of_shift(done: Recalibration, dry_run: bool) -> None:
    """Say that the images score higher than those before, and what calibrating with them does."""
    if done.shift is None or not done.shift.is_higher:
        return
    before, now, missed = done.shift.threshold, done.calibration.threshold, done.calibration.miss_rate
    moves = "rises" if now > before else "falls"
    cost = f" (about {missed:.0%} of the visible synthetic defects)" if missed is not None else ""
    changes = "would treat" if dry_run else "treats"
    say(
        f"[yellow]warning:[/] {done.shift.in_words()}. Check light, camera and material first. Calibrating {changes} "
        f"these images as normal: the threshold {moves} from {before:.4g} to {now:.4g}, images like these raise fewer "
        f"alarms, and defects that score below it are missed{cost}"
    )
