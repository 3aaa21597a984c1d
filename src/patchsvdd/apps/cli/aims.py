"""The option --aim, and what is known about false alarms and misses at a threshold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from patchsvdd.core.aims import AIMS, Aim

if TYPE_CHECKING:
    from patchsvdd.scoring.calibration import Calibration

AimOption = Annotated[
    str | None,
    typer.Option(
        help="What the threshold is for: few-alarms (the false-alarm rate is guaranteed), balanced (a small sum of "
        "false alarms and missed synthetic defects) or few-misses."
    ),
]


def checked_aim(aim: str | None) -> Aim | None:
    """Return the aim, or exit with an error if there is no such aim."""
    if aim is not None and aim not in AIMS:
        raise typer.BadParameter(f"choose one of {', '.join(AIMS)}; got '{aim}'", param_hint="--aim")
    return aim


def misses_to_json(calibration: Calibration) -> dict[str, Any]:
    """Return the estimated share of missed synthetic defects, of the visible ones and by size and contrast."""
    evidence = calibration.evidence
    classes = evidence.classes(calibration.threshold) if evidence is not None else []
    return {
        "estimated_miss_rate": calibration.miss_rate,
        "synthetic_defects": len(evidence.defects) if evidence is not None else 0,
        "visible_defects": int(evidence.visible.sum()) if evidence is not None else 0,
        "missed_by_class": [one.to_json() for one in classes],
    }


def aim_facts(calibration: Calibration, *, others: bool = True) -> dict[str, str]:
    """Return the aim and the estimated misses, for people; empty if no synthetic defects were drawn.

    ``others``: also what to expect of other thresholds.
    """
    from patchsvdd.scoring.trade_off import curve

    evidence = calibration.evidence
    if evidence is None:
        return {}
    if not evidence.defects:
        return {"aim": calibration.aim, "missed": "not known: no synthetic defect could be placed"}
    classes, threshold = evidence.classes(calibration.threshold), calibration.threshold
    shares = []
    for contrast in dict.fromkeys(one.contrast for one in reversed(classes)):
        chosen = [one for one in classes if one.contrast == contrast]
        count, missed = sum(one.count for one in chosen), sum(one.missed for one in chosen)
        shares.append(f"{missed / count:.0%} of {contrast} ones")
    facts = {
        "aim": calibration.aim,
        "missed": f"about {calibration.miss_rate:.0%} of {int(evidence.visible.sum())} visible synthetic defects "
        f"({', '.join(shares)}); real defects may differ",
    }
    if not others:
        return facts
    rows = curve(calibration.scores, evidence, [threshold * times for times in (0.7, 0.85, 1.2, 1.5)])
    words = [f"{row['threshold']:.4g}: {row['false_alarms']:.0%} and {row['missed']:.0%}" for row in rows]
    return {**facts, "other thresholds": "false alarms and misses at " + "; ".join(words)}
