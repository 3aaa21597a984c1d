"""A training step recorded once and replayed: one launch instead of hundreds."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

WARM_UPS = 3
"""Steps before the recording, in which whatever is made on first use is made."""


def capture(
    compute: Callable[[], None], state: Callable[[], dict[str, Tensor]], generator: torch.Generator
) -> torch.cuda.CUDAGraph:
    """``compute``, which draws from ``generator``, as a CUDA graph; all that ``state`` names is left as it was.

    What ``state`` names only after a step, an optimiser's moments, begins at 0.
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
    # The graph is bound to today's tensors: put the old values back into them instead of replacing them.
    with torch.no_grad():
        for name, value in state().items():
            if name == "generator":
                generator.set_state(before[name])
            elif name in before:
                value.copy_(before[name])
            else:
                value.zero_()
    return graph
