"""The audit chain: every action has an entry, any change of an entry is detected, older databases get a chain."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from patchsvdd.apps.serve.accounts import add_user
from patchsvdd.apps.serve.audit_chain import (
    Actor,
    Entry,
    Head,
    Verification,
    header_line,
    parse_header,
    parse_lines,
    verify,
)
from patchsvdd.apps.serve.audit_head_file import NAME, HeadFile, read_head
from patchsvdd.apps.serve.audit_store import AuditFilter, Record
from patchsvdd.apps.serve.auth import add_key
from patchsvdd.apps.serve.blob_store import Blobs
from patchsvdd.apps.serve.database import StoreUnavailable
from patchsvdd.apps.serve.retention import RetentionTask
from patchsvdd.apps.serve.settings import Retention, Settings
from patchsvdd.apps.serve.store import Filter, Store
from patchsvdd.core.errors import ConfigError
from patchsvdd.evaluation.paired import Paired
from support.command_line import run
from support.line import result as part_result
from support.older_databases import INSPECTIONS, JOBS, REVISIONS, older_database
from support.serving import Running, copy_model, part, row, running, settings
from support.waiting import wait_until

pytestmark = pytest.mark.service
pytest_plugins = ("support.databases",)
PASSWORD = "a horse, a battery"


# The chain itself

LEAVES = st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats() | st.text(max_size=8)
DETAILS = st.dictionaries(st.text(max_size=5), LEAVES | st.lists(LEAVES, max_size=3), max_size=3)
RECORDS = st.builds(
    Record,
    st.builds(Actor, st.text(max_size=8), st.sampled_from(["key", "user", "service"]), st.text(max_size=4)),
    st.sampled_from(["review.given", "learn.done", "key.created"]),
    st.none() | st.just("part"),
    st.sampled_from(["inspection", "job"]),
    st.text(max_size=5),
    DETAILS,
    st.uuids().map(lambda one: one.hex[:24]),
    st.integers(0, 10**13),
)


def chained(records: list[Record]) -> list[Entry]:
    entries: list[Entry] = []
    for record in records:
        entries.append(record.entry(Head(entries[-1].number, entries[-1].hash) if entries else Head()))
    return entries


CHAINS = st.lists(RECORDS, min_size=2, max_size=6).map(chained)


def head_of(entries: list[Entry]) -> Head:
    return Head(entries[-1].number, entries[-1].hash)


def changed(value: Any, draw: Any) -> Any:
    """Another value of the same field."""
    if isinstance(value, int):
        return value + draw(st.integers(1, 5)) * draw(st.sampled_from([-1, 1]))
    if value is None:
        return draw(st.text(max_size=3))
    position = draw(st.integers(0, len(value)))
    return value[:position] + draw(st.sampled_from("0a{ ")) + value[position:]


@given(CHAINS)
def test_a_chain_as_written_is_whole(entries: list[Entry]) -> None:
    assert verify(entries, {"before": head_of(entries[:-1])}, head_of(entries)) == Verification(head_of(entries))
    lines = [f"{entry.line()}\n" for entry in entries]
    assert list(parse_lines(lines)) == entries


@given(CHAINS, st.data())
def test_any_changed_field_is_detected(entries: list[Entry], data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(entries) - 1))
    name = data.draw(st.sampled_from(sorted(asdict(entries[index]))))
    value = changed(getattr(entries[index], name), data.draw)
    tampered = [*entries[:index], replace(entries[index], **{name: value}), *entries[index + 1 :]]
    found = verify(tampered, {"a head": head_of(entries)})
    assert (found.head.number, found.entry) == (index, index + 1)
    assert found.fault is not None
    assert f"entry {index + 1} " in found.fault


@given(CHAINS, st.data())
def test_removed_moved_and_inserted_entries_are_detected(entries: list[Entry], data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(entries) - 1))
    second = data.draw(st.integers(0, len(entries) - 1).filter(lambda one: one != first))
    swapped = list(entries)
    swapped[first], swapped[second] = entries[second], entries[first]
    forged = data.draw(RECORDS).entry(Head(first, entries[first].previous))
    tampered = {
        "removed": [*entries[:first], *entries[first + 1 :]],
        "cut off": entries[:first],
        "moved": swapped,
        "inserted": [*entries[:first], forged, *entries[first:]],
        "repeated": [*entries[: first + 1], *entries[first:]],
    }
    for what, found in tampered.items():
        fault = verify(found, {"a head": head_of(entries)})
        wrong = {"moved": min(first, second), "inserted": first + 1, "repeated": first + 1}.get(what, first)
        assert fault.entry == wrong + 1, what


@given(CHAINS, RECORDS, st.data())
def test_a_chain_that_was_computed_again_lacks_the_heads_of_before(
    entries: list[Entry], record: Record, data: st.DataObject
) -> None:
    """Without a head, nothing tells such a chain from a real one."""
    index = data.draw(st.integers(0, len(entries) - 1))
    head = Head(index, entries[index].previous)
    again = [*entries[:index], record.entry(head)]
    for entry in entries[index + 1 :]:
        before = replace(entry, number=again[-1].number + 1, previous=again[-1].hash)
        again.append(replace(before, hash=before.computed_hash()))
    assert verify(again, {}).fault is None
    found = verify(again, {"the notebook": head_of(entries)})
    assert found.fault is not None
    assert "the notebook knows" in found.fault
    longer = [*entries, record.entry(head_of(entries))]
    assert verify(longer, {"the notebook": head_of(entries)}).fault is None
    assert verify(longer, {}, head_of(entries)).entry == len(longer)


@given(CHAINS, st.data())
def test_any_changed_character_of_an_export_is_detected(entries: list[Entry], data: st.DataObject) -> None:
    text = "".join(f"{line}\n" for line in (header_line(head_of(entries)), *(entry.line() for entry in entries)))
    position = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.characters().filter(lambda one: one != text[position]))
    for tampered in (text[:position] + other + text[position + 1 :], text[:position] + text[position + 1 :]):
        lines = tampered.split("\n")
        lines = [*(f"{line}\n" for line in lines[:-1]), *([lines[-1]] if lines[-1] else [])]
        try:
            head = parse_header(lines[0])
        except ConfigError:
            continue
        assert verify(parse_lines(lines[1:]), {"the first line": head}, head).fault is not None


# The database


def test_an_entry_is_written_once_and_only_with_its_change(url: str) -> None:
    with closing(Store(url)) as store:
        record = Record(Actor("anna", "user", "1"), "model.taught", "part", "model", "part", {"score": float("inf")})
        for _ in range(2):  # its acknowledgement was lost
            store.record(record).result()

        def fails(connection: sa.Connection) -> None:
            Record(Actor("anna"), "model.taught").write(connection)
            raise KeyError

        with pytest.raises(KeyError):
            store.write(fails)
        (entry,) = store.audit_entries(AuditFilter(), 10)
        assert (entry.number, entry.who, json.loads(entry.details)) == (1, "anna", {"score": "inf"})
        assert store.verify_audit().head == store.audit_head() == Head(1, entry.hash)


def test_two_services_write_one_chain(url: str) -> None:
    """Each has its own thread that writes, and several writes in a transaction."""
    with closing(Store(url)) as left, closing(Store(url)) as right, ThreadPoolExecutor(8) as threads:
        one = row()
        left.insert_inspection(one).result()

        def act(index: int) -> None:
            store = (left, right)[index % 2]
            if index % 3 == 0:
                store.review(one["id"], "unsure", f"{index}", "anna")
            else:
                store.record(Record(Actor("service", "service"), "model.replaced", "part")).result()

        list(threads.map(act, range(60)))
        assert left.verify_audit() == right.verify_audit() == Verification(left.audit_head())
        assert left.audit_head().number == 60
        assert len(left.audit_entries(AuditFilter(action="review"), 100)) == 20


TAMPERED = {
    "UPDATE audit SET who = 'bob' WHERE number = 2": 2,
    "UPDATE audit SET at = at + 1 WHERE number = 3": 3,
    "UPDATE audit SET details = '{ }' WHERE number = 1": 1,
    "UPDATE audit SET details = '[' WHERE number = 1": 1,
    "UPDATE audit SET model = NULL WHERE number = 2": 2,
    "DELETE FROM audit WHERE number = 2": 2,
    "DELETE FROM audit WHERE number = 4": 4,
    "DELETE FROM audit": 1,
    "DELETE FROM audit_head": 1,
    "UPDATE audit_head SET number = 3": 3,
    "INSERT INTO audit SELECT 5, 'x', at, who, who_kind, who_id, action, model, subject_kind, subject, details, "
    "hash, previous FROM audit WHERE number = 4": 5,
}


@pytest.mark.parametrize("statement", TAMPERED)
def test_a_changed_database_is_detected(tmp_path: Path, statement: str) -> None:
    data = tmp_path / "data"
    with closing(Store(Settings((), data).url)) as store:
        head_file = HeadFile(data, store)
        for index in range(4):
            store.record(Record(Actor("anna"), "model.taught", "part", details={"n": index})).result()
        head_file.advance()
        before = read_head(head_file.path)
        assert store.verify_audit().fault is None
        store.write(lambda connection: connection.exec_driver_sql(statement))
        found = store.verify_audit({"the data folder": before} if before is not None else {})
        assert found.fault is not None
        assert found.entry == TAMPERED[statement]


def test_the_head_in_the_data_folder_shows_what_was_cut_off(tmp_path: Path) -> None:
    """An attacker who also corrects the database's own head is found out by the file, which then stays as it is."""
    data = tmp_path / "data"
    with closing(Store(Settings((), data).url)) as store:
        head_file = HeadFile(data, store)
        store.on_audit = head_file.advance
        for _ in range(5):
            store.record(Record(Actor("anna"), "model.taught", "part")).result()
        wait_until(lambda: read_head(data / NAME) == store.audit_head())
        kept = read_head(data / NAME)
        assert kept is not None
        assert kept.number == 5
        (entry,) = store.audit_entries(AuditFilter(before=4), 1)

        def cut(connection: sa.Connection) -> None:
            connection.exec_driver_sql("DELETE FROM audit WHERE number > 3")
            connection.exec_driver_sql(f"UPDATE audit_head SET number = 3, hash = '{entry.hash}'")

        store.write(cut)
        for _ in range(4):  # the chain grows past the number that the file knows
            store.record(Record(Actor("mallory"), "model.taught", "part")).result()
        assert store.verify_audit().fault is None
        assert store.verify_audit({"the data folder": kept}).entry == 5
        wait_until(lambda: head_file.trouble is not None)
        assert read_head(data / NAME) == kept
    assert "entry 5 is not the one that the data folder knows" in run("audit", "verify", data).error()
    told = run("audit", "verify", data, "--json")
    assert (told.code, json.loads(told.stdout)["entry"]) == (1, 5)


