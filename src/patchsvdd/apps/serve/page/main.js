/** The page: sign-in, navigation between views, focus. */

import { api } from "./api.js";
import { announce, complain, h, put, remember, remembered } from "./dom.js";
import { state } from "./state.js";
import * as history from "./history.js";
import * as inspect from "./inspect.js";
import * as models from "./models.js";
import * as overview from "./overview.js";
import * as people from "./people.js";
import * as review from "./review.js";
import * as train from "./train.js";

const VIEWS = { overview, inspect, history, review, models, train, people };
const main = document.getElementById("main");
const nav = document.getElementById("views");
let leave = null;
let shown = null;
let turn = 0;

function where() {
  const [, name, ...rest] = location.hash.split("?")[0].split("/");
  return [Object.hasOwn(VIEWS, name ?? "") ? name : null, rest.map(decodeURIComponent)];
}

async function show() {
  const [name, rest] = where();
  if (name === null) {
    if (location.hash === "#main") return;
    location.replace("#/overview");
    return;
  }
  if (shown === name && VIEWS[name].turnTo?.(rest)) return;  // the view handles it
  const mine = ++turn;
  leave?.();
  leave = null;
  const first = shown === null;
  shown = name;
  for (const link of nav.children) {
    if (link.hash === `#/${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${VIEWS[name].title} – patchsvdd`;
  const root = h("div", { class: `view view-${name}` });
  put(main, root);
  try {
    const done = await VIEWS[name].mount(root, rest);
    if (mine === turn) leave = done;
    else done?.();
  } catch (error) {
    complain(error);
  }
  if (!first && mine === turn && !main.contains(document.activeElement)) {
    const heading = root.querySelector("h1");
    heading?.setAttribute("tabindex", "-1");
    (heading ?? main).focus({ preventScroll: true });
    window.scrollTo(0, 0);
  }
}

function signIn(message) {
  leave?.();
  leave = null;
  shown = null;
  nav.hidden = true;
  put(document.getElementById("who"));
  document.title = "Sign in – patchsvdd";
  const key = h("input", { id: "key", name: "key", type: "password", autocomplete: "current-password", required: true,
    spellcheck: "false", "aria-describedby": "key-help" });
  const wrong = h("p", { class: "wrong", role: "alert" }, message ?? "");
  const form = h("form", { class: "card sign-in", onsubmit: enter },
    h("h1", {}, "Sign in"),
    h("label", { for: "key" }, "API key"), key,
    h("p", { class: "help", id: "key-help" }, "Ask your administrator for a key. To create one: ", h("code", {}, "patchsvdd key add NAME --role review")),
    wrong, h("button", { class: "main" }, "Sign in"));

  async function enter(event) {
    event.preventDefault();
    try {
      await api.signIn(key.value.trim());
      key.value = "";
      await start();
    } catch (error) {
      wrong.textContent = error.message;
      key.select();
    }
  }
  put(main, h("div", { class: "view" }, form));
  key.focus();
}

async function start() {
  try {
    state.me = await api.me();
  } catch (error) {
    if (error.status === 401) signIn();
    else signIn(error.message);
    return;
  }
  await state.refresh();
  nav.hidden = false;
  const who = document.getElementById("who");
  put(who, state.me.key_needed && [
    h("span", {}, `${state.me.name} · ${state.me.role}`),
    h("button", { type: "button", onclick: async () => { await api.signOut(); announce("Signed out"); signIn(); } }, "Sign out"),
  ]);
  shown = null;
  await show();
}

document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
window.addEventListener("hashchange", show);
window.addEventListener("signed-out", () => { if (!nav.hidden) signIn("The session has ended; sign in again."); });
for (const kind of ["dragover", "drop"]) window.addEventListener(kind, (event) => event.preventDefault());
state.model = remembered("model", null);
state.onChoice = (name) => remember("model", name);
start();
