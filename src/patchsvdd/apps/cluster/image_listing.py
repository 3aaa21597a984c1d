"""Lists the images of folders, patterns and lists of paths, on this machine or in an object store."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any

from patchsvdd.apps.cluster.storage import StoragePath, is_remote
from patchsvdd.core.errors import DatasetError

SUFFIXES = frozenset((".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".webp", ".bmp", ".dib", ".tif", ".tiff", ".apng"))
"""Suffixes of image files. An archive has millions of files, so only workers open them."""
LISTS = (".parquet", ".csv")
WILDCARDS = "*?["
COLUMNS = ("path", "image", "file", "filename", "uri", "url")
"""Accepted names of the path column in a list; without one, the only text column is used."""

NamedPath = tuple[str, str]
"""Name and path of an image."""


def find_archive(inputs: Sequence[str]) -> Iterator[NamedPath]:
    """(name, path) of every image in folders, patterns, lists and files, without duplicates, each input sorted by name.

    The name of an image is relative to its folder, as written in its list, or, with several inputs, its full path.
    """
    seen: set[str] = set()
    for text in inputs:
        count = 0
        for name, path in _find(text):
            count += 1
            if len(inputs) == 1:
                yield name, path
            elif path not in seen:
                seen.add(path)
                yield path, path
        if not count:
            raise DatasetError(
                f"there is no image in '{text}'; give a folder, a pattern such as 'photos/**/*.png', or a Parquet or "
                f"CSV file of paths (images are {', '.join(sorted(SUFFIXES))})"
            )


def _find(text: str) -> Iterator[NamedPath]:
    place = StoragePath.of(text)
    if any(character in text for character in WILDCARDS) and not place.exists():
        yield from _matching(*_split(text))
    elif place.is_dir():
        yield from _named(place, sorted(name for name in place.below() if _is_image(name)))
    elif place.is_file() and text.lower().endswith(LISTS):
        yield from _listed(place)
    elif place.is_file():
        yield PurePosixPath(place.name).name, place.name
    else:
        raise DatasetError(f"there is no file or folder '{text}'; check the path")


def _matching(root: StoragePath, pattern: str) -> Iterator[NamedPath]:
    """The images below a folder that match a pattern."""
    if not root.is_dir():
        raise DatasetError(f"there is no folder '{root}' to look for '{pattern}' in; check the path")
    matches = _as_expression(pattern).fullmatch
    yield from _named(root, sorted(name for name in root.below() if matches(name) and _is_image(name)))


def _named(folder: StoragePath, names: Iterable[str]) -> Iterator[NamedPath]:
    return ((name, f"{folder.name}/{name}") for name in names)


def _listed(place: StoragePath) -> Iterator[NamedPath]:
    """The images in a Parquet or CSV file, in its order, without duplicates; relative paths start at its folder."""
    folder = place.name.rsplit("/", 1)[0]
    seen: set[str] = set()
    for path in _paths(place):
        if path is None or path in seen:
            continue
        seen.add(path)
        yield path, path if is_remote(path) or path.startswith("/") else f"{folder}/{path}"


def _paths(place: StoragePath) -> Iterator[str | None]:
    import pyarrow as pa
    from pyarrow import csv, parquet

    try:
        with place.open() as file:
            if place.name.lower().endswith(".parquet"):
                table = parquet.ParquetFile(file)
                column = _path_column(table.schema_arrow, place)
                for batch in table.iter_batches(columns=[column]):
                    yield from batch.column(0).cast(pa.string()).to_pylist()
            else:
                reader = csv.open_csv(file)
                column = _path_column(reader.schema, place)
                for batch in reader:
                    yield from batch.column(column).cast(pa.string()).to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise DatasetError(f"'{place}' cannot be read as a list of images ({error}); give Parquet or CSV") from None


def _path_column(schema: Any, place: StoragePath) -> str:
    """Name of the column that holds the paths."""
    named = [name for name in COLUMNS if name in schema.names]
    texts = [field.name for field in schema if str(field.type) in ("string", "large_string")]
    if named or len(texts) == 1:
        return named[0] if named else texts[0]
    raise DatasetError(f"'{place}' has the columns {', '.join(schema.names)}; name the column of paths 'path'")


def _is_image(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in SUFFIXES


def _split(pattern: str) -> tuple[StoragePath, str]:
    """The folder before the first wildcard of a pattern, and the rest of the pattern."""
    first = min(pattern.index(character) for character in WILDCARDS if character in pattern)
    end = pattern.rfind("/", 0, first) + 1
    return StoragePath.of(pattern[:end] or "."), pattern[end:]


def _as_expression(pattern: str) -> re.Pattern[str]:
    """Convert a pattern to a regular expression: * and ? match within one name, ** matches any number of folders."""
    out, rest = "", pattern
    while rest:
        if rest.startswith("**/"):
            out, rest = out + "(?:.*/)?", rest[3:]
        elif rest.startswith("**"):
            out, rest = out + ".*", rest[2:]
        elif rest[0] == "*":
            out, rest = out + "[^/]*", rest[1:]
        elif rest[0] == "?":
            out, rest = out + "[^/]", rest[1:]
        elif rest[0] == "[" and "]" in rest[2:]:
            end = rest.index("]", 2)
            inside = rest[1:end].replace("\\", r"\\")
            out, rest = out + f"[{'^' + inside[1:] if inside[0] == '!' else inside}]", rest[end + 1 :]
        else:
            out, rest = out + re.escape(rest[0]), rest[1:]
    return re.compile(out, re.DOTALL)
