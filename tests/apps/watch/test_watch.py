from __future__ import annotations

import errno
import json
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from patchsvdd.apps.watch import watch as watch_module
from patchsvdd.apps.watch.command import Command
from patchsvdd.apps.watch.delivery import Channel
from patchsvdd.apps.watch.results_folder import WatchResults
from patchsvdd.apps.watch.watch import Notify, Status, Watch, WatchSettings
from patchsvdd.apps.watch.webhook import Webhook
from patchsvdd.core.errors import OutputError
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.detector.followed_model import FollowedModel
from patchsvdd.images.watched_folder import Arrival, WatchedFolder, current_state, digest_of
from support.parts import draw_part, save_picture
from support.watching import serving

pytestmark = pytest.mark.slow

SETTINGS = WatchSettings(poll=0.02, patience=0.3, once=True, pictures="none")


@pytest.fixture(scope="module")
def model(detector: PatchSVDD, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("watched") / "model"
    detector.save(folder)
    return folder


@pytest.fixture(scope="module")
def loaded(model: Path) -> PatchSVDD:
    return PatchSVDD.load(model, "cpu")


@pytest.fixture
def camera(tmp_path: Path) -> Path:
    for index in range(3):
        save_picture(tmp_path / "camera" / f"{index}.png", draw_part(10 + index, defect=index == 1))
    return tmp_path / "camera"


@pytest.fixture
def watch(model: Path, loaded: PatchSVDD, camera: Path) -> Callable[..., Status]:
    """Watches the camera's folder into ``out`` beside it."""

    def run(settings: WatchSettings = SETTINGS, channels: tuple[Channel, ...] = (), **more: Any) -> Status:
        with WatchResults(camera.parent / "out", camera) as results:
            current = FollowedModel(model, lambda _: loaded)
            return Watch(current, WatchedFolder(camera, settle=0.0), results, settings, channels, **more).run()

    return run


def rows(camera: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (camera.parent / "out" / "results.jsonl").read_text().splitlines()]


def names(camera: Path) -> list[str]:
    return [row["image"] for row in rows(camera)]


def test_every_image_gets_a_row_and_a_picture(
    watch: Callable[..., Status], camera: Path, loaded: PatchSVDD, tmp_path: Path
) -> None:
    told: list[dict[str, Any]] = []
    status = watch(replace(SETTINGS, pictures="all"), on_row=told.append)
    assert rows(camera) == told
    assert [row["number"] for row in told] == [1, 2, 3]
    assert sum(status.counts.values()) == status.inspected == 3
    assert status.waiting == 0
    for row in told:
        expected = loaded.inspect(row["path"])
        assert row["score"] == pytest.approx(expected.score, rel=1e-5)
        assert row["verdict"] == expected.verdict
        assert row["p_value"] == expected.p_value
        assert row["model"] == loaded.identity
        assert row["seconds"] > 0
        assert (tmp_path / "out" / row["overlay"]).stat().st_size > 1000


def test_nothing_is_inspected_twice(watch: Callable[..., Status], camera: Path) -> None:
    watch()
    (camera / "0.png").rename(camera / "renamed.png")
    (camera / "1.png").touch()
    assert watch().inspected == 0
    shutil.copy2(camera / "2.png", camera / "twin.png")  # another part that looks the same
    save_picture(camera / "1.png", draw_part(77))  # the same name, another part
    assert watch().inspected == 2
    assert names(camera) == ["0.png", "1.png", "2.png", "twin.png", "1.png"]  # the oldest first
    assert watch().inspected == 0


def test_pictures_of_anomalous_images_alone(watch: Callable[..., Status], camera: Path) -> None:
    watch(replace(SETTINGS, pictures="anomalous"))
    for row in rows(camera):
        assert (row["overlay"] is not None) == row["is_anomalous"]


def test_a_file_cut_short_is_waited_for(watch: Callable[..., Status], camera: Path) -> None:
    whole = (camera / "0.png").read_bytes()
    (camera / "0.png").write_bytes(whole[: len(whole) // 2])
    begun = time.monotonic()

    def complete() -> bool:
        if time.monotonic() - begun > 0.6 and (camera / "0.png").stat().st_size < len(whole):
            (camera / "0.png").write_bytes(whole)
        return False

    watch(replace(SETTINGS, patience=20), should_stop=complete)
    assert sorted(names(camera)) == ["0.png", "1.png", "2.png"]
    assert not any("error" in row for row in rows(camera))


def test_a_file_that_stays_broken_is_recorded_once_and_left_where_it_is(
    watch: Callable[..., Status], camera: Path
) -> None:
    (camera / "broken.png").write_bytes(b"no image")
    (camera / "notes.txt").write_bytes(b"something else")
    before = {path.name: path.read_bytes() for path in camera.iterdir()}
    assert watch().counts["unreadable"] == 1
    assert watch().inspected == 0
    [row] = [row for row in rows(camera) if "error" in row]
    assert row["image"] == "broken.png"
    assert "is not a PNG" in row["error"]
    save_picture(camera / "broken.png", draw_part(3))  # what was broken may be mended
    assert watch().inspected == 1
    (camera / "broken.png").write_bytes(before["broken.png"])
    assert {path.name: path.read_bytes() for path in camera.iterdir()} == before


def test_a_share_that_fails_for_a_while_costs_no_image(
    watch: Callable[..., Status], camera: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = iter([OSError(errno.EIO, "Input/output error")] * 4)

    def sometimes(arrival: Arrival) -> str | None:
        for failure in failures:
            raise failure
        return digest_of(arrival)

    monkeypatch.setattr(watch_module, "digest_of", sometimes)
    notes: list[str] = []
    watch(replace(SETTINGS, patience=20), on_note=notes.append)
    assert sorted(names(camera)) == ["0.png", "1.png", "2.png"]
    assert not any("error" in row for row in rows(camera))
    assert any("Input/output error" in note for note in notes)


def test_a_file_overwritten_while_it_is_inspected_is_inspected_as_it_is_in_the_end(
    watch: Callable[..., Status], camera: Path, loaded: PatchSVDD, monkeypatch: pytest.MonkeyPatch
) -> None:
    final = draw_part(99, defect=True)

    def overwrite_first(arrival: Arrival) -> str:
        if arrival.name == "0.png" and not (np.asarray(final) == loaded.inspect(arrival.path).image).all():
            save_picture(arrival.path, final)
        return current_state(arrival)

    monkeypatch.setattr(watch_module, "current_state", overwrite_first)
    watch()
    assert sorted(names(camera)) == ["0.png", "1.png", "2.png"]
    score = next(row["score"] for row in rows(camera) if row["image"] == "0.png")
    assert score == pytest.approx(loaded.inspect(camera / "0.png").score, rel=1e-5)


def test_an_image_too_large_for_the_memory_does_not_stop_the_others(
    watch: Callable[..., Status], camera: Path, loaded: PatchSVDD, monkeypatch: pytest.MonkeyPatch
) -> None:
    inspect_many = loaded.inspect_many

    def full(images: list[str], **more: Any) -> Any:
        if any(image.endswith("1.png") for image in images):
            raise RuntimeError("CUDA out of memory")
        return inspect_many(images, **more)

    monkeypatch.setattr(loaded, "inspect_many", full)
    notes: list[str] = []
    watch(on_note=notes.append)
    assert sorted(names(camera)) == ["0.png", "2.png"]
    assert any("1.png does not fit" in note for note in notes)
    monkeypatch.undo()
    assert watch().inspected == 1


def test_a_stop_ends_after_the_image_in_hand(watch: Callable[..., Status], camera: Path) -> None:
    told: list[Any] = []
    status = watch(on_row=told.append, should_stop=lambda: len(told) >= 1)
    assert status.inspected == len(rows(camera)) == 1
    assert watch().inspected == 2


def test_one_watch_per_folder_of_results(camera: Path, tmp_path: Path) -> None:
    with WatchResults(tmp_path / "out", camera), pytest.raises(OutputError, match="another watch"):
        WatchResults(tmp_path / "out", camera)
    WatchResults(tmp_path / "out", camera).__exit__()


def test_results_of_another_command_are_not_touched(camera: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "results.jsonl").write_text("{}\n")
    with pytest.raises(OutputError, match="not written by `watch`"):
        WatchResults(tmp_path / "out", camera)
    assert (tmp_path / "out" / "results.jsonl").read_text() == "{}\n"


# Telling


@pytest.mark.parametrize("notify", ["anomalous", "all"])
def test_the_webhook_is_told_what_it_wants(watch: Callable[..., Status], camera: Path, notify: Notify) -> None:
    with serving(500) as server:
        watch(replace(SETTINGS, patience=20, notify=notify), (Webhook(server.url),))
    expected = [row["number"] for row in rows(camera) if notify == "all" or row["is_anomalous"]]
    assert sorted(one["number"] for one in server.accepted) == expected
    for one in server.accepted:
        assert {"image", "score", "threshold", "p_value", "verdict", "regions", "model", "inspected"} <= one.keys()


def test_a_command_is_run_for_anomalous_images_alone(
    watch: Callable[..., Status], camera: Path, tmp_path: Path
) -> None:
    line = f"sh -c 'echo $PATCHSVDD_IMAGE >> {tmp_path}/told'"
    watch(replace(SETTINGS, patience=20, notify="all"), (Command(line),))
    assert (tmp_path / "told").read_text().split() == [row["image"] for row in rows(camera) if row["is_anomalous"]]


def test_inspection_goes_on_while_nobody_answers(
    watch: Callable[..., Status], camera: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_module, "DELIVERY_GRACE", 0.1)
    with serving("hang", "hang") as server:
        status = watch(replace(SETTINGS, notify="all"), (Webhook(server.url, timeout=5),))
        assert status.inspected == 3
        assert status.undelivered == {"webhook": 3}
        assert len(server.requests) == 1
    notes: list[str] = []
    watch(on_note=notes.append)
    assert "3 messages of earlier runs wait for a webhook" in notes[0]


# Another model


def test_rows_name_the_model_that_spoke(
    detector: PatchSVDD, critical: PatchSVDD, camera: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("patchsvdd.detector.followed_model.CHECK_SECONDS", 0.0)
    monkeypatch.setattr(watch_module, "AT_ONCE", {"cpu": 1})
    folder = tmp_path / "model"
    detector.save(folder)
    told: list[dict[str, Any]] = []

    def replace_model(row: dict[str, Any]) -> None:
        told.append(row)
        if len(told) == 1:
            critical.save(folder)

    with WatchResults(tmp_path / "out", camera) as results:
        current = FollowedModel(folder, lambda place: PatchSVDD.load(place, "cpu"))
        Watch(current, WatchedFolder(camera, settle=0.0), results, SETTINGS, on_row=replace_model).run()
    assert [row["model"] for row in told] == [detector.identity, critical.identity, critical.identity]
