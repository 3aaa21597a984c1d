"""A training step recorded once and replayed: one launch instead of hundreds."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

WARM_UPS = 3
"""Steps run before recording, so that lazy initialisation is not recorded."""


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
