"""Jobs: their lanes, owners, ends and second attempts; undo by journal entry; models that cannot be loaded."""

from __future__ import annotations

import json
import re
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from patchsvdd.apps.serve import job_lane, job_process, model_registry, service_lock
from patchsvdd.apps.serve.client_names import read_names, write_names
from patchsvdd.apps.serve.hidden_paths import HiddenPaths
from patchsvdd.apps.serve.job_runner import Jobs
from patchsvdd.apps.serve.loss_file import LossFile, read_losses
from patchsvdd.apps.serve.problem_details import Problem
from patchsvdd.apps.serve.service import Service
from patchsvdd.apps.serve.service_lock import ServiceLock, is_running
from patchsvdd.apps.serve.settings import Settings, database_url
from patchsvdd.apps.serve.store import Row, Store
from patchsvdd.apps.serve.training_plan import training_plan
from patchsvdd.apps.serve.training_progress import TrainingProgress
from patchsvdd.core.errors import ConfigError, ModelError
from patchsvdd.core.presets import PRESETS, preset
from patchsvdd.detector.memory_update import add_images
from patchsvdd.detector.model_folder import change_model, journal_of, read_index
from patchsvdd.detector.schedule import CPU_MINUTES
from patchsvdd.training.checkpoint import CheckpointFile
from support.parts import NO_ESTIMATE, ROOT, draw_part, save_picture
from support.postgres import missing, postgres
from support.serving import Running, copy_model, part, row, running, settings
from support.waiting import wait_until

pytestmark = pytest.mark.service
Script = list[dict[str, Any]]


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs follow scripts instead of computing."""
    program = ROOT / "tests" / "support" / "scripted_job.py"
    monkeypatch.setattr(job_lane, "COMMAND", (sys.executable, "-S", str(program)))


class Desk:
    """Jobs on a SQLite database, with helpers."""

    def __init__(self, folder: Path, owner: str = "me") -> None:
        self.store = Store(f"sqlite:///{folder / 'x.sqlite'}")
        self.folder = folder
        self.done: list[Row] = []
        self.jobs = Jobs(self.store, folder / "data" / "jobs", self.done.append, owner=owner)

    def add(self, kind: str, *steps: dict[str, Any], again: Script | None = None, model: str = "part") -> str:
        """Add a job that follows these steps."""
        number, _ = self.jobs.prepare()
        script: dict[str, Script] = {"first": list(steps)} | ({} if again is None else {"again": again})
        self.jobs.add(number, kind, model, {"model": str(self.folder / "out" / model), "script": script}, "tester")
        return number

    def job(self, number: str) -> Row:
        return self.jobs.found(number)

    def wait_for(self, number: str, *states: str) -> Row:
        wait_until(lambda: self.job(number)["state"] in states)
        return self.job(number)

    def starts(self, number: str) -> list[str]:
        return (self.jobs.folder(number) / "starts").read_text().splitlines()


@pytest.fixture
def desk(tmp_path: Path, scripted: None) -> Iterator[Desk]:
    with opened(tmp_path) as found:
        yield found


@contextmanager
def opened(folder: Path, owner: str = "me") -> Iterator[Desk]:
    desk = Desk(folder, owner)
    desk.jobs.start()
    try:
        yield desk
    finally:
        desk.jobs.close()
        desk.store.close()


RESULT: dict[str, Any] = {"send": {"result": {"images": []}}}


def waiting(path: Path) -> dict[str, Any]:
    """A step that waits for a file."""
    return {"wait": str(path)}


# Lanes


def test_learning_does_not_wait_for_a_training(desk: Desk, tmp_path: Path) -> None:
    """M5."""
    training = desk.add("train", waiting(tmp_path / "go"), RESULT, model="slow")
    desk.wait_for(training, "running")
    learning = desk.add("learn", RESULT)
    desk.wait_for(learning, "done")
    assert desk.job(training)["state"] == "running"
    (tmp_path / "go").touch()
    desk.wait_for(training, "done")


def test_a_waiting_job_says_what_for_and_is_cancelled_at_once(desk: Desk, tmp_path: Path) -> None:
    """M5."""
    first = desk.add("train", waiting(tmp_path / "go"), RESULT, model="first")
    desk.wait_for(first, "running")
    second, other = desk.add("train", RESULT, model="second"), desk.add("preview", waiting(tmp_path / "go"), RESULT)
    third = desk.add("learn", RESULT)
    desk.wait_for(other, "running")
    told = desk.jobs.situation([desk.job(number) for number in (first, second, third)])
    assert [one["waiting_for"] for one in told] == [
        None, {"kind": "train", "model": "first"}, {"kind": "preview", "model": "part"},
    ]  # fmt: skip
    cancelled = desk.jobs.cancel(second)
    assert (cancelled["state"], cancelled["stage"]) == ("cancelled", "cancelled")
    assert desk.job(first)["state"] == "running"
    (tmp_path / "go").touch()
    desk.wait_for(third, "done")
    desk.wait_for(first, "done")
    assert desk.job(second)["state"] == "cancelled"
    assert not (desk.jobs.folder(second) / "starts").exists()


# How jobs end


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (
            {"die": signal.SIGKILL},
            r"was killed \(SIGKILL\), probably because memory ran out; continue it, or use fewer",
        ),
        ({"die": signal.SIGABRT}, r"was ended by a signal \(SIGABRT\); continue it"),
        ({"exit": 3}, r"ended unexpectedly \(exit status 3\); continue it"),
    ],
)
def test_a_process_that_dies_is_reported_with_what_to_do(
    desk: Desk, caplog: pytest.LogCaptureFixture, step: dict[str, Any], said: str
) -> None:
    """M4: "ended without a word" helps nobody."""
    number = desk.add("train", {"send": {"stage": "training", "done": 1, "total": 9}}, {**step})
    ended = desk.wait_for(number, "failed")
    assert re.search(said, ended["error"]), ended["error"]
    if "die" in step:
        wait_until(lambda: "the last words of the process" in caplog.text)


def test_a_signal_to_all_processes_of_a_service_does_not_fail_its_jobs(desk: Desk, tmp_path: Path) -> None:
    """systemd and Ctrl-C send it to the job's process too, which may end before the service begins to stop."""
    number = desk.add("train", waiting(tmp_path / "go"), RESULT)
    wait_until(lambda: (desk.jobs.folder(number) / "starts").exists())
    lane = desk.jobs._lanes["train"]
    assert lane._running is not None
    lane._running.send_signal(signal.SIGTERM)
    wait_until(lambda: len(desk.starts(number)) == 2)
    (tmp_path / "go").touch()
    desk.wait_for(number, "done")


