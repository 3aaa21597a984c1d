"""The operating point of a model on the page: drag, keys, aims, apply, undo, roles, and calibrating again."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from patchsvdd.apps.serve.accounts import add_user
from patchsvdd.apps.serve.settings import Settings
from patchsvdd.apps.serve.store import Store
from patchsvdd.detector.model_folder import change_model, read_index
from support.browsing import NEEDS_BROWSER, SECONDS, Server
from support.reviewed_line import DEFECTS, FALSE_ALARMS, SAMPLED, add_reviews
from support.serving import copy_model

pytestmark = NEEDS_BROWSER
pytest_plugins = ("support.browser_fixtures",)

PLOT = ".trade-plot"
WIDTHS = (320, 390, 820, 1440, 1920)
PASSWORD = "a horse, a battery"
SHIFT = {"trait": "distance", "meaning": "how far images are from normal ones throughout", "direction": "higher"}


@pytest.fixture(scope="module")
def server(washer: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A service with a model that has synthetic defects ("washer"), and one of an earlier version ("old")."""
    folder = tmp_path_factory.mktemp("service")
    models = (copy_model(washer, folder / "washer"), copy_model(washer, folder / "old"))
    plain = {**read_index(models[1])["calibration"], "evidence": None, "region_level": None, "aim": "few-alarms"}
    change_model(models[1], {"calibration": plain}, "calibrate")
    running = Server(folder / "data", models)
    running.start()
    yield running
    running.stop()


@pytest.fixture
def facts(server: Server) -> dict[str, Any]:
    found: dict[str, Any] = server.get("models/washer/trade-off")
    return found


def open_model(page: Any, server: Server, name: str = "washer") -> None:
    page.goto("about:blank")
    page.goto(f"{server.url}#/models/{name}")
    page.wait_for_selector(f".trade {'.handle .grip' if name == 'washer' else '.trade-none'}")


def place(page: Any) -> int:
    """Index of the point at the handle."""
    return int(page.locator(PLOT).get_attribute("aria-valuenow"))


def now_of(facts: dict[str, Any]) -> int:
    return next(index for index, one in enumerate(facts["curve"]) if one["threshold"] == facts["threshold"])


def live(page: Any) -> str:
    return str(page.locator(".trade-live").inner_text())


def percent(share: float) -> str:
    """A share as the page shows it."""
    value = 100 * share
    return f"{value:.0f} %" if value == 0 or value >= 10 else f"{value:.1f} %" if value >= 1 else f"{value:.2f} %"


def test_the_handle_moves_by_keys_and_says_both_errors(page: Any, server: Server, facts: dict[str, Any]) -> None:
    open_model(page, server)
    slider = page.get_by_role("slider", name="Operating point")
    start, curve = now_of(facts), facts["curve"]
    assert place(page) == start
    assert page.get_by_role("button", name="Apply").is_disabled()
    assert "Nothing is changed yet" in page.locator("#trade-why").inner_text()
    slider.focus()
    moves = {"ArrowRight": start + 1, "ArrowLeft": start, "ArrowUp": start + 1, "ArrowDown": start}
    for key, index in {**moves, "PageDown": start - 10, "Home": 0, "End": len(curve) - 1}.items():
        page.keyboard.press(key)
        assert place(page) == index, key
    page.keyboard.press("Home")
    page.keyboard.press("ArrowLeft")
    assert place(page) == 0
    point = curve[0]
    words = slider.get_attribute("aria-valuetext")
    assert re.match(r"threshold 0\.\d+ times the present one, about ", words)
    assert f"about {percent(point['false_alarms'])} false alarms" in words
    assert f"{percent(point['missed'])} of visible synthetic defects missed" in words
    assert f"about {percent(point['false_alarms'])} false alarms" in live(page)
    cells = page.locator(".trade-table td").all_inner_texts()
    assert sum(int(one.split(" of ")[0]) for one in cells if " of " in one) == sum(point["classes"])
    assert sum(int(one.split(" of ")[1]) for one in cells if " of " in one) == facts["defects"]
    assert page.get_by_role("button", name="Apply").is_enabled()
    page.get_by_role("button", name="Back to the present").click()
    assert place(page) == start
    assert page.get_by_role("button", name="Apply").is_disabled()


