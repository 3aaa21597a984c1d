/** SVG charts. Colours come from the style sheet; marks also differ in shape. */

import { h, icon, number, put, REVIEWS, s, time, VERDICTS } from "./dom.js";

const PAD = { left: 46, right: 14, top: 12, bottom: 26 };

/** Round values between two bounds, about `about` of them. */
function ticks(low, high, about) {
  const step = (high - low) / Math.max(1, about);
  if (!(step > 0)) return [low];
  const power = 10 ** Math.floor(Math.log10(step));
  const nice = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= step);
  const values = [];
  for (let at = Math.ceil(low / nice) * nice; at <= high + 1e-9; at += nice) values.push(Number(at.toPrecision(10)));
  return values;
}

const short = (value) => String(Number(value.toPrecision(2)));
const times = (value) => (value === 0 ? "0" : `${short(value)}×`);
const plain = { to: (value) => value, from: (value) => value };
const root = { to: (value) => Math.sqrt(Math.max(0, value)), from: (value) => value * value };

/** A chart that is redrawn when its width changes. `draw(width, height, svg)` returns its content. */
export function chart(label, height, draw) {
  const svg = s("svg", { role: "img", "aria-label": label, height });
  const el = h("div", { class: "chart" }, svg);
  let width = 0;
  const redraw = () => {
    if (!width) return;
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.setAttribute("width", String(width));
    put(svg, draw(width, height, svg));
  };
  new ResizeObserver((entries) => {
    const now = Math.floor(entries[0].contentRect.width);
    if (now === width) return;
    width = now;
    redraw();
  }).observe(el);
  return { el, svg, redraw };
}

/** Scales and axes of a chart of the given size in pixels. */
export function axes(width, height, x, y, names, top = PAD.top) {
  const inner = { left: PAD.left, right: width - PAD.right, top, bottom: height - PAD.bottom };
  const kindY = y.kind ?? plain;
  const span = (value, [low, high], from, to) => from + (high === low ? 0.5 : (value - low) / (high - low)) * (to - from);
  const atX = (value) => span(value / (x.of ?? 1), x.range, inner.left, inner.right);
  const tickX = (value) => span(value, x.range, inner.left, inner.right);
  const atY = (value) => span(kindY.to(value), y.range.map(kindY.to), inner.bottom, inner.top);
  const drawn = [];
  const marksY = y.kind ? ticks(kindY.to(y.range[0]), kindY.to(y.range[1]), 4).map((one) => Number(kindY.from(one).toPrecision(2))).filter((one) => !y.whole || Number.isInteger(one)) : ticks(...y.range, 4);
  for (const value of new Set(marksY)) {
    drawn.push(s("line", { class: "grid", x1: inner.left, x2: inner.right, y1: atY(value), y2: atY(value) }));
    drawn.push(s("text", { class: "tick", x: inner.left - 7, y: atY(value) + 4, "text-anchor": "end" }, y.label ? y.label(value) : String(value)));
  }
  const marksX = x.ticks ?? ticks(...x.range, Math.max(2, width / 130));
  marksX.forEach((value, index) => {
    const anchor = x.ticks ? (index === 0 ? "start" : index === marksX.length - 1 ? "end" : "middle") : "middle";
    drawn.push(s("text", { class: "tick", x: tickX(value), y: inner.bottom + 18, "text-anchor": anchor }, x.label ? x.label(value) : String(value)));
  });
  drawn.push(s("line", { class: "axis", x1: inner.left, x2: inner.right, y1: inner.bottom, y2: inner.bottom }));
  if (names?.y) drawn.push(s("text", { class: "name", x: inner.left + 4, y: inner.top + 8 }, names.y));
  if (names?.x) drawn.push(s("text", { class: "name", x: inner.right, y: inner.bottom - 6, "text-anchor": "end" }, names.x));
  return { inner, atX, atY, drawn };
}

const dot = (x, y, r) => `M${(x - r).toFixed(1)} ${y.toFixed(1)}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0z`;
const diamond = (x, y, r) => `M${x.toFixed(1)} ${(y - r).toFixed(1)}l${r} ${r}l${-r} ${r}l${-r} ${-r}z`;

