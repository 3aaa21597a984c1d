/** Charts of the overview: yield and alarms over time. */

import { axes, chart } from "./chart.js";
import { percent, s } from "./dom.js";

/** Ticks on the time axis: round times, about as many as fit. */
function marks(buckets, hours, width) {
  const every = Math.max(1, Math.ceil(buckets.length / Math.max(2, Math.floor(width / (hours > 24 ? 110 : 80)))));
  return buckets.map((_, index) => index).filter((index) => index % every === 0);
}

function label(at, hours) {
  const options = hours > 24 ? { weekday: "short", hour: "2-digit", minute: "2-digit" } : { hour: "2-digit", minute: "2-digit" };
  return new Date(at).toLocaleString([], { ...options, hour12: false });
}

function frame(width, height, buckets, hours, y) {
  return axes(width, height, { range: [0, buckets.length], ticks: marks(buckets, hours, width), label: (index) => label(buckets[index].start, hours) }, y, {});
}

const words = (one, hours) => `${label(one.start, hours)} to ${label(one.end, hours)}: ${one.inspected.toLocaleString("en")} inspected, ${one.anomalous.toLocaleString("en")} alarms${one.yield === null ? "" : `, yield ${percent(one.yield)}`}`;

/** Share of good parts in each bucket; gaps where nothing was inspected. */
export function yieldChart(buckets, hours) {
  const known = buckets.filter((one) => one.yield !== null);
  const least = Math.min(1, ...known.map((one) => one.yield));
  const low = Math.max(0, Math.floor(20 * (least - 0.01)) / 20);
  const text = known.length ? `Yield over time, from ${percent(least)} to ${percent(Math.max(...known.map((one) => one.yield)))}` : "Yield over time: nothing was inspected";
  return chart(text, 130, (width, height) => {
    const place = frame(width, height, buckets, hours, { range: [low, 1], label: (value) => `${Math.round(100 * value)} %` });
    let line = "";
    let joined = false;
    const dots = [];
    buckets.forEach((one, index) => {
      if (one.yield === null) { joined = false; return; }
      const [x, y] = [place.atX(index + 0.5), place.atY(one.yield)];
      line += `${joined ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`;
      joined = true;
      dots.push(s("circle", { class: "mark good", cx: x, cy: y, r: 4 }, s("title", {}, words(one, hours))));
    });
    return [place.drawn, s("path", { class: "over-yield", d: line }), dots];
  }).el;
}

/** Parts per bucket: good ones, with the alarms on top. Alarms are at least as high as can be seen. */
export function alarmChart(buckets, hours) {
  const most = Math.max(1, ...buckets.map((one) => one.inspected));
  const alarms = buckets.reduce((sum, one) => sum + one.anomalous, 0);
  return chart(`Inspected parts over time, at most ${most.toLocaleString("en")} per bar, with ${alarms.toLocaleString("en")} alarms`, 190, (width, height) => {
    const place = frame(width, height, buckets, hours, { range: [0, most * 1.05], label: (value) => value.toLocaleString("en") });
    const floor = place.inner.bottom;
    const bars = buckets.map((one, index) => {
      if (!one.inspected) return null;
      const [x, wide] = [place.atX(index), place.atX(index + 1) - place.atX(index)];
      const gap = Math.min(3, wide / 5);
      const good = floor - place.atY(one.good);
      const bad = one.anomalous ? Math.max(3, floor - place.atY(one.anomalous)) : 0;
      const bar = (name, y, tall) => tall > 0 && s("rect", { class: name, x: x + gap / 2, width: Math.max(1, wide - gap), y, height: tall });
      return s("g", {}, s("title", {}, words(one, hours)), bar("good", floor - good, good), bar("anomalous", floor - good - bad - (good && bad ? 1 : 0), bad));
    });
    return [place.drawn, bars];
  }).el;
}
