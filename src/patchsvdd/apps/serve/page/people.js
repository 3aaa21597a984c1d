/** People: users and API keys, for administrators. */

import { ROLE_NAMES, PASSWORD_HELP } from "./account.js";
import { api } from "./api.js";
import { announce, complain, count, h, icon, put, time } from "./dom.js";
import { closeDialogs, confirmDialog, field, formDialog } from "./dialogs.js";
import { state } from "./state.js";

export const title = "People";

const ROLE_WORDS = { inspect: "inspect and look", review: "also review alarms", admin: "everything" };
const input = (attributes) => h("input", { required: true, maxlength: "100", spellcheck: "false", autocomplete: "off", ...attributes });
const passwordInput = () => input({ type: "password", maxlength: "200", autocomplete: "new-password" });

function roleChoice(value) {
  const select = h("select", {}, Object.entries(ROLE_NAMES).map(([role, name]) => h("option", { value: role }, `${name} – ${ROLE_WORDS[role]}`)));
  select.value = value;
  return select;
}

export async function mount(root) {
  const head = h("div", { class: "title" }, h("h1", {}, "People"));
  if (!state.me.key_needed) {
    put(root, head, openService());
    return null;
  }
  let gone = false;
  const users = h("section", { class: "card", "aria-labelledby": "users-title" });
  const keys = h("section", { class: "card", "aria-labelledby": "keys-title" });
  put(root, head, users, keys);

  async function load() {
    const [people, cards] = await Promise.all([api.users(), api.keys()]);
    if (gone) return;
    showUsers(users, people);
    showKeys(keys, cards);
  }
  const reload = async () => {
    try {
      await load();
    } catch (error) {
      if (!gone) complain(error);
    }
  };
  await load();

  function showUsers(card, people) {
    put(card, h("div", { class: "line" }, h("h2", { id: "users-title" }, "People who sign in"),
      h("button", { type: "button", class: "main", id: "add-user", onclick: addUser }, "Add a person")),
    people.length === 0
      ? h("p", { class: "none quiet" }, "Nobody yet. Add the people who work with this page: each gets a name, a role and a PIN, and reviews show who made them.")
      : h("ul", { class: "people" }, people.map(userRow)));
  }

  function userRow(user) {
    const me = state.me.user && user.name === state.me.name;
    return h("li", { class: user.disabled ? "off" : null },
      h("span", { class: "who-name" }, user.name, me && h("span", { class: "quiet" }, " (you)")),
      h("span", { class: "role" }, ROLE_NAMES[user.role]),
      h("span", { class: "quiet dates" }, user.disabled ? `disabled ${time(user.disabled)}`
        : user.used ? `last sign-in ${time(user.used)}` : "has not signed in yet"),
      h("button", { type: "button", "aria-label": `Manage ${user.name}`, onclick: () => manage(user) }, "Manage"));
  }

  async function addUser() {
    const [name, role, password] = [input({ autocapitalize: "words" }), roleChoice("review"), passwordInput()];
    const made = await formDialog("Add a person", [
      field("new-name", "Name", name, "Shown with each review. Upper or lower case makes no difference when signing in."),
      field("new-role", "Role", role),
      field("new-password", "PIN or password", password, `${PASSWORD_HELP} The person can change it after signing in.`),
    ], { action: "Add", send: () => api.addUser({ name: name.value, role: role.value, password: password.value }) });
    if (made && !gone) {
      announce(`${made.name} added`);
      await reload();
      document.getElementById("add-user")?.focus();
    }
  }

  async function manage(user) {
    const role = roleChoice(user.role);
    const password = input({ type: "password", maxlength: "200", autocomplete: "new-password", required: false });
    let then = null;
    const later = (work) => () => { then = work; closeDialogs(); };
    const changed = await formDialog(user.name, [
      h("p", { class: "quiet" }, `Added ${time(user.created)}.`),
      field("their-role", "Role", role),
      field("their-password", "New PIN or password", password, "Leave empty to keep the current one. A new one signs the person out everywhere."),
      h("div", { class: "more" },
        h("button", { type: "button", onclick: later(user.disabled ? () => enable(user) : () => disable(user)) }, user.disabled ? "Enable" : "Disable…"),
        h("button", { type: "button", class: "danger", onclick: later(() => remove(user)) }, "Delete…")),
    ], {
      action: "Save",
      send: () => {
        const change = {};
        if (role.value !== user.role) change.role = role.value;
        if (password.value) change.password = password.value;
        return Object.keys(change).length ? api.changeUser(user.name, change) : user;
      },
    });
    if (gone) return;
    const done = changed ? `${user.name} saved` : then && await then();
    if (!done || gone) return;
    announce(done);
    await reload();
    const again = [...users.querySelectorAll("li button")].find((one) => one.getAttribute("aria-label") === `Manage ${user.name}`);
    (again ?? document.getElementById("add-user"))?.focus();
  }

  async function enable(user) {
    try {
      await api.changeUser(user.name, { disabled: false });
      return `${user.name} can sign in again`;
    } catch (error) {
      complain(error);
      return null;
    }
  }

  const disable = async (user) => (await confirmDialog(`Disable ${user.name}?`,
    "The person is signed out everywhere and cannot sign in until you enable them again. Their reviews stay.",
    "Disable", () => api.changeUser(user.name, { disabled: true }))) && `${user.name} disabled`;

  const remove = async (user) => (await confirmDialog(`Delete ${user.name}?`,
    "The person is signed out everywhere and cannot sign in any more. Their reviews stay, under this name. To let them back in later, disable them instead.",
    "Delete", () => api.deleteUser(user.name))) && `${user.name} deleted`;

  function showKeys(card, all) {
    const active = all.filter((one) => !one.revoked);
    const revoked = all.filter((one) => one.revoked);
    put(card, h("div", { class: "line" }, h("h2", { id: "keys-title" }, "API keys"),
      h("button", { type: "button", id: "add-key", onclick: addKey }, "Make a key")),
    h("p", { class: "help" }, "For cameras, scripts and other machines. Give each its own, with the smallest role that suffices."),
    active.length === 0 ? h("p", { class: "none quiet" }, "No active key.") : h("ul", { class: "people" }, active.map((one) => keyRow(one))),
    revoked.length > 0 && h("details", {}, h("summary", {}, count(revoked.length, "revoked key")),
      h("ul", { class: "people" }, revoked.map((one) => keyRow(one)))));
  }

  function keyRow(key) {
    return h("li", { class: key.revoked ? "off" : null },
      h("span", { class: "who-name" }, key.name, !state.me.user && key.name === state.me.name && h("span", { class: "quiet" }, " (you)")),
      h("span", { class: "role" }, ROLE_NAMES[key.role]),
      h("span", { class: "quiet dates" }, key.revoked ? `revoked ${time(key.revoked)}`
        : key.used ? `last used ${time(key.used)}` : `made ${time(key.created)}, not used yet`),
      key.revoked ? h("span", {}) : h("button", { type: "button", "aria-label": `Revoke ${key.name}`, onclick: () => revoke(key) }, "Revoke…"));
  }

  async function addKey() {
    const [name, role] = [input(), roleChoice("inspect")];
    const made = await formDialog("Make an API key", [
      field("key-name", "Name", name, "What uses it, such as camera-1."),
      field("key-role", "Role", role),
    ], { action: "Make the key", send: () => api.addKey({ name: name.value, role: role.value }) });
    if (!made || gone) return;
    await showKey(made);
    if (gone) return;
    await reload();
    document.getElementById("add-key")?.focus();
  }

  async function revoke(key) {
    const done = await confirmDialog(`Revoke the key ${key.name}?`,
      "Whatever uses it is refused from now on. A revoked key cannot be restored.", "Revoke", () => api.revokeKey(key.name));
    if (!done || gone) return;
    announce(`Key ${key.name} revoked`);
    await reload();
    document.getElementById("add-key")?.focus();
  }

  return () => {
    gone = true;
    closeDialogs();
  };
}

