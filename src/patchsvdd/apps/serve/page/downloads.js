/** A menu of files to download. */

import { h } from "./dom.js";

/** The menu of some links; `close` removes its listener. */
export function downloadMenu(links, attributes = {}) {
  const el = h("details", { class: "downloads", ...attributes }, h("summary", { class: "button" }, "Download"),
    h("ul", {}, links.map((link) => h("li", {}, link))));
  const shut = (event) => { if (!el.contains(event.target)) el.open = false; };
  document.addEventListener("click", shut);
  el.addEventListener("click", (event) => { if (event.target.closest("a")) el.open = false; });
  el.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !el.open) return;
    el.open = false;
    el.firstChild.focus();
  });
  return { el, close: () => document.removeEventListener("click", shut) };
}

/** A link of the menu: what it is, and the kind of file. */
export const downloadLink = (words, kind, attributes = { download: true }) => h("a", attributes, words, h("small", {}, kind));