def test_losses_never_run_backwards(desk: Desk, tmp_path: Path) -> None:
    """L3: a training that goes on from a checkpoint repeats steps."""

    def losses(*steps: int) -> Script:
        return [{"send": {"losses": {"step": step, "steps": 20, "scales": {"try": steps[0]}}}} for step in steps]

    number = desk.add("train", *losses(*range(1, 14)), waiting(tmp_path / "never"), again=[*losses(10, 11, 12), RESULT])
    wait_until(lambda: len(desk.jobs.losses(number)) == 13)
    desk.jobs.close()
    with opened(tmp_path) as again:
        again.wait_for(number, "done")
        found = again.jobs.losses(number)
    assert [one["step"] for one in found] == list(range(1, 13))
    assert [one["scales"]["try"] for one in found] == [1] * 9 + [10] * 3


def test_a_half_written_loss_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "losses.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"st')
    file = LossFile(path)
    file.add({"step": 3})
    file.close()
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n{"step": 3}\n'
    assert [one["step"] for one in read_losses(path)] == [1, 2, 3]


# Time left


def follow(plan: dict[str, float], stages: list[tuple[str, int, float]]) -> list[tuple[float, float | None, float]]:
    """Report stages of (name, units, seconds a unit takes); returns fraction, seconds left, and what is really left."""
    now = 100.0
    progress = TrainingProgress(plan, lambda: now)
    whole = now + sum(units * seconds for _, units, seconds in stages)
    found = []
    for name, units, seconds in stages:
        for done in range(1, units + 1):
            now += seconds
            progress.report(name, done, units)
            forecast = progress.forecast()
            found.append((forecast.fraction, forecast.seconds_left, whole - now))
    return found


@pytest.mark.parametrize("slower", [0.1, 1.0, 4.0])
def test_the_fraction_never_falls_and_the_time_left_is_sound(slower: float) -> None:
    """One bar over all stages, on a machine that is as fast as planned or not."""
    plan = training_plan(preset("best", minutes=10, image_size=256), 60)
    stages = [("images", 60, 0.2), ("copies", 64, 0.2)]
    stages += [
        (name, 100, slower * plan[name] / 100) for name in plan if name not in ("images", "copies") and plan[name]
    ]
    found = follow(plan, stages)
    fractions = [fraction for fraction, _, _ in found]
    assert fractions == sorted(fractions)
    assert fractions[0] < 0.05
    assert fractions[-1] == pytest.approx(1.0)
    begun = next(fraction for fraction, left, _ in found if left is not None)
    assert begun < 0.1
    late = [(left, real) for fraction, left, real in found if fraction > 0.1 and real > 30]
    assert late
    for left, real in late:
        assert left is not None
        assert real / 2 < left < 2 * real
    assert found[-1][1] == pytest.approx(0.0, abs=1.0)