/** Scores in order, as multiples of the threshold at the time.
 *
 * Pointing at a mark, or the arrow keys, shows it in words; a click or Enter calls `onPick` with its id. `more(id)` may
 * return further content for it, later.
 */
export function scoreChart(data, onPick, more = async () => null) {
  const many = data.id.length;
  const above = data.verdict.filter((one) => one === "anomalous").length;
  const judged = data.threshold.some((one) => one);
  const scores = data.score.map((score, index) => (judged ? score / (data.threshold[index] || 1) : score));
  const most = Math.max(judged ? 1.5 : 1e-300, ...scores) * 1.2;
  const clock = (index) => time(new Date(1000 * data.at[Math.round(index)]).toISOString());
  const size = (index) => (judged ? `${number(scores[index])}× the threshold` : `score ${number(scores[index])}`);
  const inWords = (index) => `${VERDICTS[data.verdict[index]]}, ${size(index)}, ${clock(index)}${data.review[index] ? `, ${REVIEWS[data.review[index]].toLowerCase()}` : ""}`;
  let places = [];
  let picked = -1;
  const made = chart(`Scores of the latest ${many} inspections`, 200, (width, height) => {
    const every = Math.max(1, Math.min(4, Math.floor(width / 220)));
    const marks = many < 2 ? [0] : Array.from({ length: every + 1 }, (_, index) => (index * (many - 1)) / every);
    const frame = axes(width, height, { range: [0, Math.max(1, many - 1)], ticks: marks, label: clock }, { range: [0, most], kind: root, label: judged ? times : short }, {});
    places = data.id.map((_, index) => [frame.atX(many < 2 ? 0.5 : index), frame.atY(scores[index])]);
    const r = many > 400 ? 2.2 : 3.2;
    const paths = { good: "", anomalous: "" };
    places.forEach(([x, y], index) => {
      paths[data.verdict[index]] += data.verdict[index] === "good" ? dot(x, y, r) : diamond(x, y, r + 1.6);
    });
    const line = frame.atY(1);
    const label = { width: 70, height: 18 };
    return [frame.drawn, s("path", { class: "mark good", d: paths.good }), s("path", { class: "mark anomalous", d: paths.anomalous }),
      judged && [s("line", { class: "threshold", x1: frame.inner.left, x2: frame.inner.right, y1: line, y2: line }),
        s("rect", { class: "label", x: frame.inner.right - label.width, y: line - label.height - 3, rx: 4, ...label }),
        s("text", { class: "name on", x: frame.inner.right - label.width / 2, y: line - 8, "text-anchor": "middle" }, "threshold")],
      s("circle", { class: "pick", r: 0 })];
  });
  made.svg.setAttribute("aria-hidden", "true");
  made.svg.removeAttribute("role");
  const tip = h("div", { class: "tip", hidden: true });
  const summary = h("p", { class: "unseen", id: "score-summary" },
    `${above} of ${many} are above the threshold.${many ? ` The highest is ${size(scores.indexOf(Math.max(...scores)))}.` : ""} Arrow keys move through them, Enter opens one.`);
  const el = h("div", { class: "plot", tabindex: "0", role: "slider", "aria-label": `Scores of the latest ${many} inspections, oldest first`, "aria-describedby": "score-summary",
    "aria-valuemin": 1, "aria-valuemax": Math.max(1, many), "aria-valuenow": many, "aria-valuetext": many ? inWords(many - 1) : "none" }, made.el, tip);

  function pick(index) {
    picked = index;
    const mark = made.svg.querySelector(".pick");
    mark?.setAttribute("r", index < 0 ? "0" : "7");
    made.svg.classList.toggle("over", index >= 0);
    tip.hidden = index < 0;
    if (index < 0) return;
    const [x, y] = places[index];
    mark?.setAttribute("cx", String(x));
    mark?.setAttribute("cy", String(y));
    const extra = h("div", {});
    put(tip, h("p", { class: `badge ${data.verdict[index]}` }, icon(data.verdict[index]), VERDICTS[data.verdict[index]]), h("p", {}, h("strong", {}, size(index))),
      h("p", {}, clock(index), data.review[index] && ` · ${REVIEWS[data.review[index]]}`), extra);
    const wide = tip.offsetWidth;
    tip.style.setProperty("left", `${Math.max(0, Math.min(x - wide / 2, el.clientWidth - wide))}px`);
    tip.style.setProperty("top", `${y + 14}px`);
    el.setAttribute("aria-valuenow", String(index + 1));
    el.setAttribute("aria-valuetext", inWords(index));
    setTimeout(async () => {
      if (picked !== index) return;
      const found = await more(data.id[index]).catch(() => null);
      if (picked === index && found) put(extra, found);
    }, 150);
  }

  function nearest(event) {
    const frame = made.svg.getBoundingClientRect();
    const x = event.clientX - frame.left;
    const y = event.clientY - frame.top;
    let found = -1;
    let best = 30 ** 2;
    places.forEach(([left, top], index) => {
      const far = (left - x) ** 2 + (top - y) ** 2;
      if (far < best) [best, found] = [far, index];
    });
    return found;
  }

  function pressed(event) {
    const far = Math.max(1, Math.round(many / 20));
    const now = picked < 0 ? many : picked;
    const to = { ArrowRight: now + 1, ArrowUp: now + 1, ArrowLeft: now - 1, ArrowDown: now - 1, PageUp: now + far, PageDown: now - far, Home: 0, End: many - 1 }[event.key];
    if (to !== undefined && many) pick(Math.max(0, Math.min(many - 1, to)));
    else if (event.key === "Enter" && picked >= 0) onPick(data.id[picked]);
    else if (event.key === "Escape" && picked >= 0) pick(-1);
    else return;
    event.preventDefault();
  }

  made.svg.addEventListener("pointermove", (event) => {
    const index = nearest(event);
    if (index !== picked) pick(index);
  });
  made.svg.addEventListener("pointerleave", () => { if (document.activeElement !== el) pick(-1); });
  made.svg.addEventListener("click", (event) => {
    const index = nearest(event);
    if (index >= 0) onPick(data.id[index]);
  });
  el.addEventListener("keydown", pressed);
  el.addEventListener("blur", () => pick(-1));
  return h("div", {}, el, summary);
}

