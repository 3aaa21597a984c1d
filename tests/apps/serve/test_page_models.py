"""Models in a real browser: plain words, the tried threshold, damaged models, changes, narrow screens."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from support.browsing import NEEDS_BROWSER, Server, set_slider

pytestmark = NEEDS_BROWSER
pytest_plugins = ("support.browser_fixtures",)

LONG = "a-model-name-of-eighty-characters-" + "x" * 46
WIDTHS = (320, 390, 820, 1440, 1920)


def answer(page: Any, pattern: str, body: Any) -> None:
    """Answer requests that match ``pattern`` with ``body``."""
    reply = {"status": 200, "content_type": "application/json", "body": json.dumps(body)}
    page.route(re.compile(pattern), lambda route: route.fulfill(**reply))


def scores_of(values: list[float]) -> dict[str, list[Any]]:
    """The last inspections, as the service answers."""
    many = len(values)
    facts: dict[str, list[Any]] = {"id": [f"{index:024x}" for index in range(many)], "at": [1e9] * many}
    facts |= {"score": list(values), "threshold": [1.0] * many, "review": [None] * many, "identity": ["x"] * many}
    return {**facts, "verdict": ["anomalous" if value > 1 else "good" for value in values]}


def open_models(page: Any, server: Server, name: str = "") -> None:
    page.goto("about:blank")
    page.goto(f"{server.url}#/models{name and '/' + name}")
    page.wait_for_selector(".view-models .meaning strong")


@pytest.fixture
def details(server: Server) -> dict[str, Any]:
    found: dict[str, Any] = server.get("models/washer")
    return found


def test_a_damaged_model_is_listed_with_its_reason(page: Any, server: Server) -> None:
    """M6: the page tells which model is not served, why, and what to do."""
    models = server.get("models")["models"]
    lost = {"name": "washer-page", "reason": "a file of the model is damaged: memory-32.safetensors"}
    answer(page, r"/v1/models$", {"models": models, "unavailable": [lost]})
    open_models(page, server)
    words = page.locator(".lost-models").inner_text()
    assert "1 model cannot be used. The others are not affected." in words
    assert "washer-page: A file of the model is damaged: memory-32.safetensors." in words
    assert "backup" in words
    assert "cannot be used" in page.locator(".side").inner_text()


def test_a_damaged_model_is_told_where_there_is_no_other(page: Any, server: Server) -> None:
    answer(page, r"/v1/models$", {"models": [], "unavailable": [{"name": "lost", "reason": "it is damaged"}]})
    page.goto(f"{server.url}#/models")
    page.wait_for_selector(".lost-models")
    assert "lost: It is damaged." in page.locator(".lost-models").inner_text()


def test_a_tried_threshold_stays_in_sight(page: Any, server: Server, details: dict[str, Any]) -> None:
    """The left chart grows with the tried threshold, which may be far above all good images."""
    now = details["threshold"]
    answer(page, r"/inspections/scores", scores_of([0.5 * now, 40 * now]))
    open_models(page, server)
    set_slider(page, "#try", 1000)
    assert float(page.locator(".try output").inner_text().rstrip("×")) > 40
    for chart in page.locator(".two .chart svg").all():
        line = chart.locator(".tried")
        assert line.count() == 1
        assert float(line.get_attribute("x1")) <= float(chart.get_attribute("width"))
        left = float(chart.locator(".axis").get_attribute("x1"))
        assert float(line.get_attribute("x1")) > left
    page.get_by_role("button", name="Reset to the model's").click()
    assert page.locator(".try output").inner_text() == "1.00×"
    assert page.locator(".tried").count() == 0


def test_scores_are_relative_and_raw_ones_on_demand(page: Any, server: Server, details: dict[str, Any]) -> None:
    open_models(page, server)
    raw = page.locator(".raw p")
    assert raw.is_hidden()
    page.get_by_text("Raw scores").click()
    assert raw.is_visible()
    mantissa = f"{details['threshold']:.2e}".split("e")[0][:3]
    assert mantissa in raw.inner_text()
    assert mantissa not in page.locator(".tiles").inner_text()


def test_every_head_of_a_table_has_words(page: Any, server: Server) -> None:
    open_models(page, server)
    heads = page.locator(".meaning thead > tr > *").all_inner_texts()
    assert len(heads) == 4
    assert all(heads)
    assert page.locator(".meaning thead td").count() == 0


def test_changes_are_told_in_words(page: Any, server: Server, details: dict[str, Any]) -> None:
    journal = [
        {"number": 1, "at": "2026-03-03T14:03:00+00:00", "change": "add", "images": ["a.png", "b.png"], "before": "i"},
        {"number": 2, "at": "2026-03-04T14:03:00+00:00", "change": "calibrate", "images": [], "before": "j"},
        {"number": 3, "at": "2026-03-05T14:03:00+00:00", "change": "undo", "undoes": 2, "before": "k"},
    ]
    answer(page, r"/v1/models/washer$", {**details, "journal": journal})
    open_models(page, server)
    entries = page.locator(".journal li")
    assert entries.count() == 3
    assert "Undid change 2: set the threshold again" in entries.nth(0).inner_text()  # newest first
    assert re.search(r"5 March 2026 at \d\d:\d\d", entries.nth(0).inner_text())
    assert "Learned 2 images" in entries.nth(2).inner_text()


def test_words_are_plain(page: Any, server: Server, details: dict[str, Any]) -> None:
    critic = {"steps": 600, "seconds": 65.0, "history": []}
    answer(page, r"/v1/models/washer$", {**details, "provenance": {**details["provenance"], "critic": critic}})
    open_models(page, server)
    words = page.locator(".view-models").inner_text().lower()
    for technical in ("critic", "compactness", "coreset", "svdd_loss", "provenance", "journal"):
        assert technical not in words
    assert "encoder" not in words.replace("preset encoder", "")  # the technical name is given once, small
    assert "learned from defects drawn into good images, in 600 steps, 65 s" in words


def test_the_legend_of_the_errors_wraps_on_a_phone(page: Any, server: Server) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    open_models(page, server)
    page.wait_for_selector(".key-list li")
    entries = page.eval_on_selector_all(
        ".key-list li", "all => all.map(e => { const b = e.getBoundingClientRect(); return [b.left, b.right]; })"
    )
    assert len(entries) == 4
    assert all(left >= 0 and right <= 390 for left, right in entries)


def test_the_api_documentation_is_linked(page: Any, server: Server) -> None:
    """L14: something on the page leads to the description of the API."""
    open_models(page, server)
    assert page.get_by_role("link", name="API documentation").get_attribute("href") == "/docs"


def test_nothing_is_wider_than_the_screen(page: Any, server: Server, details: dict[str, Any]) -> None:
    summary = server.get("models")["models"][0]
    lost = {"name": LONG + "-lost", "reason": "the file " + "y" * 80 + " is damaged"}
    answer(page, r"/v1/models$", {"models": [{**summary, "name": LONG}], "unavailable": [lost]})
    entry = {"number": 1, "at": "2026-03-03T14:03:00+00:00", "change": "add", "images": ["z" * 90 + ".png"] * 2}
    answer(page, rf"/v1/models/{LONG}$", {**details, "name": LONG, "journal": [entry]})
    for about in ("trade-off", "threshold-proposal", "recalibration", "candidate"):
        answer(page, rf"/v1/models/{LONG}/{about}$", {**server.get(f"models/washer/{about}"), "model": LONG})
    picture = {"status": 200, "content_type": "image/svg+xml", "body": "<svg xmlns='http://www.w3.org/2000/svg'/>"}
    page.route(re.compile("/pictures/"), lambda route: route.fulfill(**picture))
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        open_models(page, server)
        page.evaluate("document.querySelectorAll('details').forEach(e => { e.open = true; })")
        page.wait_for_timeout(200)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), width
        cut = page.eval_on_selector_all(
            ".card *:not(svg *)", "all => all.filter(e => e.getBoundingClientRect().right > innerWidth).length"
        )
        assert cut == 0, width
