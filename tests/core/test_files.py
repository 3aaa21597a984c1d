from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from patchsvdd.core.errors import OutputError
from patchsvdd.core.files import atomic_write, output_errors, require_writable
from support.command_line import files


def no_space(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_the_new_file_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_bytes(b"old")
    with atomic_write(path) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"  # until the block ends
    assert files(tmp_path) == {"model.json": b"new"}


def test_missing_folders_are_made(tmp_path: Path) -> None:
    with atomic_write(tmp_path / "a" / "b" / "c.txt") as file:
        file.write(b"here")
    assert files(tmp_path) == {"a/b/c.txt": b"here"}


@pytest.mark.parametrize("problem", [ValueError("a bug"), KeyboardInterrupt(), SystemExit(1)])
def test_a_block_that_raises_leaves_the_old_file(tmp_path: Path, problem: BaseException) -> None:
    path = tmp_path / "model.json"
    path.write_bytes(b"old")

    def write_half() -> None:
        with atomic_write(path) as file:
            file.write(b"half of the n")
            raise problem

    with pytest.raises(type(problem)):
        write_half()
    assert files(tmp_path) == {"model.json": b"old"}


@pytest.mark.parametrize("function", ["fsync", "replace"])
def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str) -> None:
    path = tmp_path / "model.json"
    path.write_bytes(b"old")
    monkeypatch.setattr(os, function, no_space)
    with pytest.raises(OutputError, match=r"No space left on device.*; free some space"), atomic_write(path) as file:
        file.write(b"new")
    assert files(tmp_path) == {"model.json": b"old"}


def test_pictures_are_not_forced_to_disk_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", no_space)
    with atomic_write(tmp_path / "picture.jpg", sync=False) as file:
        file.write(b"pixels")
    assert files(tmp_path) == {"picture.jpg": b"pixels"}


def test_a_name_as_long_as_names_get_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 255)
    with atomic_write(path) as file:
        file.write(b"here")
    assert path.read_bytes() == b"here"


def test_a_name_too_long_is_an_output_error(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="shorter"), atomic_write(tmp_path / ("x" * 256)) as file:
        file.write(b"here")
    assert files(tmp_path) == {}


def test_an_error_about_another_file_passes_unchanged(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), output_errors(tmp_path / "out"):
        (tmp_path / "input").read_bytes()


def test_a_writable_folder_is_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / ".writable").write_bytes(b"a file of the user's own")
    require_writable(tmp_path, free_bytes=1)
    assert files(tmp_path) == {".writable": b"a file of the user's own"}


def test_asking_does_not_make_the_folder(tmp_path: Path) -> None:
    require_writable(tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("inside", [".", "inner", "inner/most"])
def test_a_file_where_a_folder_is_needed(tmp_path: Path, inside: str) -> None:
    (tmp_path / "taken").write_bytes(b"a file")
    with pytest.raises(OutputError, match=r"taken.*move it or choose another folder"):
        require_writable(tmp_path / "taken" / inside)
    assert files(tmp_path) == {"taken": b"a file"}


def test_a_folder_nobody_can_make() -> None:
    with pytest.raises(OutputError, match=r"/proc/patchsvdd-out; .*choose another folder"):
        require_writable(Path("/proc/patchsvdd-out"))


def test_a_result_too_large_for_the_disk(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"free and the result needs 1,000,000,000,000 MB; free some space") as raised:
        require_writable(tmp_path, free_bytes=10**18)
    assert str(tmp_path) in str(raised.value)
