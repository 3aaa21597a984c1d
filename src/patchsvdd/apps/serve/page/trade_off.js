/** False alarms against missed defects: the operating point of a model, another one, one from reviews, and calibrating again. */

import { ROLE_NAMES } from "./account.js";
import { api, follow } from "./api.js";
import { formDialog } from "./dialogs.js";
import { announce, complain, count, h, icon, level, number, percent, progress, put, s } from "./dom.js";
import { state } from "./state.js";
import { inWords, tradeOffChart } from "./trade_off_chart.js";
import { AIMS, moment, sentence } from "./words.js";

const KINDS = { threshold: "Setting the threshold", recalibrate: "Calibrating", undo: "Undoing" };
const CONTRASTS = { plain: "Plain", visible: "Visible", faint: "Faint" };
const ADMIN = `Changing the threshold requires the role ${ROLE_NAMES.admin}. You can try thresholds here; nothing is changed.`;

/** The section of a model. `onChanged` is called with words when the model was changed; it draws the view again. */
export class TradeOff {
  constructor({ model, facts, reviewed, again, scores, signal, onChanged }) {
    Object.assign(this, { model, facts, reviewed, again, scores: scores.score, signal, onChanged });
    this.el = h("section", { class: "card trade", "aria-labelledby": "trade-title" });
    this.title = h("h2", { id: "trade-title", tabindex: "-1" }, "False alarms against missed defects");
    this.draw();
  }

  /** Draw the section, with what has happened. */
  draw(said = null) {
    const { facts } = this;
    put(this.el, this.title, said, this.shift(), facts.estimated ? this.choice() : this.nothing(), this.fromReviews(), this.undoLine(), this.calibrateAgain());
  }

  /** A hint if images have changed since calibration. */
  shift() {
    const { changes, higher } = this.again;
    if (!changes.length) return null;
    const what = [...new Set(changes.map((one) => `${one.meaning} (${one.direction})`))].join("; ");
    return h("div", { class: "hint shift" }, icon("warn"), h("div", {},
      h("p", {}, h("strong", {}, higher ? "Recent parts score higher than those of the calibration did." : "Images have changed since calibration.")),
      h("p", {}, `${higher ? "Expect more false alarms than this chart says. " : ""}What changed: ${what}.`),
      h("p", {}, "Check light, focus and camera first. If the change is meant to stay, calibrate again with parts that were confirmed as good since then.")));
  }

  /** What is shown of a model whose misses are not estimated. */
  nothing() {
    return h("div", { class: "trade-none" }, h("p", {}, h("strong", {}, "Train or calibrate again to estimate misses.")),
      h("p", { class: "quiet" }, sentence(this.facts.reason ?? "misses are not estimated")));
  }

  choice() {
    const { facts } = this;
    const { curve } = facts;
    const indexOf = (threshold) => curve.findIndex((one) => one.threshold === threshold);
    this.now = indexOf(facts.threshold);
    this.at = this.now;
    this.aims = facts.aims.map((one) => ({ ...one, index: one.threshold === null ? -1 : indexOf(one.threshold) }));
    this.chart = tradeOffChart(curve, this.now, (index) => this.show(index, index === this.now ? facts.aim : null));
    this.live = h("p", { class: "trade-live" });
    this.table = h("div", { class: "trade-table" });
    this.basis = h("p", { class: "help" });
    this.buttons = this.aims.map((one) => h("button", { type: "button", "data-aim": one.aim, disabled: one.index < 0, title: one.reason, onclick: () => this.jump(one.index, one.aim) }, AIMS[one.aim]));
    this.back = h("button", { type: "button", onclick: () => this.jump(this.now, facts.aim) }, "Back to the present");
    this.apply = h("button", { type: "button", class: "main", "aria-describedby": "trade-why", onclick: () => this.confirm() }, "Apply");
    this.why = h("p", { class: "quiet", id: "trade-why" });
    const key = (name, words) => h("li", {}, s("svg", { width: 26, height: 10, "aria-hidden": "true" }, s("line", { class: name, x1: 1, x2: 25, y1: 5, y2: 5 })), words);
    const part = [h("p", {}, sentence(facts.sentence.replace(facts.guarantee, "").replace(/^[.\s]+/, ""))),  // the guarantee is in the card above
      h("div", { class: "trade-aims", role: "group", "aria-label": "Thresholds to choose from" }, this.buttons, this.back),
      this.chart.el,
      h("ul", { class: "trade-key" }, key("false-alarms", "good parts that raise a false alarm"), key("missed", "visible synthetic defects that are missed"), key("present", "present threshold")),
      h("p", { class: "help", id: "trade-keys" }, "Drag the handle, or use the arrow keys. To the left: more alarms, fewer misses. To the right: fewer alarms, more misses."),
      this.live, this.table,
      this.basis,
      h("div", { class: "actions" }, this.apply, this.why)];
    this.show(this.now, facts.aim);
    return part;
  }

