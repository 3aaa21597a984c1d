"""Converts the parts of a detector to and from the content of a model folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from patchsvdd.core.config import Config
from patchsvdd.critic.confirmed_defects import ConfirmedDefects
from patchsvdd.critic.network import TrainedCritic
from patchsvdd.detector.fitting import DetectorParts
from patchsvdd.detector.model_folder import StoredModel
from patchsvdd.encoder.networks import build_encoder
from patchsvdd.encoder.untrained import inspection_encoder
from patchsvdd.images.normalization import Normalization
from patchsvdd.memory.bank import Memory
from patchsvdd.memory.graph_search import GraphSearch
from patchsvdd.memory.segments import BASE, join_thumbnails, segments_of
from patchsvdd.scoring.area_opening import area_in_map
from patchsvdd.scoring.calibration import Calibration
from patchsvdd.scoring.fusion import Fusion
from patchsvdd.scoring.map_builder import MapBuilder
from patchsvdd.scoring.position_statistics import PositionStatistics
from patchsvdd.training.checkpoint import below


def to_store(
    config: Config, learned: DetectorParts
) -> tuple[dict[str, Any], dict[str, dict[str, Tensor]], dict[int, bytes]]:
    """Return the arguments of ``model_folder.write_model``: metadata, tensors by part, and graphs by patch size."""
    about: dict[str, Any] = {
        "config": config.to_json(),
        "calibration": learned.calibration.to_json() if learned.calibration is not None else None,
        "provenance": learned.provenance,
        "image_names": list(learned.map_builder.memory.image_names),
        "fusion": learned.map_builder.fusion.to_json() if learned.map_builder.fusion is not None else None,
    }
    weights = {f"encoder.{name}": value for name, value in learned.encoder.state_dict().items()}
    weights["normalization.mean"] = learned.normalization.mean
    weights["normalization.scale"] = learned.normalization.scale
    positions = learned.map_builder.positions
    if positions is not None:
        weights["positions.mean"], weights["positions.deviation"] = positions.mean, positions.deviation
    graphs = {}
    for size, scale in learned.map_builder.memory.scales.items():
        if scale.graph is not None:  # a layered graph becomes a single one
            graph = scale.graph if isinstance(scale.graph, GraphSearch) else scale.with_graph().graph
            assert isinstance(graph, GraphSearch)
            graphs[size] = graph.to_bytes()
    parts = {"encoder": weights, BASE: learned.map_builder.memory.state()}
    if learned.critic is not None:
        parts["critic"] = learned.critic.state()
    if learned.defects is not None:
        about["defects"] = [one.to_json() for one in learned.defects.defects]
        parts["defects"] = learned.defects.state()
    if learned.pictures is not None:
        parts["pictures"] = learned.pictures.state()
    return about, parts, graphs


def min_area_in_map(config: Config, provenance: Mapping[str, Any]) -> int:
    """Return ``config.min_area`` in pixels of the map, given the size of the training images."""
    size = provenance.get("data", {}).get("original_size")  # missing in models of earlier versions
    original = (int(size[0]), int(size[1])) if size else None
    return area_in_map(config.min_area, config.content_size(original), original)


def from_store(stored: StoredModel, config: Config, memory: Memory) -> DetectorParts:
    """Return the parts of a detector from a stored model."""
    weights = stored.parts["encoder"]
    encoder = inspection_encoder(build_encoder(config), config)
    encoder.load_state_dict(below("encoder.", weights))
    normalization = Normalization(weights["normalization.mean"], weights["normalization.scale"], config.centering)
    positions = None
    if config.position_normalization:
        positions = PositionStatistics(weights["positions.mean"], weights["positions.deviation"])
    fusion, critic = stored.about.get("fusion"), None
    if config.critic is not None:
        critic = TrainedCritic.from_state(stored.parts["critic"], config.critic)
    defects = None
    if critic is not None and "defects" in stored.parts:
        defects = ConfirmedDefects.from_state(stored.parts["defects"], stored.about["defects"])
        critic = critic.with_filters(defects.filters)
    fused = Fusion.from_json(fusion) if fusion else None
    map_builder = MapBuilder(memory, positions, fused, min_area_in_map(config, stored.about["provenance"]))
    calibration = stored.about["calibration"]
    known = Calibration.from_json(calibration) if calibration else None
    pictures = join_thumbnails(segments_of(stored.about), stored.parts)
    provenance = stored.about["provenance"]
    return DetectorParts(encoder, normalization, map_builder, critic, known, provenance, pictures, defects)
