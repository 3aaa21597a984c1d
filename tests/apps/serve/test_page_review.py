"""Review in a real browser: what is stored belongs to the picture on screen, whatever the network does."""

from __future__ import annotations

from typing import Any

import pytest

from support.browsing import NEEDS_BROWSER, until
from support.coded_alarms import READ
from support.random_reviews import drive, replay
from support.review_bench import MODELS, Bench, OpenPage, review_page, usable

pytestmark = NEEDS_BROWSER
pytest_plugins = ("support.browser_fixtures", "support.review_fixtures")

PAGES, SEQUENCES, ALARMS = MODELS // 2, 34, 50
"""Pages that are worked on at the same time, random sequences on each, and alarms of each of its two models."""
FILES = ("picture", "map")


def test_a_review_belongs_to_the_picture_on_screen(bench: Bench, open_page: OpenPage) -> None:
    """H1, H4, M8: random keys, clicks and model changes, with up to 3 s of latency for every request."""
    codes: dict[str, int] = {}
    for number, name in enumerate(bench.models):
        found = bench.alarms(name, *range(1 + number * ALARMS, 1 + (number + 1) * ALARMS))
        codes |= {one: code for code, one in found.items()}
    how: dict[str, Any] = {"viewport": {"width": 1120, "height": 720}, "reduced_motion": "reduce"}
    pages = [open_page("#/train", model=bench.models[2 * number], **how) for number in range(PAGES)]
    for page in pages:
        page.wait_for_selector(".view-train h1", state="attached")
    state: dict[str, str | None] = dict.fromkeys(codes)
    posts: list[tuple[str, str | None]] = []
    for latency, patience, steps in (
        (3.0, 5000, {"sequences": 1, "steps": 5}),
        (0.3, 700, {"sequences": SEQUENCES - 1, "steps": 6}),
    ):
        bench.slow.most = latency
        for log in drive(pages, bench.models, patience=patience, **steps):
            state = replay(log, codes, state)
            posts += [(one["id"], one["verdict"]) for one in log if one["kind"] == "post"]
        for page in pages:  # listeners of one run must not see the next
            page.reload()
            page.wait_for_selector(".view h1", state="attached")
    assert len(posts) >= PAGES * SEQUENCES / 6
    assert {one: bench.review_of(one) for one in codes} == state
    stored = [one for name in bench.models for one in bench.stored(name)]
    assert sorted(stored, key=str) == sorted(posts, key=str)


def posted(page: Any) -> list[str]:
    """The reviews that a page sends from now on, as inspection ids."""
    sent: list[str] = []
    page.on("request", lambda one: sent.append(one.url.split("/")[-2]) if one.url.endswith("/review") else None)
    return sent


def test_no_verdict_before_picture_and_map_are_there(bench: Bench, open_page: OpenPage) -> None:
    """H1."""
    ids = bench.alarms("line-0", 11, 12)
    for late in ("/picture", "/map"):
        bench.slow.late = {late: 2.0}
        page = review_page(open_page, "line-0")
        sent = posted(page)
        page.wait_for_selector(".file")
        for key in "gdu":
            page.keyboard.press(key)
            page.locator(f"[data-key={key}]").dispatch_event("click")
        button = page.locator("[data-key=d]")
        assert button.get_attribute("aria-disabled") == "true"
        assert page.locator(f"#{button.get_attribute('aria-describedby')}").inner_text() == "Loading the picture…"
        assert page.evaluate(READ, page.query_selector(".picture")) is None  # no other part's picture either
        usable(page, 11)
        assert page.evaluate(READ, page.query_selector(".picture")) == 11
        assert page.evaluate(READ, page.query_selector(".map")) == 11
        assert sent == []
    page.keyboard.press("d")
    until(page, lambda: bench.review_of(ids[11]) == "true_defect")


