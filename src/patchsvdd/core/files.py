"""Atomic writes: a crash, a full disk or a kill leaves the old file or the new one, never half a file."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import IO

from patchsvdd.core.errors import OutputError

LOCK = ".lock"

_DISK_FULL = "free some space or choose another folder; finished work is kept and a second run continues"
_NOT_ALLOWED = "make the folder writable or choose another folder"
_NOT_A_FOLDER = "there is a file where a folder is needed, or the reverse; move it or choose another folder"
_REMEDIES = {
    errno.ENOSPC: _DISK_FULL,
    errno.EDQUOT: _DISK_FULL,
    errno.EFBIG: _DISK_FULL,
    errno.EACCES: _NOT_ALLOWED,
    errno.EPERM: _NOT_ALLOWED,
    errno.EROFS: _NOT_ALLOWED,
    errno.ENOTDIR: _NOT_A_FOLDER,
    errno.EISDIR: _NOT_A_FOLDER,
    errno.EEXIST: _NOT_A_FOLDER,
    errno.ENAMETOOLONG: "the name is too long for this disk; choose a shorter one",
}


@contextmanager
def atomic_write(path: Path, *, sync: bool = True) -> Iterator[IO[bytes]]:
    """Yield a binary file that replaces ``path`` when the block ends, and is deleted if the block raises.

    Missing folders are created. ``sync`` flushes the file to disk first: needed for data that cannot be recreated,
    slow for ten thousand images.
    """
    temporary = path.with_name(f".{secrets.token_hex(8)}.tmp")  # short: ``path`` may have the maximum length
    with output_errors(path, temporary=temporary):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = temporary.open("xb")
    try:
        with output_errors(path, temporary=temporary):
            yield file
            file.flush()
            if sync:
                os.fsync(file.fileno())
            file.close()  # before the rename: Windows does not move open files
            os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):  # a full disk fails a second time when the buffer is flushed
            file.close()
        with suppress(OSError):
            temporary.unlink()
        raise


@contextmanager
def locked(folder: Path, purpose: str, name: str = LOCK) -> Iterator[None]:
    """Lock the folder while the block runs; raise OutputError at once if another process holds the lock.

    The lock is on the file ``name``. The operating system releases it when the process ends, even if it crashes.
    """
    path = folder / name
    with output_errors(path):
        file = path.open("ab")
    with file:
        try:
            _take(file)
        except OSError:
            raise OutputError(f"another process is changing {folder}; wait for it to finish before {purpose}") from None
        yield


def _take(file: IO[bytes]) -> None:
    """Lock an open file, or raise OSError."""
    if sys.platform == "win32":
        import msvcrt

        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def write_all(file: FileIO, data: bytes) -> None:
    """Write every byte to an unbuffered file, whose ``write`` may accept only some of them."""
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]


@contextmanager
def output_errors(path: Path, *, action: str = "writing", temporary: Path | None = None) -> Iterator[None]:
    """Turn an OSError about ``path``, its folders or its temporary file into an OutputError.

    An OSError about another file (one that the block read) passes unchanged.
    """
    try:
        yield
    except OSError as error:
        named = error.filename
        if named is not None and Path(os.fsdecode(named)) not in {path, temporary, *path.parents}:
            raise
        what = error.strerror or str(error)
        remedy = _REMEDIES.get(error.errno or 0, "check the folder or choose another folder")
        raise OutputError(f"{what} while {action} {path}; {remedy}") from error


def require_writable(folder: Path, free_bytes: int = 0) -> None:
    """Raise OutputError if the folder cannot be written to or has too little space; before hours of work, not after."""
    probe = folder / f".{secrets.token_hex(8)}.tmp"
    made: list[Path] = []
    try:
        with output_errors(folder, temporary=probe):
            made = [path for path in (folder, *folder.parents) if not path.exists()]
            folder.mkdir(parents=True, exist_ok=True)
            probe.touch(exist_ok=False)
            probe.unlink()
            free = shutil.disk_usage(folder).free
    finally:  # a later check may still refuse the work: leave nothing behind
        for path in made:
            with suppress(OSError):
                path.rmdir()
    if free < free_bytes:
        raise OutputError(
            f"{folder} has {free / 1e6:,.0f} MB free and the result needs {free_bytes / 1e6:,.0f} MB; "
            f"free some space or choose another folder"
        )
