/** One inspection in full: verdict, image, regions, explanation, review. */

import { api } from "./api.js";
import { announce, complain, h, icon, number, percent, put, REVIEWS, time, VERDICTS } from "./dom.js";
import { DrawTools } from "./draw.js";
import { caveat, squeezed } from "./hints.js";
import { gauge, regionList, Stage } from "./stage.js";
import { state } from "./state.js";
import { reasonCard } from "./why.js";

const TRACE = { serial: "Serial number", lot: "Lot", line: "Line", station: "Station" };

/** The text shown with a verdict. */
export function verdictWords(inspection) {
  const { score, threshold } = inspection;
  return threshold ? `${number(score / threshold)} × threshold` : "no threshold";
}

/** A verdict, or what stands in its place, in large type; `name` is the image's. */
function banner(kind, sign, word, words, name, more = null) {
  return h("div", { class: `verdict ${kind}` }, icon(sign),
    h("div", {}, h("p", { class: "word" }, word), words && h("p", { class: "words" }, words), name && h("p", { class: "of" }, name)), more);
}

/** The verdict in large type. */
export function verdictBanner(inspection) {
  const { verdict, name } = inspection;
  return banner(verdict, verdict, VERDICTS[verdict], verdictWords(inspection), name);
}

/** The p-value of a score as text. */
function surprise(inspection) {
  if (inspection.p_value === null) return null;
  return h("p", { class: "quiet" }, `At most ${percent(inspection.p_value)} of good parts score this high.`);
}

/**
 * `el.dataset.state` says what is shown: "empty", "loading", "ready", "failed" (the picture cannot be loaded) or "none"
 * (not inspected). Verdict, facts, regions and review appear together with the picture.
 */
export class Result {
  /** `onReview` receives an inspection after an operator's verdict on it; `below` is placed below the verdict. */
  constructor({ onReview = () => {}, below = null } = {}) {
    this.onReview = onReview;
    this.stage = new Stage({ onState: (now) => this.staged(now) });
    this.tools = new DrawTools(this.stage, { saves: true });
    this.banner = h("div", { class: "top" });
    this.panel = h("div", { class: "panel sheet" });
    this.label = h("p", { class: "earlier-image", hidden: true });
    this.review = h("section", { class: "part" });
    this.el = h("div", { class: "result", "data-state": "empty" }, this.banner, h("div", { class: "left" }, this.label, this.stage.el),
      below && h("div", { class: "shelf" }, below), this.panel);
  }

  /** Show an inspection; resolves as `Stage.show` does. */
  show(inspection) {
    this.inspection = inspection;
    this.previous(false);
    return this.stage.show(inspection);
  }

  /** The stage has changed: draw what belongs to it. */
  staged(now) {
    const { inspection } = this;
    this.el.dataset.state = now;
    this.tools.show(now === "ready" ? inspection : null, Boolean(inspection.review));
    if (now === "loading") {
      put(this.banner, banner("wait", "wait", "Loading…", null, inspection.name));
      put(this.panel, h("p", { class: "quiet" }, `Loading ${inspection.name}…`));
      return;
    }
    const [height, width] = inspection.image_size;
    const took = inspection.timings.compute === undefined ? null : `${number(inspection.timings.compute)} s`;
    this.why = h("section", { class: "part why" });
    if (now === "ready") this.offerWhy();
    this.drawBanner();
    this.drawReview();
    put(this.panel, h("div", { class: "part" }, gauge(inspection), surprise(inspection)),
      now === "ready" && h("section", { class: "part" }, h("h2", {}, "Regions"), regionList(this.stage, inspection)),
      this.review,
      h("div", { class: "part" }, h("dl", { class: "facts" },
        fact("Image", inspection.name), Object.entries(TRACE).map(([key, name]) => inspection[key] && fact(name, inspection[key])),
        fact("Size", `${width} × ${height}`), fact("Model", inspection.model), fact("Inspected", time(inspection.at)), took && fact("Computed in", took)),
      h("details", { class: "raw" }, h("summary", {}, "Raw values"), h("dl", { class: "facts" },
        fact("Score", number(inspection.score)), fact("Threshold", inspection.threshold ? number(inspection.threshold) : "none")))),
      this.why);
  }

  drawBanner() {
    const { inspection } = this;
    const squeeze = h("div", {});
    put(this.banner, verdictBanner(inspection), caveat(inspection), squeeze);
    squeezed(inspection).then((hint) => put(squeeze, hint), () => {});
  }

