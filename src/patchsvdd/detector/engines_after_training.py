"""Faster engines for the networks of a detector whose training has ended, while it is still being fitted."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from patchsvdd.core.config import Config, is_large
from patchsvdd.critic.inference import CriticInference
from patchsvdd.critic.network import TrainedCritic
from patchsvdd.critic.onnx_logits import CriticLogits
from patchsvdd.detector.leave_one_out import CriticMaps
from patchsvdd.encoder.embedder import Embedder
from patchsvdd.encoder.engines import faster_than_torch
from patchsvdd.encoder.networks import Features, PatchEncoder, grids_for
from patchsvdd.encoder.onnx_features import EncoderFeatures
from patchsvdd.images.image_set import ImageSet
from patchsvdd.images.normalization import Normalization

WORTH_OPENING = 20 * 256**2
"""Pixels of good images from which a CPU uses faster engines: opening them takes seconds."""


@dataclass(frozen=True)
class EnginesAfterTraining:
    """What computes the networks for the memory, the map and the threshold."""

    features: tuple[Features, ...] | None = None
    """Those of the encoder's parts; None for PyTorch."""
    critic: CriticMaps | None = None

    @classmethod
    def open(
        cls,
        encoder: PatchEncoder,
        normalization: Normalization,
        critic: TrainedCritic | None,
        config: Config,
        images: ImageSet,
        device: torch.device,
    ) -> EnginesAfterTraining:
        """PyTorch, or faster engines on a CPU if there are enough images."""
        few = len(images) * images.size[0] * images.size[1] < WORTH_OPENING
        if device.type != "cpu" or few or is_large(*images.size):
            return cls(None, critic)
        grids = grids_for(encoder, config, images.size)
        networks = [EncoderFeatures(part, part.feature_step(grids)) for part in encoder.parts]
        features = None
        if all(faster_than_torch(network, images.size) == "openvino" for network in networks):
            features = Embedder(encoder, normalization, config, device, "openvino").features(images.size)
        if critic is None:
            return cls(features)
        name = faster_than_torch(CriticLogits(critic, images.size), images.size)
        return cls(features, CriticInference(critic, device, name, None))
