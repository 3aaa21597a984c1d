"""Learns all parts of a detector from good images."""

from __future__ import annotations

import copy
import dataclasses
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from patchsvdd.core.config import Config, is_large
from patchsvdd.core.device import reproducible
from patchsvdd.core.errors import ConfigError
from patchsvdd.core.progress import OnProgress, OnStage, stage
from patchsvdd.critic.confirmed_defects import ConfirmedDefects
from patchsvdd.critic.feature_coreset import WEIGHTS, SampledFeatures
from patchsvdd.critic.network import TrainedCritic, critic_map, critic_normalization
from patchsvdd.critic.validation import ValidationResult, ValidationSet
from patchsvdd.detector.image_check import can_check, rank_by_halves
from patchsvdd.detector.image_statistics import together
from patchsvdd.detector.leave_one_out import LeaveOneOutScorer, map_images
from patchsvdd.detector.provenance import describe_training
from patchsvdd.detector.split import Split
from patchsvdd.detector.stored_memory import wants_graphs
from patchsvdd.detector.training_backend import LOCAL, TrainingBackend
from patchsvdd.detector.unusual_images import list_unusual, rank_by_features
from patchsvdd.encoder.networks import PatchEncoder, build_encoder
from patchsvdd.encoder.untrained import inspection_encoder
from patchsvdd.images.image_set import ImageSet
from patchsvdd.images.normalization import Normalization
from patchsvdd.images.thumbnails import Thumbnails
from patchsvdd.scoring.anomaly_map import image_score
from patchsvdd.scoring.calibration import Basis, Calibration, calibrate
from patchsvdd.scoring.map_builder import MapBuilder
from patchsvdd.scoring.ranking import MARGIN
from patchsvdd.training.hooks import TrainingHooks, TrainingRecord

JUDGED = 96
"""Minimum number of validation images, half of them with synthetic defects."""
EVEN = 0.0005
"""Weights whose validation differs by less are equally good."""


@dataclass(frozen=True)
class DetectorParts:
    """The parts of a detector, learned from good images."""

    encoder: PatchEncoder
    normalization: Normalization
    map_builder: MapBuilder
    critic: TrainedCritic | None = None
    calibration: Calibration | None = None
    provenance: dict[str, Any] = field(default_factory=dict)
    pictures: Thumbnails | None = None
    """Thumbnails of the good images; models of earlier versions have none."""
    defects: ConfirmedDefects | None = None
    """Confirmed defects that the model was taught."""


def learn_encoder(
    images: ImageSet,
    config: Config,
    device: torch.device,
    hooks: TrainingHooks,
    on_stage: OnStage | None = None,
    backend: TrainingBackend = LOCAL,
) -> tuple[PatchEncoder, TrainingRecord]:
    """Train an encoder on the training part of the images; return the one to inspect with."""
    encoder = build_encoder(config).to(device)
    if not encoder.trainable:
        return rounded(inspection_encoder(encoder, config)), TrainingRecord(0, 0.0, [])
    chosen = images.pixels[Split.of(config, len(images)).trained]
    normalization = Normalization.fit(images.pixels, config)
    record = backend.train_encoder(encoder, chosen, normalization, config, images.fingerprint(), hooks)
    record = revert_if_not_better(encoder, record, images, config, on_stage)
    return rounded(inspection_encoder(encoder, config)), record


def rounded(encoder: PatchEncoder) -> PatchEncoder:
    """Round the weights of an encoder's convolutions to half precision, in place; return the encoder.

    # Differs from the paper. Embeddings change by less than between two seeds by orders of magnitude, and a GPU
    # computes them with two products of half-precision numbers instead of three.
    """
    with torch.no_grad():
        for value in encoder.parameters():
            if value.ndim == 4:
                value.copy_(value.half())
    return encoder


