"""The card of a detector."""

from __future__ import annotations

from itertools import islice

from patchsvdd.detector.base import Detector
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.report.model_card import ModelCard, card_with, data_facts, training_facts
from patchsvdd.report.unusual_sheet import unusual_pictures

MAX_UNUSUAL = 12
"""Unusual images that a report shows."""


def detector_card(detector: Detector, name: str) -> ModelCard:
    """The card of a detector stored under ``name``."""
    network = "Encoder" if isinstance(detector, PatchSVDD) else "Network"
    facts = {"Model": name, "Identity": detector.identity or "not saved"}
    facts |= training_facts(detector.provenance, detector.config, _good_images(detector), network)
    if isinstance(detector, PatchSVDD):
        facts |= _parts(detector)
    facts |= data_facts(detector.provenance)
    unusual = tuple(islice(unusual_pictures(detector), MAX_UNUSUAL))
    return card_with(facts, detector.calibration, detector.min_area, unusual)


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
