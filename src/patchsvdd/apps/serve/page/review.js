/** Review: one key per verdict, always for the picture on screen. */

import { api, mapOf, pictureOf } from "./api.js";
import { announce, complain, count, h, icon, put, REVIEWS, time, verdictBadge } from "./dom.js";
import { DrawTools } from "./draw.js";
import { Learning } from "./learning.js";
import { verdictWords } from "./result.js";
import { ReviewQueue } from "./review_queue.js";
import { SampleTools } from "./samples.js";
import { Shortcuts } from "./shortcuts.js";
import { regionList, Stage } from "./stage.js";
import { modelChoice, noModel, state } from "./state.js";
import { CONFIRMED_DEFECTS } from "./teaching.js";

export const title = "Review";
const SETTLE = 200;
/** Milliseconds that a picture is on screen before a verdict is taken: a double press must not hit the next part. */
const LARGE = 1600;
/** Pictures with a longer side are prefetched at this size, as the stage shows them. */
const PREFETCHED = 2;

const DEFECT = { verdict: "true_defect", sign: "anomalous" };
const UNSURE = { verdict: "unsure", words: "Unsure", more: "for later", sign: "unsure", help: "Unsure: decide later" };
const ALARMS = {
  g: { verdict: "false_alarm", words: "Good", more: "a false alarm", sign: "good", help: "Good: a false alarm" },
  d: { ...DEFECT, words: "Defect", more: "a true defect", help: "Defect: correctly found" },
  u: UNSURE,
};
const SAMPLES = {
  g: { verdict: "confirmed_good", words: "Good", more: "confirmed", sign: "good", help: "Good: confirmed" },
  d: { ...DEFECT, words: "Defect", more: "a defect was missed", help: "Defect: it was missed" },
  u: UNSURE,
};

let outbox = Promise.resolve();
/** Settles when the last review has arrived. Lists are fetched only then, so that they include it. */
let reviewed = 0;
/** Reviews since the page was opened. */

export async function mount(root) {
  await state.refresh();
  if (!state.models.length) {
    put(root, noModel());
    return null;
  }
  const view = new ReviewView(root);
  view.load();
  return () => view.leave();
}

class ReviewView {
  constructor(root) {
    this.gone = new AbortController();
    this.turn = 0;
    /** Grows with every load: what an earlier one still waits for is dropped. */
    this.exposure = 0;
    this.armed = false;
    this.now = null;
    this.done = [];
    this.sending = false;
    this.failed = false;
    this.prefetched = [];
    this.exposing = false;
    this.stage = new Stage({ onState: (word) => { if (!this.exposing) this.staged(word); } });
    this.tools = new DrawTools(this.stage);
    this.learning = new Learning(this.gone.signal);
    this.teaching = new Learning(this.gone.signal, CONFIRMED_DEFECTS);
    this.learning.changed = () => this.teaching.show(this.queue.model);
    this.teaching.changed = () => this.learning.show(this.queue.model);
    this.shortcuts = new Shortcuts(() => this.refresh());
    this.samples = new SampleTools((words) => this.load().then(() => this.report(words)));
    this.what = h("select", { id: "what", onchange: () => this.load() },
      h("option", { value: "none" }, "Alarms not reviewed"), h("option", { value: "unsure" }, "Marked unsure"), this.samples.option);
    this.summary = h("p", { class: "summary", role: "status" });
    this.head = h("div", { class: "part-head" });
    this.trouble = h("div", { class: "hint bad", role: "alert", hidden: true }, icon("warn"), h("div", {}, h("p", {}, "The picture or its heat map cannot be loaded."),
      h("p", { class: "actions" }, h("button", { type: "button", onclick: () => this.expose() }, "Try again"), h("button", { type: "button", onclick: () => this.next() }, "Next (skip)"))));
    this.why = h("p", { class: "why-not", id: "keys-why" });
    this.keys = h("div", { class: "keys", role: "group", tabindex: "-1", "aria-label": "Your verdict", onkeydown: (event) => { if (event.repeat) event.preventDefault(); } });
    this.undoButton = h("button", { type: "button", class: "undo", onclick: () => this.undo() }, icon("undo"), "Undo ", h("kbd", {}, "Z"));
    this.last = h("p", { class: "last" });
    this.note = h("input", { id: "note", type: "text", maxlength: 500, autocomplete: "off", enterkeyhint: "done", "aria-describedby": "note-help", onkeydown: (event) => this.noted(event) });
    this.regions = h("section", { class: "part" });
    const verdicts = state.may("review")
      ? [h("div", { class: "verdicts" }, this.keys, h("div", { class: "after" }, this.undoButton, this.last)), this.why,
        h("div", { class: "field note-field" }, h("label", { for: "note" }, "Note (optional)"), this.note, h("p", { class: "help", id: "note-help" }, "Enter leaves the note; then choose a verdict."))]
      : h("p", { class: "hint" }, "Your role does not allow reviews.");
    this.panel = h("div", { class: "panel" }, this.head, this.trouble, verdicts, this.regions);
    this.desk = h("div", { class: "result desk", hidden: true }, h("div", { class: "left" }, this.stage.el), this.panel);
    this.empty = h("div", { class: "card empty" });
    this.root = put(root, h("div", { class: "title review-title" }, h("h1", {}, "Review"), this.summary,
      h("div", { class: "tools" }, modelChoice(() => this.load()), h("div", { class: "field" }, h("label", { for: "what" }, "Show"), this.what), this.samples.form,
        h("button", { type: "button", class: "help-button", "aria-label": "Keyboard shortcuts", onclick: () => this.help() }, h("span", { class: "long" }, "Keyboard shortcuts"), h("span", { class: "short" }, "?")))),
    this.desk, this.empty, this.learning.el, this.teaching.el, this.shortcuts.dialog);
    this.pressed = (event) => this.press(event);
    document.addEventListener("keydown", this.pressed);
  }

