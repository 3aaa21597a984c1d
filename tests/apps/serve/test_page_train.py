"""Train in a real browser: what can be promised, ended trainings, progress, the chart, narrow screens."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from patchsvdd.critic.validation import hold_out
from patchsvdd.scoring.calibration import Calibration
from support.browsing import NEEDS_BROWSER, Server

pytestmark = NEEDS_BROWSER
pytest_plugins = ("support.browser_fixtures",)

WIDTHS = (320, 390, 820, 1440, 1920)
NUMBER = "0" * 23 + "1"
JOBS = re.compile(rf"/v1/jobs(\?.*|/{NUMBER})?$")
DETAILS = ("inspections", "losses", "pictures")
LONG = "a-model-name-of-eighty-characters-" + "x" * 46


def job(**values: Any) -> dict[str, Any]:
    """A training as the service answers."""
    facts: dict[str, Any] = {"id": NUMBER, "kind": "train", "model": "washer-2", "state": "running", "by": "local"}
    facts |= {"stage": "training", "done": 4, "total": 2000, "result": None, "error": None}
    facts |= {"created": "2026-03-03T14:03:00Z", "updated": "2026-03-03T14:03:00Z"}
    return {**facts, "inspections": [], "losses": [], "pictures": [], **values}


def losses(*steps: int) -> list[dict[str, Any]]:
    both = {"svdd_loss": 1.0, "position_loss": 2.0}
    return [{"step": step, "steps": 2000, "scales": {"32": both, "64": both}} for step in steps]


def answer_job(page: Any, *states: dict[str, Any]) -> None:
    """Answer requests for a job with these states in turn; the last one stays."""
    left = list(states)

    def reply(route: Any) -> None:
        found: dict[str, Any] = {"jobs": [{k: v for k, v in left[0].items() if k not in DETAILS}]}
        if route.request.url.endswith(NUMBER):
            found = left.pop(0) if len(left) > 1 else left[0]
        route.fulfill(status=200, content_type="application/json", body=json.dumps(found))

    page.route(JOBS, reply)


def open_job(page: Any, server: Server, *states: dict[str, Any]) -> None:
    answer_job(page, *states)
    page.goto("about:blank")
    page.goto(f"{server.url}#/train/{NUMBER}")
    page.wait_for_selector(".job .card")


def open_form(page: Any, server: Server) -> None:
    page.goto(f"{server.url}#/train")
    page.wait_for_selector("form.train")


def ask_for(page: Any, rate: float) -> None:
    """Choose few alarms with a false-alarm rate in per cent."""
    page.get_by_role("radio", name="Few alarms").check()
    page.get_by_label("False-alarm rate in per cent").fill(f"{rate:g}")


def choose(page: Any, files: dict[str, Path], many: int) -> None:
    """Choose as many images, by name alone: the page does not look into them before it sends them."""
    data = files["fine"].read_bytes()
    for first in range(0, many, 100):
        block = range(first, min(many, first + 100))
        page.set_input_files(
            "#good", [{"name": f"{index}.png", "mimeType": "image/png", "buffer": data} for index in block]
        )


@pytest.mark.parametrize(("many", "rate"), [(12, 0.01), (40, 0.01), (40, 0.2), (60, 0.05), (493, 0.01)])
def test_the_promise_before_agrees_with_the_caveat_after(
    page: Any, server: Server, files: dict[str, Path], many: int, rate: float
) -> None:
    """L8: the page asked for 40 images and said afterwards that 1 % requires 99."""
    open_form(page, server)
    ask_for(page, 100 * rate)
    choose(page, files, many)
    said = page.locator(".promised").inner_text()
    held = len(hold_out(many)[1])
    after = Calibration(1.0, rate, tuple(range(held)), "held-out")
    if after.caveat is None:
        assert f"{many} images can guarantee a false-alarm rate of {100 * rate:g} %" in said
        return
    assert f"{many} images cannot guarantee {100 * rate:g} %: {held} of them set the threshold" in said
    required = math.ceil(1 / rate) - 1
    assert f"requires {required} images" in after.caveat
    assert f"requires {required} of them" in said
    best = float(re.search(r"allows ([\d.]+) % at best", said)[1])  # type: ignore[index]
    assert best == pytest.approx(100 * after.smallest_rate, abs=0.05)
    whole = int(re.search(r"([\d,]+) images in all", said)[1].replace(",", ""))  # type: ignore[index]
    assert len(hold_out(whole)[1]) >= required


def test_the_number_asked_for_follows_the_rate(page: Any, server: Server, files: dict[str, Path]) -> None:
    open_form(page, server)
    asked = page.locator(".drop .help")
    assert "Use 60 or more" in asked.inner_text()
    assert "guarantee" not in asked.inner_text()
    page.get_by_role("radio", name="Few alarms").check()
    assert "a false-alarm rate of 1 %, use 495 or more" in asked.inner_text()
    ask_for(page, 5)
    assert "a false-alarm rate of 5 %, use 95 or more" in asked.inner_text()
    page.locator("[name=preset][value=encoder]").check()
    assert "guarantee" not in asked.inner_text()
    choose(page, files, 12)
    assert "Fast guarantees no false-alarm rate" in page.locator(".promised").inner_text()


def test_only_few_alarms_has_a_rate(page: Any, server: Server, files: dict[str, Path]) -> None:
    """A balanced threshold guarantees no rate, so the page must not say that it does."""
    open_form(page, server)
    choose(page, files, 12)
    rate, said = page.get_by_label("False-alarm rate in per cent"), page.locator(".promised")
    assert page.locator("[name=aim]:checked").input_value() == "balanced"
    for aim in ("Balanced", "Few misses"):
        page.get_by_role("radio", name=aim).check()
        assert not rate.is_visible()
        assert said.inner_text() == ""
    ask_for(page, 5)
    assert "12 images cannot guarantee 5 %" in said.inner_text()
    page.get_by_label("Name").fill("washer-2")
    sent: list[str] = []

    def accept(route: Any) -> None:
        sent.append(route.request.post_data_buffer.decode(errors="replace"))
        route.fulfill(status=202, json=job())

    page.route(re.compile("/v1/trainings$"), accept)
    answer_job(page, job())
    for aim, given in (("Few alarms", "0.05"), ("Few misses", None)):
        page.get_by_role("radio", name=aim).check()
        page.get_by_role("button", name="Start training").click()
        page.wait_for_url(f"**/#/train/{NUMBER}")
        assert field(sent[-1], "aim") == aim.lower().replace(" ", "-")
        assert field(sent[-1], "false_alarm_rate") == given
        page.locator(".title a").click()
        page.wait_for_selector("form.train:visible")
        assert page.locator("[name=aim]:checked").input_value() == "balanced"  # the form is empty again
        ask_for(page, 0)  # a wrong value of a field that is not shown does not keep the form from being sent
        choose(page, files, 12)
        page.get_by_label("Name").fill("washer-3")


def field(form: str, name: str) -> str | None:
    """The value of a field in a form as it is sent; None if it is not there."""
    found = re.search(rf'name="{name}"\r\n\r\n(.*?)\r\n', form)
    return found[1] if found else None


def test_the_reason_of_the_grey_button_can_be_read(page: Any, server: Server, files: dict[str, Path]) -> None:
    open_form(page, server)
    start = page.get_by_role("button", name="Start training")
    assert start.is_disabled()
    missing = page.locator("#missing")
    assert missing.inner_text() == "To start, choose at least 4 images and enter a name."
    choose(page, files, 2)
    assert page.get_by_text("2 images chosen").is_visible()
    assert missing.inner_text() == "To start, choose at least 4 images and enter a name."
    ask_for(page, 5)
    assert missing.inner_text() == "To start, enter a name."
    page.get_by_label("Name").fill("washer-2")
    assert start.is_enabled()
    assert missing.inner_text() == ""
    gap = page.locator(".chosen").bounding_box()["y"] - page.locator(".drop").bounding_box()["y"]
    assert gap >= page.locator(".drop").bounding_box()["height"] + 8  # it does not touch the frame


def test_a_wrong_name_is_told_in_plain_words(page: Any, server: Server) -> None:
    open_form(page, server)
    name = page.get_by_label("Name")
    name.fill("washer 2")
    said = page.locator("small.wrong").inner_text()
    assert "for example washer-2" in said
    assert name.evaluate("e => e.validationMessage") == said
    name.fill("washer")
    assert "There is a model named washer already" in page.locator("small.wrong").inner_text()
    name.fill("washer-2")
    assert page.locator("small.wrong").inner_text() == ""


def test_presets_say_what_they_mean(page: Any, server: Server) -> None:
    open_form(page, server)
    choices = page.locator(".radio").all_inner_texts()
    assert [re.split(r"\s{2,}|\n", one)[0] for one in choices] == [
        "Best",
        "Fast",
        "Balanced",
        "Few alarms",
        "Few misses",
    ]
    assert re.search(r"^Best\s+Finds the most defects\. Up to 40 minutes", choices[0])
    assert choices[0].endswith("preset best")
    assert choices[1].startswith("Fast")
    words = page.locator(".view-train").inner_text().lower()
    assert "critic" not in words
    assert "encoder" not in words.replace("preset encoder", "")


@pytest.mark.parametrize(
    ("state", "button", "route"),
    [("failed", "Continue", "continue"), ("cancelled", "Start over", "restart"), ("cancelled", "Continue", "continue")],
)
def test_an_ended_training_can_go_on(page: Any, server: Server, state: str, button: str, route: str) -> None:
    """M4: a training that failed or was cancelled is continued or started over."""
    reason = "the training process was killed: out of memory?"
    ended = job(state=state, stage=state, error=reason if state == "failed" else None, losses=losses(1, 2))
    open_job(page, server, ended)
    page.locator("h1", has_text="Training washer-2").wait_for()
    if state == "failed":
        assert reason in page.locator(".hint.bad").inner_text()
    ordered = []

    def order(one: Any) -> None:
        ordered.append(one.request.url.rsplit("/", 1)[1])
        page.unroute(JOBS)
        answer_job(page, job(done=30))
        one.fulfill(status=202, content_type="application/json", body=json.dumps(job(done=30)))

    page.route(re.compile(rf"/jobs/{NUMBER}/(continue|restart)"), order)
    page.locator(".job").get_by_role("button", name=button).click()
    page.get_by_role("button", name="Cancel training").wait_for()
    assert ordered == [route]


def test_ended_trainings_are_listed_with_reason_and_actions(page: Any, server: Server) -> None:
    answer_job(page, job(state="failed", stage="failed", error="b.png is not an image"))
    open_form(page, server)
    item = page.locator(".jobs li")
    item.wait_for()
    assert "failed" in item.inner_text()
    assert "is not an image" in item.inner_text()
    assert re.search(r"3 March 2026 at \d\d:\d\d", item.inner_text())
    assert item.get_by_role("button").all_inner_texts() == ["Continue", "Start over"]


def test_without_a_training_the_list_says_so(page: Any, server: Server) -> None:
    open_form(page, server)
    page.locator(".jobs", has_text="None yet.").wait_for()


def test_progress_has_one_bar_and_the_time_left(page: Any, server: Server) -> None:
    running = job(fraction=0.34, seconds_left=700.0, losses=losses(1, 2, 3, 4))
    open_job(page, server, running, {**running, "fraction": 0.9, "seconds_left": 20.0, "stage": "threshold"})
    page.get_by_text("34 %, about 12 min left").wait_for()
    assert page.locator("h1").inner_text() == "Training washer-2"
    assert page.locator("progress").count() == 1
    assert page.eval_on_selector("progress", "e => e.value / e.max") == pytest.approx(0.34)
    page.get_by_text("90 %, less than a minute left").wait_for()
    past = page.locator(".stages .past").all_inner_texts()
    assert past[0].startswith("Read the images")
    assert len(past) == 3  # without the part that this training did not have
    assert page.locator(".stages [aria-current=step]").inner_text().startswith("Set the threshold")


def test_progress_is_shown_without_an_estimate(page: Any, server: Server) -> None:
    open_job(page, server, job())
    page.wait_for_selector("progress")
    assert page.eval_on_selector("progress", "e => e.value / e.max") == pytest.approx(4 / 2000)
    assert "4 of 2,000" in page.locator(".stages .now").inner_text()
    assert "No values yet" in page.locator(".losses").inner_text()


def test_the_chart_shows_the_first_steps_of_many(page: Any, server: Server) -> None:
    """At step 4 of 2,000 the points must not lie in the corner."""
    open_job(page, server, job(losses=losses(1, 2, 3, 4)))
    page.wait_for_selector(".losses .points", state="attached")
    box = page.locator(".losses path.loss").first.evaluate("e => e.getBBox().width")
    width = page.locator(".losses .axis").evaluate("e => e.getBBox().width")
    assert box > 0.2 * width
    assert page.locator(".losses .name").text_content() == "step, of 2,000"


def test_errors_are_drawn_in_the_order_of_steps(page: Any, server: Server) -> None:
    """L3: after a resume the line ran backwards."""
    open_job(page, server, job(losses=losses(8, 9, 10, 11, 12, 13, 10, 11, 12)))
    page.wait_for_selector(".losses path.loss", state="attached")
    for line in page.locator(".losses path.loss:not(.points)").all():
        at = [float(one) for one in re.findall(r"[ML]([\d.]+) ", line.get_attribute("d"))]
        assert len(at) == 6
        assert at == sorted(at)


def test_no_row_of_heat_maps_is_cut(page: Any, server: Server) -> None:
    picture = {"status": 200, "content_type": "image/svg+xml", "body": "<svg xmlns='http://www.w3.org/2000/svg'/>"}
    page.route(re.compile("/pictures/"), lambda route: route.fulfill(**picture))
    names = [f"{kind}-{row}.jpg" for kind in ("picture", "step-0000000", "final") for row in (1, 2, 3)]
    open_job(page, server, job(pictures=names))
    page.wait_for_selector("table.maps img")
    inside = page.eval_on_selector(".heatmaps .scroll", "e => [e.scrollHeight, e.clientHeight]")
    assert page.locator("table.maps tbody tr").count() == 3
    assert inside[0] <= inside[1] + 1


def test_nothing_is_wider_than_the_screen(page: Any, server: Server, files: dict[str, Path]) -> None:
    error = f"the image {'y' * 90}.png is damaged"
    ended = job(model=LONG, state="failed", stage="failed", error=error, losses=losses(1, 2, 3))
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        open_job(page, server, ended)
        page.wait_for_selector(".job .hint.bad")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), width
        page.locator(".title a").click()
        page.wait_for_selector("form.train:visible")
        choose(page, files, 70)
        page.get_by_text("More settings").click()
        ask_for(page, 1)
        page.locator("#model-name").fill("w " * 40)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), width
