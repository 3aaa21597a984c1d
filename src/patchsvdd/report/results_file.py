"""The results of a run: rows are appended to results.jsonl; results.csv is written at the end."""

from __future__ import annotations

import csv
import json
import math
import os
from array import array
from collections.abc import Callable, Iterator
from io import FileIO
from pathlib import Path
from typing import IO, Self

import numpy as np

from patchsvdd.core.files import atomic_write, output_errors, write_all
from patchsvdd.report.rows import CSV_COLUMNS, Row, csv_cells, json_line


class ResultsFile:
    """``folder``/results.jsonl: one JSON row per image. Survives a kill at any byte."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "results.jsonl"
        self.csv_path = folder / "results.csv"
        self._file: FileIO | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def resume(self, keep: Callable[[Row], bool]) -> set[str]:
        """Drop invalid rows; return the names of the images whose rows stay in the file.

        Dropped are rows for which ``keep`` is false, incomplete lines, and duplicate rows of an image.
        """
        self.close()
        names: set[str] = set()
        if not self.path.exists():
            return names
        with atomic_write(self.path) as kept, self._reading() as lines:
            for _, row in _rows(lines):
                if row["image"] not in names and keep(row):
                    names.add(row["image"])
                    kept.write(json_line(row))
        return names

    def append(self, row: Row) -> None:
        """Write one row, which then survives the end of this process."""
        line = json_line(row)
        with output_errors(self.path):
            self._file = self._file or self._open()
            write_all(self._file, line)

    def close(self) -> None:
        """Close the file; a later ``append`` opens it again."""
        if self._file is None:
            return
        file, self._file = self._file, None
        with output_errors(self.path), file:
            os.fsync(file.fileno())

    def rows_worst_first(self) -> Iterator[Row]:
        """Rows by descending score, then the images that could not be read. 24 bytes of memory per row."""
        if not self.path.exists():
            return
        scores, offsets = array("d"), array("q")
        with self._reading() as lines, output_errors(self.path, action="reading"):
            for offset, row in _rows(lines):
                scores.append(_sort_key(row))
                offsets.append(offset)
            order = np.argsort(-np.frombuffer(scores), kind="stable") if scores else ()
            for index in order:
                lines.seek(offsets[index])
                yield json.loads(lines.readline())

    def write_csv(self) -> Path:
        """Write results.csv, worst first; return its path."""
        with atomic_write(self.csv_path) as file:
            table = csv.writer(_Encoded(file))
            table.writerow(CSV_COLUMNS)
            table.writerows(csv_cells(row) for row in self.rows_worst_first())
        return self.csv_path

    def _reading(self) -> IO[bytes]:
        with output_errors(self.path, action="reading"):
            return self.path.open("rb")

    def _open(self) -> FileIO:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        file = open(self.path, "ab", buffering=0)  # noqa: SIM115 - closed by close()
        if not _ends_a_line(self.path):
            file.write(b"\n")  # a crash left an incomplete line: start the next row on a new one
        return file


class _Encoded:
    """An unbuffered text file for the csv module on top of a binary file."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def write(self, text: str) -> int:
        # File names that are not valid UTF-8 contain lone surrogates.
        return self._file.write(text.encode("utf-8", "backslashreplace"))


def _rows(lines: IO[bytes]) -> Iterator[tuple[int, Row]]:
    """(byte offset, row) of each valid line; invalid lines are skipped."""
    offset = 0
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if isinstance(row, dict) and isinstance(row.get("image"), str):
            yield offset, row
        offset += len(line)


def _ends_a_line(path: Path) -> bool:
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return True
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def _sort_key(row: Row) -> float:
    """The score, or minus infinity for an image that could not be read."""
    score = row.get("score")
    if "error" in row or not isinstance(score, int | float):
        return -math.inf
    return math.inf if math.isnan(score) else float(score)