def test_the_next_picture_is_fetched_before_it_is_needed(bench: Bench, open_page: OpenPage) -> None:
    """H1: waiting for the picture costs no time."""
    ids = bench.alarms("line-0", 21, 22, 23).values()
    page = open_page("#/train", model="line-0")
    asked: list[str] = []
    page.on("request", lambda one: asked.append(one.url))
    page.goto(f"{bench.url}#/review")
    usable(page, 21)
    until(page, lambda: all(f"{bench.url}v1/inspections/{one}/{file}" in asked for one in ids for file in FILES))


def test_a_key_held_down_reviews_one_alarm(bench: Bench, open_page: OpenPage) -> None:
    """H4: also Enter on a focused button, N, and a double click."""
    ids = bench.alarms("line-0", *range(31, 39))
    page = review_page(open_page, "line-0")
    sent = posted(page)
    code = 31
    for hold in ("d", "Enter"):
        usable(page, code)
        if hold == "Enter":
            page.locator("[data-key=d]").focus()
        for _ in range(15):
            page.keyboard.down(hold)  # again without up: the event says that it repeats
            page.wait_for_timeout(60)
        page.keyboard.up(hold)
        usable(page, code + 1)
        assert sent == [ids[one] for one in range(31, code + 1)]
        code += 1
    usable(page, code)
    page.locator("[data-key=d]").dblclick(delay=150)
    usable(page, code + 1)
    assert sent == [ids[one] for one in range(31, code + 1)]
    code += 1
    for _ in range(5):
        page.keyboard.down("n")
        page.wait_for_timeout(60)
    page.keyboard.up("n")
    usable(page, code + 1)
    for _ in range(5):
        page.keyboard.down("z")
        page.wait_for_timeout(60)
    page.keyboard.up("z")
    usable(page, code)


def test_a_picture_that_cannot_be_loaded_is_told(bench: Bench, open_page: OpenPage) -> None:
    """H1."""
    ids = bench.alarms("line-0", 41, 42, 43)
    page = open_page("#/train", model="line-0")
    maps = {code: f"**/{ids[code]}/map" for code in (41, 42, 43)}
    # All from the start: a map that the page fetched ahead would be shown from the browser's cache.
    for one in maps.values():
        page.route(one, lambda route: route.abort())
    page.goto(f"{bench.url}#/review")
    trouble = page.locator(".panel .hint.bad")
    trouble.wait_for()
    sent = posted(page)
    page.keyboard.press("g")
    page.unroute(maps[41])
    trouble.get_by_role("button", name="Try again").click()
    usable(page, 41)
    assert trouble.is_hidden()
    page.keyboard.press("n")
    trouble.wait_for()
    page.unroute(maps[42])
    page.locator(".stage").get_by_role("button", name="Try again").click()  # the one on the stage does it as well
    usable(page, 42)
    page.keyboard.press("n")
    trouble.wait_for()
    assert sent == []
    trouble.get_by_role("button", name="Next (skip)").click()
    page.get_by_role("heading", name="3 skipped, not reviewed").wait_for()


def test_skipped_alarms_are_not_reviewed(bench: Bench, open_page: OpenPage) -> None:
    """M7."""
    ids = bench.alarms("line-0", *range(51, 57))
    page = review_page(open_page, "line-0")
    for code in range(51, 57):
        page.locator(".file", has_text=f"part-{code:05}.png").wait_for()
        page.keyboard.press("n")
    page.get_by_role("heading", name="6 skipped, not reviewed").wait_for()
    assert page.get_by_role("heading", name="All reviewed").count() == 0
    page.get_by_role("button", name="Show the skipped ones again").click()
    for code in range(51, 57):
        usable(page, code)
        page.keyboard.press("u")
    page.get_by_role("heading", name="All reviewed").wait_for()
    assert {bench.review_of(one) for one in ids.values()} == {"unsure"}
    page.get_by_text("6 alarms of line-0 so far: 6 unsure.").wait_for()
    assert page.locator(".empty a[href='#/history']").is_visible()
    page.locator(".empty").get_by_role("button", name="Undo").click()
    usable(page, 56)
    assert bench.review_of(ids[56]) is None


