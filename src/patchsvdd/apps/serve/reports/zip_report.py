"""Images of inspections as a ZIP, written while it is sent: only one image is in memory at a time."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import PurePath

from patchsvdd.apps.serve.overview_store import Counter
from patchsvdd.apps.serve.reports.csv_report import BOM, csv_text
from patchsvdd.apps.serve.reports.rows import in_words, pages
from patchsvdd.apps.serve.responses import SUFFIXES
from patchsvdd.apps.serve.samples import Samples
from patchsvdd.apps.serve.store import Filter, Row, Store

MOST_IMAGES = 2000
MOST_BYTES = 4_000_000_000
LONGEST = 80
"""Characters of an image's own name in the name of its file."""

Get = Callable[[Row], bytes | None]


class _Stream:
    """A file that can only be written; ``take`` returns what was written since the last time."""

    def __init__(self) -> None:
        self._written: list[bytes] = []

    def write(self, data: bytes, /) -> int:
        self._written.append(bytes(data))
        return len(data)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass

    def take(self) -> bytes:
        data, self._written = b"".join(self._written), []
        return data


def file_name(row: Row, suffix: str) -> str:
    """A name that is safe on every system and unique: verdict, time, id, and the image's own name."""
    stem = re.sub(r"[^\w.-]+", "_", PurePath(row["name"]).stem).strip("._")[:LONGEST]
    at = datetime.fromtimestamp(row["at"]).strftime("%Y-%m-%d_%H-%M-%S")
    return f"{row['verdict']}/{at}_{row['id']}{'_' if stem else ''}{stem}{suffix}"


def zip_chunks(
    store: Store,
    where: Filter,
    picture: Get,
    heat_map: Get | None,
    most_images: int = MOST_IMAGES,
    most_bytes: int = MOST_BYTES,
) -> Iterator[bytes]:
    """The archive of a filter, in pieces: images, heat maps if wanted, inspections.csv and README.txt."""
    stream, samples = _Stream(), Samples(store, Counter(store))
    table = [BOM + csv_text((), header=True)]
    written = size = deleted = beyond = 0
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        for rows in pages(store, where, 200):
            if written >= most_images or size >= most_bytes:
                beyond += len(rows)
                continue
            drawn = samples.drawn(rows)
            for row in rows:
                if written >= most_images or size >= most_bytes:
                    beyond += 1
                    continue
                table.append(csv_text([row], drawn))
                data = picture(row)
                if data is None:
                    deleted += 1
                    continue
                archive.writestr(_entry(row, f"images/{file_name(row, SUFFIXES[row['media_type']])}"), data)
                written, size = written + 1, size + len(data)
                layer = heat_map(row) if heat_map is not None else None
                if layer is not None:
                    archive.writestr(_entry(row, f"heat-maps/{file_name(row, '.png')}"), layer)
                    size += len(layer)
                yield stream.take()
        text = "".join(table).encode("utf-8", "replace")
        archive.writestr("inspections.csv", text, zipfile.ZIP_DEFLATED)
        archive.writestr("README.txt", _read_me(where, written, deleted, beyond).encode())
    yield stream.take()


def _entry(row: Row, name: str) -> zipfile.ZipInfo:
    at = datetime.fromtimestamp(max(row["at"], 315_619_200)).timetuple()[:6]  # ZIP begins in 1980
    return zipfile.ZipInfo(name, at)


def _read_me(where: Filter, written: int, deleted: int, beyond: int) -> str:
    lines = [
        "Images of inspections, from patchsvdd",
        "",
        f"Filter: {in_words(where)}",
        f"Made: {datetime.now():%Y-%m-%d %H:%M}",
        f"Images: {written:,}, in folders by verdict; inspections.csv lists them",
    ]
    if deleted:
        lines.append(f"No longer kept: {deleted:,} images, deleted by the service's limits; their rows are listed")
    if beyond:
        limit = f"{MOST_IMAGES:,} images or {MOST_BYTES / 1e9:.0f} GB"
        lines.append(f"Left out: {beyond:,} older inspections, because one archive holds at most {limit}.")
        lines.append("Choose a shorter period to get them.")
    return "\r\n".join(lines) + "\r\n"
