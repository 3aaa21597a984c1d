from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

import pytest

from patchsvdd.core.errors import DatasetError
from patchsvdd.images.watched_folder import FileState, Look, WatchedFolder, current_state, digest_of


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def folder(tmp_path: Path, clock: Clock) -> WatchedFolder:
    (tmp_path / "camera").mkdir()
    return WatchedFolder(tmp_path / "camera", settle=1.0, leave_out=tmp_path / "camera" / "out", clock=clock)


def look(folder: WatchedFolder) -> Look:
    return folder.look(lambda *_: False)


def ready(folder: WatchedFolder) -> list[str]:
    return [arrival.name for arrival in look(folder).ready]


def state_of(path: Path) -> FileState:
    return FileState.of(path.stat())


def test_a_file_is_whole_when_it_has_not_changed_for_the_settling_time(folder: WatchedFolder, clock: Clock) -> None:
    file = folder.root / "a.png"
    file.write_bytes(b"1")
    for _ in range(3):  # a writer that takes its time
        assert ready(folder) == []
        clock.now += 0.9
        file.write_bytes(file.read_bytes() + b"2")
    assert ready(folder) == []
    clock.now += 1.0
    assert ready(folder) == ["a.png"]


def test_old_files_settle_too_for_the_clock_of_a_share_says_nothing(folder: WatchedFolder, clock: Clock) -> None:
    (folder.root / "a.png").write_bytes(b"1")
    os.utime(folder.root / "a.png", (5e9, 5e9))
    assert (ready(folder), look(folder).settling) == ([], 1)
    clock.now += 1.0
    assert (ready(folder), look(folder).settling) == (["a.png"], 0)


def test_only_names_of_images_are_taken(folder: WatchedFolder, clock: Clock) -> None:
    names = ["a.png", "B.JPG", "c.tiff", "deep/er/d.webp"]
    others = ["a.png.part", "notes.txt", ".hidden.png", ".rsync/e.png", "out/overlays/f.png", "g", "h.tmp"]
    for name in (*names, *others, "other/results.jsonl", "other/overlays/i.jpg"):
        (folder.root / name).parent.mkdir(parents=True, exist_ok=True)
        (folder.root / name).write_bytes(b"1")
    os.mkfifo(folder.root / "pipe.png")
    (folder.root / "link.png").symlink_to(folder.root / "nowhere.png")
    look(folder)
    clock.now += 1.0
    assert sorted(ready(folder)) == sorted(names)


def test_a_name_taken_on_at_the_end_is_met_then(folder: WatchedFolder, clock: Clock) -> None:
    (folder.root / "a.png.tmp").write_bytes(b"1")
    look(folder)
    clock.now += 5.0
    (folder.root / "a.png.tmp").rename(folder.root / "a.png")
    assert ready(folder) == []
    clock.now += 1.0
    assert ready(folder) == ["a.png"]


def test_the_oldest_come_first(folder: WatchedFolder, clock: Clock) -> None:
    for name, time in (("c", 3), ("a", 2), ("b", 2), ("d", 1)):
        (folder.root / f"{name}.png").write_bytes(b"1")
        os.utime(folder.root / f"{name}.png", (time, time))
    look(folder)
    clock.now += 1.0
    assert ready(folder) == ["d.png", "a.png", "b.png", "c.png"]


def test_what_is_done_comes_back_only_when_it_changes(folder: WatchedFolder, clock: Clock) -> None:
    file = folder.root / "a.png"
    file.write_bytes(b"1")
    look(folder)
    clock.now += 1.0
    [arrival] = look(folder).ready
    folder.done(arrival)
    assert ready(folder) == []
    file.write_bytes(b"22")
    look(folder)
    clock.now += 1.0
    assert ready(folder) == ["a.png"]


def test_what_the_ledger_knows_is_not_offered(folder: WatchedFolder, clock: Clock) -> None:
    for name in ("a.png", "b.png"):
        (folder.root / name).write_bytes(b"1")
    for _ in range(2):
        found = folder.look(lambda name, state: name == "a.png" and state == state_of(folder.root / name))
        clock.now += 1.0
    assert [one.name for one in found.ready] == ["b.png"]


def test_a_file_put_off_is_tried_again_after_longer_and_longer_pauses(folder: WatchedFolder, clock: Clock) -> None:
    (folder.root / "a.png").write_bytes(b"1")
    look(folder)
    clock.now += 1.0
    tried = []
    for _ in range(400):
        for arrival in look(folder).ready:
            tried.append(clock.now)
            failing = folder.later(arrival)
            assert failing == clock.now - tried[0]
        clock.now += 0.5
    pauses = [after - before for before, after in pairwise(tried)]
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0][: len(pauses)]
    assert len(pauses) >= 7


def test_a_folder_that_vanishes_is_a_problem_and_no_end(folder: WatchedFolder, clock: Clock) -> None:
    (folder.root / "a.png").write_bytes(b"1")
    folder.root.rename(folder.root.with_name("away"))
    found = look(folder)
    assert found.ready == []
    assert "cannot be listed" in found.problems[0]
    folder.root.with_name("away").rename(folder.root)
    look(folder)
    clock.now += 1.0
    assert ready(folder) == ["a.png"]


def test_a_folder_that_was_never_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="mounted"):
        WatchedFolder(tmp_path / "camera")


def test_a_digest_is_of_the_file_that_was_seen(folder: WatchedFolder, clock: Clock) -> None:
    for name in ("same", "changed", "gone"):
        (folder.root / f"{name}.png").write_bytes(b"1")
    look(folder)
    clock.now += 1.0
    arrivals = {arrival.path.stem: arrival for arrival in look(folder).ready}
    (folder.root / "changed.png").write_bytes(b"22")
    (folder.root / "gone.png").unlink()
    assert {name: current_state(arrival) for name, arrival in arrivals.items()} == {name: name for name in arrivals}
    assert [name for name, arrival in arrivals.items() if digest_of(arrival) is not None] == ["same"]
