"""When inspections on a GPU are replayed from a recording; graphs themselves are tested on GPUs."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from patchsvdd.detector.recorded_inspection import BEFORE, KEPT, PROOFS, Compute, RecordedInspection, Recording, record
from patchsvdd.scoring.anomaly_map import AnomalyMaps


@dataclass
class Machine:
    """Doubles pixels, and counts how."""

    computed: int = 0
    replayed: int = 0
    recorded: list[tuple[int, ...]] = field(default_factory=list)
    error: float = 0.0
    """What a replay adds to the map."""
    refuses: bool = False

    def compute(self, pixels: Tensor) -> AnomalyMaps:
        self.computed += 1
        combined = 2 * pixels.float().mean(1)
        return AnomalyMaps({32: combined + 1}, combined, combined.flatten(1).amax(1), {"critic": combined + 2})

    def capture(self, compute: Compute, pixels: Tensor) -> Recording:
        """A recording that writes to the same tensors on every replay, as a graph does."""
        if self.refuses:
            raise RuntimeError("operation not permitted when stream is capturing")
        self.recorded.append(tuple(pixels.shape))
        still = pixels.clone()
        maps = compute(still)

        def replay() -> None:
            self.replayed += 1
            found = self.compute(still)
            self.computed -= 1
            maps.combined.copy_(found.combined + self.error)
            maps.scores.copy_(found.scores)
            maps.scales[32].copy_(found.scales[32])
            maps.parts["critic"].copy_(found.parts["critic"])

        return Recording(still, maps, replay)


def batch(seed: int, count: int = 2) -> Tensor:
    return torch.rand((count, 3, 4, 5), generator=torch.Generator().manual_seed(seed))


def test_a_shape_is_recorded_proven_and_then_replayed() -> None:
    machine = Machine()
    inspect = RecordedInspection(machine.compute, machine.capture)
    results = [inspect(batch(seed)) for seed in range(8)]
    assert machine.recorded == [(2, 3, 4, 5)]
    assert machine.computed == BEFORE + 1 + PROOFS  # one of them to record
    assert machine.replayed == 8 - BEFORE
    for seed, maps in enumerate(results):  # a later replay leaves earlier results as they are
        expected = Machine().compute(batch(seed))
        assert torch.equal(maps.combined, expected.combined)
        assert torch.equal(maps.scores, expected.scores)
        assert torch.equal(maps.scales[32], expected.scales[32])
        assert torch.equal(maps.parts["critic"], expected.parts["critic"])


@pytest.mark.parametrize("error", [0.01, float("nan")])
def test_a_recording_with_other_maps_is_never_used(error: float) -> None:
    machine = Machine(error=error)
    inspect = RecordedInspection(machine.compute, machine.capture)
    for seed in range(8):
        assert torch.equal(inspect(batch(seed)).combined, Machine().compute(batch(seed)).combined)
    assert machine.replayed == 1


def test_what_cannot_be_recorded_is_computed() -> None:
    machine = Machine(refuses=True)
    inspect = RecordedInspection(machine.compute, machine.capture)
    for seed in range(6):
        assert torch.equal(inspect(batch(seed)).combined, Machine().compute(batch(seed)).combined)
    assert (machine.computed, machine.replayed) == (6, 0)


def test_each_shape_has_its_recording_and_the_latest_are_kept() -> None:
    machine = Machine()
    inspect = RecordedInspection(machine.compute, machine.capture)
    for count in range(1, KEPT + 2):
        for seed in range(BEFORE + 1):
            inspect(batch(seed, count))
    assert len(machine.recorded) == KEPT + 1
    inspect(batch(0, KEPT + 1))
    assert len(machine.recorded) == KEPT + 1
    inspect(batch(0, 1))  # dropped, so recorded again
    assert machine.recorded[-1] == (1, 3, 4, 5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_graph_gives_the_maps_of_its_batch() -> None:
    machine = Machine()
    pixels = batch(0).cuda()
    with torch.inference_mode():
        recording = record(machine.compute, pixels)
        for seed in range(3):
            maps = recording.run(batch(seed).cuda())
            assert torch.equal(maps.combined.cpu(), Machine().compute(batch(seed)).combined)
