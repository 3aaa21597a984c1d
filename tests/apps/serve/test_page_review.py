"""Review in a real browser: what is stored belongs to the picture on screen, whatever the network does."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from patchsvdd.apps.serve.tables import inspections, reviews
from support.browsing import NEEDS_BROWSER, SECONDS
from support.coded_alarms import READ, Slow, store_alarms
from support.serving import Running, copy_model, running, settings
from support.waiting import wait_until

pytestmark = NEEDS_BROWSER
pytest_plugins = ("support.browser_fixtures",)

PAGES, SEQUENCES, ALARMS = 6, 34, 50
"""Pages that are worked on at the same time, random sequences on each, and alarms of each of its two models."""

DRIVER = """async ({ models, sequences, steps, seed, patience }) => {
  const read = READ;
  const log = [];
  const find = (selector) => document.querySelector(`.view-review ${selector}`);
  const look = (selector) => read(find(selector));
  const model = () => document.getElementById("model")?.value;
  const note = (key) => {
    log.push({ kind: "key", key, picture: look(".stage .picture"), map: look(".stage .map"), model: model() });
  };
  addEventListener("keydown", (event) => note(event.key), true);
  addEventListener("click", (event) => {
    const one = event.target.closest?.("[data-key]");
    if (one) note(one.dataset.key);
  }, true);
  const plain = window.fetch;
  let under_way = 0;
  window.fetch = async (...given) => {
    const [, id] = /inspections\\/(\\w+)\\/review$/.exec(given[0]) ?? [];
    if (id) log.push({ kind: "post", id, verdict: JSON.parse(given[1].body).verdict });
    under_way += 1;
    try { return await plain(...given); } finally { under_way -= 1; }
  };
  const sleep = (milliseconds) => new Promise((resolve) => { setTimeout(resolve, milliseconds); });
  let state = seed;
  const chance = () => {  // uniform in 0 … 1, the same for the same seed
    state = (state * 1664525 + 1013904223) % 4294967296;
    return state / 4294967296;
  };
  const until = async (condition, limit) => {
    for (const end = Date.now() + limit; !condition() && Date.now() < end;) await sleep(20);
  };
  const press = (key) => {
    document.body.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
  };
  const enabled = () => find("[data-key=g]") && !find("[data-key=g][aria-disabled=true]");
  const usable = () => find(".picture")?.offsetWidth && enabled();
  const turnTo = (name) => {
    const select = document.getElementById("model");
    if (!select) return;
    select.value = name;
    log.push({ kind: "load" });
    select.dispatchEvent(new Event("change"));
  };
  for (let sequence = 0; sequence < sequences; sequence += 1) {
    if (sequence % 3 === 0) {
      location.hash = "#/train";
      await until(() => document.querySelector(".view-train"), 2000);
      log.push({ kind: "load" });
      location.hash = "#/review";
      await until(() => document.querySelector(".view-review #model"), patience);
    } else turnTo(models[Math.floor(models.length * chance())]);
    if (chance() < 0.8) await until(usable, patience);
    for (let step = 0; step < steps; step += 1) {
      const what = chance();
      const key = what < 0.3 ? "g" : what < 0.6 ? "d" : what < 0.8 ? "n" : what < 0.92 ? "z" : null;
      if (!key) turnTo(models[Math.floor(models.length * chance())]);
      else if (key !== "z" && chance() < 0.2) document.querySelector(`.view-review [data-key=${key}]`)?.click();
      else press(key);
      await sleep(80 * chance());
      if (chance() < 0.3) await until(usable, patience);
    }
  }
  for (let quiet = 0; quiet < 20; quiet = under_way ? 0 : quiet + 1) await sleep(20);
  return log;
}""".replace("READ", READ)
"""Random sequences of keys, clicks and model changes, with a record of what is on screen at each of them."""


@dataclass
class Bench:
    """A service with latency, and models that are never asked to compute."""

    running: Running
    slow: Slow
    models: list[str]

    @property
    def url(self) -> str:
        return f"{self.running.url}/"

    def alarms(self, model: str, *codes: int, **values: Any) -> dict[int, str]:
        return store_alarms(self.running.service, model, codes, **values)

    def review_of(self, number: str) -> str | None:
        with self.running.service.store.reading() as connection:
            query = sa.select(inspections.c.review).where(inspections.c.id == number)
            found: str | None = connection.execute(query).scalar_one()
        return found

    def stored_ids(self, model: str) -> list[str]:
        """The inspections of a model."""
        with self.running.service.store.reading() as connection:
            return list(connection.execute(sa.select(inspections.c.id).where(inspections.c.model == model)).scalars())

    def stored(self, model: str) -> list[tuple[str, str | None]]:
        """Inspection and verdict of all reviews of a model, in order."""
        query = sa.select(reviews.c.inspection, reviews.c.verdict).join(
            inspections, inspections.c.id == reviews.c.inspection
        )
        query = query.where(inspections.c.model == model).order_by(reviews.c.id)
        with self.running.service.store.reading() as connection:
            return [(one.inspection, one.verdict) for one in connection.execute(query)]


@pytest.fixture(scope="module")
def bench(washer: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("review")
    models = [f"line-{number}" for number in range(2 * PAGES)]
    copies = [copy_model(washer, folder / name) for name in models]
    slow: Slow | None = None

    def around(app: Any) -> Slow:
        nonlocal slow
        slow = Slow(app)
        return slow

    with running(settings(folder / "data", *copies), around) as server:
        assert slow is not None
        yield Bench(server, slow, models)


@pytest.fixture
def open_page(browser: Any, bench: Bench) -> Iterator[Callable[..., Any]]:
    """Open pages, each in a browser profile of its own."""
    contexts = []

    def make(view: str = "", model: str | None = None, **how: Any) -> Any:
        context = browser.new_context(**{"viewport": {"width": 1440, "height": 900}, **how})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(SECONDS)
        if model is not None:  # the model that is chosen at the start
            context.add_init_script(f"localStorage.setItem('patchsvdd.model', '{model}')")
        page.goto(f"{bench.url}{view}")
        return page

    bench.slow.seconds = lambda _: 0.0
    yield make
    bench.slow.seconds = lambda _: 0.0
    for context in contexts:
        context.close()


def drive(pages: list[Any], bench: Bench, **how: Any) -> list[list[dict[str, Any]]]:
    """Run random sequences on all pages at the same time; returns their records."""
    for number, page in enumerate(pages):
        given = {"models": bench.models[2 * number : 2 * number + 2], "seed": 1000 + number, **how}
        page.evaluate(
            f"(given) => {{ window.driven = null; ({DRIVER})(given).then((log) => {{ window.driven = log; }}); }}",
            given,
        )
    logs = []
    for page in pages:
        wait_until(partial(page.evaluate, "window.driven !== null"), 3 * SECONDS / 1000, poll=0.3)
        logs.append(page.evaluate("window.driven"))
    return logs


def some_seconds(chance: random.Random, most: float, _: str) -> float:
    """A random delay up to ``most``; most delays are short."""
    return 0.005 * int(most / 0.005 * chance.random() ** 3)


def late_seconds(late: str, path: str) -> float:
    return 2.0 if path.endswith(late) else 0.0


def both_asked(asked: list[str], number: str) -> bool:
    """Whether picture and map of an inspection were asked for."""
    return sum(number in one for one in asked if one.endswith(("/picture", "/map"))) == 2


def check(log: list[dict[str, Any]], codes: dict[str, int], before: dict[str, str | None]) -> dict[str, str | None]:
    """Check that each review belongs to the picture and map on screen when its key was pressed; returns the reviews."""
    state, last = dict(before), None
    done: list[Any] = []
    verdicts = {"g": "false_alarm", "d": "true_defect", "z": None}
    for entry in log:
        if entry["kind"] == "key":
            last = entry
        elif entry["kind"] == "load":
            done = []
        else:
            assert last is not None
            assert entry["verdict"] == verdicts[last["key"].lower()], (last, entry)
            code = codes[entry["id"]]
            if entry["verdict"] is None:
                assert done.pop() == entry["id"]  # the last review since the model was chosen
            else:
                assert (last["picture"], last["map"]) == (code, code), (last, entry)
                done.append(entry["id"])
            state[entry["id"]] = entry["verdict"]
    return state


def test_a_review_belongs_to_the_picture_on_screen(bench: Bench, open_page: Callable[..., Any]) -> None:
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
    chance = random.Random(3)
    many = 0
    for latency, patience, steps in (
        (3.0, 5000, {"sequences": 1, "steps": 5}),
        (0.3, 1200, {"sequences": SEQUENCES - 1, "steps": 6}),
    ):
        bench.slow.seconds = partial(some_seconds, chance, latency)
        for log in drive(pages, bench, patience=patience, **steps):
            state = check(log, codes, state)
            posts += [(one["id"], one["verdict"]) for one in log if one["kind"] == "post"]
            many += sum(one["kind"] == "key" for one in log)
        for page in pages:  # listeners of one run must not see the next
            page.reload()
            page.wait_for_selector(".view h1", state="attached")
    assert len(posts) >= PAGES * SEQUENCES / 2
    assert {one: bench.review_of(one) for one in codes} == state
    stored = [one for name in bench.models for one in bench.stored(name)]
    assert sorted(stored, key=str) == sorted(posts, key=str)


def review_page(open_page: Callable[..., Any], model: str, **how: Any) -> Any:
    """The view Review of a model, when its list is there."""
    page = open_page("#/review", model=model, **how)
    page.wait_for_selector(".view-review #model")
    assert page.locator("#model").input_value() == model
    return page


def usable(page: Any, code: int | None = None) -> None:
    """Wait until a verdict can be given, on the alarm with this code."""
    if code is not None:
        page.locator(".file", has_text=f"part-{code:05}.png").wait_for()
    page.wait_for_selector(".keys [data-key=g]:not([aria-disabled])")


def posted(page: Any) -> list[str]:
    """The reviews that a page sends from now on, as inspection ids."""
    sent: list[str] = []
    page.on("request", lambda one: sent.append(one.url.split("/")[-2]) if one.url.endswith("/review") else None)
    return sent


def test_no_verdict_before_picture_and_map_are_there(bench: Bench, open_page: Callable[..., Any]) -> None:
    """H1."""
    ids = bench.alarms("line-0", 11, 12)
    for late in ("/picture", "/map"):
        bench.slow.seconds = partial(late_seconds, late)
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
    wait_until(lambda: bench.review_of(ids[11]) == "true_defect")


def test_the_next_picture_is_fetched_before_it_is_needed(bench: Bench, open_page: Callable[..., Any]) -> None:
    """H1: waiting for the picture costs no time."""
    bench.alarms("line-0", 21, 22, 23)
    page = open_page("#/train", model="line-0")
    asked: list[str] = []
    page.on("request", lambda one: asked.append(one.url))
    page.goto(f"{bench.url}#/review")
    usable(page, 21)
    for number in bench.stored_ids("line-0"):
        wait_until(partial(both_asked, asked, number))


def test_a_key_held_down_reviews_one_alarm(bench: Bench, open_page: Callable[..., Any]) -> None:
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


def test_a_picture_that_cannot_be_loaded_is_told(bench: Bench, open_page: Callable[..., Any]) -> None:
    """H1."""
    ids = bench.alarms("line-0", 41, 42)
    page = open_page("#/train", model="line-0")
    page.route(f"**/{ids[41]}/map", lambda route: route.abort())
    page.goto(f"{bench.url}#/review")
    trouble = page.locator(".panel .hint.bad")
    trouble.wait_for()
    sent = posted(page)
    page.keyboard.press("g")
    page.unroute(f"**/{ids[41]}/map")
    trouble.get_by_role("button", name="Try again").click()
    usable(page, 41)
    assert trouble.is_hidden()
    page.route(f"**/{ids[42]}/map", lambda route: route.abort())
    page.keyboard.press("n")
    trouble.wait_for()
    assert sent == []
    trouble.get_by_role("button", name="Next (skip)").click()
    page.get_by_role("heading", name="2 skipped, not reviewed").wait_for()


def test_skipped_alarms_are_not_reviewed(bench: Bench, open_page: Callable[..., Any]) -> None:
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


def test_alarms_that_come_in_meanwhile_are_shown(bench: Bench, open_page: Callable[..., Any]) -> None:
    bench.alarms("line-0", 61)
    page = review_page(open_page, "line-0")
    usable(page, 61)
    bench.alarms("line-0", 62, 61)
    page.keyboard.press("n")
    usable(page, 62)


def test_undo_stays_within_a_model(bench: Bench, open_page: Callable[..., Any]) -> None:
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
    page.get_by_text("Nothing to undo for line-1.").wait_for()
    assert page.locator(".undo").get_attribute("aria-disabled") == "true"
    assert page.locator(".summary").inner_text() == "1 to review"
    assert page.locator(".file").inner_text() == "part-00073.png"
    assert bench.review_of(ids[71]) == "false_alarm"


def test_a_review_under_way_is_in_the_next_list(bench: Bench, open_page: Callable[..., Any]) -> None:
    """H1: the part that is being reviewed does not come back when the model is chosen again."""
    ids = bench.alarms("line-0", 81, 82)
    page = review_page(open_page, "line-0")
    usable(page, 81)
    bench.slow.seconds = lambda path: 1.5 if path.endswith("/review") else 0.0
    page.keyboard.press("d")
    page.keyboard.press("n")  # nothing else happens while it is saved
    page.get_by_text("Saving…").wait_for()
    page.select_option("#what", "unsure")
    page.select_option("#what", "none")
    usable(page, 82)
    assert bench.review_of(ids[81]) == "true_defect"
    assert bench.review_of(ids[82]) is None


def test_shortcuts_are_listed_and_can_be_switched_off(bench: Bench, open_page: Callable[..., Any]) -> None:
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


def test_a_note_is_left_with_enter_and_sent_with_the_verdict(bench: Bench, open_page: Callable[..., Any]) -> None:
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


def test_a_review_that_is_not_saved_is_told(bench: Bench, open_page: Callable[..., Any]) -> None:
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


def test_good_parts_are_confirmed(bench: Bench, open_page: Callable[..., Any]) -> None:
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
    wait_until(lambda: "Good parts to confirm (2)" in page.locator("#what option:not([hidden])").all_text_contents())
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
    wait_until(lambda: asked == [("samples/line-0", {"per_day": 7})])


def test_samples_are_not_offered_if_the_service_has_none(bench: Bench, open_page: Callable[..., Any]) -> None:
    bench.alarms("line-0", 131)
    page = open_page("#/train", model="line-0")
    page.route("**/v1/samples**", lambda route: route.fulfill(status=404, json={"detail": "Not Found"}))
    with page.expect_response("**/v1/samples**"):
        page.goto(f"{bench.url}#/review")
        usable(page, 131)
    assert page.locator("#what option:not([hidden])").all_text_contents() == ["Alarms not reviewed", "Marked unsure"]


def changed(page: Any, change: dict[str, Any] | None) -> None:
    """Let a model say what was changed last."""

    def answer(route: Any) -> None:
        route.fulfill(json={**route.fetch().json(), "last_change": change})

    page.route(re.compile(r"/v1/models/line-\d+$"), answer)


def test_undo_names_the_change_and_is_refused_after_another(bench: Bench, open_page: Callable[..., Any]) -> None:
    """H3."""
    bench.alarms("line-0")
    page = open_page("#/train", model="line-0")
    first = {"entry": 3, "kind": "learning", "at": "2026-01-02T03:04:05Z", "images": 2, "identity": "i3"}
    changed(page, first)
    page.goto(f"{bench.url}#/review")
    undo = page.get_by_role("button", name="Undo learning 2 images")
    undo.wait_for()
    sent: list[Any] = []

    def refuse(route: Any) -> None:
        sent.append(route.request.post_data_json)
        changed(page, {**first, "entry": 4, "kind": "calibration", "images": 0, "identity": "i4"})
        route.fulfill(status=409, json={"detail": "the model was calibrated after that"})

    page.route("**/undo", refuse)
    undo.click()
    page.locator(".learn .hint.bad", has_text="the model was calibrated after that").wait_for()
    assert sent == [{"entry": 3, "identity": "i3"}]
    page.get_by_role("button", name=re.compile("^Undo calibration of 2026-01-02")).wait_for()
    changed(page, None)
    page.select_option("#model", "line-1")
    page.get_by_text("There are no new reviewed false alarms of line-1").wait_for()
    assert page.locator(".learn button:visible").count() == 0


def job(state: str, **more: Any) -> dict[str, Any]:
    """A job as the service answers it."""
    facts = {"id": "0" * 24, "kind": "preview", "model": "line-0", "state": state, "stage": "", "done": 0, "total": 0}
    facts |= {"result": None, "error": None, "created": "2026-01-02T03:04:05Z", "updated": "2026-01-02T03:04:05Z"}
    return {**facts, "by": "local", "inspections": [], "losses": [], "pictures": [], **more}


def test_a_job_that_waits_says_for_what_and_is_cancelled_at_once(bench: Bench, open_page: Callable[..., Any]) -> None:
    """M5."""
    bench.alarms("line-0", 141, review="false_alarm")
    page = open_page("#/train", model="line-0")
    other = {"kind": "train", "model": "washer-2", "seconds_left": 700}
    waiting = job("waiting", waiting_for=other)
    page.route("**/learn", lambda route: route.fulfill(status=202, json=waiting))
    page.route(f"**/jobs/{waiting['id']}", lambda route: route.fulfill(json=waiting))
    page.route("**/cancel", lambda route: route.fulfill(json=waiting))  # as long as the service has not noticed
    page.route("**/jobs?*", lambda route: route.fulfill(json={"jobs": [waiting]}))
    page.goto(f"{bench.url}#/review")
    page.get_by_text("Waiting for the training of washer-2, about 12 min left").wait_for()
    page.get_by_role("button", name="Cancel").click()
    page.locator(".learn .hint", has_text="Cancelled.").wait_for()
    page.get_by_role("button", name="Preview what changes").wait_for()


def preview(page: Any, ids: list[str], learned: str, after: dict[str, tuple[float, str]]) -> None:
    """Let learning ``learned`` have these scores and verdicts as its preview."""
    scores = {f"{one}.png": {"score": score, "verdict": verdict} for one, (score, verdict) in after.items()}
    result = {"scores": scores, "threshold": 1e-6, "threshold_before": 1e-6, "alarming": []}
    done = job("done", result=result, inspections=[learned])
    page.route("**/learn", lambda route: route.fulfill(status=202, json=job("running", inspections=[learned])))
    page.route(f"**/jobs/{done['id']}", lambda route: route.fulfill(json=done))
    assert set(after) == set(ids)


SMALL = {"score": 2e-6, "threshold": 1e-6}
"""Scores as those of the demo: a change may be far smaller than 0.000001 and yet matter."""


def test_a_preview_compares_scores_with_the_threshold(bench: Bench, open_page: Callable[..., Any]) -> None:
    """L6."""
    ids = bench.alarms("line-0", 151, 152, 153, 154, **SMALL)
    for code, verdict in ((151, "false_alarm"), (154, "true_defect")):
        bench.running.service.store.review(ids[code], verdict, "", "me")
    page = open_page("#/train", model="line-0")
    scores = {
        151: (0.0, "good"),
        152: (1.5e-6, "anomalous"),
        153: (2e-6 * (1 - 1e-6), "anomalous"),
        154: (2e-6, "anomalous"),
    }
    preview(page, list(ids.values()), ids[151], {ids[code]: one for code, one in scores.items()})
    page.goto(f"{bench.url}#/review")
    page.get_by_role("button", name="Preview what changes").click()
    page.get_by_text("Of 3 other recent inspections 1 score lower and none changes its verdict.").wait_for()
    assert page.locator(".learn button.main").inner_text() == "Learn this false alarm"


@pytest.mark.parametrize("width", [1440, 390])
def test_learning_that_would_miss_defects_takes_a_second_step(
    bench: Bench, open_page: Callable[..., Any], width: int
) -> None:
    """L7, and before and after in sight on a phone."""
    ids = bench.alarms("line-0", 161, 162, 163, **SMALL)
    for code, verdict in ((161, "false_alarm"), (162, "true_defect"), (163, "true_defect")):
        bench.running.service.store.review(ids[code], verdict, "", "me")
    page = open_page("#/train", model="line-0", viewport={"width": width, "height": 844})
    preview(page, list(ids.values()), ids[161], dict.fromkeys(ids.values(), (1e-07, "good")))
    page.goto(f"{bench.url}#/review")
    page.get_by_role("button", name="Preview what changes").click()
    page.get_by_text("2 true defects would no longer be detected.").wait_for()
    assert page.locator(".learn button.main").all_inner_texts() == ["Not now"]
    learn = page.get_by_role("button", name="Learn this false alarm")
    assert learn.is_hidden()
    inside = "all => all.every(e => e.scrollWidth <= e.clientWidth && e.getBoundingClientRect().right <= innerWidth)"
    assert page.eval_on_selector_all(".compared, .compared li, .compared .change", inside)
    assert page.locator(".compared li").count() == 3
    assert page.locator(".compared li").first.inner_text().count("→") == 2
    page.get_by_role("button", name="Learn anyway…").click()
    assert learn.is_disabled()
    page.get_by_label("I accept that 2 true defects will no longer be found.").check()
    with page.expect_request("**/learn") as asked:
        learn.click()
    assert json.loads(asked.value.post_data) == {"preview": False, "inspections": [ids[161]]}


@pytest.mark.parametrize(("width", "height"), [(1920, 1080), (1440, 900), (820, 1180), (390, 844), (320, 640)])
def test_picture_and_verdicts_are_in_sight_without_scrolling(
    bench: Bench, open_page: Callable[..., Any], width: int, height: int
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
