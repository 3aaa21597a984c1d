"""The description of a model in a report: identity, training data, settings and guarantee."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from patchsvdd.core.roi import roi_in_words
from patchsvdd.detector.base import Detector
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.report.unusual_sheet import UnusualPicture, unusual_pictures
from patchsvdd.scoring.calibration import BASES, Calibration
from patchsvdd.scoring.trade_off_table import TradeOff, trade_off

FINE = 65
"""Thresholds of a curve."""
MAX_UNUSUAL = 12
"""Unusual images that a report shows."""


@dataclass(frozen=True)
class ModelCard:
    """Text about a model for a report."""

    facts: Mapping[str, str] = field(default_factory=dict)
    """Name → value: identity, provenance and calibration."""
    promise: str = ""
    """What to expect of the threshold (``Calibration.sentence``); empty without a calibration."""
    caveat: str = ""
    """A warning about the threshold, if any."""
    rate: float | None = None
    """Guaranteed maximum false-alarm rate on good images; None without a guarantee."""
    p_value: Callable[[float], float] | None = None
    """Probability that a good image has a map value at least this high."""
    trade_off: TradeOff | None = None
    """False alarms and missed synthetic defects around the threshold; None if misses were not estimated."""
    curve: TradeOff | None = None
    """The same at more thresholds, for a chart."""
    unusual: Sequence[UnusualPicture] = ()
    """The good images least like the others, the least usual first."""

    @classmethod
    def of(cls, detector: Detector, name: str) -> ModelCard:
        """The card of a detector stored under ``name``."""
        known = detector.calibration
        facts = {"Model": name, "Identity": detector.identity or "not saved"} | _origin(detector)
        unusual = tuple(islice(unusual_pictures(detector), MAX_UNUSUAL))
        if known is None:
            return cls(facts, unusual=unusual)
        facts |= _calibration(known)
        if detector.min_area:
            facts["Ignored"] = f"regions smaller than {detector.min_area:,} pixels of the original image"
        words = known.sentence
        rate = known.conformal_guarantee.rate if known.is_guaranteed else None
        promise = words[0].upper() + words[1:] + "."
        tables = trade_off(known), trade_off(known, FINE)
        return cls(facts, promise, known.caveat or "", rate, known.p_value, *tables, unusual)


def _origin(detector: Detector) -> dict[str, str]:
    """Training data, settings and parts of a model."""
    provenance, config = detector.provenance, detector.config
    data, training = provenance["data"], provenance["training"]
    height, width = data["image_size"]
    held_out, copies, left_out = (len(data.get(name, ())) for name in ("held_out", "copies", "left_out"))
    facts = {
        "Trained": f"{provenance['created'][:16].replace('T', ' ')} UTC on {provenance['device']}",
        "Good images": f"{_good_images(detector)}, resized to {width} × {height} px"
        + (f"; {held_out} of them held out of training" if held_out else "")
        + (f"; {copies} duplicate{'s' if copies > 1 else ''} left out" if copies else "")
        + (f"; {left_out} left out on request" if left_out else ""),
        "Preset": f"{config.preset}, seed {provenance['seed']}",
        ("Encoder" if isinstance(detector, PatchSVDD) else "Network"): _encoder(provenance, training),
    }
    if sizing := data.get("sizing"):
        facts["Image size"] = sizing["sentence"]
    for name, roi in (("Region of interest", config.roi), ("Inspected", config.inspect_roi)):
        if roi is not None:
            facts[name] = str(roi_in_words(roi))
    if isinstance(detector, PatchSVDD):
        facts |= _parts(detector)
    facts["Data"] = f"fingerprint {data['fingerprint'][:16]}"
    facts["Versions"] = ", ".join(f"{name} {version}" for name, version in provenance["versions"].items())
    return facts


def _good_images(detector: Detector) -> int:
    """The number of good images that the detector knows, those added later included."""
    return (
        len(detector.memory.image_names) if isinstance(detector, PatchSVDD) else detector.provenance["data"]["images"]
    )


def _parts(detector: PatchSVDD) -> dict[str, str]:
    """Critic and memory."""
    facts = {}
    critic, fusion = detector.provenance.get("critic"), detector.map_builder.fusion
    if fusion is not None:
        trained = f"{critic['steps']:,} steps; " if critic is not None else ""
        facts["Critic"] = f"{trained}{1 - fusion.share:.0%} of the map, the memory {fusion.share:.0%}"
    facts["Memory"] = ", ".join(
        f"{len(scale.embeddings):,} patches of {size} px" for size, scale in detector.memory.scales.items()
    )
    return facts


def _encoder(provenance: Mapping[str, Any], training: Mapping[str, Any]) -> str:
    if "reference_checkpoint" in provenance:
        return f"weights from {provenance['reference_checkpoint']}"
    if not training["steps"]:
        return "not trained with this model"
    kept = "; kept untrained: training did not improve validation" if training.get("kept") == "untrained" else ""
    return f"{training['steps']:,} steps{kept}"


def _calibration(known: Calibration) -> dict[str, str]:
    purpose = f"for a false-alarm rate of {known.false_alarm_rate:.1%}"
    if known.aim != "few-alarms":
        purpose = f"with the aim {known.aim}"
    facts = {"Threshold": f"{known.threshold:.4g}, {purpose}"}
    if known.evidence is not None and known.miss_rate is not None:
        facts["Missed"] = (
            f"an estimated {known.miss_rate:.0%} of {int(known.evidence.visible.sum())} visible synthetic defects"
        )
    return {**facts, "Calibrated with": f"{len(known.scores)} {BASES[known.basis]}"}
