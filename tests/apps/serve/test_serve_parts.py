"""Parts of a line: what is stored, on SQLite and on PostgreSQL, how it is counted, and where defects occur."""

from __future__ import annotations

import dataclasses
import io
import math
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sqlalchemy.exc import IntegrityError

from patchsvdd.apps.line.parts import PartRegion, PartView
from patchsvdd.apps.serve.audit_chain import Actor
from patchsvdd.apps.serve.audit_store import AuditFilter, Record
from patchsvdd.apps.serve.blob_store import Blobs
from patchsvdd.apps.serve.ids import new_id
from patchsvdd.apps.serve.line_heat import SIDE, DefectHeat
from patchsvdd.apps.serve.line_statistics import line_statistics, shift_bounds
from patchsvdd.apps.serve.p_chart import p_chart
from patchsvdd.apps.serve.part_store import RepeatedSequence, part_row
from patchsvdd.apps.serve.problem_details import Problem
from patchsvdd.apps.serve.responses import as_time
from patchsvdd.apps.serve.retention import RetentionTask
from patchsvdd.apps.serve.settings import Retention
from patchsvdd.apps.serve.store import Store
from patchsvdd.apps.serve.tables import parts
from patchsvdd.report.rows import npy_bytes
from support.line import result
from support.serving import row

pytestmark = pytest.mark.service
pytest_plugins = ("support.databases",)


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    found = Store(url)
    yield found
    found.close()


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[Store]:
    found = Store(f"sqlite:///{tmp_path / 'inspections.sqlite'}")
    yield found
    found.close()


def view(inspection: str = "0" * 24, name: str = "top", verdict: str = "good") -> PartView:
    return PartView(name, inspection, "part", "i", 0.5, 1.0, verdict, 1, 1000.0)


# The table


def test_a_part_is_stored_once_with_all_that_is_known_of_it(store: Store) -> None:
    region = PartRegion("top", 1, 2, 3, 4, 1.5, "scratch")
    facts = {"views": (view(verdict="anomalous"),), "regions": (region,), "missing": ("side",), "reason": "too late"}
    one = result(1000.25, 1, "incomplete", part_number="A-1", trigger_id=7, **facts)
    store.insert_part("me", "L1", one).result()
    store.insert_part("me", "L1", one).result()  # its acknowledgement was lost
    (found,) = store.parts(10)
    assert found == {**part_row("me", "L1", one), "acknowledged_at": None, "acknowledged_by": None}
    assert found["views"][0]["inspection"] == "0" * 24
    assert store.part(one.id) == found
    with pytest.raises(Problem, match="there is no part 0000"):
        store.part("0" * 24)


def test_a_sequence_number_never_repeats_on_a_line(store: Store) -> None:
    assert store.last_part("me", "L1") is None
    store.insert_part("me", "L1", result(1000.0, 1)).result()
    with pytest.raises(RepeatedSequence, match=r"'L1' has stored part .* as number 1"):
        store.insert_part("me", "L1", result(1001.0, 1)).result()
    store.insert_part("me", "L2", result(1001.0, 1)).result()
    store.insert_part("other", "L1", result(1001.0, 1)).result()
    store.insert_part("me", "L1", result(999.0, 2)).result()  # the clock was set back
    last = store.last_part("me", "L1")
    assert last is not None
    assert last["sequence"] == 2
    again = part_row("me", "L1", result(1002.0, 2))
    with pytest.raises(IntegrityError):  # the database itself refuses it too
        store.write(lambda connection: connection.execute(parts.insert().values(**again)))


def test_a_corrected_part_replaces_the_stored_one(store: Store) -> None:
    store.insert_part("me", "L1", result(1001.0, 1)).result()
    first = store.last_part("me", "L1")
    assert first is not None
    late = dataclasses.replace(result(1001.0, 1), id=first["id"], verdict="error", reason="too late")
    store.correct_part("me", "L1", late)
    [row] = store.parts(10, line="L1")
    assert (row["id"], row["verdict"], row["reason"]) == (first["id"], "error", "too late")


def test_parts_are_listed_by_page_and_by_line_verdict_and_number(store: Store) -> None:
    for sequence in range(1, 8):
        verdict = "anomalous" if sequence % 3 == 0 else "good"
        one = result(1000.0 + sequence, sequence, verdict, part_number=f"A-{sequence % 2}")  # type: ignore[arg-type]
        store.insert_part("me", "L1", one).result()
    store.insert_part("me", "L2", result(2000.0, 1, "error")).result()
    assert [one["sequence"] for one in store.parts(3, line="L1")] == [7, 6, 5]
    before = store.parts(3, line="L1")[-1]["id"]
    assert [one["sequence"] for one in store.parts(9, line="L1", before=before)] == [4, 3, 2, 1]
    assert [one["sequence"] for one in store.parts(9, line="L1", verdict="anomalous")] == [6, 3]
    assert [one["sequence"] for one in store.parts(9, part_number="A-0")] == [6, 4, 2]
    assert [one["line"] for one in store.parts(9, verdict="error")] == ["L2"]


