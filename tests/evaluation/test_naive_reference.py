from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from patchsvdd.core.scales import Scale
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.evaluation.naive_reference import inspect_patch_by_patch
from patchsvdd.memory.bank import Memory
from patchsvdd.memory.graph_search import has_faiss
from support.parts import NO_ESTIMATE, draw_part


def pixels_of(seed: int, size: tuple[int, int] = (64, 64)) -> Tensor:
    return torch.from_numpy(draw_part(seed, size, defect=True)).permute(2, 0, 1)[None].float()


def assert_same_map(detector: PatchSVDD, pixels: Tensor, at_once: int, share: float = 1e-3) -> None:
    """The plain procedure's map equals the detector's, up to a share of its largest value."""
    expected = detector.anomaly_maps(pixels).combined[0]
    got, seconds = inspect_patch_by_patch(detector, pixels, at_once)
    assert got.shape == expected.shape
    assert expected.amax() > 1.1 * expected.amin(), "there is something to see"
    torch.testing.assert_close(got, expected, rtol=0, atol=share * float(expected.amax()))
    assert list(seconds) == ["encode", "search", "map"]
    assert min(seconds.values()) > 0


@pytest.mark.parametrize("at_once", [1, 2048])
def test_equals_the_detectors_map(detector: PatchSVDD, at_once: int) -> None:
    assert_same_map(detector, pixels_of(7), at_once)


def test_every_encoder_and_an_oblong_image() -> None:
    size = (72, 88)
    pictures = np.stack([draw_part(seed, size) for seed in range(2)])
    for kind, scales in (
        ("raw", (Scale(32, 8),)),
        ("flat", (Scale(64, 8),)),
        ("random", (Scale(32, 8), Scale(64, 16))),
    ):
        settings: dict[str, Any] = {"image_size": size, "encoder": kind, "scales": scales, "steps": 0}
        detector = PatchSVDD.fit(pictures, preset="encoder", device="cpu", **settings, **NO_ESTIMATE)
        assert_same_map(detector, pixels_of(7, size), at_once=7)  # the last batch is smaller


@pytest.mark.skipif(not has_faiss(), reason="takes the package faiss-cpu")
def test_walks_a_graph_query_by_query(detector: PatchSVDD) -> None:
    scales = {size: scale.with_graph() for size, scale in detector.memory.scales.items()}
    quick = PatchSVDD(detector.config, detector.learned, torch.device("cpu"))
    quick.memory = Memory(detector.memory.image_names, scales)
    assert_same_map(quick, pixels_of(7), 2048, share=0.1)
