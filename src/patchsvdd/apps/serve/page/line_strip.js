/** The last parts as a strip. Tab reaches one of them, arrow keys the others; a click or Enter opens it. */

import { h, put } from "./dom.js";
import { clock, multiple, t } from "./language.js";
import { nameOf, shape, word } from "./line_signs.js";

export const MANY = 20;
const LETTERS = 7;
/** Letters of a part's name that fit; of longer ones the end is shown, which differs. */

const shortened = (name) => (name.length > LETTERS ? `…${name.slice(2 - LETTERS)}` : name);

export class Strip {
  constructor(onPick) {
    this.onPick = onPick;
    this.list = h("ol", { class: "strip-of-parts", onkeydown: (event) => this.pressed(event) });
    this.el = h("section", { class: "last-parts", "aria-label": t("label.last-parts") }, this.list);
    this.none = h("p", { class: "quiet" }, t("strip.none"));
    this.items = new Map();
    this.reachable = null;
  }

  /** Show parts, the newest first; `picked` is the id of the one that is frozen. */
  show(parts, picked) {
    const focused = [...this.items].find(([, item]) => item.contains(document.activeElement))?.[0] ?? null;
    for (const [id, item] of this.items) {
      if (parts.some((one) => one.id === id)) continue;
      item.remove();
      this.items.delete(id);
    }
    for (const part of [...parts].reverse()) {
      const item = this.items.get(part.id);
      if (item?.firstChild.dataset.kind === part.verdict) continue;
      if (item) put(item, this.button(part));  // its verdict was corrected
      else {
        this.items.set(part.id, h("li", {}, this.button(part)));
        this.list.prepend(this.items.get(part.id));
      }
    }
    if (parts.length) this.none.remove();
    else put(this.list, this.none);
    if (focused !== null && !this.list.contains(document.activeElement)) this.focus(this.items.has(focused) ? focused : parts.at(-1)?.id);
    if (!this.items.has(this.reachable)) this.reachable = parts[0]?.id ?? null;
    for (const [id, item] of this.items) {
      const button = item.firstChild;
      button.tabIndex = id === this.reachable ? 0 : -1;
      if (id === picked) button.setAttribute("aria-current", "true");
      else button.removeAttribute("aria-current");
    }
  }

  button(part) {
    const name = nameOf(part);
    const score = part.score === null ? null : part.score / part.threshold;
    return h("button", { type: "button", class: "part-of-strip", "data-kind": part.verdict, "data-id": part.id, title: name, onclick: () => this.onPick(part.id),
      "aria-label": t("strip.part", { part: name, verdict: word(part.verdict), time: clock(part.triggered), score: multiple(score) }) },
    shape(part.verdict), h("span", { class: "number" }, shortened(name)));
  }

  focus(id) {
    const button = this.items.get(id)?.firstChild;
    if (!button) return;
    this.reachable = id;
    for (const item of this.items.values()) item.firstChild.tabIndex = item.firstChild === button ? 0 : -1;
    button.focus();
  }

  pressed(event) {
    const ids = [...this.list.children].map((item) => item.firstChild.dataset.id);
    const now = ids.indexOf(document.activeElement?.dataset.id);
    const to = { ArrowRight: now + 1, ArrowDown: now + 1, ArrowLeft: now - 1, ArrowUp: now - 1, Home: 0, End: ids.length - 1 }[event.key];
    if (to === undefined || now < 0) return;
    event.preventDefault();
    event.stopPropagation();
    this.focus(ids[Math.max(0, Math.min(ids.length - 1, to))]);
  }
}
