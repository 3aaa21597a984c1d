"""Candidates: the shadow of the live model, the switch and the way back."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from patchsvdd.apps.serve import shadow as shadows
from patchsvdd.apps.serve.job_store import CHANGING
from patchsvdd.apps.serve.model_registry import ModelRegistry
from patchsvdd.apps.serve.retention import RetentionTask
from patchsvdd.apps.serve.service import Service
from patchsvdd.apps.serve.settings import Retention
from patchsvdd.apps.serve.tables import candidates, shadow_results, switches
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.detector.golden_images import add_golden_images
from patchsvdd.scoring.conformal import share_interval
from support.parts import draw_part, save_picture
from support.serving import Running, children, copy_model, part, process, running, settings
from support.waiting import wait_until

pytestmark = pytest.mark.service

IMAGES = [part(seed, defect=seed % 2 == 1) for seed in range(10, 16)]


@pytest.fixture(scope="module")
def lenient(stored: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same detector with a threshold that no image exceeds, under the name "part-2"."""
    folder = tmp_path_factory.mktemp("lenient") / "part-2"
    detector = PatchSVDD.load(stored, "cpu")
    assert detector.calibration is not None
    detector.calibration = dataclasses.replace(detector.calibration, threshold=1000 * detector.threshold)
    detector.save(folder)
    return folder


@pytest.fixture
def models(stored: Path, lenient: Path, tmp_path: Path) -> tuple[Path, Path]:
    return copy_model(stored, tmp_path / "models" / "part"), copy_model(lenient, tmp_path / "models" / "part-2")


@pytest.fixture
def server(models: tuple[Path, Path], tmp_path: Path) -> Iterator[Running]:
    with running(settings(tmp_path / "data", *models)) as found:
        yield found


def identity(server: Any, name: str = "part") -> str:
    found: str = server.client.get(f"/v1/models/{name}").json()["identity"]
    return found


def put(server: Any, candidate: str = "part-2", name: str = "part") -> httpx.Response:
    answer: httpx.Response = server.client.put(f"/v1/models/{name}/candidate", json={"model": candidate})
    return answer


def post(server: Any, what: str, **body: Any) -> httpx.Response:
    answer: httpx.Response = server.client.post(f"/v1/models/part/{what}", json=body or None)
    return answer


def compared(server: Any, images: int, seconds: float = 120) -> dict[str, Any]:
    """Wait until the candidate has inspected ``images`` images, and return the comparison."""
    found: dict[str, Any] = {}

    def done() -> bool:
        nonlocal found
        found = server.client.get("/v1/models/part/shadow").json()
        return bool(found["images"] >= images)

    wait_until(done, seconds)
    return found


def rows(service: Service, table: sa.Table) -> list[dict[str, Any]]:
    with service.store.reading() as connection:
        return [dict(row) for row in connection.execute(sa.select(table)).mappings()]


def actions(server: Running) -> list[tuple[str, str, dict[str, Any]]]:
    entries = server.client.get("/v1/audit", params={"model": "part", "limit": 100}).json()["entries"]
    kinds = ("candidate.", "model.switched", "model.rolled-back")
    return [(e["action"], e["who"]["kind"], e["details"]) for e in reversed(entries) if e["action"].startswith(kinds)]


# The shadow


def test_what_is_inspected_is_inspected_again_in_the_shadow(server: Running) -> None:
    state = put(server).json()
    assert (state["candidate"]["model"], state["candidate"]["identity"]) == ("part-2", identity(server, "part-2"))
    assert state["rollback"] is None
    answers = [server.inspect("part", image).json() for image in IMAGES]
    assert {one["identity"] for one in answers} == {identity(server)}
    found = compared(server, len(IMAGES))
    live = sum(one["is_anomalous"] for one in answers)
    assert live > 0
    assert found["live_alarms"]["count"] == found["only_live"] == live
    assert found["candidate_alarms"]["count"] == found["both"] == found["only_candidate"] == 0
    assert found["neither"] == len(IMAGES) - live
    assert found["live_alarms"]["interval"] == pytest.approx(share_interval(live, len(IMAGES)))
    assert found["interval"][0] <= found["difference"] <= found["interval"][1]
    assert (found["waiting"], found["dropped"], found["failed"], found["trouble"]) == (0, 0, 0, None)

    detector = PatchSVDD.load(server.service.models["part-2"].folder, "cpu")
    by_inspection = {row["inspection"]: row for row in rows(server.service, shadow_results)}
    for answer, seed in zip(answers, range(10, 16), strict=True):
        row = by_inspection[answer["id"]]
        own = detector.inspect(draw_part(seed, defect=seed % 2 == 1)).score
        assert row["score"] == pytest.approx(own, rel=1e-3)
        assert (row["identity"], row["live_identity"]) == (detector.identity, answer["identity"])
        assert row["live_verdict"] == answer["verdict"]
    metrics = server.client.get("/metrics").text
    assert f'patchsvdd_shadow_total{{model="part",outcome="stored"}} {len(IMAGES)}.0' in metrics