def test_a_training_that_goes_on_starts_where_it_was() -> None:
    now = 0.0
    progress = TrainingProgress({"images": 1.0, "training": 100.0, "memory": 10.0}, lambda: now)
    progress.report("training", 50, 100)
    assert progress.forecast().fraction == pytest.approx(51 / 111)
    assert progress.forecast().seconds_left is None
    now = 20.0
    progress.report("training", 60, 100)  # 2 s a step, twice as long as planned
    left = progress.forecast().seconds_left
    assert left is not None
    assert 80 + 10 < left < 80 + 25
    now = 60.0  # no report for a while: time passes nevertheless
    later = progress.forecast().seconds_left
    assert later == pytest.approx(left - 40)
    progress.report("training", 0, 100)  # it collapsed and starts over
    progress.report("images", 1, 1)
    progress.report("unheard of", 1, 1)
    assert progress.forecast().fraction == pytest.approx(61 / 111)


@pytest.mark.parametrize("name", list(PRESETS))
def test_every_preset_has_a_plan(name: str) -> None:
    for images in (1, 40):
        plan = training_plan(preset(name), images)
        assert plan["training"] > 0
        assert all(seconds >= 0 for seconds in plan.values())
    limited = training_plan(preset(name, minutes=2), 40)
    assert limited["training"] + limited["critic"] <= 120


