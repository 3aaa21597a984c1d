"""Parts of a recorded computation that a GPU runs side by side: one image alone keeps only a part of it busy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

PRIORITY = -1
"""Streams of this priority are used for recording only, so that nothing else is recorded by mistake."""


def side_by_side(device: torch.device, works: Sequence[Callable[[], Any]]) -> list[Any]:
    """Return what each of the works returns. They run in turn, unless a CUDA graph is being recorded.

    What the works read must be kept until they have been called. The last one should be the longest.
    """
    if device.type != "cuda" or not torch.cuda.is_current_stream_capturing():
        return [work() for work in works]
    here = torch.cuda.current_stream(device)
    others = [recording_stream(device) for _ in works[1:]]
    results = []
    for stream, work in zip(others, works, strict=False):
        stream.wait_stream(here)
        with torch.cuda.stream(stream):
            results.append(work())
    results.append(works[-1]())
    for stream in others:
        here.wait_stream(stream)
    return results


def recording_stream(device: torch.device) -> torch.cuda.Stream:
    """Return a stream to record on."""
    return torch.cuda.Stream(device, priority=PRIORITY)  # type: ignore[no-untyped-call]
