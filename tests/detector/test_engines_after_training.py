"""What follows the training of a detector, with another engine: the same memory, maps and threshold."""

from __future__ import annotations

import importlib.util
import sys

import numpy as np
import pytest
import torch

from patchsvdd.core.config import Config
from patchsvdd.core.critic_settings import CriticSettings
from patchsvdd.core.presets import preset
from patchsvdd.critic.inference import CriticInference
from patchsvdd.detector import engines_after_training
from patchsvdd.detector.engines_after_training import EnginesAfterTraining
from patchsvdd.detector.fitting import DetectorParts, learn
from patchsvdd.encoder import engines
from patchsvdd.encoder.engines import OpenVinoEngine, faster_than_torch
from patchsvdd.encoder.networks import RawPixels, build_encoder
from patchsvdd.encoder.onnx_features import EncoderFeatures
from patchsvdd.images.image_set import ImageSet
from support.parts import TINY, draw_part

CPU = torch.device("cpu")
needs_openvino = pytest.mark.skipif(importlib.util.find_spec("openvino") is None, reason="needs OpenVINO")


def settings() -> Config:
    critic = CriticSettings(width=2, steps=2, batch_size=2)
    return preset("best", **(TINY | {"critic": critic, "encoder": "random", "synthetic_defects": 64}))


@pytest.fixture(scope="module")
def images() -> ImageSet:
    pictures = np.stack([draw_part(seed) for seed in range(6)])
    pixels = torch.from_numpy(pictures).permute(0, 3, 1, 2).contiguous()
    return ImageSet(tuple(f"{index}.png" for index in range(6)), pixels, ())


@pytest.fixture(scope="module")
def by_torch(images: ImageSet) -> DetectorParts:
    return learn(images, settings(), CPU)


def opened(images: ImageSet, parts: DetectorParts) -> EnginesAfterTraining:
    return EnginesAfterTraining.open(parts.encoder, parts.normalization, parts.critic, settings(), images, CPU)


@needs_openvino
def test_memory_and_threshold_are_those_of_pytorch(
    images: ImageSet, by_torch: DetectorParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines_after_training, "WORTH_OPENING", 0)
    chosen = opened(images, by_torch)
    assert chosen.features is not None
    assert all(isinstance(one, OpenVinoEngine) for one in chosen.features)
    assert isinstance(chosen.critic, CriticInference)
    assert chosen.critic.engine(images.size).name == "openvino"
    other = learn(images, settings(), CPU)
    for name, value in by_torch.map_builder.memory.state().items():
        torch.testing.assert_close(other.map_builder.memory.state()[name], value, atol=1e-4, rtol=1e-4)
    assert by_torch.calibration is not None
    assert other.calibration is not None
    assert other.calibration.scores == pytest.approx(by_torch.calibration.scores, rel=1e-3)
    assert other.calibration.threshold == pytest.approx(by_torch.calibration.threshold, rel=1e-3)
    assert by_torch.map_builder.fusion is not None
    assert other.map_builder.fusion is not None
    assert other.map_builder.fusion.share == by_torch.map_builder.fusion.share


def test_few_images_and_a_gpu_use_pytorch(
    images: ImageSet, by_torch: DetectorParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert opened(images, by_torch) == EnginesAfterTraining(None, by_torch.critic)
    monkeypatch.setattr(engines_after_training, "WORTH_OPENING", 0)
    parts = (by_torch.encoder, by_torch.normalization, by_torch.critic)
    on_gpu = EnginesAfterTraining.open(*parts, settings(), images, torch.device("cuda"))
    assert on_gpu == EnginesAfterTraining(None, by_torch.critic)


def test_an_engine_that_is_missing_wrong_or_has_no_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    network = EncoderFeatures(build_encoder(settings()), 1)
    assert faster_than_torch(EncoderFeatures(RawPixels([32]), 1), (64, 64)) == "torch"
    with monkeypatch.context() as patch:
        patch.setitem(engines.ALLOWED_ERROR, "float32", -1.0)
        assert faster_than_torch(network, (64, 64)) == "torch"
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "openvino", None)
        assert faster_than_torch(network, (64, 64)) == "torch"
