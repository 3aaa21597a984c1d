/** Learn from what people reviewed: a preview of what changes, the change, and undoing a model's last change. */

import { api, follow, pictureOf } from "./api.js";
import { announce, complain, count, h, icon, level, number, progress, put, REVIEWS, time, verdictBadge } from "./dom.js";
import { state } from "./state.js";

const SHOWN = 24;
/** Rows of a preview. */
const NOTICEABLE = 0.001;
/** A score that changes by less than this part of the threshold counts as unchanged. */

const TITLES = { preview: "Trying it on a copy of the model", "teach-preview": "Trying it on a copy of the model", learn: "Learning", teach: "Teaching", undo: "Undoing" };
const KINDS = { train: "training", learn: "learning", teach: "teaching", preview: "preview", "teach-preview": "preview", undo: "undoing", threshold: "new threshold", recalibrate: "calibration" };

/** A time span in whole minutes, or in seconds if it is short. */
const about = (seconds) => (seconds < 90 ? `about ${Math.max(1, Math.round(seconds))} s` : `about ${Math.round(seconds / 60)} min`);

/** What a job does now, or what it waits for. */
function progressWords(job) {
  const left = job.seconds_left ?? job.waiting_for?.seconds_left ?? null;
  const more = left === null ? "" : `, ${about(left)} left`;
  if (job.state !== "waiting") return `${job.stage}${more}`;
  const other = job.waiting_for;
  const what = other ? `the ${KINDS[other.kind] ?? "work"} of ${other.model}` : "other work";
  return `Waiting for ${what}${more}`;
}

/** Label of the button that undoes a change. */
function undoWords({ kind, images, at }) {
  if (kind === "learning") return `Undo learning ${count(images, "image")}`;
  return `Undo ${kind} of ${time(at)}`;
}

/** Adding false alarms to a model's memory. Others have the same entries. */
export const FALSE_ALARMS = {
  title: "Learn from false alarms",
  review: "false_alarm",
  jobs: ["learn", "undo", "preview"],
  preview: "preview",
  try: "Preview what changes",
  change: "learn",
  start: (model, request) => api.learn(model, request),
  isPossible: () => true,
  role: "Learning requires the role admin.",
  fields: () => null,
  undoes: true,
  words: (many, model) => (many
    ? `${count(many, "false alarm")} of ${model} ${many === 1 ? "is" : "are"} reviewed but not learned yet. Learning adds the images to the model's memory of normal parts. It changes nothing else and can be undone.`
    : `There are no new reviewed false alarms of ${model} to learn from.`),
  done: (job) => `Learned ${count(job.result.images.length, "image")}. ${job.model} now treats them as normal.`,
  heading: "What learning would change",
  /** Whether an inspection's new verdict contradicts its review. */
  isWrong: (row, verdict) => row.review?.verdict === "true_defect" && verdict === "good",
  warning: (many) => `${count(many, "true defect")} would no longer be detected. Check them below before you continue.`,
  wrong: (many) => `True defects that would be missed: ${many.toLocaleString("en")}`,
  accept: (many) => `I accept that ${count(many, "true defect")} will no longer be found.`,
  news: ({ alarming }) => {
    const alarms = new Set(alarming.map((name) => name.split("/").at(-1).split(".")[0]));
    return [alarms.size ? `${count(alarms.size, "of them", "of them")} would still raise an alarm if a slightly different part came: one example is not enough.` : "Parts that are similar enough to these will no longer raise an alarm."];
  },
  moved: "lower",
  images: (many) => `Images to learn: ${many}`,
  button: (many) => (many === 1 ? "Learn this false alarm" : `Learn these ${many.toLocaleString("en")} false alarms`),
  anyway: "Learn anyway…",
};

export class Learning {
  constructor(signal, task = FALSE_ALARMS) {
    this.signal = signal;
    this.task = task;
    this.model = null;
    this.turn = 0;
    this.busy = false;
    /** Whether a job or its result is shown: it stays until the user has dealt with it. */
    this.given = new Set();
    /** Jobs that the user has cancelled. */
    this.el = h("section", { class: `card from-reviews ${task.change}`, "aria-label": task.title });
    this.text = h("p", {});
    this.changed = () => {};
    /** Called when a change of the model has ended. */
  }

  /** Whether what began in `turn` still matters. */
  is(turn) {
    return turn === this.turn && !this.signal.aborted;
  }

  /** Clear what another model has left. */
  wait(model) {
    if (model === this.model) return;
    this.model = model;
    this.turn += 1;
    this.busy = false;
    this.preview = null;
    put(this.el, h("h2", {}, this.task.title), h("p", { class: "quiet" }, "Loading…"));
  }

