"""Tells kinds of defects apart by what confirmed ones look like, all of them known from a few images."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from patchsvdd.critic.feature_coreset import STEADY
from patchsvdd.critic.network import FEATURE_STEP

SHRINKAGE = 0.5
"""Weight of independent features in the covariance, which few images estimate badly."""
CONFIDENT = 0.5
"""Smallest probability of a kind that is named."""


def defect_cells(anomaly_map: Tensor, threshold: float, shape: tuple[int, int], marked: Tensor | None = None) -> Tensor:
    """Return (h, w) bool: the cells in which a map (H, W) of what the critic sees exceeds the threshold.

    Where none does, the highest one of those that are ``marked`` (h, w), or of all.
    """
    levels = F.max_pool2d(anomaly_map[None, None], FEATURE_STEP, ceil_mode=True)[0, 0, : shape[0], : shape[1]]
    levels = F.pad(levels, (0, shape[1] - levels.shape[1], 0, shape[0] - levels.shape[0]))
    above = levels > threshold
    if bool(above.any()):
        return above
    allowed = levels if marked is None else torch.where(marked, levels, -1.0)
    highest = torch.zeros_like(above)
    highest.view(-1)[int(allowed.argmax())] = True
    return highest


def describe_defect(early: Tensor, cells: Tensor) -> Tensor:
    """Return (2 C + 2,): mean and largest value of each smoothed feature (C, h, w) in some cells, and their shape."""
    rows, columns = torch.nonzero(cells, as_tuple=True)
    seen = early[:, rows, columns]
    height, width = (float(one.max() - one.min() + 1) for one in (rows, columns))
    shape = early.new_tensor([float(len(rows)), max(height, width) / min(height, width)]).log()
    return torch.cat((seen.mean(1), seen.amax(1), shape))


@dataclass(frozen=True)
class KindClassifier:
    """The linear discriminant of several Gaussians with one covariance; all kinds are taken as equally frequent."""

    mean: Tensor
    """(D,)."""
    scale: Tensor
    """(D,)."""
    weights: Tensor
    """(K, D)."""
    bias: Tensor
    """(K,)."""

    @classmethod
    def fit(cls, descriptors: Tensor, kinds: Tensor) -> KindClassifier:
        """Fit to descriptors (N, D) of confirmed defects and their kinds (N,), numbered from 0."""
        rows = descriptors.double()
        mean, deviation = rows.mean(0), rows.std(0, correction=0)
        scale = deviation.clamp_min(max(1e-6, STEADY * float(deviation.median())))
        standard = (rows - mean) / scale
        count = int(kinds.max()) + 1
        means = torch.stack([standard[kinds == kind].mean(0) for kind in range(count)])
        within = standard - means[kinds]
        covariance = within.T @ within / max(1, len(rows) - count)
        independent = float(covariance.diagonal().mean()) or 1.0
        identity = torch.eye(len(mean), dtype=rows.dtype, device=rows.device)
        shrunk = (1 - SHRINKAGE) * covariance + SHRINKAGE * independent * identity
        weights = torch.linalg.solve(shrunk, means.T).T
        return cls(mean.float(), scale.float(), weights.float(), -(weights * means).sum(1).float() / 2)

    def __call__(self, descriptor: Tensor) -> Tensor:
        """Return the probability (K,) of each kind, given that it is one of them."""
        return (self.weights @ ((descriptor - self.mean) / self.scale) + self.bias).softmax(0)
