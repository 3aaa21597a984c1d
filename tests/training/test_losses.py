from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from patchsvdd.training.losses import (
    before_tanh,
    embedding_spread,
    patch_svdd_loss,
    position_loss,
    svdd_center,
    svdd_loss,
    svdd_prime_loss,
)


@st.composite
def embeddings(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """Two batches of embeddings (B, D)."""
    batch, length = draw(st.integers(1, 12)), draw(st.integers(1, 64))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    return torch.randn(batch, length, generator=generator), torch.randn(batch, length, generator=generator)


def plain_distance(first: Tensor, second: Tensor) -> list[float]:
    return [math.dist(a, b) for a, b in zip(first.tolist(), second.tolist(), strict=True)]


@given(embeddings())
def test_equal_patches_cost_nothing(pair: tuple[Tensor, Tensor]) -> None:
    assert float(svdd_prime_loss(pair[0], pair[0].clone())) == 0


@given(embeddings())
def test_svdd_prime_is_equation_4(pair: tuple[Tensor, Tensor]) -> None:
    distances = plain_distance(*pair)
    assert float(svdd_prime_loss(*pair)) == pytest.approx(sum(distances) / len(distances), rel=1e-5)
    assert float(svdd_prime_loss(*pair)) == pytest.approx(float(svdd_prime_loss(pair[1], pair[0])), rel=1e-6)


@given(embeddings())
def test_svdd_is_equation_2_around_the_centre_of_equation_3(pair: tuple[Tensor, Tensor]) -> None:
    patches, _ = pair
    center = svdd_center(patches)
    expected_center = [sum(column) / len(patches) for column in zip(*patches.tolist(), strict=True)]
    assert center.tolist() == pytest.approx(expected_center, abs=1e-5)
    distances = [math.dist(row, expected_center) for row in patches.tolist()]
    assert float(svdd_loss(patches, center)) == pytest.approx(sum(distances) / len(distances), rel=1e-4, abs=1e-5)


@given(st.integers(1, 12), st.integers(0, 10_000))
def test_position_loss_is_equation_5(batch: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(batch, 8, generator=generator)
    label = torch.randint(0, 8, (batch,), generator=generator)
    expected = 0.0
    for row, k in zip(logits.tolist(), label.tolist(), strict=True):
        expected += math.log(sum(math.exp(value) for value in row)) - row[k]
    assert float(position_loss(logits, label)) == pytest.approx(expected / batch, rel=1e-5, abs=1e-6)


def test_position_loss_of_a_guess_is_log_8() -> None:
    assert float(position_loss(torch.zeros(4, 8), torch.arange(4))) == pytest.approx(math.log(8))


@given(st.floats(0, 10), st.floats(0, 10), st.floats(0, 10))
def test_patch_svdd_is_equation_6(svdd_prime: float, position: float, lambda_: float) -> None:
    loss = patch_svdd_loss(torch.tensor(svdd_prime), torch.tensor(position), lambda_)
    assert float(loss) == pytest.approx(lambda_ * svdd_prime + position, rel=1e-5, abs=1e-6)


def test_gradient_is_finite_where_the_distance_is_zero() -> None:
    first = torch.randn(4, 16, requires_grad=True)
    loss = svdd_prime_loss(first, first.detach().clone()) + svdd_loss(first[:1], first[0].detach())
    loss.backward()  # type: ignore[no-untyped-call]
    assert first.grad is not None
    assert not first.grad.any()


def test_gradient_pulls_a_pair_together() -> None:
    first = torch.randn(4, 16, requires_grad=True)
    second = torch.randn(4, 16)
    svdd_prime_loss(first, second).backward()  # type: ignore[no-untyped-call]
    assert first.grad is not None
    with torch.no_grad():
        assert svdd_prime_loss(first - 0.1 * first.grad, second) < svdd_prime_loss(first, second)


@given(embeddings())
def test_spread_is_the_root_mean_square_distance_from_the_mean(pair: tuple[Tensor, Tensor]) -> None:
    patches, _ = pair
    mean = [sum(column) / len(patches) for column in zip(*patches.tolist(), strict=True)]
    squares = [math.dist(row, mean) ** 2 for row in patches.tolist()]
    assert float(embedding_spread(patches)) == pytest.approx(math.sqrt(sum(squares) / len(squares)), rel=1e-4, abs=1e-5)


def test_spread_of_equal_embeddings_has_a_finite_gradient() -> None:
    patches = torch.ones(4, 16, requires_grad=True)
    embedding_spread(patches).backward()  # type: ignore[no-untyped-call]
    assert patches.grad is not None
    assert patches.grad.isfinite().all()


@given(embeddings(), st.floats(0.01, 1))
def test_a_relative_loss_does_not_fall_when_all_embeddings_shrink(pair: tuple[Tensor, Tensor], factor: float) -> None:
    first, second = torch.cat((pair[0], pair[0] + 1)), torch.cat((pair[1], pair[1] - 1))
    relative = svdd_prime_loss(first, second) / embedding_spread(first)
    shrunk = svdd_prime_loss(factor * first, factor * second) / embedding_spread(factor * first)
    torch.testing.assert_close(relative, shrunk, rtol=1e-3, atol=1e-4)


def test_before_tanh_neither_shrinking_nor_growing_pays() -> None:
    generator = torch.Generator().manual_seed(0)
    part_or_ground = torch.randint(0, 2, (64, 1), generator=generator) * 2.0 - 1
    first = part_or_ground + 0.3 * torch.randn(64, 16, generator=generator)
    second = first + 0.1 * torch.randn(64, 16, generator=generator)

    def ratio(scale: float, squashed: bool) -> float:
        a, b = torch.tanh(scale * first), torch.tanh(scale * second)
        if not squashed:
            a, b = before_tanh(a), before_tanh(b)
        return float(svdd_prime_loss(a, b) / embedding_spread(a))

    assert ratio(5, squashed=True) < 0.5 * ratio(0.1, squashed=True)
    assert ratio(1.5, squashed=False) == pytest.approx(ratio(0.1, squashed=False), rel=1e-2)


def test_before_tanh_is_finite_at_its_ends() -> None:
    ends = torch.tensor([[-1.0, 0.0, 1.0]], requires_grad=True)
    before_tanh(ends).sum().backward()  # type: ignore[no-untyped-call]
    assert before_tanh(ends).isfinite().all()
    assert ends.grad is not None
    assert ends.grad.isfinite().all()