  jump(index, aim) {
    this.chart.set(index);
    this.show(index, aim);
    announce(inWords(this.facts.curve[index], this.facts.threshold));
  }

  /** What the threshold at the handle would mean; `aim` is the one it was chosen for, if any. */
  show(index, aim) {
    [this.at, this.aim] = [index, aim];
    const { curve, threshold, good, varied, defects } = this.facts;
    const point = curve[index];
    const same = index === this.now;
    const above = (limit) => this.scores.filter((score) => score > limit).length;
    const recent = this.scores.length > 0 && ` Of the last ${count(this.scores.length, "inspection")}, ${above(point.threshold).toLocaleString("en")} would raise an alarm${same ? "" : ` (now ${above(threshold).toLocaleString("en")})`}.`;
    put(this.live, h("strong", {}, same ? "At the present threshold: " : `At ${number(point.threshold / threshold)}× the present threshold: `),
      "about ", h("strong", { class: "false-alarms" }, percent(point.false_alarms)), " false alarms, ", h("strong", { class: "missed" }, percent(point.missed)), " of visible synthetic defects missed", same ? "." : ` (now ${percent(curve[this.now].false_alarms)} and ${percent(curve[this.now].missed)}).`, recent);
    put(this.table, this.classes(point));
    this.buttons.forEach((button, place) => button.setAttribute("aria-pressed", String(this.aims[place].aim === aim)));
    this.back.disabled = same && aim === this.facts.aim;
    const copies = varied > 0 && `, ${count(varied, "copy of them", "copies of them")} with other light, place and focus`;
    put(this.basis, `Estimated with ${count(good, "good image")} (${point.above} above this threshold)`, copies, ` and ${count(defects, "synthetic defect")}. Real parts and defects may differ.`);
    const may = state.may("admin");
    this.apply.disabled = this.order() === null || !may;
    this.why.textContent = !may ? ADMIN : this.apply.disabled ? "Nothing is changed yet: move the handle, or choose a threshold above." : "Sets this threshold for all further inspections. It can be undone.";
  }

  /** Missed defects by contrast (rows) and size (columns). */
  classes(point) {
    const { classes } = this.facts;
    const sizes = [...new Set(classes.map((one) => one.smallest))].sort((a, b) => a - b).map((smallest) => classes.find((one) => one.smallest === smallest));
    const size = ({ smallest, largest }) => (smallest === 0 ? `under ${largest} px` : largest === null ? `${smallest} px or more` : `${smallest} to ${largest} px`);
    const cell = (contrast, { smallest }) => {
      const index = classes.findIndex((one) => one.contrast === contrast && one.smallest === smallest);
      return h("td", { class: "figure" }, index < 0 ? "–" : [h("strong", {}, String(point.classes[index])), ` of ${classes[index].count}`]);
    };
    return h("table", {}, h("caption", {}, "Missed synthetic defects by size and contrast"),
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Contrast"), sizes.map((one) => h("th", { scope: "col", class: "figure" }, size(one))))),
      h("tbody", {}, Object.keys(CONTRASTS).filter((contrast) => classes.some((one) => one.contrast === contrast)).map((contrast) => h("tr", {}, h("th", { scope: "row" }, CONTRASTS[contrast]), sizes.map((one) => cell(contrast, one))))));
  }

