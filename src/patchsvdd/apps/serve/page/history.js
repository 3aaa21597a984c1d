/** History: all inspections, a chart of their scores, and drift since calibration. */

import { api, pictureOf } from "./api.js";
import { scoreChart } from "./chart.js";
import { announce, complain, count, h, icon, level, number, put, REVIEWS, time, VERDICTS } from "./dom.js";
import { Grid } from "./grid.js";
import { Result } from "./result.js";
import { modelChoice, state } from "./state.js";

export const title = "History";
const CHARTED = 1000;
const EVERY = 5000;
/** Milliseconds between two checks for new inspections. */

let turn = () => false;
/** Open an inspection within the view. */

export const turnTo = (rest) => turn(rest);

export async function mount(root, rest) {
  await state.refresh();
  let filter = {};
  let pinned = null;
  let opened = null;
  let closed = false;

  const select = (id, label, options) => h("div", { class: "field" }, h("label", { for: id }, label),
    h("select", { id, onchange: load }, Object.entries(options).map(([value, words]) => h("option", { value }, words))));
  const input = (id, label, type) => h("div", { class: "field" }, h("label", { for: id }, label), h("input", { id, type, onchange: load }));
  const model = modelChoice(load, { all: true, id: "of-model", value: "" });
  const filters = h("form", { class: "tools filters", "aria-label": "Filter inspections", onsubmit: (event) => event.preventDefault() }, model,
    select("of-verdict", "Verdict", { "": "Any", anomalous: "Anomalous", good: "Good" }),
    select("of-review", "Review", { "": "Any", none: "Not reviewed", false_alarm: "False alarm", true_defect: "True defect", unsure: "Unsure" }),
    input("since", "From", "date"), input("until", "To", "date"), input("name", "Name contains", "search"));
  const summary = h("p", { class: "summary", role: "status" });
  const fresh = h("button", { type: "button", class: "main", hidden: true, onclick: load }, "");
  const chart = h("div", { class: "card" });
  const drift = h("div", {});
  const grid = new Grid({
    label: "Inspections, newest first",
    fetch: async (offset, limit) => (await api.inspections({ ...filter, before: pinned, offset, limit })).inspections,
    draw,
    open: (row) => { location.hash = `#/history/${row.id}`; },
  });
  put(root, h("div", { class: "title" }, h("h1", {}, "History"), summary, fresh), filters, drift, chart, grid.el);

  const result = new Result({ onReview: (row) => changed(row) });
  const heading = h("h2", { id: "detail-title" });
  const step = (by) => h("button", { type: "button", class: "plain", "aria-label": by < 0 ? "Newer inspection" : "Older inspection", onclick: () => walk(by) }, icon(by < 0 ? "left" : "right"));
  const dialog = h("dialog", { class: "detail", "aria-labelledby": "detail-title",
    onclose: () => { if (location.hash !== "#/history" && location.hash.startsWith("#/history")) location.hash = "#/history"; },
    onkeydown: (event) => {
      if (event.target.matches("input, select, textarea")) return;
      if (event.key === "ArrowLeft") walk(-1);
      if (event.key === "ArrowRight") walk(1);
    } },
    h("header", {}, heading, step(-1), step(1),
      h("button", { type: "button", class: "plain", "aria-label": "Close", onclick: () => dialog.close() }, icon("close"))), result.el);
  root.append(dialog);

  function draw(row) {
    return [row.has_picture ? h("img", { src: pictureOf(row.id, 256), alt: "", loading: "lazy", decoding: "async" }) : h("span", { class: "no-picture" }, "image deleted"),
      h("span", { class: "caption" }, icon(row.verdict), h("span", { class: "unseen" }, `${VERDICTS[row.verdict]}, `), h("strong", {}, level(row.score, row.threshold)),
        h("span", { class: "name" }, row.name)),
      h("span", { class: "caption second" }, h("span", {}, time(row.at)), row.review && h("span", { class: `said ${row.review.verdict}` }, REVIEWS[row.review.verdict]))];
  }

  function day(id, days) {
    const value = filters.querySelector(`#${id}`).value;
    if (!value) return null;
    const [year, month, date] = value.split("-").map(Number);
    return new Date(year, month - 1, date + days).getTime() / 1000;
  }

  async function load() {
    const value = (id) => filters.querySelector(`#${id}`).value;
    filter = { model: value("of-model"), verdict: value("of-verdict"), review: value("of-review"), since: day("since", 0), until: day("until", 1), name: value("name").trim() };
    const current = filter;
    fresh.hidden = true;
    try {
      const [counts, page] = await Promise.all([api.counts(filter), api.inspections({ ...filter, limit: 1 })]);
      if (current !== filter || closed) return;
      // Later inspections must not shift the rows: the list starts with the newest one of now.
      pinned = page.inspections.length ? after(page.inspections[0].id) : null;
      const total = counts.total;
      const alarms = counts.verdict.anomalous ?? 0;
      summary.textContent = total ? `${count(total, "inspection")}, ${alarms.toLocaleString("en")} anomalous, ${(counts.review.none ?? 0).toLocaleString("en")} not reviewed` : "No inspections.";
      grid.reset(total);
      await Promise.all([drawChart(current), drawDrift(current.model)]);
    } catch (error) {
      complain(error);
    }
  }

  async function drawChart(current) {
    const data = await api.scores({ ...current, limit: CHARTED });
    if (current !== filter || closed) return;
    chart.hidden = !data.id.length;
    put(chart, h("h2", {}, `Scores of the latest ${count(data.id.length, "inspection")}`),
      scoreChart(data, (id) => { location.hash = `#/history/${id}`; }));
  }

  async function drawDrift(name) {
    const names = name ? [name] : state.models.map((one) => one.name);
    const results = await Promise.all(names.map(async (one) => {
      try {
        return { name: one, ...(await api.drift(one)) };
      } catch {
        return null;  // the model is not calibrated
      }
    }));
    if (closed) return;
    put(drift, results.filter((one) => one?.changes.length).map((one) => h("div", { class: "hint drift" }, icon("warn"),
      h("div", {}, h("p", {}, h("strong", {}, `Images for ${one.name} have changed since calibration.`)),
        h("ul", {}, one.changes.map((change) => h("li", {}, `${change.meaning[0].toUpperCase()}${change.meaning.slice(1)}: ${change.direction} than at calibration`))),
        h("p", { class: "quiet" }, `Detected in the latest ${count(2 * one.block, "inspection")}. Check the light, the focus and the position of the camera; if the change is permanent, calibrate or train again.`)))));
  }

  function indexOf(id) {
    for (const [page, rows] of grid.pages) {
      const index = rows.findIndex((row) => row.id === id);
      if (index >= 0) return page * 100 + index;
    }
    return -1;
  }

  async function walk(by) {
    const index = indexOf(opened?.id) + by;
    if (index < 0 || index >= grid.total) return;
    await grid.load(Math.floor(index / 100));
    const row = grid.row(index);
    if (row) location.replace(`#/history/${row.id}`);
  }

  async function open(id) {
    try {
      const index = indexOf(id);
      opened = index >= 0 ? grid.row(index) : await api.inspection(id);
      result.show(opened);
      heading.textContent = opened.name;
      announce(`${opened.name}: ${VERDICTS[opened.verdict]}, score ${number(opened.score)}`);
      if (!dialog.open) dialog.showModal();
    } catch (error) {
      complain(error);
      location.hash = "#/history";
    }
  }

  function changed(row) {
    opened = row;
    const index = indexOf(row.id);
    if (index >= 0) grid.change(index, row);
  }

  turn = (rest) => {
    if (closed) return false;
    if (rest.length) open(rest[0]);
    else if (dialog.open) dialog.close();
    return true;
  };

  const watch = setInterval(async () => {
    if (document.hidden || !pinned) return;
    try {
      const now = await api.counts({ ...filter, since: filter.since });
      const more = now.total - grid.total;
      fresh.hidden = more <= 0;
      fresh.textContent = `Show ${more.toLocaleString("en")} new`;
    } catch { /* the next check will retry */ }
  }, EVERY);

  await load();
  if (rest.length) open(rest[0]);
  return () => {
    closed = true;
    clearInterval(watch);
    grid.close();
    if (dialog.open) dialog.close();
  };
}

/** The id directly after another, so that "before" it includes that one. */
function after(id) {
  return (BigInt(`0x${id}`) + 1n).toString(16).padStart(24, "0");
}
