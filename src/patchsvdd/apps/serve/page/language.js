/** The texts of the line's page in several languages: one catalogue each, in `languages/`. */

import { remember, remembered } from "./dom.js";

export const LANGUAGES = { en: "English", de: "Deutsch", es: "Español", ja: "日本語", zh: "中文" };
let texts = {};
let code = "en";

/** The language that was chosen on this device, else the first of the browser's that there is, else English. */
export function preferred() {
  const wanted = [remembered("language", null), ...navigator.languages];
  return wanted.map((one) => one?.slice(0, 2).toLowerCase()).find((one) => Object.hasOwn(LANGUAGES, one)) ?? "en";
}

/** Load a language and use it from now on; `chosen` if the user asked for it, so that it is remembered. */
export async function use(wanted, { chosen = false } = {}) {
  const response = await fetch(`languages/${wanted}.json`);
  if (!response.ok) throw new Error(`${wanted}.json: ${response.status} ${response.statusText}`);
  texts = await response.json();
  code = wanted;
  document.documentElement.lang = wanted;
  if (chosen) remember("language", wanted);
}

/** The language in use. */
export const language = () => code;

/** A text in the language in use; `{name}` is replaced by a value. */
export function t(key, values = {}) {
  const text = texts[key];
  if (text === undefined) {
    console.error(`the language ${code} has no text for ${key}`);
    return `⟦${key}⟧`;
  }
  return text.replace(/\{(\w+)\}/g, (_, name) => String(values[name]));
}

/** A number as the language writes it. */
export const figure = (value, digits = 0) => value.toLocaleString(code, { minimumFractionDigits: digits, maximumFractionDigits: digits });

/** A share in per cent; "–" for null. */
export const share = (value, digits = 1) => (value === null ? "–" : value.toLocaleString(code, { style: "percent", maximumFractionDigits: digits }));

/** A score as a multiple of the threshold; "–" for null. */
export const multiple = (value) => (value === null ? "–" : `${figure(value, value < 10 ? 2 : value < 100 ? 1 : 0)} ×`);

/** A time of day. */
export const clock = (text, seconds = true) => new Date(text).toLocaleTimeString(code, { hour: "2-digit", minute: "2-digit", second: seconds ? "2-digit" : undefined, hour12: false });
