"""Prepares a stored model for fast inspection on this machine: search graphs and the fastest engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from patchsvdd.core.errors import ModelError
from patchsvdd.core.progress import OnStage, stage
from patchsvdd.critic.onnx_logits import CriticLogits
from patchsvdd.detector.bfloat16 import Bfloat16Check, allow_bfloat16, check_bfloat16, critic_of, forget_bfloat16
from patchsvdd.detector.detector import ENGINES, PatchSVDD
from patchsvdd.encoder.engines import EngineChoice, Network, choose_engine, sample_size, stored_choice
from patchsvdd.encoder.onnx_features import EncoderFeatures
from patchsvdd.memory.graph_search import has_faiss


@dataclass(frozen=True)
class Preparation:
    """The result of preparing a model."""

    graphs: tuple[int, ...]
    """Patch sizes for which a graph was built."""
    threshold: tuple[float, float] | None
    """The threshold before and after, if graphs changed it."""
    engines: dict[str, EngineChoice]
    """The fastest engine of each network: "encoder", and "critic" if the model has one."""
    bfloat16: Bfloat16Check | None = None
    """How scores change if the critic computes in bfloat16; None if that was not asked for."""


def prepare(
    folder: Path, on_stage: OnStage | None = None, bfloat16_images: Sequence[Path] | None = None
) -> Preparation:
    """Build a stored model's missing graphs, recalibrate its threshold with them, and find the fastest engine.

    With ``bfloat16_images``, the critic may compute in bfloat16 if that changes no verdict of these images and their
    scores only a little; otherwise ConfigError is raised. Without them, everything is computed in float32.

    The model is replaced atomically; an interruption leaves it unchanged.
    """
    try:
        detector = PatchSVDD.load(folder, "cpu")
    except ModelError:
        detector = PatchSVDD.load(folder, "cpu", search="exact")  # rebuilds a graph of another FAISS version
    if bfloat16_images is not None:
        critic_of(detector)  # refused before anything is changed
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
    engines = find_engines(detector, folder, on_stage)
    checked = None
    if detector.critic is not None:
        forget_bfloat16(detector, folder)
    if bfloat16_images is not None:
        checked = check_bfloat16(detector, bfloat16_images, stage(on_stage, "bfloat16"))
        checked.require()
        engines["critic"] = allow_bfloat16(detector, folder, stage(on_stage, "engines"))
    return Preparation(added, changed, engines, checked)


def find_engines(detector: PatchSVDD, folder: Path, on_stage: OnStage | None = None) -> dict[str, EngineChoice]:
    """Return the fastest engine of each network for the model's image size, measured now or earlier.

    Choices are stored in the model's folder.
    """
    size = sample_size(detector.image_size)
    on_progress = stage(on_stage, "engines")
    return {
        name: choose_engine(network, size, folder / ENGINES, on_progress=on_progress)
        for name, network in _networks(detector).items()
    }


def engines_are_known(detector: PatchSVDD, folder: Path) -> bool:
    """Return whether the fastest engines for the model's image size were already measured on this machine."""
    size = sample_size(detector.image_size)
    return all(stored_choice(network, size, folder / ENGINES) for network in _networks(detector).values())


def _networks(detector: PatchSVDD) -> dict[str, Network]:
    """The networks that engines compute, for samples of the model's images."""
    part = detector.encoder.parts[0]
    step = part.feature_step(detector.embedder.grids(detector.image_size))
    networks: dict[str, Network] = {"encoder": EncoderFeatures(part, step)}
    if detector.critic is not None:
        networks["critic"] = CriticLogits(detector.critic, sample_size(detector.image_size))
    return networks


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
