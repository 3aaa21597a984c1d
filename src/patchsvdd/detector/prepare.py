"""Prepares a stored model for fast inspection on this machine: search graphs and the fastest engine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from patchsvdd.core.errors import ModelError
from patchsvdd.core.progress import OnStage, stage
from patchsvdd.detector.detector import ENGINES, PatchSVDD
from patchsvdd.encoder.engines import EngineChoice, choose_engine, stored_choice
from patchsvdd.memory.graph_search import has_faiss


@dataclass(frozen=True)
class Preparation:
    """The result of preparing a model."""

    graphs: tuple[int, ...]
    """Patch sizes for which a graph was built."""
    threshold: tuple[float, float] | None
    """The threshold before and after, if graphs changed it."""
    engine: EngineChoice


def prepare(folder: Path, on_stage: OnStage | None = None) -> Preparation:
    """Build a stored model's missing graphs, recalibrate its threshold with them, and find the fastest engine.

    The model is replaced atomically; an interruption leaves it unchanged.
    """
    try:
        detector = PatchSVDD.load(folder, "cpu")
    except ModelError:
        detector = PatchSVDD.load(folder, "cpu", search="exact")  # rebuilds a graph of another FAISS version
    before = detector.threshold
    added: tuple[int, ...] = ()
    if has_faiss():
        lacking = [size for size, scale in detector.memory.scales.items() if scale.graph is None]
        detector.memory = detector.memory.with_graphs(stage(on_stage, "graph"))
        added = tuple(size for size in lacking if detector.memory.scales[size].graph is not None)
    if added:
        _recalibrate(detector, on_stage)
        detector.save(folder)
    changed = (before, detector.threshold) if detector.threshold != before else None
    return Preparation(added, changed, find_engine(detector, folder, on_stage))


def find_engine(detector: PatchSVDD, folder: Path, on_stage: OnStage | None = None) -> EngineChoice:
    """Return the fastest engine for the model's image size, measured now or earlier and stored in its folder."""
    size = detector.image_size
    image = torch.randn((1, 3, *size), generator=torch.Generator().manual_seed(0))
    part = detector.encoder.parts[0]
    step = part.feature_step(detector.embedder.grids(size))
    return choose_engine(part, step, image, folder / ENGINES, on_progress=stage(on_stage, "engines"))


def engine_is_known(detector: PatchSVDD, folder: Path) -> bool:
    """Return whether the fastest engine for the model's image size was already measured on this machine."""
    size = detector.image_size
    part = detector.encoder.parts[0]
    step = part.feature_step(detector.embedder.grids(size))
    return stored_choice(part, step, size, folder / ENGINES) is not None


def _recalibrate(detector: PatchSVDD, on_stage: OnStage | None) -> None:
    """Set the threshold for distances found with graphs, which are slightly larger than exact ones."""
    # A coreset lacks most patches of its images, and no memory holds the images that a critic would need: then the
    # threshold is kept.
    can_rescore = detector.config.memory_size.is_whole and detector.critic is None
    known = detector.calibration
    if known is None or known.basis != "learned" or not can_rescore:
        return
    scores = detector.leave_one_out_scores(detector.image_size, stage(on_stage, "threshold"))
    if len(scores) == len(known.scores):
        new = known.renewed(scores, known.basis)
        detector.calibration = replace(known, threshold=new.threshold, scores=new.scores)
