"""History in a real browser: filters in the address, the chart by keyboard, long lists, drift notes, downloads."""

from __future__ import annotations

import json
import re
import sqlite3
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from support.browsing import NEEDS_BROWSER, SECONDS, Seen, Server
from support.waiting import wait_until

pytestmark = NEEDS_BROWSER
pytest_plugins = ("support.browser_fixtures",)

LONG = "a-name-that-is-eighty-characters-long-because-somebody-put-everything-into-it.png"
WIDTHS = (320, 390, 820, 1440, 1920)
INSERT = (
    "INSERT INTO inspections (id, at, model, identity, name, score, threshold, verdict, review, regions, traits, "
    "timings, width, height, min_area, media_type, picture_bytes, map_bytes, serial, lot, line, station) "
)


def id_of(index: int) -> str:
    """The id of an inspection in 2001: it starts with the time in milliseconds."""
    return f"{int(1e12) + 1000 * index:012x}{0:012x}"


@pytest.fixture(scope="module")
def filled(server: Server) -> Server:
    """Twelve inspections in 2001: four alarms, one of them reviewed, each part with a serial number and a lot."""
    rows = []
    for index in range(12):
        alarm = index % 3 == 2
        facts = (id_of(index), 1e9 + index, "washer", "x", f"part-{index}.png" if index else LONG)
        marks = (2.0 + index if alarm else 0.5, 1.0, "anomalous" if alarm else "good", None)
        place = (f"SN-{index}", f"lot-{index % 2}", "line 1", "end of line")
        rows.append((*facts, *marks, "[]", "{}", "{}", 64, 64, 0, "image/png", 0, 0, *place))
    with sqlite3.connect(server.data / "inspections.sqlite", timeout=30) as database:
        database.executemany(f"{INSERT} VALUES ({', '.join('?' * len(rows[0]))})", rows)
    assert server.process is not None
    review = server.process.client.post(f"/v1/inspections/{id_of(11)}/review", json={"verdict": "true_defect"})
    review.raise_for_status()
    return server


def open_history(page: Any, server: Server, query: str = "") -> None:
    page.goto(f"{server.url}#/history{query}")
    page.wait_for_selector(".view-history .cell button, .view-history .empty:visible")


def wait_for_summary(page: Any, words: str) -> None:
    page.locator(".view-history .summary", has_text=re.compile(f"^{words}")).wait_for()


def answer(page: Any, pattern: str, body: Any) -> list[str]:
    """Answer requests that match ``pattern`` with ``body``; returns the list of their addresses so far."""
    asked: list[str] = []

    def reply(route: Any) -> None:
        asked.append(route.request.url)
        route.fulfill(status=200, content_type="application/json", body=json.dumps(body))

    page.route(re.compile(pattern), reply)
    return asked


def test_only_alarms_count_as_not_reviewed(page: Any, filled: Server) -> None:
    open_history(page, filled)
    wait_for_summary(page, "12 inspections, 4 anomalous, 3 alarms not reviewed")
    page.locator("#of-verdict").select_option("anomalous")
    wait_for_summary(page, "4 inspections, 4 anomalous, 3 alarms not reviewed")


def test_filters_are_in_the_address_and_the_back_button_works(page: Any, filled: Server) -> None:
    open_history(page, filled)
    page.locator("#of-verdict").select_option("anomalous")
    wait_for_summary(page, "4 inspections")
    assert page.url.endswith("#/history?verdict=anomalous")
    page.get_by_text("More filters").click()
    page.locator("#of-lot").fill("lot-1")
    page.locator("#of-lot").press("Enter")
    wait_for_summary(page, "2 inspections")
    assert page.url.endswith("#/history?verdict=anomalous&lot=lot-1")
    page.locator(".cell button").first.click()
    page.wait_for_selector("dialog[open]")
    assert page.url.endswith("?verdict=anomalous&lot=lot-1")
    page.keyboard.press("Escape")
    page.wait_for_url("**/#/history?verdict=anomalous&lot=lot-1")  # follows the dialog a moment later
    shared = page.url
    page.go_back()  # the open inspection
    page.go_back()
    page.go_back()
    wait_for_summary(page, "4 inspections")
    assert page.locator("#of-lot").input_value() == ""
    page.goto("about:blank")
    page.goto(shared)  # as another person does with a link
    wait_for_summary(page, "2 inspections")
    assert page.locator("#of-lot").input_value() == "lot-1"
    assert page.locator("#of-lot").is_visible()
    page.get_by_role("button", name="Clear filters").click()
    wait_for_summary(page, "12 inspections")
    assert page.url.endswith("#/history")


