"""Training in bfloat16 on a CPU; PyTorch computes it without matrix units too, only slower."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from patchsvdd.baselines.autoencoder import CROP
from patchsvdd.baselines.training import BaselineTrainer, build_baseline
from patchsvdd.core import device as module
from patchsvdd.core.critic_settings import CriticSettings
from patchsvdd.core.device import trains_in_bfloat16
from patchsvdd.core.presets import preset
from patchsvdd.critic.network import build_critic, critic_normalization
from patchsvdd.critic.training import CriticTrainer
from patchsvdd.encoder.networks import build_encoder
from patchsvdd.training.step import Trainer
from support.baselines import short

CPU = torch.device("cpu")
IMAGES = torch.randint(0, 256, (4, 3, CROP, CROP), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


@pytest.fixture
def in_bfloat16(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Makes a CPU with or without matrix units of this one."""

    def choose(units: bool) -> None:
        monkeypatch.delenv("PATCHSVDD_FLOAT32", raising=False)
        monkeypatch.setattr(module, "has_matrix_units", lambda: units)

    return choose


def critic() -> dict[str, Tensor]:
    settings = CriticSettings(width=8, steps=4, batch_size=2, warmup=1)
    trainer = CriticTrainer(build_critic(settings), IMAGES, critic_normalization(IMAGES), settings, 0)
    for _ in range(3):
        trainer.advance()
    return trainer.state()


def encoder(objective: str) -> dict[str, Tensor]:
    config = preset("paper", objective=objective, batch_size=2, image_size=CROP)
    trainer = Trainer(build_encoder(config), IMAGES / 255 - 0.5, config, 3)
    for _ in range(3):
        trainer.advance()
    return trainer.state()


def autoencoder() -> dict[str, Tensor]:
    settings = short("l2-ae")
    trainer = BaselineTrainer(build_baseline(settings, True, 0), IMAGES, settings, 0)
    for _ in range(3):
        trainer.advance()
    return trainer.state()


@pytest.mark.parametrize("train", [critic, lambda: encoder("patch-svdd"), autoencoder], ids=["critic", "encoder", "ae"])
def test_weights_are_close_to_those_of_float32(
    train: Callable[[], dict[str, Tensor]], in_bfloat16: Callable[[bool], None]
) -> None:
    in_bfloat16(False)
    exact = train()
    in_bfloat16(True)
    half = train()
    weights = [name for name in exact if exact[name].is_floating_point() and exact[name].ndim == 4]
    assert any(not torch.equal(exact[name], half[name]) for name in weights)
    for name in weights:
        assert half[name].dtype == torch.float32
        assert bool(half[name].isfinite().all())
    difference = sum(float((exact[name] - half[name]).square().sum()) for name in weights if "adam" not in name)
    whole = sum(float(exact[name].square().sum()) for name in weights if "adam" not in name)
    assert difference < 0.01 * whole


def test_ablations_without_positions_stay_in_float32(in_bfloat16: Callable[[bool], None]) -> None:
    in_bfloat16(False)
    exact = encoder("svdd-prime")
    in_bfloat16(True)
    half = encoder("svdd-prime")
    assert all(torch.equal(exact[name], half[name]) for name in exact)


def test_a_variable_makes_all_cpus_train_alike(
    in_bfloat16: Callable[[bool], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    in_bfloat16(True)
    assert trains_in_bfloat16(CPU)
    assert trains_in_bfloat16(torch.device("cuda"))
    monkeypatch.setenv("PATCHSVDD_FLOAT32", "1")
    assert not trains_in_bfloat16(CPU)
    assert trains_in_bfloat16(torch.device("cuda"))