def test_parts_are_counted_between_times(store: Store) -> None:
    for sequence, (at, verdict) in enumerate(
        (
            (999.9, "good"),
            (1000.0, "good"),
            (1009.999, "anomalous"),
            (1010.0, "error"),
            (1019.0, "good"),
            (1020.0, "good"),
        )
    ):
        store.insert_part("me", "L1", result(at, sequence, verdict)).result()  # type: ignore[arg-type]
    store.insert_part("other", "L1", result(1005.0, 1)).result()
    first, second = store.count_parts("me", "L1", [1000.0, 1010.0, 1020.0])
    assert first == {"good": 1, "anomalous": 1, "incomplete": 0, "error": 0}
    assert second == {"good": 1, "anomalous": 0, "incomplete": 0, "error": 1}
    assert store.count_parts("me", "L1", [0.0, 5000.0])[0]["good"] == 4


def test_an_acknowledgement_is_stored_with_its_entry_of_the_audit_chain(store: Store) -> None:
    for sequence, verdict in enumerate(("good", "error", "incomplete", "anomalous"), start=1):
        store.insert_part("me", "L1", result(1000.0 + sequence, sequence, verdict)).result()  # type: ignore[arg-type]
    anna = Actor("anna", "user", "1")
    record = Record(anna, "line.acknowledged", None, "line", "L1")
    assert store.acknowledge_parts("me", "L1", record, always=False) == 2
    assert {one["verdict"]: one["acknowledged_by"] for one in store.parts(9)} == {
        "good": None,
        "error": "anna",
        "incomplete": "anna",
        "anomalous": None,
    }
    assert store.acknowledge_parts("me", "L1", Record(anna, "line.acknowledged"), always=False) == 0
    assert [entry.details for entry in store.audit_entries(AuditFilter(), 9)] == ['{"parts":2}']
    assert store.acknowledge_parts("me", "L1", Record(anna, "line.acknowledged"), always=True) == 0
    assert store.audit_head().number == 2


def test_old_parts_are_deleted_but_the_last_of_a_line(store: Store, tmp_path: Path) -> None:
    for owner, line, sequence in (("me", "L1", 1), ("me", "L1", 2), ("me", "L2", 1), ("other", "L1", 1)):
        store.insert_part(owner, line, result(1000.0 + sequence, sequence)).result()
    store.insert_part("me", "L1", result(9 * 86400.0, 3)).result()
    task = RetentionTask(store, Blobs(tmp_path / "pictures"), Retention(days=1), "me")
    task.round(now=9.5 * 86400.0)
    left = sorted((one["owner"], one["line"], one["sequence"]) for one in store.parts(9))
    assert left == [("me", "L1", 3), ("me", "L2", 1), ("other", "L1", 1)]
    (entry,) = store.audit_entries(AuditFilter(), 9)
    assert (entry.action, '"parts":2' in entry.details) == ("retention.deleted", True)


# The p-chart

CANS = (12, 15, 8, 10, 4, 7, 16, 9, 14, 10, 5, 6, 17, 12, 22, 8, 10, 5, 13, 11, 20, 18, 24, 15, 9, 12, 7, 13, 9, 6)
"""Nonconforming cans in 30 samples of 50: Montgomery, Introduction to Statistical Quality Control, example 7.1."""
ORDERS = (
    *((100, 12), (80, 8), (80, 6), (100, 9), (110, 10), (110, 12), (100, 11), (100, 16), (90, 10), (90, 6)),
    *((110, 20), (120, 15), (120, 9), (120, 8), (110, 6), (80, 8), (80, 10), (80, 7), (90, 5), (100, 8)),
    *((100, 5), (100, 8), (100, 10), (90, 6), (90, 9)),
)
"""Purchase orders with errors in samples of different sizes: the same book, on variable sample sizes."""


def test_limits_are_those_of_the_textbook() -> None:
    centre, points = p_chart([(50, bad) for bad in CANS])
    assert centre == pytest.approx(0.2313, abs=5e-5)
    assert {(round(one.low or 0, 4), round(one.high or 0, 4)) for one in points} == {(0.0524, 0.4102)}
    assert [number for number, one in enumerate(points, start=1) if one.outside] == [15, 23]
    centre, points = p_chart(ORDERS)
    assert centre is not None
    assert centre == pytest.approx(234 / 2450)
    assert [number for number, one in enumerate(points, start=1) if one.outside] == [11]
    for one in points:
        assert one.high == pytest.approx(centre + 3 * math.sqrt(centre * (1 - centre) / one.size))


def test_limits_are_clipped_and_empty_subgroups_have_none() -> None:
    centre, points = p_chart([(4, 1), (0, 0), (4, 0)])
    assert centre == 1 / 8
    assert [(one.share, one.low, one.outside) for one in points] == [
        (0.25, 0.0, False),
        (None, None, False),
        (0.0, 0.0, False),
    ]
    assert p_chart([(2, 2), (1, 1)])[1][0].high == 1.0
    assert not any(one.outside for one in p_chart([(2, 2), (1, 1)])[1])
    assert p_chart([(0, 0)])[0] is None


# Statistics