/** Show a new key once, with a button to copy it. */
async function showKey(made) {
  const text = h("input", { class: "secret", readonly: true, value: made.key, onfocus: () => text.select() });
  const said = h("span", { role: "status" });
  const copy = h("button", { type: "button", id: "copy-key", onclick: async () => {
    text.select();
    try {
      await navigator.clipboard.writeText(made.key);  // only on HTTPS or this machine
    } catch {
      document.execCommand("copy");
    }
    said.textContent = "Copied";
  } }, "Copy");
  const waiting = formDialog(`Key ${made.name}`, [
    h("p", { class: "hint" }, icon("warn"), h("span", {}, "Copy the key now: it is not shown again.")),
    field("made-key", "API key", text),
    h("div", { class: "line" }, copy, said),
  ], { action: "Done", cancel: null, send: async () => true });
  copy.focus();
  await waiting;
}

/** What a service without sign-in says. */
function openService() {
  return h("div", { class: "card open-service" }, h("h2", {}, "Everyone on this machine is an administrator"),
    h("p", {}, "This service answers only on this computer and asks nobody to sign in. Reviews show “local” as their author."),
    h("p", {}, "To have people sign in with a name and a PIN, add an administrator and restart the service:"),
    h("pre", { tabindex: "0", "aria-label": "Commands" }, h("code", {}, "patchsvdd user add NAME --role admin\npatchsvdd serve MODEL… --require-key")),
    h("p", { class: "quiet" }, "Use the same --data folder for both. This page then lets administrators add people and make API keys."));
}
