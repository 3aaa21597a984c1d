"""Several processes that train one network: each encodes its share of every batch, all hold the same weights.

The number of processes changes nothing but rounding. All draw the same random numbers for the whole batch, each encodes
its own rows, embeddings are gathered, and all compute the same loss of the whole batch: a loss need not be a mean.
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
    """The processes of torch.distributed's default group, as one of them sees them."""

    rank: int
    size: int
    device: torch.device
    """Where this process computes."""

    @classmethod
    def here(cls, device: torch.device) -> ProcessGroup:
        """The group this process belongs to, once ``torch.distributed`` has been set up."""
        return cls(dist.get_rank(), dist.get_world_size(), device)

    @property
    def is_leader(self) -> bool:
        """Whether this process is the one that writes and reports."""
        return self.rank == 0

    def share(self, whole: Tensor, blocks: int = 1) -> Tensor:
        """This process's rows of a tensor (blocks · B, …), the same of each block."""
        rows = len(whole) // (blocks * self.size)
        return whole.view(blocks, self.size, rows, *whole.shape[1:])[:, self.rank].flatten(0, 1)

    def gather(self, part: Tensor, blocks: int = 1) -> Tensor:
        """The whole (blocks · B, …) of which every process has a ``share``, with gradients for the loss of all.

        They are scaled so that ``average`` makes them those of one process with the whole batch.
        """
        gathered: Tensor = _Gather.apply(part, self)  # type: ignore[no-untyped-call]
        return gathered.view(self.size, blocks, -1, *part.shape[1:]).transpose(0, 1).flatten(0, 2)

    def average(self, parameters: Iterable[nn.Parameter]) -> None:
        """Make every gradient the mean over all processes, bit for bit the same in each."""
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
        flat /= self.size
        for gradient, mean in zip(gradients, torch.split(flat, [one.numel() for one in gradients]), strict=True):
            gradient.copy_(mean.view_as(gradient))

    def follow(self, values: Tensor) -> None:
        """Take over the leader's values."""
        dist.broadcast(values, 0)

    def any(self, said: bool) -> bool:
        """Whether a process of the group says so; all get the same answer."""
        votes = torch.tensor(int(said), device=self.device)
        dist.all_reduce(votes)
        return bool(votes)


def check_shares(what: str, batch_size: int, workers: int) -> None:
    """Raise ConfigError if a batch cannot be shared evenly."""
    if batch_size % workers:
        up = -(-batch_size // workers) * workers
        raise ConfigError(
            f"{what} {batch_size} cannot be shared evenly by {workers} workers; give a multiple of {workers}, "
            f"such as {up}, or another number of `workers`"
        )


@contextmanager
def shared_norms(module: nn.Module, group: ProcessGroup | None) -> Iterator[None]:
    """Inside the block batch normalisations learn from the whole batch, of which each process sees its share."""
    if group is None:
        yield
        return
    found = [
        (owner, name, norm)
        for owner in module.modules()
        for name, norm in owner.named_children()
        if isinstance(norm, nn.BatchNorm2d)
    ]
    for owner, name, norm in found:
        setattr(owner, name, _SharedNorm(norm, group))
    try:
        yield
    finally:
        for owner, name, norm in found:
            setattr(owner, name, norm)


class _SharedNorm(nn.Module):
    """A batch normalisation, training, with the statistics of the whole batch."""

    def __init__(self, norm: nn.BatchNorm2d, group: ProcessGroup) -> None:
        super().__init__()
        self._norm, self._group = [norm], group  # in a list: weights are not to be found twice
        self.train(norm.training)

    def forward(self, images: Tensor) -> Tensor:
        """What ``nn.BatchNorm2d`` makes of the share, had it seen all."""
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
    """(size, rows, …) of every process's (rows, …)."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        return _gathered(part, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        # Every process computes the same loss, so its gradient is already that of all.
        return gradient[ctx.group.rank] * ctx.group.size, None


class _Normalize(torch.autograd.Function):
    """Batch normalisation over all processes; mean and variance (C,) come with it."""

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
    """(size, …) of every process's tensor, in order of rank."""
    parts = [torch.empty_like(part, memory_format=torch.contiguous_format) for _ in range(group.size)]
    dist.all_gather(parts, part.contiguous())
    return torch.stack(parts)


def _per_channel(values: Tensor) -> Tensor:
    return values[:, None, None]
