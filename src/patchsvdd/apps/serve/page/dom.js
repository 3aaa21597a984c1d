/** Elements, icons and text formatting. Strings are inserted as text, never as markup. */

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked" || name === "disabled" || name === "indeterminate") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  add(element, children);
  return element;
}

/** Append children to an element; null and false are skipped, strings become text. */
export function add(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
  return element;
}

/** An HTML element. */
export const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);

/** An SVG element. */
export const s = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

/** Replace the content of an element. */
export function put(element, ...children) {
  element.replaceChildren();
  return add(element, children);
}

const PATHS = {
  good: ["M12 2.5a9.5 9.5 0 1 1 0 19a9.5 9.5 0 0 1 0-19z", "M7.5 12.4l3.1 3.1l6-6.6"],
  anomalous: ["M8.1 2.5h7.8l5.6 5.6v7.8l-5.6 5.6H8.1l-5.6-5.6V8.1z", "M12 7v6", "M12 16.4v.3"],
  unsure: ["M12 2.5a9.5 9.5 0 1 1 0 19a9.5 9.5 0 0 1 0-19z", "M9.4 9.4a2.7 2.7 0 1 1 3.9 2.5c-.9.5-1.3 1-1.3 1.9", "M12 16.6v.3"],
  upload: ["M12 15.5V4", "M7.5 8.5L12 4l4.5 4.5", "M4 15.5v3.2c0 .7.6 1.3 1.3 1.3h13.4c.7 0 1.3-.6 1.3-1.3v-3.2"],
  camera: ["M3.5 8.2c0-.7.6-1.2 1.2-1.2h2.8l1.4-2.2h6.2L16.5 7h2.8c.7 0 1.2.5 1.2 1.2v9.6c0 .7-.5 1.2-1.2 1.2H4.7c-.7 0-1.2-.5-1.2-1.2z", "M12 9.3a3.6 3.6 0 1 1 0 7.2a3.6 3.6 0 0 1 0-7.2z"],
  left: ["M14.5 5.5L8 12l6.5 6.5"],
  right: ["M9.5 5.5L16 12l-6.5 6.5"],
  close: ["M6 6l12 12", "M18 6L6 18"],
  undo: ["M8.5 5L4.5 9l4 4", "M4.5 9h9.2a5.3 5.3 0 0 1 0 10.6H9"],
  redo: ["M15.5 5l4 4l-4 4", "M19.5 9h-9.2a5.3 5.3 0 0 0 0 10.6H15"],
  draw: ["M4 20l1-4.5L16.5 4l3.5 3.5L8.5 19z", "M14 6.5l3.5 3.5"],
  person: ["M12 3.5a4 4 0 1 1 0 8a4 4 0 0 1 0-8z", "M4.5 20.5c0-3.9 3.3-6 7.5-6s7.5 2.1 7.5 6"],
  none: ["M12 2.5a9.5 9.5 0 1 1 0 19a9.5 9.5 0 0 1 0-19z", "M5.5 5.5l13 13"],
  wait: ["M12 2.5a9.5 9.5 0 1 1 0 19a9.5 9.5 0 0 1 0-19z", "M12 6.5V12l3.5 2.5"],
  retry: ["M19.5 12a7.5 7.5 0 1 1-2.2-5.3", "M19.8 3.5v4.2h-4.2"],
  plus: ["M12 5.5v13", "M5.5 12h13"],
  minus: ["M5.5 12h13"],
  beside: ["M3.5 5.5h17v13h-17z", "M12 5.5v13"],
  warn: ["M12 3.5L21.5 20h-19z", "M12 10v4.5", "M12 17v.3"],
};

/** An icon, hidden from screen readers; the text next to it has the meaning. */
export function icon(name) {
  const paths = PATHS[name].map((d) => s("path", { d }));
  return s("svg", { class: `icon icon-${name}`, viewBox: "0 0 24 24", "aria-hidden": "true" }, paths);
}

/** Announce text to screen readers. */
export function announce(words) {
  const live = document.getElementById("live");
  live.textContent = "";
  setTimeout(() => { live.textContent = words; }, 30);
}

const NOTES = 3;
/** Messages shown at a time. */
const NOTE_SECONDS = 15;
let notes = [];

