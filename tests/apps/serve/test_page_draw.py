"""Drawing where a defect is, in a real browser: by pointer and by keyboard, undone, saved and seen again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from patchsvdd.apps.serve.annotations import annotation_mask
from support.browsing import NEEDS_BROWSER, SECONDS, Seen, until
from support.coded_alarms import SIDE, store_alarms
from support.review_bench import usable
from support.serving import Running, copy_model, running, settings

axe = pytest.importorskip("axe_playwright_python.base", reason="pip install axe-playwright-python")

pytestmark = NEEDS_BROWSER
pytest_plugins = ("support.browser_fixtures",)

PAINTED = """([x, y]) => {
  const [canvas, inner] = [".drawn", ".stage .inner"].map((one) => document.querySelector(one));
  const [frame, box] = [canvas, inner].map((one) => one.getBoundingClientRect());
  const ratio = canvas.width / frame.width;
  const place = [box.left + x * box.width - frame.left, box.top + y * box.height - frame.top];
  const copy = document.createElement("canvas");
  copy.width = copy.height = 1;
  const pen = copy.getContext("2d", { willReadFrequently: true });
  pen.drawImage(canvas, ...place.map((one) => -Math.round(one * ratio)));
  return !canvas.hidden && pen.getImageData(0, 0, 1, 1).data[3] > 0;
}"""
"""JavaScript: whether something is drawn at a place of the image, given in fractions of its sides."""


@pytest.fixture(scope="module")
def served(stored: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("draw")
    with running(settings(folder / "data", copy_model(stored, folder / "line"))) as found:
        yield found


@pytest.fixture
def page(browser: Any, served: Running, seen: Seen) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 1440, "height": 900}, reduced_motion="reduce")
    opened = context.new_page()
    opened.set_default_timeout(SECONDS)
    seen.watch(opened)
    yield opened
    context.close()
    assert seen.errors == []


def place(page: Any, x: float, y: float) -> tuple[float, float]:
    """Where a pixel of the image is on the screen."""
    box = page.locator(".stage .inner").bounding_box()
    return box["x"] + x / SIDE * box["width"], box["y"] + y / SIDE * box["height"]


def painted(page: Any, x: float, y: float) -> bool:
    return bool(page.evaluate(PAINTED, [x / SIDE, y / SIDE]))


def press(page: Any, *keys: str) -> None:
    for key in keys:
        page.keyboard.press(key)


def test_a_defect_is_drawn_and_saved_with_the_review(served: Running, page: Any) -> None:
    ids = store_alarms(served.service, "line", (11, 12))
    page.goto(f"{served.url}/#/review")
    usable(page, 11)
    page.get_by_role("button", name="Mark the defect").click()
    page.get_by_label("Kind").fill("scratch")
    page.evaluate(Path(axe.__file__).with_name("axe.min.js").read_text())
    assert page.evaluate("axe.run('.stage').then(({ violations }) => violations.map((one) => one.id))") == []
    for point in ((4, 4), (14, 4), (14, 12)):  # a polygon by pointer
        page.mouse.click(*place(page, *point))
    summary = page.locator(".draw-summary")
    assert summary.inner_text() == ""
    page.locator(".stage .frame").focus()
    press(page, "Enter")
    until(page, lambda: summary.inner_text() == "1 shape: scratch · not saved yet")
    assert painted(page, 12, 6)
    assert not painted(page, 5, 11)
    press(page, "b", "Shift+ArrowDown")  # a box by keyboard, from the middle of the image
    press(page, "Space", "Shift+ArrowRight", "ArrowDown", "ArrowDown", "ArrowDown", "Space")
    until(page, lambda: summary.inner_text() == "2 shapes: scratch · not saved yet")
    press(page, "Control+z")
    until(page, lambda: summary.inner_text() == "1 shape: scratch · not saved yet")
    press(page, "Control+Shift+z")
    assert painted(page, SIDE / 2 + 5, SIDE / 2 + 11)
    press(page, "Space", "ArrowLeft", "Escape")  # a box that is begun and cancelled
    assert summary.inner_text() == "2 shapes: scratch · not saved yet"
    press(page, "g")
    page.locator(".last", has_text="A defect is marked: clear the drawing first").wait_for()
    press(page, "n")
    page.locator(".last", has_text="The drawing is not saved").wait_for()
    press(page, "d")
    usable(page, 12)
    until(page, lambda: served.service.store.inspection(ids[11])["review"] == "true_defect")
    annotation = served.service.store.annotation(ids[11])
    assert annotation is not None
    polygon, box = annotation["shapes"]
    assert (polygon["type"], polygon["kind"]) == ("polygon", "scratch")
    assert polygon["rings"][0] == [pytest.approx(point, abs=0.2) for point in ([4, 4], [14, 4], [14, 12])]
    middle = SIDE / 2
    assert box == {"type": "box", "kind": "scratch", "box": [middle, middle + 10, middle + 10, middle + 13]}


def test_a_drawing_is_seen_again_and_can_be_changed(served: Running, page: Any) -> None:
    (number,) = store_alarms(served.service, "line", (21,)).values()
    served.client.put(f"/v1/inspections/{number}/annotation", json={"shapes": [{"type": "box", "box": [4, 4, 20, 12]}]})
    served.client.post(f"/v1/inspections/{number}/review", json={"verdict": "true_defect"})
    page.goto(f"{served.url}/#/history/{number}")
    summary = page.locator(".draw-summary")
    until(page, lambda: summary.inner_text() == "1 shape: defect")
    assert painted(page, 12, 6)
    page.get_by_role("button", name="Change drawing").click()
    page.get_by_role("button", name="Eraser").click()
    start, end = place(page, 2, 5), place(page, 24, 5)
    page.mouse.move(*start)
    page.mouse.down()
    page.mouse.move(*end, steps=8)
    page.mouse.up()
    assert not painted(page, 12, 5)
    page.get_by_role("button", name="Polygon").click()
    for point in ((22, 20), (30, 20), (26, 28)):
        page.mouse.click(*place(page, *point))
    page.mouse.dblclick(*place(page, 22, 26))
    until(page, lambda: summary.inner_text() == "2 shapes: defect · not saved yet")
    page.get_by_role("button", name="Brush").click()
    press(page, "[")
    page.mouse.click(*place(page, 4, 26))
    page.get_by_role("button", name="Save", exact=True).click()
    until(page, lambda: summary.inner_text() == "2 shapes: defect")
    page.reload()
    until(page, lambda: summary.inner_text() == "2 shapes: defect")
    assert painted(page, 26, 23)
    assert painted(page, 4, 26)
    assert not painted(page, 12, 5)
    annotation = served.service.store.annotation(number)
    assert annotation is not None
    assert [shape["type"] for shape in annotation["shapes"]] == ["brush", "polygon"]
    mask = annotation_mask(served.service.store.inspection(number), annotation)
    assert mask[11, 4:20].all()  # the part of the box that the eraser left
    assert not mask[5, 4:20].any()
    assert mask[26, 4]
