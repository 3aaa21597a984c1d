"""Review in a real browser: what is stored belongs to the picture on screen, whatever the network does."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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

PAGES, SEQUENCES, ALARMS = 5, 40, 60
"""Pages that are worked on at the same time, random sequences on each, and alarms of each of its two models."""

DRIVER = """async ({ models, sequences, steps, seed, patience }) => {
  const read = %s;
  const log = [];
  const find = (selector) => document.querySelector(`.view-review ${selector}`);
  const look = (selector) => read(find(selector));
  const model = () => document.getElementById("model")?.value;
  const note = (key) => log.push({ kind: "key", key, picture: look(".stage .picture"), map: look(".stage .map"), model: model() });
  addEventListener("keydown", (event) => note(event.key), true);
  addEventListener("click", (event) => { const one = event.target.closest?.("[data-key]"); if (one) note(one.dataset.key); }, true);
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
    state = (state * 1664525 + 1013904223) %% 4294967296;
    return state / 4294967296;
  };
  const until = async (condition, limit) => { for (const end = Date.now() + limit; !condition() && Date.now() < end;) await sleep(20); };
  const press = (key) => document.body.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
  const usable = () => find(".picture")?.offsetWidth && find("[data-key=g]") && !find("[data-key=g][aria-disabled=true]");
  const turnTo = (name) => {
    const select = document.getElementById("model");
    if (!select) return;
    select.value = name;
    log.push({ kind: "load" });
    select.dispatchEvent(new Event("change"));
  };
  for (let sequence = 0; sequence < sequences; sequence += 1) {
    if (sequence %% 3 === 0) {
      location.hash = "#/train";
      await until(() => document.querySelector(".view-train"), 2000);
      log.push({ kind: "load" });
      location.hash = "#/review";
      await until(() => document.querySelector(".view-review #model"), patience);
    }
    turnTo(models[Math.floor(models.length * chance())]);
    if (chance() < 0.8) await until(usable, patience);
    for (let step = 0; step < steps; step += 1) {
      const what = chance();
      const key = what < 0.3 ? "g" : what < 0.6 ? "d" : what < 0.8 ? "n" : what < 0.92 ? "z" : null;
      if (!key) turnTo(models[Math.floor(models.length * chance())]);
      else if (key !== "z" && chance() < 0.2) document.querySelector(`.view-review [data-key=${key}]`)?.click();
      else press(key);
      await sleep(80 * chance());
      if (chance() < 0.4) await until(usable, patience);
    }
  }
  for (let quiet = 0; quiet < 20; quiet = under_way ? 0 : quiet + 1) await sleep(20);
  return log;
}""" % READ
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
            return connection.execute(sa.select(inspections.c.review).where(inspections.c.id == number)).scalar_one()

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
        if model is not None:
            context.add_init_script(f"localStorage.setItem('patchsvdd.model', '{model}')")
        page.goto(f"{bench.url}{view}")
        return page

    bench.slow.seconds = lambda path: 0.0
    yield make
    bench.slow.seconds = lambda path: 0.0
    for context in contexts:
        context.close()


def drive(pages: list[Any], bench: Bench, **how: Any) -> list[list[dict[str, Any]]]:
    """Run random sequences on all pages at the same time; returns their records."""
    for number, page in enumerate(pages):
        given = {"models": bench.models[2 * number : 2 * number + 2], "seed": 1000 + number, **how}
        page.evaluate(f"(given) => {{ window.driven = null; ({DRIVER})(given).then((log) => {{ window.driven = log; }}); }}", given)
    logs = []
    for page in pages:
        wait_until(lambda page=page: page.evaluate("window.driven !== null"), 3 * SECONDS / 1000, poll=0.3)
        logs.append(page.evaluate("window.driven"))
    return logs


def check(log: list[dict[str, Any]], codes: dict[str, int], before: dict[str, str | None]) -> dict[str, str | None]:
    """Check that each review belongs to the picture and map on screen when its key was pressed; returns the reviews."""
    state, done, last = dict(before), [], None
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
    pages = [open_page("#/train") for _ in range(PAGES)]
    for page in pages:
        page.wait_for_selector(".view-train h1", state="attached")
    state: dict[str, str | None] = dict.fromkeys(codes)
    posts: list[tuple[str, str | None]] = []
    chance = random.Random(3)
    many = 0
    for latency, patience, how in ((3.0, 8000, {"sequences": 1, "steps": 9}), (0.3, 1200, {"sequences": SEQUENCES - 1, "steps": 7})):
        bench.slow.seconds = lambda path, most=latency: 0.005 * int(most / 0.005 * chance.random() ** 2)
        for log in drive(pages, bench, patience=patience, **how):
            state = check(log, codes, state)
            posts += [(one["id"], one["verdict"]) for one in log if one["kind"] == "post"]
            many += sum(one["kind"] == "key" for one in log)
        for page in pages:  # listeners of one run must not see the next
            page.reload()
            page.wait_for_selector(".view h1", state="attached")
    print(f"{many} keys, {len(posts)} reviews")
    assert len(posts) >= PAGES * SEQUENCES / 2
    assert {one: bench.review_of(one) for one in codes} == state
    stored = [one for name in bench.models for one in bench.stored(name)]
    assert sorted(stored, key=str) == sorted(posts, key=str)