def test_alarms_that_come_in_meanwhile_are_shown(bench: Bench, open_page: OpenPage) -> None:
    bench.alarms("line-0", 61)
    page = review_page(open_page, "line-0")
    usable(page, 61)
    bench.alarms("line-0", 62, 61)
    page.keyboard.press("n")
    usable(page, 62)


def test_undo_stays_within_a_model(bench: Bench, open_page: OpenPage) -> None:
    """M8."""
    ids = bench.alarms("line-0", 71, 72)
    bench.alarms("line-1", 73)
    page = review_page(open_page, "line-0")
    usable(page, 71)
    page.keyboard.press("g")
    usable(page, 72)
    page.select_option("#model", "line-1")
    usable(page, 73)
    page.locator("h1").click()
    page.keyboard.press("z")
    page.locator(".last", has_text="Nothing to undo for line-1.").wait_for()
    assert page.locator(".undo").get_attribute("aria-disabled") == "true"
    assert page.locator(".summary").inner_text() == "1 to review"
    assert page.locator(".file").inner_text() == "part-00073.png"
    assert bench.review_of(ids[71]) == "false_alarm"


def test_a_review_under_way_is_in_the_next_list(bench: Bench, open_page: OpenPage) -> None:
    """H1: the part that is being reviewed does not come back when the model is chosen again."""
    ids = bench.alarms("line-0", 81, 82)
    page = review_page(open_page, "line-0")
    usable(page, 81)
    bench.slow.late = {"/review": 1.5}
    page.keyboard.press("d")
    page.keyboard.press("n")  # nothing else happens while it is saved
    page.get_by_text("Saving…").wait_for()
    page.select_option("#what", "unsure")
    page.select_option("#what", "none")
    usable(page, 82)
    assert bench.review_of(ids[81]) == "true_defect"
    assert bench.review_of(ids[82]) is None


def test_shortcuts_are_listed_and_can_be_switched_off(bench: Bench, open_page: OpenPage) -> None:
    """WCAG 2.1.4."""
    ids = bench.alarms("line-0", 91, 92)
    page = review_page(open_page, "line-0")
    usable(page, 91)
    assert page.locator("[data-key=g]").get_attribute("aria-keyshortcuts") == "g"
    page.keyboard.press("?")
    page.wait_for_selector("dialog[open]")
    assert "Good: a false alarm" in page.locator("dialog").inner_text()
    page.keyboard.press("g")  # not while the list is open
    page.get_by_label("Use single-key shortcuts").uncheck()
    page.keyboard.press("Escape")
    page.reload()
    usable(page, 91)
    page.keyboard.press("?")
    for key in "gdunz":
        page.keyboard.press(key)
    assert page.locator("dialog[open]").count() == 0
    assert page.locator("[data-key=g]").get_attribute("aria-keyshortcuts") is None
    assert page.locator(".keys kbd").first.is_hidden()
    assert page.locator(".file").inner_text() == "part-00091.png"
    page.locator("[data-key=u]").click()
    usable(page, 92)
    assert bench.review_of(ids[91]) == "unsure"
    assert bench.stored("line-0") == [(ids[91], "unsure")]


def test_a_note_is_left_with_enter_and_sent_with_the_verdict(bench: Bench, open_page: OpenPage) -> None:
    ids = bench.alarms("line-0", 101, 102)
    page = review_page(open_page, "line-0")
    usable(page, 101)
    page.get_by_label("Note (optional)").focus()
    page.keyboard.type("glare, as usual")
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")  # one too many gives no verdict
    assert bench.stored("line-0") == []
    page.keyboard.press("g")
    usable(page, 102)
    answer = bench.running.client.get(f"/v1/inspections/{ids[101]}").json()
    assert (answer["review"]["verdict"], answer["review"]["note"]) == ("false_alarm", "glare, as usual")
    assert page.get_by_label("Note (optional)").input_value() == ""