def test_a_training_chooses_the_image_size_by_default(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in range(3):
        save_picture(tmp_path / "images" / f"{seed}.png", draw_part(seed, (300, 600)))
    chosen: dict[str, Any] = {"encoder": "random", "stop": "end", **NO_ESTIMATE}
    order = {"number": "1", "again": False, "preset": "encoder", "settings": chosen, "device": "cpu"}
    order |= {"model": str(tmp_path / "washer"), "images": str(tmp_path / "images"), "folder": str(tmp_path)}
    trained = job_process.train(order, job_process.Progress(threading.Event()))
    index = read_index(tmp_path / "washer")
    assert index["identity"] == trained["identity"]
    assert index["config"]["image_size"] == [256, 512]
    assert index["provenance"]["data"]["sizing"]["image_size"] == [256, 512]
    plan = json.loads(capsys.readouterr().out.splitlines()[0])["plan"]
    sized = preset("encoder", image_size="512x256", minutes=CPU_MINUTES, **chosen)
    assert plan == training_plan(sized, 3) != training_plan(preset("encoder", minutes=CPU_MINUTES, **chosen), 3)


def test_a_training_names_unusual_images_as_the_client_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("patchsvdd.detector.unusual_images.FAR", -1.0)  # all that are listed stand out
    sent = {f"000{seed}-part.png": f"Teil {seed}.png" for seed in range(4)}
    for seed, name in enumerate(sent):
        save_picture(tmp_path / "images" / name, draw_part(seed))
    write_names(tmp_path, sent)
    chosen: dict[str, Any] = {"encoder": "random", "stop": "end", "image_size": "64", **NO_ESTIMATE}
    order = {"number": "1", "again": False, "preset": "encoder", "settings": chosen, "device": "cpu"}
    order |= {"model": str(tmp_path / "washer"), "images": str(tmp_path / "images"), "folder": str(tmp_path)}
    trained = job_process.train(order, job_process.Progress(threading.Event()))
    capsys.readouterr()
    index = read_index(tmp_path / "washer")
    listed = index["provenance"]["unusual"]
    assert [one["name"] for one in listed] == [sent[index["image_names"][one["image"]]] for one in listed]
    assert trained["unusual"] == [one["name"] for one in listed if one["stands_out"]] != []
    assert trained["unusual_in_words"].startswith(f"{len(trained['unusual'])} of 4 good images")
    assert all(name in trained["unusual_in_words"] for name in trained["unusual"])


def test_a_training_without_names_keeps_those_of_the_files(tmp_path: Path) -> None:
    provenance: dict[str, Any] = {"unusual": [{"name": "0001-a.png"}]}
    job_process._name_unusual(provenance, read_names(tmp_path))
    assert provenance == {"unusual": [{"name": "0001-a.png"}]}
    job_process._name_unusual(without := {"data": 1}, {"a": "b"})
    assert without == {"data": 1}


def test_a_running_training_says_how_long_it_will_take(desk: Desk, tmp_path: Path) -> None:
    said: Script = [{"send": {"plan": {"training": 10.0, "memory": 10.0}}}]
    said += [{"send": {"stage": "training", "done": 5, "total": 10}}]
    number = desk.add("train", *said, waiting(tmp_path / "go"), RESULT)
    wait_until(lambda: desk.job(number)["done"] == 5)
    [told] = desk.jobs.situation([desk.job(number)])
    assert told["fraction"] == pytest.approx(0.25)
    (tmp_path / "go").touch()
    desk.wait_for(number, "done")
    assert desk.jobs.situation([desk.job(number)])[0]["fraction"] == 1.0
    assert desk.job(number)["started"] is not None


# Owners


@pytest.fixture(params=["sqlite", "postgresql"], scope="module")
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A database that tests share."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path_factory.mktemp('store') / 'x.sqlite'}"
        return
    if why := missing():
        pytest.skip(why)
    with postgres() as found:
        yield database_url(found.url)


def plain_job(number: str, owner: str | None, state: str = "waiting", **values: Any) -> dict[str, Any]:
    facts = {"id": number * 24, "kind": "learn", "model": "part", "state": state, "order": {}, "stage": "", "by": "me"}
    return facts | {"done": 0, "total": 0, "created": 1.0, "updated": 1.0, "owner": owner, **values}


def test_a_job_is_claimed_once(url: str) -> None:
    """M9: on both databases, whichever store claims it."""
    stores = [Store(url), Store(url)]
    try:
        stores[0].insert_job(plain_job("a", "one"))
        stores[0].insert_job(plain_job("b", None))
        with ThreadPoolExecutor(8) as pool:
            claims = [pool.submit(stores[turn % 2].claim_job, "a" * 24, "one") for turn in range(8)]
            adopted = [pool.submit(stores[turn % 2].adopt_job, "b" * 24, f"service {turn}") for turn in range(8)]
        assert [claim.result() for claim in claims].count(True) == 1
        assert [one.result() for one in adopted].count(True) == 1
        assert not stores[0].claim_job("b" * 24, "another")
        assert stores[0].next_job("two", ("learn",)) is None
    finally:
        for store in stores:
            store.close()


def test_one_service_with_an_id_at_a_time(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """M9: a copied data folder has the same id."""
    monkeypatch.setattr(service_lock, "PATIENCE", 0.3)
    where = sa.make_url(url)
    lock, other = ServiceLock(where, "a1"), ServiceLock(where, "b2")
    assert is_running(where, "a1")
    assert lock.is_held()
    with pytest.raises(ConfigError, match=r"another service with the id a1 .* delete the file 'service-id'"):
        ServiceLock(where, "a1")
    lock.close()
    assert not is_running(where, "a1")
    assert not is_running(where, "never heard of")
    ServiceLock(where, "a1").close()
    other.close()


def test_the_lock_is_taken_again_after_postgresql_was_restarted() -> None:
    if why := missing():
        pytest.skip(why)
    with postgres() as server:
        where = sa.make_url(database_url(server.url))
        lock = ServiceLock(where, "a1")
        server.stop()
        assert not lock.is_held()
        server.start()
        assert lock.is_held()
        assert is_running(where, "a1")
        lock.close()


def test_jobs_of_other_services_are_left_alone(desk: Desk, tmp_path: Path) -> None:
    """M9: jobs without an owner belong to the service that has their files."""
    (tmp_path / "data" / "jobs" / ("d" * 24)).mkdir(parents=True)
    order = {"script": {"first": [RESULT]}}
    other = ServiceLock(desk.store.url, "other")
    for number, owner in (("a", "other"), ("b", "gone"), ("c", None), ("d", None)):
        desk.store.insert_job(plain_job(number, owner, order=order))
    desk.store.insert_job(plain_job("e", "other", "failed", kind="train"))
    with opened(tmp_path) as again:  # a start after an update
        again.wait_for("d" * 24, "done")
        own = again.add("learn", RESULT)
        again.wait_for(own, "done")
    assert [desk.job(number * 24)["state"] for number in "abc"] == ["waiting"] * 3
    told = desk.jobs.situation([desk.job(number * 24) for number in "ad"])
    assert [one["here"] for one in told] == [False, True]
    with pytest.raises(Problem, match="belongs to another service"):
        desk.jobs.cancel("a" * 24)
    with pytest.raises(Problem, match="belongs to another service"):
        desk.jobs.ended_here("e" * 24)
    assert desk.jobs.cancel("b" * 24)["state"] == "cancelled"
    assert desk.jobs.cancel("c" * 24)["state"] == "cancelled"
    other.close()
    assert desk.jobs.cancel("a" * 24)["state"] == "cancelled"  # its service is not running


def test_a_copied_data_folder_is_not_served_beside_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """M9."""
    monkeypatch.setattr(service_lock, "PATIENCE", 0.3)
    store = f"sqlite:///{tmp_path / 'shared.sqlite'}"
    first = Service(settings(tmp_path / "data", store=store))
    try:
        shutil.copytree(tmp_path / "data", tmp_path / "copy")
        with pytest.raises(ConfigError, match="service-id"):
            Service(settings(tmp_path / "copy", store=store))
        (tmp_path / "copy" / "service-id").unlink()
        Service(settings(tmp_path / "copy", store=store)).close()
    finally:
        first.close()


# Second attempts


@pytest.fixture
def trainer(tmp_path: Path, scripted: None) -> Iterator[Running]:
    """A service without a model, whose trainings follow ``script.json``."""
    with running(settings(tmp_path / "data")) as server:
        yield server


def train(server: Running, name: str = "alpha", *files: tuple[str, bytes]) -> httpx.Response:
    sent = [("files", file) for file in files or (("a.png", b"one"), ("b.png", b"two"))]
    return server.client.post("/v1/trainings", files=sent, data={"name": name, "preset": "encoder", "steps": "60"})


def script(folder: Path, *first: dict[str, Any], again: Script | None = None) -> None:
    (folder / "data" / "script.json").write_text(json.dumps({"first": first} | ({"again": again} if again else {})))


def state_of(server: Running, number: str, *states: str) -> dict[str, Any]:
    wait_until(lambda: server.client.get(f"/v1/jobs/{number}").json()["state"] in states)
    found: dict[str, Any] = server.client.get(f"/v1/jobs/{number}").json()
    return found


def test_an_ended_training_is_continued_or_started_over(trainer: Running, tmp_path: Path) -> None:
    """M4."""
    loss = {"send": {"losses": {"step": 1, "steps": 9, "scales": {}}}}
    begun = {"write": "training.safetensors", "text": "checkpoint"}
    script(tmp_path, begun, loss, {"die": signal.SIGKILL}, again=[waiting(tmp_path / "go"), RESULT])
    out, client = tmp_path / "data" / "models" / "alpha", trainer.client
    number = train(trainer).json()["id"]
    failed = state_of(trainer, number, "failed")
    assert "SIGKILL" in failed["error"]
    went_on = client.post(f"/v1/jobs/{number}/continue")
    assert went_on.status_code == 202, went_on.text
    assert (went_on.json()["state"], went_on.json()["error"]) == ("waiting", None)
    state_of(trainer, number, "running")
    for route in ("continue", "restart"):
        refused = client.post(f"/v1/jobs/{number}/{route}")
        assert refused.status_code == 409
        assert "is running" in refused.json()["detail"]
    client.post(f"/v1/jobs/{number}/cancel")
    state_of(trainer, number, "cancelled")
    assert (out / "training.safetensors").exists()
    assert len(client.get(f"/v1/jobs/{number}").json()["losses"]) == 1
    assert client.post(f"/v1/jobs/{number}/restart").status_code == 202
    assert not (out / "training.safetensors").exists()
    state_of(trainer, number, "running")
    assert client.get(f"/v1/jobs/{number}").json()["losses"] == []
    (tmp_path / "go").touch()
    state_of(trainer, number, "done")
    wait_until(lambda: (tmp_path / "data" / "jobs" / number / "starts").read_text().count("\n") == 3)
    starts = (tmp_path / "data" / "jobs" / number / "starts").read_text().split("\n")
    assert starts[:3] == ["False None", "False True", "False False"]
    assert client.post(f"/v1/jobs/{number}/continue").status_code == 409  # it is done
    assert client.post(f"/v1/jobs/{'0' * 24}/continue").status_code == 404


def test_a_cancelled_training_does_not_burn_its_name(trainer: Running, stored: Path, tmp_path: Path) -> None:
    """M4, M5."""
    script(tmp_path, {"write": "training.safetensors", "text": "checkpoint"}, waiting(tmp_path / "go"), RESULT)
    client = trainer.client
    first = train(trainer).json()["id"]
    wait_until(lambda: (tmp_path / "data" / "models" / "alpha" / "training.safetensors").exists())
    taken = train(trainer)
    assert taken.status_code == 409
    assert "cancel that job" in taken.json()["detail"]
    queued = train(trainer, "beta").json()
    assert queued["waiting_for"] == {"kind": "train", "model": "alpha"}
    cancelled = client.post(f"/v1/jobs/{queued['id']}/cancel").json()
    assert cancelled["state"] == "cancelled"
    again = train(trainer, "beta")
    assert again.status_code == 202  # the name of the cancelled one is free
    client.post(f"/v1/jobs/{again.json()['id']}/cancel")
    client.post(f"/v1/jobs/{first}/cancel")
    state_of(trainer, first, "cancelled")
    second = train(trainer)
    assert second.status_code == 202, second.text
    refused = client.post(f"/v1/jobs/{first}/continue")
    assert refused.status_code == 409  # the second one has the name now
    client.post(f"/v1/jobs/{second.json()['id']}/cancel")
    state_of(trainer, second.json()["id"], "cancelled")
    shutil.rmtree(tmp_path / "data" / "jobs" / first / "images")
    gone = client.post(f"/v1/jobs/{first}/continue")
    assert gone.status_code == 409
    assert "images" in gone.json()["detail"]
    shutil.rmtree(tmp_path / "data" / "models" / "alpha")
    copy_model(stored, tmp_path / "data" / "models" / "alpha")
    assert train(trainer).status_code == 409
    assert client.post(f"/v1/jobs/{second.json()['id']}/restart").status_code == 409  # never a model
    (tmp_path / "data" / "models" / "alpha" / "model.json").unlink()
    assert train(trainer).status_code == 409  # nor a damaged one


def test_a_checkpoint_of_another_job_is_not_taken_for_its_own(tmp_path: Path) -> None:
    out = tmp_path / "alpha"

    def kept(number: str, **order: Any) -> bool:
        out.mkdir(exist_ok=True)
        (out / "training.safetensors").write_bytes(b"x")
        job_process._take_over(out, {"number": number, "again": False, **order})
        return CheckpointFile(out).exists()

    assert not kept("1")  # of an earlier version, whose job is unknown
    assert kept("1")
    assert kept("1", resume=True)
    assert not kept("2", resume=True)
    (out / job_process.JOB).unlink()
    assert kept("3", resume=True)
    (out / job_process.JOB).unlink()
    assert kept("4", again=True)


def test_a_cancelled_training_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    """M4, with a real training."""
    with running(settings(tmp_path / "data")) as server:
        files = [("files", (f"{seed}.png", part(seed))) for seed in range(3)]
        fields = {"name": "alpha", "preset": "encoder", "steps": "5000", "image_size": "64", **NO_ESTIMATE}
        number = server.client.post("/v1/trainings", files=files, data=fields).json()["id"]

        def losses() -> list[int]:
            return [one["step"] for one in server.service.jobs.losses(number)]

        wait_until(lambda: len(losses()) > 2, 180)
        server.client.post(f"/v1/jobs/{number}/cancel")
        assert server.job(number)["state"] == "cancelled"
        last = losses()[-1]
        assert server.client.post(f"/v1/jobs/{number}/continue").status_code == 202
        wait_until(lambda: losses()[-1] > last, 180)
        told = server.client.get(f"/v1/jobs/{number}").json()
        assert told["state"] == "running"
        assert 0 < told["fraction"] < 1
        server.client.post(f"/v1/jobs/{number}/cancel")
        assert server.job(number)["state"] == "cancelled"
        assert losses() == list(range(1, losses()[-1] + 1))


# Messages


def test_messages_name_images_as_they_were_sent_and_no_paths(trainer: Running, tmp_path: Path) -> None:
    """L5."""
    client, folder = trainer.client, tmp_path / "data" / "jobs"
    script(tmp_path, waiting(tmp_path / "go"))
    number = train(trainer, "alpha", ("Teil ä.png", b"1"), ("b.png", b"2")).json()["id"]
    names = sorted(path.name for path in (folder / number / "images").iterdir())
    for path in (folder / number / "images" / names[1], tmp_path / "data" / "models" / "alpha"):
        said = f"{path}: is not a PNG; {names[0]} neither."
        script(tmp_path, {"send": {"error": said}}, again=[{"send": {"error": said}}])
        client.post(f"/v1/jobs/{number}/cancel")
        state_of(trainer, number, "cancelled", "failed")
        client.post(f"/v1/jobs/{number}/restart")
        error = state_of(trainer, number, "failed")["error"]
        assert error.endswith(": is not a PNG; Teil ä.png neither.")
        assert str(tmp_path) not in error
        assert error.split(":")[0] in ("b.png", "alpha")


def test_paths_are_shortened_and_other_words_are_not() -> None:
    paths = HiddenPaths(Path("/srv/data"), [Path("/m/washer"), Path("/opt/models/bolt")])
    job = "/srv/data/jobs/" + "a1" * 12
    for message, told in {
        f"{job}/images/0002-b.png: is no image": "b.png: is no image",
        "'/m/washer/memory-1.safetensors' was altered": "'washer/memory-1.safetensors' was altered",
        "the models of /opt/models and and/models": "the models of models and and/models",
        "/srv/data/models/x/training.safetensors; /srv/database": "x/training.safetensors; /srv/database",
        "see https://m/washer": "see https://m/washer",
    }.items():
        assert paths.hide(message, {"0002-b.png": "b.png"}) == told
    assert paths.hide_in(["/m/washer", 3, {"a": 1}]) == ["washer", 3, {"a": 1}]


def test_orders_hold_absolute_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """L2: a service may be started again from another folder."""
    monkeypatch.chdir(tmp_path)
    told = Settings((Path("models/a"),), Path("data"))
    assert told.data == tmp_path / "data"
    assert told.models == (tmp_path / "models" / "a",)
    assert told.url == f"sqlite:///{tmp_path / 'data' / 'inspections.sqlite'}"


# Undo


@pytest.fixture(scope="module")
def changed(stored: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, Path]]:
    """A service with a model that its tests change, and the model's folder."""
    folder = tmp_path_factory.mktemp("changed")
    model = copy_model(stored, folder / "part")
    with running(settings(folder / "data", model)) as server:
        yield server, model


def calibrated(model: Path, threshold: float) -> None:
    """Change the model as ``patchsvdd calibrate`` does."""
    about = read_index(model)
    change_model(model, {"calibration": {**about["calibration"], "threshold": threshold}}, "calibrate")


def test_an_undo_is_refused_if_another_change_came_after(changed: tuple[Running, Path]) -> None:
    """H3: the calibration stays, the images stay, and so does their mark."""
    server, model = changed
    client = server.client
    assert client.get("/v1/models/part").json()["last_change"] is None
    number = server.inspect("part", part(30, defect=True)).json()["id"]
    client.post(f"/v1/inspections/{number}/review", json={"verdict": "false_alarm"})
    learned = server.job(client.post("/v1/models/part/learn").json()["id"])
    assert learned["state"] == "done", learned
    last = client.get("/v1/models/part").json()["last_change"]
    assert last["entry"] == 1
    assert last["kind"] == "learning"
    assert last["images"] == 1
    assert last["identity"] == read_index(model)["identity"]

    calibrated(model, 0.123)
    expected = {"entry": last["entry"], "identity": last["identity"]}
    refused = client.post("/v1/models/part/undo", json=expected)
    assert refused.status_code == 409
    assert "the last change is now a calibration of" in refused.json()["detail"]
    assert "nothing was undone" in refused.json()["detail"]
    assert read_index(model)["calibration"]["threshold"] == 0.123
    assert client.get(f"/v1/inspections/{number}").json()["learned_by"] == learned["id"]
    assert client.get("/v1/models/part").json()["last_change"]["kind"] == "calibration"
    for wrong in ({"entry": 0}, {"entry": "x"}, {}, {"entry": 2, "other": 1}):
        assert client.post("/v1/models/part/undo", json=wrong).status_code == 422

    undone = client.post("/v1/models/part/undo")  # of older clients, without a body
    assert undone.json()["undoes"]["kind"] == "calibration"
    assert server.job(undone.json()["id"])["result"]["undone"] == "calibrate"
    assert client.get(f"/v1/inspections/{number}").json()["learned_by"] == learned["id"]
    undone = client.post("/v1/models/part/undo", json=expected)
    assert undone.status_code == 202, undone.text
    assert undone.json()["undoes"] == last
    ended = server.job(undone.json()["id"])
    assert (ended["state"], ended["result"]["undone"], ended["result"]["entry"]) == ("done", "add", 1)
    assert client.get(f"/v1/inspections/{number}").json()["learned_by"] is None
    assert client.post("/v1/models/part/undo", json=expected).status_code == 409


def undo_order(model: Path) -> dict[str, Any]:
    index = read_index(model)
    entry = journal_of(index)[-1]
    return {"model": str(model), "entry": entry["number"], "identity": index["identity"], "images": entry["images"]}


def test_a_change_between_the_request_and_the_job_is_not_undone(stored: Path, tmp_path: Path) -> None:
    """H3: the job's process looks again, under the model's lock."""
    model = copy_model(stored, tmp_path / "part")
    calibrated(model, 0.1)
    order = undo_order(model) | {"again": False}
    calibrated(model, 0.2)
    progress = job_process.Progress(threading.Event())
    for again in (False, True):
        with pytest.raises(ModelError, match=r"the last change is now a calibration of .*; nothing was undone"):
            job_process.undo({**order, "again": again}, progress)
    assert read_index(model)["calibration"]["threshold"] == 0.2
    order = undo_order(model)
    with pytest.raises(ModelError, match="was replaced in the meantime; nothing was undone"):
        job_process.undo({**order, "again": False, "identity": "another"}, progress)
    assert job_process.undo({**order, "again": False}, progress)["entry"] == 2
    assert job_process.undo({**order, "again": True}, progress)["already"] is True  # killed before it said so
    assert read_index(model)["calibration"]["threshold"] == 0.1


def test_only_images_of_the_undone_entry_are_no_longer_learned(tmp_path: Path) -> None:
    """H3: and copies of them that the same job learned."""
    store = Store(Settings((), tmp_path).url)
    rows = [row(at, picture=picture) for at, picture in ((1.0, "p"), (2.0, "p"), (3.0, "q"), (4.0, "p"), (5.0, None))]
    rows += [row(6.0, picture="p", model="other")]
    for one, job in zip(rows, ("j", "j", "j", "k", "j", "j"), strict=True):
        store.insert_inspection(one).result()
        store.mark_learned([one["id"]], job)
    store.mark_unlearned("part", [rows[0]["id"], rows[5]["id"]])
    found = [store.inspection(one["id"])["learned_by"] for one in rows]
    store.close()
    assert found == [None, None, "j", "k", "j", "j"]


# Models that cannot be loaded


def damage(model: Path) -> Callable[[], None]:
    """Change one bit of a model's memory; returns a function that repairs it."""
    file = next(model.glob("memory-*.safetensors"))
    before = file.read_bytes()
    file.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))

    def repair() -> None:
        file.write_bytes(before)

    return repair


