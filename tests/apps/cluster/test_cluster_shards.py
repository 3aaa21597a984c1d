"""Shards as actors of a cluster: what they hold, what they answer, and what happens when one is lost."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from patchsvdd.apps.cluster.shards import ShardedScale, select_coreset_sharded
from patchsvdd.core.errors import ConfigError, ModelError
from patchsvdd.core.memory_size import parse_memory_size
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.detector.model_folder import read_index
from patchsvdd.memory.bank import Memory
from support.parts import draw_part

ray = pytest.importorskip("ray")
cluster = pytest.importorskip("patchsvdd.apps.cluster.ray_shards")


pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("local_cluster")]


@pytest.fixture(scope="module")
def sharded(stored: Path, local_cluster: None) -> Iterator[PatchSVDD]:
    detector = cluster.sharded_detector(stored, 4, device="cpu")
    assert isinstance(detector, PatchSVDD)
    yield detector
    for scale in detector.memory.scales.values():
        for shard in scale.shards:  # type: ignore[attr-defined]
            ray.kill(shard.holder)


@pytest.fixture(scope="module")
def plain(stored: Path) -> PatchSVDD:
    return PatchSVDD.load(stored, "cpu", search="exact")


def assert_same(one: PatchSVDD, other: PatchSVDD) -> None:
    for picture in (draw_part(30), draw_part(31, defect=True)):
        here, there = one.inspect(picture), other.inspect(picture)
        assert here.score == there.score
        assert here.is_anomalous == there.is_anomalous
        assert (here.anomaly_map == there.anomaly_map).all()


def test_verdicts_and_maps_are_those_of_the_plain_detector(plain: PatchSVDD, sharded: PatchSVDD) -> None:
    assert sharded.identity == plain.identity
    assert_same(plain, sharded)
    picture = draw_part(31, defect=True)
    assert plain.inspect(picture).explain().to_json() == sharded.inspect(picture).explain().to_json()


def test_each_actor_holds_its_rows_and_this_process_none(plain: PatchSVDD, sharded: PatchSVDD) -> None:
    for size, scale in sharded.memory.scales.items():
        assert isinstance(scale, ShardedScale)
        assert len({shard.holder for shard in scale.shards}) == 4  # type: ignore[attr-defined]
        whole = plain.memory.scales[size]
        edges = [shard.span for shard in scale.shards]
        assert (edges[0][0], edges[-1][1]) == (0, len(whole.embeddings))
        found = [shard.begin("choose", 10**6)() for shard in scale.shards]
        assert torch.equal(torch.cat([one.embeddings for _, one in found]), whole.embeddings)
        with pytest.raises(ConfigError, match="holds all of its memory"):
            _ = scale.embeddings


def test_another_process_asks_the_same_shards(stored: Path, plain: PatchSVDD, sharded: PatchSVDD) -> None:
    def score(memory: Memory, folder: Path, picture: NDArray[np.uint8]) -> float:
        from patchsvdd.apps.cluster.ray_shards import sharded_detector

        return float(sharded_detector(folder, memory, device="cpu").inspect(picture).score)

    picture = draw_part(30)
    assert ray.get(ray.remote(score).remote(sharded.memory, stored, picture)) == plain.inspect(picture).score


def test_the_coreset_is_that_of_shards_in_one_process(stored: Path, sharded: PatchSVDD) -> None:
    from support.shards import shard_the

    size = parse_memory_size("20%")
    one, other = select_coreset_sharded(sharded.memory, size), select_coreset_sharded(shard_the(stored, 4).memory, size)
    for patch_size, scale in one.scales.items():
        assert torch.equal(scale.embeddings, other.scales[patch_size].embeddings)
        assert torch.equal(scale.origins, other.scales[patch_size].origins)


def test_a_lost_actor_reads_its_rows_again(plain: PatchSVDD, sharded: PatchSVDD) -> None:
    shard = next(iter(sharded.memory.scales.values())).shards[1]  # type: ignore[attr-defined]
    _, process = ray.get(shard.holder.ready.remote())
    os.kill(process, signal.SIGKILL)
    assert_same(plain, sharded)
    assert ray.get(shard.holder.ready.remote())[1] != process


def test_what_cannot_be_is_said(stored: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="`shards` must be at least 1; got 0"):
        cluster.sharded_detector(stored, 0)
    with pytest.raises(ModelError, match="there is no model folder"):
        cluster.sharded_detector(tmp_path / "none", 2)
    about = read_index(stored)
    shutil.copytree(stored, tmp_path / "part")
    memory = cluster.memory_in_shards(tmp_path / "part", about, 2)
    shutil.rmtree(tmp_path / "part")
    shard = next(iter(memory.scales.values())).shards[0]
    os.kill(ray.get(shard.holder.ready.remote())[1], signal.SIGKILL)
    with pytest.raises(ModelError, match="every machine needs the whole model folder"):
        shard.begin("origin", 0)()
    with pytest.raises(ConfigError, match="the cluster has 0"):
        cluster.memory_in_shards(stored, about, 2, gpus_per_shard=0.5)
