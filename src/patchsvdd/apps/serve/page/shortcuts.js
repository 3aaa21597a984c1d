/** Single-key shortcuts: whether they are on, and a dialog that lists them. */

import { h, icon, put, remember, remembered } from "./dom.js";

export class Shortcuts {
  /** `onChange` is called when they are switched on or off. */
  constructor(onChange) {
    this.on = remembered("shortcuts", "1") === "1";
    this.onChange = onChange;
    this.list = h("dl", { class: "shortcuts" });
    this.choice = h("input", { type: "checkbox", checked: this.on, onchange: () => this.turn(this.choice.checked) });
    this.dialog = h("dialog", { class: "shortcuts-dialog", "aria-labelledby": "shortcuts-title" },
      h("div", { class: "line" }, h("h2", { id: "shortcuts-title" }, "Keyboard shortcuts"),
        h("button", { type: "button", class: "plain", "aria-label": "Close", onclick: () => this.dialog.close() }, icon("close"))),
      this.list, h("label", { class: "check" }, this.choice, "Use single-key shortcuts"),
      h("p", { class: "help" }, "Switch them off if you use speech input, or a bar code reader that types into the page. The buttons always work."));
  }

  turn(on) {
    this.on = on;
    remember("shortcuts", on ? "1" : "0");
    this.onChange();
  }

  /** Open the dialog with `rows` of [key, meaning]. */
  open(rows) {
    put(this.list, rows.map(([key, words]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, words)]));
    if (!this.dialog.open) this.dialog.showModal();
  }

  /** The shortcut that a key event stands for, in lower case; null if it is typed text, a combination or switched off. */
  keyOf(event) {
    if (!this.on || event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return null;
    if (event.target.matches?.("input:not([type=range]):not([type=checkbox]), select, textarea")) return null;
    if (document.querySelector("dialog[open]")) return null;
    return event.key.toLowerCase();
  }
}