def test_disagreements_are_listed_by_page(server: Running) -> None:
    put(server)
    answers = [server.inspect("part", image).json() for image in IMAGES]
    alarms = [one for one in answers if one["is_anomalous"]]
    found = compared(server, len(IMAGES))
    assert found["only_live"] == len(alarms) >= 2
    seen: list[str] = []
    query: dict[str, Any] = {"limit": 1}
    while True:
        page = server.client.get("/v1/models/part/disagreements", params=query).json()
        seen += [one["inspection"]["id"] for one in page["disagreements"]]
        for one in page["disagreements"]:
            assert (one["inspection"]["verdict"], one["shadow"]["verdict"]) == ("anomalous", "good")
            assert one["shadow"]["identity"] == identity(server, "part-2")
        if page["next"] is None:
            break
        query["before"] = page["next"]
    assert seen == sorted((one["id"] for one in alarms), reverse=True)


def test_the_backlog_is_bounded_and_drops_the_oldest(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shadows, "BACKLOG", 3)
    monkeypatch.setattr(server.service.shadow, "_is_idle", lambda: False)  # live work never ends
    put(server)
    ids = [server.inspect("part", image).json()["id"] for image in IMAGES]
    situation = server.service.shadow.situation("part")
    assert (situation["waiting"], situation["dropped"]) == (3, len(IMAGES) - 3)
    assert rows(server.service, shadow_results) == []
    monkeypatch.setattr(server.service.shadow, "_is_idle", lambda: True)
    found = compared(server, 3)
    assert found["dropped"] == len(IMAGES) - 3
    assert sorted(row["inspection"] for row in rows(server.service, shadow_results)) == sorted(ids[-3:])


