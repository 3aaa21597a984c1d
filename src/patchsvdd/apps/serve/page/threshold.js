/** The threshold of a model: its calibration, and what another threshold would have meant. Changes nothing. */

import { calibrationChart, histogram } from "./chart.js";
import { count, h, number, put } from "./dom.js";

/** The section about the threshold; `data` has the scores of the last inspections. */
export function thresholdSection(model, data) {
  const { scores: good, threshold: now } = model.calibration;
  const most = 1.05 * Math.max(now, ...good, ...(data.score.length ? data.score : [0]));
  const curve = calibrationChart(good, now);
  const bars = data.score.length ? histogram(data.score, now, most) : null;
  const slider = h("input", { id: "try", type: "range", min: 0, max: 1000, step: 1, oninput: draw, "aria-describedby": "meaning" });
  const exact = h("output", { for: "try" });
  const raw = h("span", {});
  const meaning = h("div", { class: "meaning", id: "meaning", role: "status" });
  // Quadratic, so that the slider is most precise in the range of typical thresholds.
  const valueOf = (place) => most * (place / 1000) ** 2;
  const placeOf = (value) => String(Math.round(1000 * Math.sqrt(value / most)));
  const older = data.identity.filter((one) => one !== model.identity).length;

  function draw(event) {
    const same = slider.value === placeOf(now);
    const tried = same ? now : valueOf(Number(slider.value));
    if (event) { curve.set(tried); bars?.set(tried); }
    raw.textContent = number(tried);
    exact.textContent = `${number(tried / now)}×`;
    slider.setAttribute("aria-valuetext", `${number(tried / now)} times the model's threshold`);
    const above = (list, limit) => list.filter((score) => score > limit).length;
    const of = (review) => data.score.filter((_, index) => data.review[index] === review);
    const [alarms, defects] = [of("false_alarm"), of("true_defect")];
    const row = (name, list) => h("tr", {}, h("th", { scope: "row" }, name), h("td", { class: "figure" }, above(list, now).toLocaleString("en")),
      h("td", { class: "figure" }, h("strong", {}, above(list, tried).toLocaleString("en"))), h("td", { class: "figure quiet" }, `of ${list.length.toLocaleString("en")}`));
    put(meaning, h("table", {}, h("thead", {}, h("tr", {}, ["Above the threshold", "now", `at ${number(tried / now)}×`, "in all"].map((words) => h("th", { scope: "col" }, words)))),
      h("tbody", {}, row("Inspections (anomalous)", data.score), row("Reviewed false alarms", alarms), row("Reviewed true defects", defects), row("Good calibration images", good))));
  }

  const section = h("section", { class: "card" }, h("h2", {}, "Threshold"),
    h("div", { class: "two" },
      h("div", {}, h("h3", {}, `Calibration: ${count(good.length, "good image")}`), curve.el),
      h("div", {}, h("h3", {}, data.score.length ? `The last ${count(data.score.length, "inspection")}` : "No inspections yet"), bars?.el ?? h("p", { class: "quiet" }, "Inspect some images to see the effect of another threshold."))),
    h("div", { class: "try" }, h("label", { for: "try" }, "Try a threshold"), slider, exact, h("button", { type: "button", onclick: () => { slider.value = placeOf(now); draw(true); } }, "Reset to the model's")),
    meaning,
    h("p", { class: "help" }, older > 0 && `${count(older, "of these inspections was", "of these inspections were")} made with an earlier version of the model. `, "Scores are multiples of the model's threshold. Trying one changes nothing. To set it, use the chart above, or ", h("code", {}, "patchsvdd calibrate MODEL"), "."),
    h("details", { class: "raw" }, h("summary", {}, "Raw scores"), h("p", {}, `The model's threshold (1×) is a score of ${number(now)}. The tried one is `, raw, ".")));
  slider.value = placeOf(now);
  draw();
  return section;
}
