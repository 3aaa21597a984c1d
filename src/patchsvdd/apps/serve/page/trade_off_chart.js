/** The chart of false alarms and missed defects over the threshold, with a handle at the operating point. */

import { axes, chart } from "./chart.js";
import { h, number, percent, s } from "./dom.js";

const HEIGHT = 250;
const APART = 48;
/** Pixels between two ticks. */
const FAR = 10;
/** Points that Page Up and Page Down move. */
const ROUND = [0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 7, 10, 15, 20, 30, 50, 100, 200, 500, 1000];

/** A point in words, as a screen reader says it. */
export const inWords = (point, now) => `threshold ${number(point.threshold / now)} times the present one, about ${percent(point.false_alarms)} false alarms, ${percent(point.missed)} of visible synthetic defects missed`;

/** Round multiples of the present threshold, as many as fit. */
function marks(low, high, width) {
  const pixels = (a, b) => (Math.abs(Math.log(a / b)) / Math.log(high / low)) * (width - 60);
  const kept = [1];
  for (const value of ROUND) if (value >= low && value <= high && kept.every((one) => pixels(one, value) >= APART)) kept.push(value);
  return kept.filter((one) => one >= low && one <= high).sort((a, b) => a - b);
}

/**
 * A slider over the points of a curve. `onMove` receives the index of the point; `set(index)` moves the handle there.
 * It moves by dragging, by pressing anywhere in the chart, and with the arrow keys.
 */
export function tradeOffChart(curve, start, onMove) {
  const now = curve[start].threshold;
  const [low, high] = [curve[0].threshold / now, curve.at(-1).threshold / now];
  let at = start;
  let frame = null;
  const place = (index) => frame.atX(Math.log(curve[index].threshold / now));

  const made = chart("", HEIGHT, (width, height) => {
    frame = axes(width, height, { range: [Math.log(low), Math.log(high)], ticks: marks(low, high, width).map(Math.log), label: (value) => `${Number(Math.exp(value).toPrecision(3))}×` },
      { range: [0, 1], label: (value) => `${Math.round(100 * value)} %` }, {}, 20);
    const line = (name, share) => s("path", { class: name, d: curve.map((point, index) => `${index ? "L" : "M"}${place(index).toFixed(1)} ${frame.atY(point[share]).toFixed(1)}`).join("") });
    return [frame.drawn, line("false-alarms", "false_alarms"), line("missed", "missed"),
      s("line", { class: "present", x1: place(start), x2: place(start), y1: frame.inner.top, y2: frame.inner.bottom }),
      s("g", { class: "handle" }, handle())];
  });
  made.svg.setAttribute("aria-hidden", "true");
  made.svg.removeAttribute("role");
  made.svg.removeAttribute("aria-label");

  function handle() {
    const x = place(at);
    return [s("line", { class: "stem", x1: x, x2: x, y1: frame.inner.top, y2: frame.inner.bottom }),
      s("circle", { class: "dot false-alarms", cx: x, cy: frame.atY(curve[at].false_alarms), r: 5 }),
      s("rect", { class: "dot missed", x: x - 5, y: frame.atY(curve[at].missed) - 5, width: 10, height: 10 }),
      s("circle", { class: "grip", cx: x, cy: frame.inner.top - 6, r: 11 }),
      s("path", { class: "grip-mark", d: `M${x - 3} ${frame.inner.top - 10}v8M${x + 3} ${frame.inner.top - 10}v8` })];
  }

  const el = h("div", { class: "plot trade-plot", tabindex: "0", role: "slider", "aria-label": "Operating point: false alarms against missed defects", "aria-orientation": "horizontal",
    "aria-describedby": "trade-keys", "aria-valuemin": 0, "aria-valuemax": curve.length - 1 }, made.el);

  function set(index) {
    at = Math.max(0, Math.min(curve.length - 1, index));
    el.setAttribute("aria-valuenow", String(at));
    el.setAttribute("aria-valuetext", inWords(curve[at], now));
    const drawn = made.svg.querySelector(".handle");
    if (drawn) drawn.replaceChildren(...handle());
  }

  function move(index) {
    const before = at;
    set(index);
    if (at !== before) onMove(at);
  }

  /** The point nearest to where the pointer is. */
  function under(event) {
    const x = event.clientX - made.svg.getBoundingClientRect().left;
    return curve.reduce((best, _, index) => (Math.abs(place(index) - x) < Math.abs(place(best) - x) ? index : best), 0);
  }

  let dragged = false;
  el.addEventListener("pointerdown", (event) => {
    if (event.button !== 0 || !frame) return;
    dragged = true;
    el.setPointerCapture(event.pointerId);
    el.classList.add("dragged");
    move(under(event));
  });
  el.addEventListener("pointermove", (event) => { if (dragged) move(under(event)); });
  for (const kind of ["pointerup", "pointercancel"]) {
    el.addEventListener(kind, () => {
      dragged = false;
      el.classList.remove("dragged");
    });
  }
  el.addEventListener("keydown", (event) => {
    const to = { ArrowRight: at + 1, ArrowUp: at + 1, ArrowLeft: at - 1, ArrowDown: at - 1, PageUp: at + FAR, PageDown: at - FAR, Home: 0, End: curve.length - 1 }[event.key];
    if (to === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    move(to);
    event.preventDefault();
  });
  set(start);
  return { el, set };
}
