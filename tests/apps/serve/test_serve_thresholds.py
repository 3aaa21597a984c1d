"""Thresholds of served models: the trade-off, another operating point, proposals, and recalibration."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from patchsvdd.apps.serve import job_process
from patchsvdd.apps.serve.auth import add_key
from patchsvdd.apps.serve.confirmed_images import LEAST, confirmed_images, in_proportion
from patchsvdd.apps.serve.job_runner import LANES
from patchsvdd.apps.serve.overview_store import Counter
from patchsvdd.apps.serve.samples import Samples
from patchsvdd.apps.serve.settings import Settings
from patchsvdd.apps.serve.store import Store
from patchsvdd.apps.serve.threshold_proposal import reviews_of
from patchsvdd.apps.serve.trade_off import POINTS, points, thresholds_of
from patchsvdd.core.errors import ModelError
from patchsvdd.detector.detector import PatchSVDD
from patchsvdd.detector.model_folder import change_model, journal_of, read_index
from patchsvdd.detector.threshold_choice import choose_threshold
from patchsvdd.scoring.calibration import Calibration
from patchsvdd.scoring.trade_off import Evidence
from support.parts import TINY, draw_part
from support.reviewed_line import DEFECTS, FALSE_ALARMS, GOOD, SAMPLED, add_reviews
from support.serving import Running, copy_model, part, row, running, settings

pytestmark = pytest.mark.service
WEIGHED: dict[str, Any] = {**TINY, "aim": "balanced", "synthetic_defects": 24}


@pytest.fixture(scope="module")
def weighed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stored model with synthetic defects. Tests copy it."""
    folder = tmp_path_factory.mktemp("weighed") / "part"
    PatchSVDD.fit([draw_part(seed) for seed in range(8)], preset="encoder", device="cpu", **WEIGHED).save(folder)
    return folder