  /** Show the state of a model; a job that is shown stays, unless it is another model's. */
  async show(model, said = null) {
    this.wait(model);
    if (this.busy) return;
    const turn = ++this.turn;
    try {
      const [counts, jobs, details] = await Promise.all([this.learnable(), api.jobs({ model, limit: 20 }), api.model(model)]);
      if (!this.is(turn)) return;
      this.el.hidden = !this.task.isPossible(details);
      const running = jobs.find((job) => this.task.jobs.includes(job.kind) && ["waiting", "running"].includes(job.state) && !this.given.has(job.id));
      if (running) return void this.watch(running);
      this.draw(counts.total, details.last_change ?? null, said);
    } catch (error) {
      if (this.is(turn)) complain(error);
    }
  }

  learnable() {
    return api.counts({ model: this.model, review: this.task.review, learned: false });
  }

  /** Count the false alarms again, after a review. */
  async recount() {
    const { turn } = this;
    const counts = await this.learnable().catch(() => null);
    if (counts && this.is(turn) && !this.busy) this.drawCount(counts.total);
  }

  draw(many, change, said) {
    this.preview = h("button", { type: "button", class: "main", onclick: () => this.begin(this.task.preview) }, this.task.try);
    this.asked = h("div", {}, this.task.fields());
    put(this.el, h("h2", {}, this.task.title), this.text,
      state.may("admin") ? [this.asked, h("p", { class: "actions" }, this.preview,
        this.task.undoes && change && h("button", { type: "button", onclick: () => this.begin("undo", change) }, icon("undo"), undoWords(change)))]
        : h("p", { class: "quiet" }, this.task.role),
      said);
    this.drawCount(many);
  }

  drawCount(many) {
    if (!this.preview) return;
    this.preview.hidden = !many;
    this.asked.hidden = !many;
    this.text.className = many ? "" : "quiet";
    this.text.textContent = this.task.words(many, this.model);
  }

  /** Back to the start, with what has happened. */
  reset(kind = null, words = "") {
    this.busy = false;
    const said = kind && h("p", { class: `hint ${kind}`, role: "status" }, icon(kind === "done" ? "good" : "warn"), words);
    return this.show(this.model, said);
  }

  /** Start a job. `given`: the inspections to learn from, or the change to undo. */
  async begin(kind, given = null) {
    const { turn, model, task } = this;
    const preview = kind === task.preview;
    if (preview) this.answers = Object.fromEntries([...this.asked.querySelectorAll("input")].map((one) => [one.name, one.value.trim() || undefined]));
    try {
      const job = kind === "undo" ? await api.undo(model, { entry: given.entry, identity: given.identity })
        : await task.start(model, { preview, inspections: given, ...this.answers });
      if (this.is(turn)) await this.watch(job);
    } catch (error) {
      if (!this.is(turn)) return;
      if (error.status === 409) return void this.reset("bad", error.message);
      complain(error);
      this.reset();
    }
  }

  async watch(job) {
    const turn = ++this.turn;
    this.busy = true;
    this.preview = null;
    const bar = h("div", {});
    const cancelled = new AbortController();
    const cancel = h("button", { type: "button", onclick: async () => {
      cancel.disabled = true;
      put(cancel, "Cancelling…");
      try {
        const now = await api.cancel(job.id);
        if (now.state === "running") return;  // the watch below sees its end
      } catch (error) {
        if (error.status !== 409) {
          cancel.disabled = false;
          put(cancel, "Cancel");
          return void complain(error);
        }
      }
      this.given.add(job.id);
      cancelled.abort();
    } }, "Cancel");
    const had = this.el.contains(document.activeElement);
    put(this.el, h("h2", { tabindex: "-1" }, TITLES[job.kind]), bar, h("p", { class: "actions" }, cancel));
    if (had) this.el.firstChild.focus({ preventScroll: true });
    const draw = (now) => { if (this.is(turn)) put(bar, progress(TITLES[job.kind], now.done, now.total), h("p", { class: "quiet" }, progressWords(now))); };
    draw(job);
    const ended = await Promise.race([
      follow(job.id, draw, AbortSignal.any([this.signal, cancelled.signal]), 0.4).catch((error) => { complain(error); return null; }),
      new Promise((resolve) => { cancelled.signal.addEventListener("abort", () => resolve({ state: "cancelled" })); }),
    ]);
    if (!this.is(turn)) return;
    if (ended?.state === "done" && job.kind === this.task.preview) return void this.drawPreview(ended).catch(complain);
    await state.refresh().catch(complain);
    if (!this.is(turn)) return;
    this.changed();
    if (ended?.state === "failed") return void this.reset("bad", ended.error);
    if (ended?.state === "cancelled") return void this.reset("done", "Cancelled.");
    if (ended?.state !== "done") return void this.reset();
    this.reset("done", job.kind === this.task.change ? this.task.done(ended) : "Undone: the model is restored.");
  }

