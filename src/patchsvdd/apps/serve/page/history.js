/** History: all inspections, a chart of their scores, and drift since calibration. */

import { api, pictureOf, query } from "./api.js";
import { scoreChart } from "./chart.js";
import { announce, complain, count, h, icon, level, put, REVIEWS, time, VERDICTS } from "./dom.js";
import { downloadLink, downloadMenu } from "./downloads.js";
import { addressOf, asQuery, Filters, fromAddress } from "./filters.js";
import { Grid } from "./grid.js";
import { Result } from "./result.js";
import { state } from "./state.js";

export const title = "History";
const CHARTED = 1000;
const EVERY = 5000;
/** Milliseconds between two checks for new inspections. */
const MANY_ALARMS = 0.1;
/** Share of alarms from which a drift note leads with the parts instead of the camera. */
const FIRST_ID = "0".repeat(24);

let turn = () => false;
/** Open an inspection, or change the filters, within the view. */

export const turnTo = (rest) => turn(rest);

export async function mount(root, rest) {
  await state.refresh();
  let shown = fromAddress();
  let filter = asQuery(shown);
  let newest = FIRST_ID;
  let pinned = null;
  let opened = null;
  let closed = false;

  const filters = new Filters(() => { location.hash = addressOf(filters.chosen); });
  const summary = h("p", { class: "summary", role: "status" });
  const fresh = h("button", { type: "button", class: "main", hidden: true, onclick: load }, "");
  const exports = downloads();
  const chart = h("div", { class: "card scores", hidden: true });
  const drift = h("div", { class: "drifts" });
  const nothing = h("div", { class: "card empty", hidden: true });
  const grid = new Grid({
    label: "Inspections, newest first",
    fetch: async (offset, limit) => (await api.inspections({ ...filter, before: pinned, offset, limit })).inspections,
    draw,
    open: (row) => { location.hash = addressOf(shown, row.id); },
  });
  put(root, h("div", { class: "title" }, h("h1", {}, "History"), summary, h("div", { class: "title-actions" }, fresh, filters.toggle, exports.el)), filters.form, drift, chart, nothing, grid.el);

  const result = new Result({ onReview: (row) => changed(row) });
  const heading = h("h2", { id: "detail-title" });
  const step = (by) => h("button", { type: "button", class: "plain", "aria-label": by < 0 ? "Newer inspection" : "Older inspection", onclick: () => walk(by) }, icon(by < 0 ? "left" : "right"));
  const dialog = h("dialog", { class: "detail", "aria-labelledby": "detail-title",
    onclose: () => { if (!closed && location.hash.startsWith("#/history/")) location.hash = addressOf(shown); },
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

  async function load() {
    filters.show(shown);
    filter = asQuery(shown);
    const current = filter;
    fresh.hidden = true;
    exports.show(filter);
    try {
      const [counts, page] = await Promise.all([api.counts(filter), api.inspections({ ...filter, limit: 1 })]);
      if (current !== filter || closed) return;
      // Later inspections must not shift the rows: the list starts with the newest one of now.
      pinned = page.inspections.length ? after(page.inspections[0].id) : null;
      newest = (page.inspections[0] ?? (await api.inspections({ limit: 1 })).inspections[0])?.id ?? FIRST_ID;
      if (current !== filter || closed) return;
      tell(counts, null);
      exports.el.hidden = counts.total === 0;
      drawNothing(counts.total);
      grid.reset(counts.total);
      await Promise.all([drawChart(current), drawDrift(current), drawOpenAlarms(current, counts)]);
    } catch (error) {
      if (current === filter && !closed) complain(error);
    }
  }

  /** Say how many inspections there are; `open` is the number of alarms without a review, if known. */
  function tell(counts, open) {
    const alarms = counts.verdict.anomalous ?? 0;
    put(summary, counts.total ? [`${count(counts.total, "inspection")}, ${alarms.toLocaleString("en")} anomalous`,
      open !== null && [", ", state.may("review") && open > 0 ? h("a", { href: "#/review" }, `${count(open, "alarm")} not reviewed`) : `${count(open, "alarm")} not reviewed`]] : "No inspections");
  }

  /** The number of alarms without a review: good parts need none. */
  async function drawOpenAlarms(current, counts) {
    let open = 0;
    if (current.verdict === "anomalous") open = counts.review.none ?? 0;
    else if (current.review === "none") open = counts.verdict.anomalous ?? 0;
    else if (current.review || !counts.verdict.anomalous) return;
    else open = (await api.counts({ ...current, verdict: "anomalous", review: "none" })).total;
    if (current === filter && !closed) tell(counts, open);
  }

  function drawNothing(total) {
    nothing.hidden = total > 0;
    if (total > 0) return;
    const filtered = Object.keys(shown).length > 0;
    put(nothing, filtered
      ? [h("h2", {}, "No inspection matches these filters"), h("p", {}, h("a", { class: "button", href: "#/history" }, "Show all inspections"))]
      : [h("h2", {}, "No inspections yet"), h("p", {}, "Every inspected image is kept here with its heat map, its verdict and your review: search it, compare scores over time, and download it."),
        h("p", {}, h("a", { class: "button main", href: "#/inspect" }, "Inspect an image"))]);
  }

  async function drawChart(current) {
    const data = await api.scores({ ...current, limit: CHARTED });
    if (current !== filter || closed) return;
    chart.hidden = !data.id.length;
    const known = new Map();
    const more = async (id) => {
      if (!known.has(id)) known.set(id, await api.inspection(id));
      const row = known.get(id);
      return [row.has_picture && h("img", { src: pictureOf(id, 256), alt: "" }), h("p", { class: "file" }, row.name)];
    };
    put(chart, h("h2", {}, `Scores of the latest ${count(data.id.length, "inspection")}`, h("small", { class: "quiet" }, " in multiples of the threshold")),
      scoreChart(data, (id) => { location.hash = addressOf(shown, id); }, more));
  }

  async function drawDrift(current) {
    const names = state.models.map((one) => one.name).filter((name) => !current.model || name === current.model);
    const results = await Promise.all(names.map(async (name) => {
      try {
        const found = await api.drift(name);
        if (!found.changes.length) return null;
        const { verdict } = await api.scores({ model: name, limit: 2 * found.block });
        return { name, changes: found.changes, many: verdict.length, alarms: verdict.filter((one) => one === "anomalous").length };
      } catch {
        return null;  // the model is not calibrated
      }
    }));
    if (closed || current !== filter) return;
    put(drift, results.filter(Boolean).map(driftNote));
  }

  function driftNote({ name, changes, many, alarms }) {
    const often = alarms > MANY_ALARMS * many;
    const link = h("a", { href: addressOf({ model: name, verdict: "anomalous" }) }, `latest alarms of ${name}`);
    return h("div", { class: "hint drift" }, icon("warn"),
      h("div", {}, h("p", {}, h("strong", {}, `Images or parts for ${name} have changed since calibration.`)),
        h("ul", {}, changes.map((change) => h("li", {}, `${change.meaning[0].toUpperCase()}${change.meaning.slice(1)}: ${change.direction} than at calibration`))),
        often
          ? h("p", {}, `${alarms.toLocaleString("en")} of the latest ${count(many, "inspection")} were anomalous. Look at the `, link, " first: if the parts are defective, the camera needs no change. If they are good, check the light, the focus and the position of the camera.")
          : h("p", {}, `Detected in the latest ${count(many, "inspection")}. Check the light, the focus and the position of the camera, and look at the `, link, ": the parts may have changed instead."),
        h("p", { class: "quiet" }, "If the change is permanent, calibrate or train again.")));
  }

  function indexOf(id) {
    for (const [page, rows] of grid.pages) {
      const index = rows.findIndex((row) => row.id === id);
      if (index >= 0) return page * 100 + index;
    }
    return -1;
  }

  async function walk(by) {
    const at = indexOf(opened?.id);
    const index = at + by;
    if (at < 0 || index < 0 || index >= grid.total) return;
    await grid.load(Math.floor(index / 100));
    const row = grid.row(index);
    if (row && !closed && dialog.open) location.replace(addressOf(shown, row.id));
  }

  async function open(id) {
    try {
      const index = indexOf(id);
      const row = index >= 0 ? grid.row(index) : await api.inspection(id);
      if (closed || !location.hash.startsWith(`#/history/${id}`)) return;
      opened = row;
      result.show(opened);
      heading.textContent = opened.name;
      announce(`${opened.name}: ${VERDICTS[opened.verdict]}, ${level(opened.score, opened.threshold)}`);
      if (!dialog.open) dialog.showModal();
    } catch (error) {
      if (closed) return;
      complain(error);
      location.hash = addressOf(shown);
    }
  }

  function changed(row) {
    opened = row;
    const index = indexOf(row.id);
    if (index >= 0) grid.change(index, row);
  }

  turn = (to) => {
    if (closed) return false;
    const wanted = fromAddress();
    if (query(wanted) !== query(shown)) {
      shown = wanted;
      load();
    }
    if (to.length) open(to[0]);
    else if (dialog.open) dialog.close();
    return true;
  };

  let checking = false;
  async function check() {
    if (document.hidden || checking || closed) return;
    checking = true;
    const current = filter;
    try {
      const { total } = await api.counts({ ...current, after: newest });
      if (current !== filter || closed) return;
      fresh.hidden = total === 0;
      fresh.textContent = `Show ${total.toLocaleString("en")} new`;
    } catch { /* the next check will retry */ } finally {
      checking = false;
    }
  }
  const watch = setInterval(check, EVERY);
  document.addEventListener("visibilitychange", check);

  await load();
  if (rest.length && !closed) open(rest[0]);
  return () => {
    closed = true;
    clearInterval(watch);
    document.removeEventListener("visibilitychange", check);
    exports.close();
    grid.close();
    if (dialog.open) dialog.close();
  };
}

/** A menu of downloads of the filtered inspections. */
function downloads() {
  const links = Object.entries({ csv: ["Table", "CSV"], pdf: ["Report", "PDF"], zip: ["Images", "ZIP"] }).map(([kind, [words, name]]) => [kind, downloadLink(words, name)]);
  const labels = Object.entries({ coco: "COCO", labelme: "LabelMe", "label-studio": "Label Studio" }).map(([format, name]) => [format, downloadLink("Labels", name)]);
  const menu = downloadMenu([...[...links, ...labels].map(([, link]) => link), downloadLink("Shift report", "Overview", { href: "#/overview" })], { hidden: true });
  return {
    ...menu,
    show: (filter) => {
      for (const [kind, link] of links) link.setAttribute("href", `/v1/reports/inspections.${kind}${query(filter)}`);
      for (const [format, link] of labels) link.setAttribute("href", `/v1/reports/labels.json${query({ ...filter, format })}`);
    },
  };
}

/** The id directly after another, so that "before" it includes that one. */
function after(id) {
  return (BigInt(`0x${id}`) + 1n).toString(16).padStart(24, "0");
}
