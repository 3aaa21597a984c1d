"""Inspection on a GPU recorded as a CUDA graph: one launch instead of hundreds."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from patchsvdd.core.streams import recording_stream
from patchsvdd.scoring.anomaly_map import AnomalyMaps

_RECORDING = threading.Lock()
"""Recordings share the streams that nothing else uses."""
Compute = Callable[[Tensor], AnomalyMaps]
Shape = tuple[tuple[int, ...], torch.dtype]
KEPT = 4
"""Shapes of batches whose recordings are kept; each holds the memory of its layers."""
BEFORE = 2
"""Batches of a shape that are computed before it is recorded: compilation and lazy initialisation are not recorded."""
PROOFS = 2
"""Batches for which the recording must give the same maps as the computation before it is used."""
TOLERANCE = 1e-5
"""Largest difference of the maps, relative to the highest value."""


@dataclass
class Recording:
    """A recorded computation: ``replay`` reads ``pixels`` and writes ``maps``."""

    pixels: Tensor
    maps: AnomalyMaps
    replay: Callable[[], None]
    proofs: int = 0

    def run(self, pixels: Tensor) -> AnomalyMaps:
        """Return the maps of a batch of the recorded shape."""
        self.pixels.copy_(pixels, non_blocking=True)
        self.replay()
        return _copied(self.maps)


class RecordedInspection:
    """Computes maps of batches on a GPU, from a recording once one of their shape has proven itself.

    A computation that cannot be recorded, or whose recording gives other maps, stays as it is.
    """

    def __init__(self, compute: Compute, capture: Callable[[Compute, Tensor], Recording] | None = None) -> None:
        """``compute`` must not read anything back from the device. ``capture`` records it for a batch."""
        self._compute = compute
        self._capture = capture or record
        self._seen: Counter[Shape] = Counter()
        self._recordings: OrderedDict[Shape, Recording | None] = OrderedDict()
        """None for a shape that is not recorded."""
        self._lock = threading.Lock()  # a recording has one place for its input

    def __call__(self, pixels: Tensor) -> AnomalyMaps:
        """Return the maps of pixels (N, 3, H, W) on the device."""
        shape = (tuple(pixels.shape), pixels.dtype)
        with self._lock:
            self._seen[shape] += 1
            if self._seen[shape] <= BEFORE:
                return self._compute(pixels)
            if shape not in self._recordings:
                self._recordings[shape] = self._record(pixels)
                if len(self._recordings) > KEPT:
                    self._recordings.popitem(last=False)
            self._recordings.move_to_end(shape)
            recording = self._recordings[shape]
            if recording is None:
                return self._compute(pixels)
            if recording.proofs < PROOFS:
                expected = self._compute(pixels)
                if _differ(recording.run(pixels), expected):
                    self._recordings[shape] = None
                recording.proofs += 1
                return expected
            return recording.run(pixels)

    def _record(self, pixels: Tensor) -> Recording | None:
        try:
            return self._capture(self._compute, pixels)
        except RuntimeError:  # an operation that cannot be recorded, or no memory for a second set of layers
            return None


def record(compute: Compute, pixels: Tensor) -> Recording:
    """Record ``compute`` of a batch as a CUDA graph."""
    still = pixels.clone()
    torch.cuda.synchronize(pixels.device)
    graph = torch.cuda.CUDAGraph()
    # Other threads may go on using the GPU; what they do is not recorded.
    with _RECORDING, torch.cuda.graph(graph, stream=recording_stream(pixels.device), capture_error_mode="thread_local"):
        maps = compute(still)
    return Recording(still, maps, graph.replay)


def _copied(maps: AnomalyMaps) -> AnomalyMaps:
    """A copy of the maps, which the next replay overwrites."""
    return AnomalyMaps(
        {size: values.clone() for size, values in maps.scales.items()},
        maps.combined.clone(),
        maps.scores.clone(),
        {name: values.clone() for name, values in maps.parts.items()},
    )


def _differ(maps: AnomalyMaps, expected: AnomalyMaps) -> bool:
    """Whether any map differs by more than rounding; NaN differs from everything."""
    pairs = [(maps.combined, expected.combined), (maps.scores, expected.scores)]
    pairs += [(values, expected.scales[size]) for size, values in maps.scales.items()]
    pairs += [(values, expected.parts[name]) for name, values in maps.parts.items()]
    return not all(bool((a - b).abs().amax() <= TOLERANCE * b.abs().amax()) for a, b in pairs)