def test_a_shift_begins_at_the_last_of_its_times() -> None:
    def at(text: str) -> float:
        return datetime.fromisoformat(text).timestamp()

    starts = ("22:00", "06:00", "14:00")
    now = at("2026-05-04T15:30")
    assert shift_bounds(starts, "current", now) == (at("2026-05-04T14:00"), now)
    assert shift_bounds(starts, "previous", now) == (at("2026-05-04T06:00"), at("2026-05-04T14:00"))
    early = at("2026-05-04T05:00")
    assert shift_bounds(starts, "current", early) == (at("2026-05-03T22:00"), early)
    assert shift_bounds(("06:00",), "previous", early) == (at("2026-05-02T06:00"), at("2026-05-03T06:00"))
    assert shift_bounds((), "current", now) == (now - 8 * 3600, now)
    assert shift_bounds((), "previous", now) == (now - 16 * 3600, now - 8 * 3600)


def test_statistics_of_a_period(embedded: Store) -> None:
    start = 1_800_000_000.0
    for sequence in range(1, 61):  # a part a minute; in the last bucket most are anomalous
        verdict = "anomalous" if sequence % 10 == 0 or sequence > 56 else "incomplete" if sequence == 5 else "good"
        at = start + 60 * (sequence - 1)
        embedded.insert_part("me", "L1", result(at, sequence, verdict)).result()  # type: ignore[arg-type]
    found = line_statistics(embedded, "me", "L1", start, start + 3600)
    assert (found["width"], len(found["buckets"])) == (300, 12)
    assert found["counts"] == {"good": 50, "anomalous": 9, "incomplete": 1, "error": 0}
    assert (found["parts"], found["yield"], found["centre"]) == (60, 50 / 59, 9 / 59)
    assert [one["size"] for one in found["buckets"]] == [4, *[5] * 11]
    assert [one["nonconforming"] for one in found["buckets"]] == [0, 1] * 5 + [0, 4]
    assert [one["outside"] for one in found["buckets"]] == [False] * 11 + [True]
    assert (found["buckets"][0]["start"], found["buckets"][-1]["end"]) == (as_time(start), as_time(start + 3600))
    empty = line_statistics(embedded, "me", "L2", start, start + 1)
    assert (empty["parts"], empty["yield"], empty["centre"], len(empty["buckets"])) == (0, None, None, 1)


# Where defects occur


def test_defects_of_a_view_are_summed(embedded: Store, tmp_path: Path) -> None:
    blobs = Blobs(tmp_path / "pictures")

    def stored(*at: int, score: float, sequence: int, name: str = "top", size: int = 400) -> None:
        """A part with an anomalous view whose map has one pixel above the threshold."""
        pixels = np.zeros((size, size), np.float32)
        pixels[at] = score
        one = row(id=new_id(1000.0 + sequence), map=blobs.put(npy_bytes(pixels)), verdict="anomalous")
        embedded.insert_inspection(one).result()
        part = result(1000.0 + sequence, sequence, "anomalous", views=(view(one["id"], name, "anomalous"),))
        embedded.insert_part("me", "L1", part).result()

    stored(200, 100, score=2.0, sequence=1)
    stored(200, 100, score=1.5, sequence=2)
    stored(10, 300, score=1.5, sequence=3)
    stored(10, 10, score=0.9, sequence=4)  # below the threshold
    stored(390, 390, score=5.0, sequence=5, name="side")
    stored(5, 5, score=5.0, sequence=6, size=10)  # from another camera
    heat = DefectHeat(embedded, blobs)

    def drawn(since: float = 0.0, name: str = "top", line: str = "L1") -> np.ndarray:
        with Image.open(io.BytesIO(heat.png("me", line, name, since))) as image:
            return np.asarray(image.convert("RGBA"))

    found = drawn()
    assert found.shape == (10, 10, 4)  # of the latest inspection
    assert (found[..., 3] > 0).sum() == 3
    assert found[5, 2, 3] == found[..., 3].max()
    side = drawn(name="side")
    for path in blobs.folder.glob("??/*"):
        path.unlink()  # no map is read a second time
    assert np.array_equal(drawn(), found)
    assert (drawn(since=1005.5)[..., 3] > 0).sum() == 1
    assert side.shape == (SIDE, SIDE, 4)
    assert (side[..., 3] > 0).sum() in (1, 2, 4)
    assert side[312, 312, 3] > 0
    assert drawn(line="L2").shape == (1, 1, 4)
    assert drawn(line="L2")[0, 0, 3] == 0


def test_only_the_latest_anomalous_views_are_summed(embedded: Store) -> None:
    for sequence in range(1, 6):
        views = (view(f"{sequence:024x}", "top", "anomalous"), view(f"{sequence + 9:024x}", "side", "good"))
        embedded.insert_part("me", "L1", result(1000.0 + sequence, sequence, "anomalous", views=views)).result()
    assert embedded.anomalous_views("me", "L1", "top", 0.0, 2) == [f"{5:024x}", f"{4:024x}"]
    assert embedded.anomalous_views("me", "L1", "side", 0.0, 9) == []
