"""The paper's training step in kernels against the plain one, through Triton's interpreter on the CPU, in float32."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("triton")

from patchsvdd.core.config import Config
from patchsvdd.core.presets import preset
from patchsvdd.core.scales import Scale
from patchsvdd.encoder.networks import HierarchicalEncoder, Merge, build_encoder
from patchsvdd.training.fused_step import FusedCutPairs, FusedLoss, FusedStep, fused_step_runs_on
from patchsvdd.training.pair_sampler import DIRECTIONS
from patchsvdd.training.pairs import EmbeddedPairs, PositionPairs, merge_rows
from patchsvdd.training.step import Trainer

pytestmark = pytest.mark.interpreter

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
IMAGES = torch.rand(3, 3, 72, 80, generator=torch.Generator().manual_seed(0)).to(DEVICE)
BATCH = 2


def settings(**changes: object) -> Config:
    return preset("paper", **({"batch_size": BATCH, "image_size": None} | changes))


def encoder_of(config: Config) -> HierarchicalEncoder:
    """A fresh encoder whose weights are large enough for gradients to differ from zero."""
    encoder = build_encoder(config).to(DEVICE)
    assert isinstance(encoder, HierarchicalEncoder)
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.mul_(1.7)
    return encoder


def pairs_at(step: int, **changes: object) -> FusedCutPairs:
    config = settings(**changes)
    return FusedCutPairs(encoder_of(config), IMAGES, config, torch.tensor(float(step), device=DEVICE), torch.float32)


def gradients(module: nn.Module) -> dict[str, Tensor]:
    """The gradients of all parameters that have one, which are forgotten."""
    found = {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}
    module.zero_grad(set_to_none=True)
    return found


def assert_close(fused: dict[str, Tensor], plain: dict[str, Tensor]) -> None:
    assert fused.keys() == plain.keys()
    for name, gradient in plain.items():
        assert (fused[name] - gradient).norm() <= 1e-2 * gradient.norm(), name  # TF32 on a GPU


def corners(maps: Tensor) -> list[tuple[int, int, int]]:
    """Image, row and column of sub-patches (B, 32, 32, 4) that were cut out as they are."""
    windows = IMAGES.unfold(2, 32, 1).unfold(3, 32, 1)  # (N, 3, h, w, 32, 32)
    found = []
    for patch in maps[..., :3].permute(0, 3, 1, 2):
        places = (windows == patch[:, None, None]).all(-1).all(-1).all(1).nonzero().tolist()
        assert len(places) == 1
        found.append(tuple(places[0]))
    return found


def test_pairs_lie_as_the_paper_says() -> None:
    for step in range(2):
        maps, labels = pairs_at(step, rgb_shift=0.0, noise=0.0).cut()
        assert not maps[..., 3].any()
        places = corners(maps)
        for level, size in enumerate((32, 64)):
            across = size // 32
            of_level = places[: 4 * BATCH] if level == 0 else places[4 * BATCH :]
            patches = [of_level[i : i + across**2] for i in range(0, len(of_level), across**2)]
            for patch in patches:  # sub-patches in reading order
                image, y, x = patch[0]
                assert patch == [(image, y + 32 * r, x + 32 * c) for r in range(across) for c in range(across)]
            first, second, near, other = (
                [patch[0] for patch in patches[i : i + BATCH]] for i in range(0, 4 * BATCH, BATCH)
            )
            for (image, y, x), (image_2, y_2, x_2), label in zip(first, second, labels[level].tolist(), strict=True):
                assert image == image_2
                for before, after, way, room in (
                    (y, y_2, DIRECTIONS[label][0], 72 - size),
                    (x, x_2, DIRECTIONS[label][1], 80 - size),
                ):
                    reach = range(3 * size // 4, size)
                    assert after in {min(max(before + way * distance, 0), room) for distance in reach}
            for (image, y, x), (image_2, y_2, x_2) in zip(near, other, strict=True):
                assert image == image_2
                assert max(abs(y - y_2), abs(x - x_2)) <= size // 32


def test_draws_depend_on_seed_and_step_alone() -> None:
    once, again = pairs_at(5).cut()[0], pairs_at(5).cut()[0]
    assert torch.equal(once, again)
    assert not torch.equal(once, pairs_at(6).cut()[0])
    assert not torch.equal(once, pairs_at(5, seed=1).cut()[0])


def test_only_position_pairs_are_coloured() -> None:
    grain = pairs_at(0).cut()[0] - pairs_at(0, rgb_shift=0.0, noise=0.0).cut()[0]
    for of_level in (grain[: 4 * BATCH], grain[4 * BATCH :]):  # patches of 32 px, then the sub-patches of 64 px
        position, jitter = of_level.chunk(2)
        assert not jitter.any()
        position = position[..., :3]
        assert position.std() == pytest.approx(0.028, rel=0.5)  # a shift of 0.02 and noise of 0.02
        assert (position - position.mean((1, 2), keepdim=True)).std() == pytest.approx(0.02, rel=0.05)


def as_pairs(rows: Tensor, label: Tensor) -> EmbeddedPairs:
    first, second, jitter_first, jitter_second = rows.chunk(4)
    return EmbeddedPairs(jitter_first, jitter_second, PositionPairs(first, second, label))


@pytest.mark.parametrize("frozen", [True, False])
def test_the_loss_and_its_gradients_are_the_trainers(frozen: bool) -> None:
    config = settings(batch_size=3, lambda_=0.5, frozen_position_output=frozen)
    trainer = Trainer(encoder_of(config), IMAGES, config, steps=1)
    encoder = trainer.encoder
    assert isinstance(encoder, HierarchicalEncoder)
    embeddings = torch.randn(3 * 20, 64, device=DEVICE).mul(0.5).tanh().requires_grad_()
    labels = torch.randint(0, 8, (2, 3), device=DEVICE)
    merge = encoder.merges[0]
    assert isinstance(merge, Merge)
    of_scale = {32: embeddings[:12], 64: merge_rows(merge, embeddings[12:].view(12, -1))}
    parts = [trainer._loss(size, as_pairs(rows, labels[i])) for i, (size, rows) in enumerate(of_scale.items())]
    torch.stack([loss for loss, _ in parts]).sum().backward()  # type: ignore[no-untyped-call]
    both = nn.ModuleDict({"encoder": encoder, "classifiers": trainer.classifiers})
    expected = gradients(both)
    assert embeddings.grad is not None
    expected_embeddings = embeddings.grad.clone()
    embeddings.grad.zero_()

    metrics = FusedLoss(encoder, trainer.classifiers, config).backward(embeddings, labels)
    torch.testing.assert_close(metrics, torch.stack([row for _, row in parts]), atol=1e-3, rtol=1e-3)
    assert_close(gradients(both), expected)
    assert_close({"embeddings": embeddings.grad}, {"embeddings": expected_embeddings})


def test_only_the_papers_training_on_a_gpu_is_supported() -> None:
    config = settings()
    assert not fused_step_runs_on(encoder_of(config), IMAGES.cpu(), config)
    assert fused_step_runs_on(encoder_of(config), IMAGES, config) == IMAGES.is_cuda
    assert not fused_step_runs_on(encoder_of(config), IMAGES, preset("encoder"))


def advance(trainer: Trainer) -> dict[str, Tensor]:
    trainer.advance()
    return {name: value.clone() for name, value in trainer.state().items()}


def test_a_resumed_training_is_the_same_bit_by_bit() -> None:
    config = settings(batch_size=1, scales=(Scale(32, 4),))

    def trainer() -> Trainer:
        made = Trainer(encoder_of(config), IMAGES, config, steps=3)
        encoder = made.encoder
        assert isinstance(encoder, HierarchicalEncoder)
        # A CPU would train the plain way; of the kernels only those of the convolutions would take it minutes.
        step = FusedStep(encoder, made.classifiers, IMAGES, config, made._step_on_device, torch.float32)
        if DEVICE.type == "cpu":
            small = encoder.small
            step._pairs.stack = lambda maps: small(maps[..., :3].permute(0, 3, 1, 2)).flatten(1)  # type: ignore[assignment]
        made._source = step
        return made

    whole, resumed = trainer(), trainer()
    first = advance(whole)
    second = advance(whole)
    resumed.load_state(first, 1)
    again = advance(resumed)
    assert second.keys() == again.keys()
    assert all(torch.equal(value, again[name]) for name, value in second.items())
    assert any(not torch.equal(value, first[name]) for name, value in second.items() if name.startswith("encoder."))
    assert whole.read_metrics(reset=False) == resumed.read_metrics(reset=False)


def test_the_length_of_the_schedule_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    config = settings(batch_size=1, scales=(Scale(32, 4),))
    monkeypatch.setattr("patchsvdd.training.step.fused_step_runs_on", lambda *_: True)
    monkeypatch.setattr("patchsvdd.training.step.KERNELS_PAY_AFTER", 5)

    def is_fused(steps: int, **options: Any) -> bool:
        return isinstance(Trainer(encoder_of(config), IMAGES, config, steps, **options)._source, FusedStep)

    assert [is_fused(4), is_fused(5)] == [False, True]
    assert [is_fused(5, with_kernels=False), is_fused(4, with_kernels=True)] == [False, True]