@pytest.mark.parametrize(("field", "value"), [("serial", "SN-4"), ("line", "line 2"), ("station", "end of line")])
def test_serial_line_and_station_filter(page: Any, filled: Server, field: str, value: str) -> None:
    found = {"SN-4": "1 inspection", "line 2": "No inspection matches", "end of line": "12 inspections"}[value]
    open_history(page, filled)
    page.get_by_text("More filters").click()
    page.locator(f"#of-{field}").fill(value)
    page.locator(f"#of-{field}").press("Enter")
    page.get_by_text(re.compile(f"^{found}")).first.wait_for()


def test_a_model_that_is_no_longer_served_can_be_filtered(page: Any, filled: Server) -> None:
    open_history(page, filled, "?model=gone%2Fmodel&verdict=nonsense")
    page.get_by_text("No inspection matches these filters").wait_for()
    assert page.locator("#of-model").input_value() == "gone/model"
    assert page.locator("#of-verdict").input_value() == ""


def test_filters_fold_away_on_a_phone(page: Any, filled: Server) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    open_history(page, filled, "?verdict=anomalous&lot=lot-1")
    assert page.locator("#filters").is_hidden()
    toggle = page.get_by_role("button", name="Filters 2 active")
    assert toggle.get_attribute("aria-expanded") == "false"
    assert page.locator(".cell").first.bounding_box()["y"] < 844  # the first part is on the first screen
    toggle.click()
    assert page.locator("#of-verdict").is_visible()
    assert toggle.get_attribute("aria-expanded") == "true"
    rights = page.eval_on_selector_all("#filters .tools:first-child .field", "all => all.map(e => e.offsetWidth)")
    assert len(set(rights)) == 1  # not ragged


def test_downloads_have_the_filter(page: Any, filled: Server) -> None:
    open_history(page, filled, "?verdict=anomalous&serial=SN-2&from=2001-09-01")
    page.locator(".downloads summary").click()
    links = page.locator(".downloads a").evaluate_all("all => all.map(e => e.getAttribute('href'))")
    kinds = [urlsplit(link).path for link in links[:3]]
    assert kinds == [f"/v1/reports/inspections.{kind}" for kind in ("csv", "pdf", "zip")]
    for link in links[:3]:
        asked = parse_qs(urlsplit(link).query)
        assert asked["verdict"] == ["anomalous"]
        assert asked["serial"] == ["SN-2"]
        assert float(asked["since"][0]) < 1e9
    labels = [urlsplit(link) for link in links[3:6]]
    assert {one.path for one in labels} == {"/v1/reports/labels.json"}
    assert [parse_qs(one.query)["format"] for one in labels] == [["coco"], ["labelme"], ["label-studio"]]
    assert parse_qs(labels[0].query)["serial"] == ["SN-2"]
    assert links[6] == "#/overview"
    page.keyboard.press("Escape")
    assert page.locator(".downloads ul").is_hidden()


