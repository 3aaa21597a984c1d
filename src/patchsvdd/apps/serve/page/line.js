/** The page of the running line: it follows the line's state and says at once when it cannot. */

import { api } from "./api.js";
import { announce, h, put, remember, remembered } from "./dom.js";
import { LANGUAGES, clock, language, preferred, t, use } from "./language.js";
import { Figures } from "./line_figures.js";
import { askFirst, helpDialog } from "./line_dialogs.js";
import { Judgement, faultWord } from "./line_judgement.js";
import { Lamps } from "./line_lamps.js";
import { kindOf, nameOf, shape, stateWord, word } from "./line_signs.js";
import { MANY, Strip } from "./line_strip.js";
import { Views } from "./line_views.js";

const EVERY = 400;
/** Milliseconds between two questions for the state; doubled with each failure up to SLOWEST. */
const SLOWEST = 2500;
const PATIENCE = 2500;
/** Milliseconds after which an answer is no longer waited for. */
const LOST = 3000;
/** Milliseconds without an answer after which the page says that the connection is lost. */
const FIGURES_EVERY = 10000;
const NOTE_SECONDS = 10;

const whole = document.getElementById("page");
const notes = document.getElementById("notes");
let me = null;
let state = null;
let parts = [];
let frozen = null;
let figures = null;
let period = remembered("line-period", "shift");
let heat = false;
let answered = performance.now();
let answeredAt = new Date();
let failures = 0;
let lost = false;
let ui = null;
let timer = 0;
let turn = 0;

// What is on screen

/** Build the page in the language in use. */
function build() {
  ui?.views.close();
  const may = me.may.includes("review");
  const tool = (name, sign, key, act) => h("button", { type: "button", class: "tool", "data-tool": name, "aria-pressed": "false", "aria-keyshortcuts": key, onclick: act }, shape(sign), h("span", {}));
  const tools = {
    freeze: tool("freeze", "freeze", "F", toggleFreeze),
    heat: tool("heat", "heat", "H", () => showHeat(!heat)),
    live: tool("live", "camera", "V", () => showLive(!ui.views.live)),
    pause: may && tool("pause", "paused", "P", togglePause),
  };
  const choice = h("select", { id: "language", "aria-label": t("label.language"), onchange: () => speak(choice.value) },
    Object.entries(LANGUAGES).map(([value, name]) => h("option", { value, lang: value }, name)));
  choice.value = language();
  ui = {
    name: h("h1", {}), product: h("p", { class: "product" }), state: h("p", { class: "state" }),
    lamps: new Lamps(), judgement: new Judgement(may ? acknowledge : null), views: new Views(), strip: new Strip(pick),
    figures: new Figures(period, (value) => { period = value; remember("line-period", value); loadFigures(); }), tools, choice,
    alert: h("div", { class: "frozen-bar", role: "status", hidden: true }), legend: h("p", { class: "legend-of-views", hidden: true }),
  };
  const full = document.fullscreenEnabled && h("button", { type: "button", class: "tool small", "aria-label": t("action.full-screen"), title: t("action.full-screen"), onclick: fullScreen }, shape("screen"));
  ui.judgement.el.append(h("div", { class: "tools-of-line", role: "group", "aria-label": t("label.tools") }, Object.values(tools)));
  put(whole,
    h("header", { class: "line-bar" }, h("div", { class: "line-name" }, ui.name, ui.product), ui.state, ui.lamps.el,
      h("div", { class: "line-menu" }, choice, h("button", { type: "button", class: "tool small", "aria-label": t("action.help"), title: t("action.help"), onclick: help }, "?"), full,
        h("a", { class: "button tool small", href: "/" }, t("action.main-page")))),
    h("main", { class: "line-main", id: "main" }, ui.alert, h("div", { class: "line-grid" },
      h("div", { class: "views-of-part" }, ui.views.el, ui.legend), ui.judgement.el, ui.strip.el, ui.figures.el)));
  if (heat) showHeat(true);
  if (figures) ui.figures.show(figures);
  if (state) draw();
}

/** The part that is shown: the frozen one, else the last one. */
const shownPart = () => frozen ?? lastPart();

/** The last part: what the line says of it, with what the list of parts knows about its images. */
function lastPart() {
  if (!state.last) return null;
  const known = parts.find((one) => one.id === state.last.id);
  return known ? { ...known, verdict: state.last.verdict, reason: state.last.reason } : state.last;
}

