/** Learn from false alarms: a preview of what changes, learning, and undoing a model's last change. */

import { api, follow, pictureOf } from "./api.js";
import { announce, complain, count, h, icon, level, number, progress, put, REVIEWS, time, verdictBadge } from "./dom.js";
import { state } from "./state.js";

const SHOWN = 24;
/** Rows of a preview. */
const NOTICEABLE = 0.001;
/** A score that changes by less than this part of the threshold counts as unchanged. */

const TITLES = { preview: "Trying it on a copy of the model", learn: "Learning", undo: "Undoing" };
const KINDS = { train: "training", learn: "learning", preview: "preview", undo: "undoing", threshold: "new threshold", recalibrate: "calibration" };

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

export class Learning {
  constructor(signal) {
    this.signal = signal;
    this.model = null;
    this.turn = 0;
    this.busy = false;
    /** Whether a job or its result is shown: it stays until the user has dealt with it. */
    this.given = new Set();
    /** Jobs that the user has cancelled. */
    this.el = h("section", { class: "card learn", "aria-label": "Learn from false alarms" });
    this.text = h("p", {});
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
    put(this.el, h("h2", {}, "Learn from false alarms"), h("p", { class: "quiet" }, "Loading…"));
  }

  /** Show the state of a model; a job that is shown stays, unless it is another model's. */
  async show(model, said = null) {
    this.wait(model);
    if (this.busy) return;
    const turn = ++this.turn;
    try {
      const [counts, jobs, details] = await Promise.all([this.learnable(), api.jobs({ model, limit: 20 }), api.model(model)]);
      if (!this.is(turn)) return;
      const running = jobs.find((job) => ["learn", "undo", "preview"].includes(job.kind) && ["waiting", "running"].includes(job.state) && !this.given.has(job.id));
      if (running) return void this.watch(running);
      this.draw(counts.total, details.last_change ?? null, said);
    } catch (error) {
      if (this.is(turn)) complain(error);
    }
  }

  learnable() {
    return api.counts({ model: this.model, review: "false_alarm", learned: false });
  }

  /** Count the false alarms again, after a review. */
  async recount() {
    const { turn } = this;
    const counts = await this.learnable().catch(() => null);
    if (counts && this.is(turn) && !this.busy) this.drawCount(counts.total);
  }

  draw(many, change, said) {
    this.preview = h("button", { type: "button", class: "main", onclick: () => this.begin("preview") }, "Preview what changes");
    put(this.el, h("h2", {}, "Learn from false alarms"), this.text,
      state.may("admin") ? h("p", { class: "actions" }, this.preview,
        change && h("button", { type: "button", onclick: () => this.begin("undo", change) }, icon("undo"), undoWords(change)))
        : h("p", { class: "quiet" }, "Learning requires the role admin."),
      said);
    this.drawCount(many);
  }

  drawCount(many) {
    if (!this.preview) return;
    this.preview.hidden = !many;
    this.text.className = many ? "" : "quiet";
    this.text.textContent = many
      ? `${count(many, "false alarm")} of ${this.model} ${many === 1 ? "is" : "are"} reviewed but not learned yet. Learning adds the images to the model's memory of normal parts. It changes nothing else and can be undone.`
      : `There are no new reviewed false alarms of ${this.model} to learn from.`;
  }

  /** Back to the start, with what has happened. */
  reset(kind = null, words = "") {
    this.busy = false;
    const said = kind && h("p", { class: `hint ${kind}`, role: "status" }, icon(kind === "done" ? "good" : "warn"), words);
    return this.show(this.model, said);
  }

