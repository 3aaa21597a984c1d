"""A job: images in numbered chunks, with one results file per chunk.

The folder of a job holds ``job.json`` (model and options), ``plan/plan-0000.parquet`` (the images, one row group per
chunk) and ``results/plan=0000/part-00000.parquet`` (the rows of a chunk, written completely or not at all). Chunks
without a part are not done yet. A chunk may be inspected twice, because a worker was lost or two commands run at the
same time. The second part then replaces the first, so no image has two rows. Images that are added later go into
``plan-0001``.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from patchsvdd.apps.cluster.image_listing import NamedPath
from patchsvdd.apps.cluster.storage import StoragePath
from patchsvdd.core.errors import OutputError
from patchsvdd.report.rows import Row

CHUNK = 256
"""Images per chunk; fewer if some workers would have no chunk."""
READERS = 32
"""Results files read at once; in an object store each needs a few round trips."""
_PART = re.compile(r"plan=\d+/part-\d+\.parquet")


@dataclass(frozen=True, order=True)
class Chunk:
    """Consecutive images of a plan: row group ``index`` of plan number ``plan``."""

    plan: int
    index: int
    images: int

    @property
    def part(self) -> str:
        """Path of its results file below "results"."""
        return f"plan={self.plan:04d}/part-{self.index:05d}.parquet"


@dataclass(frozen=True)
class Job:
    """The folder of a job."""

    out: StoragePath
    _indices: dict[int, Any] = field(default_factory=dict, repr=False, compare=False)
    """Plan number → Parquet metadata, read once because it is large for many chunks."""

    def open(self, about: Mapping[str, Any], *, overwrite: bool = False) -> None:
        """Start or continue the job; raises OutputError if the folder holds a job of another model or other options."""
        self._indices.clear()
        if overwrite:
            for name in ("results", "plan", "overlays", "maps"):
                (self.out / name).remove()
        elif (self.out / "job.json").is_file():
            self._require_same(about)
            return
        self._write_json("job.json", about)

    def about(self) -> dict[str, Any]:
        """The job's model and options."""
        about: dict[str, Any] = json.loads((self.out / "job.json").read_bytes())
        return about

    def extend(self, images: Iterable[NamedPath], chunk: int = CHUNK) -> int:
        """Plan the images that are not planned yet; returns their number."""
        plans = self._plans()
        known = {path for number in plans for path in self._column(number, "path")}
        fresh = (image for image in images if image[1] not in known)
        return self._write_plan(len(plans), fresh, chunk)

    def chunks(self) -> list[Chunk]:
        """All chunks of all plans."""
        from pyarrow import parquet

        chunks = []
        for number in self._plans():
            with self._plan(number).open() as file:
                groups = parquet.ParquetFile(file).metadata
                chunks += [Chunk(number, i, groups.row_group(i).num_rows) for i in range(groups.num_row_groups)]
        return chunks

    def to_do(self) -> list[Chunk]:
        """The chunks without results."""
        results = self.out / "results"
        done = {match[0] for match in map(_PART.fullmatch, results.below()) if match} if results.is_dir() else set()
        return [chunk for chunk in self.chunks() if chunk.part not in done]

    def images(self, chunk: Chunk) -> list[NamedPath]:
        """(name, path) of each image of a chunk."""
        from pyarrow import parquet

        with self._plan(chunk.plan).open() as file:
            plan = parquet.ParquetFile(file, metadata=self._indices.get(chunk.plan))
            self._indices[chunk.plan] = plan.metadata
            table = plan.read_row_group(chunk.index)
        return list(zip(table["image"].to_pylist(), table["path"].to_pylist(), strict=True))

    def commit(self, chunk: Chunk, rows: Sequence[Row]) -> None:
        """Write the rows of a chunk."""
        import pyarrow as pa

        table = pa.Table.from_pylist(list(rows), schema=schema())
        (self.out / "results" / chunk.part).write(_parquet(table))

    def results(self, columns: Sequence[str] | None = None) -> Iterator[Row]:
        """The rows of all finished chunks, in the order of the plans; only a few chunks are in memory at a time."""
        from pyarrow import parquet

        def read(chunk: Chunk) -> Any:
            with (self.out / "results" / chunk.part).open() as file:
                return parquet.ParquetFile(file).read(columns=columns)

        missing = set(self.to_do())
        done = iter([chunk for chunk in self.chunks() if chunk not in missing])
        with ThreadPoolExecutor(READERS) as pool:
            while some := list(islice(done, 2 * READERS)):
                for table in pool.map(read, some):
                    yield from table.to_pylist()

    def _require_same(self, about: Mapping[str, Any]) -> None:
        before = self.about()
        for name, value in about.items():
            if before.get(name) != value:
                raise OutputError(
                    f"'{self.out}' holds a job with {name} {_text(before.get(name))}, but this run has {_text(value)}; "
                    f"choose another folder, or replace it with `overwrite=True`"
                )

    def _plans(self) -> list[int]:
        names = (self.out / "plan").below() if (self.out / "plan").is_dir() else ()
        return sorted(int(name[5:-8]) for name in names if re.fullmatch(r"plan-\d+\.parquet", name))

    def _plan(self, number: int) -> StoragePath:
        return self.out / "plan" / f"plan-{number:04d}.parquet"

    def _column(self, number: int, name: str) -> Iterator[str]:
        from pyarrow import parquet

        with self._plan(number).open() as file:
            for batch in parquet.ParquetFile(file).iter_batches(columns=[name]):
                yield from batch.column(0).to_pylist()

    def _write_plan(self, number: int, fresh: Iterable[NamedPath], chunk: int) -> int:
        """Write a plan with one row group per chunk; returns the number of images."""
        import pyarrow as pa
        from pyarrow import parquet

        shape = pa.schema([("image", pa.string()), ("path", pa.string())])
        count, content, each = 0, io.BytesIO(), iter(fresh)
        with parquet.ParquetWriter(content, shape, compression="zstd") as writer:
            while some := list(islice(each, chunk)):
                names, paths = ([_as_text(image[index]) for image in some] for index in (0, 1))
                writer.write_table(pa.table([names, paths], schema=shape), row_group_size=chunk)
                count += len(some)
        if count:
            self._plan(number).write(content.getbuffer())
        return count

    def _write_json(self, name: str, content: Mapping[str, Any]) -> None:
        (self.out / name).write(json.dumps(content, indent=1, ensure_ascii=False).encode() + b"\n")


