"""``patchsvdd calibrate MODEL --reviews FILE``: a threshold from what people found out about inspected parts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from patchsvdd.apps.cli.console import escape, print_facts, print_json, print_table, say, warn_of_skipped
from patchsvdd.core.aims import Aim
from patchsvdd.core.errors import DatasetError, ModelError

if TYPE_CHECKING:
    from patchsvdd.apps.cli.review_file import ReviewFile
    from patchsvdd.scoring.reviewed import Expected, Proposal, Reviews


def propose_from_reviews(model: Path, file: Path, aim: Aim | None, *, apply: bool, dry_run: bool, json: bool) -> None:
    """Print the threshold that the reviews suggest; with ``apply`` store it, if they support it."""
    from patchsvdd.apps.cli.review_file import read_reviews
    from patchsvdd.detector.model_folder import read_index
    from patchsvdd.detector.threshold_choice import choose_threshold
    from patchsvdd.scoring.calibration import Calibration
    from patchsvdd.scoring.reviewed import aim_of, propose

    about = read_index(model)
    if about["calibration"] is None:
        raise ModelError(f"'{model}' has no calibration; give a folder of good images to calibrate it")
    known = Calibration.from_json(about["calibration"])
    found = read_reviews(file, about["identity"], known.threshold)
    proposal = None if found.reviews.missing else propose(found.reviews, aim or aim_of(known.aim))
    warn_of_skipped(found.broken)
    if apply:
        _require(found.reviews, proposal)
    changed = apply and not dry_run and proposal is not None
    if changed and proposal is not None:
        choose_threshold(model, threshold=proposal.threshold)
    if json:
        print_json({"model": str(model), "changed": changed, **_to_json(found, file), "proposal": _json(proposal)})
    else:
        _print(found, proposal, model, changed=changed, dry_run=apply and dry_run)


def _require(reviews: Reviews, proposal: Proposal | None) -> None:
    """Raise DatasetError unless there is a proposal to apply."""
    if proposal is None:
        raise DatasetError(f"there are too few reviews, nothing was changed: {'; '.join(reviews.missing)}")
    if not proposal.is_better:
        raise DatasetError(f"nothing was changed: {proposal.sentence}")


def _json(proposal: Proposal | None) -> dict[str, Any] | None:
    return proposal.to_json() if proposal is not None else None


def _to_json(found: ReviewFile, file: Path) -> dict[str, Any]:
    reviews = found.reviews
    return {
        "reviews": str(file),
        "rows": found.rows,
        "broken": found.broken,
        "repeated": found.repeated,
        "left_out": dict(found.left_out),
        "cautions": found.cautions,
        "reviewed": {
            "good": reviews.count(is_defect=False),
            "defects": reviews.count(is_defect=True),
            "called_good": reviews.good,
            "called_good_reviewed": len(reviews.scores(alarms=False)),
            "called_good_weight": reviews.weight(alarm=False),
            "alarms": reviews.alarms,
            "alarms_reviewed": len(reviews.scores(alarms=True)),
            "alarms_weight": reviews.weight(alarm=True),
        },
        "missing": list(reviews.missing),
    }


def _print(found: ReviewFile, proposal: Proposal | None, model: Path, *, changed: bool, dry_run: bool) -> None:
    for caution in found.cautions:
        say(f"[yellow]note:[/] {escape(caution)}")
    if proposal is not None and proposal.threshold != proposal.current.threshold:
        rows = [_row("current", proposal.current), _row("proposed", proposal.proposed)]
        print_table(("threshold", "value", "false alarms (95% interval)", "missed defects (95% interval)"), rows)
    print_facts(_title(proposal, model, changed=changed, dry_run=dry_run), _facts(found, proposal))
    if proposal is not None and proposal.is_better and not changed:
        say(f"To use it: patchsvdd calibrate {escape(str(model))} --reviews FILE --apply")
    if changed:
        say(f"To go back: patchsvdd update {escape(str(model))} --undo")


def _title(proposal: Proposal | None, model: Path, *, changed: bool, dry_run: bool) -> str:
    if proposal is None:
        return f"No proposal for {model} yet"
    if changed:
        return f"Calibrated {model}"
    if dry_run:
        return f"Would calibrate {model}"
    return f"Proposal for {model}" if proposal.is_better else f"No change proposed for {model}"


def _facts(found: ReviewFile, proposal: Proposal | None) -> dict[str, str]:
    reviews = found.reviews
    facts = {}
    for name, alarm in (("called good", False), ("alarms", True)):
        reviewed, total = len(reviews.scores(alarms=alarm)), reviews.alarms if alarm else reviews.good
        weight = f"; each stands for {reviews.weight(alarm=alarm):.1f} parts" if reviewed else ""
        facts[name] = f"{reviewed:,} of {total:,} parts reviewed{weight}"
    if found.left_out:
        facts["left out"] = "; ".join(f"{reason}: {count:,}" for reason, count in found.left_out.items())
    if found.repeated:
        facts["repeated"] = f"{len(found.repeated):,} rows, the first of them row {found.repeated[0]}; counted once"
    if proposal is None:
        facts["missing"] = "; ".join(reviews.missing)
    else:
        facts |= {"aim": proposal.aim, "result": proposal.sentence}
    return facts


def _row(name: str, expected: Expected) -> tuple[str, ...]:
    rates = (expected.false_alarms, expected.misses)
    words = (f"{rate.estimate:.1%} ({rate.low:.1%} to {rate.high:.1%})" for rate in rates)
    return (name, f"{expected.threshold:.4g}", *words)