  leave() {
    this.gone.abort();
    this.shortcuts.dialog.close();
    document.removeEventListener("keydown", this.pressed);
  }

  /** Whether what began in `turn` still matters. */
  is(turn) {
    return turn === this.turn && !this.gone.signal.aborted;
  }

  get choices() {
    return this.queue.what === "samples" ? SAMPLES : ALARMS;
  }

  // The queue

  async load() {
    const turn = ++this.turn;
    this.queue = new ReviewQueue(state.model, this.what.value);
    this.done = [];
    this.last.textContent = "";
    this.samples.form.hidden = true;
    this.drawKeys();
    this.waitFor("Loading…");
    this.learning.wait(this.queue.model);
    this.teaching.wait(this.queue.model);
    await outbox;
    if (!this.is(turn)) return;
    try {
      await this.queue.fill();
    } catch (error) {
      if (this.is(turn)) this.refuse(error);
      return;
    }
    if (!this.is(turn)) return;
    this.samples.draw(this.queue);
    await this.draw();
    if (!this.is(turn)) return;
    this.learning.show(this.queue.model);  // the picture comes first
    this.teaching.show(this.queue.model);
    this.samples.offer(this.queue.model);
  }

  /** Show nothing but `words`. */
  waitFor(words) {
    this.now = null;
    this.armed = false;
    this.exposure += 1;
    this.summary.textContent = "";
    this.desk.hidden = true;
    this.empty.hidden = false;
    put(this.empty, h("p", { class: "quiet", role: "status" }, words));
    this.refresh();
  }

  refuse(error) {
    put(this.empty, h("h2", {}, "The list cannot be loaded"), h("p", {}, error.message),
      h("p", {}, h("button", { type: "button", class: "main", onclick: () => this.load() }, "Try again")));
  }

  async advance() {
    if (this.queue.items.length) {
      this.draw();
      this.queue.fill().then(() => { this.drawSummary(); this.prefetch(); }, complain);
      return;
    }
    const turn = this.turn;
    this.waitFor("Looking for more…");
    try {
      await this.queue.refill();
    } catch (error) {
      if (this.is(turn) && !this.now) this.refuse(error);
      return;
    }
    if (this.is(turn) && !this.now) this.draw();
  }

  // What is shown

  async draw() {
    const now = this.queue.items[0] ?? null;
    this.now = now;
    this.desk.hidden = !now;
    this.empty.hidden = Boolean(now);
    this.drawSummary();
    if (!now) {
      this.exposure += 1;
      this.refresh();
      return void await this.drawEmpty();
    }
    this.note.value = "";
    this.tools.show(now, now.review?.verdict === "unsure");
    put(this.head, h("div", { class: "line" }, verdictBadge(now.verdict), h("span", {}, verdictWords(now))),
      h("h2", { class: "file" }, now.name), h("p", { class: "quiet" }, time(now.at)));
    put(this.regions, h("h2", {}, "Regions"), regionList(this.stage, now));
    await this.expose();
  }

  /** Put the current part on the stage. */
  async expose() {
    const exposure = this.staged("loading");
    this.exposing = true;
    const shown = this.stage.show(this.now).catch(() => false);
    this.exposing = false;
    const word = await shown ? "ready" : "failed";
    if (exposure === this.exposure && !this.gone.signal.aborted) this.staged(word);
  }

  /** The stage is "loading", "ready" or "failed". The keys work soon after picture, map and boxes are there. */
  staged(word) {
    const exposure = ++this.exposure;
    this.armed = false;
    this.failed = word === "failed";
    this.tools.draw();
    this.refresh();
    if (word !== "loading") this.prefetch();
    if (word === "ready") setTimeout(() => {
      this.armed = exposure === this.exposure;
      this.refresh();
    }, SETTLE);
    return exposure;
  }

