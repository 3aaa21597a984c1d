"""Numbers that say how good a detector is; arrays in, numbers out."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def auroc(labels: NDArray[np.bool_], scores: NDArray[np.floating[Any]]) -> float:
    """Area under the ROC curve (Eq. 1): probability that a defect scores above a good one, ties counting half.

    Exact. ``labels`` and ``scores`` have one shape; both classes must occur.
    """
    if labels.shape != scores.shape:
        raise ValueError(f"labels {labels.shape} and scores {scores.shape} differ in shape")
    defects, good = np.sort(scores[labels]), np.sort(scores[~labels])
    if len(defects) == 0 or len(good) == 0:
        raise ValueError("AUROC needs at least one defect and one good example")
    below = np.searchsorted(good, defects, side="left").sum(dtype=np.float64)
    not_above = np.searchsorted(good, defects, side="right").sum(dtype=np.float64)
    return float((below + not_above) / 2 / len(defects) / len(good))
