"""``patchsvdd update``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from patchsvdd.apps.cli.console import (
    DeviceOption,
    JsonOption,
    StageBars,
    escape,
    one_line_errors,
    print_facts,
    print_json,
    print_table,
    progress_bar,
    say,
    warn_of_skipped,
)

if TYPE_CHECKING:
    from patchsvdd.detector.memory_update import Change
    from patchsvdd.detector.teaching import Teaching

EXAMPLE = (
    "Example: patchsvdd update models/part --add photos/confirmed-good, or "
    "patchsvdd update models/part --defects photos/scratches --kind scratch --preview"
)
SHOWN = 10
"""Names listed before the rest are counted."""


@one_line_errors
def update(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Model folder.")],
    add: Annotated[
        Path | None, typer.Option(metavar="GOOD", help="Folder or file of good images to add to the memory.")
    ] = None,
    remove: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Image to remove from the memory; may be repeated.")
    ] = None,
    defects: Annotated[
        Path | None,
        typer.Option(
            metavar="DEFECTS",
            help="Folder or file of confirmed defects to teach; the folders in it name their kinds.",
        ),
    ] = None,
    kind: Annotated[str | None, typer.Option(help="With --defects: what to call them, e.g. scratch.")] = None,
    masks: Annotated[
        Path | None,
        typer.Option(
            metavar="MASKS",
            help="With --defects: masks of the same names, white where the defect is. Without masks the places that "
            "the model finds most suspicious are taught, which may be the wrong ones.",
        ),
    ] = None,
    good: Annotated[
        Path | None,
        typer.Option(
            metavar="GOOD",
            help="With --defects: the good images that the model was trained with; by default the copies in the model.",
        ),
    ] = None,
    preview: Annotated[
        bool, typer.Option("--preview", help="With --defects: show what would change, and change nothing.")
    ] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Restore the model as it was before its last change.")] = False,
    recalibrate: Annotated[
        bool,
        typer.Option(
            "--recalibrate",
            help="With --add: also set the threshold again, from the earlier scores and those of the added images. "
            "Do not use it for images that were selected because they raised an alarm.",
        ),
    ] = False,
    device: DeviceOption = "auto",
    json: JsonOption = False,
) -> None:
    """Add good images to a model's memory or remove them, or teach it confirmed defects; undo; or show the journal.

    Nothing is trained. The model is replaced atomically: a process that reads it meanwhile gets either the old or the
    new one. Without --add, --remove, --defects and --undo nothing changes and the journal is shown.
    """
    from patchsvdd.core.errors import ConfigError

    if sum([add is not None, bool(remove), defects is not None, undo]) > 1:
        raise ConfigError("give one of --add, --remove, --defects and --undo at a time")
    if defects is None and (kind is not None or masks is not None or good is not None or preview):
        raise ConfigError("--kind, --masks, --good and --preview go with --defects")
    if recalibrate and add is None:
        raise ConfigError("--recalibrate goes with --add; to set the threshold alone: patchsvdd calibrate")
    if defects is not None:
        taught = _teach(model, defects, kind, masks, good, preview, device)
        warn_of_skipped(list(taught.skipped))
        if json:
            print_json({"model": str(model), **taught.to_json()})
        else:
            _print_taught(taught, model)
        return
    if add is None and not remove and not undo:
        _show_journal(model, json)
        return
    done = _change(model, add, remove or [], recalibrate, device)
    warn_of_skipped(list(done.skipped))
    if json:
        print_json({"model": str(model), **done.to_json()})
    else:
        _print(done, model)


def _change(model: Path, add: Path | None, remove: list[str], recalibrate: bool, device: str) -> Change:
    from patchsvdd.detector.memory_update import add_images, remove_images, undo

    if add is None and not remove:
        return undo(model)
    with progress_bar() as progress:
        bars = StageBars(progress)
        if add is not None:
            return add_images(model, add, device=device, recalibrate=recalibrate, on_stage=bars)
        return remove_images(model, remove, device=device, on_stage=bars)


def _teach(
    model: Path, defects: Path, kind: str | None, masks: Path | None, good: Path | None, preview: bool, device: str
) -> Teaching:
    from patchsvdd.detector.teaching import teach_defects
    from patchsvdd.images.defect_examples import find_defect_examples

    examples, broken = find_defect_examples(defects, kind, masks)
    with progress_bar() as progress:
        bars = StageBars(progress)
        return teach_defects(model, examples, good=good, preview=preview, device=device, skipped=broken, on_stage=bars)


def _print_taught(taught: Teaching, model: Path) -> None:
    if taught.known:
        say(f"[yellow]note:[/] {len(taught.known)} images were taught before: {escape(_some(taught.known))}")
    without = sum(not one.has_mask for one in taught.taught)
    if without:
        say(
            f"[yellow]note:[/] {without} of {len(taught.taught)} images have no mask, so the places that look most "
            f"suspicious were taught. Give --masks to say where the defects are: the model learns more from them"
        )
    tried = [one for one in taught.taught if one.found_after is not None]
    found = f"{sum(bool(one.found_after) for one in tried)} of {len(tried)}" if tried else "not known from one image"
    before = sum(one.found_before for one in taught.taught)
    threshold = f"{taught.threshold:.4g}"
    threshold += " (kept)" if taught.threshold == taught.threshold_before else f" (was {taught.threshold_before:.4g})"
    facts = {
        "taught": _some(tuple(one.name for one in taught.taught)),
        "kinds": ", ".join(f"{kind} ({count})" for kind, count in sorted(taught.kinds.items())),
        "found before": f"{before} of {len(taught.taught)}",
        "found if only the others were taught": found,
        "threshold": threshold,
        "good images above it": f"{taught.alarms} of {len(taught.calibration.scores)}, before {taught.alarms_before}",
        "false alarms": taught.calibration.guarantee,
        "took": f"{taught.seconds:.1f} s",
    }
    if taught.identity is not None:
        facts["identity"] = taught.identity
    print_facts(f"Taught {model}" if taught.identity else f"Preview for {model}: nothing was changed", facts)
    if taught.identity is not None:
        say("To take it back: patchsvdd update " + escape(str(model)) + " --undo")


def _print(done: Change, model: Path) -> None:
    if done.known:
        say(f"[yellow]note:[/] {len(done.known)} images are already in the memory: {escape(_some(done.known))}")
    if done.alarming:
        say(
            f"[yellow]note:[/] {len(done.alarming)} of the added images would still be classified as anomalous if they "
            f"were not in the memory: {escape(_some(done.alarming))}. Add more images like them"
        )
    action = {"add": "Added to", "remove": "Removed from", "undo": f"Undone ({done.undone}) in"}[done.change]
    facts = {
        "images": f"{len(done.images)}: {_some(done.images)}" if done.images else "none",
        "memory": f"{done.total} images",
        "identity": done.identity,
        "took": f"{done.seconds:.1f} s",
    }
    if done.threshold is not None:
        facts["threshold"] = f"{done.threshold:.4g} ({_compared(done)})"
    print_facts(f"{action} {model}", facts)


def _compared(done: Change) -> str:
    """The threshold compared with the previous one."""
    if done.threshold_kept:
        return "kept"
    if done.threshold == done.threshold_before:
        return "recalibrated, unchanged"
    return "there was none" if done.threshold_before is None else f"was {done.threshold_before:.4g}"


def _show_journal(model: Path, json: bool) -> None:
    from patchsvdd.detector.model_folder import journal_of, read_index

    index = read_index(model)
    journal = journal_of(index)
    if json:
        print_json({"model": str(model), "identity": index["identity"], "journal": journal})
        return
    if not journal:
        say(f"{escape(str(model))} has not been changed since it was trained")
        return
    rows = [[str(one["number"]), one["at"], _action(one), _some(one.get("images", ()))] for one in journal]
    print_table(["change", "time", "action", "images"], rows)


def _action(entry: dict[str, Any]) -> str:
    return f"undo of {entry['undoes']}" if entry["change"] == "undo" else str(entry["change"])


def _some(names: tuple[str, ...] | list[str]) -> str:
    rest = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + rest