  /** What to ask the service for: an aim, or the value that the handle was moved to; null if nothing is changed. */
  order() {
    if (this.at === this.now && this.aim === this.facts.aim) return null;
    return this.aim ? { aim: this.aim } : { threshold: this.facts.curve[this.at].threshold };
  }

  confirm() {
    const { curve, identity } = this.facts;
    const order = this.order();
    this.ask({ ...order, identity }, order.aim ? `The threshold for “${AIMS[order.aim]}”.` : "The threshold that you chose.", curve[this.now], curve[this.at],
      { "False alarms": (one) => percent(one.false_alarms), "Visible synthetic defects missed": (one) => percent(one.missed) });
  }

  /** Ask before another threshold is set; `shown`: what to compare of the two, by name. */
  async ask(order, words, before, after, shown) {
    const row = ([name, value]) => h("tr", {}, h("th", { scope: "row" }, name), h("td", { class: "figure" }, value(before)), h("td", { class: "figure" }, h("strong", {}, value(after))));
    const body = [h("p", {}, words, " All further inspections use it; earlier ones stay as they are. It can be undone."),
      h("table", { class: "trade-compared" }, h("thead", {}, h("tr", {}, ["Estimate", "now", "then"].map((name, index) => h("th", { scope: "col", class: index ? "figure" : null }, name)))),
        h("tbody", {}, Object.entries({ Threshold: (one) => level(one.threshold, before.threshold), ...shown }).map(row)))];
    const { name } = this.model;
    const job = await formDialog(`Change the threshold of ${name}?`, body, { action: "Change it", send: () => api.setThreshold(name, order) });
    if (job) this.watch(job);
  }

  /** The threshold that reviews suggest, or what is missing for a proposal. */
  fromReviews() {
    const { proposal, reason } = this.reviewed;
    if (this.facts.threshold === null) return null;
    const title = h("h3", {}, "From reviews");
    if (!proposal) return h("div", { class: "trade-reviews" }, title, h("p", { class: "quiet" }, sentence(reason)));
    const rate = ({ estimate, low, high }) => h("td", { class: "figure" }, h("strong", {}, percent(estimate)), h("small", {}, `${percent(low)} to ${percent(high)}`));
    const row = (name, one) => h("tr", {}, h("th", { scope: "row" }, name), h("td", { class: "figure" }, level(one.threshold, proposal.current.threshold)), rate(one.false_alarms), rate(one.misses));
    const same = proposal.threshold === proposal.current.threshold;
    return h("div", { class: "trade-reviews" }, title,
      h("p", {}, sentence(proposal.conclusion)),
      h("div", { class: "trade-table" }, h("table", {}, h("caption", {}, `Expected, with ${percent(proposal.confidence)} intervals`),
        h("thead", {}, h("tr", {}, ["", "Threshold", "False alarms", "Missed defects"].map((name, index) => (index ? h("th", { scope: "col", class: "figure" }, name) : h("td", {}))))),
        h("tbody", {}, row("Current", proposal.current), !same && row("Proposed", proposal.proposed)))),
      proposal.is_better && state.may("admin") && h("p", { class: "actions" }, h("button", { type: "button", onclick: () => this.confirmProposal() }, "Use this threshold")));
  }

  confirmProposal() {
    const { identity, proposal } = this.reviewed;
    this.ask({ threshold: proposal.threshold, identity }, "The threshold that the reviews support.", proposal.current, proposal.proposed,
      { "False alarms": (one) => percent(one.false_alarms.estimate), "Missed defects": (one) => percent(one.misses.estimate) });
  }