/** Show what went wrong until it is dismissed. The latest messages are shown, with the number of earlier ones. */
export function complain(error) {
  if (error.status === 401) return;
  const words = once(error.message || String(error));
  if (notes.some((one) => one.words === words)) return;
  const note = { words, timer: setTimeout(() => dismiss(note), 1000 * NOTE_SECONDS) };
  notes.push(note);
  drawNotes();
}

function dismiss(...gone) {
  for (const one of gone) {
    clearTimeout(one.timer);
    one.el?.remove();
  }
  notes = notes.filter((one) => !gone.includes(one));
  drawNotes();
}

function drawNotes() {
  const place = document.getElementById("notes");
  const close = (label, gone) => h("button", { type: "button", class: "plain", "aria-label": label, onclick: () => dismiss(...gone()) }, icon("close"));
  const earlier = notes.slice(0, -NOTES);
  const latest = notes.slice(-NOTES);
  place.querySelector(".earlier")?.remove();
  if (earlier.length) place.prepend(h("div", { class: "earlier" }, h("p", {}, `and ${earlier.length} more`), close("Dismiss all messages", () => notes)));
  // Only what has changed is replaced: a screen reader reads the new message alone.
  for (const one of notes) {
    if (!latest.includes(one)) one.el?.remove();
    else if (!one.el?.isConnected) place.append(one.el ??= h("div", { class: "note" }, h("p", {}, one.words), close("Dismiss", () => [one])));
  }
}

/** A message without a repeated beginning: "a.png: a.png: …" becomes "a.png: …". */
function once(words) {
  const end = words.indexOf(": ");
  const start = words.slice(0, end + 2);
  return end > 0 && words.startsWith(start, start.length) ? words.slice(start.length) : words;
}

/** Why an image was not inspected, without its name and as a sentence. */
export function reasonOf(name, error) {
  let words = error.message || String(error);
  while (words.startsWith(`${name}: `)) words = words.slice(name.length + 2);
  words = words.replace(/^is /, "It is ");
  return `${words[0].toUpperCase()}${words.slice(1)}${/[.!?]$/.test(words) ? "" : "."}`;
}

/** A number with three or four significant digits. */
export function number(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size > 0 && size < 0.001) return value.toExponential(2);
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  return value.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : size >= 0.1 || size === 0 ? 2 : 4);
}

/** A score as a multiple of the threshold, or as it is without a threshold. */
export const level = (score, threshold) => (threshold ? `${number(score / threshold)}×` : number(score));

/** A count with its noun, in the plural unless it is 1. */
export const count = (many, one, several = `${one}s`) => `${many.toLocaleString("en")} ${many === 1 ? one : several}`;

/** A fraction in per cent. */
export function percent(part) {
  const value = 100 * part;
  return `${value === 0 || value >= 10 ? value.toFixed(0) : value.toFixed(value >= 1 ? 1 : 2)} %`;
}

/** A time of day if it is today, otherwise date and time. */
export function time(text) {
  const at = new Date(text);
  const today = new Date().toDateString() === at.toDateString();
  const clock = at.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
  if (today) return clock;
  return `${at.getFullYear()}-${String(at.getMonth() + 1).padStart(2, "0")}-${String(at.getDate()).padStart(2, "0")} ${clock.slice(0, 5)}`;
}

export const VERDICTS = { good: "Good", anomalous: "Anomalous", none: "Not inspected" };
export const REVIEWS = { true_defect: "True defect", false_alarm: "False alarm", unsure: "Unsure", confirmed_good: "Confirmed good" };

/** A verdict as icon and text. */
export const verdictBadge = (verdict) => h("span", { class: `badge ${verdict}` }, icon(verdict), VERDICTS[verdict]);

/** An operator's verdict as text. */
export const reviewBadge = (review) => h("span", { class: `badge review-${review}` }, REVIEWS[review]);

/** A progress bar; indeterminate if `total` is 0. */
export function progress(label, done, total) {
  const bar = h("progress", total > 0 ? { max: total, "aria-label": label } : { "aria-label": label });
  if (total > 0) bar.value = done;
  return bar;
}

/** A value from the browser's local storage, if available. */
export function remembered(name, otherwise) {
  try {
    return localStorage.getItem(`patchsvdd.${name}`) ?? otherwise;
  } catch {
    return otherwise;
  }
}

/** Store a value in the browser's local storage. */
export function remember(name, value) {
  try {
    localStorage.setItem(`patchsvdd.${name}`, value);
  } catch { /* not allowed: the value lasts until the page is closed */ }
}