  /** Fetch the next pictures and maps, so that they appear at once. */
  prefetch() {
    this.prefetched = this.queue.items.slice(1, 1 + PREFETCHED).flatMap((one) => {
      const side = Math.max(...one.image_size) > LARGE ? LARGE : null;
      return [pictureOf(one.id, side), one.has_map && mapOf(one.id)].filter(Boolean).map((source) => Object.assign(new Image(), { src: source }));
    });
  }

  drawSummary() {
    const { left, skipped, what } = this.queue;
    const open = Math.max(0, left - skipped);
    const words = `${open.toLocaleString("en")} to ${what === "samples" ? "confirm" : "review"}`;
    this.summary.textContent = this.now ? `${words}${skipped ? ` · ${skipped.toLocaleString("en")} skipped` : ""}` : "";
  }

  async drawEmpty() {
    const { turn } = this;
    const { left, skipped, lost, model, what } = this.queue;
    const again = h("button", { type: "button", class: "main", onclick: () => this.load() }, skipped ? "Show the skipped ones again" : "Show them again");
    const links = h("p", { class: "quiet" }, h("a", { href: "#/inspect" }, "Inspect images"), " · ", h("a", { href: "#/history" }, "Open the history"));
    const kept = h("p", { class: "quiet" }, reviewed ? `You have reviewed ${count(reviewed, "part")} since you opened this page.` : "");
    const open = Math.max(0, left - lost);
    if (open && skipped) put(this.empty, h("h2", {}, icon("unsure"), `${skipped.toLocaleString("en")} skipped, not reviewed`), h("p", {}, `You have seen all that is left of ${model}.`), h("p", {}, again));
    else if (open) put(this.empty, h("h2", {}, icon("unsure"), what === "none" ? `${open.toLocaleString("en")} not reviewed` : `${open.toLocaleString("en")} still marked unsure`), h("p", {}, again));
    else if (left) put(this.empty, h("h2", {}, icon("unsure"), `${count(lost, "alarm")} without a picture`), h("p", {}, "Their pictures are no longer kept, so they cannot be reviewed here. All others are reviewed."));
    else put(this.empty, h("h2", {}, icon("good"), what === "samples" ? "Nothing to confirm" : what === "unsure" ? "None marked unsure" : "All reviewed"), h("p", {}, {
      none: `All alarms of ${model} are reviewed.`,
      unsure: `No alarm of ${model} is marked unsure.`,
      samples: `All good parts of ${model} that were drawn for review are reviewed. More are drawn every day.`,
    }[what]));
    if (this.done.length) this.empty.append(h("p", { class: "quiet" }, `${this.last.textContent} `, h("button", { type: "button", onclick: () => this.undo() }, icon("undo"), "Undo")));
    this.empty.append(kept, links);
    announce(this.empty.querySelector("h2").textContent);
    const counts = await api.counts({ model, verdict: "anomalous" }).catch(() => null);
    if (!counts || !this.is(turn) || this.now) return;
    const of = Object.entries(counts.review ?? {}).filter(([name, many]) => name in REVIEWS && many);
    if (of.length) kept.prepend(`${count(counts.total, "alarm")} of ${model} so far: ${of.map(([name, many]) => `${many.toLocaleString("en")} ${REVIEWS[name].toLowerCase()}`).join(", ")}. `);
  }

  drawKeys() {
    const button = (key, sign, words, more, act) => h("button", { type: "button", class: `key ${sign}`, "data-key": key, onclick: act },
      icon(sign), h("span", {}, h("strong", {}, words), h("small", {}, more)), h("kbd", {}, key.toUpperCase()));
    const say = (one) => (event) => { if (event.detail < 2) this.say(one); };  // the second click of a double click is none
    put(this.keys, Object.entries(this.choices).map(([key, one]) => button(key, one.sign, one.words, one.more, say(one))),
      button("n", "right", "Next", "skip", () => this.next()));
  }

  /** Switch the buttons on or off, and say why they are off. */
  refresh() {
    const why = this.sending ? "Saving…" : this.failed ? "No verdict without the picture." : this.armed ? "" : "Loading the picture…";
    this.why.textContent = why;
    this.trouble.hidden = !this.failed;
    this.keys.setAttribute("aria-busy", String(Boolean(why)));
    for (const one of [...this.keys.children, this.undoButton]) {
      const { key } = one.dataset;
      const off = one === this.undoButton ? this.sending || !this.done.length : key === "n" ? this.sending : Boolean(why);
      one.toggleAttribute("aria-disabled", off);
      if (off) one.setAttribute("aria-disabled", "true");
      if (off && key) one.setAttribute("aria-describedby", "keys-why");
      else one.removeAttribute("aria-describedby");
      if (this.shortcuts.on) one.setAttribute("aria-keyshortcuts", key ?? "z");
      else one.removeAttribute("aria-keyshortcuts");
    }
    this.desk.classList.toggle("no-shortcuts", !this.shortcuts.on);
  }

