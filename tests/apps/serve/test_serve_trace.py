"""Serial numbers and lots, requests that are repeated, and counts of a long history."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from patchsvdd.apps.serve import idempotency
from patchsvdd.apps.serve.blob_store import Blobs
from patchsvdd.apps.serve.problem_details import Problem
from patchsvdd.apps.serve.retention import RetentionTask
from patchsvdd.apps.serve.settings import Retention
from patchsvdd.apps.serve.store import LAST_ID, Filter, Store, new_id
from patchsvdd.apps.serve.tables import idempotency as keys
from patchsvdd.apps.serve.tables import inspections
from support.serving import Running, part, process, row, running, settings

pytestmark = pytest.mark.service

INSPECT = "/v1/models/part/inspect"


@pytest.fixture(scope="module")
def server(stored: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(settings(tmp_path_factory.mktemp("trace") / "data", stored)) as one:
        yield one


def total(server: Running) -> int:
    return int(server.client.get("/v1/inspections/counts").json()["total"])


def send(server: Running, key: str, data: bytes, **params: Any) -> httpx.Response:
    return server.client.post(INSPECT, content=data, params=params, headers={"Idempotency-Key": key})


# What the part is


def test_serial_lot_line_and_station_are_stored_and_found(server: Running) -> None:
    given = {"serial": "S-0042", "lot": "L 7", "line": "3", "station": "end of line"}
    sent = server.inspect("part", part(), **given).json()
    assert {name: sent[name] for name in given} == given
    assert server.client.get(f"/v1/inspections/{sent['id']}").json()["serial"] == "S-0042"
    for name, value in given.items():
        found = server.client.get("/v1/inspections", params={name: value}).json()["inspections"]
        assert [one["id"] for one in found] == [sent["id"]], name
        assert not server.client.get("/v1/inspections", params={name: f"{value}!"}).json()["inspections"]


def test_fields_of_a_form_take_precedence_and_are_cleaned(server: Running) -> None:
    def form(fields: dict[str, str], **params: str) -> httpx.Response:
        return server.client.post(INSPECT, files={"file": part()}, data=fields, params=params)

    sent = form({"serial": "\u202eF\n1\x00 ", "lot": "  "}, serial="Q", lot="Q", line="Q").json()
    assert [sent[name] for name in ("serial", "lot", "line", "station")] == ["F1", None, "Q", None]
    assert form({"serial": "x" * 101}).status_code == 422
    assert form({"serial": "x" * 100}).json()["serial"] == "x" * 100
    assert server.client.post(INSPECT, content=part(), params={"lot": "x" * 101}).status_code == 422
    plain = server.inspect("part", part()).json()
    assert [plain[name] for name in ("serial", "lot", "line", "station")] == [None] * 4


def test_a_batch_has_one_lot_and_no_serial_number(server: Running) -> None:
    files = [("files", part(seed)) for seed in (1, 2)]
    path = "/v1/models/part/inspect-batch"
    sent = server.client.post(path, files=files, data={"lot": "B1"}, params={"station": "2"}).json()
    assert [(one["inspection"]["lot"], one["inspection"]["station"]) for one in sent["images"]] == [("B1", "2")] * 2
    refused = server.client.post(path, files=files, data={"serial": "1"})
    assert refused.status_code == 422
    assert "one by one" in refused.json()["detail"]
    single = server.client.post(path, files=files[:1], data={"serial": "1"}).json()
    assert single["images"][0]["inspection"]["serial"] == "1"


# Requests that are repeated


def test_a_repeated_request_gets_the_first_answer(server: Running) -> None:
    """L17: a request repeated after a lost answer used to create a second inspection."""
    before = total(server)
    first = send(server, "part 1, try 1", part(5), serial="1")
    assert "idempotent-replay" not in first.headers
    for params in ({}, {"map": "png", "explain": True}):
        again = send(server, "part 1, try 1", part(5), serial="1", **params)
        assert again.status_code == 200
        assert again.headers["idempotent-replay"] == "true"
        assert {
            name: again.json()[name] for name in first.json() if name not in ("map", "map_media_type", "explanation")
        } == {
            name: value for name, value in first.json().items() if name not in ("map", "map_media_type", "explanation")
        }
        assert (again.json()["map"] is not None) == ("map" in params)
        assert (again.json()["explanation"] is not None) == ("explain" in params)
    assert total(server) == before + 1
    assert send(server, "part 1, try 2", part(5), serial="1").json()["id"] != first.json()["id"]


def test_a_key_used_for_another_image_is_refused(server: Running) -> None:
    assert send(server, "once", part(6)).status_code == 200
    before = total(server)
    for data, params in ((part(7), {}), (part(6), {"serial": "2"})):
        other = send(server, "once", data, **params)
        assert other.status_code == 409
        assert "another image" in other.json()["detail"]
    assert total(server) == before


def test_a_request_that_failed_may_be_repeated(server: Running) -> None:
    assert send(server, "bad", b"no image").status_code == 422
    again = send(server, "bad", part(8))
    assert again.status_code == 200
    assert "idempotent-replay" not in again.headers


@pytest.mark.parametrize("key", ["", "x" * 201, "tab\there", "ü"])
def test_keys_that_are_none_are_refused(server: Running, key: str) -> None:
    answer = server.client.post(INSPECT, content=part(), headers={b"Idempotency-Key": key.encode("latin-1")})
    assert answer.status_code == 422


def test_a_key_does_not_go_with_a_batch(server: Running) -> None:
    answer = server.client.post(
        "/v1/models/part/inspect-batch", files=[("files", part())], headers={"Idempotency-Key": "x"}
    )
    assert answer.status_code == 422


def test_the_same_request_many_times_at_once_is_one_inspection(server: Running) -> None:
    before, data = total(server), part(9)
    begin = threading.Barrier(8)

    def ask(_: int) -> httpx.Response:
        begin.wait(30)
        return httpx.post(f"{server.url}{INSPECT}", content=data, headers={"Idempotency-Key": "all"}, timeout=60)

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, range(8)))
    assert [one.status_code for one in answers] == [200] * 8
    assert len({one.json()["id"] for one in answers}) == 1
    assert sum("idempotent-replay" in one.headers for one in answers) == 7
    assert total(server) == before + 1
    assert not server.service.turns._locks


def test_another_service_that_was_quicker_is_believed(
    stored: Path, tmp_path: Path, server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path / 'shared.sqlite'}"
    with running(settings(tmp_path / "data", stored, store=url)) as mine:
        find = idempotency.earlier
        calls: list[int] = []

        def late(store: Store, request: idempotency.Request) -> Any:
            if not calls:  # the other service writes after we looked, and before we write
                calls.append(1)
                other = row(model="part", name="of the other service")
                store.insert_inspection(other, request.write(other["id"])).result()
                return None
            return find(store, request)

        monkeypatch.setattr(idempotency, "earlier", late)
        answer = send(mine, "k", part())
        assert answer.headers["idempotent-replay"] == "true"
        assert answer.json()["name"] == "of the other service"
        assert total(mine) == 1


def test_a_key_is_stored_with_its_inspection_or_not_at_all(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path / 'x.sqlite'}")
    request = idempotency.Request("me", "k", "d")
    first, second = row(), row()
    store.insert_inspection(first, request.write(first["id"])).result()
    with pytest.raises(IntegrityError):
        store.insert_inspection(second, request.write(second["id"])).result()
    assert [one["id"] for one in store.inspections(Filter(), 10)] == [first["id"]]
    found = idempotency.earlier(store, request)
    assert found is not None
    assert found["id"] == first["id"]
    with pytest.raises(Problem, match="another image"):
        idempotency.earlier(store, idempotency.Request("me", "k", "other"))
    assert idempotency.earlier(store, idempotency.Request("you", "k", "d")) is None
    # After a day, or once the inspection is deleted, the key may be used again.
    later = idempotency.Request("me", "k", "d", request.at + idempotency.KEPT_SECONDS + 1)
    assert idempotency.earlier(store, later) is None
    third = row()
    store.insert_inspection(third, later.write(third["id"])).result()
    store.write(lambda connection: connection.execute(sa.delete(inspections).where(inspections.c.id == third["id"])))
    assert idempotency.earlier(store, later) is None
    fourth = row()
    store.insert_inspection(fourth, later.write(fourth["id"])).result()
    blobs = Blobs(tmp_path / "pictures")

    def kept(now: float) -> int:
        RetentionTask(store, blobs, Retention()).round(now)
        with store.reading() as connection:
            return int(connection.execute(sa.select(sa.func.count()).select_from(keys)).scalar() or 0)

    assert kept(later.at + idempotency.KEPT_SECONDS - 1) == 1
    assert kept(later.at + idempotency.KEPT_SECONDS + 1) == 0
    store.close()


def test_kill_9_does_not_part_a_key_from_its_inspection(stored: Path, tmp_path: Path) -> None:
    data = part(11)
    with process(tmp_path / "data", str(stored)) as first:
        first.client.post(INSPECT, content=part())
        killing = threading.Timer(0.15, first.process.kill)
        killing.start()
        acknowledged = {}
        try:
            for index in range(500):
                key = f"k{index}"
                answer = first.client.post(INSPECT, content=data, headers={"Idempotency-Key": key}, timeout=30)
                acknowledged[key] = answer.json()["id"]
        except (httpx.TransportError, ValueError):
            pass
        last = f"k{len(acknowledged)}"
    with running(settings(tmp_path / "data", stored)) as again:
        for key, number in [*acknowledged.items()][-5:]:
            assert send(again, key, data).json()["id"] == number
        send(again, last, data)  # whether it was stored or not, there is one
        with again.service.store.reading() as connection:
            names = [one for (one,) in connection.execute(sa.select(keys.c.inspection))]
        assert total(again) == 1 + len(acknowledged) + 1 == 1 + len(names)


# Counts


def test_counts_of_a_long_history_need_its_index_alone(tmp_path: Path) -> None:
    """L15: counts took a second with 400,000 inspections."""
    store = Store(f"sqlite:///{tmp_path / 'x.sqlite'}")
    said: list[str] = []

    @sa.event.listens_for(store._engine, "before_cursor_execute")
    def keep(_: Any, __: Any, statement: str, *___: Any) -> None:
        said.append(statement)

    def plan(where: Filter, *values: str) -> str:
        store.count(where)
        statement = [one for one in said if "count" in one and "EXPLAIN" not in one][-1]
        with store.reading() as connection:
            return str(connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values).all())

    assert "COVERING INDEX" in plan(Filter())
    assert "COVERING INDEX" in plan(Filter(model="part"), "part")
    assert "id>?" in plan(Filter(after="0" * 24), "0" * 24, LAST_ID)
    assert "model=?" in plan(Filter(after="0" * 24, model="part"), "part", "0" * 24, LAST_ID)
    store.close()


def test_counts_are_right_and_can_start_anywhere(tmp_path: Path, stored: Path) -> None:
    with running(settings(tmp_path / "data", stored)) as server:
        store, ids = server.service.store, []
        for index in range(12):
            one = row(time.time() + index, verdict="anomalous" if index % 3 else "good")
            store.insert_inspection(one).result()
            ids.append(one["id"])
        store.review(ids[1], "true_defect", "", "me")
        store.review(ids[11], "false_alarm", "", "me")
        whole = server.client.get("/v1/inspections/counts").json()
        assert whole == {
            "total": 12,
            "verdict": {"good": 4, "anomalous": 8},
            "review": {"none": 10, "true_defect": 1, "false_alarm": 1},
        }
        new = server.client.get("/v1/inspections/counts", params={"after": ids[8], "verdict": "anomalous"}).json()
        assert new == {"total": 2, "verdict": {"anomalous": 2}, "review": {"none": 1, "false_alarm": 1}}
        none = server.client.get("/v1/inspections/counts", params={"after": new_id(time.time() + 99)}).json()
        assert none == {"total": 0, "verdict": {}, "review": {}}
        assert server.client.get("/v1/inspections/counts", params={"after": "x"}).status_code == 422