@pytest.fixture(scope="module")
def server(weighed: Path, stored: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service with a model that has synthetic defects ("part"), and one of an earlier version ("old")."""
    folder = tmp_path_factory.mktemp("service")
    with running(
        settings(folder / "data", copy_model(weighed, folder / "part"), copy_model(stored, folder / "old"))
    ) as found:
        yield found


def trade_off(server: Running, name: str = "part") -> dict[str, Any]:
    answer = server.client.get(f"/v1/models/{name}/trade-off")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def choose(server: Running, name: str = "part", **wanted: Any) -> httpx.Response:
    return server.client.post(f"/v1/models/{name}/threshold", json=wanted)


def proposal(server: Running, name: str = "part", **params: Any) -> dict[str, Any]:
    answer = server.client.get(f"/v1/models/{name}/threshold-proposal", params=params)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def undo(server: Running, entry: int, name: str = "part") -> dict[str, Any]:
    answer = server.client.post(f"/v1/models/{name}/undo", json={"entry": entry})
    assert answer.status_code == 202, answer.text
    return server.job(answer.json()["id"])


# The trade-off


def test_the_trade_off_says_what_thresholds_cost(server: Running) -> None:
    found = trade_off(server)
    assert found["aim"] == "balanced"
    assert found["changeable"]
    assert found["estimated"]
    assert found["reason"] is None
    assert f"{found['visible']} visible synthetic defects" in found["sentence"]
    assert found["guarantee"] in found["sentence"]
    assert found["good"] == len(server.client.get("/v1/models/part").json()["calibration"]["scores"])
    assert found["defects"] >= 20
    assert sum(one["missed"] for one in found["classes"]) == round(found["miss_rate"] * found["defects"])
    curve = found["curve"]
    assert POINTS <= len(curve) <= POINTS + 4
    assert [one["threshold"] for one in curve] == sorted(one["threshold"] for one in curve)
    assert all(a["false_alarms"] >= b["false_alarms"] and a["missed"] <= b["missed"] for a, b in pairwise(curve))
    assert curve[0]["false_alarms"] >= 0.5
    assert curve[-1]["false_alarms"] < 0.05
    now = next(one for one in curve if one["threshold"] == found["threshold"])
    assert now["missed"] == found["miss_rate"]
    assert 0 <= now["above"] <= found["good"]
    assert now["classes"] == [one["missed"] for one in found["classes"]]
    aims = {one["aim"]: one for one in found["aims"]}
    assert aims["balanced"]["threshold"] == found["threshold"]
    assert aims["few-misses"]["threshold"] <= aims["balanced"]["threshold"]
    assert aims["few-misses"]["missed"] <= aims["balanced"]["missed"]
    for one in aims.values():
        assert one["reason"] is None
        assert next(point for point in curve if point["threshold"] == one["threshold"])["missed"] == one["missed"]


def test_an_old_model_says_why_misses_are_not_known(server: Running) -> None:
    found = trade_off(server, "old")
    assert found["changeable"]
    assert not found["estimated"]
    assert "earlier version" in found["reason"]
    assert "calibrate it with good images" in found["reason"]
    assert found["miss_rate"] is None
    assert found["classes"] == []
    assert {one["aim"]: one["threshold"] is None for one in found["aims"]} == {
        "balanced": True,
        "few-alarms": False,
        "few-misses": True,
    }
    assert all(one["missed"] is None for one in found["curve"])
    refused = choose(server, "old", aim="balanced")
    assert refused.status_code == 409
    assert "requires scores of synthetic defects" in refused.json()["detail"]
    assert "`" not in refused.json()["detail"]


def test_a_model_without_a_threshold_says_what_to_do(stored: Path, tmp_path: Path) -> None:
    model = copy_model(stored, tmp_path / "part")
    change_model(model, {"calibration": None}, "calibrate")
    with running(settings(tmp_path / "data", model)) as server:
        found = trade_off(server)
        assert not found["changeable"]
        assert "no threshold yet" in found["reason"]
        assert found["curve"] == []
        nothing = proposal(server)
        assert not nothing["possible"]
        assert "no threshold yet" in nothing["reason"]
        refused = choose(server, threshold=1.0)
        assert refused.status_code == 409
        assert str(tmp_path) not in refused.text


def test_no_threshold_is_relative_to_zero() -> None:
    same = Calibration(0.0, 0.01, (0.0, 0.0, 0.0), "held-out")
    assert thresholds_of(same, [0.0]) == [0.0]
    assert points(same, [0.0]) == [{"threshold": 0.0, "above": 0, "false_alarms": 0.0, "missed": None, "classes": []}]


def test_the_range_of_the_curve_ends_where_nothing_is_left_to_choose() -> None:
    far = Evidence((), (1e6,) * 5, (12.0,) * 5, (30.0,) * 5)
    found = thresholds_of(Calibration(2.0, 0.01, (1.0, 1.5, 2.0), "held-out", evidence=far), [2.0])
    assert 2.0 in found
    assert found[0] < 1.5
    assert 2.5 < found[-1] < 10


# Another operating point


def test_a_threshold_is_set_undone_and_served(server: Running) -> None:
    before = trade_off(server)
    wanted = before["curve"][20]["threshold"]
    job = choose(server, threshold=wanted, identity=before["identity"])
    assert job.status_code == 202, job.text
    ended = server.job(job.json()["id"])
    assert (ended["state"], ended["kind"], ended["by"]) == ("done", "threshold", "local"), ended
    assert ended["result"]["threshold"] == wanted
    assert ended["result"]["threshold_before"] == before["threshold"]
    after = trade_off(server)
    assert (after["threshold"], after["aim"]) == (wanted, "chosen")
    assert after["identity"] == ended["result"]["identity"] != before["identity"]
    assert after["miss_rate"] == before["curve"][20]["missed"]
    assert server.inspect("part", part(20)).json()["threshold"] == wanted
    last = server.client.get("/v1/models/part").json()["last_change"]
    assert (last["entry"], last["kind"]) == (ended["result"]["entry"], "calibration")
    report = server.client.get("/v1/reports/shift", params={"format": "json"}).json()
    assert [one["by"] for one in report["changes"] if one["model"] == "part"] == ["local"]

    assert undo(server, last["entry"])["state"] == "done"
    again = trade_off(server)
    assert again["threshold"] == before["threshold"]
    assert again["identity"] == before["identity"]


@pytest.mark.parametrize(
    ("wanted", "aim"), [({"aim": "few-misses"}, "few-misses"), ({"false_alarm_rate": 0.3}, "few-alarms")], ids=str
)
def test_a_threshold_is_set_for_an_aim_or_a_rate(server: Running, wanted: dict[str, Any], aim: str) -> None:
    before = trade_off(server)
    ended = server.job(choose(server, **wanted).json()["id"])
    assert ended["state"] == "done", ended
    after = trade_off(server)
    assert after["aim"] == aim
    if "aim" in wanted:
        assert after["threshold"] == next(one["threshold"] for one in before["aims"] if one["aim"] == aim)
    else:
        assert after["false_alarm_rate"] == 0.3
    refused = choose(server, **wanted)
    assert refused.status_code == 409
    assert "has this threshold already" in refused.json()["detail"]
    undo(server, ended["result"]["entry"])


def test_a_rate_can_be_set_for_an_old_model(server: Running) -> None:
    ended = server.job(choose(server, "old", aim="few-alarms", false_alarm_rate=0.5).json()["id"])
    assert ended["state"] == "done", ended
    assert trade_off(server, "old")["false_alarm_rate"] == 0.5
    undo(server, ended["result"]["entry"], "old")


@pytest.mark.parametrize(
    "wrong",
    [
        *({}, {"aim": "chosen"}, {"aim": "balanced", "threshold": 1.0}, {"aim": "balanced", "false_alarm_rate": 0.1}),
        *({"threshold": 0}, {"threshold": -1}, {"threshold": 1e300}, {"threshold": "x"}, {"false_alarm_rate": 1}),
        *({"false_alarm_rate": 0}, {"aim": "balanced", "other": 1}, {"identity": "x"}),
    ],
    ids=str,
)
def test_what_is_not_a_threshold_is_refused(server: Running, wrong: dict[str, Any]) -> None:
    refused = choose(server, **wrong)
    assert refused.status_code == 422
    assert refused.json()["type"] == "urn:patchsvdd:invalid-request"


def test_a_model_that_is_not_there(server: Running) -> None:
    for answer in (
        server.client.get("/v1/models/none/trade-off"),
        server.client.get("/v1/models/none/recalibration"),
        server.client.get("/v1/models/none/threshold-proposal"),
        choose(server, "none", aim="balanced"),
        server.client.post("/v1/models/none/recalibration"),
    ):
        assert answer.status_code == 404
        assert "no model 'none' is served" in answer.json()["detail"]


def test_a_choice_for_another_version_is_refused(server: Running) -> None:
    for answer in (
        choose(server, aim="few-misses", identity="0" * 16),
        server.client.post("/v1/models/part/recalibration", json={"identity": "0" * 16}),
    ):
        assert answer.status_code == 409
        assert "changed in the meantime" in answer.json()["detail"]


def test_an_undo_is_refused_if_another_change_came_after(server: Running) -> None:
    folder = server.service.models.named("part").folder
    first = server.job(choose(server, aim="few-misses").json()["id"])["result"]["entry"]
    choose_threshold(folder, threshold=1.25)
    refused = server.client.post("/v1/models/part/undo", json={"entry": first})
    assert refused.status_code == 409
    assert "the last change is now a calibration of" in refused.json()["detail"]
    for entry in (first + 1, first):
        undo(server, entry)


def test_only_administrators_change_a_threshold(weighed: Path, tmp_path: Path) -> None:
    store = Store(Settings((), tmp_path / "data").url)
    keys = {role: add_key(store, role, role) for role in ("inspect", "review", "admin")}
    store.close()
    model = copy_model(weighed, tmp_path / "part")
    with running(settings(tmp_path / "data", model, require_key=True)) as server:
        for role, key in keys.items():
            server.client.headers["Authorization"] = f"Bearer {key}"
            assert trade_off(server)["changeable"]
            assert server.client.get("/v1/models/part/recalibration").status_code == 200
            assert not proposal(server)["possible"]
            statuses = (
                choose(server, aim="balanced").status_code,  # it has that aim already
                server.client.post("/v1/models/part/recalibration").status_code,
            )
            assert statuses == ((409, 409) if role == "admin" else (403, 403))
        assert journal_of(read_index(model)) == []


def test_the_jobs_do_not_wait_for_a_training() -> None:
    assert "train" not in LANES["change"]
    assert {"threshold", "recalibrate"} <= set(LANES["change"])


# The job's process


def order_for(model: Path, **more: Any) -> dict[str, Any]:
    index = read_index(model)
    more["folder"] = str(model.parent)
    order = {"model": str(model), "identity": index["identity"], "entry": len(journal_of(index)) + 1, "again": False}
    return {**order, "aim": None, "false_alarm_rate": None, "threshold": None, **more}


def test_a_change_between_the_request_and_the_job_is_kept(weighed: Path, tmp_path: Path) -> None:
    model = copy_model(weighed, tmp_path / "part")
    order = order_for(model, aim="few-misses")
    choose_threshold(model, threshold=1.25)
    progress = job_process.Progress(threading.Event())
    for again in (False, True):
        with pytest.raises(ModelError, match="changed in the meantime; its threshold stays"):
            job_process.set_threshold({**order, "again": again}, progress)
    with pytest.raises(ModelError, match="changed in the meantime; its threshold stays"):
        job_process.recalibrate({**order, "images": str(tmp_path), "device": "cpu"}, progress)
    assert read_index(model)["calibration"]["threshold"] == 1.25


def test_a_job_that_was_killed_after_its_work_does_it_once(weighed: Path, tmp_path: Path) -> None:
    model = copy_model(weighed, tmp_path / "part")
    order = order_for(model, threshold=1.5)
    progress = job_process.Progress(threading.Event())
    assert job_process.set_threshold(order, progress)["entry"] == 1
    for work in (job_process.set_threshold, job_process.recalibrate):
        assert work({**order, "again": True}, progress)["already"] is True
    assert len(journal_of(read_index(model))) == 1
    # It was killed before, and somebody else has calibrated the model.
    (tmp_path / job_process.CALIBRATION).unlink()
    with pytest.raises(ModelError, match="changed in the meantime"):
        job_process.set_threshold({**order, "again": True}, progress)


# A threshold from reviews


def test_without_reviews_the_answer_says_what_is_missing(server: Running) -> None:
    found = proposal(server, "old", days=3)
    assert (found["model"], found["days"], found["possible"], found["proposal"]) == ("old", 3, False, None)
    assert (found["reviewed_good"], found["reviewed_defects"]) == (0, 0)
    assert found["reason"].startswith(
        "a proposal requires 5 more reviewed defects (0 of at least 5) and 20 more reviewed good parts "
        "(0 of at least 20). Under Review, decide the alarms"
    )
    for days in (0, 367):
        url = "/v1/models/old/threshold-proposal"
        assert server.client.get(url, params={"days": days}).status_code == 422


def test_a_proposal_is_applied_and_undone(server: Running) -> None:
    before = trade_off(server)
    add_reviews(server.service.store, "part", before["identity"], before["threshold"])
    found = proposal(server)
    assert found["possible"]
    assert (found["identity"], found["days"], found["reason"]) == (before["identity"], 7, None)
    assert (found["reviewed_good"], found["reviewed_defects"]) == (SAMPLED + FALSE_ALARMS, DEFECTS)
    better = found["proposal"]
    assert better["is_better"]
    assert "The reviews support the change" in better["sentence"]
    assert better["current"]["threshold"] == before["threshold"]
    assert 1.3 < better["threshold"] / before["threshold"] < 3
    assert better["current"]["false_alarms"]["estimate"] == pytest.approx(FALSE_ALARMS / (FALSE_ALARMS + GOOD))
    assert better["proposed"]["false_alarms"]["high"] < better["current"]["false_alarms"]["low"]
    assert better["proposed"]["misses"]["estimate"] == 0

    job = choose(server, threshold=better["threshold"], identity=found["identity"])
    ended = server.job(job.json()["id"])
    assert ended["state"] == "done", ended
    assert trade_off(server)["threshold"] == better["threshold"]
    after = proposal(server)  # nothing was inspected with the new threshold
    assert not after["possible"]
    assert (after["reviewed_good"], after["reviewed_defects"]) == (0, 0)
    undo(server, ended["result"]["entry"])
    assert proposal(server)["proposal"] == better


def test_only_reviews_of_this_version_and_threshold_support_a_proposal(tmp_path: Path) -> None:
    store = Store(Settings((), tmp_path).url)
    others: tuple[dict[str, Any], ...] = ({"identity": "earlier"}, {"model": "other"}, {"at": time.time() - 9 * 86_400})
    for other in others:
        add_reviews(store, **{"model": "part", "identity": "i", "threshold": 2.0, **other})
    add_reviews(store, "part", "i", 1.0)
    samples = Samples(store, Counter(store))
    assert reviews_of(samples, "part", "i", 2.0, 7).parts == ()
    assert len(reviews_of(samples, "part", "i", 2.0, 10).parts) == SAMPLED + FALSE_ALARMS + DEFECTS
    for review in ("true_defect", "confirmed_good"):  # nobody drew them
        store.insert_inspection(row(score=0.5, review=review)).result()
    store.insert_inspection(row(score=2.0, verdict="anomalous", review="unsure")).result()
    found = reviews_of(samples, "part", "i", 1.0, 7)
    assert (found.count(is_defect=False), found.count(is_defect=True)) == (SAMPLED + FALSE_ALARMS, DEFECTS)
    assert (found.good, found.alarms) == (GOOD + 2, FALSE_ALARMS + DEFECTS + 1)
    assert len(found.good_scores) == GOOD + 2
    assert not found.missing
    store.close()


# Recalibration with confirmed images


def test_both_kinds_are_taken_in_the_proportion_of_the_line() -> None:
    assert in_proportion(30, 10, 1000, 0) == (30, 0)
    assert in_proportion(30, 10, 900, 100) == (30, 3)
    assert in_proportion(30, 10, 100, 200) == (5, 10)  # alarms are short
    assert in_proportion(30, 2, 900, 100) == (18, 2)
    assert in_proportion(30, 0, 900, 100) == (0, 0)
    assert in_proportion(0, 7, 0, 50) == (0, 7)


def test_only_confirmed_images_of_this_version_count(tmp_path: Path) -> None:
    store = Store(Settings((), tmp_path).url)
    now = time.time()

    def add(many: int, verdict: str, review: str | None, **values: Any) -> None:
        for _ in range(many):
            store.insert_inspection(
                row(values.pop("at", now), verdict=verdict, review=review, **{"picture": "p", **values})
            ).result()

    add(10, "good", "confirmed_good")
    add(10, "good", None)
    add(1, "good", "true_defect")
    add(3, "good", "confirmed_good", identity="earlier")
    add(3, "good", "confirmed_good", model="other")
    add(1, "good", "confirmed_good", picture=None)
    add(1, "good", "confirmed_good", at=now - 9 * 86_400)
    add(4, "anomalous", None)
    found = confirmed_images(store, "part", "i", 7)
    assert (len(found.good), len(found.alarms), found.chosen) == (10, 0, [])
    assert "none of the 4 alarms is reviewed" in str(found.reason)
    add(3, "anomalous", "false_alarm")
    add(3, "anomalous", "true_defect")
    found = confirmed_images(store, "part", "i", 7)
    assert (len(found.good), len(found.alarms)) == (10, 3)
    # Half of the 10 alarms are false: 5 for 22 that passed, so 2 for 10.
    assert [one["review"] for one in found.chosen] == ["confirmed_good"] * 10 + ["false_alarm"] * 2
    assert len(found.chosen) == LEAST
    assert found.reason is None
    assert "at least 12 images" in str(confirmed_images(store, "part", "earlier", 7).reason)
    store.close()


def test_a_model_is_calibrated_with_confirmed_images(weighed: Path, tmp_path: Path) -> None:
    model = copy_model(weighed, tmp_path / "part")
    with running(settings(tmp_path / "data", model)) as server:
        choose_threshold(model, threshold=1e6)  # every part passes
        server.client.post("/v1/models/part/reload")
        url = "/v1/models/part/recalibration"
        refused = server.client.post(url)
        assert refused.status_code == 409
        assert "Confirm more good parts under Review" in refused.json()["detail"]
        numbers = [server.inspect("part", part(seed)).json()["id"] for seed in range(40, 54)]
        for number in numbers:
            verdict = {"verdict": "confirmed_good"}
            assert server.client.post(f"/v1/inspections/{number}/review", json=verdict).status_code == 200
        facts = server.client.get(url).json()
        assert facts["possible"], facts
        assert (facts["images"], facts["confirmed_good"], facts["false_alarms"]) == (14, 14, 0)
        assert facts["changes"] == []
        assert not facts["higher"]
        job = server.client.post(url, json={"identity": facts["identity"]})
        assert job.status_code == 202, job.text
        ended = server.job(job.json()["id"])
        assert ended["state"] == "done", ended
        assert ended["kind"] == "recalibrate"
        assert sorted(ended["inspections"]) == sorted(numbers)
        assert ended["result"]["used"] + len(ended["result"]["copies"]) == 14
        found = trade_off(server)
        assert found["aim"] == "balanced"
        assert found["threshold"] == ended["result"]["threshold"] < 1e6
        assert found["estimated"]
        assert found["guaranteed"]
        assert not list((tmp_path / "data" / "jobs").glob("*/images"))
        undo(server, ended["result"]["entry"])
        assert trade_off(server)["threshold"] == 1e6


def test_a_shift_to_higher_scores_is_reported(weighed: Path, tmp_path: Path) -> None:
    model = copy_model(weighed, tmp_path / "part")
    with running(settings(tmp_path / "data", model)) as server:
        identity = server.service.models.named("part").identity
        calibration = server.service.models.named("part").detector.calibration
        assert calibration is not None
        traits = {name: sum(values) / len(values) for name, values in calibration.traits.items()}
        traits["distance"] = 10 * max(calibration.traits["distance"])
        for _ in range(60):
            server.service.store.insert_inspection(row(identity=identity, traits=traits)).result()
        facts = server.client.get("/v1/models/part/recalibration").json()
        assert facts["higher"]
        assert [one["trait"] for one in facts["changes"] if one["direction"] == "higher"] == ["distance"]
