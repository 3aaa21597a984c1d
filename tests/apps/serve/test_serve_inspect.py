"""What the service does for those who use it as they should."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import re
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import sqlalchemy as sa
from PIL import Image

from patchsvdd.apps.serve import drift_blocks
from patchsvdd.apps.serve.inspection_queue import InspectionQueue
from patchsvdd.apps.serve.model_registry import ModelRegistry
from patchsvdd.apps.serve.problem_details import Problem
from patchsvdd.apps.serve.routes.jobs import KINDS, TRAINING_BODY
from patchsvdd.apps.serve.tables import inspections
from patchsvdd.apps.serve.telemetry import Telemetry
from patchsvdd.core.presets import DEFAULT
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.detector.drift import DriftTest
from patchsvdd.detector.image_statistics import TRAITS
from patchsvdd.detector.memory_update import add_images
from patchsvdd.detector.model_folder import read_index
from patchsvdd.detector.unusual_images import unusual_images
from support.parts import NO_ESTIMATE, draw_part
from support.serving import Running, copy_model, part, process, reviews_of, row, running, settings
from support.waiting import wait_until

pytestmark = pytest.mark.service


@pytest.fixture(scope="module")
def served(stored: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service that tests share, with a model that none of them changes."""
    with running(settings(tmp_path_factory.mktemp("served") / "data", stored)) as server:
        yield server


def test_the_raw_body_and_a_form_are_inspected_alike(served: Running, detector: PatchSVDD) -> None:
    data = part(11, defect=True)
    raw = served.client.post("/v1/models/part/inspect", content=data, headers={"X-Filename": "a%20b.png"}).json()
    form = served.client.post("/v1/models/part/inspect", files={"file": ("a b.png", data)}).json()
    expected = detector.inspect(draw_part(11, defect=True))
    for answer in (raw, form):
        assert answer["score"] == pytest.approx(expected.score)
        assert answer["threshold"] == expected.threshold
        assert answer["p_value"] == expected.p_value
        assert answer["verdict"] == expected.verdict
        assert answer["regions"] == expected.to_json()["regions"]
        assert answer["image_size"] == [64, 64]
        assert answer["name"] == "a b.png"
        assert {"decode", "wait", "compute", "batch"} <= answer["timings"].keys()
        assert answer["map"] is None


def test_the_map_comes_as_colours_or_numbers(served: Running, detector: PatchSVDD) -> None:
    data, expected = part(12, defect=True), detector.inspect(draw_part(12, defect=True))
    numbers = served.inspect("part", data, map="npy").json()
    assert numbers["map_media_type"] == "application/x-npy"
    found = np.load(io.BytesIO(base64.b64decode(numbers["map"])), allow_pickle=False)
    np.testing.assert_allclose(found, expected.anomaly_map, rtol=1e-5)
    colours = served.inspect("part", data, map="png").json()
    with Image.open(io.BytesIO(base64.b64decode(colours["map"]))) as picture:
        assert picture.size == (64, 64)
    stored = served.client.get(f"/v1/inspections/{numbers['id']}/map", params={"format": "npy"})
    np.testing.assert_array_equal(np.load(io.BytesIO(stored.content)), found)
    assert served.client.get(f"/v1/inspections/{numbers['id']}/map").headers["content-type"] == "image/png"


def test_it_says_why(served: Running) -> None:
    answer = served.inspect("part", part(13, defect=True), explain=True).json()
    assert answer["explanation"]
    told = served.client.get(f"/v1/inspections/{answer['id']}/explanation").json()
    assert told["same_model"] is True
    assert told["identity"] == answer["identity"]
    drawn = served.client.get(f"/v1/inspections/{answer['id']}/explanation", params={"format": "png"})
    with Image.open(io.BytesIO(drawn.content)) as picture:
        assert picture.format == "PNG"


