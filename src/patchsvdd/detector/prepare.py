"""Making a stored model quick on this machine: graphs to search with, and the choice of an engine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from patchsvdd.core.errors import ModelError
from patchsvdd.core.progress import OnStage, stage
from patchsvdd.detector.detector import ENGINES, PatchSVDD
from patchsvdd.encoder.engines import EngineChoice, choose_engine, stored_choice
from patchsvdd.memory.graph_search import has_faiss
from patchsvdd.scoring.calibration import calibrate


@dataclass(frozen=True)
class Preparation:
    """What was done to a model."""

    graphs: tuple[int, ...]
    """Patch sizes that got a graph now."""
    threshold: tuple[float, float] | None
    """The threshold before and after, where graphs changed it."""
    engine: EngineChoice


def prepare(folder: Path, on_stage: OnStage | None = None) -> Preparation:
    """Build the graphs that a stored model lacks, recalibrate its threshold with them, and find the quickest engine.

    The model is replaced in one step; an interruption leaves it as it was.
    """
    try:
        detector = PatchSVDD.load(folder, "cpu")
    except ModelError:
        detector = PatchSVDD.load(folder, "cpu", search="exact")  # a graph of another FAISS is rebuilt
    before = detector.threshold
    added: tuple[int, ...] = ()
    if has_faiss():
        lacking = [size for size, scale in detector.memory.scales.items() if scale.graph is None]
        detector.memory = detector.memory.with_graphs(stage(on_stage, "graph"))
        added = tuple(size for size in lacking if detector.memory.scales[size].graph is not None)
    if added:
        _calibrate_anew(detector, on_stage)
        detector.save(folder)
    changed = (before, detector.threshold) if detector.threshold != before else None
    return Preparation(added, changed, find_engine(detector, folder, on_stage))


def find_engine(detector: PatchSVDD, folder: Path, on_stage: OnStage | None = None) -> EngineChoice:
    """The quickest engine for images of the model's size, measured now or before, and kept in the model's folder."""
    size = detector.image_size
    image = torch.randn((1, 3, *size), generator=torch.Generator().manual_seed(0))
    step = detector.encoder.feature_step(detector.embedder.grids(size))
    return choose_engine(detector.encoder, step, image, folder / ENGINES, on_progress=stage(on_stage, "engines"))


def engine_is_known(detector: PatchSVDD, folder: Path) -> bool:
    """Whether the quickest engine for images of the model's size was once measured on this machine."""
    size = detector.image_size
    step = detector.encoder.feature_step(detector.embedder.grids(size))
    return stored_choice(detector.encoder, step, size, folder / ENGINES) is not None


def _calibrate_anew(detector: PatchSVDD, on_stage: OnStage | None) -> None:
    """The threshold for distances found through graphs, which are a little larger than exact ones."""
    # A coreset no longer holds all patches of its images, and no memory holds the images that a critic would need:
    # such thresholds stay.
    is_known = detector.config.memory_size.is_whole and detector.critic is None
    known = detector.calibration
    if known is None or known.basis != "learned" or not is_known:
        return
    scores = detector.leave_one_out_scores(detector.image_size, stage(on_stage, "threshold"))
    if len(scores) == len(known.scores):
        found = calibrate(scores, known.false_alarm_rate)
        detector.calibration = replace(known, threshold=found.threshold, scores=found.scores)
