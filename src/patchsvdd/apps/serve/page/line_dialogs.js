/** Dialogs of the line's page: the help, and a question before the line is paused. */

import { h, remember, remembered } from "./dom.js";
import { t } from "./language.js";
import { meaning, shape, word } from "./line_signs.js";

const SIGNS = ["good", "anomalous", "incomplete", "error", "fault", "paused"];

function open(heading, body, actions) {
  const dialog = h("dialog", { class: "ask line-dialog", "aria-labelledby": "line-dialog", onclose: () => dialog.remove() }, h("h2", { id: "line-dialog" }, heading), body, h("div", { class: "actions" }, actions));
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

/** Ask before `act`. "Cancel" has the focus: a bar code reader that types ends with Enter. */
export function askFirst(heading, words, action, cancel, act) {
  const no = h("button", { type: "button", onclick: () => dialog.close() }, cancel);
  const yes = h("button", { type: "button", class: "main", onclick: () => { dialog.close(); act(); } }, action);
  const dialog = open(heading, h("p", {}, words), [no, yes]);
  no.focus();
}

/** What the signs mean, and the keys. */
export function helpDialog(mayReview) {
  const rows = [["F", t("help.freeze")], ["←", t("help.newer")], ["→", t("help.older")], ["Esc", t("help.back")], ["H", t("help.heat")], ["V", t("help.live")],
    ...(mayReview ? [["P", t("help.pause")], ["A", t("help.acknowledge")]] : []), ["?", t("help.help")]];
  const on = h("input", { type: "checkbox", checked: remembered("shortcuts", "1") === "1", onchange: () => remember("shortcuts", on.checked ? "1" : "0") });
  const close = h("button", { type: "button", class: "main", onclick: () => dialog.close() }, t("action.close"));
  const dialog = open(t("help.title"), [
    h("ul", { class: "signs" }, SIGNS.map((one) => h("li", { "data-kind": one }, shape(one), h("strong", {}, word(one)), h("span", {}, meaning(one))))),
    h("h3", {}, t("help.keys")),
    h("dl", { class: "shortcuts" }, rows.map(([key, words]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, words)])),
    h("label", { class: "check" }, on, t("help.use-keys")), h("p", { class: "help" }, t("help.reader")),
  ], [close]);
  close.focus();
}
