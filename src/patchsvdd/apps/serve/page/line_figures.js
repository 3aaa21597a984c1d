/** Yield and counts of the shift, and the p-chart. */

import { axes, chart } from "./chart.js";
import { h, put, s } from "./dom.js";
import { clock, figure, share, t } from "./language.js";
import { shape, word } from "./line_signs.js";

const VERDICTS = ["good", "anomalous", "incomplete", "error"];
const POINTS = { false: "chart.point", true: "chart.point-outside" };
/** Texts of a point, by whether it is outside the limits. */
const chartHeight = () => (window.innerHeight < 900 ? 118 : 168);

export class Figures {
  /** `onPeriod` is called when another period is chosen. */
  constructor(period, onPeriod) {
    const options = [["shift", t("period.shift")], ["previous", t("period.previous")], ["8", t("period.hours", { hours: 8 })], ["24", t("period.hours", { hours: 24 })]];
    this.choice = h("select", { id: "period", "aria-label": t("label.period"), onchange: () => onPeriod(this.choice.value) }, options.map(([value, text]) => h("option", { value }, text)));
    this.choice.value = period;
    this.since = h("p", { class: "quiet since" });
    this.yield = h("p", { class: "yield" });
    this.counts = h("dl", { class: "counts" });
    this.plot = h("div", { class: "p-chart" });
    this.el = h("section", { class: "figures", "aria-label": t("label.figures") },
      h("div", { class: "figures-card" }, h("div", { class: "figures-head" }, this.choice, this.since), h("div", { class: "figures-body" }, this.yield, this.counts)),
      h("div", { class: "figures-card" }, h("h2", {}, t("chart.title")), this.plot));
    this.drawn = null;
  }

  show(data) {
    const text = JSON.stringify([data.since, data.counts, data.buckets]);
    if (text === this.drawn) return;
    this.drawn = text;
    this.since.textContent = t("figures.since", { time: clock(data.since, false), parts: figure(data.parts) });
    put(this.yield, h("strong", {}, share(data.yield)), h("span", {}, t("figures.yield")));
    put(this.counts, VERDICTS.map((one) => h("div", { "data-kind": one }, h("dt", {}, shape(one), word(one)), h("dd", {}, figure(data.counts[one])))));
    put(this.plot, pChart(data));
  }
}

/** Shares of anomalous parts over time with centre line and control limits; points outside are larger diamonds. */
function pChart({ buckets, centre }) {
  if (centre === null) return h("p", { class: "quiet" }, t("chart.none"));
  const outside = buckets.filter((one) => one.outside);
  const most = Math.max(0.02, ...buckets.flatMap((one) => [one.share ?? 0, Math.min(one.high ?? 0, 6 * centre)]));
  const summary = t("chart.summary", { centre: share(centre), outside: figure(outside.length), points: figure(buckets.length) });
  return chart(summary, chartHeight(), (width, height) => {
    const every = Math.max(1, Math.ceil(buckets.length / Math.max(2, Math.floor(width / 90))));
    const marks = buckets.map((_, index) => index).filter((index) => index % every === 0);
    const frame = axes(width, height, { range: [0, buckets.length], ticks: marks, label: (index) => clock(buckets[index].start, false) },
      { range: [0, Math.min(1, most * 1.12)], label: (value) => share(value) }, {});
    const y = (value) => Math.max(frame.inner.top, frame.atY(value)).toFixed(1);
    const steps = (name) => buckets.map((one, index) => (one[name] === null ? "" : `M${frame.atX(index).toFixed(1)} ${y(one[name])}H${frame.atX(index + 1).toFixed(1)}`)).join("");
    const level = y(centre);
    let line = "";
    let joined = false;
    const points = buckets.map((one, index) => {
      if (one.share === null) {
        joined = false;
        return null;
      }
      const [x, at] = [frame.atX(index + 0.5), Number(y(one.share))];
      line += `${joined ? "L" : "M"}${x.toFixed(1)} ${at}`;
      joined = true;
      const text = t(POINTS[one.outside], { from: clock(one.start, false), to: clock(one.end, false), share: share(one.share), bad: figure(one.nonconforming), parts: figure(one.size), low: share(one.low), high: share(one.high) });
      const mark = one.outside ? s("path", { class: "point outside", d: `M${x} ${at - 8}l8 8l-8 8l-8-8z` }) : s("circle", { class: "point", cx: x, cy: at, r: 4 });
      mark.append(s("title", {}, text));
      return mark;
    });
    return [frame.drawn, s("path", { class: "limits", d: steps("high") + steps("low") }), s("line", { class: "centre", x1: frame.inner.left, x2: frame.inner.right, y1: level, y2: level }),
      s("path", { class: "joined", d: line }), points, s("text", { class: "name", x: frame.inner.right, y: Number(level) - 5, "text-anchor": "end" }, `p̄ ${share(centre)}`)];
  }).el;
}
