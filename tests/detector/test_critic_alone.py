"""Detectors whose memory has no weight: nothing is searched until somebody asks for the memory's maps."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from patchsvdd import PatchSVDD
from patchsvdd.encoder.embedder import Embedder
from patchsvdd.scoring.anomaly_map import AnomalyMaps


@pytest.fixture(scope="module")
def alone(critical: PatchSVDD) -> PatchSVDD:
    fusion = critical.map_builder.fusion
    assert fusion is not None
    builder = dataclasses.replace(critical.map_builder, fusion=fusion.with_share(0.0))
    parts = dataclasses.replace(critical.learned, map_builder=builder)
    return PatchSVDD(critical.config, parts, critical.device)


@contextmanager
def embeddings(patch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Count how often images are embedded."""
    calls: list[int] = []
    embed = Embedder.__call__

    def counted(self: Embedder, pixels: Tensor) -> list[Tensor]:
        calls.append(len(pixels))
        return embed(self, pixels)

    with patch.context() as patched:
        patched.setattr(Embedder, "__call__", counted)
        yield calls


def test_nothing_is_embedded_for_a_verdict(
    alone: PatchSVDD, good_pictures: list[NDArray[np.uint8]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with embeddings(monkeypatch) as calls:
        found = list(alone.inspect_many(good_pictures[:3]))
        assert len(found) == 3
        assert calls == []
        sizes = list(found[0].scale_maps)
        assert found[0].scale_maps[sizes[0]].shape == found[0].anomaly_map.shape
        assert found[0].part_maps["memory"].shape == found[0].anomaly_map.shape
        assert calls == [1], "once for all maps of an image"


def test_maps_are_those_of_a_search(alone: PatchSVDD, good_pictures: list[NDArray[np.uint8]]) -> None:
    pixels = torch.from_numpy(np.stack(good_pictures[:2]).transpose(0, 3, 1, 2).copy())
    lazy = alone.anomaly_maps(pixels)
    grids = alone.embedder.grids((int(pixels.shape[2]), int(pixels.shape[3])))
    with torch.inference_mode():
        scales = alone.map_builder.distances(alone.embedder(pixels), grids)
        searched: AnomalyMaps = alone.map_builder.combine(scales, alone.marked(pixels))
    assert torch.equal(lazy.combined, searched.combined)
    assert torch.equal(lazy.scores, searched.scores)
    assert list(lazy.scales) == list(searched.scales)
    for size, values in searched.scales.items():
        assert torch.equal(lazy.scales[size], values)
    for name, values in searched.parts.items():
        assert torch.equal(lazy.parts[name], values)


def test_any_weight_needs_the_memory(critical: PatchSVDD, alone: PatchSVDD) -> None:
    assert alone.map_builder.ignores_memory
    assert not critical.map_builder.ignores_memory
