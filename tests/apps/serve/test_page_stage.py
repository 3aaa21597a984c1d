"""The stage in a real browser: the image fills it; zoom and pan by wheel, fingers, keys and buttons."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.browsing import NEEDS_BROWSER, SECONDS, Seen, Server, inspect, look
from support.waiting import wait_until

pytestmark = NEEDS_BROWSER
pytest_plugins = ("support.browser_fixtures",)

ZOOM = """() => {
  const matrix = new DOMMatrix(document.querySelector('.inner').style.transform.replaceAll('%', 'px') || 'none');
  return [matrix.a, matrix.e, matrix.f];
}"""
"""Scale, and position in hundredths of the image's size."""


def scale(page: Any) -> float:
    return float(page.evaluate(ZOOM)[0])


def centre(page: Any) -> tuple[float, float]:
    box = page.locator(".frame").bounding_box()
    assert box is not None
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


@pytest.fixture
def shown(page: Any, server: Server, files: dict[str, Path]) -> Any:
    """A page that shows a good part, which has no regions to zoom to."""
    inspect(page, server, files["fine"])
    assert page.locator(".verdict .word").inner_text() == "Good"
    return page


@pytest.fixture
def phone(browser: Any, server: Server, seen: Seen, files: dict[str, Path]) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 390, "height": 844}, has_touch=True)
    opened = context.new_page()
    opened.set_default_timeout(SECONDS)
    seen.watch(opened)
    inspect(opened, server, files["fine"])
    opened.locator(".frame").scroll_into_view_if_needed()
    yield opened
    context.close()
    assert seen.errors == []


def test_the_wheel_zooms_at_the_pointer_and_a_drag_moves(shown: Any) -> None:
    box = shown.locator(".frame").bounding_box()
    x, y = box["x"] + 0.25 * box["width"], box["y"] + 0.25 * box["height"]
    shown.mouse.move(x, y)
    shown.mouse.wheel(0, -400)
    wait_until(lambda: scale(shown) > 1.5, 20)
    before = shown.evaluate(ZOOM)
    # The point under the pointer stayed: x = p - s p.
    assert before[1] == pytest.approx(25 * (1 - before[0]), abs=1.5)
    shown.mouse.down()
    shown.mouse.move(x - 60, y - 40, steps=4)
    shown.mouse.up()
    after = shown.evaluate(ZOOM)
    assert after[0] == before[0]
    assert after[1] < before[1]
    assert after[2] < before[2]
    for _ in range(30):
        shown.mouse.wheel(0, -400)
    wait_until(lambda: scale(shown) == 16, 20)
    assert shown.locator(".magnified").inner_text() == "1600 %"
    shown.get_by_role("button", name="Fit").click()
    assert scale(shown) == 1


def test_the_page_scrolls_by_wheel_when_all_is_shown(shown: Any) -> None:
    shown.set_viewport_size({"width": 1440, "height": 600})
    shown.mouse.move(*centre(shown))
    shown.mouse.wheel(0, 200)
    wait_until(lambda: shown.evaluate("scrollY") > 0, 20)
    assert scale(shown) == 1


def test_keys_zoom_and_move_only_while_the_stage_has_the_focus(shown: Any) -> None:
    shown.locator("#model").focus()
    shown.keyboard.press("+")
    assert scale(shown) == 1
    shown.locator(".frame").focus()
    shown.keyboard.press("+")
    shown.keyboard.press("+")
    assert scale(shown) == pytest.approx(2.25)
    before = shown.evaluate(ZOOM)
    shown.keyboard.press("ArrowRight")
    shown.keyboard.press("ArrowDown")
    after = shown.evaluate(ZOOM)
    assert after[1] < before[1]
    assert after[2] < before[2]
    for _ in range(40):
        shown.keyboard.press("ArrowRight")
    assert shown.evaluate(ZOOM)[1] > -130  # the image does not leave the stage
    shown.keyboard.press("-")
    assert scale(shown) == pytest.approx(1.5)
    shown.keyboard.press("0")
    assert scale(shown) == 1


