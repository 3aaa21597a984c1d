from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from patchsvdd.apps.watch.ledger import LEDGER, Ledger
from patchsvdd.apps.watch.outbox import waiting_by_channel
from patchsvdd.apps.watch.results_export import open_exports
from patchsvdd.core.errors import OutputError
from patchsvdd.images.watched_folder import WatchedFolder
from support.watching import arrival, ledger_of, row


@pytest.fixture
def camera(tmp_path: Path) -> Path:
    (tmp_path / "camera").mkdir()
    return tmp_path / "camera"


@pytest.fixture
def ledger(tmp_path: Path, camera: Path) -> Iterator[Ledger]:
    ledger = Ledger(tmp_path / LEDGER, camera)
    yield ledger
    ledger.close()


def add(ledger: Ledger, camera: Path, name: str, data: bytes) -> None:
    ledger.add(*arrival(camera, name, data), row(name))


def is_known(ledger: Ledger, camera: Path, name: str) -> bool:
    """Whether the file needs no inspection."""
    arrived, digest = arrival(camera, name)
    known = ledger.is_done(name, arrived.state) or ledger.recognise(arrived, digest, WatchedFolder(camera).holds)
    assert not known or ledger.is_done(name, arrived.state)
    return known


# Which image is which


def test_an_image_is_known_when_the_ledger_is_opened_again(ledger: Ledger, camera: Path) -> None:
    add(ledger, camera, "a.png", b"A")
    arrived, _ = arrival(camera, "a.png")
    again = Ledger(ledger.path, camera)
    assert again.is_done("a.png", arrived.state)
    assert not again.is_done("b.png", arrived.state)
    assert again.identity == ledger.identity
    again.close()


def test_a_renamed_file_is_the_same_image(ledger: Ledger, camera: Path) -> None:
    add(ledger, camera, "a.png", b"A")
    (camera / "sub").mkdir()
    (camera / "a.png").rename(camera / "sub" / "b.png")
    assert is_known(ledger, camera, "sub/b.png")
    (camera / "sub").rename(camera / "other")
    assert is_known(ledger, camera, "other/b.png")
    assert sum(ledger.counts().values()) == 1


def test_files_that_trade_names_are_the_same_images(ledger: Ledger, camera: Path) -> None:
    add(ledger, camera, "a.png", b"A")
    add(ledger, camera, "b.png", b"B")
    (camera / "a.png").rename(camera / "c")
    (camera / "b.png").rename(camera / "a.png")
    (camera / "c").rename(camera / "b.png")
    assert is_known(ledger, camera, "a.png")
    assert is_known(ledger, camera, "b.png")


def test_files_that_move_up_one_by_one_are_the_same_images(ledger: Ledger, camera: Path) -> None:
    add(ledger, camera, "0.png", b"A")
    for turn, data in enumerate((b"B", b"C"), start=1):
        for index in range(turn, 0, -1):
            (camera / f"{index - 1}.png").rename(camera / f"{index}.png")
        arrival(camera, "0.png", data)
        known = [is_known(ledger, camera, f"{index}.png") for index in range(turn + 1)]
        assert known == [False] + [True] * turn
        add(ledger, camera, "0.png", data)


@pytest.mark.parametrize("copy", [shutil.copy, shutil.copy2, os.link])
def test_another_file_with_the_same_bytes_is_another_image(ledger: Ledger, camera: Path, copy: object) -> None:
    add(ledger, camera, "a.png", b"A")
    assert callable(copy)
    copy(camera / "a.png", camera / "b.png")
    assert not is_known(ledger, camera, "b.png")


def test_a_copy_of_a_deleted_file_is_another_image(ledger: Ledger, camera: Path) -> None:
    add(ledger, camera, "a.png", b"A")
    shutil.copy(camera / "a.png", camera / "b.png")
    (camera / "a.png").unlink()
    assert not is_known(ledger, camera, "b.png")


