from __future__ import annotations

import os
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from support.command_line import draw_parts, files, finish, images, part, rows, run, start
from support.waiting import wait_until

pytestmark = pytest.mark.slow

FILES = 60
BEFORE_THE_COMMIT = """
import os, signal
from patchsvdd.apps.watch.ledger import Ledger
add = Ledger.add
def add_or_die(self, arrival, digest, row, channels=()):
    if sum(self.counts().values()) >= {count}:
        os.kill(os.getpid(), signal.SIGKILL)
    return add(self, arrival, digest, row, channels)
Ledger.add = add_or_die
"""
AFTER_THE_COMMIT = """
import os, signal
from patchsvdd.apps.watch.results_export import Export
add = Export.add
def add_or_die(self, row):
    if row["number"] >= {count}:
        self._file.write(self._line_of(row)[:20])
        os.kill(os.getpid(), signal.SIGKILL)
    add(self, row)
Export.add = add_or_die
"""


@pytest.fixture(scope="module")
def model(bolt_model: Path) -> Path:
    return bolt_model


@pytest.mark.slow
def test_killed_again_and_again_each_image_is_in_the_results_once(model: Path, tmp_path: Path) -> None:
    camera, out = tmp_path / "camera", tmp_path / "out"
    command = ("watch", model, camera, "--out", out, "--settle", 0.2, "--poll", 0.1, "--device", "cpu")
    draw_parts(camera, FILES // 3, first=100)
    for before in (BEFORE_THE_COMMIT.format(count=10), AFTER_THE_COMMIT.format(count=25)):
        process = start(*command, before=before)
        draw_parts(camera / f"burst{len(before)}", FILES // 3, first=200)
        assert finish(process).code == -signal.SIGKILL
    assert len(rows_so_far(out)) == 25

    process = start(*command)
    wait_until(lambda: len(rows_so_far(out)) > 30, 180)
    (camera / "000.png").rename(camera / "renamed.png")
    process.kill()
    process.communicate()

    told = run(*command, "--once", "--json").json()
    assert told["images"] == FILES
    assert told["waiting"] == 0
    assert [row["number"] for row in rows(out)] == list(range(1, FILES + 1))
    assert set(Counter(images(out)).values()) == {1}
    assert len(set(images(out))) == FILES
    assert len((out / "results.csv").read_text().splitlines()) == FILES + 1
    assert all((out / row["overlay"]).exists() for row in rows(out))
    assert not list(out.rglob("*.tmp"))


def rows_so_far(out: Path) -> list[bytes]:
    """Lines of results.jsonl, the last perhaps a half one."""
    path = out / "results.jsonl"
    return path.read_bytes().splitlines() if path.exists() else []


@pytest.mark.slow
def test_a_polite_stop_ends_well(model: Path, tmp_path: Path) -> None:
    camera, out = draw_parts(tmp_path / "camera", 2, first=50), tmp_path / "out"
    before = files(camera)
    process = start("watch", model, camera, "--out", out, "--settle", 0.1, "--poll", 0.1, "--heartbeat", 0.1)
    wait_until(lambda: len(rows_so_far(out)) == 2, 180)
    time.sleep(0.3)
    os.kill(process.pid, signal.SIGTERM)
    ended = finish(process)
    assert ended.code == 0, ended.stderr
    assert "2 images: " in ended.stdout
    assert "2 images: " in ended.stderr  # the heartbeat
    assert files(camera) == before


def test_anomalies_are_said_as_they_come(model: Path, tmp_path: Path) -> None:
    camera = draw_parts(tmp_path / "camera", 1, first=50, defect=True)
    part(51)[0].save(camera / "[bold].bmp")
    (camera / "broken.png").write_bytes(b"")
    ended = run("watch", model, camera, "--out", tmp_path / "out", "--once", "--settle", 0, "--patience", 0.2)
    assert ended.code == 0
    assert "anomalous: 000.png, score" in ended.stderr
    assert "unreadable: broken.png: is an empty file" in ended.stderr
    assert images(tmp_path / "out") == ["000.png", "[bold].bmp", "broken.png"]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--settle", "-1"),
        ("--patience", "nan"),
        ("--notify", "some"),
        ("--pictures", "few"),
        ("--webhook", "nowhere"),
        ("--mqtt", "mqtt://host"),
        ("--on-anomaly", "no-such-program-anywhere"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_written(
    model: Path, tmp_path: Path, option: str, value: str
) -> None:
    out = tmp_path / "out"
    assert option in run("watch", model, tmp_path, "--out", out, option, value).error()
    assert not out.exists()


def test_a_missing_folder_or_model_is_named(model: Path, tmp_path: Path) -> None:
    assert "there is no folder" in run("watch", model, tmp_path / "camera", "--out", tmp_path / "out").error()
    assert "no model folder" in run("watch", tmp_path / "none", tmp_path, "--out", tmp_path / "out").error()
    assert not (tmp_path / "out").exists()
