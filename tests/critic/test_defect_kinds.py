from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from patchsvdd.critic.defect_kinds import SHRINKAGE, KindClassifier, defect_cells, describe_defect


def early_of(logits: list[list[float]]) -> torch.Tensor:
    """Features (2, h, w) whose last channel has these logits; the first has numbers of the cells."""
    last = torch.tensor(logits)
    return torch.stack((torch.arange(last.numel(), dtype=torch.float32).view(last.shape), last))


def test_a_defect_is_what_is_connected_and_at_least_half_as_suspicious() -> None:
    early = early_of([[-9, -9, -9, 3], [-9, 2, -9, -9], [1, -9, -9, -9], [-9, -9, -3, -9]])
    everywhere = torch.ones((4, 4), dtype=torch.bool)
    assert defect_cells(early, everywhere).nonzero().tolist() == [[0, 3]]
    left = everywhere.clone()
    left[:, 3] = False
    assert defect_cells(early, left).nonzero().tolist() == [[1, 1], [2, 0]], "diagonal neighbours are connected"
    corner = torch.zeros_like(everywhere)
    corner[2, 0] = True
    assert defect_cells(early, corner).nonzero().tolist() == [[1, 1], [2, 0]], "it may reach beyond what is inside"


def test_a_defect_is_described_by_mean_and_largest_value_and_its_shape() -> None:
    early = early_of([[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]])
    cells = torch.tensor([[True, True, True], [False, False, False]])
    expected = [1.0, 1.0, 2.0, 2.0, np.log(3), np.log(3)]
    torch.testing.assert_close(describe_defect(early, cells), torch.tensor(expected, dtype=torch.float32))


@pytest.fixture(scope="module")
def three_kinds() -> tuple[torch.Tensor, torch.Tensor]:
    """Descriptors (30, 6) of three kinds, and their kinds."""
    generator = torch.Generator().manual_seed(0)
    kinds = torch.arange(3).repeat(10)
    means = 2 * torch.randn((3, 6), generator=generator)
    return means[kinds] + torch.randn((30, 6), generator=generator), kinds


def test_probabilities_are_those_of_a_linear_discriminant(three_kinds: tuple[torch.Tensor, torch.Tensor]) -> None:
    descriptors, kinds = three_kinds
    classifier = KindClassifier.fit(descriptors, kinds)
    standard = ((descriptors - descriptors.mean(0)) / descriptors.std(0, correction=0)).numpy()
    means = np.stack([standard[kinds.numpy() == kind].mean(0) for kind in range(3)])
    within = standard - means[kinds.numpy()]
    covariance = within.T @ within / (30 - 3)
    shrunk = (1 - SHRINKAGE) * covariance + SHRINKAGE * np.diag(covariance).mean() * np.eye(6)
    reference = LinearDiscriminantAnalysis(solver="lsqr", priors=[1 / 3] * 3).fit(standard, kinds.numpy())
    reference.coef_ = np.linalg.solve(shrunk, means.T).T
    reference.intercept_ = -(reference.coef_ * means).sum(1) / 2 + np.log(1 / 3)
    expected = reference.predict_proba(standard)
    ours = torch.stack([classifier(one) for one in descriptors])
    np.testing.assert_allclose(ours.numpy(), expected, atol=1e-4)
    assert float((ours.argmax(1) == kinds).float().mean()) > 0.9


@pytest.mark.parametrize("each", [1, 2])
def test_one_image_of_each_kind_is_enough(each: int, three_kinds: tuple[torch.Tensor, torch.Tensor]) -> None:
    descriptors, kinds = three_kinds
    some = torch.cat([torch.arange(10 * kind, 10 * kind + each) for kind in range(3)])
    classifier = KindClassifier.fit(descriptors[some], kinds[some])
    found = [int(classifier(one).argmax()) for one in descriptors[some]]
    assert found == kinds[some].tolist()
    assert all(bool(torch.isfinite(classifier(one)).all()) for one in descriptors)


def test_a_single_kind_is_certain() -> None:
    assert float(KindClassifier.fit(torch.rand((3, 4)), torch.zeros(3, dtype=torch.int64))(torch.rand(4))[0]) == 1
