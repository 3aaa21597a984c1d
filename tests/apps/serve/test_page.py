"""The page in a real browser against a real service: what an operator does, from the first image to a new model."""

from __future__ import annotations

import base64
import json
import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from patchsvdd.apps.demo.dataset import RenderedImage
from patchsvdd.core.presets import DEFAULT
from support.browsing import (
    NEEDS_BROWSER,
    READY,
    SECONDS,
    SIZE,
    Seen,
    Server,
    inspect,
    look,
    names_of_controls,
    score_of,
    set_slider,
)
from support.command_line import run
from support.parts import save_picture
from support.waiting import wait_until

pytestmark = NEEDS_BROWSER
pytest_plugins = ("support.browser_fixtures",)

FAINT = """() => {
  const colour = (text) => {
    const [r, g, b, a = 1] = text.match(/[\\d.]+/g).map(Number);
    return text.startsWith("color(") ? [255 * r, 255 * g, 255 * b, a] : [r, g, b, a];
  };
  const over = ([r, g, b, a], below) => [r, g, b].map((one, index) => a * one + (1 - a) * below[index]);
  const ground = (element) => {
    const below = element.parentElement ? ground(element.parentElement) : [255, 255, 255];
    return over(colour(getComputedStyle(element).backgroundColor), below);
  };
  const light = (rgb) => {
    const [r, g, b] = rgb.map((one) => one / 255 <= 0.04045 ? one / 3294.6 : ((one / 255 + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const found = [];
  let seen = 0;
  const judge = (element, text) => {
    const box = element.getBoundingClientRect(), style = getComputedStyle(element);
    const visible = element.checkVisibility({ opacityProperty: true, visibilityProperty: true });
    if (!visible || box.width < 2 || box.height < 2 || element.closest(":disabled, [aria-disabled=true]")) return;
    let opacity = 1;
    for (let one = element; one; one = one.parentElement) opacity *= Number(getComputedStyle(one).opacity);
    const below = ground(element), [r, g, b, a] = colour(style.color);
    const pair = [light(over([r, g, b, a * opacity], below)), light(below)].sort((one, other) => other - one);
    const contrast = (pair[0] + 0.05) / (pair[1] + 0.05), size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    seen += 1;
    if (contrast < (large ? 3 : 4.5)) found.push(`${contrast.toFixed(2)} ${element.className} ${text}`);
  };
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const words = texts.currentNode.nodeValue.trim();
    if (words) judge(texts.currentNode.parentElement, words);
  }
  for (const one of document.querySelectorAll("input, select, textarea")) judge(one, one.value || one.placeholder);
  return [seen, found];
}"""
"""How many texts there are to read, and those with less contrast than WCAG 2 wants at level AA."""


def test_heat_lies_where_the_defect_is(
    page: Any, server: Server, files: dict[str, Path], pictures: dict[str, RenderedImage]
) -> None:
    inspect(page, server, files["stain"])
    assert page.locator(".verdict .word").inner_text() == "Anomalous"
    assert "Anomalous" in page.locator("#verdict").inner_text()  # said aloud
    page.locator(".check input").uncheck()
    set_slider(page, ".heat input", 0)
    page.wait_for_timeout(400)
    plain = look(page)
    set_slider(page, ".heat input", 100)
    page.wait_for_timeout(400)
    warm = (look(page) - plain)[..., 0] - (look(page) - plain)[..., 2]  # more red, less blue
    mask = pictures["stain"].mask
    assert warm[mask].mean() > 30
    assert warm[mask].mean() > 4 * abs(warm[~mask].mean())
    region = page.locator(".region").first
    region.focus()
    assert page.locator(".box.on").count() == 1
    region.press("Enter")
    assert region.get_attribute("aria-pressed") == "true"
    assert "scale" in page.locator(".inner").get_attribute("style")


def test_why_shows_the_nearest_normal_patches(page: Any, server: Server, files: dict[str, Path]) -> None:
    inspect(page, server, files["stain"])
    page.get_by_role("button", name="Compare with normal patches").click()
    page.wait_for_selector(".pair canvas")
    page.wait_for_timeout(500)
    drawn = page.eval_on_selector_all(
        ".pair canvas",
        "all => all.map(c => new Set(c.getContext('2d').getImageData(0, 0, c.width, c.height).data).size)",
    )
    assert len(drawn) >= 4  # two scales, each with the patch and its nearest
    assert min(drawn) > 20
    assert page.get_by_text("Nearest normal:").count() >= 2


