"""Several processes that train one network: each encodes its share of every batch, all hold the same weights.

The number of processes only affects rounding. All draw the same random numbers for the whole batch, each encodes its
own rows, embeddings are gathered, and all compute the loss of the whole batch, so the loss need not be a mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from patchsvdd.core.errors import ConfigError


@dataclass(frozen=True)
class ProcessGroup:
    """The default group of ``torch.distributed``, and this process's rank in it."""

    rank: int
    size: int
    device: torch.device
    """Device of this process."""

    @classmethod
    def here(cls, device: torch.device) -> ProcessGroup:
        """Return the group of this process; ``torch.distributed`` must be initialised."""
        return cls(dist.get_rank(), dist.get_world_size(), device)

    @property
    def is_leader(self) -> bool:
        """Whether this process writes checkpoints and reports progress."""
        return self.rank == 0

    def share(self, whole: Tensor, blocks: int = 1) -> Tensor:
        """Return this process's rows of a tensor (blocks · B, …), the same rows of each block."""
        rows = len(whole) // (blocks * self.size)
        return whole.view(blocks, self.size, rows, *whole.shape[1:])[:, self.rank].flatten(0, 1)

    def gather(self, part: Tensor, blocks: int = 1) -> Tensor:
        """Return the whole (blocks · B, …) from every process's ``share``, with gradients for the whole batch's loss.

        They are scaled so that ``average`` yields the gradients of one process with the whole batch.
        """
        gathered: Tensor = _Gather.apply(part, self)  # type: ignore[no-untyped-call]
        return gathered.view(self.size, blocks, -1, *part.shape[1:]).transpose(0, 1).flatten(0, 2)

    def average(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace every gradient with its mean over all processes, bit-identical in each."""
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
        flat /= self.size
        for gradient, mean in zip(gradients, torch.split(flat, [g.numel() for g in gradients]), strict=True):
            gradient.copy_(mean.view_as(gradient))

    def follow(self, values: Tensor) -> None:
        """Overwrite ``values`` with the leader's."""
        dist.broadcast(values, 0)

    def any(self, flag: bool) -> bool:
        """Return whether ``flag`` is true in any process; all get the same answer."""
        votes = torch.tensor(int(flag), device=self.device)
        dist.all_reduce(votes)
        return bool(votes)


def check_shares(what: str, batch_size: int, workers: int) -> None:
    """Raise ConfigError if ``workers`` cannot share a batch evenly."""
    if batch_size % workers:
        up = -(-batch_size // workers) * workers
        raise ConfigError(
            f"{what} {batch_size} cannot be shared evenly by {workers} workers; give a multiple of {workers}, "
            f"such as {up}, or another number of `workers`"
        )


@contextmanager
def shared_norms(module: nn.Module, group: ProcessGroup | None) -> Iterator[None]:
    """Inside the block, batch normalisation uses the statistics of the whole batch, across all processes."""
    if group is None:
        yield
        return
    norms = [
        (owner, name, norm)
        for owner in module.modules()
        for name, norm in owner.named_children()
        if isinstance(norm, nn.BatchNorm2d)
    ]
    for owner, name, norm in norms:
        setattr(owner, name, _SharedNorm(norm, group))
    try:
        yield
    finally:
        for owner, name, norm in norms:
            setattr(owner, name, norm)


class _SharedNorm(nn.Module):
    """Batch normalisation in training mode, with the statistics of the whole batch."""

    def __init__(self, norm: nn.BatchNorm2d, group: ProcessGroup) -> None:
        super().__init__()
        self._norm, self._group = [norm], group  # in a list, so that its weights are not registered twice
        self.train(norm.training)

    def forward(self, images: Tensor) -> Tensor:
        """Normalise this process's share as ``nn.BatchNorm2d`` would within the whole batch."""
        (norm,) = self._norm
        shares: tuple[Tensor, ...] = _Normalize.apply(images, norm.weight, norm.bias, norm.eps, self._group)  # type: ignore[no-untyped-call]
        normalized, mean, variance = shares
        count = images.numel() // images.shape[1] * self._group.size
        with torch.no_grad():
            assert norm.running_mean is not None
            assert norm.running_var is not None
            assert norm.num_batches_tracked is not None
            assert norm.momentum is not None
            norm.running_mean.lerp_(mean, norm.momentum)
            norm.running_var.lerp_(variance * (count / max(1, count - 1)), norm.momentum)
            norm.num_batches_tracked.add_(1)
        return normalized


class _Gather(torch.autograd.Function):
    """Stacks every process's (rows, …) to (size, rows, …)."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        return _gathered(part, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        # Every process computes the same loss, so this is already the gradient of the whole.
        return gradient[ctx.group.rank] * ctx.group.size, None


class _Normalize(torch.autograd.Function):
    """Batch normalisation over all processes; also returns mean and variance (C,)."""

    @staticmethod
    def forward(
        ctx: Any, images: Tensor, weight: Tensor, bias: Tensor, eps: float, group: ProcessGroup
    ) -> tuple[Tensor, Tensor, Tensor]:
        values = images.to(torch.promote_types(images.dtype, torch.float32))
        own_variance, own_mean = torch.var_mean(values, (0, 2, 3), correction=0)
        means, variances = _gathered(torch.stack((own_mean, own_variance)), group).unbind(1)
        mean = means.mean(0)
        variance = variances.mean(0) + (means - mean).square().mean(0)
        scale = (variance + eps).rsqrt()
        normal = (values - _per_channel(mean)) * _per_channel(scale)
        ctx.group = group
        ctx.save_for_backward(normal, weight * scale)
        ctx.mark_non_differentiable(mean, variance)
        return (normal * _per_channel(weight) + _per_channel(bias)).to(images.dtype), mean, variance

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        normal, slope = ctx.saved_tensors
        values = gradient.to(normal.dtype)
        own = torch.stack((values.sum((0, 2, 3)), (values * normal).sum((0, 2, 3))))
        total = own.clone()
        dist.all_reduce(total)
        shift, tilt = (total / (values.numel() // values.shape[1] * ctx.group.size)).unbind(0)
        back = (values - _per_channel(shift) - normal * _per_channel(tilt)) * _per_channel(slope)
        return back.to(gradient.dtype), own[1], own[0], None, None


def _gathered(part: Tensor, group: ProcessGroup) -> Tensor:
    """Return every process's tensor, stacked by rank: (size, …)."""
    parts = [torch.empty_like(part, memory_format=torch.contiguous_format) for _ in range(group.size)]
    dist.all_gather(parts, part.contiguous())
    return torch.stack(parts)


def _per_channel(values: Tensor) -> Tensor:
    return values[:, None, None]
