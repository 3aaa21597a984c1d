/** Audit: who did what when, for administrators. */

import { api, auditReport } from "./api.js";
import { complain, count, h, icon, put, REVIEWS, time } from "./dom.js";
import { downloadLink, downloadMenu } from "./downloads.js";
import { startOf } from "./filters.js";
import { modelChoice, state } from "./state.js";

export const title = "Audit";

const GROUPS = {
  review: "Review", learn: "Learning", undo: "Undoing", threshold: "New threshold", recalibrate: "Calibration", train: "Training",
  model: "Model", candidate: "Candidate", sample: "Sample review", line: "Line", user: "Person", key: "API key", retention: "Retention",
};
const EVENTS = { role: "new role", password: "new password", "rolled-back": "rolled back" };
/** Events that are not their own words. */
const ACTIONS = { "retention.deleted": "Old inspections deleted", "retention.emptied": "Old images deleted" };
const KINDS = { key: "API key", user: "", local: "on the machine", command: "command", service: "", unknown: "" };
const NAMES = { identity_before: "version before", verdict: "review", before: "before", judged: "judged", note: "note", name: "image", serial: "serial number", per_day: "per day", part_number: "part number", keep_threshold: "keeps the threshold" };
const SHOWN = ["verdict", "before", "judged", "name", "serial", "note", "role", "per_day", "images", "inspections", "threshold_before", "threshold", "aim", "preset", "candidate", "identity_before", "reason", "problem", "fault", "part_number", "parts", "error"];
/** Details that a row shows; all of them are behind "Entry". */
const MANY = 3;
/** Items of a list that are shown; of longer ones the number. */

export async function mount(root) {
  await state.refresh();
  let closed = false;
  let turn = 0;
  let next = null;

  const jsonl = downloadLink("Whole chain, to verify", "JSONL");
  const csv = downloadLink("What is shown here", "CSV");
  const menu = downloadMenu([jsonl, csv]);
  jsonl.href = auditReport("jsonl");
  const chain = h("div", { class: "chain", role: "status" });
  const action = h("select", { id: "action", onchange: load }, h("option", { value: "" }, "Anything"), Object.entries(GROUPS).map(([value, words]) => h("option", { value }, words)));
  const who = h("input", { id: "who-did", type: "search", maxlength: 100, autocomplete: "off", spellcheck: "false", onchange: load });
  const since = h("input", { id: "since", type: "date", onchange: load });
  const until = h("input", { id: "until", type: "date", onchange: load });
  const alone = h("input", { type: "checkbox", id: "alone", onchange: load });
  const model = modelChoice(load, { all: true, value: "" });
  const field = (label, control) => h("div", { class: "field" }, h("label", { for: control.id }, label), control);
  const form = h("form", { class: "filters open", "aria-label": "Filter entries", onsubmit: (event) => event.preventDefault() },
    h("div", { class: "tools" }, model, field("What", action), field("Who", who), field("From", since), field("To", until)),
    h("label", { class: "check" }, alone, "Also what the service does by itself"));
  const rows = h("tbody", { role: "rowgroup" });
  const heads = ["Time", "Who", "What", "Details"].map((words) => h("th", { scope: "col", role: "columnheader" }, words));
  const table = h("table", { class: "audit", role: "table", "aria-label": "Entries, the latest first" },
    h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, heads)), rows);
  const nothing = h("p", { class: "quiet", hidden: true }, "No entry matches these filters.");
  const older = h("button", { type: "button", hidden: true, onclick: () => load({ more: true }) }, "Show older entries");
  put(root, h("div", { class: "title" }, h("h1", {}, "Audit"), h("div", { class: "title-actions" }, menu.el)), chain, form,
    h("section", { class: "card", "aria-label": "Entries" }, table, nothing, h("div", { class: "actions" }, older)));

  function filter() {
    return {
      model: model.querySelector("select").value, action: action.value, who: who.value.trim(), people: alone.checked ? "" : true,
      since: since.value && startOf(since.value, 0), until: until.value && startOf(until.value, 1),
    };
  }

  async function load({ more = false } = {}) {
    const mine = ++turn;
    const wanted = filter();
    csv.href = auditReport("csv", wanted);
    try {
      const page = await api.audit({ ...wanted, before: more ? next : null });
      if (closed || mine !== turn) return;
      const drawn = page.entries.map(row);
      if (more) rows.append(...drawn);
      else put(rows, drawn);
      next = page.next;
      older.hidden = next === null;
      table.hidden = rows.children.length === 0;
      nothing.hidden = !table.hidden;
      if (more) drawn[0]?.querySelector("summary").focus({ preventScroll: true });
    } catch (error) {
      if (!closed && mine === turn) complain(error);
    }
  }

  async function verify() {
    put(chain, h("p", { class: "quiet" }, "Verifying the chain…"));
    try {
      const found = await api.auditVerification();
      if (closed) return;
      put(chain, found.whole
        ? h("p", { class: "hint done" }, icon("good"), h("span", {}, found.entries ? `Chain verified up to entry ${found.entries.toLocaleString("en")}, ${time(found.at)}.` : "The chain has no entry yet.",
          found.entries > 0 && h("span", { class: "quiet head" }, ` Head ${found.head}`)))
        : h("p", { class: "hint bad" }, icon("warn"), h("span", {}, `The chain is not whole: ${found.fault}. The first ${count(found.entries, "entry", "entries")} are right.`)));
    } catch (error) {
      if (closed) return;
      put(chain);
      complain(error);
    }
  }

  await load();
  verify();
  return () => {
    closed = true;
    menu.close();
  };
}

/** An entry as a row. */
function row(entry) {
  const cell = (...content) => h("td", { role: "cell" }, content);
  const details = SHOWN.filter((name) => name in entry.details).map((name) => h("span", { class: "fact" }, h("span", { class: "quiet" }, `${named(name)} `), said(name, entry.details[name])));
  return h("tr", { role: "row" },
    cell(h("time", { datetime: entry.at }, time(entry.at))),
    cell(h("strong", {}, entry.who.name), KINDS[entry.who.kind] && h("span", { class: "quiet" }, ` ${KINDS[entry.who.kind]}`)),
    cell(h("strong", {}, what(entry.action)), h("span", { class: "about" }, about(entry))),
    cell(h("div", { class: "entry-facts" }, details), h("details", {}, h("summary", {}, `Entry ${entry.number.toLocaleString("en")}`),
      h("pre", { tabindex: "0", "aria-label": `All of entry ${entry.number}` }, h("code", {}, JSON.stringify(entry, null, 2))))));
}

function what(action) {
  const [group, event = ""] = action.split(".");
  return ACTIONS[action] ?? `${GROUPS[group] ?? group} ${EVENTS[event] ?? event}`;
}

/** What an entry is about; an inspection can be opened, unless it was deleted. */
function about({ model, subject }) {
  if (subject.kind === "inspection") return [model, " ", h("a", { href: `#/history/${subject.id}` }, "open the inspection")];
  if (subject.kind === "job" || subject.kind === "model") return model;
  return subject.id || model;
}

const named = (name) => NAMES[name] ?? name.replaceAll("_", " ");

function said(name, value) {
  if (Array.isArray(value)) return value.length > MANY ? String(value.length) : value.join(", ");
  if (typeof value === "number") return Number(value.toPrecision(6)).toLocaleString("en");
  if (typeof value === "object" && value !== null) return JSON.stringify(value);
  return REVIEWS[value] ?? String(value);
}
