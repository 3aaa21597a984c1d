"""Muon: an optimiser that moves every direction of a weight matrix by the same amount."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

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
            rate = group["lr"]
            for weight in group["params"]:
                state = self.state[weight]
                if "momentum" not in state:
                    state["momentum"] = torch.zeros_like(weight)
                momentum = state["momentum"]
                momentum.mul_(MOMENTUM).add_(weight.grad)
                direction = weight.grad.add(momentum, alpha=MOMENTUM)  # Nesterov's
                # Input channels last: no copy for weights in that layout, and the order of columns does not matter.
                rows = direction.movedim(1, -1)
                outputs, inputs = len(rows), rows[0].numel()
                orthogonal = orthogonalize(rows.reshape(outputs, inputs)).view(rows.shape).movedim(-1, 1)
                weight.mul_(1 - WEIGHT_DECAY * rate)
                weight.sub_(orthogonal * (rate * max(1.0, outputs / inputs) ** 0.5))


def orthogonalize(matrix: Tensor) -> Tensor:
    """Return a matrix with the same singular vectors, and singular values between about 0.7 and 1.2.

    Newton–Schulz iterations multiply the matrix by polynomials of the product with its own transpose. They are computed
    on that product, which is much smaller than the matrix of a convolution, and applied once at the end.
    """
    if matrix.shape[0] > matrix.shape[1]:
        return orthogonalize(matrix.T).T
    a, b, c = COEFFICIENTS
    matrix = matrix / (matrix.norm() + 1e-7)
    product = matrix @ matrix.T
    whole = torch.eye(len(product), device=matrix.device)
    for _ in range(ITERATIONS):
        polynomial = torch.addmm(product, product, product, beta=b, alpha=c)
        polynomial.diagonal().add_(a)
        whole = polynomial @ whole
        product = polynomial @ product @ polynomial
    return whole @ matrix
