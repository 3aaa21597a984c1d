"""Good images least like the others, in a real browser: what is listed, and training again without some of them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from support.browsing import NEEDS_BROWSER, Server, names_of_controls, until

pytestmark = NEEDS_BROWSER
pytest_plugins = ("support.browser_fixtures",)

WIDTHS = (320, 390, 820, 1440)
NUMBER = "0" * 23 + "1"
LONG = "x" * 90 + ".png"
SECTION = ".unusual"


def unusual(many: int, standing_out: int = 1) -> list[dict[str, Any]]:
    """Images as the service lists them: names in order, the first ones stand out."""
    return [
        {
            "image": index,
            "name": f"{index}.png",
            "ratio": round(2.14 - 0.01 * index, 3),
            "stands_out": index < standing_out,
            "at": [0.25, 0.75],
        }
        for index in range(many)
    ]


@pytest.fixture
def details(server: Server) -> dict[str, Any]:
    found: dict[str, Any] = server.get("models/washer")
    return found


def open_model(page: Any, server: Server, details: dict[str, Any], at: str = "") -> None:
    """Show the model with these details."""
    reply = {"status": 200, "content_type": "application/json", "body": json.dumps(details)}
    page.route(re.compile("/v1/models/washer$"), lambda route: route.fulfill(**reply))
    page.goto("about:blank")
    page.goto(f"{server.url}#/models/washer{at}")
    page.wait_for_selector(".view-models .meaning strong")


def leave_out(page: Any, *names: str) -> None:
    for name in names:
        page.get_by_role("checkbox", name=f"Leave out {name}", exact=True).check()
    page.locator(SECTION).get_by_role("button", name=f"Train again without {len(names)} image").click()
    page.wait_for_selector("form.train")


def choose(page: Any, files: dict[str, Path], *names: str) -> None:
    data = files["fine"].read_bytes()
    page.set_input_files("#good", [{"name": name, "mimeType": "image/png", "buffer": data} for name in names])


def send(page: Any) -> list[str]:
    """Start the training; returns the names of the files that the page sends."""
    sent: list[str] = []

    def refuse(route: Any) -> None:
        body = route.request.post_data_buffer.decode(errors="replace")
        sent.extend(re.findall(r'name="files"; filename="(.*?)"', body))
        route.fulfill(status=202, json=job(state="running"))

    page.route(re.compile("/v1/trainings$"), refuse)
    page.get_by_label("Name").fill("washer-2")
    page.get_by_role("button", name="Start training").click()
    until(page, lambda: sent)
    return sent


def job(**values: Any) -> dict[str, Any]:
    facts: dict[str, Any] = {"id": NUMBER, "kind": "train", "model": "washer", "state": "done", "by": "local"}
    facts |= {"stage": "done", "done": 1, "total": 1, "result": None, "error": None}
    facts |= {"created": "2026-03-03T14:03:00Z", "updated": "2026-03-03T14:03:00Z"}
    return {**facts, "inspections": [], "losses": [], "pictures": [], **values}


def answer_job(page: Any, found: dict[str, Any]) -> None:
    short = {key: value for key, value in found.items() if key not in ("inspections", "losses", "pictures")}

    def reply(route: Any) -> None:
        route.fulfill(status=200, json=found if route.request.url.endswith(NUMBER) else {"jobs": [short]})

    page.route(re.compile(rf"/v1/jobs(\?.*|/{NUMBER})?$"), reply)


def test_the_service_lists_what_the_page_shows(page: Any, server: Server, details: dict[str, Any]) -> None:
    assert len(details["unusual"]) == 3  # a tenth, but at least three
    page.goto(f"{server.url}#/models/washer")
    page.wait_for_selector(SECTION)
    shown = page.locator(f"{SECTION} li .file").all_inner_texts()
    assert shown == [one["name"] for one in details["unusual"]]


def test_images_are_listed_with_ring_distance_and_words(page: Any, server: Server, details: dict[str, Any]) -> None:
    open_model(page, server, {**details, "unusual": unusual(3)})
    section = page.locator(SECTION)
    assert "Check whether one of them shows a defect. If so, train again without it." in section.inner_text()
    assert "None of them stands out" not in section.inner_text()
    first, second = section.locator("li").nth(0), section.locator("li").nth(1)
    assert "0.png" in first.inner_text()
    assert "2.1 × the usual" in first.inner_text()
    assert "stands out" in first.inner_text()
    assert "stands out" not in second.inner_text()
    assert first.get_by_role("img", name="Good image 0.png").is_visible()
    first.scroll_into_view_if_needed()  # it is loaded once it is seen
    first.locator("circle").first.wait_for()
    ring, picture = (first.locator(one).first.bounding_box() for one in ("circle", "img"))
    assert ring["x"] + ring["width"] / 2 == pytest.approx(picture["x"] + 0.75 * picture["width"], abs=1)
    assert ring["y"] + ring["height"] / 2 == pytest.approx(picture["y"] + 0.25 * picture["height"], abs=1)
    assert ("checkbox", "Leave out 0.png") in names_of_controls(page)


def test_the_ring_is_at_its_place_in_an_image_that_is_not_square(
    page: Any, server: Server, details: dict[str, Any]
) -> None:
    wide = "<svg xmlns='http://www.w3.org/2000/svg' width='400' height='100'/>"
    page.route(re.compile("/pictures/"), lambda route: route.fulfill(content_type="image/svg+xml", body=wide))
    open_model(page, server, {**details, "unusual": unusual(1)})
    first = page.locator(f"{SECTION} li").first
    first.scroll_into_view_if_needed()  # it is loaded once it is seen
    first.locator("circle").first.wait_for()
    ring, frame = (first.locator(one).first.bounding_box() for one in ("circle", "img"))
    assert ring["x"] + ring["width"] / 2 == pytest.approx(frame["x"] + 0.75 * frame["width"], abs=1)
    assert ring["y"] + ring["height"] / 2 == pytest.approx(frame["y"] + (0.5 - 0.25 / 4) * frame["height"], abs=1)


def test_if_none_stands_out_the_page_says_so(page: Any, server: Server, details: dict[str, Any]) -> None:
    open_model(page, server, {**details, "unusual": unusual(3, standing_out=0)})
    assert "None of them stands out." in page.locator(SECTION).inner_text()


@pytest.mark.parametrize("listed", [[], None])
def test_old_models_show_nothing(page: Any, server: Server, details: dict[str, Any], listed: list[Any] | None) -> None:
    open_model(page, server, {**details, "unusual": listed})
    assert page.locator(SECTION).count() == 0


def test_without_pictures_there_are_names(page: Any, server: Server, details: dict[str, Any]) -> None:
    open_model(page, server, {**details, "unusual": unusual(2), "pictures": 0})
    assert page.locator(f"{SECTION} img").count() == 0
    assert page.locator(f"{SECTION} li .file").all_inner_texts() == ["0.png", "1.png"]
    assert "ring" not in page.locator(SECTION).inner_text()


def test_twelve_are_shown_first_and_then_all(page: Any, server: Server, details: dict[str, Any]) -> None:
    open_model(page, server, {**details, "unusual": unusual(14)})
    items = page.locator(f"{SECTION} li")
    assert items.count() == 12
    page.get_by_role("checkbox", name="Leave out 3.png").check()
    more = page.locator(SECTION).get_by_role("button", name="Show all 14")
    more.press("Enter")
    assert items.count() == 14
    assert more.is_hidden()
    assert page.get_by_role("checkbox", name="Leave out 12.png").evaluate("e => e === document.activeElement")
    assert page.get_by_role("checkbox", name="Leave out 3.png").is_checked()


def test_ticked_images_are_left_out_of_the_upload(
    page: Any, server: Server, details: dict[str, Any], files: dict[str, Path]
) -> None:
    listed = unusual(3)
    listed[1]["name"] = "line 1/Part.png"  # trained from a folder: only the file's name counts
    open_model(page, server, {**details, "unusual": listed})
    button = page.locator(SECTION).get_by_role("button", name="Train again without")
    assert button.is_disabled()
    leave_out(page, "0.png", "line 1/Part.png")
    said = page.locator(".left-out")
    assert "2 images will be left out: 0.png, Part.png" in said.inner_text()
    assert "Choose the same images again" in said.inner_text()
    choose(page, files, "0.png", "1.png", "part.png", "2.png", "3.png")
    assert page.locator(".chosen").inner_text() == "4 images chosen, 1 left out"
    assert "Not among the chosen images: Part.png" in said.inner_text()
    choose(page, files, "Part.png")
    assert page.locator(".chosen").inner_text() == "4 images chosen, 2 left out"
    assert "Not among" not in said.inner_text()
    assert page.locator(".gallery.small img").count() == 4
    page.get_by_role("button", name="Remove 2.png").click()
    choose(page, files, "4.png")
    answer_job(page, job(state="running"))
    assert send(page) == ["1.png", "part.png", "3.png", "4.png"]
    page.wait_for_url(f"**/#/train/{NUMBER}")
    page.locator(".title a").click()
    page.wait_for_selector("form.train:visible")
    assert said.inner_text() == ""  # it was for one training


def test_too_few_images_are_left(page: Any, server: Server, details: dict[str, Any], files: dict[str, Path]) -> None:
    open_model(page, server, {**details, "unusual": unusual(3)})
    leave_out(page, "0.png")
    choose(page, files, "0.png", "1.png", "2.png", "3.png")
    assert "choose at least 4 images" in page.locator("#missing").inner_text()


def test_use_all_images_undoes_it(page: Any, server: Server, details: dict[str, Any], files: dict[str, Path]) -> None:
    open_model(page, server, {**details, "unusual": unusual(3)})
    leave_out(page, "1.png")
    choose(page, files, *(f"{index}.png" for index in range(5)))
    assert page.locator(".chosen").inner_text() == "4 images chosen, 1 left out"
    page.get_by_role("button", name="Use all images").press("Enter")
    assert page.locator(".chosen").inner_text() == "5 images chosen"
    assert page.locator(".left-out").inner_text() == ""
    assert page.evaluate("document.activeElement.textContent") == "New model"
    answer_job(page, job(state="running"))
    assert send(page) == [f"{index}.png" for index in range(5)]


def test_a_running_training_does_not_hide_the_form(page: Any, server: Server, details: dict[str, Any]) -> None:
    answer_job(page, job(state="running", stage="training"))
    open_model(page, server, {**details, "unusual": unusual(3)})
    leave_out(page, "1.png")
    page.locator(".jobs li").wait_for()
    assert page.locator("form.train").is_visible()
    assert "1 image will be left out: 1.png" in page.locator(".left-out").inner_text()


def test_only_administrators_choose_what_to_leave_out(page: Any, server: Server, details: dict[str, Any]) -> None:
    me = {"name": "eve", "role": "inspect", "key_needed": False, "user": False, "may": ["inspect"]}
    page.route(re.compile("/v1/me$"), lambda route: route.fulfill(status=200, json=me))
    open_model(page, server, {**details, "unusual": unusual(14)})
    section = page.locator(SECTION)
    assert section.get_by_role("checkbox").count() == 0
    assert section.get_by_role("button", name="Train again").count() == 0
    assert "ask an administrator to train again without it" in section.inner_text()
    section.get_by_role("button", name="Show all 14").press("Enter")
    assert section.locator("li").nth(12).evaluate("e => e === document.activeElement")


def test_a_finished_training_leads_to_them(page: Any, server: Server, details: dict[str, Any]) -> None:
    words = "2 of 10 good images are unlike the others: 0.png, 1.png. Check for defects"
    result = {"identity": "i", "images": 10, "unusual": ["0.png", "1.png"], "unusual_in_words": words}
    answer_job(page, job(result=result))
    page.goto(f"{server.url}#/train/{NUMBER}")
    hint = page.locator(".job .hint", has_text="unlike the others")
    assert f"{words}." in hint.inner_text()
    reply = {**details, "unusual": unusual(3, standing_out=2)}
    page.route(re.compile("/v1/models/washer$"), lambda route: route.fulfill(status=200, json=reply))
    hint.get_by_role("link", name="Show them").click()
    page.wait_for_selector(SECTION)
    until(page, lambda: page.evaluate("document.activeElement.textContent") == "Good images least like the others")
    for width in (1440, 390):
        page.set_viewport_size({"width": width, "height": 900})
        page.goto("about:blank")
        page.goto(f"{server.url}#/models/washer/unusual")
        page.wait_for_selector(f"{SECTION} h2:focus")
        bar = page.locator(".bar").bounding_box()
        assert bar["height"] <= page.locator(f"{SECTION} h2").bounding_box()["y"] < 450  # not behind the bar


def test_a_training_without_any_says_nothing_of_them(page: Any, server: Server) -> None:
    answer_job(page, job(result={"identity": "i", "images": 10, "unusual": [], "unusual_in_words": None}))
    page.goto(f"{server.url}#/train/{NUMBER}")
    page.locator("h1", has_text="is trained").wait_for()
    assert page.locator(".job .hint:not(.done)").count() == 0


def test_nothing_is_wider_than_the_screen(
    page: Any, server: Server, details: dict[str, Any], files: dict[str, Path]
) -> None:
    listed = unusual(14, standing_out=3)
    listed[0]["name"] = LONG
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        open_model(page, server, {**details, "unusual": listed})
        cut = f"{SECTION} *:not(svg *)"
        count = "all => all.filter(e => e.getBoundingClientRect().right > innerWidth).length"
        assert page.eval_on_selector_all(cut, count) == 0, width
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), width
        leave_out(page, LONG)
        choose(page, files, "1.png")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), width