def test_buttons_and_double_click_zoom(shown: Any) -> None:
    shown.get_by_role("button", name="Zoom in").click()
    assert shown.locator(".magnified").inner_text() == "150 %"
    shown.get_by_role("button", name="Zoom out").click()
    assert shown.locator(".magnified").inner_text() == "100 %"
    shown.mouse.dblclick(*centre(shown))
    assert scale(shown) == 2.5
    shown.mouse.dblclick(*centre(shown))
    assert scale(shown) == 1


def touch(page: Any, kind: str, *points: tuple[float, float]) -> None:
    places = [{"x": x, "y": y, "id": index} for index, (x, y) in enumerate(points)]
    page.touching.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": places})


def test_two_fingers_zoom_and_one_moves(phone: Any) -> None:
    phone.touching = phone.context.new_cdp_session(phone)
    x, y = centre(phone)
    touch(phone, "touchStart", (x - 20, y), (x + 20, y))
    for step in range(1, 6):
        touch(phone, "touchMove", (x - 20 - 10 * step, y), (x + 20 + 10 * step, y))
    touch(phone, "touchEnd")
    wait_until(lambda: scale(phone) > 2, 20)
    before = phone.evaluate(ZOOM)
    scrolled = phone.evaluate("scrollY")
    touch(phone, "touchStart", (x, y))
    for step in range(1, 6):
        touch(phone, "touchMove", (x - 10 * step, y - 10 * step))
    touch(phone, "touchEnd")
    wait_until(lambda: phone.evaluate(ZOOM)[1] < before[1] - 2, 20)
    assert phone.evaluate(ZOOM)[0] == pytest.approx(before[0])
    assert phone.evaluate("scrollY") == scrolled


def test_one_finger_scrolls_the_page_when_all_is_shown(phone: Any) -> None:
    phone.touching = phone.context.new_cdp_session(phone)
    phone.evaluate("scrollTo(0, 0)")
    x, y = centre(phone)
    y = min(y, 800)
    touch(phone, "touchStart", (x, y))
    for step in range(1, 15):
        touch(phone, "touchMove", (x, y - 15 * step))
        phone.wait_for_timeout(16)
    touch(phone, "touchEnd")
    wait_until(lambda: phone.evaluate("scrollY") > 50, 20)
    assert scale(phone) == 1


def test_the_outline_stays_thin_and_outside_the_region(page: Any, server: Server, files: dict[str, Path]) -> None:
    inspect(page, server, files["stain"])
    page.emulate_media(reduced_motion="reduce")
    for presses in (0, 4):
        page.locator(".frame").focus()
        for _ in range(presses):
            page.keyboard.press("+")
        box, region, image, factor = page.evaluate(
            """async () => {
              const { api } = await import('/api.js');
              const [one] = (await api.inspections({ limit: 1 })).inspections;
              const rect = (name) => {
                const b = document.querySelector(name).getBoundingClientRect();
                return [b.left, b.top, b.right, b.bottom];
              };
              const scaled = new DOMMatrix(getComputedStyle(document.querySelector('.box')).transform).a;
              const place = one.regions[0].box.map((value, i) => value / one.image_size[1 - i % 2]);
              return [rect('.box'), place, rect('.inner'), scaled];
            }"""
        )
        width, height = image[2] - image[0], image[3] - image[1]
        expected = [image[i % 2] + region[i] * (width, height)[i % 2] for i in range(4)]
        assert box == pytest.approx(expected, abs=1.5)  # the region itself: the line is drawn around it
        assert factor == 1
    shadow = page.eval_on_selector(".box", "e => getComputedStyle(e).boxShadow")
    spreads = [float(part.split("px")[3]) for part in shadow.split("rgb")[1:]]
    assert 0 < max(spreads) <= 5
    assert page.eval_on_selector(".box", "e => e.closest('.inner') === null")  # not enlarged with the image


