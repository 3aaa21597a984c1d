"""A training step recorded once and replayed: one launch instead of hundreds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from patchsvdd.training.process_group import ProcessGroup

WARM_UPS = 3
"""Steps run before recording, so that lazy initialisation is not recorded."""


class RecordedStep(ABC):
    """A training that advances step by step. On a GPU, outside a process group, the step is recorded and replayed."""

    def __init__(self, device: torch.device, generator: torch.Generator, group: ProcessGroup | None) -> None:
        self.device, self.generator, self._group = device, generator, group
        self.step = 0
        self._step_on_device = torch.zeros((), device=device)
        self._summed = 0
        self._graph: torch.cuda.CUDAGraph | None = None

    def prepare(self) -> None:
        """Record the step as a CUDA graph on a GPU; otherwise the first step does."""
        if self.device.type == "cuda" and self._graph is None and self._group is None:
            self._graph = capture(self._compute, self.state, self.generator)
            self._step_on_device.fill_(self.step)

    def advance(self) -> None:
        """Run one step."""
        self.prepare()
        if self._graph is None:
            self._compute()
        else:
            self._graph.replay()
        self.step += 1
        self._summed += 1

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """Return all tensors that the next step depends on."""

    @abstractmethod
    def _compute(self) -> None:
        """Compute one step on the device, without reading anything back to the host."""

    @torch.no_grad()
    def _update_average(self, weights: Sequence[Tensor], averages: Sequence[Tensor], ema: float) -> None:
        """Update the moving average of the weights, faster in the first steps."""
        share = (9 / (9 + self._step_on_device)).clamp_min(1 - ema)
        change = torch._foreach_sub(list(weights), list(averages))
        torch._foreach_mul_(change, share)
        torch._foreach_add_(list(averages), change)


def capture(
    compute: Callable[[], None], state: Callable[[], dict[str, Tensor]], generator: torch.Generator
) -> torch.cuda.CUDAGraph:
    """Return ``compute``, which draws from ``generator``, as a CUDA graph; the tensors in ``state`` keep their values.

    Tensors that appear in ``state`` only after a step, such as an optimiser's moments, are set to 0.
    """
    before = {name: value.clone() for name, value in state().items()}
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UPS):
            compute()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(generator)
    with torch.cuda.graph(graph):
        compute()
    # The graph holds these tensors' addresses: copy the old values back instead of replacing the tensors.
    with torch.no_grad():
        for name, value in state().items():
            if name == "generator":
                generator.set_state(before[name])
            elif name in before:
                value.copy_(before[name])
            else:
                value.zero_()
    return graph