def test_images_come_by_drop_by_paste_and_from_a_camera(page: Any, server: Server, files: dict[str, Path]) -> None:
    page.goto(f"{server.url}#/inspect")
    page.wait_for_selector(".drop")
    give = """([data, kind]) => {
      const bytes = Uint8Array.from(atob(data), c => c.charCodeAt(0));
      const carried = new DataTransfer();
      carried.items.add(new File([bytes], `${kind}.png`, {type: 'image/png'}));
      const said = kind === 'drop' ? new DragEvent('drop', {dataTransfer: carried, bubbles: true, cancelable: true})
        : new ClipboardEvent('paste', {clipboardData: carried, bubbles: true});
      document.body.dispatchEvent(said);
    }"""
    data = base64.b64encode(files["fine"].read_bytes()).decode()
    for number, kind in enumerate(("drop", "paste"), start=1):
        page.evaluate(give, [data, kind])
        page.wait_for_selector(f".strip li:nth-child({number})")
        page.wait_for_selector(READY)
        assert page.locator(".facts dd").first.inner_text() == f"{kind}.png"
    page.get_by_role("button", name="Camera").first.click()
    page.wait_for_selector(".camera video")
    page.wait_for_timeout(500)
    page.get_by_role("button", name="Take and inspect").click()
    page.wait_for_selector(".strip li:nth-child(3)")
    page.wait_for_selector(READY)
    assert page.locator(".facts dd").first.inner_text().startswith("camera-")
    page.get_by_role("button", name="Close camera").click()
    assert page.locator(".camera").is_hidden()


def test_a_bad_file_is_told_in_words(page: Any, server: Server, seen: Seen, tmp_path: Path) -> None:
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"this is no picture")
    page.goto(f"{server.url}#/inspect")
    page.wait_for_selector("#files", state="attached")
    page.set_input_files("#files", str(bad))
    page.wait_for_selector(".verdict.none")
    assert page.locator(".verdict .of").inner_text() == "bad.png"
    assert page.locator(".verdict .words").inner_text().startswith("It is not a PNG")
    assert all("422" in words for words in seen.errors)  # the browser's own line about the answer
    seen.errors.clear()


def test_a_false_alarm_is_reviewed_with_keys_learned_and_undone(
    page: Any, server: Server, files: dict[str, Path], pictures: dict[str, RenderedImage], tmp_path: Path
) -> None:
    negative = save_picture(tmp_path / "negative.png", 255 - pictures["fine"].image)
    for image in (negative, files["stain"], negative, files["stain"]):  # reviewed from the last; the first is left
        inspect(page, server, image)
    before = score_of(page)
    number = server.get("inspections?limit=1")["inspections"][0]["id"]

    def said(words: str) -> None:
        page.locator(".last", has_text=re.compile(f"^{words}$")).wait_for()

    ready = ".keys [data-key=g]:not([aria-disabled])"  # picture and map are on screen
    page.goto(f"{server.url}#/review")
    page.wait_for_selector(ready)
    assert page.locator(".file").inner_text() == "stain.png"
    page.keyboard.press("g")
    said("stain.png: False alarm")
    assert server.get(f"inspections/{number}")["review"]["verdict"] == "false_alarm"
    page.keyboard.press("z")
    said("stain.png: undone")
    assert server.get(f"inspections/{number}")["review"] is None
    page.wait_for_selector(ready)
    page.keyboard.press("g")
    said("stain.png: False alarm")
    page.keyboard.press("n")
    said("negative.png: skipped")
    page.wait_for_selector(ready)
    page.keyboard.press("d")  # one that shows the same was rightly found
    said("stain.png: True defect")

    page.get_by_role("button", name="Preview what changes").click()
    page.get_by_role("button", name="Learn anyway…").click()
    assert page.locator(".learn .hint.bad").inner_text().startswith("1 true defect would no longer be detected")
    assert "The threshold stays the same." in page.locator(".changes").inner_text()
    page.get_by_label("I accept that 1 true defect will no longer be found.").check()
    learn = page.get_by_role("button", name="Learn this false alarm")
    learn.click()
    page.get_by_text("Learned 1 image.").wait_for()
    inspect(page, server, files["stain"])
    after = score_of(page)
    assert after < before / 2
    assert page.locator(".verdict .word").inner_text() == "Good"

    page.goto(f"{server.url}#/review")
    page.get_by_role("button", name="Undo learning 1 image").click()
    page.get_by_text("Undone: the model is restored.").wait_for()
    inspect(page, server, files["stain"])
    assert score_of(page) == pytest.approx(before, rel=0.02)


