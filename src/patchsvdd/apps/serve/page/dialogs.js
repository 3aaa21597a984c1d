/** Dialogs: a form, a question before something that cannot be undone. */

import { h } from "./dom.js";

let dialogs = 0;

/**
 * A modal dialog with a form. `body` are its elements, `send` does the work and may throw: the error is shown in the
 * dialog, which stays open. Resolves with what `send` returned, or null if the dialog was closed.
 */
export function formDialog(heading, body, { action, danger = false, send, cancel = "Cancel" }) {
  return new Promise((resolve) => {
    let result = null;
    const id = `dialog-${++dialogs}`;
    const wrong = h("p", { class: "wrong", role: "alert" });
    const go = h("button", { class: danger ? "main danger" : "main" }, action);
    const form = h("form", { onsubmit: submit },
      h("h2", { id }, heading), body, wrong,
      h("div", { class: "actions" }, go,
        cancel && h("button", { type: "button", onclick: () => dialog.close() }, cancel)));
    const dialog = h("dialog", { class: "ask", "aria-labelledby": id, onclose: () => { dialog.remove(); resolve(result); } }, form);

    const first = () => form.querySelector("input:not([readonly]), select");

    async function submit(event) {
      event.preventDefault();
      wrong.textContent = "";
      go.disabled = true;
      try {
        result = (await send()) ?? true;
        dialog.close();
      } catch (error) {
        if (error.status === 401) dialog.close();  // the session has ended: the page shows the sign-in form
        wrong.textContent = error.message;
        go.disabled = false;
        first()?.focus();
      }
    }
    document.body.append(dialog);
    dialog.showModal();
    first()?.focus();
  });
}

/** Ask before something that cannot be undone; resolves with whether it was done. */
export async function confirmDialog(heading, words, action, send) {
  return (await formDialog(heading, h("p", {}, words), { action, danger: true, send })) !== null;
}

/** Close all dialogs that are open. */
export function closeDialogs() {
  for (const dialog of document.querySelectorAll("dialog.ask")) dialog.close();
}

/** A labelled field. */
export function field(id, label, control, help = null) {
  control.id = id;
  if (help) control.setAttribute("aria-describedby", `${id}-help`);
  return h("div", { class: "field" }, h("label", { for: id }, label), control,
    help && h("p", { class: "help", id: `${id}-help` }, help));
}