def test_the_process_of_a_candidate_stops_while_live_work_waits(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(server)
    server.inspect("part", part())
    compared(server, 1)
    (number,) = [one for one in children(os.getpid()) if b"shadow_process" in cmdline(one)]
    monkeypatch.setattr(server.service.shadow, "_is_idle", lambda: False)
    server.inspect("part", part(11))
    time.sleep(0.3)
    assert len(rows(server.service, shadow_results)) == 1, "nothing is begun while live work waits"
    asked = threading.Event()
    monkeypatch.setattr(server.service.shadow, "_is_idle", lambda: not asked.is_set())
    os.kill(number, signal.SIGSTOP)  # it cannot answer, so that the request stays under way
    wait_until(lambda: server.service.shadow.situation("part")["waiting"] == 0)
    asked.set()
    os.kill(number, signal.SIGCONT)
    wait_until(lambda: state_of(number) == "T")
    time.sleep(0.2)
    assert state_of(number) == "T"
    asked.clear()
    compared(server, 2)


def cmdline(number: int) -> bytes:
    return Path(f"/proc/{number}/cmdline").read_bytes()


def state_of(number: int) -> str:
    return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_candidate_that_dies_is_started_again(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shadows, "RETRY_SECONDS", 0.1)
    put(server)
    server.inspect("part", part())
    compared(server, 1)
    (number,) = [one for one in children(os.getpid()) if b"shadow_process" in cmdline(one)]
    os.kill(number, signal.SIGKILL)
    assert server.inspect("part", part(11)).status_code == 200
    wait_until(lambda: server.service.shadow.situation("part")["failed"] == 1)
    assert server.inspect("part", part(12)).status_code == 200
    found = compared(server, 2)
    assert (found["failed"], found["trouble"]) == (1, None)


def test_a_damaged_candidate_is_reported_and_fails_no_live_answer(server: Running, models: tuple[Path, Path]) -> None:
    put(server)
    (models[1] / "model.json").write_text("{}")
    assert server.inspect("part", part()).status_code == 200
    wait_until(lambda: server.service.shadow.situation("part")["trouble"] is not None)
    state = server.client.get("/v1/models/part/candidate").json()
    assert str(models[1].parent) not in state["candidate"]["trouble"]
    assert server.inspect("part", part(11)).status_code == 200


def test_shadow_results_are_deleted_with_their_inspections(server: Running) -> None:
    put(server)
    server.inspect("part", part())
    compared(server, 1)
    task = RetentionTask(server.service.store, server.service.blobs, Retention(days=1))
    assert task.round(now=time.time() + 3 * 86400)[0] == 1
    assert rows(server.service, shadow_results) == []


# Setting and removing


def test_a_candidate_must_make_sense(server: Running, stored: Path, tmp_path: Path) -> None:
    for name, status, words in (
        ("part", 409, "are the same model"),
        ("missing", 404, "no model 'missing' is served"),
        ("../part-2", 422, "model"),
        ("/etc", 422, "model"),
    ):
        answer = put(server, name)
        assert answer.status_code == status, answer.text
        assert words in answer.json()["detail"]
    for what in ("shadow", "disagreements"):
        answer = server.client.get(f"/v1/models/part/{what}")
        assert answer.status_code == 409
        assert "has no candidate" in answer.json()["detail"]
    assert post(server, "switch").status_code == 409
    assert "nothing to roll back" in post(server, "rollback").json()["detail"]
    assert server.client.delete("/v1/models/part/candidate").status_code == 409
    assert rows(server.service, candidates) == []
    del stored, tmp_path


def test_a_candidate_without_a_threshold_is_refused(stored: Path, tmp_path: Path) -> None:
    plain = PatchSVDD.load(stored, "cpu")
    plain.calibration = None
    plain.save(tmp_path / "plain")
    with running(settings(tmp_path / "data", stored, tmp_path / "plain")) as server:
        assert "has no threshold" in put(server, "plain").json()["detail"]


def test_a_removed_candidate_inspects_no_longer(server: Running) -> None:
    put(server)
    server.inspect("part", part())
    compared(server, 1)
    state = server.client.delete("/v1/models/part/candidate").json()
    assert state["candidate"] is None
    server.inspect("part", part(11))
    wait_until(lambda: not [one for one in children(os.getpid()) if b"shadow_process" in cmdline(one)])
    assert len(rows(server.service, shadow_results)) == 1
    put(server)
    assert compared(server, 1)["images"] == 1, "results of the same versions count again"
    assert [(action, kind) for action, kind, _ in actions(server)] == [
        ("candidate.set", "local"),
        ("candidate.removed", "local"),
        ("candidate.set", "local"),
    ]


# Switching


def test_a_switch_and_a_roll_back(server: Running) -> None:
    before, after = identity(server), identity(server, "part-2")
    put(server)
    refused = post(server, "switch", identity=before)
    assert refused.status_code == 409
    assert "was changed in the meantime" in refused.json()["detail"]
    answer = post(server, "switch", identity=after).json()
    assert answer["model"]["identity"] == identity(server) == after
    assert answer["state"]["candidate"] is None
    assert answer["state"]["folder"] == "part-2"
    assert answer["state"]["rollback"]["identity"] == before
    assert server.inspect("part", part()).json()["identity"] == after
    assert post(server, "rollback", identity=before).status_code == 409
    back = post(server, "rollback", identity=after).json()
    assert back["model"]["identity"] == identity(server) == before
    assert back["state"]["rollback"] is None
    assert server.inspect("part", part()).json()["identity"] == before
    assert actions(server)[1:] == [
        ("model.switched", "local", {"candidate": "part-2", "identity_before": before, "identity": after}),
        ("model.rolled-back", "local", {"identity_before": after, "identity": before}),
    ]
    assert server.client.get("/v1/audit", params={"action": "model.rolled-back"}).json()["entries"]
    assert server.client.get("/v1/audit/verification").json()["whole"]


@pytest.mark.parametrize("changed", ["part", "part-2"])
def test_no_switch_while_a_job_changes_one_of_the_models(server: Running, changed: str) -> None:
    put(server)
    store, owner, now = server.service.store, server.service.settings.service_id, time.time()
    progress = {"stage": "", "done": 0, "total": 0, "created": now, "updated": now}
    for kind in CHANGING:
        number = f"{changed} {kind}"
        row = {"id": number, "kind": kind, "model": changed, "state": "running", "order": {}}
        store.insert_job({**row, **progress, "by": "anna", "owner": owner})
        refused = post(server, "switch")
        assert refused.status_code == 409
        assert refused.json()["detail"] == f"a job is changing the model '{changed}'; wait until it has ended"
        store.update_job(number, state="done")
    assert post(server, "switch").status_code == 200


def test_every_answer_is_by_the_model_that_it_names(server: Running) -> None:
    thresholds = {
        identity(server, name): server.client.get(f"/v1/models/{name}").json()["threshold"]
        for name in ("part", "part-2")
    }
    answers: list[dict[str, Any]] = []
    ended = threading.Event()

    def ask() -> None:
        with httpx.Client(base_url=server.url, timeout=60) as client:
            while not ended.is_set():
                answer = client.post("/v1/models/part/inspect", content=part())
                assert answer.status_code == 200, answer.text
                answers.append(answer.json())

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(4):
        put(server).raise_for_status()
        time.sleep(0.2)
        post(server, "switch").raise_for_status()
        time.sleep(0.2)
        post(server, "rollback").raise_for_status()
    ended.set()
    for thread in threads:
        thread.join()
    assert {one["identity"] for one in answers} == set(thresholds)
    for one in answers:
        assert one["threshold"] == pytest.approx(thresholds[one["identity"]])
        stored_row = server.service.store.inspection(one["id"])
        assert (stored_row["identity"], stored_row["score"]) == (one["identity"], one["score"])


def test_a_restart_finds_candidate_and_switch(models: tuple[Path, Path], tmp_path: Path) -> None:
    told = settings(tmp_path / "data", *models)
    with running(told) as server:
        put(server)
        before, after = identity(server), identity(server, "part-2")
    with running(told) as server:
        assert server.client.get("/v1/models/part/candidate").json()["candidate"]["model"] == "part-2"
        server.inspect("part", part())
        compared(server, 1)
        post(server, "switch").raise_for_status()
    with running(settings(tmp_path / "data", models[0])) as server:  # the candidate is not served itself any more
        assert identity(server) == after
        assert server.inspect("part", part()).json()["identity"] == after
        post(server, "rollback").raise_for_status()
    with running(told) as server:
        assert identity(server) == before


def ended(*_: object) -> None:
    raise RuntimeError("the service ended")


def test_a_switch_that_was_written_takes_effect_at_the_next_start(
    models: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = settings(tmp_path / "data", *models)
    with running(told) as server:
        before, after = identity(server), identity(server, "part-2")
        put(server)
        with monkeypatch.context() as patch:
            patch.setattr(ModelRegistry, "put", ended)
            assert post(server, "switch").status_code == 500
        assert identity(server) == before, "written, but not yet in effect"
        assert len(rows(server.service, switches)) == 1
    with running(told) as server:
        assert identity(server) == after
        assert server.client.get("/v1/models/part/candidate").json()["candidate"] is None


def test_a_killed_service_serves_what_the_database_says(models: tuple[Path, Path], tmp_path: Path) -> None:
    data, served = tmp_path / "data", [*map(str, models), "--engine", "torch"]
    known: dict[str, str] = {}
    for what in ("switch", "rollback", "switch"):
        with process(data, *served) as server:
            known = known or {name: identity(server, name) for name in ("part", "part-2")}
            if what == "switch":
                put(server).raise_for_status()
                server.client.post("/v1/models/part/inspect", content=part()).raise_for_status()
                wait_until(lambda: server.children() != [])
            post(server, what).raise_for_status()
            left = server.children()
            server.kill()
        wait_until(partial(has_ended, left))
        with process(data, *served) as server:
            expected = known["part-2" if what == "switch" else "part"]
            assert identity(server) == expected
            answer = server.client.post("/v1/models/part/inspect", content=part()).json()
            assert answer["identity"] == expected
            assert server.stop() == 0


def has_ended(numbers: list[int]) -> bool:
    return not any(map(is_running, numbers))


def is_running(number: int) -> bool:
    try:
        return state_of(number) != "Z"
    except OSError:
        return False


def test_a_stopped_candidate_ends_with_a_killed_service(models: tuple[Path, Path], tmp_path: Path) -> None:
    with process(tmp_path / "data", *map(str, models), "--engine", "torch") as server:
        put(server).raise_for_status()
        server.client.post("/v1/models/part/inspect", content=part()).raise_for_status()
        compared(server, 1)
        (number,) = [one for one in server.children() if b"shadow_process" in cmdline(one)]
        os.kill(number, signal.SIGSTOP)
        wait_until(lambda: state_of(number) == "T")
        server.kill()
        wait_until(lambda: not is_running(number))


def test_a_missing_folder_is_no_reason_to_serve_another_model(models: tuple[Path, Path], tmp_path: Path) -> None:
    told = settings(tmp_path / "data", *models)
    with running(told) as server:
        before = identity(server)
        put(server)
        post(server, "switch").raise_for_status()
    shutil.move(models[1], tmp_path / "elsewhere")
    third = copy_model(models[0], tmp_path / "models" / "third")
    with running(settings(tmp_path / "data", models[0], third)) as server:
        refused = server.inspect("part", part())
        assert refused.status_code == 503
        assert "cannot be loaded" in refused.json()["detail"]
        state = server.client.get("/v1/models/part/candidate").json()
        assert (state["identity"], state["rollback"]["identity"]) == (None, before)
        post(server, "rollback").raise_for_status()
        assert server.inspect("part", part()).json()["identity"] == before


# Golden images


def test_a_candidate_must_pass_the_golden_images_of_the_line(models: tuple[Path, Path], tmp_path: Path) -> None:
    picture = tmp_path / "defect.png"
    save_picture(picture, draw_part(30, defect=True))
    add_golden_images(models[0], PatchSVDD.load(models[0], "cpu"), [picture], "anomalous")  # the candidate says good
    with running(settings(tmp_path / "data", *models)) as server:
        before = identity(server)
        put(server)
        refused = post(server, "switch")
        assert refused.status_code == 409
        assert "golden image 'defect.png' is judged 'good'" in refused.json()["detail"]
        assert identity(server) == before
        assert server.inspect("part", part()).json()["identity"] == before, "the line goes on"
        assert rows(server.service, switches) == []
    with running(settings(tmp_path / "warn", *models, golden_check="warn")) as server:
        put(server)
        answer = post(server, "switch").json()
        check = answer["model"]["check"]
        assert (check["passed"], check["blocked"]) == (False, False)
        assert server.client.get("/readyz").json()["warnings"] == [
            "the model 'part' failed the check with its golden images"
        ]
        assert post(server, "rollback").json()["model"]["check"]["passed"]
        reasons = [
            one["details"]["reason"]
            for one in server.client.get("/v1/audit", params={"action": "model.checked"}).json()["entries"]
        ]
        assert reasons[:2] == ["rolled back", "switched"]


def test_a_switched_model_that_fails_at_the_start_is_blocked(models: tuple[Path, Path], tmp_path: Path) -> None:
    with running(settings(tmp_path / "data", *models)) as server:
        put(server)
        post(server, "switch").raise_for_status()
    picture = tmp_path / "defect.png"
    save_picture(picture, draw_part(30, defect=True))
    add_golden_images(models[0], PatchSVDD.load(models[0], "cpu"), [picture], "anomalous")
    with running(settings(tmp_path / "data", *models)) as server:
        refused = server.inspect("part", part())
        assert refused.status_code == 409
        assert "gives no verdicts" in refused.json()["detail"]
        post(server, "rollback").raise_for_status()
        assert server.inspect("part", part()).status_code == 200
