"""Files named by what they hold: written once, on disk before their name is known to anyone, never changed."""

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
    """A folder of such files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.removing = threading.Lock()
        """Held while a file is looked up to be used again, and while one is chosen to be deleted and is."""
        with output_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)

    def path(self, name: str) -> Path:
        """Where a file lies; only names that this class has given lead anywhere."""
        if not NAME.fullmatch(name):
            raise ValueError(f"'{name}' is not the name of a stored file")
        return self.folder / name[:2] / name

    def put(self, data: bytes) -> str:
        """The name of a file that now holds ``data``, for good: it survives a power cut from here on."""
        name = hashlib.sha256(data).hexdigest()
        path = self.path(name)
        with self.removing, suppress(OSError):
            os.utime(path)  # tells the retention that it is wanted again
            if path.stat().st_size == len(data):
                _sync_folder(path.parent)  # another request may have written it this moment
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
                    os.fsync(file.fileno())
                os.replace(temporary, path)
                _sync_folder(path.parent)
            except BaseException:
                with suppress(OSError):
                    temporary.unlink()
                raise
        return name

    def get(self, name: str) -> bytes | None:
        """What the file holds; None if retention has removed it."""
        try:
            return self.path(name).read_bytes()
        except FileNotFoundError:
            return None


def _sync_folder(folder: Path) -> None:
    """Force a new name in a folder to disk, where the system can."""
    with suppress(OSError):
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)