def test_a_bad_image_of_a_batch_fails_alone(served: Running) -> None:
    files = [("files", ("good.png", part(14))), ("files", ("bad.png", b"no image")), ("files", ("b.png", part(15)))]
    answer = served.client.post("/v1/models/part/inspect-batch", files=files).json()
    assert (answer["inspected"], answer["failed"]) == (2, 1)
    assert [one["name"] for one in answer["images"]] == ["good.png", "bad.png", "b.png"]
    assert answer["images"][1]["problem"]["status"] == 422
    assert answer["images"][0]["inspection"]["id"] != answer["images"][2]["inspection"]["id"]


def test_pictures_come_back_as_they_were_or_smaller(served: Running) -> None:
    data = part(16)
    number = served.inspect("part", data).json()["id"]
    assert served.client.get(f"/v1/inspections/{number}/picture").content == data
    small = served.client.get(f"/v1/inspections/{number}/picture", params={"side": 32})
    assert small.content == data  # it is its own thumbnail
    file = io.BytesIO()
    Image.open(io.BytesIO(data)).save(file, "TIFF")
    number = served.inspect("part", file.getvalue()).json()["id"]
    assert served.client.get(f"/v1/inspections/{number}/picture").headers["content-type"] == "image/jpeg"


def test_models_tell_what_they_are(served: Running, detector: PatchSVDD) -> None:
    (about,) = served.client.get("/v1/models").json()["models"]
    details = served.client.get("/v1/models/part").json()
    assert about["name"] == details["name"] == "part"
    assert about["threshold"] == detector.threshold
    assert details["calibration"] is not None
    assert len(details["image_names"]) == 4
    assert details["pictures"] == 4
    picture = served.client.get(f"/v1/models/part/pictures/3?identity={about['identity']}")
    assert "immutable" in picture.headers["cache-control"]
    missing = served.client.get("/v1/models/part/pictures/4")
    assert (missing.status_code, missing.headers["content-type"]) == (404, "application/problem+json")
    assert served.client.get("/v1/models/other").status_code == 404
    drift = served.client.get("/v1/models/part/drift")
    assert (drift.status_code, drift.json()["changes"]) == (200, [])
    local = {"name": "local", "role": "admin", "key_needed": False, "user": False, "line": False}
    assert served.client.get("/v1/me").json() == {**local, "may": ["inspect", "review", "admin"]}
    assert served.client.get("/v1/jobs").json() == {"jobs": []}


def test_a_model_lists_its_unusual_good_images(served: Running, detector: PatchSVDD) -> None:
    details = served.client.get("/v1/models/part").json()
    listed = details["unusual"]
    assert listed == [one.to_json() for one in unusual_images(detector.provenance)]
    assert len(listed) == 3
    ratios = [one["ratio"] for one in listed]
    assert ratios == sorted(ratios, reverse=True)
    for one in listed:
        assert set(one) == {"image", "name", "ratio", "stands_out", "at"}
        assert one["name"] == details["image_names"][one["image"]]
        assert all(0 <= place <= 1 for place in one["at"])
        path = f"/v1/models/part/pictures/{one['image']}?identity={details['identity']}"
        picture = served.client.get(path)
        assert picture.headers["content-type"] == "image/jpeg"
        assert served.client.get(path, headers={"If-None-Match": picture.headers["etag"]}).status_code == 304
        assert "etag" not in served.client.get(path.split("?")[0]).headers  # it may be another image tomorrow


def test_an_old_model_lists_none_and_has_no_pictures(detector: PatchSVDD, tmp_path: Path) -> None:
    """Models of version 0.1 may have neither the list nor thumbnails."""
    provenance = {key: value for key, value in detector.provenance.items() if key != "unusual"}
    learned = replace(detector.learned, provenance=provenance, pictures=None)
    old = PatchSVDD(detector.config, learned, detector.device)
    old.save(tmp_path / "old")
    with running(settings(tmp_path / "data", tmp_path / "old")) as server:
        details = server.client.get("/v1/models/old").json()
        assert (details["unusual"], details["pictures"]) == ([], 0)
        missing = server.client.get("/v1/models/old/pictures/0")
        assert (missing.status_code, missing.headers["content-type"]) == (404, "application/problem+json")
        assert "has no image 0" in missing.json()["detail"]


