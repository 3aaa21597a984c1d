from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from patchsvdd.evaluation.metrics import auroc


@given(st.lists(st.tuples(st.booleans(), st.integers(-3, 3)), min_size=2, max_size=40))
def test_equals_scikit_learns_with_ties(pairs: list[tuple[bool, int]]) -> None:
    labels = np.array([label for label, _ in pairs])
    assume(labels.any() and not labels.all())
    scores = np.array([score / 3 for _, score in pairs])
    assert auroc(labels, scores) == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)


@given(st.integers(0, 1000))
def test_equals_scikit_learns_without_ties(seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels, scores = rng.random(200) < 0.1, rng.normal(size=200).astype(np.float32)
    labels[:2] = True, False
    assert auroc(labels, scores) == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)


def test_takes_maps() -> None:
    rng = np.random.default_rng(0)
    masks, maps = rng.random((3, 8, 9)) < 0.2, rng.random((3, 8, 9))
    assert auroc(masks, maps) == pytest.approx(roc_auc_score(masks.ravel(), maps.ravel()), abs=1e-12)


@pytest.mark.parametrize(("scores", "expected"), [([0.0, 1.0], 1.0), ([1.0, 0.0], 0.0), ([5.0, 5.0], 0.5)])
def test_the_three_plain_cases(scores: list[float], expected: float) -> None:
    assert auroc(np.array([False, True]), np.array(scores)) == expected


def test_large_counts_do_not_overflow() -> None:
    labels = np.zeros(200_000, bool)
    labels[:100_000] = True
    assert auroc(labels, np.zeros(200_000, np.float32)) == 0.5


@pytest.mark.parametrize("label", [True, False])
def test_one_class_alone_is_an_error(label: bool) -> None:
    with pytest.raises(ValueError, match="at least one defect and one good"):
        auroc(np.full(3, label), np.arange(3.0))


def test_shapes_must_agree() -> None:
    with pytest.raises(ValueError, match="differ in shape"):
        auroc(np.array([True, False]), np.arange(3.0))
