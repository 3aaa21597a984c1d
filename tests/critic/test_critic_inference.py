from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from torch import Tensor

from patchsvdd.core.critic_settings import CriticSettings
from patchsvdd.critic.defect_filters import DefectFilters, NormalFeatures
from patchsvdd.critic.feature_coreset import SampledFeatures, smoothed
from patchsvdd.critic.inference import KEPT_SIZES, CriticInference
from patchsvdd.critic.network import TrainedCritic, build_critic, critic_normalization
from patchsvdd.critic.onnx_logits import CriticLogits
from patchsvdd.encoder import engines
from patchsvdd.encoder.embedder import Engine
from patchsvdd.encoder.engines import choose_engine, open_engine
from support.parts import draw_part

CPU = torch.device("cpu")
INSTALLED = [name for name in ("openvino", "onnxruntime") if importlib.util.find_spec(name) is not None]
each_engine = pytest.mark.parametrize("name", ["torch", *INSTALLED])
needs_engines = pytest.mark.skipif(not INSTALLED, reason="no engine but PyTorch is installed")


def pixels(count: int = 2, size: tuple[int, int] = (64, 64)) -> Tensor:
    """Good images (N, 3, H, W) uint8."""
    pictures = [torch.from_numpy(draw_part(seed, size)) for seed in range(count)]
    return torch.stack(pictures).permute(0, 3, 1, 2).contiguous()


def trained(with_features: bool, with_filters: bool = False) -> TrainedCritic:
    """A critic whose maps differ from place to place, with a coreset of its features, filters, or without."""
    critic = build_critic(CriticSettings(width=4))
    critic.train()
    normalization = critic_normalization(pixels())
    for _ in range(3):  # running means and variances of its batch normalisation
        critic(normalization(pixels()))
    plain = TrainedCritic(critic, normalization)
    if with_features:
        drawn = SampledFeatures.draw(plain.features, pixels(), seed=0, count=64)
        plain = TrainedCritic(critic, normalization, drawn.coreset(12).with_weight(2.0))
    return plain.with_filters(filters_of(plain)) if with_filters else plain


def filters_of(critic: TrainedCritic) -> DefectFilters:
    """Filters of two kinds of defects, which raise the logits of some places and not of others."""
    with torch.inference_mode():
        good = [smoothed(one[None])[0] for one in critic.with_early_features(pixels(6))[1]]
        normal = NormalFeatures.fit(good)
        spread = normal.scale * torch.linspace(-2, 2, len(normal.scale))
        filters = DefectFilters.fit([normal.mean + spread[None], normal.mean - spread[None]], normal, good)
        images = pixels()
        own, outputs = critic.logits(images), filters.outputs(critic.with_early_features(images)[1])
    return filters.with_levels(float(own.median() - outputs.amax(1).median()))


@pytest.fixture(
    scope="module",
    params=[(False, False), (True, False), (False, True), (True, True)],
    ids=["network", "with features", "with filters", "with both"],
)
def critic(request: pytest.FixtureRequest) -> TrainedCritic:
    return trained(*request.param)


@each_engine
@pytest.mark.parametrize("size", [(64, 64), (96, 32), (50, 61), (33, 127)])
def test_every_engine_computes_the_same_maps(name: Engine, size: tuple[int, int], critic: TrainedCritic) -> None:
    images = pixels(3, size)
    with torch.inference_mode():
        expected = critic(images)
        maps = CriticInference(critic, CPU, name, None)(images)
    assert maps.shape == (3, *size)
    assert expected.std() > 1e-3
    torch.testing.assert_close(maps, expected, rtol=1e-4, atol=1e-5)


@each_engine
def test_logits_of_every_engine_differ_little(name: engines.EngineName, critic: TrainedCritic) -> None:
    network = CriticLogits(critic, (70, 45))
    images = torch.randn(2, 3, 70, 45, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected = network(images)
    found = open_engine(name, "float32", network)(images)
    assert float((found - expected).abs().max()) <= engines.ALLOWED_ERROR["float32"]


def test_large_images_are_processed_in_tiles_by_pytorch(critic: TrainedCritic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("patchsvdd.core.config.LARGE_PIXELS", 64 * 64 - 1)
    inference = CriticInference(critic, CPU, "auto", None)
    monkeypatch.setattr(inference, "engine", lambda _: pytest.fail("an engine was opened for a large image"))
    with torch.inference_mode():
        assert torch.equal(inference(pixels()), critic(pixels()))


@needs_engines
def test_the_measured_engine_is_used_for_its_size(
    critic: TrainedCritic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "ROUNDS", 1)
    choice = choose_engine(CriticLogits(critic, (64, 64)), (64, 64), tmp_path)
    assert all(one.largest_error <= engines.ALLOWED_ERROR["float32"] for one in choice.measured)
    inference = CriticInference(critic, CPU, "auto", tmp_path)
    assert inference.engine((64, 64)).name == choice.engine
    assert inference.engine((64, 96)).name == "torch", "this size was not measured"
    assert CriticInference(critic, CPU, "auto", None).engine((64, 64)).name == "torch"


def test_few_sizes_are_kept_open(critic: TrainedCritic) -> None:
    inference = CriticInference(critic, CPU, "torch", None)
    first = inference.engine((64, 64))
    assert inference.engine((64, 64)) is first
    for width in range(65, 65 + KEPT_SIZES):
        inference.engine((64, width))
    assert inference.engine((64, 64)) is not first
