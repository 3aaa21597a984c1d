"""The losses of the paper, Eq. 2 to 6, one function each.

Embeddings are (B, D). Losses are means over the batch; the paper uses sums, which only rescales the
learning rate.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def svdd_loss(embeddings: Tensor, center: Tensor) -> Tensor:
    """L_SVDD (Eq. 2): mean distance of embeddings (B, D) to one centre c (D,)."""
    return _distance(embeddings - center).mean()


def svdd_center(embeddings: Tensor) -> Tensor:
    """c (Eq. 3): mean embedding (D,) of patches (B, D), computed once before training."""
    return embeddings.mean(0)


def svdd_prime_loss(first: Tensor, second: Tensor) -> Tensor:
    """L_SVDD' (Eq. 4): mean distance between the embeddings of neighbouring patches, both (B, D)."""
    return _distance(first - second).mean()


def position_loss(logits: Tensor, label: Tensor) -> Tensor:
    """L_SSL (Eq. 5): cross-entropy of the relative position, logits (B, 8) against label (B,)."""
    return F.cross_entropy(logits, label)


def patch_svdd_loss(svdd_prime: Tensor, position: Tensor, lambda_: float) -> Tensor:
    """L_Patch SVDD (Eq. 6): λ L_SVDD' + L_SSL."""
    return lambda_ * svdd_prime + position


def embedding_spread(embeddings: Tensor) -> Tensor:
    """Root mean square distance of embeddings (B, D) from their mean: the unit of a relative L_SVDD'.

    # Differs from the paper: L_SVDD' falls when all embeddings shrink towards one point, and with a large λ that is
    # what training does (the collapse). Divided by the spread, only the distance of neighbours relative to that of
    # all patches counts, and shrinking gains nothing.
    """
    variance = (embeddings - embeddings.mean(0)).square().sum(1).mean()
    return (variance + 1e-12).sqrt()


def before_tanh(embeddings: Tensor) -> Tensor:
    """Return embeddings (B, D) before the tanh, so that saturation cannot lower a relative L_SVDD'.

    # Differs from the paper: shrinking cannot lower L_SVDD' relative to the spread, but growing can, where patches
    # fall into groups such as part and background. Once tanh is close to ±1, neighbours agree in nearly every
    # component while the groups still differ. Then gradients vanish, components that no longer differ stay equal, and
    # the spread in the denominator becomes tiny in some steps: long trainings still collapsed this way.
    # Before tanh neither shrinking nor growing changes the ratio.
    """
    return embeddings.clamp(-1 + 1e-6, 1 - 1e-6).atanh()


def _distance(difference: Tensor) -> Tensor:
    """L2 norm over the last axis (not squared); its gradient is zero, not NaN, where the norm is zero."""
    norm: Tensor = torch.linalg.vector_norm(difference, dim=-1)
    return norm
