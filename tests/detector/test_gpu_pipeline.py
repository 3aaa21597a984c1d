from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.detector.gpu_pipeline import IN_FLIGHT, pipelined
from patchsvdd.scoring.anomaly_map import AnomalyMaps
from support.parts import draw_part

CPU = torch.device("cpu")


def batches(count: int) -> Iterator[Tensor]:
    """Batches of one to three images, all different."""
    generator = torch.Generator().manual_seed(0)
    for index in range(count):
        yield torch.randn((1 + index % 3, 3, 8, 6), generator=generator)


def maps_of(batch: Tensor) -> AnomalyMaps:
    product = batch.square().sum(1)
    return AnomalyMaps({32: 2 * batch[:, 0], 64: batch.amax(1)}, product, product.flatten(1).amax(1))


def same(first: AnomalyMaps, second: AnomalyMaps) -> bool:
    return (
        first.scales.keys() == second.scales.keys()
        and all(torch.equal(first.scales[size], second.scales[size]) for size in first.scales)
        and torch.equal(first.combined, second.combined)
        and torch.equal(first.scores, second.scores)
    )


@pytest.mark.parametrize("count", [0, 1, 7])
def test_a_cpu_maps_in_order(count: int) -> None:
    found = list(pipelined(maps_of, batches(count), CPU))
    assert len(found) == count
    assert all(same(got, maps_of(batch)) for got, batch in zip(found, batches(count), strict=True))


def test_a_cpu_takes_no_batch_before_it_is_asked_to() -> None:
    taken: list[int] = []

    def watched() -> Iterator[Tensor]:
        for index, batch in enumerate(batches(3)):
            taken.append(index)
            yield batch

    found = pipelined(maps_of, watched(), CPU)
    assert taken == []
    for index, _ in enumerate(found):
        assert taken == list(range(index + 1))


def test_an_error_reaches_the_caller() -> None:
    def fail(batch: Tensor) -> AnomalyMaps:
        raise ValueError("no such batch")

    with pytest.raises(ValueError, match="no such batch"):
        next(pipelined(fail, batches(2), CPU))


def test_a_detector_maps_batches_as_it_maps_each(detector: PatchSVDD) -> None:
    pixels = [torch.from_numpy(draw_part(seed)).permute(2, 0, 1)[None].float() for seed in (5, 6)]
    for got, batch in zip(detector.map_batches(pixels), pixels, strict=True):
        assert same(got, detector.anomaly_maps(batch))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="takes a GPU")
@pytest.mark.parametrize("count", [0, 1, IN_FLIGHT, IN_FLIGHT + 1, 20])
def test_a_gpu_gives_the_same_in_host_memory(count: int) -> None:
    device = torch.device("cuda")

    def compute(batch: Tensor) -> AnomalyMaps:
        assert batch.is_cuda
        return maps_of(batch)

    found = list(pipelined(compute, batches(count), device))
    assert len(found) == count
    for got, batch in zip(found, batches(count), strict=True):
        assert not got.combined.is_cuda
        expected = maps_of(batch.to(device))
        assert same(
            got,
            AnomalyMaps(
                {size: one.cpu() for size, one in expected.scales.items()},
                expected.combined.cpu(),
                expected.scores.cpu(),
            ),
        )