function draw() {
  const part = shownPart();
  document.title = `${word(kindOf(state, lastPart()))} – ${state.name}`;
  ui.name.textContent = state.name;
  ui.product.textContent = state.product;
  ui.product.hidden = !state.product;
  put(ui.state, h("span", { class: "unseen" }, `${t("label.state")}: `), stateWord(state.state));
  ui.state.dataset.kind = state.state;
  ui.lamps.show(state);
  ui.judgement.show(state, part, frozen !== null);
  ui.views.show(state.views, state.sources, part);
  ui.strip.show(parts, frozen?.id ?? null);
  drawTools();
  drawFrozen();
}

function drawTools() {
  const label = (name, text, pressed) => {
    const button = ui.tools[name];
    if (!button) return;
    button.lastChild.textContent = text;
    button.setAttribute("aria-pressed", String(pressed));
  };
  label("freeze", frozen ? t("action.go-on") : t("action.freeze"), frozen !== null);
  label("heat", t("action.heat"), heat);
  label("live", t("action.live"), ui.views.live);
  const paused = state.state === "paused";
  label("pause", paused ? t("action.resume") : t("action.pause"), paused);
  if (ui.tools.pause) ui.tools.pause.firstChild.replaceWith(shape(paused ? "play" : "paused"));
  ui.tools.freeze.disabled = !shownPart();
  ui.legend.hidden = !heat && !ui.views.live;
  put(ui.legend, ui.views.live ? t("live.legend") : t("heat.legend"));
}

/** What says that the picked part stays while the line goes on. */
function drawFrozen() {
  whole.classList.toggle("frozen", frozen !== null);
  ui.alert.hidden = frozen === null;
  if (!frozen) return;
  const last = lastPart();
  const kind = kindOf(state, last);
  const now = kind === "fault" ? `${word(kind)}: ${faultWord(state.fault)}` : last ? `${word(kind)} ${nameOf(last)}` : word(kind);
  const text = JSON.stringify([frozen.id, kind, now]);
  if (ui.alert.dataset.text === text) return;
  ui.alert.dataset.text = text;
  const had = ui.alert.contains(document.activeElement);
  const back = h("button", { type: "button", onclick: () => freeze(null) }, t("frozen.back"));
  put(ui.alert, shape("freeze"), h("p", {}, h("strong", {}, t("frozen.title", { part: nameOf(frozen), time: clock(frozen.triggered) })), h("span", {}, t("frozen.words"))),
    h("p", { class: "now", "data-kind": kind }, h("span", {}, t("frozen.now")), shape(kind), h("strong", {}, now)), back);
  if (had) back.focus();
}

// What the user does

function freeze(part) {
  frozen = part;
  if (part && ui.views.live) showLive(false);
  delete ui.alert.dataset.text;
  draw();
}

const toggleFreeze = () => freeze(frozen ? null : lastPart());

const pick = (id) => freeze(parts.find((one) => one.id === id) ?? null);

/** Freeze the part that is older (1) or newer (-1) than the one shown; newer than the last is the line itself. */
function step(by) {
  const now = parts.findIndex((one) => one.id === shownPart()?.id);
  const to = now + by;
  if (to >= 0 && to < parts.length) freeze(parts[to]);
  else if (to < 0) freeze(null);
}

function showHeat(on) {
  heat = on;
  ui.views.heat(on && figures ? Math.floor(Date.parse(figures.since) / 1000) : null);
  if (state) drawTools();
}

function showLive(on) {
  if (on) frozen = null;
  ui.views.goLive(on);
  draw();
}

async function ask(action) {
  try {
    state = await action();
    draw();
  } catch (error) {
    if (error.status === 401) signedOut();
    else note(t("action.refused", { reason: error.message }));
  }
}

const acknowledge = () => ask(api.acknowledge);

function togglePause() {
  if (state.state === "paused") ask(api.resumeLine);
  else askFirst(t("pause.title"), t("pause.words"), t("action.pause"), t("action.cancel"), () => ask(api.pauseLine));
}

function note(words) {
  const one = h("div", { class: "note" }, h("p", {}, words));
  notes.append(one);
  setTimeout(() => one.remove(), 1000 * NOTE_SECONDS);
}

function fullScreen() {
  if (document.fullscreenElement) document.exitFullscreen();
  else document.documentElement.requestFullscreen().catch(() => {});
}

async function speak(wanted) {
  try {
    await use(wanted, { chosen: true });
  } catch {
    ui.choice.value = language();
    return;
  }
  build();
  ui.choice.focus();
  if (lost) drawLost();
}

