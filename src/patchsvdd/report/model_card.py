"""What a report says of the model that was at work: which, from what, how, and what it promises."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from patchsvdd.core.roi import roi_in_words
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.scoring.calibration import BASES, Calibration


@dataclass(frozen=True)
class ModelCard:
    """A model in words."""

    facts: Mapping[str, str] = field(default_factory=dict)
    """Name → value, from what it is to how it came about."""
    promise: str = ""
    """What is guaranteed of new good images, or why nothing is; empty without a calibration."""
    caveat: str = ""
    """What to know before trusting the threshold."""
    rate: float | None = None
    """At most this share of good images is called anomalous; None where that is not guaranteed."""
    p_value: Callable[[float], float] | None = None
    """How probable a value of the map as high is for a good image."""

    @classmethod
    def of(cls, detector: PatchSVDD, name: str) -> ModelCard:
        """The card of a detector, kept under ``name``."""
        known = detector.calibration
        facts = {"Model": name, "Identity": detector.identity or "not saved"} | _origin(detector)
        if known is None:
            return cls(facts)
        facts |= _calibration(known)
        if detector.min_area:
            facts["Passed over"] = f"what is smaller than {detector.min_area:,} pixels of an original image"
        words = known.guarantee
        rate = known.conformal_guarantee.rate if known.is_guaranteed else None
        return cls(facts, words[0].upper() + words[1:] + ".", known.caveat or "", rate, known.p_value)


def _origin(detector: PatchSVDD) -> dict[str, str]:
    """Where a model comes from."""
    provenance, config = detector.provenance, detector.config
    data, training = provenance["data"], provenance["training"]
    height, width = data["image_size"]
    held_out = len(data.get("held_out", ()))
    facts = {
        "Trained": f"{provenance['created'][:16].replace('T', ' ')} UTC on {provenance['device']}",
        "Good images": f"{len(detector.memory.image_names)}, seen at {width} × {height} px"
        + (f"; {held_out} of them held out of training" if held_out else "")
        + (f"; {len(data['copies'])} copies of others left out" if data.get("copies") else ""),
        "Preset": f"{config.preset}, seed {provenance['seed']}",
        "Encoder": _encoder(provenance, training),
    }
    for name, roi in (("Region of interest", config.roi), ("Inspected", config.inspect_roi)):
        if roi is not None:
            facts[name] = str(roi_in_words(roi))
    critic, fusion = provenance.get("critic"), detector.map_builder.fusion
    if fusion is not None:
        trained = f"{critic['steps']:,} steps; " if critic is not None else ""
        facts["Critic"] = f"{trained}{1 - fusion.share:.0%} of the map, the memory {fusion.share:.0%}"
    facts["Memory"] = ", ".join(
        f"{len(scale.embeddings):,} patches of {size} px" for size, scale in detector.memory.scales.items()
    )
    facts["Data"] = f"fingerprint {data['fingerprint'][:16]}"
    facts["Versions"] = ", ".join(f"{name} {version}" for name, version in provenance["versions"].items())
    return facts


def _encoder(provenance: Mapping[str, Any], training: Mapping[str, Any]) -> str:
    if "reference_checkpoint" in provenance:
        return f"weights from {provenance['reference_checkpoint']}"
    if not training["steps"]:
        return "not trained with this model"
    left = "; left untrained, for drawn defects were found no better" if training.get("kept") == "untrained" else ""
    return f"{training['steps']:,} steps{left}"


def _calibration(known: Calibration) -> dict[str, str]:
    asked = f"{known.threshold:.4g}, for a false-alarm rate of {known.false_alarm_rate:.1%}"
    return {"Threshold": asked, "Calibrated with": f"{len(known.scores)} {BASES[known.basis]}"}