/** Cumulative distribution of the scores of good images. `tried` is another threshold; `set` changes it. */
export function calibrationChart(scores, threshold) {
  const sorted = [...scores].sort((a, b) => a - b);
  let tried = threshold;
  const made = chart(`Scores of ${sorted.length} good images, from ${times(sorted[0] / threshold)} to ${times(sorted.at(-1) / threshold)} the threshold`, 210, (width, height) => {
    const most = 1.15 * Math.max(sorted.at(-1), threshold, tried);  // a tried threshold stays in sight
    const frame = axes(width, height, { range: [0, most / threshold], label: times, of: threshold }, { range: [0, 1], label: (value) => `${Math.round(100 * value)} %` }, { y: "good images at or below" });
    let line = `M${frame.inner.left} ${frame.inner.bottom}`;
    let marks = "";
    sorted.forEach((score, index) => {
      const [x, y] = [frame.atX(score), frame.atY((index + 1) / sorted.length)];
      line += `H${x.toFixed(1)}V${y.toFixed(1)}`;
      marks += dot(x, y, 2.6);
    });
    const upright = (value, name) => s("line", { class: name, x1: frame.atX(value), x2: frame.atX(value), y1: frame.inner.top, y2: frame.inner.bottom });
    return [frame.drawn, s("path", { class: "curve", d: `${line}H${frame.inner.right}` }), s("path", { class: "mark good", d: marks }),
      upright(threshold, "threshold"), tried !== threshold && upright(tried, "tried")];
  });
  made.set = (value) => { tried = value; made.redraw(); };
  return made;
}