def test_the_handle_is_dragged(page: Any, server: Server, facts: dict[str, Any]) -> None:
    open_model(page, server)
    page.locator(PLOT).scroll_into_view_if_needed()
    grip = page.locator(".handle .grip").bounding_box()
    box = page.locator(f"{PLOT} svg").bounding_box()
    x, y = grip["x"] + grip["width"] / 2, grip["y"] + grip["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x - 60, y + 40, steps=6)
    dragged = place(page)
    assert dragged < now_of(facts)
    moved = page.locator(".handle .grip").bounding_box()
    assert abs(moved["x"] + moved["width"] / 2 - (x - 60)) < 12
    page.mouse.move(box["x"] + box["width"] + 200, y, steps=4)  # past the end: the last point
    assert place(page) == len(facts["curve"]) - 1
    page.mouse.up()
    page.mouse.move(x, y)
    assert place(page) == len(facts["curve"]) - 1
    page.mouse.click(x - 60, box["y"] + box["height"] / 2)  # a press anywhere moves it there
    assert place(page) == dragged


def test_the_handle_is_dragged_by_touch(browser: Any, server: Server, facts: dict[str, Any]) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 844}, has_touch=True)
    page = context.new_page()
    page.set_default_timeout(SECONDS)
    open_model(page, server)
    page.locator(PLOT).scroll_into_view_if_needed()
    box = page.locator(f"{PLOT} svg").bounding_box()
    page.touchscreen.tap(box["x"] + box["width"] - 20, box["y"] + box["height"] / 2)
    assert place(page) > now_of(facts)
    assert page.locator(PLOT).evaluate("e => getComputedStyle(e).touchAction") == "pan-y"
    context.close()


def test_aims_move_the_handle(page: Any, server: Server, facts: dict[str, Any]) -> None:
    open_model(page, server)
    pressed = page.locator(".trade-aims [aria-pressed=true]")
    assert pressed.inner_text() == "Balanced"
    for aim, name in {"few-alarms": "Few alarms", "few-misses": "Few misses", "balanced": "Balanced"}.items():
        page.get_by_role("button", name=name, exact=True).click()
        wanted = next(one["threshold"] for one in facts["aims"] if one["aim"] == aim)
        assert facts["curve"][place(page)]["threshold"] == wanted
        assert pressed.inner_text() == name
    page.locator(PLOT).press("ArrowRight")
    assert pressed.count() == 0  # a value, for no aim


def test_a_point_is_applied_and_undone(page: Any, server: Server, facts: dict[str, Any]) -> None:
    open_model(page, server)
    page.locator(PLOT).focus()
    for _ in range(5):
        page.keyboard.press("ArrowLeft")
    wanted = facts["curve"][now_of(facts) - 5]
    page.get_by_role("button", name="Apply").click()
    dialog = page.locator("dialog.ask")
    assert "Change the threshold of washer?" in dialog.inner_text()
    assert percent(wanted["missed"]) in dialog.inner_text()
    dialog.get_by_role("button", name="Cancel").click()
    assert server.get("models/washer/trade-off")["threshold"] == facts["threshold"]
    page.get_by_role("button", name="Apply").click()
    dialog.get_by_role("button", name="Change it").click()
    page.locator(".trade .hint.done", has_text="washer has a new threshold. It is 0.").wait_for()
    after = server.get("models/washer/trade-off")
    assert (after["threshold"], after["aim"]) == (wanted["threshold"], "chosen")
    assert page.evaluate("document.activeElement.id") == "trade-title"
    assert page.get_by_role("button", name="Apply").is_disabled()
    assert "Chosen by a person" in page.locator(".tiles").inner_text()
    page.reload()  # it is offered as long as nothing came after it
    page.get_by_role("button", name="Undo the threshold of today").click()
    page.locator(".trade .hint.done", has_text="Undone: washer has its earlier threshold again.").wait_for()
    assert server.get("models/washer/trade-off")["identity"] == facts["identity"]
    assert page.locator(".undo-threshold").count() == 0


