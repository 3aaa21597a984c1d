"""One row format: ``inspect``, ``watch``, the cluster and the service report the same of an image."""

from __future__ import annotations

from pathlib import Path

import pytest

from patchsvdd.apps.cluster.chunk_inspection import OutputOptions, inspect_chunk
from patchsvdd.apps.cluster.image_listing import find_archive
from patchsvdd.apps.cluster.job import Job
from patchsvdd.apps.cluster.storage import StoragePath
from patchsvdd.apps.watch.results_folder import WatchResults
from patchsvdd.apps.watch.watch import Watch, WatchSettings
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.detector.followed_model import FollowedModel
from patchsvdd.images.watched_folder import WatchedFolder
from patchsvdd.report.inspection_run import inspect_into
from patchsvdd.report.model_card import ModelCard
from patchsvdd.report.rows import CSV_COLUMNS, RESULT_KEYS
from support.command_line import rows
from support.parts import draw_part, save_picture
from support.serving import running, settings

SAME = (*RESULT_KEYS, "is_anomalous", "image_size")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for name, defect in (("good.png", False), ("bad.png", True)):
        save_picture(tmp_path / "photos" / name, draw_part(11, defect=defect))
    return tmp_path / "photos"


def header(folder: Path) -> list[str]:
    return (folder / "results.csv").read_text().splitlines()[0].split(",")


def test_the_four_writers_agree(stored: Path, photos: Path, tmp_path: Path) -> None:
    detector = PatchSVDD.load(stored, "cpu")
    inspect_into(tmp_path / "inspect", detector, [photos], model_name="part", card=ModelCard())
    inspected = {row["image"]: row for row in rows(tmp_path / "inspect")}

    with WatchResults(tmp_path / "watch", photos) as results:
        folder = WatchedFolder(photos, settle=0.0)
        Watch(FollowedModel(stored, lambda _: detector), folder, results, WatchSettings(poll=0.02, once=True)).run()
    watched = {row["image"]: row for row in rows(tmp_path / "watch")}

    job = Job(StoragePath.of(tmp_path / "cluster"))
    job.open({})
    job.extend(find_archive([str(photos)]))
    for chunk in job.to_do():
        inspect_chunk(detector, job, chunk, OutputOptions("all", maps=True))
    archived = {row["image"]: row for row in job.results()}

    with running(settings(tmp_path / "data", stored)) as server:
        answers = {path.name: server.inspect("part", path.read_bytes()).json() for path in photos.iterdir()}

    for name, row in inspected.items():
        for other in (watched, archived, answers):
            assert {key: other[name][key] for key in SAME} == {key: row[key] for key in SAME}
        assert row.keys() == watched[name].keys() - {"number"} == archived[name].keys() - {"error", "map"} | {"file"}
        for key in ("path", "model"):
            assert row[key] == watched[name][key] == archived[name][key]
        assert row["model"] == answers[name]["identity"] == detector.identity
    assert header(tmp_path / "inspect") == list(CSV_COLUMNS)
    assert header(tmp_path / "watch") == ["number", *CSV_COLUMNS]