const help = () => helpDialog(me.may.includes("review"));

const KEYS = { f: toggleFreeze, h: () => showHeat(!heat), v: () => showLive(!ui.views.live), p: () => ui.tools.pause && togglePause(), a: () => focusAcknowledge(), "?": help, arrowleft: () => step(-1), arrowright: () => step(1), escape: () => frozen && freeze(null) };

function focusAcknowledge() {
  ui.judgement.acknowledge?.focus();
}

window.addEventListener("keydown", (event) => {
  if (!ui || !state || lost || event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
  if (remembered("shortcuts", "1") !== "1" || document.querySelector("dialog[open]") || event.target.matches?.("select, input")) return;
  const act = KEYS[event.key.toLowerCase()];
  if (!act) return;
  event.preventDefault();
  act();
});

// What the service says

async function poll() {
  clearTimeout(timer);
  try {
    const found = await api.line(AbortSignal.timeout(PATIENCE));
    answered = performance.now();
    answeredAt = new Date();
    failures = 0;
    await follow(found);
  } catch (error) {
    if (error.status === 401) return signedOut();
    if (error.status === 404) return say(t("page.no-line"), t("page.no-line-words"), "/", t("action.main-page"));
    failures += 1;
  }
  watch();
  timer = setTimeout(poll, document.hidden ? SLOWEST : Math.min(EVERY * 2 ** failures, SLOWEST));
  return null;
}

async function follow(found) {
  const before = state;
  state = found;
  if (!ui) build();
  if (lost) regained();
  draw();
  const last = state.last;
  if (last && !(last.id === before?.last?.id && last.verdict === before.last.verdict)) {
    if (before) announce(`${word(last.verdict)}, ${nameOf(last)}`);
    loadParts();
    if (last.verdict !== "good" && heat) loadFigures();
  }
  if (state.fault && state.fault.since !== before?.fault?.since) announce(`${word("fault")}: ${faultWord(state.fault)}`);
}

async function loadParts() {
  const mine = ++turn;
  try {
    const found = await api.parts({ line: state.name, limit: MANY });
    if (mine !== turn || !ui) return;
    parts = found.parts;
    if (frozen) frozen = parts.find((one) => one.id === frozen.id) ?? frozen;
    draw();
  } catch (error) {
    if (error.status === 401) signedOut();
  }
}

async function loadFigures() {
  const query = period === "shift" ? {} : period === "previous" ? { shift: "previous" } : { hours: period };
  try {
    figures = await api.lineStatistics(query);
    if (!ui) return;
    ui.figures.show(figures);
    if (heat) showHeat(true);
  } catch { /* they are asked for again */ }
}

/** Say that the connection is lost once it has been for too long. */
function watch() {
  if (lost || !ui || performance.now() - answered <= LOST) return;
  lost = true;
  document.title = t("lost.title");
  drawLost();
}

function drawLost() {
  for (const dialog of document.querySelectorAll("dialog[open]")) dialog.close();
  put(whole, h("main", { class: "lost", role: "alert" }, shape("lost"), h("h1", {}, t("lost.title")), h("p", {}, t("lost.since", { time: clock(answeredAt) })), h("p", {}, t("lost.words"))));
}

function regained() {
  lost = false;
  build();
  loadFigures();
}

function signedOut() {
  say(t("page.signed-out"), t("page.signed-out-words"), "/#/line", t("action.sign-in"));
}

/** A message in place of the page, with the way on; nothing is asked for any more. */
function say(title, words, href, action) {
  clearTimeout(timer);
  ui?.views.close();
  ui = null;
  put(whole, h("main", { class: "line-message" }, h("h1", {}, title), h("p", {}, words), h("p", {}, h("a", { class: "button main", href }, action))));
}

async function start() {
  try {
    await use(preferred());
    me = await api.me();
  } catch (error) {
    if (error.status === 401) return signedOut();
    return setTimeout(start, EVERY * 2);  // a terminal may be switched on before the service
  }
  if (!me.line) return say(t("page.no-line"), t("page.no-line-words"), "/", t("action.main-page"));
  setInterval(watch, 250);
  setInterval(() => { if (ui && !lost && !document.hidden) loadFigures(); }, FIGURES_EVERY);
  await poll();
  return loadFigures();
}

document.addEventListener("visibilitychange", () => { if (!document.hidden && ui) poll(); });
start();
