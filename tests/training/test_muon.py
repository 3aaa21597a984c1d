"""Muon moves every direction of a weight by the same amount."""

from __future__ import annotations

import torch
from torch import nn

from patchsvdd.training import muon
from patchsvdd.training.checkpoint import moments, restore_moments
from patchsvdd.training.muon import MOMENTUM, WEIGHT_DECAY, Muon


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def orthogonalize(matrix: torch.Tensor) -> torch.Tensor:
    return muon.orthogonalize([matrix])[0]


class TestOrthogonalize:
    def test_several_at_once(self) -> None:
        matrices = [drawn(8, 20), drawn(20, 8), drawn(8, 12), drawn(6, 6), drawn(8, 20, seed=1)]
        for matrix, found in zip(matrices, muon.orthogonalize(matrices), strict=True):
            assert torch.allclose(found, orthogonalize(matrix), atol=1e-5)

    def test_together_in_bfloat16_is_nearly_the_same(self) -> None:
        matrices = [one / one.norm() for one in (drawn(8, 20), drawn(8, 12), drawn(6, 30), drawn(8, 20, seed=1))]
        for matrix, found in zip(matrices, muon.together(matrices), strict=True):
            assert found.shape == matrix.shape
            assert torch.allclose(found, muon.one_by_one(matrix), atol=0.05)

    def test_singular_values_come_close_to_1(self) -> None:
        for shape in ((16, 40), (40, 16), (24, 24), (1, 9)):
            values = torch.linalg.svdvals(orthogonalize(drawn(*shape)))
            assert values.max() < 1.25
            # A square random matrix has singular values so close to 0 that five iterations do not raise them to 1.
            assert values.median() > 0.65

    def test_singular_vectors_stay(self) -> None:
        left, values, right = torch.linalg.svd(drawn(12, 30), full_matrices=False)
        found = left.T @ orthogonalize(left @ values.diag() @ right) @ right.T
        assert torch.allclose(found, found.diagonal().diag(), atol=1e-4)

    def test_equals_iterations_on_the_whole_matrix(self) -> None:
        matrix = drawn(32, 200) * torch.logspace(0, -3, 200)
        whole = matrix / matrix.norm()
        for _ in range(5):
            product = whole @ whole.T
            whole = 3.4445 * whole + (-4.7750 * product + 2.0315 * product @ product) @ whole
        assert torch.allclose(orthogonalize(matrix), whole, atol=1e-3)

    def test_does_not_depend_on_the_length(self) -> None:
        matrix = drawn(8, 20)
        assert torch.allclose(orthogonalize(1e-3 * matrix), orthogonalize(1e3 * matrix), atol=1e-3)

    def test_nothing_stays_nothing(self) -> None:
        assert torch.equal(orthogonalize(torch.zeros(4, 9)), torch.zeros(4, 9))

    def test_small_singular_values_do_not_explode(self) -> None:
        matrix = drawn(64, 576) * torch.logspace(0, -12, 576)
        assert torch.linalg.svdvals(orthogonalize(matrix)).max() < 1.3


class TestMuon:
    def test_one_step(self) -> None:
        weight = nn.Parameter(drawn(4, 3, 2, 2))
        before = weight.detach().clone()
        weight.grad = drawn(4, 3, 2, 2, seed=1)
        Muon([weight], torch.tensor(0.1)).step()
        direction = orthogonalize((weight.grad * (1 + MOMENTUM)).flatten(1)).view_as(weight)
        assert torch.allclose(weight, before * (1 - 0.1 * WEIGHT_DECAY) - 0.1 * direction, atol=1e-4)

    def test_more_outputs_than_inputs_move_further(self) -> None:
        weight = nn.Parameter(torch.zeros(16, 4, 1, 1))
        weight.grad = drawn(16, 4, 1, 1)
        Muon([weight], torch.tensor(1.0)).step()
        assert 1.3 < torch.linalg.svdvals(weight.detach().flatten(1)).mean() < 2.4

    def test_the_memory_layout_does_not_matter(self) -> None:
        found = []
        for layout in (torch.contiguous_format, torch.channels_last):
            weight = nn.Parameter(drawn(8, 6, 3, 3).contiguous(memory_format=layout))
            weight.grad = drawn(8, 6, 3, 3, seed=1).contiguous(memory_format=layout)
            Muon([weight], torch.tensor(0.1)).step()
            found.append(weight.detach().contiguous())
        assert torch.allclose(found[0], found[1], atol=1e-5)

    def test_a_rate_of_0_changes_nothing(self) -> None:
        weight = nn.Parameter(drawn(8, 6, 3, 3))
        weight.grad = drawn(8, 6, 3, 3, seed=1)
        before = weight.detach().clone()
        Muon([weight], torch.tensor(0.0)).step()
        assert torch.equal(weight, before)

    def test_minimises(self) -> None:
        target, inputs = drawn(6, 10), drawn(200, 10, seed=1)
        weight, rate = nn.Parameter(torch.zeros(6, 10)), torch.tensor(0.2)
        optimizer = Muon([weight], rate)
        losses = []
        for step in range(150):
            rate.fill_(0.2 * (1 - step / 150))
            optimizer.zero_grad()
            loss = (inputs @ (weight - target).T).square().mean()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(loss.item())
        assert losses[-1] < 0.01 * losses[0]

    def test_goes_on_from_stored_momentum(self) -> None:
        rate = torch.tensor(0.1)

        def steps(weight: nn.Parameter, optimizer: Muon, numbers: range) -> None:
            for number in numbers:
                weight.grad = drawn(4, 3, 3, 3, seed=number)
                optimizer.step()

        whole = nn.Parameter(drawn(4, 3, 3, 3))
        steps(whole, Muon([whole], rate), range(1, 7))
        first = nn.Parameter(drawn(4, 3, 3, 3))
        stopped = Muon([first], rate)
        steps(first, stopped, range(1, 4))
        second = nn.Parameter(first.detach().clone())
        resumed = Muon([second], rate)
        restore_moments(resumed, {name: value.clone() for name, value in moments(stopped).items()}, rate)
        steps(second, resumed, range(4, 7))
        assert torch.equal(whole, second)