  // What the user does

  /** The part whose picture, map and boxes are on screen; null if there is none, or a review is being sent. */
  onScreen() {
    const { now, stage } = this;
    if (!now || !this.armed || this.sending || !stage.ready || stage.inspection?.id !== now.id || now.model !== this.queue.model) return null;
    const box = stage.el.getBoundingClientRect();
    const seen = Math.min(box.bottom, innerHeight) - Math.max(box.top, 0);
    if (seen >= Math.min(box.height, innerHeight) / 3) return now;
    stage.el.scrollIntoView({ block: "center" });
    this.report("Look at the picture, then choose again.");
    return null;
  }

  async say({ verdict }) {
    const now = state.may("review") ? this.onScreen() : null;
    if (!now) return;
    if (verdict !== "unsure" && verdict !== "true_defect" && !this.tools.isEmpty) {
      this.report("A defect is marked: clear the drawing first, or choose Defect.");
      return;
    }
    const { turn } = this;
    if (!await this.send(now, verdict, this.note.value.trim(), this.tools.unsaved)) return;
    reviewed += 1;
    if (!this.is(turn)) return;
    this.done.push({ inspection: now, fewer: this.queue.remove(now, verdict) });
    this.report(`${now.name}: ${REVIEWS[verdict]}`, true);
    this.advance();
    this.learning.recount();
    this.teaching.recount();
  }

  next() {
    if (!this.now || this.sending) return;
    if (this.tools.unsaved) {
      this.report("The drawing is not saved: choose Defect, or undo the drawing first.");
      return;
    }
    const skipped = this.queue.skip();
    this.done.push({ inspection: skipped, skipped: true });
    this.report(`${skipped.name}: skipped`, true);
    this.advance();
  }

  async undo() {
    if (this.sending || !state.may("review")) return;
    const before = this.done.at(-1);
    if (!before) return void this.report(`Nothing to undo for ${this.queue.model}.`);
    const { turn } = this;
    if (!before.skipped) {
      const had = before.inspection.review;
      if (!await this.send(before.inspection, had?.verdict ?? null, had?.note ?? "")) return;
      reviewed = Math.max(0, reviewed - 1);
      if (!this.is(turn)) return;
    }
    this.done.pop();
    this.queue.restore(before);
    this.report(`${before.inspection.name}: undone`, true);
    this.draw();
    this.learning.recount();
    this.teaching.recount();
  }

  /** Send a verdict, after what was drawn. Until it has arrived no other is taken. Returns whether it was stored. */
  async send(inspection, verdict, note, drawing = null) {
    this.sending = true;
    const answer = drawing ? api.annotate(inspection.id, drawing).then(() => api.review(inspection.id, verdict, note)) : api.review(inspection.id, verdict, note);
    outbox = answer.catch(() => null);
    this.refresh();
    try {
      await answer;
      return true;
    } catch (error) {
      complain(Object.assign(new Error(`${inspection.name}: the review was not saved. ${error.message}`), { status: error.status }));
      return false;
    } finally {
      this.sending = false;
      this.refresh();
    }
  }

  report(words, next = false) {
    this.last.textContent = words;
    const following = next ? this.queue.items[0] : null;
    announce(following ? `${words}. Next: ${following.name}, ${verdictWords(following)}` : words);
  }

  /** Enter in the note moves on to the verdicts and chooses none. */
  noted(event) {
    if (event.key !== "Enter" || event.isComposing) return;
    event.preventDefault();
    this.keys.focus();
  }

  press(event) {
    const key = this.shortcuts.keyOf(event);
    if (!key || !this.root.isConnected || this.gone.signal.aborted || !(key in ALARMS || ["n", "z", "?"].includes(key))) return;
    event.preventDefault();
    if (event.repeat) return;  // a key that is held down is pressed once
    if (key === "?") this.help();
    else if (key === "n") this.next();
    else if (key === "z") this.undo();
    else this.say(this.choices[key]);
  }

  help() {
    const verdicts = Object.entries(this.choices).map(([key, one]) => [key.toUpperCase(), one.help]);
    this.shortcuts.open([...verdicts, ["N", "Next, without a verdict"], ["Z", "Undo the last verdict or skip"], ["?", "Show this list"],
      ["P B R E M", "While you draw: polygon, box, brush, eraser, move"], ["Ctrl+Z", "While you draw: undo; with Shift redo"]]);
  }
}