def test_a_damaged_model_is_reported_while_the_others_are_served(
    stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M6."""
    monkeypatch.setattr(model_registry, "RETRY_SECONDS", 0.1)
    monkeypatch.setattr(model_registry, "CHECK_SECONDS", 0.1)
    fine = copy_model(stored, tmp_path / "given" / "fine")
    broken = copy_model(stored, tmp_path / "given" / "broken")
    page = copy_model(stored, tmp_path / "data" / "models" / "page")
    copy_model(stored, tmp_path / "data" / "models" / "fine")
    repairs = [damage(broken), damage(page)]
    with running(settings(tmp_path / "data", broken, fine, tmp_path / "given" / "none")) as server:
        client = server.client
        told = client.get("/v1/models").json()
        assert [model["name"] for model in told["models"]] == ["fine"]
        assert [model["name"] for model in told["unavailable"]] == ["broken", "fine", "none", "page"]
        assert "checksum" in told["unavailable"][0]["reason"]
        assert "another model is served under the name" in told["unavailable"][1]["reason"]
        assert str(tmp_path) not in json.dumps(told)
        ready = client.get("/readyz")
        assert ready.status_code == 200
        assert [word.split("'")[1] for word in ready.json()["warnings"]] == ["broken", "fine", "none", "page"]
        refused = server.inspect("broken", part())
        assert refused.status_code == 503
        assert refused.json()["type"] == "urn:patchsvdd:model-unusable"
        assert "checksum" in refused.json()["detail"]
        assert str(tmp_path) not in refused.text
        assert server.inspect("fine", part()).status_code == 200
        assert train(server, "broken").status_code == 409
        for repair in repairs:
            repair()
        wait_until(lambda: len(client.get("/v1/models").json()["models"]) == 3)
        assert server.inspect("broken", part()).status_code == 200
        shutil.rmtree(tmp_path / "data" / "models" / "fine")
        wait_until(lambda: [one["name"] for one in client.get("/v1/models").json()["unavailable"]] == ["none"])


def test_a_service_without_any_model_that_can_be_loaded_says_why(stored: Path, tmp_path: Path) -> None:
    """M6: but one whose trained models are all damaged starts, for new ones can be trained."""
    model = copy_model(stored, tmp_path / "data" / "models" / "page")
    damage(model)
    with pytest.raises(ModelError, match="checksum"):
        Service(settings(tmp_path / "data", copy_damaged(stored, tmp_path / "given")))
    service = Service(settings(tmp_path / "data"))
    try:
        assert service.ready() == ["no model is served"]
        assert len(service.warnings()) == 1
    finally:
        service.close()


def copy_damaged(stored: Path, folder: Path) -> Path:
    damage(copy_model(stored, folder))
    return folder


def test_trouble_has_no_paths(changed: tuple[Running, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """L5."""
    server, model = changed
    index = (model / "model.json").read_bytes()
    monkeypatch.setattr("patchsvdd.detector.followed_model.RETRY_SECONDS", 0.1)
    try:
        (model / "model.json").write_text("{}")
        wait_until(lambda: server.client.get("/v1/models/part").json()["trouble"])
        told = server.client.get("/v1/models/part").json()["trouble"]
        assert told.startswith("part/model.json does not describe")
        refused = server.client.post("/v1/models/part/undo", json={"entry": 1})
        assert refused.status_code == 409
        assert str(model.parent) not in refused.text
    finally:
        (model / "model.json").write_bytes(index)


def test_a_folder_of_models_is_served_whole(stored: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """L13."""
    from patchsvdd.apps.cli.serve import _each_model

    models = [copy_model(stored, tmp_path / "models" / name) for name in ("bolt", "washer")]
    (tmp_path / "models" / "notes").mkdir()
    assert _each_model([tmp_path / "models", models[0]]) == (*models, models[0])
    assert "bolt, washer" in capsys.readouterr().err
    assert _each_model([tmp_path / "nothing"]) == (tmp_path / "nothing",)
    with running(settings(tmp_path / "data", *models, models[0])) as server:
        told = server.client.get("/v1/models").json()
        assert [model["name"] for model in told["models"]] == ["bolt", "washer"]
        assert told["unavailable"] == []


def test_learning_twice_of_one_name_is_two_entries(stored: Path, tmp_path: Path) -> None:
    """The journal tells two changes apart that look the same."""
    model = copy_model(stored, tmp_path / "part")
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "a.png").write_bytes(part(40))
    add_images(model, tmp_path / "new", device="cpu")
    first = undo_order(model) | {"again": False}
    progress = job_process.Progress(threading.Event())
    job_process.undo(first, progress)
    add_images(model, tmp_path / "new", device="cpu")
    assert read_index(model)["identity"] == first["identity"]  # the same model again
    with pytest.raises(ModelError, match="the last change is now an addition of 1 image on"):
        job_process.undo(first, progress)
