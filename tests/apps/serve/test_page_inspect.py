"""Inspect in a real browser: what is on screen belongs together, failures are named, batches keep the user's view."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from support.browsing import NEEDS_BROWSER, READY, Seen, Server, inspect, until

pytestmark = NEEDS_BROWSER
pytest_plugins = ("support.browser_fixtures",)

INSPECT = "**/v1/models/*/inspect*"
PICTURES = "**/v1/inspections/*/picture"
WIDE_PAGE = "document.documentElement.scrollWidth > innerWidth"


def open_inspect(page: Any, server: Server) -> None:
    page.goto(f"{server.url}#/inspect")
    page.wait_for_selector("#files", state="attached")


def give(page: Any, *images: Path) -> None:
    page.set_input_files("#files", [str(image) for image in images])


def hold(page: Any, pattern: str) -> list[Any]:
    """Let requests wait until the test lets them go on."""
    held: list[Any] = []
    page.route(pattern, lambda route: held.append(route))
    return held


def copies(files: dict[str, Path], folder: Path, *names: str) -> list[Path]:
    """Copies of images, under names in the order given: 0-fine.png, 1-stain.png."""
    made = []
    for index, name in enumerate(names):
        made.append(folder / f"{index}-{name}.png")
        made[-1].write_bytes(files[name].read_bytes())
    return made


def boxes_overlap(page: Any, one: str, other: str) -> bool:
    first, second = page.locator(one).bounding_box(), page.locator(other).bounding_box()
    assert first is not None
    assert second is not None
    apart = (
        first["x"] >= second["x"] + second["width"]
        or second["x"] >= first["x"] + first["width"]
        or first["y"] >= second["y"] + second["height"]
        or second["y"] >= first["y"] + first["height"]
    )
    return not apart


# H1


def test_verdict_and_review_appear_with_the_picture(page: Any, server: Server, files: dict[str, Path]) -> None:
    inspect(page, server, files["fine"])
    held = hold(page, PICTURES)
    give(page, files["stain"])
    until(page, lambda: bool(held))
    page.wait_for_selector(".result[data-state=loading]")
    assert page.locator(".verdict").inner_text().split() == ["Loading…", "stain.png"]
    assert page.locator(".verdict.good, .verdict.anomalous, .choices button, .region, .box").count() == 0
    assert page.locator(".picture:visible, .map:visible").count() == 0
    assert "Loading stain.png" in page.locator(".stage .message").inner_text()
    held[0].continue_()
    page.wait_for_selector(READY)
    assert page.locator(".verdict .word").inner_text() == "Anomalous"
    assert page.locator(".picture:visible").count() == page.locator(".map:visible").count() == 1
    assert page.locator(".choices button:enabled").count() == 3


@pytest.mark.parametrize("missing", [PICTURES, "**/v1/inspections/*/map"])
def test_a_picture_that_cannot_be_loaded_is_told_and_cannot_be_reviewed(
    page: Any, server: Server, files: dict[str, Path], seen: Seen, missing: str
) -> None:
    seen.away = True
    open_inspect(page, server)
    page.route(missing, lambda route: route.abort())
    give(page, files["stain"])
    page.wait_for_selector(".result[data-state=failed]")
    assert "could not be loaded" in page.locator(".stage .message").inner_text()
    assert page.locator(".choices button:enabled").count() == 0
    assert page.locator(".picture:visible, .map:visible, .box, .region").count() == 0
    page.unroute(missing)
    page.locator(".stage .message").get_by_role("button", name="Try again").click()
    page.wait_for_selector(READY)
    assert page.locator(".choices button:enabled").count() == 3


def test_the_detail_of_the_history_shows_nothing_of_the_previous_part(
    page: Any, server: Server, files: dict[str, Path]
) -> None:
    inspect(page, server, files["fine"])
    inspect(page, server, files["stain"])
    page.goto(f"{server.url}#/history")
    page.wait_for_selector(".cell button")
    page.locator("[aria-posinset='1'] button").click()
    page.wait_for_selector(f"dialog {READY}")
    page.reload()  # nothing is kept in memory
    page.wait_for_selector(f"dialog {READY}")
    held = hold(page, PICTURES)
    page.get_by_role("button", name="Older inspection").click()
    until(page, lambda: bool(held))
    assert page.locator("dialog .verdict.anomalous, dialog .verdict.good, dialog .choices button").count() == 0
    assert page.locator("dialog .picture:visible, dialog .box").count() == 0
    held[0].continue_()
    page.wait_for_selector(f"dialog {READY}")
    assert page.locator("dialog .verdict .word").inner_text() == "Good"


# H2


def test_an_image_that_fails_does_not_leave_the_previous_verdict(
    page: Any, server: Server, files: dict[str, Path], seen: Seen, tmp_path: Path
) -> None:
    fake = tmp_path / "fake.png"
    fake.write_bytes(b"this is no picture")
    inspect(page, server, files["fine"])
    assert page.locator(".verdict .word").inner_text() == "Good"
    give(page, fake)
    page.wait_for_selector(".verdict.none")
    assert page.locator(".verdict .word").inner_text() == "Not inspected"
    assert page.locator(".verdict .of").inner_text() == "fake.png"
    assert page.locator(".verdict .words").inner_text().count("fake.png") == 0
    assert page.locator(".verdict.good").count() == 0
    assert page.locator(".stage").is_hidden()
    assert "Not inspected" in page.locator("#verdict").inner_text()  # said aloud
    failed = page.locator(".strip .thumb.none")
    assert failed.count() == 1
    assert "fake.png: It is not a PNG" in failed.get_attribute("title")
    page.locator(".strip .thumb.good").click()
    page.wait_for_selector(READY)
    failed.click()
    page.get_by_role("button", name="Try again").click()
    page.wait_for_selector(".verdict.none")
    seen.errors.clear()  # the browser's own lines about the answers


def test_the_previous_verdict_is_not_shown_while_an_image_is_under_way(
    page: Any, server: Server, files: dict[str, Path]
) -> None:
    inspect(page, server, files["fine"])
    held = hold(page, INSPECT)
    give(page, files["stain"])
    until(page, lambda: bool(held))
    assert page.locator(".verdict").inner_text().split() == ["Inspecting…", "stain.png"]
    assert page.locator(".verdict.good").count() == 0
    assert page.get_by_text("Previous image: fine.png").is_visible()
    assert float(page.eval_on_selector(".window", "e => getComputedStyle(e).opacity")) < 0.6
    assert page.locator(".choices button:enabled").count() == 0
    held[0].continue_()
    page.wait_for_selector(READY)
    assert page.locator(".verdict .word").inner_text() == "Anomalous"
    assert page.locator(".earlier-image").is_hidden()


def test_images_that_no_service_took_are_named_and_sent_again(
    page: Any, server: Server, files: dict[str, Path], seen: Seen
) -> None:
    seen.away = True
    open_inspect(page, server)
    before = server.get("inspections/counts")["total"]
    page.route(INSPECT, lambda route: route.abort())
    give(page, files["fine"], files["stain"])
    page.wait_for_selector(".strip li:nth-child(2)")
    assert page.get_by_text("2 images: 2 not inspected").is_visible()
    titles = page.locator(".thumb.none").evaluate_all("all => all.map(e => e.title).sort()")
    assert [one.split(":")[0] for one in titles] == ["fine.png", "stain.png"]
    assert all("does not respond" in one for one in titles)
    page.unroute(INSPECT)
    page.get_by_role("button", name="Try all again").click()
    page.wait_for_selector(READY)
    assert page.get_by_text("2 images: 1 good, 1 anomalous").is_visible()
    assert page.locator(".thumb.none").count() == 0
    assert server.get("inspections/counts")["total"] == before + 2
    assert page.get_by_role("button", name="Try all again").is_hidden()


# M2


def test_thirty_images_do_not_widen_the_page(page: Any, server: Server, files: dict[str, Path], tmp_path: Path) -> None:
    inspect(page, server, files["fine"])
    answer = server.get("inspections?limit=1")["inspections"][0]
    page.route(INSPECT, lambda route: route.fulfill(json=answer))
    many = copies(files, tmp_path, *["fine"] * 32)
    give(page, *many)
    page.wait_for_selector(".strip li:nth-child(33)")
    page.wait_for_selector(READY)
    for width in (320, 390, 820, 1440, 1920):
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_timeout(50)
        assert not page.evaluate(WIDE_PAGE), width
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def complain(page: Any, *words: str) -> None:
    script = """async (all) => {
      const { complain } = await import('/dom.js');
      all.forEach((one) => complain(new Error(one)));
    }"""
    page.evaluate(script, list(words))


def test_messages_stay_on_a_phone_and_off_the_verdict(
    page: Any, server: Server, files: dict[str, Path], tmp_path: Path
) -> None:
    """M2, L4."""
    page.set_viewport_size({"width": 390, "height": 844})
    inspect(page, server, *copies(files, tmp_path, *["fine"] * 6))
    complain(page, *[f"part-{index}.png: the service is overloaded; send the image again" for index in range(7)])
    assert page.locator(".note").count() == 3
    assert page.locator(".earlier p").inner_text() == "and 4 more"
    box = page.locator("#notes").bounding_box()
    assert box is not None
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 390
    assert box["y"] + box["height"] <= 844
    assert not boxes_overlap(page, "#notes", ".verdict")
    page.set_viewport_size({"width": 1440, "height": 900})
    assert not boxes_overlap(page, "#notes", ".verdict")
    page.get_by_role("button", name="Dismiss all messages").click()
    assert page.locator(".note, .earlier").count() == 0


def test_a_message_does_not_repeat_a_name(page: Any, server: Server) -> None:
    """L4."""
    open_inspect(page, server)
    complain(page, "fake.png: fake.png: is not an image")
    assert page.locator(".note p").inner_text() == "fake.png: is not an image"


# M10


def test_a_batch_keeps_what_the_user_opened(page: Any, server: Server, files: dict[str, Path], tmp_path: Path) -> None:
    inspect(page, server, files["fine"])
    held = hold(page, INSPECT)
    give(page, *copies(files, tmp_path, "good1", "good2", "stain", "good3"))
    until(page, lambda: len(held) == 2)
    assert page.get_by_text("Inspecting: 1 of 4").is_visible()
    page.locator(".strip .thumb.good").click()
    page.wait_for_selector(READY)
    assert page.locator(".verdict .of").inner_text() == "fine.png"
    page.get_by_role("button", name="Compare with normal patches").click()
    page.wait_for_selector(".pair canvas")
    for index in range(4):
        until(page, lambda index=index: len(held) > index)  # type: ignore[misc]
        held[index].continue_()
    page.get_by_text("4 images: 3 good, 1 anomalous").wait_for()
    assert page.locator(".strip li").count() == 5
    assert page.locator(".verdict .of").inner_text() == "fine.png"
    assert page.locator(".pair canvas").count() >= 2


def test_a_batch_ends_with_a_summary_and_opens_the_worst(
    page: Any, server: Server, files: dict[str, Path], tmp_path: Path
) -> None:
    open_inspect(page, server)
    text = tmp_path / "notes.txt"
    text.write_text("not an image")
    give(page, *copies(files, tmp_path, "good1", "stain", "good2"), text)
    page.get_by_text("4 images: 2 good, 1 anomalous, 1 not inspected").wait_for()
    page.wait_for_selector(READY)
    assert page.locator(".verdict .of").inner_text() == "1-stain.png"
    assert "notes.txt" in page.locator(".thumb.none").get_attribute("title")
    page.locator(".thumb.none").click()
    assert "PNG, JPEG" in page.locator(".verdict .words").inner_text()
    assert page.locator(".verdict button").count() == 0  # sending it again would not help


def test_a_batch_can_be_cancelled(page: Any, server: Server, files: dict[str, Path], tmp_path: Path) -> None:
    open_inspect(page, server)
    held = hold(page, INSPECT)
    give(page, *copies(files, tmp_path, *["fine"] * 5))
    until(page, lambda: len(held) == 2)
    page.get_by_role("button", name="Cancel").click()
    page.get_by_text("5 images: 5 not inspected").wait_for()
    assert page.locator(".thumb.none").count() == 5
    assert page.locator(".busy.on").count() == 0
    assert len(held) == 2  # the others were not sent
    page.unroute(INSPECT)
    page.get_by_role("button", name="Try all again").click()
    page.get_by_text("5 images: 5 good").wait_for()


# L9


def test_an_image_of_another_shape_is_told(page: Any, server: Server, files: dict[str, Path], tmp_path: Path) -> None:
    inspect(page, server, files["fine"])
    page.wait_for_timeout(300)
    assert page.locator(".hint.shape").count() == 0
    wide = tmp_path / "wide.png"
    with Image.open(files["fine"]) as image:
        image.resize((400, 50)).save(wide)
    inspect(page, server, wide)
    hint = page.locator(".hint.shape")
    hint.wait_for()
    assert "400 × 50" in hint.inner_text()
    assert "96 × 96" in hint.inner_text()


def test_a_newcomer_chooses_among_several_models(page: Any, server: Server, files: dict[str, Path]) -> None:
    listed = server.get("models")["models"]
    other = {**listed[0], "name": "another", "identity": "0" * 16}
    page.route("**/v1/models", lambda route: route.fulfill(json={"models": [*listed, other]}))
    open_inspect(page, server)
    assert page.locator("#model").evaluate("e => e.selectedOptions[0].text") == "Choose a model"
    before = server.get("inspections/counts")["total"]
    give(page, files["fine"])
    page.locator(".note", has_text="Choose a model first").wait_for()
    assert page.evaluate("document.activeElement.id") == "model"
    page.goto(f"{server.url}#/models")
    page.wait_for_selector(".body h2")  # looking at a model is no choice
    page.goto(f"{server.url}#/inspect")
    page.wait_for_selector("#files", state="attached")
    assert page.locator("#model").input_value() == ""
    give(page, files["fine"])
    page.locator("#model").select_option("washer")  # the image was kept
    page.wait_for_selector(READY)
    assert server.get("inspections/counts")["total"] == before + 1
    page.reload()
    page.wait_for_selector(".which")
    assert page.locator("#model").input_value() == "washer"


# L10, words


def test_what_is_uncertain_about_the_threshold_stands_under_the_verdict(
    page: Any, server: Server, files: dict[str, Path]
) -> None:
    assert server.get("models/washer")["caveat"] is not None
    inspect(page, server, files["fine"])
    words = page.locator(".top .caveat").inner_text()
    expected = "This model's threshold is provisional: 10 good images leave the false-alarm rate uncertain"
    assert words.startswith(expected)
    assert page.locator(".top .caveat a").get_attribute("href") == "#/models/washer"


def test_a_good_part_is_not_explained_with_alarming_numbers(page: Any, server: Server, files: dict[str, Path]) -> None:
    inspect(page, server, files["fine"])
    page.get_by_role("button", name="Compare with normal patches").click()
    page.wait_for_selector(".pair canvas")
    words = page.locator(".why").inner_text()
    assert "× threshold: below it" in words
    assert "typical distance" not in words


def test_scores_are_told_in_thresholds_and_raw_on_demand(page: Any, server: Server, files: dict[str, Path]) -> None:
    inspect(page, server, files["stain"])
    found = server.get("inspections?limit=1")["inspections"][0]
    words = page.locator(".verdict .words").inner_text()
    assert words == f"{found['score'] / found['threshold']:.2f} × threshold"
    raw = page.locator(".raw dd").first
    assert not raw.is_visible()
    page.get_by_text("Raw values").click()
    assert float(raw.inner_text()) == pytest.approx(found["score"], rel=0.01)


# What is shown first, part details, accessibility


def test_the_empty_view_says_which_model_it_uses(page: Any, server: Server) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    open_inspect(page, server)
    page.locator(".about", has_text="Trained with 10 good images on").wait_for()
    assert "washer" in page.locator(".which").inner_text()
    assert page.get_by_role("button", name="Choose images").count() == 1  # one set of buttons
    assert page.get_by_role("button", name="Camera").count() == 1
    middle = page.eval_on_selector_all(
        ".drop button, .drop", "all => all.map(e => e.getBoundingClientRect()).map(b => (b.left + b.right) / 2)"
    )
    assert max(middle) - min(middle) < 130  # centred, beside or below each other
    centre = page.eval_on_selector(".drop .actions", "e => getComputedStyle(e).justifyContent")
    assert centre == "center"


def test_part_details_are_sent_and_remembered_but_for_the_serial_number(
    page: Any, server: Server, files: dict[str, Path]
) -> None:
    open_inspect(page, server)
    page.get_by_text("Part details").click()
    page.get_by_label("Serial number").fill("SN 1&2")
    page.get_by_label("Lot").fill("A7")
    page.get_by_label("Station").fill("4")
    asked: list[Any] = []
    page.on("request", lambda request: asked.append(request) if "/inspect?" in request.url else None)
    inspect(page, server, files["fine"])
    assert asked[0].url.endswith("?serial=SN+1%262&lot=A7&station=4")
    assert len(asked[0].headers["idempotency-key"]) >= 16
    assert page.get_by_label("Serial number").input_value() == ""
    page.reload()
    page.wait_for_selector(".trace")
    assert "Lot A7" in page.locator(".trace summary").inner_text()
    assert page.locator("#part-serial").input_value() == ""


def test_part_details_are_among_the_facts(page: Any, server: Server, files: dict[str, Path]) -> None:
    inspect(page, server, files["fine"])
    answer = {**server.get("inspections?limit=1")["inspections"][0], "serial": "SN-1", "lot": "A7"}
    page.route(INSPECT, lambda route: route.fulfill(body=json.dumps(answer), content_type="application/json"))
    inspect(page, server, files["fine"])
    facts = page.locator(".facts").first.inner_text()
    assert "SN-1" in facts
    assert "A7" in facts


def test_the_file_input_has_a_name_and_is_not_in_the_tab_order(page: Any, server: Server) -> None:
    open_inspect(page, server)
    assert page.locator("#files").get_attribute("aria-label")
    assert page.locator("#files").get_attribute("tabindex") == "-1"


def test_camera_and_verdict_are_above_the_fold(page: Any, server: Server) -> None:
    open_inspect(page, server)
    page.get_by_role("button", name="Camera").first.click()
    page.wait_for_selector(".camera video")
    until(page, lambda: page.eval_on_selector(".camera video", "e => e.videoWidth") > 0)
    page.get_by_role("button", name="Take and inspect").click()
    page.wait_for_selector(READY)
    for selector in (".camera video", ".camera .main", ".verdict"):
        box = page.locator(selector).bounding_box()
        assert box is not None
        assert box["y"] + box["height"] <= 900, selector
    assert not boxes_overlap(page, ".camera", ".verdict")


def test_a_large_image_is_fetched_downscaled_until_it_is_enlarged(
    page: Any, server: Server, files: dict[str, Path], tmp_path: Path
) -> None:
    large = tmp_path / "large.png"
    with Image.open(files["fine"]) as image:
        made = io.BytesIO()
        image.resize((1800, 1800)).save(made, "PNG")
    large.write_bytes(made.getvalue())
    inspect(page, server, large)
    assert page.eval_on_selector(".picture", "e => e.src").endswith("side=1600")
    page.locator(".frame").focus()
    for _ in range(3):
        page.keyboard.press("+")
    until(page, lambda: page.eval_on_selector(".picture", "e => e.naturalWidth") == 1800)