def schema() -> Any:
    """Arrow schema of a results file."""
    import pyarrow as pa

    region = pa.struct(
        [
            ("box", pa.list_(pa.int32())),
            ("area", pa.int64()),
            ("peak", pa.float64()),
            ("peak_at", pa.list_(pa.int32())),
            ("score", pa.float64()),
            ("kind", pa.string()),
            ("like", pa.string()),
        ]
    )
    return pa.schema(
        [
            ("image", pa.string()),
            ("path", pa.string()),
            ("verdict", pa.string()),
            ("is_anomalous", pa.bool_()),
            ("score", pa.float64()),
            ("threshold", pa.float64()),
            ("p_value", pa.float64()),
            ("min_area", pa.int64()),
            ("image_size", pa.list_(pa.int32())),
            ("regions", pa.list_(region)),
            ("overlay", pa.string()),
            ("map", pa.string()),
            ("model", pa.string()),
            ("error", pa.string()),
            ("inspected", pa.string()),
            ("seconds", pa.float64()),
        ]
    )


def _parquet(table: Any) -> memoryview:
    from pyarrow import parquet

    content = io.BytesIO()
    parquet.write_table(table, content, compression="zstd")
    return content.getbuffer()


def _text(value: object) -> str:
    return "unknown" if value is None else repr(value)


def _as_text(name: str) -> str:
    """A name as valid Unicode; a file whose name is not valid cannot be opened by it and gets a row with an error."""
    return name.encode("utf-8", "backslashreplace").decode()
