"""Learning and undoing on the page: what is undone, what a job waits for, what a preview says."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from support.browsing import NEEDS_BROWSER
from support.review_bench import Bench, OpenPage

pytestmark = NEEDS_BROWSER
pytest_plugins = ("support.browser_fixtures", "support.review_fixtures")


def changed(page: Any, change: dict[str, Any] | None) -> None:
    """Let a model say what was changed last."""

    def answer(route: Any) -> None:
        route.fulfill(json={**route.fetch().json(), "last_change": change})

    page.route(re.compile(r"/v1/models/line-\d+$"), answer)


def test_undo_names_the_change_and_is_refused_after_another(bench: Bench, open_page: OpenPage) -> None:
    """H3."""
    bench.alarms("line-0")
    page = open_page("#/train", model="line-0")
    first = {"entry": 3, "kind": "learning", "at": "2026-01-02T03:04:05Z", "images": 2, "identity": "i3"}
    changed(page, first)
    page.goto(f"{bench.url}#/review")
    undo = page.get_by_role("button", name="Undo learning 2 images")
    undo.wait_for()
    sent: list[Any] = []

    def refuse(route: Any) -> None:
        sent.append(route.request.post_data_json)
        changed(page, {**first, "entry": 4, "kind": "calibration", "images": 0, "identity": "i4"})
        route.fulfill(status=409, json={"detail": "the model was calibrated after that"})

    page.route("**/undo", refuse)
    undo.click()
    page.locator(".learn .hint.bad", has_text="the model was calibrated after that").wait_for()
    assert sent == [{"entry": 3, "identity": "i3"}]
    page.get_by_role("button", name=re.compile("^Undo calibration of 2026-01-02")).wait_for()
    changed(page, None)
    page.select_option("#model", "line-1")
    page.get_by_text("There are no new reviewed false alarms of line-1").wait_for()
    assert page.locator(".learn button:visible").count() == 0


def job(state: str, **more: Any) -> dict[str, Any]:
    """A job as the service answers it."""
    facts = {"id": "0" * 24, "kind": "preview", "model": "line-0", "state": state, "stage": "", "done": 0, "total": 0}
    facts |= {"result": None, "error": None, "created": "2026-01-02T03:04:05Z", "updated": "2026-01-02T03:04:05Z"}
    return {**facts, "by": "local", "inspections": [], "losses": [], "pictures": [], **more}


def test_a_job_that_waits_says_for_what_and_is_cancelled_at_once(bench: Bench, open_page: OpenPage) -> None:
    """M5."""
    bench.alarms("line-0", 141, review="false_alarm")
    page = open_page("#/train", model="line-0")
    other = {"kind": "train", "model": "washer-2", "seconds_left": 700}
    waiting = job("waiting", waiting_for=other)
    page.route("**/learn", lambda route: route.fulfill(status=202, json=waiting))
    page.route(f"**/jobs/{waiting['id']}", lambda route: route.fulfill(json=waiting))
    page.route("**/cancel", lambda route: route.fulfill(json=waiting))  # as long as the service has not noticed
    page.route("**/jobs?*", lambda route: route.fulfill(json={"jobs": [waiting]}))
    page.goto(f"{bench.url}#/review")
    page.get_by_text("Waiting for the training of washer-2, about 12 min left").wait_for()
    page.get_by_role("button", name="Cancel").click()
    page.locator(".learn .hint", has_text="Cancelled.").wait_for()
    page.get_by_role("button", name="Preview what changes").wait_for()


def preview(page: Any, ids: list[str], learned: str, after: dict[str, tuple[float, str]]) -> None:
    """Let learning ``learned`` have these scores and verdicts as its preview."""
    scores = {f"{one}.png": {"score": score, "verdict": verdict} for one, (score, verdict) in after.items()}
    result = {"scores": scores, "threshold": 1e-6, "threshold_before": 1e-6, "alarming": []}
    done = job("done", result=result, inspections=[learned])
    page.route("**/learn", lambda route: route.fulfill(status=202, json=job("running", inspections=[learned])))
    page.route(f"**/jobs/{done['id']}", lambda route: route.fulfill(json=done))
    assert set(after) == set(ids)


SMALL = {"score": 2e-6, "threshold": 1e-6}
"""Scores as those of the demo: a change may be far smaller than 0.000001 and yet matter."""


def test_a_preview_compares_scores_with_the_threshold(bench: Bench, open_page: OpenPage) -> None:
    """L6."""
    ids = bench.alarms("line-0", 151, 152, 153, 154, **SMALL)
    for code, verdict in ((151, "false_alarm"), (154, "true_defect")):
        bench.running.service.store.review(ids[code], verdict, "", "me")
    page = open_page("#/train", model="line-0")
    scores = {
        151: (0.0, "good"),
        152: (1.5e-6, "anomalous"),
        153: (2e-6 * (1 - 1e-6), "anomalous"),
        154: (2e-6, "anomalous"),
    }
    preview(page, list(ids.values()), ids[151], {ids[code]: one for code, one in scores.items()})
    page.goto(f"{bench.url}#/review")
    page.get_by_role("button", name="Preview what changes").click()
    page.get_by_text("Of 3 other recent inspections 1 score lower and none changes its verdict.").wait_for()
    assert page.locator(".learn button.main").inner_text() == "Learn this false alarm"


@pytest.mark.parametrize("width", [1440, 390])
def test_learning_that_would_miss_defects_takes_a_second_step(bench: Bench, open_page: OpenPage, width: int) -> None:
    """L7, and before and after in sight on a phone."""
    ids = bench.alarms("line-0", 161, 162, 163, **SMALL)
    for code, verdict in ((161, "false_alarm"), (162, "true_defect"), (163, "true_defect")):
        bench.running.service.store.review(ids[code], verdict, "", "me")
    page = open_page("#/train", model="line-0", viewport={"width": width, "height": 844})
    preview(page, list(ids.values()), ids[161], dict.fromkeys(ids.values(), (1e-7, "good")))
    page.goto(f"{bench.url}#/review")
    page.get_by_role("button", name="Preview what changes").click()
    page.get_by_text("2 true defects would no longer be detected.").wait_for()
    assert page.locator(".learn button.main").all_inner_texts() == ["Not now"]
    learn = page.get_by_role("button", name="Learn this false alarm")
    assert learn.is_hidden()
    inside = "all => all.every(e => e.scrollWidth <= e.clientWidth && e.getBoundingClientRect().right <= innerWidth)"
    assert page.eval_on_selector_all(".compared, .compared li, .compared .change", inside)
    assert page.locator(".compared li").count() == 3
    assert page.locator(".compared li").first.inner_text().count("→") == 2
    page.get_by_role("button", name="Learn anyway…").click()
    assert learn.is_disabled()
    page.get_by_label("I accept that 2 true defects will no longer be found.").check()
    with page.expect_request("**/learn") as asked:
        learn.click()
    assert json.loads(asked.value.post_data) == {"preview": False, "inspections": [ids[161]]}


TAUGHT = {"kind": "scratch", "has_mask": True, "score_before": 0.7, "found_before": False, "found_after": True}


@pytest.mark.parametrize("width", [1440, 390])
def test_teaching_shows_what_changes_before_it_is_applied(bench: Bench, open_page: OpenPage, width: int) -> None:
    ids = bench.alarms("line-2", 171, 172, 173, **SMALL)
    for code, verdict in ((171, "true_defect"), (172, "true_defect"), (173, "false_alarm")):
        bench.running.service.store.review(ids[code], verdict, "", "me")
    page = open_page("#/train", model="line-2", viewport={"width": width, "height": 844})
    page.route(
        re.compile(r"/v1/models/line-\d+$"),
        lambda route: route.fulfill(json={**route.fetch().json(), "not_teachable": None}),
    )
    taught = [{**TAUGHT, "name": f"{ids[code]}.png"} for code in (171, 172)]
    taught[1]["has_mask"] = False
    scores = {f"{ids[code]}.png": {"score": 3e-6, "verdict": "anomalous"} for code in (171, 172, 173)}
    result = {"scores": scores, "threshold": 1e-6, "threshold_before": 1e-6, "taught": taught}
    result |= {"calibration_images": 40, "alarms": 1, "alarms_before": 1, "guarantee": "At most 5 % raise an alarm."}
    about = {"kind": "teach-preview", "model": "line-2", "inspections": [ids[171], ids[172]]}
    page.route("**/teach", lambda route: route.fulfill(status=202, json=job("running", **about)))
    page.route(f"**/jobs/{'0' * 24}", lambda route: route.fulfill(json=job("done", result=result, **about)))
    page.goto(f"{bench.url}#/review")
    page.get_by_text("2 confirmed defects of line-2 were not taught yet.").wait_for()
    page.get_by_label("Name of these defects").fill("scratch")
    with page.expect_request("**/teach") as asked:
        page.get_by_role("button", name="Preview what teaching changes").click()
    assert json.loads(asked.value.post_data) == {"preview": True, "inspections": None, "kind": "scratch"}
    page.get_by_text("0 of 2 defects raised an alarm before.").wait_for()
    changes = page.locator(".teach .changes").inner_text()
    assert "2 of 2 would be found by a model that was taught only the others of the kind." in changes
    assert "1 of 2 are marked" in changes
    assert "1 of 40 good images of the calibration is above the threshold, before 1." in changes
    assert "Of 1 other recent inspection 1 score higher and none changes its verdict." in changes
    inside = "all => all.every(e => e.scrollWidth <= e.clientWidth && e.getBoundingClientRect().right <= innerWidth)"
    assert page.eval_on_selector_all(".compared, .compared li, .compared .change", inside)
    with page.expect_request("**/teach") as asked:
        page.get_by_role("button", name="Teach these 2 defects").click()
    sent = json.loads(asked.value.post_data)
    assert sent == {"preview": False, "inspections": [ids[171], ids[172]], "kind": "scratch"}


def test_a_model_that_cannot_be_taught_offers_no_teaching(bench: Bench, open_page: OpenPage) -> None:
    ids = bench.alarms("line-3", 181)
    bench.running.service.store.review(ids[181], "true_defect", "", "me")
    page = open_page("#/review", model="line-3")
    page.get_by_text("There are no new reviewed false alarms of line-3").wait_for()
    page.locator(".teach").wait_for(state="hidden")