def test_the_score_chart_works_by_keyboard_and_pointer(page: Any, filled: Server) -> None:
    open_history(page, filled)
    chart = page.get_by_role("slider", name="Scores of the latest 12 inspections")
    chart.wait_for()
    said = page.locator(f"#{chart.get_attribute('aria-describedby')}").text_content()
    assert said.startswith("4 of 12 are above the threshold. The highest is 13.0× the threshold.")
    chart.focus()
    page.keyboard.press("ArrowLeft")
    assert chart.get_attribute("aria-valuetext").startswith("Anomalous, 13.0× the threshold")
    assert "True defect" in page.locator(".tip").inner_text()
    page.get_by_text("part-11.png").first.wait_for()
    page.keyboard.press("ArrowLeft")
    assert chart.get_attribute("aria-valuetext").startswith("Good, 0.50× the threshold")
    page.keyboard.press("Home")
    assert chart.get_attribute("aria-valuenow") == "1"
    page.keyboard.press("Enter")
    page.wait_for_selector("dialog[open]")
    assert page.locator("#detail-title").inner_text() == LONG
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog:not([open])", state="attached")
    box = chart.bounding_box()
    page.mouse.move(box["x"] + box["width"] - 14, box["y"] + 30)
    page.wait_for_selector(".tip:visible")


def test_the_word_threshold_is_above_the_marks(page: Any, filled: Server) -> None:
    open_history(page, filled)
    page.wait_for_selector(".scores .label", state="attached")
    order = page.eval_on_selector_all(
        ".scores svg.chart *, .scores .chart svg > *", "all => all.map(e => e.classList[0])"
    )
    assert order.index("label") > max(index for index, name in enumerate(order) if name == "mark")
    ticks = page.locator(".scores .tick").all_text_contents()
    assert "1×" in ticks  # in multiples of the threshold


def test_a_note_about_drift_does_not_blame_the_camera_for_defects(page: Any, filled: Server) -> None:
    change = {"trait": "distance", "meaning": "how far images are from normal ones throughout", "direction": "higher"}
    drift = {"changes": [change], "block": 500}
    answer(page, r"/v1/models/[^/]+/drift", drift)
    open_history(page, filled)
    note = page.locator(".drift")
    note.wait_for()
    words = note.inner_text()
    assert "Images or parts for washer have changed" in words
    assert "4 of the latest 12 inspections were anomalous" in words
    assert words.index("latest alarms") < words.index("light")
    note.get_by_role("link").click()
    wait_for_summary(page, "4 inspections")
    assert page.url.endswith("#/history?model=washer&verdict=anomalous")


def test_notes_about_drift_are_apart(page: Any, filled: Server) -> None:
    models = filled.get("models")["models"]
    answer(page, r"/v1/models$", {"models": [models[0], {**models[0], "name": "other"}]})
    change = {"trait": "light", "meaning": "how bright images are", "direction": "lower"}
    answer(page, r"/v1/models/[^/]+/drift", {"changes": [change], "block": 500})
    open_history(page, filled)
    wait_until(lambda: page.locator(".drift").count() == 2, SECONDS / 1000)
    first, second = (page.locator(".drift").nth(index).bounding_box() for index in (0, 1))
    assert second["y"] - first["y"] - first["height"] >= 8


def test_the_check_for_new_ones_asks_only_for_newer_and_rests_when_hidden(page: Any, filled: Server) -> None:
    """L15: counting 400,000 inspections every five seconds took a second each."""
    page.add_init_script(
        "let hidden = false; Object.defineProperty(document, 'hidden', { get: () => hidden });"
        "window.hide = (yes) => { hidden = yes; document.dispatchEvent(new Event('visibilitychange')); };"
    )
    asked = answer(page, r"/counts\?.*after=", {"total": 3, "verdict": {"good": 3}, "review": {"none": 3}})
    open_history(page, filled, "?model=washer")
    page.get_by_role("button", name="Show 3 new").wait_for()
    query = parse_qs(urlsplit(asked[0]).query)
    assert query["model"] == ["washer"]
    newest = filled.get("inspections?model=washer&limit=1")["inspections"][0]["id"]
    assert query["after"] == [newest]
    page.evaluate("hide(true)")
    page.wait_for_timeout(300)
    before = len(asked)
    page.wait_for_timeout(6000)
    assert len(asked) == before
    with page.expect_request(re.compile("after="), timeout=4000):
        page.evaluate("hide(false)")