def revert_if_not_better(
    encoder: PatchEncoder, record: TrainingRecord, images: ImageSet, config: Config, on_stage: OnStage | None = None
) -> TrainingRecord:
    """Undo the training of ``encoder`` unless it finds more synthetic defects in held-out images.

    Keep it if no synthetic defect could be placed.

    # Differs from the paper, which always keeps the trained encoder: training improves position accuracy, but not
    # defect detection if parts are not aligned or training is short.
    """
    split = Split.of(config, len(images))
    if config.stop == "end" or not split.held_out or record.steps == 0:
        return record
    device = next(encoder.parameters()).device
    untrained = build_encoder(config).to(device)
    normalization = Normalization.fit(images.pixels, config).to(device)
    validation = ValidationSet.draw(images.pixels[split.held_out].to(device), config.seed, JUDGED, config.frame)
    if not validation.has_defects:
        return record
    plain = dataclasses.replace(
        config, critic=None, memory="100%", position_normalization=False, local_scaling=False, stop="end"
    )
    known, progress = images.subset(split.trained), stage(on_stage, "validation")
    scores = {}
    for turn, (name, candidate) in enumerate({"untrained": untrained, "trained": encoder}.items()):
        half = _part_of(progress, turn, 2)
        candidate = inspection_encoder(candidate, config)
        scores[name] = validate_encoder(candidate, known, validation, plain, normalization, half).criterion
    not_better = scores["trained"] <= scores["untrained"] + MARGIN
    if not_better:
        encoder.load_state_dict(untrained.state_dict())
    return dataclasses.replace(record, validation=scores, kept_untrained=not_better)


def validate_encoder(
    encoder: PatchEncoder,
    known: ImageSet,
    validation: ValidationSet,
    config: Config,
    normalization: Normalization,
    on_progress: OnProgress | None = None,
) -> ValidationResult:
    """Measure how well synthetic defects are found with a memory of the known images."""
    with_graphs = wants_graphs("auto", normalization.mean.device)
    encoder = copy.deepcopy(encoder).eval().requires_grad_(False)
    with reproducible(), torch.inference_mode():
        good = LeaveOneOutScorer(known, config, encoder, normalization, with_graphs, on_stage=None)
        map_builder, _ = good.learn_maps(None, calibrated=False)
        maps = map_images(validation.images, encoder, normalization, good.grids, map_builder, on_progress)
    return validation.score(maps, image_score(maps))


def _part_of(on_progress: OnProgress | None, turn: int, turns: int) -> OnProgress | None:
    """Return a callback that reports the progress of one of several equal parts as that of the whole."""
    if on_progress is None:
        return None
    return lambda done, total: on_progress(turn * total + done, turns * total)


def learn_critic(
    images: ImageSet,
    config: Config,
    device: torch.device,
    hooks: TrainingHooks,
    on_stage: OnStage | None = None,
    backend: TrainingBackend = LOCAL,
) -> tuple[TrainedCritic, TrainingRecord]:
    """Train a critic on the training part of the images."""
    assert config.critic is not None
    pixels = images.pixels[Split.of(config, len(images)).trained].to(device)
    normalization = critic_normalization(pixels)
    fingerprint, progress = images.fingerprint(), stage(on_stage, "critic")
    critic, record = backend.train_critic(
        pixels, normalization, config.critic, config.seed, fingerprint, hooks, progress, config.frame
    )
    trained, held_out = TrainedCritic(critic, normalization).to(device), Split.of(config, len(images)).held_out
    return with_feature_coreset(trained, pixels, images.pixels[held_out].to(device), config, on_stage), record


def with_feature_coreset(
    critic: TrainedCritic, pixels: Tensor, held_out: Tensor, config: Config, on_stage: OnStage | None = None
) -> TrainedCritic:
    """Return the critic with a coreset of its features of good images (N, 3, H, W); large images have none.

    The weight of the distances is the smallest one of those that find synthetic defects in ``held_out`` images best;
    it may be 0. Nothing else depends on these images.
    """
    assert config.critic is not None
    size = (int(pixels.shape[2]), int(pixels.shape[3]))
    if config.critic.feature_coreset == 0 or is_large(*size) or len(held_out) == 0:
        return critic
    with reproducible(), torch.inference_mode():
        sampled = SampledFeatures.draw(critic.features, pixels, config.seed, stage(on_stage, "features"))
        coreset = sampled.coreset(config.critic.feature_coreset)
        validation = ValidationSet.draw(held_out, config.seed, JUDGED, config.frame)
        if not validation.has_defects:
            return TrainedCritic(critic.critic, critic.normalization, coreset, critic.smoothing)
        quality, logits, raised = {}, list[Tensor](), list[Tensor]()
        for image in validation.images:
            own, features = critic.with_features(image[None])
            logits.append(own)
            raised.append(coreset.with_weight(1).evidence(features, (int(own.shape[1]), int(own.shape[2]))))
        alone, evidence = torch.cat(logits), torch.cat(raised)
        for weight in WEIGHTS:
            maps = critic_map(alone + weight * evidence, size, critic.smoothing)
            quality[weight] = validation.score(maps, image_score(maps)).criterion
    most = max(quality.values())
    weight = min(weight for weight, value in quality.items() if value >= most - EVEN)
    return TrainedCritic(critic.critic, critic.normalization, coreset.with_weight(weight), critic.smoothing)


