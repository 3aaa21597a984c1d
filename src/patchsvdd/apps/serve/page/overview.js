/** Overview: the landing view. Key figures of the last hours, models, alarms, jobs, disk space; refreshed on its own. */

import { api, pictureOf, shiftReport } from "./api.js";
import { complain, count, h, icon, level, percent, progress, put, remember, remembered, time } from "./dom.js";
import { alarmChart, yieldChart } from "./overview_chart.js";
import { state } from "./state.js";

export const title = "Overview";
const EVERY = 10000;
/** Milliseconds between two refreshes. */
const PERIODS = { 8: "8 hours", 24: "24 hours", 168: "7 days" };
const KINDS = { train: "Training", learn: "Learning", undo: "Undoing", preview: "Preview of learning", threshold: "New threshold", recalibrate: "Calibrating" };
const PLACES = { train: () => "#/train", threshold: modelPlace, recalibrate: modelPlace };
/** Where a job is followed; the others under Review. */

export async function mount(root) {
  let hours = Number(remembered("hours", "8"));
  if (!(hours in PERIODS)) hours = 8;
  let closed = false;
  let timer = 0;
  let turn = 0;
  const drawn = new Map();

  const choices = Object.entries(PERIODS).map(([value, words]) => h("button", { type: "button", "data-hours": value, onclick: () => choose(Number(value)) }, words));
  const fresh = h("p", { class: "summary" });
  const report = h("a", { class: "button", download: true }, "Shift report");
  const pdf = h("a", { class: "button", download: true, "aria-label": "Shift report as PDF" }, "PDF");
  const note = h("div", {});
  const parts = Object.fromEntries(["tiles", "chart", "alarms", "models", "quality", "jobs", "disk", "stations"].map((name) => [name, h("section", { class: `card over-${name}` })]));
  parts.tiles.className = "over-tiles";
  put(root, h("div", { class: "title over-title" }, h("h1", {}, "Overview"),
    h("div", { class: "periods", role: "group", "aria-label": "Period" }, choices), fresh, h("div", { class: "over-reports" }, report, pdf)),
  note, parts.tiles, h("div", { class: "over-grid" },
    h("div", { class: "over-main" }, parts.chart, parts.alarms, parts.stations),
    h("div", { class: "over-side" }, parts.models, parts.jobs, parts.quality, parts.disk)));
  for (const part of Object.values(parts)) part.hidden = true;

  function choose(value) {
    hours = value;
    remember("hours", String(value));
    load();
  }

  /** Draw a part if its data changed; the focus stays where it was. */
  function show(name, data, draw) {
    const text = JSON.stringify(data);
    if (drawn.get(name) === text) return;
    drawn.set(name, text);
    const part = parts[name] ?? note;
    const focus = [...part.querySelectorAll("a, button, input, summary")].indexOf(document.activeElement);
    const open = part.querySelector("details")?.open;
    const content = draw();
    part.hidden = !content;
    put(part, content);
    if (open) part.querySelector("details")?.setAttribute("open", "");
    if (focus >= 0) part.querySelectorAll("a, button, input, summary")[focus]?.focus({ preventScroll: true });
  }

  async function load() {
    const mine = ++turn;
    clearTimeout(timer);
    for (const one of choices) one.setAttribute("aria-pressed", String(Number(one.dataset.hours) === hours));
    const start = Math.floor(Date.now() / 1000) - 3600 * hours;
    report.href = shiftReport({ start, format: "html" });
    pdf.href = shiftReport({ start, format: "pdf" });
    try {
      const data = await api.overview(hours);
      if (closed || mine !== turn) return;
      draw(data);
    } catch (error) {
      if (closed || mine !== turn) return;
      if (error.status === 0 || error.status === 503) fresh.textContent = "The service does not respond; trying again.";
      else complain(error);
    }
    timer = setTimeout(() => (document.hidden ? null : load()), EVERY);
  }

  function draw(data) {
    const newcomer = data.empty || !data.models.length;
    fresh.textContent = `As of ${time(data.until)}`;
    show("note", [newcomer, data.models.length, data.inspected === 0, hours], () => (newcomer ? welcome(data) : data.inspected === 0 && h("p", { class: "hint" }, icon("warn"), `Nothing was inspected in the last ${PERIODS[hours]}.`)));
    report.parentElement.hidden = newcomer;
    if (data.empty) {
      for (const name of ["tiles", "chart", "alarms", "stations", "quality"]) parts[name].hidden = true;
      drawn.delete("tiles");
    } else {
      show("tiles", [data.inspected, data.anomalous, data.false_alarms, data.estimate, data.to_review, data.not_inspected, hours, data.models.map((one) => one.due)], () => tiles(data));
      show("chart", [data.buckets, hours], () => charts(data));
      show("alarms", data.alarms.map((one) => [one.id, one.review?.verdict]), () => alarms(data.alarms));
      show("stations", data.stations, () => data.stations.length > 0 && stations(data.stations));
      show("quality", data.models.map((one) => [one.name, one.per_day, one.due, one.estimate]), () => quality(data.models));
    }
    show("models", data.models, () => data.models.length > 0 && models(data.models));
    show("jobs", data.jobs, () => data.jobs.length > 0 && jobs(data.jobs));
    show("disk", { ...data.disk, free: Math.round((data.disk.free ?? 0) / 1e8) }, () => disk(data.disk));
  }

  /** What a newcomer does first. */
  function welcome(data) {
    const served = data.models.filter((one) => one.served);
    if (!served.length) {
      return h("div", { class: "card empty" }, h("h2", {}, "Train a model from pictures of good parts"),
        h("p", {}, "The model learns what good parts look like and marks what differs. No pictures of defects are needed."),
        state.may("admin") ? h("p", {}, h("a", { class: "button main", href: "#/train" }, "Train a model")) : h("p", { class: "quiet" }, "Ask an administrator to train one."));
    }
    const key = state.me?.key_needed ? " -H 'Authorization: Bearer psk_…'" : "";
    return h("div", { class: "card empty" }, h("h2", {}, `${served.length === 1 ? `The model ${served[0].name} is` : `${served.length} models are`} ready`),
      h("p", {}, "Inspect the first part on this page, with a file or the camera:"),
      h("p", {}, h("a", { class: "button main", href: "#/inspect" }, "Inspect a part")),
      h("p", {}, "or let a machine send pictures:"),
      h("p", {}, h("code", { class: "command" }, `curl${key} -F file=@part.png ${location.origin}/v1/models/${served[0].name}/inspect`)),
      h("p", { class: "quiet" }, "The figures of the line will appear here. ", h("a", { href: "/docs" }, "All about the API"), "."));
  }

  function tiles(data) {
    const tile = (kind, name, value, more, href) => h(href ? "a" : "div", { class: `over-tile ${kind}`, href }, h("span", { class: "name" }, name), h("strong", {}, value), more && h("span", { class: "more" }, more));
    const { estimate, false_alarms: wrong } = data;
    const due = data.models.reduce((sum, one) => sum + one.due, 0);
    return [
      tile("good", "Yield", data.yield === null ? "–" : share(data.yield), `${data.good.toLocaleString("en")} of ${data.inspected.toLocaleString("en")} judged good`),
      tile("bad", "Alarms", data.anomalous.toLocaleString("en"), `${rate(data.alarms_per_hour)} per hour`),
      tile("", "Inspected", data.inspected.toLocaleString("en"), [`${rate(data.inspected_per_hour)} per hour`, data.not_inspected.count > 0 && h("span", { class: "sub" }, `${data.not_inspected.count.toLocaleString("en")} not inspected since ${time(data.not_inspected.since)}`)]),
      tile("", "To review", (data.to_review + due).toLocaleString("en"), `${count(data.to_review, "alarm")}${due ? `, ${count(due, "good part")} of the sample` : ""}`, state.may("review") ? "#/review" : null),
      tile("", "False alarms", wrong.share === null ? "–" : share(wrong.share), wrong.of ? `of ${count(wrong.of, "reviewed alarm")}; ${range(wrong)}` : "no alarm reviewed yet"),
      tile("", "Missed defects", estimate.missed_defects.share === null ? "–" : share(estimate.missed_defects.share), missedWords(estimate)),
    ];
  }

  function charts(data) {
    const rows = data.buckets.map((one) => h("tr", {}, h("th", { scope: "row" }, clock(one.start)), h("td", {}, one.inspected.toLocaleString("en")), h("td", {}, one.anomalous.toLocaleString("en")), h("td", {}, one.yield === null ? "–" : share(one.yield))));
    return [h("h2", {}, `The last ${PERIODS[hours]}`),
      h("h3", {}, "Yield"), yieldChart(data.buckets, hours),
      h("h3", { class: "over-legend" }, "Parts per bar", h("span", { class: "key good" }, "good"), h("span", { class: "key bad" }, "alarms")), alarmChart(data.buckets, hours),
      h("details", {}, h("summary", {}, "As a table"), h("div", { class: "over-scroll", tabindex: "0", role: "region", "aria-label": "Figures over time" }, h("table", {}, h("thead", {}, h("tr", {}, ["From", "Inspected", "Alarms", "Yield"].map((name) => h("th", { scope: "col" }, name)))), h("tbody", {}, rows))))];
  }

  function alarms(list) {
    if (!list.length) return [h("h2", {}, "Latest alarms"), h("p", { class: "quiet" }, `No alarm in the last ${PERIODS[hours]}.`)];
    return [h("h2", {}, "Latest alarms"), h("ul", { class: "over-thumbs" }, list.map((one) => h("li", {}, h("a", { href: `#/history/${one.id}` },
      one.has_picture ? h("img", { src: pictureOf(one.id, 256), alt: "", loading: "lazy", decoding: "async" }) : h("span", { class: "no-picture" }, "image deleted"),
      h("span", { class: "badge anomalous" }, icon("anomalous"), h("span", { class: "unseen" }, "Alarm "), level(one.score, one.threshold)),
      h("span", { class: "over-name" }, one.name), h("span", { class: "quiet" }, `${one.model} · ${time(one.at)}`)))))];
  }

  function models(list) {
    return [h("h2", {}, "Models"), h("ul", { class: "over-list" }, list.map((one) => h("li", {},
      h("div", { class: "over-line" }, icon(one.trouble || !one.served ? "warn" : one.drift.length ? "unsure" : "good"), h("a", { href: `#/models/${encodeURIComponent(one.name)}` }, one.name),
        h("strong", {}, one.yield === null ? "" : share(one.yield))),
      h("p", { class: "quiet" }, one.inspected ? `${one.inspected.toLocaleString("en")} inspected, ${count(one.anomalous, "alarm")}` : one.last ? `last inspection ${time(one.last)}` : "no inspection yet"),
      one.trouble && h("p", { class: "bad" }, one.trouble),
      !one.served && !one.trouble && h("p", { class: "quiet" }, "No longer served."),
      one.served && !one.calibrated && h("p", { class: "warn" }, "No threshold: calibrate it first."),
      one.drift.length > 0 && h("p", { class: "warn" }, `Pictures have changed since calibration: ${one.drift.map((change) => `${change.meaning} ${change.direction}`).join("; ")}. Check light, focus and camera.`),
      one.drift.some((change) => change.trait === "distance" && change.direction === "higher") && h("p", { class: "warn" }, "Good parts score higher than at calibration, so expect more false alarms. If the change is meant to stay, ", h("a", { href: `#/models/${encodeURIComponent(one.name)}` }, "calibrate again"), "."))))];
  }

  function jobs(list) {
    return [h("h2", {}, "Jobs"), h("ul", { class: "over-list" }, list.map((job) => h("li", {},
      h("div", { class: "over-line" }, h("a", { href: PLACES[job.kind]?.(job) ?? "#/review" }, `${KINDS[job.kind] ?? job.kind}: ${job.model}`), h("strong", {}, job.state === "running" ? left(job) : "waiting")),
      job.state === "running" && (Number.isFinite(job.fraction) ? progress(job.stage, job.fraction, 1) : progress(job.stage, job.done, job.total)),
      h("p", { class: "quiet" }, job.state === "running" ? job.stage : "waits for other work"))))];
  }

  function quality(list) {
    const rows = list.filter((one) => one.estimate);
    if (!rows.length) return null;
    const amount = (one) => {
      const field = h("input", { type: "number", min: 0, max: 1000, step: 1, value: one.per_day, "aria-label": `Good parts of ${one.name} to review per day`, onchange: () => set(field, one) });
      return field;
    };
    const line = (name, words) => [h("dt", {}, name), h("dd", {}, words)];
    return [h("h2", {}, "False alarms and misses"), h("p", { class: "help" }, `From reviews of the last ${rows[0].estimate.days} days, with 95 % intervals.`),
      h("ul", { class: "over-list" }, rows.map((one) => h("li", {}, h("h3", {}, one.name), h("dl", { class: "over-facts" },
        line("False alarms", one.estimate.false_alarms.of ? `${share(one.estimate.false_alarms.share)} of ${count(one.estimate.false_alarms.of, "reviewed alarm")} (${range(one.estimate.false_alarms)})` : "no alarm reviewed yet"),
        line("Defects in good parts", one.estimate.misses.of ? `${one.estimate.misses.hits} in ${count(one.estimate.misses.of, "sampled part")} (${range(one.estimate.misses)})` : "no sampled part reviewed yet"),
        line("Missed defects", one.estimate.missed_defects.share === null ? "not known yet" : `${share(one.estimate.missed_defects.share)} of all (${range(one.estimate.missed_defects)})`),
        line("Sample per day", state.may("admin") ? amount(one) : one.per_day ? String(one.per_day) : "off"))))),
      h("p", { class: "help" }, "Every day some good parts are drawn at random for review. Only so can misses be measured.")];
  }

  async function set(field, one) {
    if (!field.reportValidity() || field.value === "") return;
    try {
      await api.setSample(one.name, Number(field.value));
      if (!closed) load();
    } catch (error) {
      complain(error);
    }
  }

  function disk(facts) {
    if (facts.free === null) return [h("h2", {}, "Disk"), h("p", { class: "quiet" }, "The data folder cannot be read.")];
    const full = 1 - facts.free / facts.total;
    const low = facts.days_left !== null && facts.days_left < 14;
    return [h("h2", {}, "Disk"), h("div", { class: "over-line" }, h("span", {}, "Free"), h("strong", {}, bytes(facts.free))),
      h("meter", { min: 0, max: 1, high: 0.9, optimum: 0, value: full.toFixed(3), "aria-label": `Disk ${percent(full)} full` }),
      h("p", { class: "quiet" }, `${bytes(facts.used)} of pictures${facts.per_day ? `, ${bytes(facts.per_day)} more per day` : ""}.`),
      facts.days_left !== null && h("p", { class: low ? "bad" : "quiet" }, facts.days_left > 730 ? "Lasts for years at this rate." : `Full in about ${count(Math.max(1, Math.round(facts.days_left)), "day")} at this rate.`),
      h("p", { class: "quiet" }, facts.keep_days || facts.keep_bytes ? `Kept: ${[facts.keep_days && count(facts.keep_days, "day"), facts.keep_bytes && bytes(facts.keep_bytes)].filter(Boolean).join(", at most ")}.` : "Pictures are kept without limit (--keep-days, --keep-gb).")];
  }

  function stations(list) {
    return [h("h2", {}, "Lines and stations"), h("div", { class: "over-scroll", tabindex: "0", role: "region", "aria-label": "Lines and stations" }, h("table", {}, h("thead", {}, h("tr", {}, ["Line", "Station", "Inspected", "Alarms", "Yield"].map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", {}, list.map((one) => h("tr", {}, h("th", { scope: "row" }, one.line ?? "–"), h("td", {}, one.station ?? "–"), h("td", {}, one.inspected.toLocaleString("en")), h("td", {}, one.anomalous.toLocaleString("en")), h("td", {}, share(one.yield)))))))];
  }

  const seen = () => { if (!document.hidden && !closed) load(); };
  document.addEventListener("visibilitychange", seen);
  await load();
  return () => {
    closed = true;
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", seen);
  };
}

/** The view of a job's model. */
function modelPlace(job) {
  return `#/models/${encodeURIComponent(job.model)}`;
}

/** A share in per cent; never 100 % unless it is all. */
function share(value) {
  const most = 100 * value;
  if (most < 90 || most >= 100) return percent(value);
  return `${Math.min(99.99, most).toFixed(most > 99.9 ? 2 : 1)} %`;
}

const range = (one) => `${share(one.low)} to ${share(one.high)}`;
const rate = (value) => (value >= 100 ? Math.round(value).toLocaleString("en") : value >= 10 ? value.toFixed(0) : value.toFixed(1));
const clock = (text) => new Date(text).toLocaleString([], { weekday: "short", hour: "2-digit", minute: "2-digit", hour12: false });

function missedWords(estimate) {
  if (estimate.missed_defects.share !== null) return `of all defects, ${range(estimate.missed_defects)}; last ${estimate.days} days`;
  if (estimate.misses.of) return `${estimate.misses.hits} in ${count(estimate.misses.of, "sampled good part")}`;
  return "review the daily sample of good parts";
}

function bytes(value) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let index = 0;
  let rest = value;
  while (rest >= 1000 && index < units.length - 1) [rest, index] = [rest / 1000, index + 1];
  return `${rest >= 100 || index === 0 ? Math.round(rest) : rest.toFixed(1)} ${units[index]}`;
}

function left(job) {
  const seconds = job.seconds_left;
  if (!Number.isFinite(seconds)) return job.total > 0 ? percent(job.done / job.total) : "running";
  if (seconds < 90) return "about a minute left";
  if (seconds < 5400) return `${Math.round(seconds / 60)} min left`;
  return `${(seconds / 3600).toFixed(1)} h left`;
}
