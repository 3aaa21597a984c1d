"""Pipelines batches through a GPU: uploads and downloads overlap with computation."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

from patchsvdd.scoring.anomaly_map import AnomalyMaps

IN_FLIGHT = 2
"""Batches queued on the GPU while the next is prepared."""


def pipelined(
    compute: Callable[[Tensor], AnomalyMaps], batches: Iterable[Tensor], device: torch.device
) -> Iterator[AnomalyMaps]:
    """Yield ``compute`` of each batch (N, 3, H, W), in order; batches and maps are in host memory."""
    if device.type != "cuda":
        yield from map(compute, batches)
        return
    up, down = (torch.cuda.Stream(device) for _ in range(2))  # type: ignore[no-untyped-call]
    in_flight: deque[tuple[torch.cuda.Event, AnomalyMaps, Tensor]] = deque()
    for batch in batches:
        pinned = batch.pin_memory()
        uploaded = _upload(pinned, device, up)
        maps = _download(compute(uploaded), down)
        in_flight.append((down.record_event(), maps, pinned))  # keeps the pinned pixels until they are uploaded
        if len(in_flight) > IN_FLIGHT:
            yield _finished(in_flight.popleft())
    while in_flight:
        yield _finished(in_flight.popleft())


def _finished(flight: tuple[torch.cuda.Event, AnomalyMaps, Tensor]) -> AnomalyMaps:
    event, maps, _ = flight
    event.synchronize()
    return maps


def _upload(pinned: Tensor, device: torch.device, stream: torch.cuda.Stream) -> Tensor:
    computing = torch.cuda.current_stream(device)
    with torch.cuda.stream(stream):
        uploaded = pinned.to(device, non_blocking=True)
    computing.wait_stream(stream)
    uploaded.record_stream(computing)
    return uploaded


def _download(maps: AnomalyMaps, stream: torch.cuda.Stream) -> AnomalyMaps:
    if not maps.combined.is_cuda:  # maps of large images are already on the host
        return maps
    stream.wait_stream(torch.cuda.current_stream(maps.combined.device))

    def fetch(values: Tensor) -> Tensor:
        values.record_stream(stream)
        return torch.empty(values.shape, dtype=values.dtype, pin_memory=True).copy_(values, non_blocking=True)

    with torch.cuda.stream(stream):
        scales = {size: fetch(values) for size, values in maps.scales.items()}
        parts = {name: fetch(values) for name, values in maps.parts.items()}
        return AnomalyMaps(scales, fetch(maps.combined), fetch(maps.scores), parts)