def test_a_proposal_from_reviews_is_applied_and_undone(page: Any, server: Server, facts: dict[str, Any]) -> None:
    open_model(page, server)
    section, use = page.locator(".trade-reviews"), page.get_by_role("button", name="Use this threshold")
    assert "A proposal requires 5 more reviewed defects (0 of at least 5)" in section.inner_text()
    assert use.count() == 0
    store = Store(Settings((), server.data).url)
    add_reviews(store, "washer", facts["identity"], facts["threshold"])
    store.close()
    open_model(page, server)
    reviewed = f"{SAMPLED + FALSE_ALARMS} good parts and {DEFECTS} defects were reviewed"
    assert f"The reviews support a higher threshold: {reviewed}." in section.inner_text()
    better = server.get("models/washer/threshold-proposal")["proposal"]
    for row, name in ((page.get_by_role("row", name=name), name.lower()) for name in ("Current", "Proposed")):
        for kind in ("false_alarms", "misses"):
            rate = better[name][kind]
            assert percent(rate["estimate"]) in row.inner_text()
            assert f"{percent(rate['low'])} to {percent(rate['high'])}" in row.inner_text()
    use.click()
    dialog = page.locator("dialog.ask")
    assert "Change the threshold of washer?" in dialog.inner_text()
    assert percent(better["current"]["false_alarms"]["estimate"]) in dialog.inner_text()
    dialog.get_by_role("button", name="Change it").click()
    page.locator(".trade .hint.done", has_text="washer has a new threshold. It is 1.").wait_for()
    assert server.get("models/washer/trade-off")["threshold"] == better["threshold"]
    assert "A proposal requires" in section.inner_text()  # nothing was inspected with it yet
    page.get_by_role("button", name="Undo the threshold of today").click()
    page.locator(".trade .hint.done", has_text="Undone: washer has its earlier threshold again.").wait_for()
    assert server.get("models/washer/trade-off")["identity"] == facts["identity"]
    assert use.is_visible()


def test_a_proposal_that_may_be_chance_cannot_be_applied(page: Any, server: Server, facts: dict[str, Any]) -> None:
    rate = {"estimate": 0.1, "low": 0.05, "high": 0.2}
    expected = {"threshold": facts["threshold"], "false_alarms": rate, "misses": rate}
    words = "the reviews do not support a change: no other threshold is expected to do better"
    proposal = {"threshold": facts["threshold"], "aim": "balanced", "is_better": False, "conclusion": words}
    proposal |= {"current": expected, "proposed": expected, "confidence": 0.95}
    answer = {"identity": facts["identity"], "possible": True, "reason": None, "proposal": proposal}
    page.route(re.compile("/threshold-proposal$"), lambda route: route.fulfill(json=answer))
    open_model(page, server)
    assert f"{words[1:]}." in page.locator(".trade-reviews").inner_text()
    assert page.locator(".trade-reviews tbody th").all_inner_texts() == ["Current"]
    assert page.get_by_role("button", name="Use this threshold").count() == 0


def test_a_refusal_is_shown_and_changes_nothing(page: Any, server: Server, seen: Any, facts: dict[str, Any]) -> None:
    open_model(page, server)
    page.get_by_role("button", name="Few alarms", exact=True).click()
    sent: list[Any] = []

    def refuse(route: Any) -> None:
        sent.append(route.request.post_data_json)
        route.fulfill(status=409, json={"detail": "the model was changed in the meantime"})

    page.route(re.compile("/threshold$"), refuse)
    page.get_by_role("button", name="Apply").click()
    seen.away = True  # the browser logs the refusal
    page.get_by_role("button", name="Change it").click()
    page.locator("dialog .wrong", has_text="the model was changed in the meantime").wait_for()
    assert sent == [{"aim": "few-alarms", "identity": facts["identity"]}]


def test_a_question_does_not_outlive_its_model(page: Any, server: Server, facts: dict[str, Any]) -> None:
    open_model(page, server)
    assert f"Of {facts['visible']} visible synthetic defects" in page.locator(".trade > p").first.inner_text()
    page.get_by_role("button", name="Few alarms", exact=True).click()
    page.get_by_role("button", name="Apply").click()
    page.wait_for_selector("dialog.ask")
    page.evaluate("location.hash = '#/models/old'")
    page.wait_for_selector(".trade-none")
    assert page.locator("dialog.ask").count() == 0