  async drawPreview(job) {
    const { turn, task } = this;
    const { scores, threshold, threshold_before: before } = job.result;
    const after = new Map(Object.entries(scores).map(([file, one]) => [file.split(".")[0], one]));
    const ids = [...after.keys()];
    const rows = new Map();
    for (let at = 0; at < ids.length; at += 8) {
      const some = await Promise.all(ids.slice(at, at + 8).map((id) => api.inspection(id).catch(() => null)));
      if (!this.is(turn)) return;
      for (const row of some) if (row) rows.set(row.id, row);
    }
    const learned = job.inspections.map((id) => rows.get(id)).filter(Boolean);
    const others = ids.filter((id) => !job.inspections.includes(id)).map((id) => rows.get(id)).filter(Boolean);
    const turned = others.filter((row) => row.verdict !== after.get(row.id).verdict);
    const wrong = turned.filter((row) => task.isWrong(row, after.get(row.id).verdict));
    const sign = task.moved === "lower" ? 1 : -1;
    const moved = others.filter((row) => sign * (row.score - after.get(row.id).score) > NOTICEABLE * (threshold || Math.abs(row.score))).length;
    const line = (row) => h("li", { class: wrong.includes(row) ? "bad" : null },
      h("img", { src: pictureOf(row.id, 96), alt: "", width: 56, height: 56, loading: "lazy" }),
      h("span", { class: "what" }, h("strong", {}, row.name), row.review && h("small", {}, ` ${REVIEWS[row.review.verdict].toLowerCase()}`)),
      h("span", { class: "change" }, h("small", {}, "Score "), level(row.score, row.threshold), " → ", level(after.get(row.id).score, threshold)),
      h("span", { class: "change" }, verdictBadge(row.verdict), " → ", verdictBadge(after.get(row.id).verdict)));
    const list = (some, caption) => [h("h3", {}, caption), h("ul", { class: "compared" }, some.slice(0, SHOWN).map(line)),
      some.length > SHOWN && h("p", { class: "quiet" }, `and ${(some.length - SHOWN).toLocaleString("en")} more`)];
    const had = this.el.contains(document.activeElement);
    put(this.el, h("h2", { tabindex: "-1" }, task.heading),
      wrong.length > 0 && h("p", { class: "hint bad" }, icon("warn"), task.warning(wrong.length)),
      h("ul", { class: "changes" },
        h("li", {}, before === threshold ? "The threshold stays the same." : `The threshold changes from ${number(before)} to ${number(threshold)}.`),
        task.news(job.result).map((words) => h("li", {}, words)),
        h("li", {}, others.length ? `Of ${count(others.length, "other recent inspection")} ${moved ? `${moved} score ${task.moved}` : "none changes its score"} and ${turned.length ? `${turned.length} ${turned.length === 1 ? "changes its" : "change their"} verdict` : "none changes its verdict"}.` : "There are no other recent inspections to compare with.")),
      wrong.length > 0 && list(wrong, task.wrong(wrong.length)),
      list(learned, task.images(learned.length.toLocaleString("en"))),
      turned.length > wrong.length && list(turned.filter((row) => !wrong.includes(row)), "Other inspections whose verdict changes"),
      this.decision(job.inspections, wrong.length));
    announce("Preview ready");
    if (!had) return;  // somebody who goes on reviewing is not interrupted
    this.el.firstChild.focus({ preventScroll: true });
    this.el.scrollIntoView({ block: "start" });
  }

  /** The buttons under a preview. If verdicts would become wrong, a second step is needed. */
  decision(ids, wrong) {
    const { task } = this;
    const learn = h("button", { type: "button", class: wrong ? null : "main", disabled: wrong > 0, onclick: () => this.begin(task.change, ids) }, task.button(ids.length));
    const not = h("button", { type: "button", class: wrong ? "main" : null, onclick: () => this.reset() }, "Not now");
    if (!wrong) return h("p", { class: "actions" }, learn, not);
    const accept = h("input", { type: "checkbox", onchange: () => { learn.disabled = !accept.checked; } });
    const second = h("div", { class: "second-step", hidden: true },
      h("label", { class: "check" }, accept, task.accept(wrong)), h("p", { class: "actions" }, learn));
    const anyway = h("button", { type: "button", "aria-expanded": "false", onclick: () => {
      second.hidden = !second.hidden;
      anyway.setAttribute("aria-expanded", String(!second.hidden));
      if (!second.hidden) accept.focus();
    } }, task.anyway);
    return h("div", {}, h("p", { class: "actions" }, not, anyway), second);
  }
}