def test_a_review_that_is_not_saved_is_told(bench: Bench, open_page: OpenPage) -> None:
    ids = bench.alarms("line-0", 111, 112)
    page = review_page(open_page, "line-0")
    usable(page, 111)
    page.route("**/review", lambda route: route.abort())
    page.keyboard.press("d")
    page.get_by_text("part-00111.png: the review was not saved.").wait_for()
    page.unroute("**/review")
    usable(page, 111)
    page.keyboard.press("d")
    usable(page, 112)
    assert bench.stored("line-0") == [(ids[111], "true_defect")]


def test_good_parts_are_confirmed(bench: Bench, open_page: OpenPage) -> None:
    ids = bench.alarms("line-0", 121, 122, verdict="good")
    asked: list[Any] = []

    def samples(route: Any) -> None:
        if route.request.method == "PUT":
            asked.append((route.request.url.rsplit("/v1/", 1)[1], route.request.post_data_json))
        found = [bench.running.client.get(f"/v1/inspections/{one}").json() for one in ids.values()]
        due = [one for one in found if one["review"] is None]
        route.fulfill(json={"model": "line-0", "per_day": 2, "due": len(due), "inspections": due, "estimate": {}})

    page = open_page("#/train", model="line-0")
    page.route("**/v1/samples**", samples)
    page.route("**/v1/samples/*", samples)
    page.goto(f"{bench.url}#/review")
    page.get_by_role("heading", name="All reviewed").wait_for()
    until(page, lambda: "Good parts to confirm (2)" in page.locator("#what option:not([hidden])").all_text_contents())
    page.select_option("#what", "samples")
    usable(page, 121)
    assert page.locator("[data-key=g]").inner_text().split() == ["Good", "confirmed", "G"]
    page.keyboard.press("g")
    usable(page, 122)
    page.keyboard.press("d")
    page.get_by_role("heading", name="Nothing to confirm").wait_for()
    assert [bench.review_of(ids[one]) for one in (121, 122)] == ["confirmed_good", "true_defect"]
    page.get_by_label("Good parts per day").fill("7")
    page.get_by_role("button", name="Save").click()
    until(page, lambda: asked == [("samples/line-0", {"per_day": 7})])


def test_samples_are_not_offered_if_the_service_has_none(bench: Bench, open_page: OpenPage) -> None:
    bench.alarms("line-0", 131)
    page = open_page("#/train", model="line-0")
    page.route("**/v1/samples**", lambda route: route.fulfill(status=404, json={"detail": "Not Found"}))
    with page.expect_response("**/v1/samples**"):
        page.goto(f"{bench.url}#/review")
        usable(page, 131)
    assert page.locator("#what option:not([hidden])").all_text_contents() == ["Alarms not reviewed", "Marked unsure"]


@pytest.mark.parametrize(("width", "height"), [(1920, 1080), (1440, 900), (820, 1180), (390, 844), (320, 640)])
def test_picture_and_verdicts_are_in_sight_without_scrolling(
    bench: Bench, open_page: OpenPage, width: int, height: int
) -> None:
    bench.alarms("line-0", 171, 172)
    page = review_page(open_page, "line-0", viewport={"width": width, "height": height})
    usable(page, 171)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    in_sight = """(all) => all.every((e) => {
      const box = e.getBoundingClientRect();
      return box.top >= 0 && box.bottom <= innerHeight + 1 && box.left >= 0 && box.right <= innerWidth;
    })"""
    assert page.eval_on_selector_all(".keys button", in_sight)
    assert page.eval_on_selector_all(
        ".keys button", "all => all.every(e => e.offsetHeight >= 44 && e.offsetWidth >= 44)"
    )
    shown = page.eval_on_selector(
        ".picture",
        """(e) => {
          const box = e.getBoundingClientRect(), low = document.querySelector(".verdicts").getBoundingClientRect();
          const floor = low.left < box.right && low.top > box.top ? Math.min(innerHeight, low.top) : innerHeight;
          return (Math.min(box.bottom, floor) - box.top) / box.height;
        }""",
    )
    assert shown > (0.9 if height > 700 else 0.4)