def test_models_show_what_another_threshold_would_have_meant(page: Any, server: Server) -> None:
    page.goto(f"{server.url}#/models")
    page.wait_for_selector(".gallery img")
    assert page.locator(".gallery img").count() == 10
    page.locator(".gallery img").first.scroll_into_view_if_needed()
    assert page.eval_on_selector(".gallery img", "async e => { await e.decode(); return e.naturalWidth; }") == SIZE
    many = int(page.locator(".meaning tbody tr:first-child td strong").inner_text())
    set_slider(page, "#try", 0)
    everything = page.locator(".meaning tbody tr:first-child td")
    every = int(everything.nth(1).inner_text())
    assert every > many
    assert everything.nth(2).inner_text() in (f"of {every}", f"of {every + 1}")  # one was learned, and scored 0
    set_slider(page, "#try", 1000)
    assert everything.nth(1).inner_text() == "0"
    assert int(everything.nth(0).inner_text()) == many  # what is, stays


def test_a_training_outlives_the_service_and_its_model_inspects(
    page: Any, server: Server, seen: Seen, files: dict[str, Path]
) -> None:
    page.goto(f"{server.url}#/train")
    page.wait_for_selector("form.train")
    page.set_input_files("#good", [str(files[f"good{index}"]) for index in range(6)])
    assert page.locator(".gallery.small li").count() == 6
    page.get_by_label("Name").fill("from-the-page")
    assert page.locator("[name=preset]:checked").input_value() == DEFAULT
    page.locator("[name=preset][value=encoder]").check()
    page.get_by_text("More settings").click()
    page.get_by_label("Image size in pixels").fill("64")
    page.get_by_label("Steps (instead of minutes)").fill("24")
    page.get_by_role("button", name="Start training").click()
    page.wait_for_url("**/#/train/*")
    number = page.url.rsplit("/", 1)[1]
    page.wait_for_selector("table.maps img")  # the first heat maps
    wait_until(lambda: len(server.get(f"jobs/{number}")["losses"]) > 2, SECONDS / 1000)
    seen.away = True
    server.stop()
    steps = [json.loads(line)["step"] for line in (server.data / "jobs" / number / "losses.jsonl").open()]
    assert steps[-1] < 24
    server.start()
    use = page.get_by_role("link", name="Use it")
    use.wait_for(timeout=3 * SECONDS)
    seen.away = False
    steps = [json.loads(line)["step"] for line in (server.data / "jobs" / number / "losses.jsonl").open()]
    assert steps == list(range(1, 25))  # it went on where it was
    heads = page.locator("table.maps thead th").all_inner_texts()
    assert heads[:2] == ["synthetic defect", "before"]
    assert heads[-1] == "finished model"
    assert page.eval_on_selector_all("table.maps img", "all => all.every(e => e.complete && e.naturalWidth > 0)")
    use.click()
    page.wait_for_selector("#files", state="attached")
    assert page.locator("#model").input_value() == "from-the-page"
    page.set_input_files("#files", str(files["fine"]))
    page.wait_for_selector(READY)
    assert server.get("inspections?limit=1")["inspections"][0]["model"] == "from-the-page"


def test_everything_is_reached_without_a_mouse(page: Any, server: Server) -> None:
    page.goto(f"{server.url}#/inspect")
    page.wait_for_selector("#model")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to content"
    reached = []
    for _ in range(12):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.textContent.trim() || document.activeElement.id"))
        ring = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        if reached[-1] in ("Inspect", "Choose images"):
            assert ring == "solid"  # the focus is seen
    wanted = ["Inspect", "History", "Review", "Models", "Train", "Choose images", "Camera"]
    assert [name for name in reached if name in wanted][: len(wanted)] == wanted
    page.locator("#views a", has_text="History").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector(".cell button")
    # A screen reader goes on where the view begins.
    wait_until(lambda: page.evaluate("document.activeElement.tagName") == "H1", 10)
    page.locator(".cell button[tabindex='0']").focus()
    page.keyboard.press("ArrowRight")
    second = page.evaluate("document.activeElement.parentElement.getAttribute('aria-posinset')")
    assert second == "2"
    page.keyboard.press("Enter")
    page.wait_for_selector("dialog[open] .verdict")
    first = page.locator("#detail-title").inner_text(), page.url
    page.keyboard.press("ArrowRight")
    page.wait_for_timeout(300)
    assert page.url != first[1]
    page.keyboard.press("Escape")
    page.wait_for_url("**/#/history")
    assert page.evaluate("document.activeElement.parentElement.getAttribute('aria-posinset')") == "2"
    assert page.url.endswith("#/history")


