"""A detector whose memory is split into shards within this process."""

from __future__ import annotations

from pathlib import Path

import torch

from patchsvdd.apps.cluster.shards import plan, read_shards, sharded_memory
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.detector.model_folder import read_model
from patchsvdd.memory.segments import is_memory

CPU = torch.device("cpu")


def shard_the(folder: Path, shards: int) -> PatchSVDD:
    """Load the detector of a folder with its memory split into shards within this process."""
    stored = read_model(folder, without=is_memory)
    assert not any(is_memory(part) for part in stored.parts)
    made = [read_shards(folder, stored.about, spans, CPU) for spans in plan(folder, stored.about, shards)]
    return PatchSVDD.from_stored(stored, folder, "cpu", memory=sharded_memory(folder, stored.about, made))
