"""Random keys, clicks and model changes in the view Review, and what they must have led to."""

from __future__ import annotations

from typing import Any

from support.browsing import SECONDS
from support.coded_alarms import READ
from support.waiting import wait_until

Entry = dict[str, Any]

DRIVER = (
    f"async ({{ models, sequences, steps, seed, patience }}) => {{\n  const read = {READ};"
    + """
  const log = [];
  const find = (selector) => document.querySelector(`.view-review ${selector}`);
  const look = (selector) => read(find(selector));
  const note = (key) => log.push({ kind: "key", key, picture: look(".stage .picture"), map: look(".stage .map") });
  addEventListener("keydown", (event) => note(event.key), true);
  addEventListener("click", (event) => {
    const one = event.target.closest?.("[data-key]");
    if (one) note(one.dataset.key);
  }, true);
  const plain = window.fetch;
  let underWay = 0;
  window.fetch = async (...given) => {
    const [, id] = /inspections\\/(\\w+)\\/review$/.exec(given[0]) ?? [];
    if (id) log.push({ kind: "post", id, verdict: JSON.parse(given[1].body).verdict });
    underWay += 1;
    try { return await plain(...given); } finally { underWay -= 1; }
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
  const off = "[data-key=g][aria-disabled=true]";
  const usable = () => find(".picture")?.offsetWidth && find("[data-key=g]") && !find(off);
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
    if (chance() < 0.6) await until(usable, patience);
    for (let step = 0; step < steps; step += 1) {
      const what = chance();
      const key = what < 0.3 ? "g" : what < 0.6 ? "d" : what < 0.8 ? "n" : what < 0.92 ? "z" : null;
      if (!key) turnTo(models[Math.floor(models.length * chance())]);
      else if (key !== "z" && chance() < 0.2) find(`[data-key=${key}]`)?.click();
      else press(key);
      await sleep(80 * chance());
      if (chance() < 0.25) await until(usable, patience);
    }
  }
  for (let quiet = 0; quiet < 20; quiet = underWay ? 0 : quiet + 1) await sleep(20);
  return log;
}"""
)
"""Random sequences of keys, clicks and model changes, with a record of what is on screen at each of them."""


def drive(pages: list[Any], models: list[str], **how: Any) -> list[list[Entry]]:
    """Run random sequences on all pages at the same time, each with two of the models; returns their records."""
    start = """(given) => {
      const keep = (one) => { window.driven = one; };
      keep(null);
      (DRIVER)(given).then(keep, (error) => keep(String(error)));
    }"""
    for number, page in enumerate(pages):
        given = {"models": models[2 * number : 2 * number + 2], "seed": 1000 + number, **how}
        page.evaluate(start.replace("DRIVER", DRIVER), given)
    for page in pages:
        wait_until(_ended(page), 3 * SECONDS / 1000, poll=0.3)
    logs = [page.evaluate("window.driven") for page in pages]
    assert all(isinstance(log, list) for log in logs), logs
    return logs


def _ended(page: Any) -> Any:
    return lambda: page.evaluate("window.driven !== null")


def replay(log: list[Entry], codes: dict[str, int], before: dict[str, str | None]) -> dict[str, str | None]:
    """Check that each review belongs to the picture and map on screen when its key was pressed.

    ``codes``: by inspection. Returns the reviews that the service must have then.
    """
    state, done, last = dict(before), list[str](), Entry()
    verdicts = {"g": "false_alarm", "d": "true_defect", "z": None}
    for entry in log:
        if entry["kind"] == "key":
            last = entry
        elif entry["kind"] == "load":
            done = []
        else:
            assert entry["verdict"] == verdicts[last["key"].lower()], (last, entry)
            if entry["verdict"] is None:
                assert done.pop() == entry["id"]  # the last review since the model was chosen
            else:
                code = codes[entry["id"]]
                assert (last["picture"], last["map"]) == (code, code), (last, entry)
                done.append(entry["id"])
            state[entry["id"]] = entry["verdict"]
    return state
