/** The page: sign-in, navigation between views, focus. */

import { api } from "./api.js";
import { ROLE_NAMES, accountMenu, signInForm } from "./account.js";
import { complain, h, put, remember, remembered } from "./dom.js";
import { state } from "./state.js";
import * as audit from "./audit.js";
import * as history from "./history.js";
import * as inspect from "./inspect.js";
import * as models from "./models.js";
import * as overview from "./overview.js";
import * as people from "./people.js";
import * as review from "./review.js";
import * as train from "./train.js";

const VIEWS = { overview, inspect, history, review, models, train, people, audit };
/** Roles that views need; the others need the smallest. */
const NEEDS = { review: "review", train: "admin", people: "admin", audit: "admin" };
const main = document.getElementById("main");
const who = document.getElementById("who");
const nav = document.getElementById("views");
let leave = null;
let shown = null;
let turn = 0;

function where() {
  const [, name, ...rest] = location.hash.split("?")[0].split("/");
  return [Object.hasOwn(VIEWS, name ?? "") ? name : null, rest.map(decodeURIComponent)];
}

async function show() {
  if (nav.hidden) return;  // nobody is signed in
  if (location.hash === "#/line") {  // from the line's page, to sign in
    location.replace("/line");
    return;
  }
  const [name, rest] = where();
  if (name === null) {
    if (location.hash === "#main") return;
    location.replace("#/overview");
    return;
  }
  const allowed = state.may(NEEDS[name] ?? "inspect");
  if (allowed && shown === name && VIEWS[name].turnTo?.(rest)) return;  // the view handles it
  const mine = ++turn;
  leave?.();
  leave = null;
  const first = shown === null;
  shown = name;
  for (const link of nav.children) {
    if (link.hash === `#/${name}`) {
      link.setAttribute("aria-current", "page");
      // The narrow bar scrolls. scrollIntoView would make Tab go on from the link.
      nav.scrollLeft += link.getBoundingClientRect().left - nav.getBoundingClientRect().left - (nav.clientWidth - link.offsetWidth) / 2;
    } else link.removeAttribute("aria-current");
  }
  document.title = `${VIEWS[name].title} – patchsvdd`;
  const root = h("div", { class: `view view-${name}` });
  put(main, root);
  try {
    const done = allowed ? await VIEWS[name].mount(root, rest) : put(root, notAllowed(name)) && null;
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

async function signIn(message) {
  const mine = ++turn;
  leave?.();
  leave = null;
  shown = null;
  nav.hidden = true;
  put(who);
  put(main);
  document.title = "Sign in – patchsvdd";
  const { form, focus } = await signInForm(message, signedIn);
  if (mine !== turn) return;
  put(main, h("div", { class: "view" }, form));
  focus();
}

/** What one person has on screen is not for the next: a new name begins with a new page. */
async function signedIn(me) {
  if (state.me !== null && state.me.name !== me.name) location.reload();
  else await start();
}

async function signOut() {
  try {
    await api.signOut();
  } catch (error) {
    complain(error);
    return;
  }
  location.replace("#/overview");
  location.reload();
}

async function start() {
  try {
    state.me = await api.me();
  } catch (error) {
    await signIn(error.status === 401 ? undefined : error.message);
    return;
  }
  await state.refresh();
  nav.hidden = false;
  for (const link of nav.children) link.hidden = !state.may(NEEDS[link.hash.slice(2)] ?? "inspect");
  document.getElementById("line-link").hidden = !state.me.line;
  if (!state.me.key_needed) document.getElementById("people-link").hidden = true;
  put(who, state.me.key_needed && accountMenu(signOut));
  shown = null;
  await show();
}

/** The card in place of a view that the user's role does not include. */
function notAllowed(name) {
  const { title } = VIEWS[name];
  return h("div", { class: "card empty" }, h("h1", {}, `${title} is not part of your role`),
    h("p", {}, `Your role “${ROLE_NAMES[state.me.role]}” cannot open this view; it needs “${ROLE_NAMES[NEEDS[name]]}”. Ask an administrator.`),
    h("p", {}, h("a", { class: "button", href: "#/overview" }, "Go to the overview")));
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