@pytest.mark.parametrize("view", ["inspect", "history", "review", "models", "train"])
def test_every_control_has_a_name(page: Any, server: Server, view: str) -> None:
    page.goto(f"{server.url}#/{view}")
    page.wait_for_selector(".view h1", state="attached")
    page.wait_for_timeout(600)
    controls = names_of_controls(page)
    assert len(controls) > 6
    assert [role for role, name in controls if not name] == []
    assert page.locator("h1:visible, h1.unseen").count() == 1
    assert page.locator("main").count() == page.locator("header.bar").count() == 1
    assert page.locator("nav[aria-label]").count() >= 1
    assert page.locator(f"#views a[href='#/{view}'][aria-current=page]").count() == 1
    assert page.locator("img:not([alt])").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.set_viewport_size({"width": 820, "height": 1180})
    page.wait_for_timeout(200)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everything_can_be_read(page: Any, server: Server, files: dict[str, Path], scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)
    inspect(page, server, files["fine"], files["stain"])
    for view in ("inspect", "history", "review", "models", "train"):
        page.locator(f"#views a[href='#/{view}']").click()
        page.wait_for_selector(".view h1", state="attached")
        if view == "review":  # its buttons are pale until the picture is there
            page.wait_for_selector(".verdicts button:not([aria-disabled='true'])")
        page.wait_for_timeout(600)
        seen, faint = page.evaluate(FAINT)
        assert seen > 10, view
        assert faint == [], view


def test_a_hundred_thousand_inspections_are_scrolled_through(page: Any, server: Server) -> None:
    with sqlite3.connect(server.data / "inspections.sqlite", timeout=30) as database:
        database.execute(
            "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 99999) "
            "INSERT INTO inspections (id, at, model, identity, name, score, threshold, verdict, regions, traits, "
            "timings, width, height, min_area, media_type, picture_bytes, map_bytes) "
            "SELECT printf('0000%020x', i), 1e9 + i, 'bulk', 'x', 'part-' || i, i % 7, 5, "
            "CASE WHEN i % 7 > 5 THEN 'anomalous' ELSE 'good' END, '[]', '{}', '{}', 64, 64, 0, "
            "'image/png', 0, 0 FROM n"
        )
    page.goto(f"{server.url}#/history")
    page.locator("#name").fill("part-")
    page.locator("#name").press("Enter")
    page.get_by_text("100,000 inspections").wait_for()
    page.wait_for_selector(".cell button")
    assert page.locator(".cell").count() < 150
    assert "part-99999" in page.locator("[aria-posinset='1']").inner_text()
    page.locator(".cell button[tabindex='0']").focus()
    page.keyboard.press("End")
    page.wait_for_selector("[aria-posinset='100000'] button:focus")
    assert "part-0" in page.locator("[aria-posinset='100000']").inner_text()
    assert page.locator(".cell").count() < 150


def test_a_key_opens_the_page(browser: Any, tmp_path: Path) -> None:
    data = tmp_path / "data"
    made = run("key", "add", "line-3", "--role", "review", "--data", data, "--json").json()
    locked = Server(data, options=("--require-key",))
    locked.start()
    context = browser.new_context()
    try:
        page = context.new_page()
        page.goto(locked.url)
        page.wait_for_selector(".sign-in")
        assert page.locator("#views").is_hidden()
        assert page.evaluate("document.activeElement.id") == "key"
        page.keyboard.type("psk_wrong")
        page.keyboard.press("Enter")
        page.get_by_text("this API key is unknown").wait_for()
        page.locator("#key").fill(made["key"])
        page.keyboard.press("Enter")
        page.get_by_text("line-3 · Review").wait_for()
        assert page.locator("#views").is_visible()
        assert page.evaluate("document.cookie") == ""  # no script can read it
        page.locator("#account").click()
        assert page.get_by_role("button", name="Change password").count() == 0
        page.get_by_role("button", name="Sign out").click()
        page.wait_for_selector(".sign-in")
    finally:
        context.close()
        locked.stop()
