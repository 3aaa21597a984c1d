/** One's own account: the sign-in form, the menu in the header, the password. */

import { api } from "./api.js";
import { announce, h, icon, put } from "./dom.js";
import { closeDialogs, field, formDialog } from "./dialogs.js";
import { state } from "./state.js";

export const ROLE_NAMES = { inspect: "Inspect", review: "Review", admin: "Administrator" };
export const PASSWORD_HELP = "8 or more characters, or a PIN of 6 or more digits.";

/** The sign-in form; `onDone` receives who has signed in. Returns the form, and `focus` for its first field. */
export async function signInForm(message, onDone) {
  closeDialogs();
  let passwords = false;
  try {
    passwords = (await api.waysToSignIn()).passwords;
  } catch { /* the service does not respond; the form says so when it is used */ }
  const wrong = h("p", { class: "wrong", role: "alert" }, message ?? "");
  const fields = h("div", { class: "fields" });
  const go = h("button", { class: "main" }, "Sign in");
  const other = h("button", { type: "button", class: "link", onclick: () => { ask(!byKey); focus(); } });
  const form = h("form", { class: "card sign-in", onsubmit: enter }, h("h1", {}, "Sign in"), fields, wrong, go, passwords && other);
  let byKey = false;
  let inputs = [];
  let timer = 0;

  const input = (attributes) => h("input", { required: true, spellcheck: "false", autocapitalize: "none", ...attributes });
  const focus = () => (inputs.find((one) => one.value === "") ?? inputs[0]).focus();

  function ask(key) {
    byKey = key;
    wrong.textContent = key === !passwords ? wrong.textContent : "";
    if (key) {
      inputs = [input({ name: "key", type: "password", autocomplete: "off" })];
      put(fields, field("key", "API key", inputs[0]), h("p", { class: "help" }, passwords
        ? "For cameras, scripts and the first sign-in."
        : ["Ask an administrator. To add people who sign in with a name: ", h("code", {}, "patchsvdd user add NAME --role admin")]));
    } else {
      inputs = [
        input({ name: "username", type: "text", autocomplete: "username", maxlength: "100" }),
        input({ name: "password", type: "password", autocomplete: "current-password", maxlength: "200" }),
      ];
      put(fields, field("name", "Name", inputs[0]), field("password", "PIN or password", inputs[1]),
        h("p", { class: "help" }, "No access yet, or forgotten? Ask an administrator."));
    }
    other.textContent = key ? "Use name and PIN instead" : "Use an API key instead";
  }

  /** Refuse further attempts for as long as the service would. */
  function hold(seconds) {
    clearInterval(timer);
    const until = Date.now() + 1000 * seconds;
    const tick = () => {
      const left = Math.ceil((until - Date.now()) / 1000);
      go.disabled = left > 0 && form.isConnected;
      go.textContent = go.disabled ? `Sign in (in ${left > 90 ? `${Math.round(left / 60)} min` : `${left} s`})` : "Sign in";
      if (!go.disabled) clearInterval(timer);
    };
    timer = setInterval(tick, 500);
    tick();
  }

  async function enter(event) {
    event.preventDefault();
    if (go.disabled) return;
    go.disabled = true;
    wrong.textContent = "";
    const last = inputs.at(-1);
    try {
      const me = await api.signIn(byKey ? { key: last.value.trim() } : { name: inputs[0].value, password: last.value });
      for (const one of inputs) one.value = "";
      await onDone(me);
    } catch (error) {
      wrong.textContent = error.message;
      go.disabled = false;
      last.select();
      if (error.status === 429) hold(error.retryAfter || 1);
    }
  }
  ask(!passwords);
  return { form, focus };
}

/** The menu in the header: who is signed in, their password, signing out. */
export function accountMenu(onSignOut) {
  const me = state.me;
  const list = h("div", { class: "menu", id: "account-menu", hidden: true },
    h("p", {}, h("strong", {}, me.name), h("span", { class: "quiet" }, me.user ? ROLE_NAMES[me.role] : `API key · ${ROLE_NAMES[me.role]}`)),
    me.user && h("button", { type: "button", class: "plain", onclick: () => { toggle(false); changePassword(); } }, "Change password"),
    h("button", { type: "button", class: "plain", onclick: onSignOut }, "Sign out"));
  const button = h("button", { type: "button", id: "account", "aria-expanded": "false", "aria-controls": "account-menu",
    onclick: () => toggle(list.hidden) }, icon("person"), h("span", { class: "name" }, `${me.name} · ${ROLE_NAMES[me.role]}`));
  const box = h("div", { class: "account", onkeydown: (event) => {
    if (event.key !== "Escape" || list.hidden) return;
    toggle(false);
    button.focus();
  }, onfocusout: (event) => { if (event.relatedTarget && !box.contains(event.relatedTarget)) toggle(false); } }, button, list);

  function toggle(open) {
    list.hidden = !open;
    button.setAttribute("aria-expanded", String(open));
    if (open) window.addEventListener("pointerdown", outside);
    else window.removeEventListener("pointerdown", outside);
  }
  const outside = (event) => { if (!box.contains(event.target)) toggle(false); };
  return box;
}

async function changePassword() {
  const secret = (autocomplete) => h("input", { type: "password", required: true, autocomplete, maxlength: "200" });
  const [now, next, again] = [secret("current-password"), secret("new-password"), secret("new-password")];
  const done = await formDialog("Change password", [
    h("input", { type: "text", autocomplete: "username", value: state.me.name, hidden: true, readonly: true, "aria-label": "Name" }),
    field("password-now", "Current PIN or password", now),
    field("password-new", "New PIN or password", next, PASSWORD_HELP),
    field("password-again", "New one again", again),
  ], {
    action: "Change password",
    send: () => {
      if (next.value !== again.value) throw new Error("The two new passwords differ.");
      return api.changePassword(now.value, next.value);
    },
  });
  document.getElementById("account")?.focus();
  if (done) announce("Password changed. Other devices are signed out.");
}
