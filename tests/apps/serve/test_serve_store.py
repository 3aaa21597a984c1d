"""What is remembered, on SQLite and on PostgreSQL, whatever happens to them."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config as AlembicConfig
from alembic.migration import MigrationContext

import patchsvdd.apps.serve.database as database_module
from patchsvdd.apps.serve import migrations, retention
from patchsvdd.apps.serve.auth import add_key
from patchsvdd.apps.serve.blob_store import Blobs
from patchsvdd.apps.serve.database import StoreUnavailable
from patchsvdd.apps.serve.job_lane import CANCELLED
from patchsvdd.apps.serve.job_runner import Jobs
from patchsvdd.apps.serve.problem_details import Problem
from patchsvdd.apps.serve.retention import RetentionTask
from patchsvdd.apps.serve.settings import MEBIBYTE, Retention, Settings, database_url
from patchsvdd.apps.serve.store import Filter, Row, Store, new_id
from patchsvdd.apps.serve.tables import inspections, metadata
from patchsvdd.core.errors import ConfigError, OutputError
from patchsvdd.core.files import locked
from patchsvdd.detector.model_folder import journal_of, read_index
from support.command_line import run
from support.parts import NO_ESTIMATE
from support.postgres import Postgres
from support.serving import ENVIRONMENT, PROGRAM, copy_model, ended, part, process, reviews_of, row, running, settings
from support.waiting import wait_until

pytestmark = pytest.mark.service
pytest_plugins = ("support.databases",)


@contextmanager
def opened(url: str) -> Iterator[Store]:
    store = Store(url)
    try:
        yield store
    finally:
        store.close()


# Both databases


def test_inspections_are_written_once_and_found(url: str) -> None:
    with opened(url) as store:
        rows = [row(1000.0 + index, name=f"über {index}%_\\.png") for index in range(5)]
        for one in rows:
            store.insert_inspection(one).result()
            store.insert_inspection(one).result()  # its acknowledgement was lost
        assert [one["id"] for one in store.inspections(Filter(), 10)] == [one["id"] for one in reversed(rows)]
        assert store.inspection(rows[2]["id"])["regions"] == []
        with pytest.raises(Problem, match="there is no inspection 0000"):
            store.inspection("0" * 24)
        assert len(store.inspections(Filter(name="ÜBER 3%_\\"), 10)) == (1 if "postgresql" in url else 0)
        assert len(store.inspections(Filter(name="ber 3%_\\"), 10)) == 1
        assert len(store.inspections(Filter(name="%"), 10)) == 5
        assert len(store.inspections(Filter(name="_3"), 10)) == 0
        assert len(store.inspections(Filter(since=1001.0, until=1003.0), 10)) == 2
        assert store.inspections(Filter(before=rows[3]["id"], after=rows[0]["id"]), 10)[-1]["id"] == rows[1]["id"]
        assert store.count(Filter()) == {"verdict": {"good": 5}, "review": {"none": 5}}


def test_reviews_jobs_keys_and_sessions(url: str) -> None:
    with opened(url) as store:
        one = row()
        store.insert_inspection(one).result()
        reviewed = store.review(one["id"], "false_alarm", "dust", "anna")
        assert reviewed is not None
        assert (reviewed["review"], reviewed["note"], reviewed["reviewed_by"]) == ("false_alarm", "dust", "anna")
        assert store.review("0" * 24, "unsure", "", "anna") is None
        store.mark_learned([one["id"]], "job")
        assert store.inspections(Filter(learned=True), 10)[0]["learned_by"] == "job"
        withdrawn = store.review(one["id"], None, "", "anna")
        assert withdrawn is not None
        assert withdrawn["review"] is withdrawn["reviewed_at"] is None
        assert [verdict for verdict, _ in reviews_of(store, one["id"])] == ["false_alarm", None]
        job: dict[str, Any] = {
            "id": new_id(),
            "kind": "learn",
            "model": "part",
            "state": "waiting",
            "order": {"a": 1},
            "by": "x",
        }
        store.insert_job({**job, "stage": "", "done": 0, "total": 0, "created": 1.0, "updated": 1.0})
        store.update_job(job["id"], state="done", result={"images": ["ä"]})
        assert store.job(job["id"])["result"] == {"images": ["ä"]}  # type: ignore[index]
        assert store.jobs(states=("waiting",)) == []
        key = add_key(store, "line 3", "inspect")
        with pytest.raises(ConfigError, match="already"):
            add_key(store, "line 3", "admin")
        number = key.split("_")[1]
        store.insert_session("d" * 64, number, time.time() + 60)
        assert store.session("d" * 64)["name"] == "line 3"  # type: ignore[index]
        store.insert_session("e" * 64, number, time.time() - 1)
        assert store.session("e" * 64) is None
        assert store.revoke_key("line 3")
        assert store.session("d" * 64) is None
        assert not store.revoke_key("line 3")


def test_migrations_lead_to_the_tables_and_back(url: str) -> None:
    with opened(url):
        pass
    engine = sa.create_engine(url)
    config = AlembicConfig()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
        config.attributes["connection"] = connection
        command.downgrade(config, "base")
        connection.commit()
        assert set(sa.inspect(connection).get_table_names()) <= {"alembic_version"}
        command.upgrade(config, "head")
        connection.commit()
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    engine.dispose()


def test_a_database_of_before_gets_positions(url: str) -> None:
    with opened(url) as store:
        for model, identity in (("a", "i"), ("a", "j"), ("a", "i"), ("b", "i"), ("a", "i")):
            store.insert_inspection(row(model=model, identity=identity)).result()
    engine = sa.create_engine(url)
    config = AlembicConfig()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    with engine.connect() as connection:
        config.attributes["connection"] = connection
        command.downgrade(config, "0001")
        connection.commit()
    engine.dispose()
    with opened(url) as store:
        store.insert_inspection(row(model="a")).result()
        rows = store.inspections(Filter(), 10)
        assert sorted((one["model"], one["identity"], one["position"]) for one in rows) == [
            *(("a", "i", position) for position in (1, 2, 3, 4)),
            ("a", "j", 1),
            ("b", "i", 1),
        ]


def test_blocks_stay_where_they_are(url: str) -> None:
    with opened(url) as store:
        assert store.last_block("part", "i", 4) == (1, [])
        rows = [row(1000.0 + index) for index in range(10)]
        for one in rows:
            store.insert_inspection(one).result()
            store.insert_inspection(row(identity="another")).result()
        first, found = store.last_block("part", "i", 4)
        assert first == 9
        assert [(one["id"], one["position"]) for one in found] == [(rows[at]["id"], at + 1) for at in range(4, 10)]
        with store._engine.begin() as connection:
            connection.execute(sa.delete(inspections).where(inspections.c.id <= rows[5]["id"]))
        store.insert_inspection(row(1010.0)).result()
        first, found = store.last_block("part", "i", 4)
        assert (first, [one["position"] for one in found]) == (9, [7, 8, 9, 10, 11])


def test_many_writes_share_a_commit(url: str) -> None:
    with opened(url) as store:
        commits = 0

        @sa.event.listens_for(store._engine, "commit")
        def count(_: Any) -> None:
            nonlocal commits
            commits += 1

        gate = threading.Event()
        first = store.submit(lambda _: gate.wait(10))
        wait_until(lambda: first.running())
        futures = [store.insert_inspection(row()) for _ in range(40)]
        failing = store.submit(lambda _: 1 / 0)
        gate.set()
        for one in futures:
            one.result()
        with pytest.raises(ZeroDivisionError):  # by itself: the others of its transaction are kept
            failing.result()
        assert sum(store.count(Filter())["verdict"].values()) == 40
        assert commits <= 4


def test_a_cancelled_write_does_not_end_the_writer(url: str) -> None:
    with opened(url) as store:
        gate = threading.Event()
        first = store.submit(lambda _: gate.wait(10))
        wait_until(lambda: first.running())
        assert store.insert_inspection(row()).cancel()
        gate.set()
        store.insert_inspection(row()).result(timeout=10)
        assert sum(store.count(Filter())["verdict"].values()) == 1


def test_two_may_start_at_once(url: str) -> None:
    program = "import sys; from patchsvdd.apps.serve.store import Store; Store(sys.argv[1]).close()"
    started = [
        subprocess.Popen([sys.executable, "-c", program, url], env=ENVIRONMENT, stderr=subprocess.PIPE)
        for _ in range(3)
    ]
    for one in started:
        _, said = one.communicate()
        assert one.returncode == 0, said


# SQLite


def test_keys_are_added_while_the_service_writes(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'inspections.sqlite'}"
    with opened(url) as store:
        stopped = threading.Event()

        def write() -> int:
            count = 0
            while not stopped.is_set():
                store.insert_inspection(row()).result()
                count += 1
            return count

        with ThreadPoolExecutor(4) as pool:
            writing = [pool.submit(write) for _ in range(3)]
            try:
                key = [*PROGRAM, "key", "add", "line", "--role", "inspect", "--data", str(tmp_path)]
                said = subprocess.run(key, capture_output=True, text=True, env=ENVIRONMENT, check=True)
            finally:
                stopped.set()
            written = sum(one.result() for one in writing)
        assert said.stdout.startswith("psk_")
        assert [one["name"] for one in store.all_keys()] == ["line"]
        assert sum(store.count(Filter())["verdict"].values()) == written > 0


def test_a_file_that_another_took_the_place_of_is_not_written_to(tmp_path: Path) -> None:
    file = tmp_path / "inspections.sqlite"
    with opened(f"sqlite:///{file}") as other:
        other.insert_inspection(row()).result()
    for path in tmp_path.iterdir():
        path.unlink()
    with opened(f"sqlite:///{file}") as store:
        store.insert_inspection(row(name="before")).result()
        with sqlite3.connect(file) as source, sqlite3.connect(tmp_path / "backup") as target:
            source.backup(target)
        target.close()
        for path in tmp_path.glob("inspections*"):
            path.unlink()
        (tmp_path / "backup").rename(file)
        store.insert_inspection(row(name="after")).result()  # waits for the file, and finds the new one
    with opened(f"sqlite:///{file}") as store:
        assert {one["name"] for one in store.inspections(Filter(), 10)} == {"before", "after"}


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.sqlite").write_bytes(b"something else" * 1000)
    with pytest.raises(OutputError, match="cannot be used"):
        Store(f"sqlite:///{tmp_path / 'x.sqlite'}")
    for wrong in ("mysql://x", "sqlite:///", "sqlite:///:memory:", "nonsense"):
        with pytest.raises(ConfigError, match="`store`"):
            database_url(wrong)


def test_the_password_is_not_told() -> None:
    with pytest.raises(OutputError) as told:
        Store(database_url("postgresql://anna:s3cret@127.0.0.1:1/none"))
    assert "s3cret" not in str(told.value)
    assert "anna" in str(told.value)


# Faults


def ask_on(url: str, stopped: threading.Event, acknowledged: list[dict[str, Any]], seed: int) -> None:
    """Inspect until stopped, or until the server is gone."""
    with httpx.Client(base_url=url, timeout=30) as client:
        while not stopped.is_set():
            try:
                answer = client.post("/v1/models/part/inspect", content=part(seed, defect=True))
            except httpx.TransportError:
                return
            if answer.status_code == 200:
                acknowledged.append(answer.json())
            seed += 10


def require_kept(client: httpx.Client, acknowledged: list[dict[str, Any]]) -> None:
    """Each is there, with its picture and its map."""
    for one in acknowledged:
        found = client.get(f"/v1/inspections/{one['id']}").json()
        assert found["score"] == one["score"]
        for what in ("picture", "map"):
            assert client.get(f"/v1/inspections/{one['id']}/{what}").status_code == 200


def test_kill_9_loses_nothing_that_was_acknowledged(stored: Path, tmp_path: Path) -> None:
    acknowledged: list[dict[str, Any]] = []
    for _ in range(2):
        with process(tmp_path / "data", str(stored)) as server:
            orphans = []
            stopped = threading.Event()
            count = len(acknowledged)
            threads = [
                threading.Thread(target=ask_on, args=(server.url, stopped, acknowledged, seed)) for seed in range(4)
            ]
            for one in threads:
                one.start()
            wait_until(lambda count=count: len(acknowledged) >= count + 8)  # type: ignore[misc]
            orphans = server.children()
            server.kill()
            stopped.set()
            for one in threads:
                one.join()
            assert orphans  # its decoders, which end with it
            wait_until(lambda orphans=orphans: not any(_lives(number) for number in orphans))  # type: ignore[misc]
    with running(settings(tmp_path / "data", stored)) as again:
        require_kept(again.client, acknowledged)
        total = again.client.get("/v1/inspections/counts").json()["total"]
        assert total >= len(acknowledged)


def _lives(number: int) -> bool:
    try:
        state = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[Path]:
    """A disk that is full soon."""
    folder.mkdir()
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root can make a small disk")
    size = f"size={megabytes}m"
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(folder)], capture_output=True, text=True)
    if made.returncode != 0:
        pytest.skip(f"no small disk can be made: {made.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_is_answered_with_503_and_gets_over(stored: Path, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 8) as disk, running(settings(disk / "data", stored)) as server:
        good = [server.inspect("part", part(seed)).json() for seed in range(2)]
        ballast = disk / "ballast"
        with suppress(OSError), ballast.open("wb", buffering=0) as file:
            while True:
                file.write(b"\0" * 4096)
        statuses = []
        for seed in range(10, 24):
            answer = server.inspect("part", part(seed))
            statuses.append(answer.status_code)
            if answer.status_code == 200:
                good.append(answer.json())
            else:
                assert answer.status_code == 503
                assert answer.json()["type"] == "urn:patchsvdd:store-unavailable"
                assert answer.headers["retry-after"]
        assert 503 in statuses
        reviewed = server.client.post(f"/v1/inspections/{good[0]['id']}/review", json={"verdict": "unsure"})
        assert reviewed.status_code in (200, 503)
        files = [("files", (f"{seed}.png", part(seed))) for seed in range(4)]
        refused = server.client.post(
            "/v1/trainings", files=files, data={"name": "x", "preset": "encoder", "steps": "2"}
        )
        assert refused.status_code == 503
        assert server.client.get("/v1/inspections").status_code == 200
        ballast.unlink()
        wait_until(lambda: server.inspect("part", part(30)).status_code == 200)
        require_kept(server.client, good)


def test_postgresql_may_be_restarted(postgres_server: Postgres, stored: Path, tmp_path: Path) -> None:
    with running(settings(tmp_path / "data", stored, store=postgres_server.url)) as service:
        acknowledged: list[dict[str, Any]] = []
        stopped = threading.Event()
        threads = [
            threading.Thread(target=ask_on, args=(service.url, stopped, acknowledged, seed)) for seed in range(3)
        ]
        for one in threads:
            one.start()
        try:
            wait_until(lambda: len(acknowledged) >= 5)
            postgres_server.stop("immediate")
            assert service.client.get("/readyz").status_code == 503
            time.sleep(0.5)
            postgres_server.start()
            count = len(acknowledged)
            wait_until(lambda: len(acknowledged) >= count + 5, 40)
            assert service.client.get("/readyz").status_code == 200
        finally:
            stopped.set()
            for one in threads:
                one.join()
        require_kept(service.client, acknowledged)


def test_without_postgresql_it_says_503_and_no_more_than_that(
    postgres_server: Postgres, stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "RETRY_SECONDS", 0.5)
    with running(settings(tmp_path / "data", stored, store=postgres_server.url)) as service:
        postgres_server.stop()
        try:
            for answer in (service.inspect("part", part()), service.client.get("/v1/inspections")):
                assert answer.status_code == 503
                assert answer.json()["type"] == "urn:patchsvdd:store-unavailable"
                assert "tester" not in answer.text
            assert service.client.get("/healthz").status_code == 200
        finally:
            postgres_server.start()
        assert service.inspect("part", part()).status_code == 200


# Jobs that were not finished


def test_learning_and_undoing_are_taken_up_again(stored: Path, tmp_path: Path) -> None:
    """A service is killed after a job has changed the model and before that is written down."""
    model = copy_model(stored, tmp_path / "part")
    data = tmp_path / "data"
    with running(settings(data, model)) as server:
        before = server.inspect("part", part(30, defect=True)).json()
        number = before["id"]
        server.client.post(f"/v1/inspections/{number}/review", json={"verdict": "false_alarm"})

        def forget(job: str) -> None:
            """As if the end of a job had not been written."""
            store = server.service.store
            images = data / "jobs" / job / "images"
            images.mkdir(exist_ok=True)
            (images / f"{number}.png").write_bytes(part(30, defect=True))
            if store.job(job)["kind"] == "learn":  # type: ignore[index]
                store.mark_learned([number], None)
            else:
                store.mark_learned([number], learned["id"])
            store.update_job(job, state="running", result=None)

        learned = server.job(server.client.post("/v1/models/part/learn").json()["id"])
        forget(learned["id"])
        again = server.job(learned["id"])
        assert again["state"] == "done", again
        assert again["result"]["already"] is True
        assert server.client.get(f"/v1/inspections/{number}").json()["learned_by"] == learned["id"]
        after = server.inspect("part", part(30, defect=True)).json()
        assert after["score"] < before["score"]
        assert after["identity"] == again["result"]["identity"]
        assert len(server.client.get("/v1/models/part").json()["journal"]) == 1

        undone = server.job(server.client.post("/v1/models/part/undo").json()["id"])
        forget(undone["id"])
        again = server.job(undone["id"])
        assert again["state"] == "done", again
        assert server.client.get(f"/v1/inspections/{number}").json()["learned_by"] is None
        assert server.inspect("part", part(30, defect=True)).json()["identity"] == before["identity"]


def test_a_killed_service_goes_on_with_its_training(tmp_path: Path) -> None:
    data = tmp_path / "data"
    files = [("files", (f"{seed}.png", part(seed))) for seed in range(3)]
    with process(data) as server:
        fields = {"name": "washer", "preset": "encoder", "steps": "20", "image_size": "64", **NO_ESTIMATE}
        number = server.client.post("/v1/trainings", files=files, data=fields).json()["id"]
        other = server.client.post("/v1/trainings", files=files, data={**fields, "name": "bolt"}).json()["id"]
        wait_until(lambda: server.client.get(f"/v1/jobs/{number}").json()["state"] == "running")
        assert server.client.post(f"/v1/jobs/{other}/cancel").status_code == 200
        server.kill()
    with process(data) as server:
        assert ended(server.client, number, 400)["state"] == "done"
        assert ended(server.client, other)["state"] == "cancelled"
        assert server.client.post("/v1/models/washer/inspect", content=part(9)).status_code == 200


def _niceness(process: subprocess.Popen[str] | None) -> int:
    """The niceness of a process; None is this one."""
    return os.getpriority(os.PRIO_PROCESS, 0 if process is None else process.pid)


def test_a_job_waits_for_its_own_earlier_process(stored: Path, tmp_path: Path) -> None:
    model = copy_model(stored, tmp_path / "part")
    store = Store(f"sqlite:///{tmp_path / 'x.sqlite'}")
    jobs = Jobs(store, tmp_path / "jobs", lambda _: None, owner="me")
    number, folder = jobs.prepare()
    (folder / "images").mkdir()
    (folder / "images" / f"{'a' * 24}.png").write_bytes(part(50))
    order = {"model": str(model), "images": str(folder / "images"), "device": "cpu", "keep_threshold": True}
    try:
        with locked(folder, "testing"):
            jobs.start()
            lane = jobs._lanes["change"]
            jobs.add(number, "learn", "part", {**order, "inspections": ["a" * 24]}, "me")
            wait_until(lambda: store.job(number)["state"] == "running")  # type: ignore[index]
            wait_until(lambda: _niceness(lane._running) > _niceness(None))  # the last thing before it needs the lock
            time.sleep(0.5)
            assert journal_of(read_index(model)) == []
            assert store.job(number)["state"] == "running"  # type: ignore[index]
        wait_until(lambda: store.job(number)["state"] == "done", 180)  # type: ignore[index]
        assert [one["change"] for one in journal_of(read_index(model))] == ["add"]
    finally:
        jobs.close()
        store.close()


def test_what_an_upload_left_that_was_cut_off_is_deleted(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path / 'x.sqlite'}")
    before = Jobs(store, tmp_path / "jobs", lambda _: None, owner="me")
    _, left = before.prepare()
    (left / "images").mkdir()
    kept, folder = before.prepare()
    before.add(kept, "train", "part", {}, "me")
    store.update_job(kept, state="done")
    (tmp_path / "jobs" / "something else").mkdir()
    time.sleep(0.01)
    jobs = Jobs(store, tmp_path / "jobs", lambda _: None, owner="me")
    _, coming = jobs.prepare()
    jobs.start()
    wait_until(lambda: not left.exists())
    jobs.close()
    store.close()
    assert folder.exists()
    assert coming.exists()
    assert (tmp_path / "jobs" / "something else").exists()


def test_a_job_that_cannot_be_run_does_not_end_the_others(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path / 'x.sqlite'}")

    def fail(_: Row) -> None:
        raise KeyError("nobody thought of this")

    jobs = Jobs(store, tmp_path / "jobs", fail, owner="me")
    jobs.start()
    try:
        for kind in ("preview", "undo"):  # the first lacks most of its order
            number, folder = jobs.prepare()
            shutil.rmtree(folder)
            jobs.add(number, kind, "part", {"model": str(tmp_path / "none"), "identity": "x", "images": []}, "me")
            wait_until(lambda number=number: store.job(number)["state"] == "failed", 180)  # type: ignore[misc,index]
        assert all(lane.is_alive for lane in jobs._lanes.values())
        assert not (jobs.folder(number) / CANCELLED).exists()
    finally:
        jobs.close()
        store.close()


# Files and retention


def test_blobs_are_written_once_and_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blobs = Blobs(tmp_path / "pictures")
    name = blobs.put(b"data")
    assert blobs.put(b"data") == name
    assert blobs.get(name) == b"data"
    assert blobs.get("0" * 64) is None
    for wrong in ("../../etc/passwd", "", "A" * 64, "0" * 63, "0" * 64 + "\n"):
        with pytest.raises(ValueError, match="not the name"):
            blobs.path(wrong)
    blobs.path(name).write_bytes(b"da")  # cut off by a crash of the disk
    assert blobs.put(b"data") == name
    assert blobs.get(name) == b"data"

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match="No space left"):
        blobs.put(b"more")
    assert not list(blobs.folder.rglob("*.tmp"))


def keeper_of(
    tmp_path: Path, days: float | None = None, room: int | None = None
) -> tuple[Store, Blobs, RetentionTask, Callable[..., dict[str, Any]]]:
    store, blobs = Store(f"sqlite:///{tmp_path / 'x.sqlite'}"), Blobs(tmp_path / "pictures")
    keeper = RetentionTask(store, blobs, Retention(days, room))

    def add(at: float, content: bytes, **values: Any) -> dict[str, Any]:
        name = blobs.put(content)
        one = row(at, picture=name, picture_bytes=len(content), **values)
        store.insert_inspection(one).result()
        return one

    return store, blobs, keeper, add


def age(blobs: Blobs, seconds: float) -> None:
    for path in blobs.folder.rglob("*"):
        if path.is_file():
            os.utime(path, (time.time() - seconds,) * 2)


def test_old_inspections_are_forgotten_with_their_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "MAX_DELETED", 3)
    store, blobs, keeper, add = keeper_of(tmp_path, days=10)
    now = time.time()
    old = [add(now - 86400 * 11 - index, b"old %d" % index) for index in range(7)]
    shared = add(now - 86400 * 12, b"shared")
    young = [add(now - 86400 * 9, b"young"), add(now, b"shared")]
    store.review(old[0]["id"], "unsure", "", "me")
    (blobs.folder / "ab").mkdir(exist_ok=True)
    (blobs.folder / "ab" / ".left.tmp").write_bytes(b"by a killed process")
    fresh = blobs.put(b"its inspection is about to be written")
    age(blobs, 2 * retention.MIN_AGE)
    os.utime(blobs.path(fresh))
    assert keeper.round() == (8, 0)
    assert {one["id"] for one in store.inspections(Filter(), 100)} == {one["id"] for one in young}
    assert reviews_of(store, old[0]["id"]) == []
    assert all(blobs.get(one["picture"]) is None for one in old)
    assert blobs.get(shared["picture"]) == b"shared"
    assert blobs.get(fresh) is not None
    assert not list(blobs.folder.rglob("*.tmp"))
    assert keeper.round() == (0, 0)
    store.close()


def test_pictures_go_by_size_the_reviewed_last(tmp_path: Path) -> None:
    store, blobs, keeper, add = keeper_of(tmp_path, room=MEBIBYTE)
    now = time.time()
    rows = [add(now + index, os.urandom(MEBIBYTE // 4)) for index in range(8)]
    store.review(rows[0]["id"], "false_alarm", "", "me")
    age(blobs, 2 * retention.MIN_AGE)
    assert keeper.round() == (0, 4)
    held = [one["id"] for one in store.inspections(Filter(), 100)[::-1] if one["picture"]]
    assert held == [rows[0]["id"], *(one["id"] for one in rows[5:])]
    assert len(store.inspections(Filter(), 100)) == 8
    files = {path.name for path in blobs.folder.rglob("*") if path.is_file()}
    assert files == {one["picture"] for one in [rows[0], *rows[5:]]}
    store.close()


def test_retention_takes_nothing_that_is_named_while_others_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "MIN_AGE", 0.3)
    store, blobs, keeper, add = keeper_of(tmp_path, room=MEBIBYTE)
    stopped = threading.Event()
    contents = [os.urandom(MEBIBYTE // 16) for _ in range(40)]

    def write(seed: int) -> int:
        count = 0
        while not stopped.is_set():
            add(time.time(), contents[(seed + 7 * count) % len(contents)])
            count += 1
        return count

    with ThreadPoolExecutor(3) as pool:
        writing = [pool.submit(write, seed) for seed in range(3)]
        emptied, end = 0, time.monotonic() + 4
        while time.monotonic() < end:
            emptied += keeper.round()[1]
        stopped.set()
        assert sum(one.result() for one in writing) > emptied > 0
    named = {one["picture"] for one in store.inspections(Filter(), 100_000) if one["picture"]}
    assert named
    assert all(blobs.get(name) is not None for name in named)
    store.close()


def test_retention_that_cannot_be_is_refused() -> None:
    for wrong in ({"days": 0}, {"days": float("nan")}, {"days": 1e308}, {"bytes": 1}):
        with pytest.raises(ConfigError, match="`keep"):
            Retention(**wrong)


def test_a_service_says_where_it_keeps_its_data_and_does_not_share_it(stored: Path, tmp_path: Path) -> None:
    with process(tmp_path / "data", str(stored)) as server:
        assert f"storing images, training jobs and the database in {tmp_path / 'data'} " in server.said()
        assert "second service" in run("serve", stored, "--data", tmp_path / "data", "--port", 0).error()


def test_a_store_that_is_closed_says_so(tmp_path: Path) -> None:
    store = Store(Settings((), tmp_path).url)
    store.close()
    with pytest.raises(StoreUnavailable):
        store.write(lambda _: None)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--max-megabytes", "nan"),
        ("--max-megapixels", "inf"),
        ("--keep-gb", "-1"),
        ("--keep-days", "0"),
        ("--queue", "0"),
        ("--deadline", "nan"),
        ("--store", "mysql://x"),
    ],
)
def test_options_that_make_no_sense_are_refused(option: str, value: str, tmp_path: Path) -> None:
    assert option in run("serve", "--data", tmp_path / "data", "--port", 0, option, value).error()
