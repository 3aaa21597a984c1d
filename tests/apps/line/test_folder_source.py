from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from patchsvdd.apps.line.sources.folder import FolderSource
from patchsvdd.apps.line.sources.source import Frame, SourceError
from patchsvdd.core.errors import ConfigError, OutputError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "camera").mkdir()
    return tmp_path / "camera"


def write(folder: Path, name: str, data: bytes = b"x", age: float = 100.0) -> Path:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    os.utime(path, (time.time() - age,) * 2)
    return path


def opened(folder: Path, **settings: object) -> FolderSource:
    source = FolderSource("top", folder, **{"settle": 0.0, "poll": 0.01} | settings)  # type: ignore[arg-type]
    source.open()
    return source


def read(source: FolderSource) -> Frame:
    frame = source.read(20)
    assert frame is not None
    return frame


def names(source: FolderSource) -> list[str]:
    """Names of all files that are given now."""
    found = []
    while (frame := source.read(0.05)) is not None:
        found.append(frame.name)
    return found


def test_files_are_given_oldest_first_and_once(folder: Path) -> None:
    write(folder, "b.png", b"old", age=300)
    write(folder, "sub/a.jpg", b"new", age=200)
    write(folder, "notes.txt")
    write(folder, "c.png.part")
    source = opened(folder)
    first = read(source)
    assert (first.name, first.data, first.number, first.pixels) == ("b.png", b"old", 0, None)
    assert first.captured == pytest.approx(time.time() - 300, abs=60)
    assert names(source) == ["sub/a.jpg"]
    write(folder, "later.png")
    assert read(source).name == "later.png"
    write(folder, "b.png", b"another image under the same name")
    assert read(source).data == b"another image under the same name"
    assert names(source) == []
    assert source.lost == 0


def test_a_file_that_still_grows_is_not_given(folder: Path) -> None:
    source = opened(folder, settle=0.3)
    path = write(folder, "a.png", b"half")
    assert source.read(0.02) is None
    path.write_bytes(b"the whole image")
    assert read(source).data == b"the whole image"


def test_what_is_done_is_not_given_after_a_restart(folder: Path, tmp_path: Path) -> None:
    for name in ("a.png", "b.png"):
        write(folder, name)
    source = opened(folder, record=tmp_path / "record.sqlite")
    done, other = read(source), read(source)
    source.done(done)
    source.close()
    source.open()  # opened again by the same process: both were given
    assert names(source) == []
    source.close()
    again = opened(folder, record=tmp_path / "record.sqlite")
    assert names(again) == [other.name]
    write(folder, done.name, b"another")
    assert names(again) == [done.name]


def test_a_share_that_goes_away_and_comes_back(folder: Path, tmp_path: Path) -> None:
    write(folder, "a.png")
    source = opened(folder)
    assert names(source) == ["a.png"]
    folder.rename(tmp_path / "elsewhere")
    with pytest.raises(SourceError, match="cannot be listed"):
        source.read(1)
    source.close()
    with pytest.raises(SourceError, match="folder 'top': there is no folder"):
        source.open()
    (tmp_path / "elsewhere").rename(folder)
    source.open()
    write(folder, "b.png")
    assert names(source) == ["b.png"]


def test_part_and_view_come_from_the_name(folder: Path) -> None:
    write(folder, "P17_left.png", age=2)
    write(folder, "other.png", age=1)
    source = opened(folder, part_pattern=r"(?P<part>P\d+)_(?P<view>\w+)\.")
    assert [(frame.part, frame.view) for frame in (read(source), read(source))] == [("P17", "left"), (None, None)]


def test_settings_and_records_are_checked(folder: Path, tmp_path: Path) -> None:
    for settings, message in (
        ({"part_pattern": "("}, "`part_pattern` is not a regular expression"),
        ({"part_pattern": r"(\d+)"}, "`part_pattern` needs a group named part"),
        ({"settle": -1.0}, "`settle` must be 0 seconds or more; got -1"),
    ):
        with pytest.raises(ConfigError, match=message):
            opened(folder, **settings)
    (tmp_path / "record").write_bytes(b"no database" * 100)
    with pytest.raises(OutputError, match="record cannot be used"):
        opened(folder, record=tmp_path / "record")
