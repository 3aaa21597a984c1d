"""The Python call of an inspection on a cluster, with this process in the place of Ray's workers."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from patchsvdd.apps.cluster.chunk_inspection import ChunkSummary, OutputOptions, inspect_chunk
from patchsvdd.apps.cluster.inspect import ClusterProgress, inspect_on_cluster
from patchsvdd.apps.cluster.job import Job
from patchsvdd.core.errors import ConfigError
from patchsvdd.detector.detector import PatchSVDD
from support.command_line import draw_parts


@dataclass
class Loading:
    model: str
    engine: str
    precision: str
    search: str
    min_area: int | None


@pytest.fixture
def calls(detector: PatchSVDD, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the call asks of Ray; nothing imports Ray."""
    called: list[Any] = []

    @contextmanager
    def connected(address: str) -> Iterator[None]:
        called.append(address)
        yield

    def inspect_archive(
        job: Job,
        loading: Loading,
        options: OutputOptions,
        workers: int,
        on_chunk: Callable[[ChunkSummary], None],
        memory: object,
    ) -> None:
        called.extend([astuple(loading), options, memory])
        for chunk in job.to_do():
            on_chunk(inspect_chunk(detector, job, chunk, options))

    connection, workers = ModuleType("ray_connection"), ModuleType("ray_inspect")
    vars(connection).update(connected=connected)
    vars(workers).update(
        Loading=Loading,
        identity_of=lambda _: detector.identity,
        inspect_archive=inspect_archive,
        shards_of=lambda _, shards: f"{shards} shards",
        workers_for=lambda _: (2, 2),
    )
    for module in (connection, workers):
        monkeypatch.setitem(sys.modules, f"patchsvdd.apps.cluster.{module.__name__}", module)
    return called


def test_the_call_inspects_and_a_second_one_continues(calls: list[Any], tmp_path: Path) -> None:
    photos = draw_parts(tmp_path / "photos", 3)
    (photos / "broken.png").write_bytes(b"no image")
    progress: list[ClusterProgress] = []
    summary = inspect_on_cluster("model", photos, tmp_path / "out", on_progress=progress.append)
    assert calls == ["auto", ("model", "auto", "float32", "auto", None), OutputOptions("anomalous", False), None]
    assert (summary.images, summary.unreadable, summary.already_done) == (4, 1, 0)
    assert summary.out == str(tmp_path / "out")
    assert [(one.done, one.total, one.workers) for one in progress] == [(0, 4, 2), (2, 4, 2), (4, 4, 2)]
    assert list(summary.to_json()) == [
        *("images", "anomalous", "good", "unreadable", "worst", "already_done", "out"),
    ]
    again = inspect_on_cluster(Path("model"), [str(photos)], str(tmp_path / "out"), worst=1)
    assert again.already_done == 4
    assert again.worst == summary.worst[:1]


def test_every_option_arrives(calls: list[Any], tmp_path: Path) -> None:
    photos = draw_parts(tmp_path / "photos", 1)
    inspect_on_cluster(
        *(Path("models/part"), [photos, photos / "000.png"], tmp_path / "out"),
        address="ray://head:10001",
        overlays="all",
        save_maps=True,
        engine="torch",
        precision="float16",
        search="exact",
        min_area=9,
        shards=3,
    )
    loading = ("models/part", "torch", "float16", "exact", 9)
    assert calls == ["ray://head:10001", loading, OutputOptions("all", True), "3 shards"]
    about = json.loads((tmp_path / "out" / "job.json").read_text())
    assert list(about) == ["model", "min_area", "precision", "pictures", "maps"]


@pytest.mark.parametrize(
    ("images", "options", "words"),
    [
        ([], {}, "no images were given"),
        ("photos", {"overlays": "some"}, "overlays must be one of none, anomalous, all"),
    ],
)
def test_wrong_arguments_are_refused_before_ray_is_imported(
    images: Any, options: dict[str, Any], words: str, calls: list[Any], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=words):
        inspect_on_cluster("model", images, tmp_path / "out", **options)
    assert calls == []