  /** An image is being inspected. What was shown stays, dimmed and labelled as the previous image. */
  wait(word, name) {
    put(this.banner, banner("wait", "wait", word, null, name));
    if (!["ready", "failed"].includes(this.el.dataset.state)) {
      this.stage.empty();
      this.el.dataset.state = "empty";
      return;
    }
    this.previous(true);
    this.drawReview();
  }

  /** Show the previous image as the current one again. */
  resume() {
    if (!this.el.classList.contains("previous")) return;
    this.previous(false);
    this.tools.show(this.inspection, Boolean(this.inspection.review));
    this.drawBanner();
    this.drawReview();
  }

  previous(on) {
    this.el.classList.toggle("previous", on);
    if (on) this.tools.show(null);
    this.label.hidden = !on;
    this.label.textContent = on ? `Previous image: ${this.inspection.name}` : "";
  }

  /** Say that an image was not inspected, and why; `retry` sends it again, if that makes sense. */
  notInspected(name, reason, retry = null) {
    this.inspection = null;
    this.previous(false);
    this.stage.empty();
    this.tools.show(null);
    this.el.dataset.state = "none";
    put(this.panel);
    put(this.banner, banner("none", "none", VERDICTS.none, reason, name, retry && h("button", { type: "button", onclick: retry }, icon("retry"), "Try again")));
  }

  /** Whether an operator may judge what is on screen. */
  get reviewable() {
    return this.stage.ready && this.stage.inspection?.id === this.inspection?.id && !this.el.classList.contains("previous");
  }

  drawReview() {
    const { inspection } = this;
    if (!state.may("review")) {
      put(this.review, inspection.review && [h("h2", {}, "Review"), h("p", {}, REVIEWS[inspection.review.verdict])]);
      return;
    }
    const choice = (verdict, words) => h("button", { type: "button", disabled: !this.reviewable, "aria-pressed": String(inspection.review?.verdict === verdict),
      onclick: () => this.say(this.inspection.review?.verdict === verdict ? null : verdict) }, words);
    put(this.review, h("h2", {}, "Your verdict"),
      h("div", { class: "choices", role: "group", "aria-label": "Review" },
        inspection.verdict === "anomalous" ? choice("false_alarm", "False alarm") : null,
        choice("true_defect", inspection.verdict === "anomalous" ? "True defect" : "A defect was missed"), choice("unsure", "Unsure")),
      this.el.dataset.state === "failed" && h("p", { class: "quiet" }, "You can review this part when its image is shown."),
      inspection.review && h("p", { class: "quiet" }, `${REVIEWS[inspection.review.verdict]}, by ${inspection.review.by}, ${time(inspection.review.at)}`,
        inspection.review.note && `: ${inspection.review.note}`, inspection.learned_by && " · learned"));
  }

  async say(verdict) {
    const { inspection } = this;
    if (!this.reviewable || (verdict === "true_defect" && !await this.tools.save())) return;
    try {
      const changed = await api.review(inspection.id, verdict, verdict ? inspection.review?.note ?? "" : "");
      announce(verdict ? `${changed.name} reviewed: ${REVIEWS[verdict]}` : `Review of ${changed.name} withdrawn`);
      this.onReview(changed);
      if (this.inspection !== inspection) return;
      this.inspection = changed;
      const had = this.review.contains(document.activeElement) ? [...this.review.querySelectorAll("button")].indexOf(document.activeElement) : -1;
      this.drawReview();
      if (had >= 0) this.review.querySelectorAll("button")[had]?.focus();
    } catch (error) {
      complain(error);
    }
  }

  offerWhy() {
    put(this.why, h("h2", {}, "Why"), h("button", { type: "button", onclick: () => this.explain() }, "Compare with normal patches"));
  }

  async explain() {
    const { inspection, why: place } = this;
    const list = h("div", {}, h("p", { class: "quiet", role: "status" }, "Comparing…"));
    put(place, h("h2", { tabindex: "-1" }, "Why"), list);
    place.firstChild.focus({ preventScroll: true });
    try {
      const why = await api.explanation(inspection.id);
      put(list, !why.same_model && h("p", { class: "hint" }, "The model has changed since this inspection. This explanation is from the current model."),
        why.reasons.slice(0, 5).map((reason, index) => reasonCard(reason, index, why, inspection)));
    } catch (error) {
      if (place !== this.why) return;
      this.offerWhy();
      complain(error);
    }
  }
}

const fact = (name, value) => [h("dt", {}, name), h("dd", {}, value)];
