"""What leaves the service: overview figures, CSV, PDF, ZIP and the report of a shift."""

from __future__ import annotations

import csv
import io
import re
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from patchsvdd.apps.serve.reports.csv_report import csv_chunks
from patchsvdd.apps.serve.reports.rows import COLUMNS, defused, in_words, pages, percent
from patchsvdd.apps.serve.reports.zip_report import file_name, zip_chunks
from patchsvdd.apps.serve.routes import reports
from patchsvdd.apps.serve.settings import Settings
from patchsvdd.apps.serve.store import Filter, Store
from patchsvdd.apps.serve.tables import inspections
from patchsvdd.report import pdf_document
from support.serving import Running, memory_of, part, row, running, settings
from support.waiting import wait_until

pytestmark = pytest.mark.service

NAMES = (
    "Teil-äöß.png",
    "部品-検査.png",
    "деталь.png",
    "부품.png",
    "📷.png",
    "=cmd|' /C calc'!A1",
    "<b>&.png",
    "../x.png",
)


@pytest.fixture(scope="module")
def served(stored: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service with a few inspections of each verdict, with odd names."""
    with running(settings(tmp_path_factory.mktemp("reports") / "data", stored)) as server:
        old = row(time.time() - 30 * 3600, verdict="anomalous", name="old.png")
        server.service.store.insert_inspection(old).result()
        for index, name in enumerate(NAMES):
            form = {"file": (name, part(20 + index, defect=index % 2 == 1), "image/png")}
            assert server.client.post("/v1/models/part/inspect", files=form).status_code == 200
        for index in range(3):
            one = row(time.time() - 60 * index, verdict="anomalous", line="L1", station=f"S{index}", serial=f"+{index}")
            server.service.store.insert_inspection({**one, "name": f"<b>&{index}.png"}).result()
            if index:
                server.service.store.review(one["id"], "false_alarm" if index == 1 else "true_defect", "=1+1", "anna")
        yield server


@pytest.fixture
def large(tmp_path: Path) -> Iterator[Store]:
    """A store of 4,000 inspections."""
    store = Store(Settings((), tmp_path / "data").url)
    rows = [row(1_700_000_000 + index, name=f"{index}.png", position=index) for index in range(4000)]
    store.write(lambda connection: connection.execute(sa.insert(inspections), rows))
    yield store
    store.close()


def table(data: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(data.decode("utf-8-sig"), newline="")))


# Overview


def test_the_overview_counts_what_was_inspected(served: Running) -> None:
    said = served.client.get("/v1/overview").json()
    listed = served.client.get("/v1/inspections", params={"limit": 500}).json()["inspections"]
    assert listed.pop()["name"] == "old.png"
    alarms = [one for one in listed if one["is_anomalous"]]
    assert said["inspected"] == len(listed) == said["good"] + said["anomalous"]
    assert said["anomalous"] == len(alarms)
    assert said["yield"] == pytest.approx(1 - len(alarms) / len(listed))
    assert said["alarms_per_hour"] == pytest.approx(len(alarms) / 8)
    assert sum(one["inspected"] for one in said["buckets"]) == len(listed)
    assert [one["id"] for one in said["alarms"]] == [one["id"] for one in alarms][:12]
    assert [(one["hits"], one["of"]) for one in [said["false_alarms"]]] == [(1, 2)]
    assert said["false_alarms"]["low"] < 0.5 < said["false_alarms"]["high"]
    assert said["to_review"] == len(alarms) - 2
    model = said["models"][0]
    assert (model["name"], model["served"], model["inspected"]) == ("part", True, len(listed))
    assert {(one["line"], one["station"]) for one in said["stations"]} == {
        *((("L1", f"S{index}")) for index in range(3)), (None, None),
    }  # fmt: skip
    assert said["disk"]["free"] > 0
    assert not said["empty"]


def test_the_overview_has_a_period(served: Running) -> None:
    day, week = (served.client.get("/v1/overview", params={"hours": hours}).json() for hours in (24, 168))
    assert week["inspected"] == day["inspected"] + 1
    assert len(week["buckets"]) <= 32
    for wrong in (0, -1, 10_000, "x"):
        assert served.client.get("/v1/overview", params={"hours": wrong}).status_code == 422


def test_the_overview_of_an_empty_service_says_so(tmp_path: Path) -> None:
    with running(settings(tmp_path / "data")) as server:
        said = server.client.get("/v1/overview").json()
        assert (said["empty"], said["inspected"], said["yield"], said["models"]) == (True, 0, None, [])
        assert said["disk"]["per_day"] is None
        assert server.client.get("/v1/reports/inspections.pdf").status_code == 200
        assert server.client.get("/v1/reports/shift", params={"format": "pdf"}).status_code == 200


# CSV


def test_csv_has_all_rows_of_the_filter(served: Running) -> None:
    answer = served.client.get("/v1/reports/inspections.csv")
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert answer.headers["content-disposition"].startswith('attachment; filename="inspections-')
    assert answer.content.startswith(b"\xef\xbb\xbfid,time,")
    rows = table(answer.content)
    listed = served.client.get("/v1/inspections", params={"limit": 500}).json()["inspections"]
    assert [one["id"] for one in rows] == [one["id"] for one in listed]
    assert set(rows[0]) == set(COLUMNS)
    for one, known in zip(rows, listed, strict=True):
        assert one["verdict"] == known["verdict"]
        assert float(one["score"]) == known["score"]
        assert float(one["score_per_threshold"]) == pytest.approx(known["score"] / known["threshold"], rel=1e-5)
        assert int(one["regions"]) == len(known["regions"])
    some = table(served.client.get("/v1/reports/inspections.csv", params={"station": "S1"}).content)
    assert [(one["line"], one["station"], one["review"]) for one in some] == [("L1", "S1", "false_alarm")]
    assert served.client.get("/v1/reports/inspections.csv", params={"verdict": "odd"}).status_code == 422


def test_csv_runs_no_formula(served: Running) -> None:
    rows = table(served.client.get("/v1/reports/inspections.csv").content)
    for one in rows:
        for name in ("image", "serial", "lot", "note"):
            assert not one[name].startswith(("=", "+", "-", "@"))
    assert "'+0" in {one["serial"] for one in rows}
    assert "'=1+1" in {one["note"] for one in rows}
    assert defused(-1.5) == -1.5
    assert [defused(text) for text in ("@x", "\tx", "x=1", "＝x")] == ["'@x", "'\tx", "x=1", "'＝x"]


def test_csv_is_made_a_page_at_a_time(large: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    listing = large.inspections

    def counted(*args: Any, **more: Any) -> Any:
        read.append(1)
        return listing(*args, **more)

    monkeypatch.setattr(large, "inspections", counted)
    chunks = csv_chunks(large, Filter())
    next(chunks)
    assert not read
    next(chunks)
    assert len(read) == 1
    rest = b"".join(chunks)
    assert rest.count(b"\r\n") == 3000
    some = [one["name"] for rows in pages(large, Filter(since=1_700_000_010, until=1_700_000_020), 3) for one in rows]
    assert some == [f"{index}.png" for index in range(19, 9, -1)]


# ZIP


def test_zip_has_the_pictures_and_their_table(served: Running) -> None:
    answer = served.client.get("/v1/reports/inspections.zip", params={"maps": True})
    assert answer.headers["content-type"] == "application/zip"
    with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
        assert archive.testzip() is None
        names = archive.namelist()
        assert len(set(names)) == len(names)
        pictures = [name for name in names if name.startswith("images/")]
        assert len(pictures) == len(NAMES)
        assert len([name for name in names if name.startswith("heat-maps/")]) == len(NAMES)
        for name in names:
            assert re.fullmatch(r"[\w./-]+", name), name
            assert ".." not in name
            assert len(name) < 200
        assert any("検査" in name for name in names)
        first = archive.read(pictures[-1])
        assert first == part(20)
        rows = table(archive.read("inspections.csv"))
        assert len(rows) >= len(NAMES) + 4
        assert "No longer kept: " in archive.read("README.txt").decode()


def test_zip_says_what_was_left_out(large: Store) -> None:
    data = b"".join(zip_chunks(large, Filter(), lambda _: b"x" * 100, None, most_images=10))
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert len(archive.namelist()) == 12
        assert "Left out: 3,990 older inspections" in archive.read("README.txt").decode()
    small = b"".join(zip_chunks(large, Filter(), lambda _: b"x" * 100, None, most_bytes=450))
    with zipfile.ZipFile(io.BytesIO(small)) as archive:
        assert len(archive.namelist()) == 7


def test_zip_does_not_gather_the_pictures(large: Store) -> None:
    before, most = memory_of(), 0
    for _ in zip_chunks(large, Filter(), lambda _: bytes(2_000_000), None, most_images=200):
        most = max(most, memory_of())
    assert most - before < 60e6  # 400 MB in all


def test_names_in_a_zip_are_safe() -> None:
    for name in ("../../etc/passwd", "a\\b:c*?.png", "con", "", "..", "x" * 300, "\u202egnp.exe", "a/b.png"):
        made = file_name(row(name=name), ".png")
        assert re.fullmatch(r"good/[\w.-]+\.png", made), made
        assert len(made) < 160


# PDF


def test_pdf_has_every_script(served: Running) -> None:
    answer = served.client.get("/v1/reports/inspections.pdf")
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/pdf"
    assert answer.content.startswith(b"%PDF-")
    assert b"STSong-Light" in answer.content
    assert answer.content.count(b"/Subtype /Image") >= 1


def test_pdf_is_bounded_and_says_what_is_left_out(large: Store) -> None:
    from patchsvdd.apps.serve.reports.inspections_pdf import inspections_pdf

    rows = large.inspections(Filter(), 500)
    start = time.monotonic()
    data = inspections_pdf(Filter(), large.count(Filter()), rows, {}, time.time())
    assert time.monotonic() - start < 60
    assert data.startswith(b"%PDF-")
    pages_in_it = int(re.findall(rb"/Count (\d+)", data)[0])
    assert 5 <= pages_in_it <= 40


def test_pdf_without_reportlab_says_what_to_install(served: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pdf_document, "find_spec", lambda _: None)
    for path, more in (("inspections.pdf", {}), ("shift", {"format": "pdf"})):
        answer = served.client.get(f"/v1/reports/{path}", params=more)
        assert answer.status_code == 409
        assert "patchsvdd[serve]" in answer.json()["detail"]


# Shift report


def test_the_report_of_a_shift(served: Running) -> None:
    def ask(**more: Any) -> Any:
        answer = served.client.get("/v1/reports/shift", params=more)
        assert answer.status_code == 200, answer.text
        return answer

    said, overview = ask(format="json").json(), served.client.get("/v1/overview").json()
    for name in ("inspected", "good", "anomalous", "yield", "to_review"):
        assert said[name] == overview[name]
    assert {(one["by"], one["verdict"], one["count"]) for one in said["reviews"]} >= {("anna", "false_alarm", 1)}
    assert said["left_out"] == 0
    assert len(said["alarms"]) == said["anomalous"]
    html = ask()
    assert html.headers["content-disposition"].startswith("attachment")
    page = html.text
    assert "<script" not in page
    assert "http://" not in page
    assert "&lt;b&gt;&amp;1.png" in page
    assert page.count("data:image/jpeg;base64,") >= 1
    assert ask(format="pdf").content.startswith(b"%PDF-")
    now = time.time()
    empty = ask(format="json", start=now - 10_000_000, end=now - 9_990_000).json()
    assert empty["inspected"] == 0
    for wrong in ({"start": now + 1000}, {"start": now - 40 * 86_400}, {"end": -1}, {"format": "doc"}):
        assert served.client.get("/v1/reports/shift", params=wrong).status_code == 422


def test_changes_of_models_are_in_the_report(stored: Path, tmp_path: Path) -> None:
    from support.serving import copy_model

    with running(settings(tmp_path / "data", copy_model(stored, tmp_path / "part"))) as server:
        number = server.inspect("part", part(30, defect=True)).json()["id"]
        server.client.post(f"/v1/inspections/{number}/review", json={"verdict": "false_alarm"})
        assert server.job(server.client.post("/v1/models/part/learn").json()["id"])["state"] == "done"
        said = server.client.get("/v1/reports/shift", params={"format": "json"}).json()
        assert [(one["model"], one["change"], one["by"]) for one in said["changes"]] == [
            ("part", "images added (1 image)", "local")
        ]


# Load


def test_too_many_reports_are_refused_and_places_are_given_back(served: Running) -> None:
    taken = [reports._places.acquire(blocking=False) for _ in range(reports.AT_A_TIME)]
    try:
        for path in ("inspections.csv", "inspections.pdf", "inspections.zip", "shift"):
            answer = served.client.get(f"/v1/reports/{path}")
            assert answer.status_code == 503, path
            assert answer.headers["retry-after"] == "10"
    finally:
        for one in taken:
            assert one
            reports._places.release()
    for _ in range(2 * reports.AT_A_TIME):
        for path in ("inspections.csv", "inspections.zip"):
            with served.client.stream("GET", f"/v1/reports/{path}") as answer:
                answer.close()  # hang up
    wait_until(lambda: reports._places._value == reports.AT_A_TIME)
    assert served.client.get("/v1/reports/inspections.csv").status_code == 200


def test_inspections_go_on_while_reports_are_made(served: Running) -> None:
    ended = threading.Event()
    seen: list[int] = []

    def ask() -> None:
        for _ in range(3):
            seen.append(served.client.get("/v1/reports/inspections.pdf").status_code)
        ended.set()

    thread = threading.Thread(target=ask)
    thread.start()
    inspected = 0
    while not ended.is_set() or inspected == 0:
        assert served.inspect("part", part(10)).status_code == 200
        inspected += 1
    thread.join()
    assert seen == [200] * 3
    assert inspected >= 1


def test_filters_and_shares_in_words() -> None:
    assert in_words(Filter()) == "All inspections"
    assert in_words(Filter(model="bolt", verdict="anomalous", review="none", lot="7")) == (
        "Model bolt, anomalous, not reviewed, lot 7"
    )
    assert [percent(value) for value in (None, 0.0, 1.0, 0.99999, 0.5, 0.001)] == [
        "–", "0 %", "100 %", "99.99 %", "50.0 %", "0.10 %",
    ]  # fmt: skip
