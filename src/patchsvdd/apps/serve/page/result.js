/** One inspection in full: verdict, image, regions, explanation, review. */

import { api, goodPicture, pictureOf } from "./api.js";
import { announce, complain, h, icon, number, percent, put, REVIEWS, time, VERDICTS } from "./dom.js";
import { gauge, regionList, Stage } from "./stage.js";
import { state } from "./state.js";

const AROUND = 1.0;
/** Margin shown around a patch on each side, as a fraction of its size. */
const SIDE = 320;

/** The text shown with a verdict. */
export function verdictWords(inspection) {
  const { score, threshold } = inspection;
  if (!threshold) return `score ${number(score)}`;
  return `${number(score / threshold)} × threshold · score ${number(score)}`;
}

/** The verdict in large type. */
export function verdictBanner(inspection) {
  return h("div", { class: `verdict ${inspection.verdict}` }, icon(inspection.verdict),
    h("div", {}, h("p", { class: "word" }, VERDICTS[inspection.verdict]), h("p", { class: "words" }, verdictWords(inspection))));
}

/** The p-value of a score as text. */
function surprise(inspection) {
  if (inspection.p_value === null) return null;
  return h("p", { class: "quiet" }, `At most ${percent(inspection.p_value)} of good parts score this high.`);
}

export class Result {
  /** `onReview` receives an inspection after an operator's verdict on it. */
  constructor({ onReview = () => {}, below = null } = {}) {
    this.onReview = onReview;
    this.stage = new Stage();
    this.banner = h("div", { class: "top" });
    this.panel = h("div", { class: "panel" });
    this.el = h("div", { class: "result" }, this.banner, h("div", { class: "left" }, this.stage.el, below), this.panel);
  }

  show(inspection) {
    this.inspection = inspection;
    this.stage.show(inspection);
    const [height, width] = inspection.image_size;
    const took = inspection.timings.compute === undefined ? null : `${number(inspection.timings.compute)} s`;
    this.review = h("section", { class: "part" });
    this.why = h("section", { class: "part why" });
    this.offerWhy();
    this.drawReview();
    put(this.banner, verdictBanner(inspection));
    put(this.panel, h("div", {}, gauge(inspection), surprise(inspection)),
      h("section", { class: "part" }, h("h2", {}, "Regions"), regionList(this.stage, inspection)),
      this.review, this.why,
      h("dl", { class: "facts" },
        fact("Image", inspection.name), fact("Size", `${width} × ${height}`), fact("Model", inspection.model),
        fact("Inspected", time(inspection.at)), fact("Score", `${number(inspection.score)}${inspection.threshold ? `, threshold ${number(inspection.threshold)}` : ""}`), took && fact("Computed in", took)));
  }

  drawReview() {
    const { inspection } = this;
    if (!state.may("review")) {
      put(this.review, inspection.review && [h("h2", {}, "Review"), h("p", {}, REVIEWS[inspection.review.verdict])]);
      return;
    }
    const choice = (verdict, words) => h("button", { type: "button", "aria-pressed": String(inspection.review?.verdict === verdict),
      onclick: () => this.say(inspection.review?.verdict === verdict ? null : verdict) }, words);
    put(this.review, h("h2", {}, "Your verdict"),
      h("div", { class: "choices", role: "group", "aria-label": "Review" },
        inspection.verdict === "anomalous" ? choice("false_alarm", "False alarm") : null,
        choice("true_defect", inspection.verdict === "anomalous" ? "True defect" : "A defect was missed"), choice("unsure", "Unsure")),
      inspection.review && h("p", { class: "quiet" }, `${REVIEWS[inspection.review.verdict]}, by ${inspection.review.by}, ${time(inspection.review.at)}`,
        inspection.review.note && `: ${inspection.review.note}`, inspection.learned_by && " · learned"));
  }

  async say(verdict) {
    try {
      this.inspection = await api.review(this.inspection.id, verdict, verdict ? this.inspection.review?.note ?? "" : "");
      const had = this.review.contains(document.activeElement) ? [...this.review.querySelectorAll("button")].indexOf(document.activeElement) : -1;
      this.drawReview();
      if (had >= 0) this.review.querySelectorAll("button")[had]?.focus();
      announce(verdict ? `Reviewed: ${REVIEWS[verdict]}` : "Review withdrawn");
      this.onReview(this.inspection);
    } catch (error) {
      complain(error);
    }
  }

  offerWhy() {
    put(this.why, h("h2", {}, "Why"), h("button", { type: "button", onclick: () => this.explain() }, "Compare with normal patches"));
  }

  async explain() {
    const { inspection } = this;
    const list = h("div", {}, h("p", { class: "quiet", role: "status" }, "Comparing…"));
    put(this.why, h("h2", { tabindex: "-1" }, "Why"), list);
    this.why.firstChild.focus({ preventScroll: true });
    try {
      const why = await api.explanation(inspection.id);
      if (inspection !== this.inspection) return;
      put(list, !why.same_model && h("p", { class: "hint" }, "The model has changed since this inspection. This explanation is from the current model."),
        why.reasons.slice(0, 5).map((reason, index) => reasonOf(reason, index, why, inspection)));
    } catch (error) {
      this.offerWhy();
      complain(error);
    }
  }
}

const fact = (name, value) => [h("dt", {}, name), h("dd", {}, value)];

function reasonOf(reason, index, why, inspection) {
  const scales = reason.scales.map((scale) => {
    const times = scale.times_usual === null ? "unlike any good patch" : `${number(scale.times_usual)}× the typical distance`;
    return h("div", { class: "pair" },
      patch(pictureOf(inspection.id), scale.box, "This image", `${scale.patch_size}-pixel patch of this image`, inspection.image_size),
      patch(goodPicture(inspection.model, scale.nearest.index, why.identity), scale.nearest.box, `Nearest normal: ${scale.nearest.image}`, `nearest normal patch, in ${scale.nearest.image}`),
      h("p", { class: "times" }, h("strong", {}, times), ` · ${scale.patch_size} px · ${percent(scale.share)} of the peak`));
  });
  const title = reason.region ? `Region ${index + 1}` : "The highest point";
  return h("article", { class: "reason" }, h("h3", {}, title), scales, h("details", {}, h("summary", {}, "As text"), h("p", {}, reason.in_words)));
}

/** A patch with a margin, cropped from an image. Boxes are in pixels of an image of `size`, or of the image itself. */
function patch(source, box, caption, alt, size) {
  const canvas = h("canvas", { width: SIDE, height: SIDE, role: "img", "aria-label": alt });
  const picture = new Image();
  picture.onload = () => {
    const scale = size ? picture.naturalWidth / size[1] : 1;
    const [left, top, right, bottom] = box.map((one) => one * scale);
    const side = Math.max(right - left, bottom - top) * (1 + 2 * AROUND);
    const x = (left + right - side) / 2;
    const y = (top + bottom - side) / 2;
    const ratio = SIDE / side;
    const pen = canvas.getContext("2d");
    pen.imageSmoothingQuality = "high";
    pen.drawImage(picture, -x * ratio, -y * ratio, picture.naturalWidth * ratio, picture.naturalHeight * ratio);
    const place = [(left - x) * ratio, (top - y) * ratio, (right - left) * ratio, (bottom - top) * ratio];
    pen.strokeStyle = "rgba(0, 0, 0, 0.6)";
    pen.lineWidth = 8;
    pen.strokeRect(...place);
    pen.strokeStyle = "#fff";
    pen.lineWidth = 3.5;
    pen.strokeRect(...place);
  };
  picture.src = source;
  return h("figure", {}, canvas, h("figcaption", {}, caption));
}