def test_the_same_name_with_other_bytes_is_another_image(ledger: Ledger, camera: Path) -> None:
    add(ledger, camera, "a.png", b"A")
    before = (camera / "a.png").stat()
    arrival(camera, "a.png", b"B")
    os.utime(camera / "a.png", ns=(before.st_atime_ns, before.st_mtime_ns))  # even if its time says nothing
    assert not is_known(ledger, camera, "a.png")


def test_a_touched_file_is_the_same_image(ledger: Ledger, camera: Path) -> None:
    add(ledger, camera, "a.png", b"A")
    os.utime(camera / "a.png", (5e8, 5e8))
    assert is_known(ledger, camera, "a.png")
    (camera / "a.png").rename(camera / "b.png")
    assert is_known(ledger, camera, "b.png")


def test_names_need_not_be_unicode(ledger: Ledger, camera: Path) -> None:
    name = os.fsdecode(b"caf\xe9 \n.png")
    add(ledger, camera, name, b"A")
    assert is_known(ledger, camera, name)
    assert [one["image"] for one in ledger.rows_after(0)] == [name]


# Kills


@pytest.mark.parametrize("statement", range(5))
def test_a_kill_at_any_statement_leaves_all_of_an_image_or_nothing(
    ledger: Ledger, camera: Path, statement: int
) -> None:
    add(ledger, camera, "a.png", b"A")
    arrived, digest = arrival(camera, "b.png", b"B")
    child = os.fork()
    if child == 0:
        try:
            killed = Ledger(ledger.path, camera)
            seen: list[str] = []

            def trace(query: str) -> None:
                if len(seen) == statement:
                    os.kill(os.getpid(), signal.SIGKILL)
                seen.append(query)

            killed._connection.set_trace_callback(trace)
            killed.add(arrived, digest, row("b.png"), ["webhook"])
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL  # there are five statements, COMMIT is the last
    assert [one["image"] for one in ledger.rows_after(0)] == ["a.png"]
    assert not ledger.is_done("b.png", arrived.state)
    assert waiting_by_channel(ledger.path) == {}
    assert ledger.add(arrived, digest, row("b.png"), ["webhook"])["number"] == 2
    assert waiting_by_channel(ledger.path) == {"webhook": 1}


HEADER = (
    *("number", "inspected", "image", "verdict", "score", "threshold", "p_value", "regions", "largest_region_area"),
    *("seconds", "model", "overlay", "error"),
)
"""Of files that are appended to: it must not change."""


def test_exports_cut_anywhere_are_made_whole(tmp_path: Path) -> None:
    ledger = Ledger(ledger_of(tmp_path, 5, "webhook"), tmp_path / "camera")

    def export() -> tuple[bytes, bytes]:
        for one in open_exports(tmp_path, ledger):
            one.close()
        return (tmp_path / "results.jsonl").read_bytes(), (tmp_path / "results.csv").read_bytes()

    lines, table = export()
    assert [json.loads(line)["number"] for line in lines.splitlines()] == [1, 2, 3, 4, 5]
    assert table.decode().splitlines()[0] == ",".join(HEADER)
    assert len(table.splitlines()) == 6
    for cut in range(0, len(lines), 7):
        (tmp_path / "results.jsonl").write_bytes(lines[:cut])
        (tmp_path / "results.csv").write_bytes(table[: cut % len(table)])
        assert export() == (lines, table)
    (tmp_path / "results.jsonl").write_bytes(lines[:-40] + bytes(40))  # what a power failure may leave
    assert export() == (lines, table)
    (tmp_path / "results.jsonl").unlink()
    assert export() == (lines, table)
    ledger.close()


# Refusals


def test_a_ledger_is_of_one_folder(ledger: Ledger, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with pytest.raises(OutputError, match="choose another folder"):
        Ledger(ledger.path, tmp_path / "other")


def test_a_damaged_ledger_is_named(tmp_path: Path, camera: Path) -> None:
    (tmp_path / LEDGER).write_bytes(b"no database" * 100)
    with pytest.raises(OutputError, match=r"watch\.sqlite"):
        Ledger(tmp_path / LEDGER, camera)