def test_an_empty_history_says_what_it_is_for(page: Any, filled: Server) -> None:
    answer(page, r"/inspections/counts", {"total": 0, "verdict": {}, "review": {}})
    answer(page, r"/inspections\?", {"inspections": [], "next": None})
    answer(
        page,
        r"/inspections/scores",
        {name: [] for name in ("id", "at", "score", "threshold", "verdict", "review", "identity")},
    )
    open_history(page, filled)
    assert "No inspections yet" in page.locator(".empty").inner_text()
    page.locator(".empty").get_by_role("link", name="Inspect an image").click()
    page.wait_for_url("**/#/inspect")


def test_nothing_is_wider_than_the_screen(page: Any, filled: Server) -> None:
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        open_history(page, filled, f"?model={'m' * 80}&name={LONG}" if width == 320 else "")
        page.wait_for_timeout(200)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), width
        page.goto("about:blank")


def test_the_oldest_of_400000_is_reached_on_a_phone(page: Any, server: Server, seen: Seen) -> None:
    """L15: Chromium limits an element to 33.5 million pixels; 200,000 rows of 208 need more."""
    total = 400_000
    with sqlite3.connect(server.data / "inspections.sqlite", timeout=60) as database:
        database.execute(
            f"WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < {total - 1}) {INSERT} "
            "SELECT printf('0001%020x', i), 1.1e9 + i, 'bulk', 'x', 'bulk-' || i, i % 7, 5, "
            "CASE WHEN i % 7 > 5 THEN 'anomalous' ELSE 'good' END, NULL, '[]', '{}', '{}', 64, 64, 0, "
            "'image/png', 0, 0, NULL, NULL, NULL, NULL FROM n"
        )
    page.set_viewport_size({"width": 390, "height": 844})
    open_history(page, server, "?model=bulk")
    wait_for_summary(page, "400,000 inspections")
    visible = """(place) => {
      const cell = document.querySelector(`[aria-posinset='${place}'] button`);
      if (!cell) return false;
      const box = cell.getBoundingClientRect();
      return box.top >= 60 && box.bottom <= innerHeight;
    }"""
    page.locator(".cell button[tabindex='0']").focus()
    page.keyboard.press("End")
    page.wait_for_selector(f"[aria-posinset='{total}'] button:focus")
    assert "bulk-0" in page.locator(f"[aria-posinset='{total}']").inner_text()
    wait_until(lambda: page.evaluate(visible, total), SECONDS / 1000)
    page.keyboard.press("ArrowUp")
    page.wait_for_selector(f"[aria-posinset='{total - 2}'] button:focus")
    page.keyboard.press("Home")
    page.wait_for_selector("[aria-posinset='1'] button:focus")
    wait_until(lambda: page.evaluate(visible, 1), SECONDS / 1000)
    page.evaluate("window.scrollTo(0, document.documentElement.scrollHeight)")  # as the scroll bar does
    wait_until(lambda: page.evaluate(visible, total), SECONDS / 1000)
    page.evaluate("window.scrollTo(0, document.documentElement.scrollHeight / 2)")
    central = """() => [...document.querySelectorAll('.cell')].filter((cell) => {
      const top = cell.getBoundingClientRect().top;
      return top > 200 && top < 500;
    }).map((cell) => Number(cell.ariaPosInSet))"""
    near = range(int(0.45 * total), int(0.55 * total))
    wait_until(lambda: any(one in near for one in page.evaluate(central)), SECONDS / 1000)
    place = page.evaluate(central)[0]
    # A small step moves the list as far as the wheel turned, not further.
    at = "(place) => document.querySelector(`[aria-posinset='${place}']`).getBoundingClientRect().top"
    before = page.evaluate(at, place)
    page.mouse.move(200, 500)
    page.mouse.wheel(0, 120)
    wait_until(lambda: abs(page.evaluate(at, place) - before + 120) < 3, SECONDS / 1000)
    assert page.locator(".cell").count() < 60