def learn(
    images: ImageSet,
    config: Config,
    device: torch.device,
    *,
    hooks: TrainingHooks | None = None,
    on_stage: OnStage | None = None,
    encoder: PatchEncoder | None = None,
    critic: TrainedCritic | None = None,
    calibrated: bool = True,
    with_graphs: bool = False,
    backend: TrainingBackend = LOCAL,
) -> DetectorParts:
    """Train, build the memory and calibrate; a given ``encoder`` or ``critic`` is not trained further.

    The ``backend`` trains and embeds; the rest runs in this process.
    """
    hooks = hooks or TrainingHooks()
    record, critic_record = TrainingRecord(0, 0.0, []), None
    if critic is not None and config.critic is None:
        raise ConfigError(
            "a critic was given, and settings without one; give its settings too: critic=CriticSettings(…)"
        )
    if encoder is None:
        encoder, record = learn_encoder(images, config, device, hooks, on_stage, backend)
    if critic is None and config.critic is not None:
        critic, critic_record = learn_critic(images, config, device, hooks, on_stage, backend)
    encoder = inspection_encoder(encoder, config).to(device).eval().requires_grad_(False)
    critic = critic.to(device) if critic is not None else None
    normalization = Normalization.fit(images.pixels, config).to(device)
    with reproducible(), torch.inference_mode():
        good = LeaveOneOutScorer(images, config, encoder, normalization, with_graphs, on_stage, backend)
        map_builder, scored = good.learn_maps(critic, calibrated)
        map_builder = dataclasses.replace(map_builder, min_area=good.min_area)
    calibration = None
    if calibrated:
        basis: Basis = "learned" if critic is None else "held-out" if len(good.split.held_out) > 1 else "tuned"
        scores, gathered = [image.score for image in scored], good.evidence
        evidence = gathered.evidence if gathered is not None else None
        calibration = calibrate(scores, config.false_alarm_rate, basis, config.aim, evidence)
        if gathered is not None:
            calibration = gathered.outlined(calibration)
        calibration = dataclasses.replace(calibration, traits=together([image.traits for image in scored]))
    provenance = describe_training(images, config, record, critic_record, device, good.split.held_out)
    if calibration is not None:
        indices = good.split.held_out if critic is not None else range(len(images))
        digests = provenance["data"]["digests"]
        calibration = dataclasses.replace(calibration, digests=tuple(digests[index] for index in indices))
    if map_builder.fusion is not None:
        tried = {f"{share:g}": round(quality, 5) for share, quality in sorted(good.shares.items())}
        provenance["fusion"] = {"share": map_builder.fusion.share, "tried": tried}
    if calibrated:
        ranked = None
        if config.critic is not None and critic_record is not None and can_check(len(images), config.critic):
            ranked = rank_by_halves(images, config, device, hooks, on_stage, backend)
        elif critic is not None:
            pixels, progress = images.pixels.to(device), stage(on_stage, "unusual")
            ranked = rank_by_features(critic, pixels, good.split.trained, config.seed, progress)
        else:
            ranked = [(image.score, image.at) for image in scored]
        if ranked is not None:
            provenance["unusual"] = [one.to_json() for one in list_unusual(ranked, images.names)]
    if good.typical.is_known:
        provenance["usual"] = good.typical.to_json()
    pictures = Thumbnails.from_images(images.pixels)
    return DetectorParts(encoder, normalization, map_builder, critic, calibration, provenance, pictures)