def test_a_region_is_left_by_zooming_by_hand(page: Any, server: Server, files: dict[str, Path]) -> None:
    inspect(page, server, files["stain"])
    region = page.locator(".region").first
    region.click()
    assert region.get_attribute("aria-pressed") == "true"
    page.locator(".frame").focus()
    page.keyboard.press("+")
    assert region.get_attribute("aria-pressed") == "false"


def test_original_and_heat_map_move_together(page: Any, server: Server, files: dict[str, Path]) -> None:
    inspect(page, server, files["stain"])
    page.get_by_role("button", name="Side by side").click()
    assert page.locator(".frame").count() == 2
    assert page.locator(".original:visible").count() == 1
    for frame in range(2):
        page.locator(".frame").nth(frame).focus()
        page.keyboard.press("+")
        page.keyboard.press("ArrowLeft")
        assert page.locator(".copy").get_attribute("style") == page.locator(".inner").get_attribute("style")
    left, right = page.locator(".frame").nth(0).bounding_box(), page.locator(".frame").nth(1).bounding_box()
    assert left["y"] == right["y"]
    assert left["width"] == pytest.approx(right["width"], abs=1)
    page.set_viewport_size({"width": 390, "height": 844})
    above, below = page.locator(".frame").nth(0).bounding_box(), page.locator(".frame").nth(1).bounding_box()
    assert above["x"] == below["x"]
    assert above["y"] + above["height"] <= below["y"]
    assert not page.evaluate("document.documentElement.scrollWidth > innerWidth")
    page.get_by_role("button", name="Side by side").click()
    assert page.locator(".frame").count() == 1


def test_side_by_side_the_original_has_no_heat(page: Any, server: Server, files: dict[str, Path]) -> None:
    inspect(page, server, files["stain"])
    page.locator(".check input").uncheck()
    heated = look(page)
    page.get_by_role("button", name="Side by side").click()
    assert page.locator(".copy .map").count() == 0
    assert page.eval_on_selector(".original", "async e => { await e.decode(); return e.naturalWidth; }") == 96
    page.get_by_role("button", name="Side by side").click()
    assert abs(look(page) - heated).mean() < 3
    page.locator(".check input").check()


@pytest.mark.parametrize("size", [(1440, 900), (820, 1180), (390, 844), (1920, 1080)])
def test_the_image_fills_the_stage(page: Any, server: Server, files: dict[str, Path], size: tuple[int, int]) -> None:
    page.set_viewport_size({"width": size[0], "height": size[1]})
    inspect(page, server, files["stain"])
    pit, canvas = page.locator(".pit").bounding_box(), page.locator(".canvas").bounding_box()
    assert canvas["width"] * canvas["height"] > 0.9 * pit["width"] * pit["height"]
    assert canvas["height"] > 0.35 * size[1]
    facts = page.locator(".facts").first.bounding_box()
    if size[0] > 1100:
        assert facts["y"] + facts["height"] <= size[1]  # above the fold


def test_the_panel_uses_its_width_on_a_tablet(page: Any, server: Server, files: dict[str, Path]) -> None:
    page.set_viewport_size({"width": 820, "height": 1180})
    inspect(page, server, files["stain"])
    parts = page.eval_on_selector_all(
        ".sheet > .part:not(.why)", "all => all.map(e => e.getBoundingClientRect()).map(b => [b.left, b.bottom])"
    )
    bottoms = [max(bottom for left, bottom in parts if left == column) for column in {left for left, _ in parts}]
    assert len(bottoms) == 2
    assert max(bottoms) - min(bottoms) < 150
    page.set_viewport_size({"width": 390, "height": 844})
    rules = page.eval_on_selector_all(".sheet > .part", "all => all.map(e => e.getBoundingClientRect().right)")
    assert max(rules) - min(rules) < 1  # they end at the same place
