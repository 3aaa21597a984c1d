"""The page of a running line in a real browser: the verdict, freezing, faults, languages, a lost connection."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from patchsvdd.apps.demo.dataset import RenderedImage
from patchsvdd.apps.line.signals import FaultCode
from support.browsing import NEEDS_BROWSER, SECONDS, Seen, until
from support.line import SmallLine, lined
from support.serving import Running, png, running, settings
from support.waiting import wait_until

axe = pytest.importorskip("axe_playwright_python.base", reason="pip install axe-playwright-python")

pytestmark = NEEDS_BROWSER
pytest_plugins = ("support.browser_fixtures",)

AXE = (Path(axe.__file__).with_name("axe.min.js")).read_text()
TAGS = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")
SIZES = ((1920, 1080), (1280, 800), (800, 1280))
VIEWS = ("top", "side")
WORDS = {
    "en": ("OK", "NG", "INCOMPLETE"),
    "de": ("IO", "NIO", "UNVOLLSTÄNDIG"),
    "es": ("OK", "NOK", "INCOMPLETO"),
    "zh": ("OK", "NG", "图像缺失"),
    "ja": ("OK", "NG", "画像不足"),
}


@pytest.fixture(scope="module")
def server(washer: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(settings(tmp_path_factory.mktemp("lined") / "data", washer)) as found:
        yield found


@pytest.fixture(scope="module")
def images(pictures: dict[str, RenderedImage]) -> dict[str, bytes]:
    """A good image, and one with a defect that nobody overlooks."""
    marred = pictures["good1"].image.copy()
    marred[30:50, 20:40] = np.array([230, 60, 40], np.uint8)
    return {"good": png(pictures["good0"].image), "bad": png(marred)}


@pytest.fixture
def line(server: Running, images: dict[str, bytes], request: pytest.FixtureRequest) -> Iterator[SmallLine]:
    """A line of its own for each test, with one good part."""
    name = re.sub(r"\W", " ", request.node.name.removeprefix("test_"))[-40:]
    with lined(server.service, "washer", [dict.fromkeys(VIEWS, images["good"])], name, VIEWS) as found:
        found.part(part_number="A-0001")
        yield found


@pytest.fixture
def page(line: SmallLine, page: Any) -> Any:
    """The page, which is closed before the line ends: without a line the service answers 404."""
    return page


def ng(line: SmallLine, images: dict[str, bytes], number: str = "A-NG") -> Any:
    return line.part({"top": images["good"], "side": images["bad"]}, part_number=number)


def open_line(page: Any, server: Running) -> None:
    page.goto(f"{server.url}/line")
    page.wait_for_selector(".part-of-strip")
    page.wait_for_selector(".view-of-part img")
    page.wait_for_selector(".yield strong")


def kind(page: Any, wanted: str) -> None:
    """Wait until the large sign says this."""
    page.wait_for_selector(f".judgement[data-kind={wanted}]")


def word(page: Any) -> str:
    found: str = page.locator(".judgement .word").inner_text()
    return found


def findings(page: Any) -> list[str]:
    page.evaluate(AXE)
    found = page.evaluate("(tags) => axe.run(document, {runOnly: {type: 'tag', values: tags}})", list(TAGS))
    return [
        f"{one['id']} ({one['impact']}): {node['html'][:160]}" for one in found["violations"] for node in one["nodes"]
    ]


def test_the_verdict_is_large_and_that_of_the_last_part(
    page: Any, server: Running, line: SmallLine, images: dict[str, bytes]
) -> None:
    open_line(page, server)
    kind(page, "good")
    assert word(page) == "OK"
    assert page.title().startswith("OK")
    size = page.locator(".judgement .word").evaluate("e => parseFloat(getComputedStyle(e).fontSize)")
    assert size >= 100
    assert page.locator(".judgement .sign .shape-good").count() == 1
    last = ng(line, images)
    kind(page, "anomalous")
    assert word(page) == "NG"
    assert page.locator(".judgement .sign .shape-anomalous").count() == 1
    assert page.locator(".number-of-part dd").first.inner_text() == "A-NG"
    until(page, lambda: page.locator(".outlines .outline").count() == len(last.regions) > 0)
    side = page.locator(".view-of-part").nth(1)
    assert side.get_attribute("data-kind") == "anomalous"
    box, outline = side.locator("img").bounding_box(), side.locator(".outline").first.bounding_box()
    region = next(one for one in last.regions if one.view == "side")
    assert outline["x"] - box["x"] == pytest.approx(region.left / 96 * box["width"], abs=6)
    assert outline["width"] == pytest.approx(region.width / 96 * box["width"], abs=8)
    assert side.locator("a").get_attribute("href") == f"/#/history/{last.views[1].inspection}"
    assert page.locator(".score").get_attribute("data-above") == "true"
    until(page, lambda: page.locator(".part-of-strip").count() == 2)
    assert page.locator(".part-of-strip").first.get_attribute("data-kind") == "anomalous"
    line.part({"top": images["good"], "side": None})
    kind(page, "incomplete")
    page.get_by_text("This image is missing").wait_for()
    assert page.locator(".views img").count() == 1
    line.part(reason="the model failed")
    kind(page, "error")
    page.get_by_text("the model failed").wait_for()


def test_a_verdict_that_is_corrected_is_shown_as_corrected(page: Any, server: Running, line: SmallLine) -> None:
    late = line.part(part_number="late")
    open_line(page, server)
    kind(page, "good")
    line.correct(replace(late, verdict="error", reason="the field bus showed a fault"))
    kind(page, "error")
    page.wait_for_selector(".part-of-strip[data-kind=error]")


def test_a_frozen_part_stays_while_the_line_goes_on(
    page: Any, server: Running, line: SmallLine, images: dict[str, bytes]
) -> None:
    open_line(page, server)
    page.keyboard.press("f")
    page.get_by_text("Frozen: part A-0001").wait_for()
    picture = page.locator(".view-of-part img").first.get_attribute("src")
    ng(line, images)
    page.locator(".frozen-bar .now[data-kind=anomalous]").get_by_text("NG A-NG").wait_for()
    assert word(page) == "OK"
    assert page.locator(".view-of-part img").first.get_attribute("src") == picture
    assert page.locator(".part-of-strip[aria-current]").count() == 1
    line.fail(FaultCode.TIMEOUT, "part 3 got no verdict in time")
    page.locator(".frozen-bar .now[data-kind=fault]").wait_for()
    line.acknowledge(server.service.actor)
    page.keyboard.press("Escape")
    kind(page, "anomalous")
    assert page.locator(".frozen-bar").is_hidden()
    page.locator(".part-of-strip").nth(1).click()
    kind(page, "good")
    page.locator(".frozen-bar").get_by_role("button", name="Back to the line").click()
    kind(page, "anomalous")


def test_the_strip_is_used_by_keyboard(page: Any, server: Running, line: SmallLine, images: dict[str, bytes]) -> None:
    for number in range(22):
        ng(line, images, f"B-{number:04}") if number == 20 else line.part(part_number=f"B-{number:04}")
    open_line(page, server)
    until(page, lambda: page.locator(".part-of-strip").count() == 20)
    assert page.locator(".part-of-strip[tabindex='0']").count() == 1
    page.locator(".part-of-strip[tabindex='0']").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    kind(page, "anomalous")
    page.get_by_text("Frozen: part B-0020").wait_for()
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    page.get_by_text("Frozen: part B-0002").wait_for()
    line.part(part_number="B-0022")  # the part with the focus leaves the strip
    page.locator(".part-of-strip").get_by_text("B-0022").wait_for()
    assert page.evaluate("document.activeElement.classList.contains('part-of-strip')")


def test_a_fault_is_shown_and_acknowledged(page: Any, server: Running, line: SmallLine) -> None:
    open_line(page, server)
    assert page.get_by_role("button", name="Acknowledge").is_hidden()
    line.fail(FaultCode.SOURCE, "camera-side cannot be reached")
    line.sources[1] |= {"state": "failed", "reason": "no cable"}
    kind(page, "fault")
    assert word(page) == "FAULT"
    assert page.title().startswith("FAULT")
    page.get_by_text("A camera does not answer", exact=True).wait_for()
    page.get_by_text("camera-side cannot be reached").wait_for()
    assert "failed" in page.locator(".lamp[data-kind=fault]").inner_text()
    page.keyboard.press("a")
    page.keyboard.press("Enter")
    kind(page, "good")
    assert [one.kind for one in line.acknowledged] == ["local"]


def test_the_line_is_paused_after_a_question(page: Any, server: Running, line: SmallLine) -> None:
    open_line(page, server)
    page.keyboard.press("p")
    page.keyboard.press("Enter")  # Cancel has the focus
    assert line.state()["state"] == "ready"
    page.get_by_role("button", name="Pause").click()
    page.locator("dialog").get_by_role("button", name="Pause").click()
    kind(page, "paused")
    assert line.state()["state"] == "paused"
    page.get_by_role("button", name="Resume").click()
    kind(page, "good")


def test_live_images_and_where_defects_occurred(
    page: Any, server: Running, line: SmallLine, images: dict[str, bytes]
) -> None:
    ng(line, images)
    open_line(page, server)
    page.keyboard.press("h")
    page.wait_for_selector(".heat-of-view >> nth=1")
    page.get_by_text("Defect map: where defects occurred").wait_for()
    page.keyboard.press("h")
    until(page, lambda: page.locator(".heat-of-view").count() == 0)
    page.keyboard.press("v")
    page.get_by_text("Live images: not the part that was judged").wait_for()
    page.wait_for_selector(".view-of-part img[src*='/line/live/side']")
    assert page.locator(".outlines rect").count() == 0
    page.keyboard.press("v")
    page.wait_for_selector(".outlines rect")


def test_yield_counts_and_the_control_chart(
    page: Any, server: Running, line: SmallLine, images: dict[str, bytes]
) -> None:
    for _ in range(2):
        line.part()
    ng(line, images)
    line.part({"top": images["good"], "side": None})
    open_line(page, server)
    assert page.locator(".yield strong").inner_text() == "75%"
    assert page.locator(".counts dd").all_inner_texts() == ["3", "1", "1", "0"]
    summary = page.locator(".p-chart svg").get_attribute("aria-label")
    assert "mean 25%; 0 of" in summary
    assert page.locator(".p-chart .point").count() in (1, 2)  # a quarter of an hour may begin in between
    assert page.locator(".p-chart .limits").count() == 1
    page.locator("#period").select_option("previous")
    page.get_by_text("No part was judged in this period").wait_for()


@pytest.mark.parametrize("away", ["offline", "silent"])
def test_a_lost_connection_is_said_hugely(page: Any, server: Running, line: SmallLine, seen: Seen, away: str) -> None:
    open_line(page, server)
    seen.away = True
    if away == "offline":
        page.context.set_offline(True)
    else:  # connected, but nothing comes back
        page.route("**/v1/line", lambda _: None)
    page.wait_for_selector(".lost", timeout=8000)
    size = page.locator(".lost h1").evaluate("e => parseFloat(getComputedStyle(e).fontSize)")
    assert size >= 90
    assert "OK" not in page.locator("body").inner_text().split()
    assert page.title() == "CONNECTION LOST"
    if away == "offline":
        page.context.set_offline(False)
    else:
        page.unroute("**/v1/line")
    kind(page, "good")
    page.wait_for_selector(".view-of-part img")
    page.wait_for_load_state("networkidle") if away == "silent" else page.wait_for_timeout(300)
    seen.away = False


def test_every_language_is_chosen_and_remembered(
    page: Any, server: Running, line: SmallLine, images: dict[str, bytes]
) -> None:
    open_line(page, server)
    for code, words in WORDS.items():
        page.locator("#language").select_option(code)
        page.wait_for_selector(f"html[lang={code}]")
        assert word(page) == words[0]
        page.keyboard.press("Escape")
        page.locator("#language").blur()
        page.keyboard.press("?")
        page.wait_for_selector("dialog[open]")
        shown = page.locator("body").inner_text()
        assert "⟦" not in shown
        assert {words[1], words[2]} <= set(shown.split())
        page.keyboard.press("Escape")
        page.locator("#language").focus()
    page.reload()
    page.wait_for_selector(".part-of-strip")
    assert page.evaluate("document.documentElement.lang") == "ja"
    del images


@pytest.mark.parametrize(("locale", "code"), [("de-AT", "de"), ("zh-TW", "zh"), ("fr-FR", "en")])
def test_the_language_is_that_of_the_browser(
    browser: Any, server: Running, line: SmallLine, locale: str, code: str
) -> None:
    context = browser.new_context(locale=locale)
    page = context.new_page()
    page.set_default_timeout(SECONDS)
    open_line(page, server)
    assert page.evaluate("document.documentElement.lang") == code
    assert word(page) == WORDS[code][0]
    context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_and_nothing_is_cut_off(
    page: Any, server: Running, line: SmallLine, images: dict[str, bytes], scheme: str
) -> None:
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    ng(line, images)
    line.part(reason="the model failed")
    line.part({"top": images["good"], "side": None})
    open_line(page, server)
    found: dict[str, list[str]] = {}
    fits: dict[str, bool] = {}

    def look(name: str) -> None:
        page.wait_for_timeout(150)  # axe measures contrast, also in mid-transition
        found[name] = findings(page)
        for width, height in SIZES:
            page.set_viewport_size({"width": width, "height": height})
            fits[f"{name} at {width}"] = page.evaluate("document.documentElement.scrollWidth") <= width
        page.set_viewport_size({"width": 1280, "height": 800})

    page.set_viewport_size({"width": 1280, "height": 800})
    for picked in ("error", "anomalous"):
        page.locator(f".part-of-strip[data-kind={picked}]").click()
        kind(page, picked)
        look(picked)
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    look("help")
    page.keyboard.press("Escape")
    line.be("paused")
    kind(page, "paused")
    look("paused")
    line.be("ready")
    line.fail(FaultCode.OVERRUN, "triggered while part 4 was being inspected")
    line.sources[0] |= {"state": "failed", "reason": "no cable"}
    line.sources[1]["lost"] += 3
    line.buses[0]["trouble"] = "the port is taken"
    kind(page, "fault")
    page.get_by_text("3 images lost").wait_for()
    look("fault")
    assert not any(found.values()), found
    assert all(fits.values()), fits
    small = page.locator("button:visible, select:visible, a:visible").evaluate_all(
        "all => all.filter(one => { const box = one.getBoundingClientRect();"
        " return box.height < 48 || (box.width < 48 && one.tagName !== 'A'); }).map(one => one.outerHTML)"
    )
    assert small == []


def test_a_user_who_may_only_look_has_no_controls(page: Any, server: Running, line: SmallLine) -> None:
    me = {**server.client.get("/v1/me").json(), "role": "inspect", "may": ["inspect"]}
    page.route("**/v1/me", lambda route: route.fulfill(body=json.dumps(me), content_type="application/json"))
    open_line(page, server)
    line.fail(FaultCode.STORE, "the disk is full")
    kind(page, "fault")
    assert page.get_by_role("button", name="Acknowledge").count() == 0
    assert page.get_by_role("button", name="Pause").count() == 0
    page.keyboard.press("p")
    assert page.locator("dialog[open]").count() == 0


def test_keys_are_switched_off(page: Any, server: Running, line: SmallLine) -> None:
    open_line(page, server)
    page.keyboard.press("?")
    page.get_by_label("Use these keys").uncheck()
    page.get_by_role("button", name="Close").click()
    page.keyboard.press("f")
    page.wait_for_timeout(100)
    assert page.locator(".frozen-bar").is_hidden()


def test_the_main_page_has_a_link_while_a_line_runs(page: Any, server: Running, line: SmallLine) -> None:
    page.goto(f"{server.url}/#/overview")
    page.get_by_role("link", name="Line", exact=True).click()
    page.wait_for_selector(".judgement")
    page.get_by_role("link", name="Main page").click()
    page.wait_for_selector(".view-overview h1")
    server.service.line_view = None
    page.reload()
    page.wait_for_selector(".view-overview h1")
    assert page.locator("#line-link").is_hidden()
    page.goto(f"{server.url}/line")
    page.get_by_text("The service was started without a line").wait_for()
    server.service.line_view = line
    page.goto(f"{server.url}/#/line")  # where a sign-in leads to
    page.wait_for_selector(".judgement")


def test_a_line_without_parts_waits_for_the_first(page: Any, server: Running, images: dict[str, bytes]) -> None:
    with lined(server.service, "washer", [dict.fromkeys(VIEWS, images["good"])], "new", VIEWS) as line:
        page.goto(f"{server.url}/line")
        kind(page, "none")
        page.get_by_text("The last 20 parts appear here").wait_for()
        assert page.get_by_role("button", name="Freeze").is_disabled()
        answer = server.client.post("/v1/line/trigger", json={"part_number": "A-1"})
        assert answer.status_code == 200
        kind(page, "good")
        page.locator(".part-of-strip").wait_for()
        wait_until(lambda: line.state()["state"] == "ready")
        page.goto("about:blank")
