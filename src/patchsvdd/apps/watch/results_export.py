"""The ledger's rows as results.jsonl and results.csv, which are only appended to.

The ledger is authoritative. If the process is killed before it appends a committed row here, the row is added at the
next start: every line begins with its number, so the last complete line shows which rows are missing.
"""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Callable
from pathlib import Path

from patchsvdd.apps.watch.ledger import Ledger
from patchsvdd.core.errors import OutputError
from patchsvdd.core.files import output_errors, write_all
from patchsvdd.report.rows import CSV_COLUMNS, Row, csv_cells, json_line

TAIL = 1 << 16
"""Bytes at the end of a file that are searched first for the last complete line."""


class Export:
    """A file with one line per row of the ledger."""

    def __init__(self, path: Path, line_of: Callable[[Row], bytes], header: bytes = b"") -> None:
        self.path = path
        self._line_of, self._header = line_of, header
        with output_errors(path):
            self._file = open(path, "ab", buffering=0)  # noqa: SIM115 - closed by close()

    def catch_up(self, ledger: Ledger) -> None:
        """Remove an incomplete last line and append the missing rows."""
        with output_errors(self.path):
            number, end = _last_line(self.path)
            self._file.truncate(end)
        if end == 0:
            self._write(self._header)
        for row in ledger.rows_after(number):
            self.add(row)
        self.sync()

    def add(self, row: Row) -> None:
        """Append the line of a row, unbuffered: it survives a crash of this process."""
        self._write(self._line_of(row))

    def sync(self) -> None:
        """Force the lines to disk."""
        with output_errors(self.path):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, line: bytes) -> None:
        with output_errors(self.path):
            write_all(self._file, line)


def open_exports(folder: Path, ledger: Ledger) -> list[Export]:
    """results.jsonl and results.csv of a folder, up to date."""
    exports = [
        Export(folder / "results.jsonl", json_line),
        Export(folder / "results.csv", csv_line, ",".join(("number", *CSV_COLUMNS)).encode() + b"\n"),
    ]
    for export in exports:
        export.catch_up(ledger)
    return exports


def require_own_folder(folder: Path, ledger: Path) -> None:
    """Raise OutputError if the results there were written by another command."""
    for name in ("results.jsonl", "results.csv"):
        if (folder / name).exists() and not ledger.exists():
            raise OutputError(f"{folder / name} already exists and was not written by `watch`; choose another folder")


def csv_line(row: Row) -> bytes:
    """A numbered row as a line of CSV."""
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow([row["number"], *csv_cells(row)])
    # Names may contain line breaks, or lone surrogates if they are not UTF-8. A row must be one line.
    line = text.getvalue().replace("\r", "\\r").replace("\n", "\\n")
    return line.encode("utf-8", "backslashreplace") + b"\n"


def _last_line(path: Path) -> tuple[int, int]:
    """Number of the last complete line (0 if there is none), and the offset of its end (the header's end, or 0)."""
    size = path.stat().st_size
    for length in (TAIL, size):
        with path.open("rb") as file:
            start = max(0, size - length)
            file.seek(start)
            data = file.read()
        end = data.rfind(b"\n") + 1
        while end > 0:
            begin = data.rfind(b"\n", 0, end - 1) + 1
            if begin == 0 and start > 0:
                break  # this line began before the tail: read the whole file
            number = re.match(rb'(?:\{"number": )?(\d+),', data[begin:end])
            if number:
                return int(number[1]), start + end
            if begin == 0 and data.startswith(b"number,"):
                return 0, end
            end = begin
    return 0, 0