/** Histogram of scores, good below a threshold and anomalous above it; `set` moves the threshold. */
export function histogram(scores, threshold, most) {
  let tried = threshold;
  const made = chart(`Scores of the last ${scores.length} inspections`, 190, (width, height) => {
    const bins = Math.max(20, Math.min(80, Math.floor((width - PAD.left - PAD.right) / 9)));
    const high = root.to(most);
    const counts = Array.from({ length: bins }, () => 0);
    for (const score of scores) counts[Math.min(bins - 1, Math.floor((root.to(score) / high) * bins))] += 1;
    const top = Math.max(1, ...counts);
    const marks = ticks(0, root.to(most / threshold), 6).map((one) => Number(root.from(one).toPrecision(2)) * threshold);
    const frame = axes(width, height, { range: [0, high], ticks: marks.map(root.to), label: (value) => times(root.from(value) / threshold) }, { range: [0, top], kind: root, whole: true }, { y: "inspections" });
    const split = root.to(tried);
    const bars = counts.flatMap((many, index) => {
      if (!many) return [];
      const [left, right] = [(index * high) / bins, ((index + 1) * high) / bins];
      const bar = (from, to, name) => to > from && s("rect", { class: name, x: frame.atX(from) + 0.5, width: Math.max(0.5, frame.atX(to) - frame.atX(from) - 1), y: frame.atY(many), height: frame.inner.bottom - frame.atY(many) });
      return [bar(left, Math.min(right, split), "good"), bar(Math.max(left, split), right, "anomalous")];
    });
    const upright = (value, name) => s("line", { class: name, x1: frame.atX(root.to(value)), x2: frame.atX(root.to(value)), y1: frame.inner.top, y2: frame.inner.bottom });
    return [frame.drawn, bars, upright(threshold, "threshold"), tried !== threshold && upright(tried, "tried")];
  });
  made.set = (value) => { tried = value; made.redraw(); };
  return made;
}

const LOSSES = { svdd_loss: "neighbouring patches alike", position_loss: "position recognised" };
/** What each error measures, in words. */

/** Rows in the order of their steps. A resumed training repeats some steps: the later value counts. */
export function inOrder(losses) {
  const rows = new Map(losses.map((row) => [row.step, row]));
  return [...rows.values()].sort((a, b) => a.step - b.step);
}

/** Training errors, one line per patch size and kind; `set` replaces the data. */
export function lossChart() {
  let rows = [];
  let lines = [];
  const legend = h("ul", { class: "key-list" });
  const made = chart("Errors of the training", 220, (width, height) => {
    if (!rows.length) return [];
    const last = rows.at(-1);
    const steps = Math.min(last.steps || last.step, Math.max(10, Math.ceil(1.25 * last.step)));
    const most = Math.max(...lines.flatMap((line) => line.points.map((point) => point[1]))) * 1.05;
    const frame = axes(width, height, { range: [0, steps] }, { range: [0, most], kind: root, label: short }, { x: last.steps ? `step, of ${last.steps.toLocaleString("en")}` : "step" });
    return [frame.drawn, lines.map((line) => {
      const at = line.points.map(([x, y]) => [frame.atX(x), frame.atY(y)]);
      const d = at.map(([x, y], index) => `${index ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
      return [s("path", { class: line.kind, d }), at.length < 40 && s("path", { class: `${line.kind} points`, d: at.map(([x, y]) => dot(x, y, 2.4)).join("") })];
    })];
  });
  made.el.hidden = true;
  const none = h("p", { class: "quiet" }, "No values yet: the first ones come after a few steps.");
  const el = h("div", { class: "losses" }, none, made.el, legend);
  return { el, svg: made.svg, set };

  function set(losses) {
    rows = inOrder(losses);
    none.hidden = rows.length > 0;
    made.el.hidden = !rows.length;
    if (!rows.length) return;
    const last = rows.at(-1);
    const sizes = Object.keys(last.scales);
    lines = sizes.flatMap((size, index) => Object.keys(LOSSES).filter((name) => name in last.scales[size]).map((name) => ({ size, name, kind: `loss ${name} scale-${index}`,
      points: rows.filter((row) => row.scales[size]).map((row) => [row.step, row.scales[size][name]]) })));
    put(legend, lines.map((line) => h("li", {}, s("svg", { width: 26, height: 10, "aria-hidden": "true" }, s("line", { class: line.kind, x1: 1, x2: 25, y1: 5, y2: 5 })), `${LOSSES[line.name]}, ${line.size} px`)));
    made.svg.setAttribute("aria-label", `Errors of the training up to step ${last.step}${last.steps ? ` of ${last.steps}` : ""}`);
    made.redraw();
  }
}