  /** Start a job. `given`: the inspections to learn from, or the change to undo. */
  async begin(kind, given = null) {
    const { turn, model } = this;
    try {
      const job = kind === "undo" ? await api.undo(model, { entry: given.entry, identity: given.identity })
        : await api.learn(model, { preview: kind === "preview", inspections: given });
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
    if (ended?.state === "done" && job.kind === "preview") return void this.drawPreview(ended).catch(complain);
    await state.refresh().catch(complain);
    if (!this.is(turn)) return;
    if (ended?.state === "failed") return void this.reset("bad", ended.error);
    if (ended?.state === "cancelled") return void this.reset("done", "Cancelled.");
    if (ended?.state !== "done") return void this.reset();
    this.reset("done", job.kind === "learn" ? `Learned ${count(ended.result.images.length, "image")}. ${ended.model} now treats them as normal.` : "Undone: the model is restored.");
  }

  async drawPreview(job) {
    const { turn } = this;
    const { scores, threshold, threshold_before: before, alarming } = job.result;
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
    const missed = turned.filter((row) => row.review?.verdict === "true_defect");
    const alarms = new Set(alarming.map((name) => name.split("/").at(-1).split(".")[0]));
    const lower = others.filter((row) => row.score - after.get(row.id).score > NOTICEABLE * (threshold || Math.abs(row.score))).length;
    const line = (row) => h("li", { class: missed.includes(row) ? "bad" : null },
      h("img", { src: pictureOf(row.id, 96), alt: "", width: 56, height: 56, loading: "lazy" }),
      h("span", { class: "what" }, h("strong", {}, row.name), row.review && h("small", {}, ` ${REVIEWS[row.review.verdict].toLowerCase()}`)),
      h("span", { class: "change" }, h("small", {}, "Score "), level(row.score, row.threshold), " → ", level(after.get(row.id).score, threshold)),
      h("span", { class: "change" }, verdictBadge(row.verdict), " → ", verdictBadge(after.get(row.id).verdict)));
    const list = (some, caption) => [h("h3", {}, caption), h("ul", { class: "compared" }, some.slice(0, SHOWN).map(line)),
      some.length > SHOWN && h("p", { class: "quiet" }, `and ${(some.length - SHOWN).toLocaleString("en")} more`)];
    const had = this.el.contains(document.activeElement);
    put(this.el, h("h2", { tabindex: "-1" }, "What learning would change"),
      missed.length > 0 && h("p", { class: "hint bad" }, icon("warn"), `${count(missed.length, "true defect")} would no longer be detected. Check them below before you continue.`),
      h("ul", { class: "changes" },
        h("li", {}, before === threshold ? "The threshold stays the same." : `The threshold changes from ${number(before)} to ${number(threshold)}.`),
        h("li", {}, alarms.size ? `${count(alarms.size, "of them", "of them")} would still raise an alarm if a slightly different part came: one example is not enough.` : "Parts that are similar enough to these will no longer raise an alarm."),
        h("li", {}, others.length ? `Of ${count(others.length, "other recent inspection")} ${lower ? `${lower} score lower` : "none changes its score"} and ${turned.length ? `${turned.length} ${turned.length === 1 ? "changes its" : "change their"} verdict` : "none changes its verdict"}.` : "There are no other recent inspections to compare with.")),
      missed.length > 0 && list(missed, `True defects that would be missed: ${missed.length.toLocaleString("en")}`),
      list(learned, `Images to learn: ${learned.length.toLocaleString("en")}`),
      turned.length > missed.length && list(turned.filter((row) => !missed.includes(row)), "Other inspections whose verdict changes"),
      this.decision(job.inspections, missed.length));
    announce("Preview ready");
    if (!had) return;  // somebody who goes on reviewing is not interrupted
    this.el.firstChild.focus({ preventScroll: true });
    this.el.scrollIntoView({ block: "start" });
  }

  /** The buttons under a preview. If true defects would be missed, learning takes a second step. */
  decision(ids, missed) {
    const words = ids.length === 1 ? "Learn this false alarm" : `Learn these ${ids.length.toLocaleString("en")} false alarms`;
    const learn = h("button", { type: "button", class: missed ? null : "main", disabled: missed > 0, onclick: () => this.begin("learn", ids) }, words);
    const not = h("button", { type: "button", class: missed ? "main" : null, onclick: () => this.reset() }, "Not now");
    if (!missed) return h("p", { class: "actions" }, learn, not);
    const accept = h("input", { type: "checkbox", onchange: () => { learn.disabled = !accept.checked; } });
    const second = h("div", { class: "second-step", hidden: true },
      h("label", { class: "check" }, accept, `I accept that ${count(missed, "true defect")} will no longer be found.`), h("p", { class: "actions" }, learn));
    const anyway = h("button", { type: "button", "aria-expanded": "false", onclick: () => {
      second.hidden = !second.hidden;
      anyway.setAttribute("aria-expanded", String(!second.hidden));
      if (!second.hidden) accept.focus();
    } }, "Learn anyway…");
    return h("div", {}, h("p", { class: "actions" }, not, anyway), second);
  }
}