def test_retention_never_breaks_the_chain(url: str, tmp_path: Path) -> None:
    with closing(Store(url)) as store:
        for at in (1000.0, 2000.0):
            one = row(at)
            store.insert_inspection(one).result()
            store.review(one["id"], "unsure", "a scratch?", "anna")
        task = RetentionTask(store, Blobs(tmp_path / "blobs"), Retention(days=1), "me")
        assert task.round() == (2, 0)
        assert store.count(Filter())["verdict"] == {}
        assert store.verify_audit().fault is None
        last, *others = store.audit_entries(AuditFilter(), 10)
        assert (last.action, last.who_kind) == ("retention.deleted", "service")
        assert json.loads(last.details)["inspections"] == 2
        assert [json.loads(entry.details)["note"] for entry in others] == ["a scratch?"] * 2
        assert store.audit_entries(AuditFilter(people=True), 1)[0].action == "review.given"
        assert task.round() == (0, 0)
        assert store.audit_head().number == 3  # a round that deletes nothing is not recorded


# Older databases


@pytest.mark.parametrize("revision", REVISIONS)
def test_older_databases_migrate_with_their_data(url: str, revision: str) -> None:
    older_database(revision, url)
    with closing(Store(url)) as store:
        rows = store.inspections(Filter(), 10)
        assert [one["id"] for one in rows] == list(reversed(INSPECTIONS))
        assert [one["position"] for one in rows] == [3, 2, 1]
        learned = store.inspection(INSPECTIONS[1])
        assert (learned["name"], learned["review"], learned["note"]) == ("Teil-1 ä.png", "false_alarm", "Staub")
        assert (learned["learned_by"], learned["regions"][0]["box"]) == (JOBS[0], [1, 2, 9, 12])
        assert store.count(Filter())["review"] == {"none": 1, "false_alarm": 1, "true_defect": 1}
        assert [(job["id"], job["state"]) for job in store.jobs()] == [(JOBS[1], "failed"), (JOBS[0], "done")]
        assert [(key["name"], key["revoked"] is None) for key in store.all_keys()] == [("line 3", True), ("old", False)]
        session = store.session("cd" * 32)
        if revision == "0003":
            assert session is not None
            assert session["name"] == "line 3"
            assert [user["name"] for user in store.all_users()] == ["Anna Müller", "bob"]
            assert len(store.inspections(Filter(serial="S-0002", lot="L7", line="2", station="end"), 5)) == 1
            with store.reading() as connection:
                assert connection.exec_driver_sql("SELECT per_day FROM samples").scalar() == 12
                assert connection.exec_driver_sql("SELECT caller FROM idempotency").scalar() == "key line 3"
        else:
            assert session is None  # people sign in again
            assert store.all_users() == []
        with store.reading() as connection:
            counted = connection.exec_driver_sql("SELECT count(*) FROM reviews").scalar()
        assert counted == 4
        assert store.live_folders("owner") == {}
        assert store.candidates("owner") == []
        store.insert_part("owner", "L1", part_result(1000.0, 1)).result()
        assert [one["sequence"] for one in store.parts(10)] == [1]
        result = {"inspection": INSPECTIONS[0], "identity": "j", "at": 1.0, "model": "part", "candidate": "part-2"}
        result |= {"score": 2.0, "threshold": 1.0, "verdict": "anomalous", "seconds": 0.1}
        result |= {"live_identity": "i", "live_verdict": "good"}
        assert store.add_shadow_results([result, result]) == 1
        assert store.shadow_counts("part", "i", "j") == Paired(only_second=1)
        assert store.verify_audit() == Verification(Head())
        store.review(INSPECTIONS[2], None, "", Actor("anna", "user", "1"))
        assert store.verify_audit().head.number == 1


