"""The description of a model in a report: identity, training data, settings and guarantee. PyTorch is not needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from patchsvdd.core.config import Config
from patchsvdd.core.roi import roi_in_words
from patchsvdd.scoring.calibration import BASES, Calibration
from patchsvdd.scoring.trade_off_table import TradeOff, trade_off

if TYPE_CHECKING:
    from patchsvdd.report.unusual_sheet import UnusualPicture

FINE = 65
"""Thresholds of a curve."""


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


def card_with(
    facts: Mapping[str, str],
    known: Calibration | None,
    min_area: int = 0,
    unusual: Sequence[UnusualPicture] = (),
) -> ModelCard:
    """A card with the facts of a model, of its calibration, and what to expect of it."""
    if known is None:
        return ModelCard(facts, unusual=unusual)
    facts = {**facts, **_calibration(known)}
    if min_area:
        facts["Ignored"] = f"regions smaller than {min_area:,} pixels of the original image"
    words = known.sentence
    rate = known.conformal_guarantee.rate if known.is_guaranteed else None
    promise = words[0].upper() + words[1:] + "."
    tables = trade_off(known), trade_off(known, FINE)
    return ModelCard(facts, promise, known.caveat or "", rate, known.p_value, *tables, unusual)


def training_facts(provenance: Mapping[str, Any], config: Config, good_images: int, network: str) -> dict[str, str]:
    """Training data and settings of a model whose ``network`` is called so."""
    data, training = provenance["data"], provenance["training"]
    height, width = data["image_size"]
    held_out, copies, left_out = (len(data.get(name, ())) for name in ("held_out", "copies", "left_out"))
    facts = {
        "Trained": f"{provenance['created'][:16].replace('T', ' ')} UTC on {provenance['device']}",
        "Good images": f"{good_images}, resized to {width} × {height} px"
        + (f"; {held_out} of them held out of training" if held_out else "")
        + (f"; {copies} duplicate{'s' if copies > 1 else ''} left out" if copies else "")
        + (f"; {left_out} left out on request" if left_out else ""),
        "Preset": f"{config.preset}, seed {provenance['seed']}",
        network: _encoder(provenance, training),
    }
    if sizing := data.get("sizing"):
        facts["Image size"] = sizing["sentence"]
    for name, roi in (("Region of interest", config.roi), ("Inspected", config.inspect_roi)):
        if roi is not None:
            facts[name] = str(roi_in_words(roi))
    return facts


def data_facts(provenance: Mapping[str, Any]) -> dict[str, str]:
    """The fingerprint of the training data, and the versions of the software."""
    return {
        "Data": f"fingerprint {provenance['data']['fingerprint'][:16]}",
        "Versions": ", ".join(f"{name} {version}" for name, version in provenance["versions"].items()),
    }


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
