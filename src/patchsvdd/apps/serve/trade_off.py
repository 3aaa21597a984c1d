"""What a model's threshold costs: false alarms against missed synthetic defects, and other thresholds to choose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from patchsvdd.apps.serve.model_registry import ServedModel
from patchsvdd.core.aims import AIMS, Aim
from patchsvdd.core.errors import ConfigError
from patchsvdd.scoring.calibration import Calibration
from patchsvdd.scoring.trade_off import Evidence, false_alarms

POINTS = 101
"""Thresholds of a curve, evenly spaced by their logarithms; the present one and those of the aims are added."""
ROOM = 1.4
"""The curve goes on beyond the thresholds and scores that matter by this factor."""
FARTHEST = 3.0
"""The curve ends at this multiple of the highest such threshold or score, if more misses are not shown before."""
AGAIN = "Train it again, or calibrate it with good images, to estimate misses"
NO_THRESHOLD = "this model has no threshold yet; calibrate it with good images first"


def trade_off_answer(model: ServedModel) -> dict[str, Any]:
    """The response about the threshold of a model."""
    calibration = model.detector.calibration
    facts: dict[str, Any] = {"model": model.name, "identity": model.identity}
    if calibration is None:
        known = {**facts, "changeable": False, "estimated": False, "reason": NO_THRESHOLD, "guaranteed": False}
        known |= dict.fromkeys(("aim", "threshold", "false_alarm_rate", "sentence", "guarantee", "miss_rate"))
        return {**known, "good": 0, "varied": 0, "defects": 0, "visible": 0, "classes": [], "aims": [], "curve": []}
    aims = [_aim_answer(calibration, aim) for aim in AIMS]
    reason = why_no_estimate(calibration)
    evidence = _evidence_of(calibration)
    chosen = [calibration.threshold, *(one["threshold"] for one in aims if one["threshold"] is not None)]
    return {
        **facts,
        "changeable": True,
        "estimated": reason is None,
        "reason": reason,
        "aim": calibration.aim,
        "threshold": calibration.threshold,
        "false_alarm_rate": calibration.false_alarm_rate,
        "sentence": calibration.sentence,
        "guarantee": calibration.guarantee,
        "guaranteed": calibration.is_guaranteed,
        "miss_rate": calibration.miss_rate,
        "good": len(calibration.scores),
        "varied": len(evidence.good),
        "defects": len(evidence.defects),
        "visible": int(evidence.visible.sum()),
        "classes": [one.to_json() for one in evidence.classes(calibration.threshold)] if evidence.defects else [],
        "aims": aims,
        "curve": points(calibration, thresholds_of(calibration, chosen)),
    }


def why_no_estimate(calibration: Calibration) -> str | None:
    """Why misses are not estimated, and what to do; None if they are."""
    if calibration.evidence is None:
        return (
            "misses are not estimated: the model was made without synthetic defects, by an earlier version or for few "
            f"alarms only. {AGAIN}"
        )
    if not calibration.evidence.defects:
        return calibration.caveat or f"no synthetic defect could be placed in the good images. {AGAIN}"
    return calibration.caveat if calibration.threshold == 0 else None


def thresholds_of(calibration: Calibration, chosen: Sequence[float]) -> list[float]:
    """Thresholds from where half of the good images raise an alarm up to where misses are common, in order.

    ``chosen`` are the present threshold and those of the aims, which are among them.
    """
    evidence = _evidence_of(calibration)
    good = [*calibration.scores, *evidence.good]
    low = min(float(np.median(good)), *chosen) / ROOM
    high = max(*good, *chosen) * ROOM
    if evidence.defects:
        high = max(high, min(float(np.median(evidence.defects)), FARTHEST * high))
    if low <= 0 or high <= low:
        return sorted(set(chosen))
    return sorted({*np.geomspace(low, high, POINTS).tolist(), *chosen})


def points(calibration: Calibration, thresholds: Sequence[float]) -> list[dict[str, Any]]:
    """The curve: false alarms, missed synthetic defects, and the missed ones of each class, at each threshold."""
    evidence = _evidence_of(calibration)
    return [
        {
            "threshold": threshold,
            "above": sum(score > threshold for score in calibration.scores),
            "false_alarms": false_alarms(threshold, calibration.scores, evidence),
            "missed": evidence.miss_rate(threshold),
            "classes": [one.missed for one in evidence.classes(threshold)] if evidence.defects else [],
        }
        for threshold in thresholds
    ]


def why_not(calibration: Calibration, aim: Aim, chosen: Calibration) -> str | None:
    """Why the aim has no threshold of its own, if ``chosen`` is what the calibration became for it."""
    if chosen.aim == aim:
        return None
    return (
        f"there is no threshold for the aim '{aim}': {len(calibration.scores)} good images are too few, or too much "
        f"alike, to weigh false alarms against misses. Calibrate with more good images"
    )


def _aim_answer(calibration: Calibration, aim: Aim) -> dict[str, Any]:
    try:
        chosen = calibration.with_aim(aim)
        reason = why_not(calibration, aim, chosen)
    except ConfigError:
        reason = why_no_estimate(calibration)
    if reason is not None:
        return {"aim": aim, **dict.fromkeys(("threshold", "false_alarms", "missed")), "reason": reason}
    point = points(calibration, [chosen.threshold])[0]
    shares = {name: point[name] for name in ("threshold", "false_alarms", "missed")}
    return {"aim": aim, **shares, "reason": None}


def _evidence_of(calibration: Calibration) -> Evidence:
    return calibration.evidence or Evidence((), (), (), ())
