/** The filters of History: a form whose state is in the page's address, so that it can be shared and gone back to. */

import { query } from "./api.js";
import { h, put } from "./dom.js";
import { modelChoice } from "./state.js";

const VERDICT = { "": "Any", anomalous: "Anomalous", good: "Good" };
const REVIEW = { "": "Any", none: "Not reviewed", false_alarm: "False alarm", true_defect: "True defect", confirmed_good: "Confirmed good", unsure: "Unsure" };
const MORE = { serial: "Serial number", lot: "Lot", line: "Line", station: "Station" };
const NAMES = ["model", "verdict", "review", "from", "to", "name", ...Object.keys(MORE)];
const DAY = /^\d{4}-\d{2}-\d{2}$/;

/** The filters in the page's address. */
export function fromAddress() {
  const search = new URLSearchParams(location.hash.split("?")[1] ?? "");
  const found = {};
  for (const name of NAMES) {
    const value = (search.get(name) ?? "").trim();
    const known = { verdict: Object.hasOwn(VERDICT, value), review: Object.hasOwn(REVIEW, value), from: DAY.test(value), to: DAY.test(value) }[name] ?? true;
    if (value && known) found[name] = value;
  }
  return found;
}

/** The address of History with filters, optionally with one inspection open. */
export const addressOf = (chosen, id = null) => `#/history${id ? `/${id}` : ""}${query(chosen)}`;

/** The parameters of the API for filters: days become seconds. */
export function asQuery({ from, to, ...rest }) {
  return { ...rest, since: from && startOf(from, 0), until: to && startOf(to, 1) };
}

/** When a day begins, or the one `later` days after it; in seconds since 1970. */
export function startOf(day, later) {
  const [year, month, date] = day.split("-").map(Number);
  return new Date(year, month - 1, date + later).getTime() / 1000;
}

export class Filters {
  /** `onChange` is called when the user has changed a filter. */
  constructor(onChange) {
    const field = (id, label, control) => h("div", { class: "field" }, h("label", { for: id }, label), control);
    const select = (id, label, options) => field(id, label, h("select", { id, onchange: onChange }, Object.entries(options).map(([value, words]) => h("option", { value }, words))));
    const input = (id, label, type) => field(id, label, h("input", { id, type, onchange: onChange, ...(type === "date" ? {} : { maxlength: 100, autocomplete: "off", spellcheck: "false" }) }));
    this.clear = h("button", { type: "button", class: "clear", onclick: () => { this.show({}); onChange(); } }, "Clear filters");
    this.more = h("details", { class: "more" }, h("summary", {}, "More filters"), h("div", { class: "tools" }, Object.entries(MORE).map(([name, label]) => input(`of-${name}`, label, "search"))));
    this.form = h("form", { class: "filters", id: "filters", "aria-label": "Filter inspections", onsubmit: (event) => event.preventDefault() },
      h("div", { class: "tools" }, modelChoice(onChange, { all: true, id: "of-model", value: "" }), select("of-verdict", "Verdict", VERDICT), select("of-review", "Review", REVIEW),
        input("since", "From", "date"), input("until", "To", "date"), input("name", "Name contains", "search"), this.clear), this.more);
    this.toggle = h("button", { type: "button", class: "filter-toggle", "aria-expanded": "false", "aria-controls": "filters", onclick: () => this.open(!this.isOpen) }, "Filters");
    this.open(false);
  }

  get isOpen() {
    return this.form.classList.contains("open");
  }

  /** Show or hide the form on a narrow screen; a wide one always shows it. */
  open(yes) {
    this.form.classList.toggle("open", yes);
    this.toggle.setAttribute("aria-expanded", String(yes));
  }

  control(name) {
    const ids = { from: "since", to: "until", name: "name" };
    return this.form.querySelector(`#${ids[name] ?? `of-${name}`}`);
  }

  /** The filters that the form shows; empty ones are left out. */
  get chosen() {
    const pairs = NAMES.map((name) => [name, this.control(name).value.trim()]);
    return Object.fromEntries(pairs.filter(([, value]) => value));
  }

  /** Show filters in the form. */
  show(chosen) {
    for (const name of NAMES) {
      const control = this.control(name);
      const value = chosen[name] ?? "";
      if (name === "model" && value && ![...control.options].some((one) => one.value === value)) control.append(h("option", { value }, value));  // no longer served
      if (control.value !== value) control.value = value;
    }
    const active = Object.keys(chosen).length;
    this.clear.hidden = active === 0;
    put(this.toggle, "Filters", active > 0 && h("span", { class: "many" }, String(active), h("span", { class: "unseen" }, " active")));
    if (Object.keys(MORE).some((name) => chosen[name])) this.more.open = true;
  }
}
