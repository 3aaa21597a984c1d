/** What a part or the line is, as a shape, a word and a colour. */

import { s } from "./dom.js";
import { t } from "./language.js";

/** Paths of the shapes; those that begin with "fill " are filled. */
const SHAPES = {
  good: ["M4 13l5.5 5.5L20.5 6"],
  anomalous: ["M5 5l14 14", "M19 5L5 19"],
  incomplete: ["M12 3a9 9 0 1 1 0 18a9 9 0 0 1 0-18z", "fill M12 3a9 9 0 0 0 0 18z"],
  error: ["M8 8.5a4.2 4.2 0 1 1 6.3 3.6c-1.6.9-2.3 1.7-2.3 3.4", "M12 20v.2"],
  fault: ["M12 3L22.5 21h-21z", "M12 10v4.2", "M12 17.6v.1"],
  paused: ["M8 4v16", "M16 4v16"],
  starting: ["M12 3a9 9 0 1 1 0 18a9 9 0 0 1 0-18z", "M12 7v5.5l3.5 2.5"],
  stopped: ["M5.5 5.5h13v13h-13z"],
  none: ["M5 12h14"],
  lost: ["M9.5 14.5l5-5", "M11 6.5l1.5-1.5a4.2 4.2 0 0 1 6 6L17 12.5", "M13 17.5L11.5 19a4.2 4.2 0 0 1-6-6L7 11.5", "M4 4l16 16"],
  freeze: ["M12 3v18", "M4.2 7.5l15.6 9", "M19.8 7.5l-15.6 9", "M9.5 4.5L12 7l2.5-2.5", "M9.5 19.5L12 17l2.5 2.5"],
  play: ["fill M7 4l13 8l-13 8z"],
  heat: ["M12 3c.6 4 6 6 6 11.5a6 6 0 0 1-12 0c0-3 1.6-4.6 3-6c.3 2 1.2 3 2 3.3c-.4-3.2 0-6.3 1-8.8z"],
  camera: ["M3.5 8.2c0-.7.6-1.2 1.2-1.2h2.8l1.4-2.2h6.2L16.5 7h2.8c.7 0 1.2.5 1.2 1.2v9.6c0 .7-.5 1.2-1.2 1.2H4.7c-.7 0-1.2-.5-1.2-1.2z", "M12 9.3a3.6 3.6 0 1 1 0 7.2a3.6 3.6 0 0 1 0-7.2z"],
  screen: ["M4 9V4h5", "M15 4h5v5", "M20 15v5h-5", "M9 20H4v-5"],
};

/** A shape, hidden from screen readers; the word next to it has the meaning. */
export function shape(name) {
  const paths = SHAPES[name].map((d) => s("path", d.startsWith("fill ") ? { d: d.slice(5), fill: "currentcolor" } : { d }));
  return s("svg", { class: `shape shape-${name}`, viewBox: "0 0 24 24", "aria-hidden": "true" }, paths);
}

const WORDS = {
  good: "verdict.good", anomalous: "verdict.anomalous", incomplete: "verdict.incomplete", error: "verdict.error", none: "verdict.none",
  fault: "state.fault", paused: "state.paused", starting: "state.starting", stopped: "state.stopped",
};
const MEANINGS = {
  good: "meaning.good", anomalous: "meaning.anomalous", incomplete: "meaning.incomplete", error: "meaning.error", none: "meaning.none",
  fault: "meaning.fault", paused: "meaning.paused", starting: "meaning.starting", stopped: "meaning.stopped",
};
const STATES = {
  starting: "state.starting", ready: "state.ready", busy: "state.busy", fault: "state.fault", paused: "state.paused", stopped: "state.stopped",
};

/** The large word of a verdict or a state. */
export const word = (kind) => t(WORDS[kind]);

/** What it means, in a line. */
export const meaning = (kind) => t(MEANINGS[kind]);

/** The state of the line in a word. */
export const stateWord = (state) => t(STATES[state]);

/** What a large sign says now: a state that gives no verdicts, else the verdict on the part. */
export const kindOf = (state, part) => (["ready", "busy"].includes(state.state) ? part?.verdict ?? "none" : state.state);

/** The name of a part: its number, else its place in the sequence. */
export const nameOf = (part) => part.part_number || `#${part.sequence}`;
