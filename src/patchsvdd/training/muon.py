"""Muon: an optimiser that moves every direction of a weight matrix by the same amount."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from patchsvdd.core.device import trains_in_bfloat16

MOMENTUM = 0.95
WEIGHT_DECAY = 0.01
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the polynomial a·σ + b·σ³ + c·σ⁵, which moves singular values towards 1."""
ITERATIONS = 5


class Muon(torch.optim.Optimizer):
    """Momentum whose direction is made orthogonal, for weights of convolutions as (outputs, everything else) matrices.

    Few directions dominate the gradient of a convolution. Muon (Jordan et al., 2024) replaces the singular values of
    the momentum by values near 1, so that the others are learned as fast. ``torch.optim.Muon`` accepts matrices only
    and reads its learning rate on the host, which a recorded step must not do.
    """

    def __init__(self, weights: Iterable[nn.Parameter], lr: Tensor) -> None:
        """``weights`` have two or more dimensions; ``lr`` is a tensor on their device, read at every step."""
        super().__init__(weights, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Move the weights along their gradients."""
        assert closure is None
        for group in self.param_groups:
            weights, rate = group["params"], group["lr"]
            matrices = [_as_matrix(self._direction(weight)) for weight in weights]
            torch._foreach_mul_(weights, 1 - WEIGHT_DECAY * rate)
            for weight, orthogonal in zip(weights, orthogonalize(matrices), strict=True):
                outputs, inputs = orthogonal.shape
                like = weight.movedim(1, -1)
                like.sub_(orthogonal.reshape(like.shape) * (rate * max(1.0, outputs / inputs) ** 0.5))

    def _direction(self, weight: Tensor) -> Tensor:
        """Update the momentum and return Nesterov's direction."""
        assert weight.grad is not None
        state = self.state[weight]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(weight)
        momentum: Tensor = state["momentum"].mul_(MOMENTUM).add_(weight.grad)
        return weight.grad.add(momentum, alpha=MOMENTUM)


def _as_matrix(weight: Tensor) -> Tensor:
    """Return (outputs, everything else); input channels last, which needs no copy of weights in that layout."""
    return weight.movedim(1, -1).flatten(1)


def orthogonalize(matrices: Sequence[Tensor]) -> list[Tensor]:
    """Return matrices with the same singular vectors, and singular values between about 0.7 and 1.2.

    Newton–Schulz iterations multiply a matrix M by polynomials of M · Mᵀ. They need few operations on M · Mᵀ itself,
    but full precision. Matrix units are faster with more operations in bfloat16, on many matrices at a time.
    """
    wide = [matrix.T if matrix.shape[0] > matrix.shape[1] else matrix for matrix in matrices]
    scaled = [matrix / (matrix.norm() + 1e-7) for matrix in wide]
    half = trains_in_bfloat16(wide[0].device)
    found = together(scaled) if half else [one_by_one(matrix) for matrix in scaled]
    pairs = zip(matrices, found, strict=True)
    return [one.T if matrix.shape[0] > matrix.shape[1] else one for matrix, one in pairs]


def one_by_one(matrix: Tensor) -> Tensor:
    """Return a wide matrix of norm 1 made orthogonal, by iterations on its product with its transpose."""
    a, b, c = COEFFICIENTS
    product = matrix @ matrix.T
    whole = torch.eye(len(product), device=matrix.device)
    for left in reversed(range(ITERATIONS)):
        polynomial = torch.addmm(product, product, product, beta=b, alpha=c)
        polynomial.diagonal().add_(a)
        whole = polynomial @ whole
        if left:
            product = polynomial @ product @ polynomial
    return whole @ matrix


def together(matrices: Sequence[Tensor]) -> list[Tensor]:
    """Return wide matrices of norm 1 made orthogonal, those with equal numbers of rows at a time, in bfloat16."""
    a, b, c = COEFFICIENTS
    found: dict[int, Tensor] = {}
    for rows in sorted({len(matrix) for matrix in matrices}):
        places = [place for place, matrix in enumerate(matrices) if len(matrix) == rows]
        widest = max(matrices[place].shape[1] for place in places)
        padded = [F.pad(matrices[place], (0, widest - matrices[place].shape[1])) for place in places]
        stack = torch.stack(padded).bfloat16()
        for _ in range(ITERATIONS):
            product = stack @ stack.mT
            stack = torch.baddbmm(stack, torch.baddbmm(product, product, product, beta=b, alpha=c), stack, beta=a)
        for place, one in zip(places, stack.float(), strict=True):
            found[place] = one[:, : matrices[place].shape[1]]
    return [found[place] for place in range(len(matrices))]
