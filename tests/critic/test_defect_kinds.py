from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from patchsvdd.critic.defect_kinds import SHRINKAGE, KindClassifier, defect_cells, describe_defect


def test_a_defect_is_what_exceeds_the_threshold() -> None:
    anomaly_map = torch.zeros((20, 17))
    anomaly_map[3, 9] = anomaly_map[19, 0] = 2.0
    anomaly_map[10, 10] = 1.0
    assert defect_cells(anomaly_map, 1.5, (3, 3)).nonzero().tolist() == [[0, 1], [2, 0]]
    assert defect_cells(anomaly_map, 5.0, (3, 3)).nonzero().tolist() == [[0, 1]], "the highest one"
    marked = torch.zeros((3, 3), dtype=torch.bool)
    marked[1] = True
    assert defect_cells(anomaly_map, 5.0, (3, 3), marked).nonzero().tolist() == [[1, 1]], "the highest that is marked"
    assert defect_cells(anomaly_map, 1.5, (3, 3), marked).nonzero().tolist() == [[0, 1], [2, 0]]
    larger = defect_cells(anomaly_map, 1.5, (4, 5))  # the critic sees more than the map shows
    assert larger.shape == (4, 5)
    assert larger.nonzero().tolist() == [[0, 1], [2, 0]]


def test_a_defect_is_described_by_mean_and_largest_value_and_its_shape() -> None:
    features = torch.arange(12, dtype=torch.float32).view(2, 2, 3)
    cells = torch.tensor([[True, True, True], [False, False, False]])
    expected = [1.0, 7.0, 2.0, 8.0, np.log(3), np.log(3)]
    torch.testing.assert_close(describe_defect(features, cells), torch.tensor(expected, dtype=torch.float32))


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