def test_a_job_that_failed_says_why(page: Any, server: Server) -> None:
    open_model(page, server)
    page.get_by_role("button", name="Few alarms", exact=True).click()
    job = {"id": "0" * 24, "kind": "threshold", "model": "washer", "state": "running", "done": 0, "total": 0}
    page.route(re.compile("/threshold$"), lambda route: route.fulfill(status=202, json=job))
    failed = {**job, "state": "failed", "error": "the disk is full"}
    page.route(re.compile(f"/jobs/{job['id']}$"), lambda route: route.fulfill(json=failed))
    page.get_by_role("button", name="Apply").click()
    page.get_by_role("button", name="Change it").click()
    page.locator(".trade .hint.bad", has_text="The disk is full.").wait_for()
    assert page.locator(PLOT).count() == 1


def test_a_model_without_synthetic_defects_says_what_to_do(page: Any, server: Server) -> None:
    open_model(page, server, "old")
    words = page.locator(".trade").inner_text()
    assert "Train or calibrate again to estimate misses." in words
    assert "earlier version" in words
    assert page.locator(PLOT).count() == 0
    assert "At least 12 images confirmed as good are needed" in words  # calibrating again is open
    assert page.get_by_role("button", name="Calibrate again").is_disabled()


def test_a_shift_is_told_and_calibrating_again_is_offered(page: Any, server: Server) -> None:
    known = server.get("models/washer/recalibration")
    known |= {"changes": [SHIFT], "higher": True, "possible": True, "reason": None, "images": 31}
    page.route(re.compile("/washer/recalibration$"), lambda route: route.fulfill(json={**known, "confirmed_good": 30}))
    open_model(page, server)
    words = page.locator(".hint.shift").inner_text()
    assert "Recent parts score higher than those of the calibration did." in words
    assert "how far images are from normal ones throughout (higher)" in words
    assert "31 of these images are used" in page.locator(".trade-again").inner_text()
    page.get_by_role("button", name="Calibrate again").click()
    assert "Calibrate washer again?" in page.locator("dialog.ask").inner_text()
    page.keyboard.press("Escape")
    overview = server.get("overview?hours=8")
    for one in overview["models"]:
        one["drift"] = [SHIFT] if one["name"] == "washer" else []
    page.route(re.compile("/overview"), lambda route: route.fulfill(json=overview))
    page.goto(f"{server.url}#/overview")
    page.get_by_role("link", name="calibrate again").click()
    page.wait_for_selector(".hint.shift")


def test_nothing_is_wider_than_the_screen(page: Any, server: Server) -> None:
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        open_model(page, server)
        page.wait_for_timeout(200)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), width
        for table in page.locator(".trade-table").all():
            assert table.evaluate("e => e.scrollWidth <= e.clientWidth"), width
        edge = page.locator(".handle .grip").bounding_box()
        assert edge["x"] >= 0
        assert edge["x"] + edge["width"] <= width


def test_other_roles_may_look_and_not_apply(browser: Any, washer: Path, tmp_path: Path) -> None:
    store = Store(Settings((), tmp_path / "data").url)
    add_user(store, "ada", "admin", PASSWORD)
    add_user(store, "rita", "review", PASSWORD)
    index = read_index(washer)
    add_reviews(store, "washer", index["identity"], index["calibration"]["threshold"])
    store.close()
    locked = Server(tmp_path / "data", (copy_model(washer, tmp_path / "washer"),), ("--require-key",))
    locked.start()
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(SECONDS)
    page.goto(f"{locked.url}#/models")
    page.locator("#name").fill("rita")
    page.locator("#password").fill(PASSWORD)
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Few alarms", exact=True).click()
    assert page.get_by_role("button", name="Apply").is_disabled()
    assert "requires the role Administrator" in page.locator("#trade-why").inner_text()
    assert page.locator(".trade-again").count() == 0
    assert "The reviews support a higher threshold" in page.locator(".trade-reviews").inner_text()
    assert page.get_by_role("button", name="Use this threshold").count() == 0
    context.close()
    locked.stop()