def test_drift_is_tested_once_in_each_block(stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    reference = {trait: random.normal(size=24).tolist() for trait in TRAITS}
    monkeypatch.setattr(drift_blocks, "drift_test", lambda _, rate: DriftTest(reference, rate))
    values = [dict(zip(TRAITS, random.normal(size=len(TRAITS)).tolist(), strict=True)) for _ in range(130)]
    for index in range(60, 90):
        values[index]["light"] += 3  # in the second block and the third
    with running(settings(tmp_path / "data", stored)) as server:
        service = server.service
        identity = service.models.named("part").identity
        reported = []
        for number, traits in enumerate(values, start=1):
            service.store.insert_inspection(row(float(number), identity=identity, traits=traits)).result()
            service.store.insert_inspection(row(float(number), identity="another", traits=traits)).result()
            if number % 10:
                continue
            answer = server.client.get("/v1/models/part/drift", params={"images": 40}).json()
            first = (number - 1) // 40 * 40
            alone = DriftTest(reference)
            for index in range(first, number):
                alone.add("", values[index])
            assert answer["evidence"] == pytest.approx(alone.evidence)  # of this block alone, however often one asks
            assert (answer["first"], answer["images"], answer["block"]) == (first + 1, number - first, 40)
            assert answer["whole"]
            assert answer["noticed"]["references"] == 24
            reported.append({change["block"]: change["number"] for change in answer["changes"]})
        assert not any(reported[:6])
        assert len({changes["current"] for changes in reported if "current" in changes}) == 2  # one for each block
        assert reported[7].keys() == {"current"}
        assert "previous" in reported[12]
        service.store.write(lambda connection: connection.execute(sa.delete(inspections).where(inspections.c.at < 125)))
        answer = server.client.get("/v1/models/part/drift", params={"images": 40}).json()
        assert (answer["whole"], answer["images"], answer["changes"]) == (False, 0, [])
        assert server.client.get("/v1/models/part/drift", params={"images": 2}).json()["whole"]


def test_an_unchanged_model_is_not_replaced(served: Running) -> None:
    assert served.client.post("/v1/models/part/reload").json()["replaced"] is False


def test_names_are_made_fit_to_be_shown(served: Running) -> None:
    for name, shown in (
        ("../../etc/passwd", "passwd"),
        ("C:\\secret\\part.png", "part.png"),
        ("a%00b", "a�b"),
        ("%ED%A0%80", "\ufffd" * 3),
        ("x" * 10_000, "x" * 200),
        ("%0D%0AX-Evil: 1", "��X-Evil: 1"),
        ("", "image"),
    ):
        answer = served.client.post("/v1/models/part/inspect", content=part(), headers={"X-Filename": name})
        assert answer.json()["name"] == shown
        assert served.client.get(f"/v1/inspections/{answer.json()['id']}").json()["name"] == shown


@pytest.fixture(scope="module")
def history(stored: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service with 12 inspections."""
    with running(settings(tmp_path_factory.mktemp("history") / "data", stored)) as server:
        for seed in range(12):
            name = {"X-Filename": f"{'odd' if seed % 2 else 'even'}_%25{seed}.png"}
            server.client.post("/v1/models/part/inspect", content=part(seed, defect=seed % 3 == 0), headers=name)
        yield server


def test_pages_hold_each_inspection_once(history: Running) -> None:
    seen: list[str] = []
    before = None
    while True:
        page = history.client.get(
            "/v1/inspections", params={"limit": 5} | ({"before": before} if before else {})
        ).json()
        seen += [one["id"] for one in page["inspections"]]
        before = page["next"]
        if before is None:
            break
        history.inspect("part", part(50))  # newer ones do not move the pages
    assert len(seen) == len(set(seen)) == 12
    assert seen == sorted(seen, reverse=True)


def test_history_is_filtered(history: Running) -> None:
    def found(**params: Any) -> list[dict[str, Any]]:
        answer = history.client.get("/v1/inspections", params={"limit": 500, **params}).json()["inspections"]
        counted = history.client.get("/v1/inspections/counts", params=params).json()["total"]
        assert counted == len(answer)
        scores = history.client.get("/v1/inspections/scores", params=params).json()
        assert scores["id"] == [one["id"] for one in answer][::-1]
        assert scores["score"] == [one["score"] for one in answer][::-1]
        rows: list[dict[str, Any]] = answer
        return rows

    everything = found()
    assert {one["name"] for one in found(name="ODD_")} == {f"odd_%{seed}.png" for seed in range(1, 12, 2)}
    assert found(name="_%1")
    assert not found(name="_%x")
    assert found(model="part") == everything
    assert found(model="other") == []
    anomalous = found(verdict="anomalous")
    assert [one for one in everything if one["is_anomalous"]] == anomalous
    middle = everything[len(everything) // 2]
    number = middle["id"]
    at = int(number[:12], 16) / 1000
    assert all(one["id"] >= number for one in found(since=at))
    assert all(one["id"] < f"{number[:12]}g" for one in found(until=at + 0.001))
    assert found(review="none") == everything
    history.client.post(f"/v1/inspections/{number}/review", json={"verdict": "unsure", "note": "dust"})
    assert [one["id"] for one in found(review="unsure")] == [number]
    assert number not in {one["id"] for one in found(review="none")}
    history.client.post(f"/v1/inspections/{number}/review", json={"verdict": None})
    assert found(learned="true") == []


def test_reviews_are_kept_and_withdrawn(served: Running) -> None:
    number = served.inspect("part", part(17, defect=True)).json()["id"]
    path = f"/v1/inspections/{number}/review"
    for said in ({"verdict": "true_defect", "note": "a \0crack"}, {"verdict": "false_alarm"}):
        answer = served.client.post(path, json=said).json()
        assert answer["review"]["verdict"] == said["verdict"]
        assert answer["review"]["by"] == "local"
    assert served.client.get(f"/v1/inspections/{number}").json()["review"]["note"] == ""
    assert served.client.post(path, json={"verdict": None}).json()["review"] is None
    assert reviews_of(served.service.store, number) == [
        ("true_defect", "a crack"),
        ("false_alarm", ""),
        (None, ""),
    ]
    assert served.client.post(f"/v1/inspections/{'0' * 24}/review", json={"verdict": "unsure"}).status_code == 404
    assert served.client.post(path, json={"verdict": "perhaps"}).status_code == 422


def test_learning_lowers_the_score_and_undo_brings_it_back(stored: Path, tmp_path: Path) -> None:
    model = copy_model(stored, tmp_path / "part")
    with running(settings(tmp_path / "data", model)) as server:
        data, other = part(30, defect=True), part(31, defect=True)
        before = server.inspect("part", data).json()
        server.inspect("part", other)
        number = before["id"]
        refused = server.client.post("/v1/models/part/learn", json={"inspections": [number]})
        assert refused.status_code == 409
        assert "review it first" in refused.json()["detail"]
        assert server.client.post("/v1/models/part/undo").status_code == 409
        server.client.post(f"/v1/inspections/{number}/review", json={"verdict": "false_alarm"})

        job = server.client.post("/v1/models/part/learn", json={"preview": True})
        assert job.status_code == 202
        preview = server.job(job.json()["id"])
        assert preview["state"] == "done", preview
        promised = next(one["score"] for name, one in preview["result"]["scores"].items() if name.startswith(number))
        assert preview["result"]["threshold_kept"]
        assert [Path(name).stem for name in preview["result"]["alarming"]] == [number], "one like it would alarm again"
        assert server.inspect("part", data).json()["score"] == pytest.approx(before["score"])

        learned = server.job(server.client.post("/v1/models/part/learn").json()["id"])
        assert learned["state"] == "done", learned
        assert learned["inspections"] == [number]
        after = server.inspect("part", data).json()
        assert after["score"] < before["score"]
        assert after["score"] == pytest.approx(promised, rel=1e-3)
        assert after["identity"] != before["identity"]
        assert after["threshold"] == before["threshold"]
        assert server.client.get(f"/v1/inspections/{number}").json()["learned_by"] == learned["id"]
        assert [one["id"] for one in server.client.get("/v1/inspections?learned=true").json()["inspections"]] == [
            number
        ]
        assert server.client.post("/v1/models/part/learn").status_code == 409

        undone = server.job(server.client.post("/v1/models/part/undo").json()["id"])
        assert undone["state"] == "done", undone
        again = server.inspect("part", data).json()
        assert again["score"] == pytest.approx(before["score"])
        assert again["identity"] == before["identity"]
        assert server.client.get(f"/v1/inspections/{number}").json()["learned_by"] is None
        assert not list((tmp_path / "data" / "jobs").glob("*/images"))
        assert server.client.post(f"/v1/jobs/{undone['id']}/cancel").status_code == 409
        assert [one["kind"] for one in server.client.get("/v1/jobs?model=part").json()["jobs"]] == [
            "undo",
            "learn",
            "preview",
        ]


def test_a_model_is_trained_from_uploads(tmp_path: Path) -> None:
    with running(settings(tmp_path / "data")) as server:
        assert server.client.get("/readyz").json()["problems"] == ["no model is served"]
        files = [("files", (f"../{seed}.png", part(seed))) for seed in range(4)]
        fields = {"name": "washer", "preset": "encoder", "steps": "2", "image_size": "64", "synthetic_defects": "24"}
        job = server.client.post("/v1/trainings", files=files, data=fields)
        assert job.status_code == 202, job.text
        trained = server.job(job.json()["id"], 120)
        assert trained["state"] == "done", trained
        assert trained["result"]["images"] == 4
        assert trained["losses"]
        assert read_index(tmp_path / "data" / "models" / "washer")["calibration"]["aim"] == "balanced"
        answer = server.inspect("washer", part(9)).json()
        assert answer["identity"] == trained["result"]["identity"]
        assert server.client.post("/v1/trainings", files=files, data=fields).status_code == 409
        for wrong in ({"name": "../x"}, {"name": ""}, {"name": "w2", "steps": "many"}, {"name": "w2", "preset": "no"}):
            assert server.client.post("/v1/trainings", files=files, data=wrong).status_code == 422
        for wrong in ({"aim": "fewer"}, {"aim": "balanced", "synthetic_defects": "0"}, {"synthetic_defects": "-1"}):
            refused = server.client.post("/v1/trainings", files=files, data={"name": "w2", **wrong})
            assert refused.status_code == 422, refused.text
        assert server.client.post("/v1/trainings", data={"name": "w3"}, files={"x": b""}).status_code == 422
        assert len(list((tmp_path / "data" / "jobs").iterdir())) == 1


def test_a_training_uses_the_same_default_as_train_and_fit(tmp_path: Path) -> None:
    with running(settings(tmp_path / "data")) as server:
        files = [("files", (f"{seed}.png", part(seed))) for seed in range(4)]
        fields = {"name": "washer", "steps": "100000", "image_size": "64", "min_area": "9"}
        number = server.client.post("/v1/trainings", files=files, data=fields).json()["id"]
        assert server.client.post(f"/v1/jobs/{number}/cancel").status_code == 200
        row = server.service.store.job(number)
        assert row is not None
        assert row["order"]["preset"] == DEFAULT
        assert row["order"]["settings"]["min_area"] == 9
        assert server.job(number)["state"] == "cancelled"


def test_every_setting_of_a_training_is_described() -> None:
    described = TRAINING_BODY["requestBody"]["content"]["multipart/form-data"]["schema"]["properties"]
    assert described["preset"]["default"] == DEFAULT
    assert set(described) == {"name", "preset", "files", *KINDS}
    numbers = {name: {int: "integer", float: "number", str: "string"}[kind] for name, kind in KINDS.items()}
    assert {name: described[name]["type"] for name in KINDS} == numbers


def test_a_waiting_job_can_be_cancelled(stored: Path, tmp_path: Path) -> None:
    with running(settings(tmp_path / "data", stored)) as server:
        files = [("files", (f"{seed}.png", part(seed))) for seed in range(3)]
        jobs = [
            server.client.post(
                "/v1/trainings",
                files=files,
                data={"name": name, "preset": "encoder", "steps": "100000", "image_size": "64", **NO_ESTIMATE},
            ).json()["id"]
            for name in ("one", "two")
        ]
        for number in reversed(jobs):
            assert server.client.post(f"/v1/jobs/{number}/cancel").status_code == 200
        for number in jobs:
            assert server.job(number)["state"] == "cancelled"
        assert not (tmp_path / "data" / "models" / "one" / "model.json").exists()


def test_each_answer_is_of_the_model_that_it_names(stored: Path, tmp_path: Path) -> None:
    model = copy_model(stored, tmp_path / "part")
    grown = copy_model(stored, tmp_path / "grown")
    data = part(40, defect=True)
    images = tmp_path / "images"
    images.mkdir()
    (images / "new.png").write_bytes(data)
    add_images(grown, images, device="cpu")
    expected = {}
    for folder in (model, grown):
        found = PatchSVDD.load(folder, "cpu")
        expected[found.identity] = found.inspect(draw_part(40, defect=True)).score
    assert len(expected) == 2
    with running(settings(tmp_path / "data", model)) as server:
        answers: list[dict[str, Any]] = []
        stopped = threading.Event()

        def ask() -> None:
            with httpx.Client(base_url=server.url, timeout=30) as client:
                while not stopped.is_set():
                    answer = client.post("/v1/models/part/inspect", content=data)
                    assert answer.status_code == 200, answer.text
                    answers.append(answer.json())

        def swap(source: Path) -> str:
            for path in source.iterdir():
                if path.is_file() and path.name != "model.json":
                    shutil.copy2(path, model)
            shutil.copy2(source / "model.json", model / "model.new")
            (model / "model.new").replace(model / "model.json")
            told: str = server.client.post("/v1/models/part/reload").json()["model"]["identity"]
            return told

        with ThreadPoolExecutor(3) as pool:
            asking = [pool.submit(ask) for _ in range(3)]
            try:
                for source in (grown, stored, grown, stored):
                    named = swap(source)
                    count = len(answers)
                    wait_until(lambda count=count: len(answers) >= count + 8)  # type: ignore[misc]
                    assert answers[-1]["identity"] == named
            finally:
                stopped.set()
            for asked in asking:
                asked.result()
        assert {one["identity"] for one in answers} == set(expected)
        for one in answers:
            assert one["score"] == pytest.approx(expected[one["identity"]], rel=1e-3, abs=1e-9)


def test_a_model_that_is_gone_stays_in_use_and_says_so(stored: Path, tmp_path: Path) -> None:
    model = copy_model(stored, tmp_path / "part")
    with running(settings(tmp_path / "data", model)) as server:
        before = server.inspect("part", part()).json()
        shutil.rmtree(model)
        refused = server.client.post("/v1/models/part/reload")
        assert refused.status_code == 503
        assert refused.json()["type"] == "urn:patchsvdd:model-unusable"
        wait_until(lambda: server.client.get("/v1/models/part").json()["trouble"])
        assert server.inspect("part", part()).json()["score"] == before["score"]
        assert server.client.post("/v1/models/part/undo").status_code in (409, 503)
        shutil.copytree(stored, model)
        assert server.client.post("/v1/models/part/reload").json()["replaced"] is False
        assert server.client.get("/v1/models/part").json()["trouble"] is None


def test_models_appear_and_fail_without_ending_the_watch(stored: Path, tmp_path: Path) -> None:
    notes: list[str] = []
    models = ModelRegistry(lambda folder: PatchSVDD.load(folder, "cpu"), notes.append)
    broken = tmp_path / "trained" / "broken"
    shutil.copytree(stored, broken)
    (broken / "model.json").write_text(json.dumps({"format": 3}))
    models.follow(tmp_path / "trained")
    try:
        wait_until(lambda: models.trouble("broken"))
        shutil.copytree(stored, tmp_path / "trained" / "fine")
        wait_until(lambda: "fine" in models)
    finally:
        models.close()
    assert any("broken" in note for note in notes)


class Slow:
    """A line whose images take a while."""

    def __init__(self, server: Running, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
        detector = server.service.models.named("part").detector
        inspect = detector.inspect_loaded
        self.batches: list[int] = []

        def slowly(batch: Any) -> Any:
            self.batches.append(len(batch))
            time.sleep(seconds)
            return inspect(batch)

        monkeypatch.setattr(detector, "inspect_loaded", slowly)


def test_a_full_line_answers_503_and_when_to_come_back(
    stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(settings(tmp_path / "data", stored, limits={"queue": 6, "batch_size": 2})) as server:
        slow = Slow(server, 0.3, monkeypatch)

        async def ask_all() -> list[httpx.Response]:
            async with httpx.AsyncClient(base_url=server.url, timeout=30) as client:
                asked = [client.post("/v1/models/part/inspect", content=part()) for _ in range(20)]
                return await asyncio.gather(*asked)

        answers = asyncio.run(ask_all())
        good = [one for one in answers if one.status_code == 200]
        refused = [one for one in answers if one.status_code == 503]
        assert len(good) + len(refused) == 20
        assert len(good) >= 6
        assert refused
        for one in refused:
            assert one.json()["type"] == "urn:patchsvdd:overloaded"
            assert int(one.headers["retry-after"]) >= 1
        assert max(slow.batches) == 2
        for one in good:
            assert server.client.get(f"/v1/inspections/{one.json()['id']}").status_code == 200
        assert server.service.queue.in_flight == 0
        assert server.inspect("part", part()).status_code == 200


def test_who_waits_too_long_is_not_computed(stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(settings(tmp_path / "data", stored, limits={"batch_size": 1})) as server:
        slow = Slow(server, 0.6, monkeypatch)
        with ThreadPoolExecutor(4) as pool:
            first = pool.submit(server.inspect, "part", part())
            wait_until(lambda: slow.batches)
            late = [pool.submit(server.inspect, "part", part(), timeout=0.2) for _ in range(3)]
            assert first.result().status_code == 200
            for one in late:
                assert one.result().status_code == 503
                assert one.result().json()["type"] in ("urn:patchsvdd:deadline-exceeded", "urn:patchsvdd:overloaded")
        assert len(slow.batches) == 1
        assert server.client.get("/v1/inspections/counts").json()["total"] == 1


def test_a_cancelled_request_takes_nothing_with_it(
    stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(settings(tmp_path / "data", stored)) as server:
        Slow(server, 0.2, monkeypatch)

        async def give_up(after: float) -> None:
            model = server.service.models.named("part")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(server.service.inspect(model, part(), "x"), after)

        asyncio.run(give_up(0.1))
        future = server.service.store.submit(lambda _: None)
        future.cancel()
        assert server.inspect("part", part()).status_code == 200
        assert server.service.queue._thread.is_alive()
        assert server.service.store._writer.is_alive()


def test_one_image_that_cannot_be_computed_spares_the_others(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = ModelRegistry(lambda folder: PatchSVDD.load(folder, "cpu"), print)
    loaded = models.add(stored)
    inspect = loaded.detector.inspect_loaded
    images = [_loaded(loaded.detector, seed) for seed in (20, 21, 22)]

    def picky(batch: Any) -> Any:
        if any(one is images[1] for one in batch):
            raise RuntimeError("out of memory")
        return inspect(batch)

    monkeypatch.setattr(loaded.detector, "inspect_loaded", picky)
    line = InspectionQueue(8, 4, Telemetry())
    gate = threading.Event()
    line.compute(loaded, lambda: gate.wait(5), time.monotonic() + 10)
    futures = [line.inspect(loaded, image, time.monotonic() + 10) for image in images]
    gate.set()
    assert futures[0].result().inspection.score > 0
    with pytest.raises(RuntimeError):
        futures[1].result()
    assert futures[2].result().inspection.score > 0
    line.close()
    with pytest.raises(Problem), line.place():
        pass


def _loaded(detector: PatchSVDD, seed: int) -> Any:
    from patchsvdd.images.image_set import loaded_image

    return loaded_image(draw_part(seed), (64, 64), detector.config, str(seed))


def test_sigterm_finishes_what_was_accepted(stored: Path, tmp_path: Path) -> None:
    with process(tmp_path / "data", str(stored)) as server:
        server.client.post("/v1/models/part/inspect", content=part())
        answers: list[httpx.Response | Exception] = []

        def ask(seed: int) -> None:
            try:
                with httpx.Client(base_url=server.url, timeout=60) as client:
                    answers.append(client.post("/v1/models/part/inspect", content=part(seed)))
            except httpx.TransportError as error:
                answers.append(error)

        threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(24)]
        for one in threads:
            one.start()
        wait_until(lambda: answers)
        server.process.send_signal(signal.SIGTERM)
        for one in threads:
            one.join(60)
        assert server.process.wait(60) == 0, server.said()
        kept = [one.json()["id"] for one in answers if isinstance(one, httpx.Response) and one.status_code == 200]
        cut = [one for one in answers if isinstance(one, Exception) and not isinstance(one, httpx.ConnectError)]
        assert len(kept) >= 2
        assert not cut, cut
        assert "all answered requests are stored" in " ".join(server.said().split())
        assert "Traceback" not in server.said()
    with running(settings(tmp_path / "data", stored)) as again:
        for number in kept:
            assert again.client.get(f"/v1/inspections/{number}").status_code == 200


def test_metrics_count(served: Running) -> None:
    def value(name: str) -> float:
        found = re.search(rf"^{re.escape(name)} (\S+)$", served.client.get("/metrics").text, re.M)
        return float(found[1]) if found else 0.0

    route = 'patchsvdd_requests_total{method="POST",route="/v1/models/{name}/inspect",status="200"}'
    before = value(route)
    served.inspect("part", part())
    assert value(route) == before + 1
    assert value("patchsvdd_images_in_flight") == 0
    for number in range(3):
        served.client.request(f"MADE{number}", "/nowhere")
    page = served.client.get("/metrics").text
    assert "MADE" not in page
    assert 'method="other",route="other"' in page


def test_readiness_tells_that_the_database_is_gone(stored: Path, tmp_path: Path) -> None:
    with running(settings(tmp_path / "data", stored)) as server:
        assert server.client.get("/readyz").status_code == 200
        file, away = tmp_path / "data" / "inspections.sqlite", tmp_path / "away.sqlite"
        file.rename(away)
        told = server.client.get("/readyz")
        assert told.status_code == 503
        assert told.json()["problems"] == ["the database does not answer"]
        assert server.client.get("/healthz").status_code == 200
        assert server.client.get("/v1/inspections").status_code == 503
        assert not file.exists()
        away.rename(file)
        assert server.client.get("/readyz").status_code == 200
        assert server.inspect("part", part()).status_code == 200


def test_head_is_get_without_content(served: Running) -> None:
    for path in ("/healthz", "/v1/models", "/metrics"):
        answer = served.client.head(path)
        assert answer.status_code == 200
        assert answer.content == b""
    assert served.client.head("/v1/models/part/inspect").status_code == 405


def test_the_description_is_complete(served: Running) -> None:
    spec = served.client.get("/openapi.json").json()
    assert spec["openapi"].startswith("3.1")
    names = set()
    for path, methods in spec["paths"].items():
        for method, route in methods.items():
            where = f"{method} {path}"
            assert route["operationId"] not in names, where
            names.add(route["operationId"])
            assert route.get("description") or route.get("summary"), where
            answers = route["responses"]
            assert any(status.startswith("2") for status in answers), where
            if path not in ("/healthz", "/readyz"):
                for status in ("401", "403", "422", "503"):
                    assert set(answers[status]["content"]) == {"application/problem+json"}, (where, status)
            for name in re.findall(r"{(\w+)}", path):
                assert any(one["name"] == name and one["in"] == "path" for one in route["parameters"]), where
            for one in route.get("parameters", ()):
                if one["in"] == "path" and one["name"] in ("name", "number"):
                    assert one["schema"].get("examples") or one.get("examples") or one.get("example"), where
    text = json.dumps(spec)
    for reference in set(re.findall(r'"#/components/schemas/(\w+)"', text)):
        assert reference in spec["components"]["schemas"]
    assert set(re.findall(r'"\$ref": "#/(\w+)/(\w+)/', text)) == {("components", "schemas")}
    for name in ("ReviewRequest", "LearnRequest", "SignInRequest"):
        assert {"example", "examples"} & spec["components"]["schemas"][name].keys()