  /** The button that undoes the last change of the threshold, if nothing came after it. */
  undoLine() {
    const change = this.model.last_change;
    if (change?.kind !== "calibration" || !state.may("admin")) return null;
    return h("p", { class: "actions" }, h("button", { type: "button", class: "undo-threshold", onclick: async () => {
      try {
        await this.watch(await api.undo(this.model.name, { entry: change.entry, identity: change.identity }));
      } catch (error) {
        this.fail(error.message);
      }
    } }, icon("undo"), `Undo the threshold of ${moment(change.at)}`));
  }

  /** Calibrating with confirmed parts: open if it is advisable, folded otherwise. */
  calibrateAgain() {
    const { again, facts } = this;
    if (!state.may("admin")) return null;
    const advised = again.changes.length > 0 || !facts.estimated;
    const kinds = `${count(again.confirmed_good, "confirmed good part")} and ${count(again.false_alarms, "false alarm")}`;
    return h("details", { class: "trade-again", open: advised }, h("summary", {}, "Calibrate again with confirmed parts"),
      h("p", {}, `Sets the threshold from parts that people confirmed as good in the last ${count(again.days, "day")}, with this version of the model: ${kinds}. `,
        again.possible ? `${count(again.images, "of these images is", "of these images are")} used, in the proportion in which the line produces them.` : sentence(again.reason ?? "")),
      h("p", { class: "actions" }, h("button", { type: "button", disabled: !again.possible, onclick: () => this.confirmAgain() }, "Calibrate again"), h("a", { class: "button", href: "#/review" }, "Confirm parts")));
  }

  async confirmAgain() {
    const { again, facts, model } = this;
    const words = `Sets a new threshold from ${count(again.images, "image")} that people confirmed as good. It takes some minutes if synthetic defects are drawn.${facts.aim === "chosen" ? " The threshold that a person chose is replaced." : ""} It can be undone.`;
    const job = await formDialog(`Calibrate ${model.name} again?`, h("p", {}, words), { action: "Calibrate", send: () => api.recalibrate(model.name, { days: again.days, identity: again.identity }) });
    if (job) this.watch(job);
  }

  fail(words) {
    this.draw(h("p", { class: "hint bad", role: "alert" }, icon("warn"), h("span", {}, sentence(words))));
    this.title.focus({ preventScroll: true });
  }

  /** Follow a job that changes the threshold, and show its result. */
  async watch(job) {
    const bar = h("div", { class: "trade-job", role: "status" });
    const draw = (now) => put(bar, h("p", {}, h("strong", {}, `${KINDS[job.kind]}…`), now.state === "waiting" ? " waits for other work" : ""), progress(KINDS[job.kind], now.done, now.total));
    put(this.el, this.title, bar);
    this.title.focus({ preventScroll: true });
    draw(job);
    let ended = null;
    try {
      ended = await follow(job.id, draw, this.signal, 0.4);
    } catch (error) {
      complain(error);
    }
    if (this.signal.aborted) return;
    if (ended?.state !== "done") return void this.fail(ended?.state === "cancelled" ? "cancelled; the threshold stays" : ended?.error ?? "it is not known how the job ended; open the view again");
    const { threshold, threshold_before: before } = ended.result;
    const how = threshold && before ? ` It is ${number(threshold / before)}× the earlier one.` : "";
    await this.onChanged(job.kind === "undo" ? `Undone: ${this.model.name} has its earlier threshold again.` : `${this.model.name} has a new threshold.${how}`);
  }
}

/** The job that changes a model's threshold now, if there is one. */
export async function unfinished(name) {
  const jobs = await api.jobs({ model: name, limit: 20 });
  return jobs.find((job) => job.kind in KINDS && ["waiting", "running"].includes(job.state)) ?? null;
}
