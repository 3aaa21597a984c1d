from __future__ import annotations

import csv
import errno
import json
import os
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from patchsvdd.core.errors import OutputError
from patchsvdd.core.files import atomic_write
from patchsvdd.report.results_file import ResultsFile
from patchsvdd.report.rows import CSV_COLUMNS


def scored(image: str, score: float, threshold: float | None = 0.05) -> dict[str, Any]:
    anomalous = threshold is not None and score > threshold
    region = {"box": [1, 2, 3, 4], "area": 4, "peak": score, "peak_at": [2, 3]}
    return {
        "image": image,
        "path": f"/data/{image}",
        "score": score,
        "threshold": threshold,
        "verdict": "anomalous" if anomalous else "good",
        "is_anomalous": anomalous,
        "image_size": [10, 12],
        "regions": [region, {**region, "area": 7}] if anomalous else [],
        "overlay": f"overlays/{image}.jpg",
        "model": "abc",
    }


def broken(image: str) -> dict[str, Any]:
    return {"image": image, "path": f"/data/{image}", "error": "truncated file"}


def filled(folder: Path, *rows: dict[str, Any]) -> ResultsFile:
    with ResultsFile(folder) as results:
        for row in rows:
            results.append(row)
    return results


def keep_all(row: dict[str, Any]) -> bool:
    return True


def test_nothing_to_resume_in_a_new_folder(tmp_path: Path) -> None:
    results = ResultsFile(tmp_path / "new")
    assert results.resume(keep_all) == set()
    assert list(results.rows_worst_first()) == []


def test_resume_keeps_what_the_caller_wants(tmp_path: Path) -> None:
    results = filled(tmp_path, scored("a", 0.1), broken("b"), scored("c", 0.2), scored("a", 0.3))
    assert results.resume(lambda row: "error" not in row) == {"a", "c"}
    assert [row["score"] for row in results.rows_worst_first()] == [0.2, 0.1]
    assert os.listdir(tmp_path) == ["results.jsonl"]  # no temporary file is left


def test_each_row_is_on_disk_when_append_returns(tmp_path: Path) -> None:
    with ResultsFile(tmp_path) as results:
        for count in range(1, 4):
            results.append(scored(f"{count}.png", 0.1))
            assert len(results.path.read_bytes().splitlines()) == count


def test_a_kill_at_any_byte_costs_at_most_the_line_being_written(tmp_path: Path) -> None:
    rows = [scored("a", 0.1), scored("größe 日本", 0.2)]
    written = filled(tmp_path, *rows).path.read_bytes()
    first_line = written.index(b"\n") + 1
    for cut in range(first_line, len(written) - 1, 9):
        results = ResultsFile(tmp_path)
        results.path.write_bytes(written[:cut])
        assert results.resume(keep_all) == {"a"}
        with results:
            results.append(rows[1])
        assert results.path.read_bytes() == written


def test_appending_without_resume_does_not_glue_lines(tmp_path: Path) -> None:
    (tmp_path / "results.jsonl").write_bytes(b'{"image": "half')
    results = filled(tmp_path, scored("whole", 0.1))
    assert [row["image"] for row in results.rows_worst_first()] == ["whole"]


@pytest.mark.parametrize("junk", [b"\x00" * 64, b"\xff\xfe\xfa", b"[1, 2]", b'{"score": 1}', b"", b"nul"])
def test_junk_lines_are_dropped(tmp_path: Path, junk: bytes) -> None:
    results = filled(tmp_path, scored("a", 0.1))
    results.path.write_bytes(results.path.read_bytes() + junk + b"\n")
    assert len(list(results.rows_worst_first())) == 1
    assert results.resume(keep_all) == {"a"}
    assert len(results.path.read_bytes().splitlines()) == 1


def test_rows_come_worst_first_and_unreadable_ones_last(tmp_path: Path) -> None:
    results = filled(tmp_path, scored("b", 0.2), broken("x"), scored("a", 0.9), scored("c", 0.0), scored("b2", 0.2))
    assert [row["image"] for row in results.rows_worst_first()] == ["a", "b", "b2", "c", "x"]


def test_sorting_many_rows_needs_few_bytes_per_row(tmp_path: Path) -> None:
    count = 5000
    line = json.dumps(scored("image", 0.0))
    lines = (line.replace('"score": 0.0', f'"score": {i * 7919 % count}') for i in range(count))
    (tmp_path / "results.jsonl").write_text("\n".join(lines) + "\n")
    tracemalloc.start()
    scores = [row["score"] for row in ResultsFile(tmp_path).rows_worst_first()]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert scores == list(range(count - 1, -1, -1))
    assert peak < 150 * count  # the rows themselves take 2,000 bytes each


def test_csv_has_one_line_per_image(tmp_path: Path) -> None:
    name = 'a, "b"\nß.png'
    results = filled(tmp_path, scored(name, 0.2), scored("good.png", 0.01), broken("x.png"))
    with results.write_csv().open(newline="", encoding="utf-8") as file:
        table = list(csv.DictReader(file))
    assert tuple(table[0]) == CSV_COLUMNS
    assert [row["image"] for row in table] == [name, "good.png", "x.png"]
    assert (table[0]["verdict"], table[0]["regions"], table[0]["largest_region_area"]) == ("anomalous", "2", "7")
    assert (table[1]["verdict"], table[1]["regions"], table[1]["largest_region_area"]) == ("good", "0", "0")
    assert (table[2]["verdict"], table[2]["score"], table[2]["error"]) == ("", "", "truncated file")


def test_names_that_are_not_unicode_are_kept(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9.png")
    results = filled(tmp_path, scored(name, 0.1))
    assert results.resume(keep_all) == {name}
    assert results.write_csv().read_bytes().count(b"caf") == 2


def test_a_score_that_is_not_a_number_is_refused(tmp_path: Path) -> None:
    with ResultsFile(tmp_path) as results, pytest.raises(ValueError, match="JSON compliant"):
        results.append(scored("a", float("nan")))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "results.jsonl").symlink_to("/dev/full")
    results = ResultsFile(tmp_path)
    with pytest.raises(OutputError, match=r"No space left .*results\.jsonl; free some space .*second run continues"):
        results.append(scored("a", 0.1))


def test_a_file_in_place_of_the_folder_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    with ResultsFile(tmp_path / "out") as results, pytest.raises(OutputError, match=r"choose another folder"):
        results.append(scored("a", 0.1))


def write(path: Path, data: bytes) -> None:
    with atomic_write(path) as file:
        file.write(data)


def test_atomic_write_replaces_the_file_and_makes_folders(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    write(path, b"old")
    write(path, b"new")
    assert path.read_bytes() == b"new"
    assert os.listdir(path.parent) == ["file"]


def failing_block(path: Path, error: BaseException) -> None:
    with atomic_write(path) as file:
        file.write(b"half of the ne")
        raise error


@pytest.mark.parametrize("error", [ValueError("bug"), KeyboardInterrupt()])
def test_atomic_write_leaves_the_old_file_when_the_block_raises(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "file"
    write(path, b"old")
    with pytest.raises(type(error)):
        failing_block(path, error)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_atomic_write_leaves_the_old_file_when_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    write(path, b"old")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match=f"No space left on device while writing {path}"):
        write(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_atomic_write_does_not_blame_the_output_for_a_missing_input(tmp_path: Path) -> None:
    missing = FileNotFoundError(errno.ENOENT, "No such file", str(tmp_path / "input.png"))
    with pytest.raises(FileNotFoundError):
        failing_block(tmp_path / "file", missing)
    assert os.listdir(tmp_path) == []
