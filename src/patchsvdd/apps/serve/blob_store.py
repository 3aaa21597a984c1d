"""Content-addressed files: named by their SHA-256, written once, synced to disk before the name is returned."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import threading
from contextlib import suppress
from pathlib import Path

from patchsvdd.core.files import output_errors

NAME = re.compile(r"[0-9a-f]{64}")


class Blobs:
    """A folder of content-addressed files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.removing = threading.Lock()
        """Held while an existing file is reused, and while a file is checked and deleted."""
        with output_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)

    def path(self, name: str) -> Path:
        """The path of a file; raises ValueError unless ``name`` is a SHA-256."""
        if not NAME.fullmatch(name):
            raise ValueError(f"'{name}' is not the name of a stored file")
        return self.folder / name[:2] / name

    def put(self, data: bytes | bytearray, *, sync: bool = True) -> str:
        """Store ``data``, with ``sync`` durably, safe against power loss; returns the file's name."""
        name = hashlib.sha256(data).hexdigest()
        path = self.path(name)
        with self.removing, suppress(OSError):
            os.utime(path)  # marks it as recently used, for the retention
            if path.stat().st_size == len(data):
                if sync:
                    _sync_folder(path.parent)  # another request may just have written it
                return name
        temporary = path.with_name(f".{secrets.token_hex(8)}.tmp")
        with output_errors(path, temporary=temporary):
            try:
                if not path.parent.is_dir():
                    path.parent.mkdir(exist_ok=True)
                    _sync_folder(self.folder)
                with temporary.open("xb") as file:
                    file.write(data)
                    file.flush()
                    if sync:
                        os.fsync(file.fileno())
                os.replace(temporary, path)
                if sync:
                    _sync_folder(path.parent)
            except BaseException:
                with suppress(OSError):
                    temporary.unlink()
                raise
        return name

    def get(self, name: str) -> bytes | None:
        """The content of a file; None if retention has removed it."""
        try:
            return self.path(name).read_bytes()
        except FileNotFoundError:
            return None


def _sync_folder(folder: Path) -> None:
    """Sync a folder's entries to disk, if the system supports it."""
    with suppress(OSError):
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)
