"""Files and folders on this machine or in an object store, with one interface."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from patchsvdd.core.errors import ConfigError, DatasetError, OutputError
from patchsvdd.core.extras import require
from patchsvdd.core.files import atomic_write
from patchsvdd.images.image_files import files_below

_REMOTE = re.compile(r"[a-z][a-z0-9+.-]+://")


@dataclass(frozen=True)
class StoragePath:
    """A file or folder: a local path such as "photos/new" or a URI such as "s3://bucket/new"."""

    name: str

    @classmethod
    def of(cls, text: str | os.PathLike[str]) -> StoragePath:
        """The path that a user entered."""
        text = os.fspath(text)
        if is_remote(text):
            return cls(text.rstrip("/"))
        return cls(os.path.abspath(text))

    def __str__(self) -> str:
        return self.name

    def __truediv__(self, below: str) -> StoragePath:
        return StoragePath(f"{self.name}/{below}")

    @property
    def local(self) -> Path | None:
        """The local path; None if it is in an object store."""
        return None if is_remote(self.name) else Path(self.name)

    def exists(self) -> bool:
        """Whether the file or folder exists."""
        return self._kind() != "NotFound"

    def is_dir(self) -> bool:
        """Whether this is an existing folder."""
        return self._kind() == "Directory"

    def is_file(self) -> bool:
        """Whether this is an existing file."""
        return self._kind() == "File"

    def read_bytes(self) -> bytes:
        """Content of a file; raises OSError if it cannot be read."""
        if self.local is not None:
            return self.local.read_bytes()
        system, path = _opened(self.name)
        with system.open_input_stream(path) as stream:
            return bytes(stream.read())

    def open(self) -> Any:
        """An open file for pyarrow."""
        system, path = _opened(self.name)
        return system.open_input_file(path)

    def write(self, content: bytes | memoryview, *, sync: bool = True) -> None:
        """Write a file, completely or not at all."""
        if self.local is not None:
            with atomic_write(self.local, sync=sync) as file:
                file.write(content)
            return
        system, path = _opened(self.name)
        try:
            with system.open_output_stream(path) as stream:  # object stores show only complete objects
                stream.write(content)
        except OSError as error:
            raise OutputError(f"writing {self.name} failed ({error})") from None

    def remove(self) -> None:
        """Delete a folder and its content, if it exists."""
        system, path = _opened(self.name)
        if self.is_dir():
            system.delete_dir(path)

    def below(self) -> Iterator[str]:
        """Names of the files below a folder, relative to it, except hidden ones."""
        if self.local is not None:
            start = len(os.fspath(self.local)) + 1
            yield from (os.fspath(path)[start:] for path in files_below(self.local))
            return
        from pyarrow import fs

        system, path = _opened(self.name)
        start = len(path.rstrip("/")) + 1
        try:
            infos = system.get_file_info(fs.FileSelector(path, recursive=True, allow_not_found=True))
        except OSError as error:
            raise DatasetError(f"'{self.name}' cannot be listed ({error}); check the address and the keys") from None
        names = (info.path[start:] for info in infos if info.type == fs.FileType.File)
        yield from (name for name in names if not any(part.startswith(".") for part in name.split("/")))

    def _kind(self) -> str:
        system, path = _opened(self.name)
        try:
            return str(system.get_file_info(path).type.name)
        except OSError as error:
            raise DatasetError(f"'{self.name}' cannot be accessed ({error}); check the address and the keys") from None


def is_remote(text: str) -> bool:
    """Whether the text is a URI of an object store."""
    return _REMOTE.match(text) is not None


def _opened(name: str) -> tuple[Any, str]:
    """The file system of a path, and the path within it."""
    if not is_remote(name):
        return _system("file", ""), name
    scheme, path = name.split("://", 1)
    return _system(scheme, path.split("/", 1)[0]), path


@lru_cache
def _system(scheme: str, bucket: str) -> Any:
    """The file system of a store, opened once; S3 keys, region and endpoint come from the AWS environment variables."""
    fs = require("pyarrow.fs", "cluster", "inspecting an archive")
    if scheme == "file":
        return fs.LocalFileSystem()
    try:
        if scheme != "s3":
            return fs.FileSystem.from_uri(f"{scheme}://{bucket}")[0]
        getenv = os.environ.get
        endpoint = getenv("AWS_ENDPOINT_URL_S3") or getenv("AWS_ENDPOINT_URL")
        region = getenv("AWS_REGION") or getenv("AWS_DEFAULT_REGION") or ("us-east-1" if endpoint else None)
        return fs.S3FileSystem(
            endpoint_override=endpoint,
            region=region or fs.resolve_s3_region(bucket),
            request_timeout=60,
            allow_delayed_open=True,  # small objects are written in one request
        )
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"'{scheme}://{bucket}' cannot be opened as an object store ({error}); use a URI like s3://bucket"
        ) from None
