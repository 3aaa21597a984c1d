/** The verdict, readable from three metres: a shape, a word and a colour, with the score and the reason. */

import { h, put } from "./dom.js";
import { clock, figure, multiple, t } from "./language.js";
import { kindOf, meaning, nameOf, shape, word } from "./line_signs.js";

const MOST = 3;
/** Multiple of the threshold at which the bar ends. */
const WIDE = 1.1;
/** Width of an East Asian letter, in multiples of its height. */
const NARROW = 0.74;

/** About how wide a word in capitals is, in multiples of the font's size. */
const widthOf = (text) => [...text].reduce((sum, letter) => sum + (letter > "⺀" ? WIDE : NARROW), 0);

export class Judgement {
  /** `onAcknowledge` is null if the user may not. */
  constructor(onAcknowledge) {
    this.sign = h("div", { class: "sign" });
    this.word = h("p", { class: "word" });
    this.meaning = h("p", { class: "meaning-line" });
    this.facts = h("div", { class: "facts-of-part" });
    this.acknowledge = onAcknowledge && h("button", { type: "button", class: "acknowledge", onclick: onAcknowledge }, t("action.acknowledge"));
    this.el = h("section", { class: "judgement", "aria-label": t("label.verdict") },
      h("div", { class: "plate-of-verdict" }, this.sign, h("div", { class: "words-of-verdict" }, this.word, this.meaning), this.acknowledge), this.facts);
    this.drawn = null;
  }

  /** Show a part: the frozen one if `frozen`, else what the line says now. */
  show(state, part, frozen) {
    const kind = frozen ? part.verdict : kindOf(state, part);
    const text = JSON.stringify([kind, part, state.fault]);
    if (text === this.drawn) return;
    this.drawn = text;
    this.el.dataset.kind = kind;
    put(this.sign, shape(kind));
    this.word.textContent = word(kind);
    this.word.style.setProperty("--width", widthOf(this.word.textContent).toFixed(2));
    this.meaning.textContent = meaning(kind);
    const fault = kind === "fault" ? state.fault : null;
    if (this.acknowledge) this.acknowledge.hidden = !fault;
    put(this.facts, fault && faultFacts(fault), part && (fault ? before(part) : partFacts(part)));
  }
}

const FAULTS = {
  STARTING: "fault.starting", SOURCE: "fault.source", STORE: "fault.store", MODEL: "fault.model", OVERRUN: "fault.overrun",
  TIMEOUT: "fault.timeout", PRODUCT: "fault.product", PAUSED: "fault.paused",
};

/** A fault in the user's language, else its name. */
export const faultWord = (fault) => (fault.name in FAULTS ? t(FAULTS[fault.name]) : fault.name);

function faultFacts(fault) {
  return h("div", { class: "fault-facts" }, h("p", { class: "fault-name" }, faultWord(fault)), h("p", { lang: "en" }, fault.text),
    h("p", { class: "quiet" }, t("fault.since", { time: clock(fault.since) })));
}

/** The last part before a fault, in a line. */
const before = (part) => h("p", { class: "before", "data-kind": part.verdict }, h("span", {}, t("label.before")), shape(part.verdict), h("strong", {}, `${word(part.verdict)} ${nameOf(part)}`));

function partFacts(part) {
  const line = (name, value) => [h("dt", {}, name), h("dd", {}, value)];
  return [
    h("dl", { class: "number-of-part" }, line(t("label.part"), nameOf(part)), part.product && line(t("label.product"), part.product),
      line(t("label.time"), clock(part.triggered)), line(t("label.duration"), t("unit.seconds", { seconds: figure(part.seconds, 2) }))),
    scoreBar(part),
    part.missing.length > 0 && h("p", { class: "reason-of-part" }, t("label.missing", { views: part.missing.join(", ") })),
    part.reason && part.missing.length === 0 && h("p", { class: "reason-of-part", lang: "en" }, part.reason),
  ];
}

/** The score on a scale from 0 to MOST times the threshold. */
function scoreBar(part) {
  const ratio = part.score === null ? null : part.score / part.threshold;
  const fill = h("div", { class: "fill" });
  fill.style.width = `${Math.min(100, (100 * (ratio ?? 0)) / MOST)}%`;
  const mark = h("div", { class: "limit" });
  mark.style.left = `${100 / MOST}%`;
  return h("div", { class: "score", role: "img", "aria-label": ratio === null ? t("score.none") : t("score.words", { score: multiple(ratio) }), "data-above": String(ratio !== null && ratio > 1) },
    h("p", { class: "score-line" }, h("span", {}, t("score.name")), h("strong", {}, multiple(ratio))),
    h("div", { class: "score-track" }, fill, mark), h("p", { class: "score-limit" }, t("score.limit")));
}