def test_a_service_goes_on_with_an_older_data_folder(tmp_path: Path) -> None:
    data = tmp_path / "data"
    older_database("0001", Settings((), data).url)
    with running(settings(data)) as service:
        found = service.client.get("/v1/inspections").json()["inspections"]
        assert [one["id"] for one in found] == list(reversed(INSPECTIONS))
        assert service.client.get(f"/v1/jobs/{JOBS[0]}").json()["state"] == "done"
        service.client.post(f"/v1/inspections/{INSPECTIONS[0]}/review", json={"verdict": "confirmed_good"})
        (entry,) = service.client.get("/v1/audit").json()["entries"]
        assert entry["details"]["name"] == "Teil-0 ä.png"


# The service


@pytest.fixture(scope="module")
def guarded(stored: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service with sign-in, used by the key of an administrator."""
    folder = tmp_path_factory.mktemp("audited")
    store = Store(Settings((), folder / "data").url)
    key = add_key(store, "boss", "admin")
    add_user(store, "Chief", "admin", PASSWORD)
    store.close()
    told = settings(folder / "data", copy_model(stored, folder / "part"), require_key=True)
    with running(told) as service:
        service.client.headers["Authorization"] = f"Bearer {key}"
        yield service


def recorded(client: httpx.Client, **query: Any) -> list[tuple[str, str, str | None, str]]:
    """Who, action, model and subject of all entries of a filter, in their order."""
    entries = client.get("/v1/audit", params={"limit": 500, **query}).raise_for_status().json()["entries"]
    return [(one["who"]["name"], one["action"], one["model"], one["subject"]["id"]) for one in reversed(entries)]


def test_every_action_has_an_entry(guarded: Running, tmp_path: Path) -> None:
    client = guarded.client
    number = guarded.inspect("part", part(30, defect=True)).json()["id"]
    for verdict in ("true_defect", None, "false_alarm"):
        client.post(f"/v1/inspections/{number}/review", json={"verdict": verdict, "note": "dust"}).raise_for_status()
    job = client.post("/v1/models/part/learn", json={"inspections": [number]}).json()["id"]
    assert guarded.job(job)["state"] == "done"
    preset = {"name": "new", "preset": "encoder", "steps": "5000", "image_size": "64"}
    files = [("files", (f"{seed}.png", part(seed))) for seed in range(2)]
    training = client.post("/v1/trainings", files=files, data=preset).json()["id"]
    client.post(f"/v1/jobs/{training}/cancel").raise_for_status()
    assert guarded.job(training)["state"] == "cancelled"
    client.put("/v1/samples/part", json={"per_day": 9}).raise_for_status()
    client.post("/v1/users", json={"name": "anna", "role": "review", "password": PASSWORD}).raise_for_status()
    for change in ({"role": "inspect"}, {"disabled": True}, {"disabled": False}, {"password": f"{PASSWORD}!"}):
        client.patch("/v1/users/anna", json=change).raise_for_status()
    client.delete("/v1/users/anna").raise_for_status()
    client.post("/v1/keys", json={"name": "line 3", "role": "inspect"}).raise_for_status()
    client.delete("/v1/keys/line 3").raise_for_status()
    client.post("/v1/keys", json={"name": "line 3", "role": "root"})  # refused: nothing was done
    boss = [
        *(("boss", f"review.{event}", "part", number) for event in ("given", "withdrawn", "given")),
        *(("boss", f"learn.{event}", "part", job) for event in ("started", "done")),
        *(("boss", f"train.{event}", "new", training) for event in ("started", "cancelled")),
        ("boss", "sample.changed", "part", "part"),
        *(
            ("boss", f"user.{event}", None, "anna")
            for event in ("created", "role", "disabled", "enabled", "password", "deleted")
        ),
        *(("boss", f"key.{event}", None, "line 3") for event in ("created", "revoked")),
    ]
    assert recorded(client, who="boss") == boss
    assert recorded(client, people=True)[2:] == boss  # two were added by a command
    assert recorded(client, action="model") == [("service", "model.replaced", "part", "part")]
    assert recorded(client, model="new") == boss[5:7]
    assert recorded(client, action="review.withdrawn") == boss[1:2]
    assert recorded(client, since=4e9) == recorded(client, until=1.0) == []
    assert len(recorded(client, since=1.0, until=4e9)) == len(boss) + 3
    entries = {one["action"]: one for one in client.get("/v1/audit", params={"who": "boss"}).json()["entries"]}
    assert entries["key.created"]["who"] == {
        "name": "boss",
        "kind": "key",
        "id": client.headers["Authorization"][11:23],
    }
    assert entries["review.given"]["details"]["judged"] == "anomalous"
    assert entries["learn.started"]["details"]["inspections"] == [number]
    assert entries["sample.changed"]["details"] == {"before": 5, "per_day": 9}
    assert entries["user.role"]["details"]["before"] == "review"
    assert client.get("/v1/audit/verification").json()["whole"]


def test_entries_come_in_pages(guarded: Running) -> None:
    client = guarded.client
    for index in range(3):
        client.put("/v1/samples/part", json={"per_day": index})
    everything = client.get("/v1/audit", params={"limit": 500}).json()
    assert everything["next"] is None
    found, before = [], None
    while True:
        page = client.get("/v1/audit", params={"limit": 2, **({} if before is None else {"before": before})}).json()
        found += page["entries"]
        before = page["next"]
        if before is None:
            break
    assert found == everything["entries"]
    assert [one["number"] for one in found] == list(range(len(found), 0, -1))


def test_exports_are_verified_without_the_service(guarded: Running, tmp_path: Path) -> None:
    client = guarded.client
    client.put("/v1/samples/part", json={"per_day": 3})
    exported = client.get("/v1/reports/audit.jsonl")
    assert exported.headers["content-type"] == "application/jsonl"
    path = tmp_path / "audit.jsonl"
    path.write_bytes(exported.content)
    told = run("audit", "verify", path, "--json")
    assert told.code == 0, told.stderr
    said = client.get("/v1/audit/verification").json()
    assert told.json()["head"] == said["head"]
    lines = exported.text.splitlines(keepends=True)
    for tampered, entry in ((lines[:-1], len(lines) - 1), ([lines[0], *lines[2:]], 1)):
        path.write_text("".join(tampered))
        assert f"entry {entry} is missing" in run("audit", "verify", path).error()
    client.put("/v1/samples/part", json={"per_day": 4})  # the chain goes on, and still has the head of before
    data = guarded.service.settings.data
    assert run("audit", "verify", data, "--head", said["head"]).code == 0
    assert run("audit", "verify", data, "--head", f"1:{'0' * 64}").code == 1
    table = client.get("/v1/reports/audit.csv", params={"action": "sample"}).text.splitlines()
    assert table[0].startswith("\ufeffnumber,time,")
    assert len(table) == 1 + len(recorded(client, action="sample"))


def test_the_command_lists_exports_and_verifies(guarded: Running, tmp_path: Path) -> None:
    data = guarded.service.settings.data
    assert run("key", "add", "of a command", "--data", data).code == 0
    listed = json.loads(run("audit", "list", "--data", data, "--json", "--action", "key.created", "--limit", 1).stdout)
    (entry,) = listed["entries"]
    assert (entry["who_kind"], entry["subject"]) == ("command", "of a command")
    assert "key.created" in run("audit", "list", "--data", data).stdout
    assert run("audit", "export", tmp_path / "a.jsonl", "--data", data).code == 0
    verified = run("audit", "verify", tmp_path / "a.jsonl")
    assert "entries is whole" in verified.stdout
    assert "whole" in run("audit", "verify", data, "--head", tmp_path / "a.jsonl").stdout
    assert run("audit", "export", tmp_path / "a.csv", "--data", data).code == 1
    (tmp_path / "b.jsonl").write_text("{}\n")
    assert "not an export of the audit chain" in run("audit", "verify", tmp_path / "b.jsonl").error()
    assert "there is no service's data" in run("audit", "verify", tmp_path / "nothing").error()
    assert not (tmp_path / "nothing").exists()


def test_a_chain_that_does_not_fit_is_reported(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with closing(Store(Settings((), data).url)) as store:
        add_key(store, "one", "inspect")
    (data / NAME).write_text(f"7:{'1' * 64}\n")
    with running(settings(data)) as service:
        assert "the audit chain lacks entry 7" in service.client.get("/readyz").json()["warnings"][0]
        said = service.client.get("/v1/audit/verification").json()
        assert (said["whole"], said["entries"], said["entry"]) == (False, 1, 2)
    (data / NAME).write_text("nonsense")
    with running(settings(data)) as service:
        assert "is broken" in service.client.get("/v1/audit/verification").json()["fault"]


def test_nothing_is_recorded_of_what_could_not_be_stored(tmp_path: Path) -> None:
    with closing(Store(f"sqlite:///{tmp_path / 'x.sqlite'}")) as store:
        one = row()
        store.insert_inspection(one).result()
        (tmp_path / "x.sqlite").rename(tmp_path / "gone")
        store.close()
        with pytest.raises(StoreUnavailable):
            store.review(one["id"], "unsure", "", "anna")
