/** Times, lengths of time and settings in plain words. */

import { count } from "./dom.js";

const MONTHS = ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December"];

/** The first letter as a capital, and a full stop at the end. */
export const sentence = (text) => `${text[0].toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? "" : "."}`;

/** A point in time in words: "today at 14:03", "yesterday at 09:12", "3 March 2026 at 14:03". */
export function moment(text, now = new Date()) {
  const at = new Date(text);
  if (Number.isNaN(at.getTime())) return String(text);
  const clock = `${String(at.getHours()).padStart(2, "0")}:${String(at.getMinutes()).padStart(2, "0")}`;
  const midnight = (date) => new Date(date.getFullYear(), date.getMonth(), date.getDate()).getTime();
  const days = Math.round((midnight(now) - midnight(at)) / 86_400_000);
  if (days === 0) return `today at ${clock}`;
  if (days === 1) return `yesterday at ${clock}`;
  return `${at.getDate()} ${MONTHS[at.getMonth()]} ${at.getFullYear()} at ${clock}`;
}

/** A length of time in words. */
export function duration(seconds) {
  if (!Number.isFinite(seconds)) return "–";
  if (seconds < 90) return `${Math.max(1, Math.round(seconds))} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  const hours = Math.floor(seconds / 3600);
  const minutes = Math.round((seconds - 3600 * hours) / 60);
  return minutes ? `${hours} h ${minutes} min` : `${hours} h`;
}

/** What is left of a job, roughly: "about 12 min left". */
export function timeLeft(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "";
  if (seconds < 45) return "less than a minute left";
  if (seconds < 5400) return `about ${Math.max(1, Math.round(seconds / 60))} min left`;
  return `about ${count(Math.round(seconds / 3600), "hour")} left`;
}

/** Presets by what they mean for the user; the technical name is shown small beside it. */
export const PRESETS = { best: "Best", encoder: "Fast", paper: "As published" };
export const presetName = (preset) => PRESETS[preset] ?? preset;

/** What a threshold is for. */
export const AIMS = { balanced: "Balanced", "few-alarms": "Few alarms", "few-misses": "Few misses", chosen: "Chosen by a person" };

const HELD_OUT = { share: 0.2, least: 8 };
/** The number of images that a training holds out: a fixed share, with a minimum, and at most half of them. */

/** How many images set the threshold if a model is trained with `images` images. */
export function calibrating(images, preset) {
  if (preset !== "best") return images;
  return Math.min(Math.max(Math.round(HELD_OUT.share * images), HELD_OUT.least), Math.floor(images / 2));
}

/** How many images must set the threshold to guarantee a false-alarm rate. */
export const needed = (rate) => Math.max(1, Math.ceil(1 / rate) - 1);

/** How many images a training requires to guarantee a false-alarm rate: half of few, a fifth of many set the threshold. */
export function neededInAll(rate) {
  const scores = needed(rate);
  return scores <= HELD_OUT.least ? 2 * scores : Math.ceil(scores / HELD_OUT.share);
}

/** A rate in per cent without needless digits. */
export const asPercent = (rate) => `${Number((100 * rate).toPrecision(rate < 0.01 ? 2 : 3))} %`;

/** Whether this number of images can guarantee the false-alarm rate, and a sentence that says so: [enough, words]. */
export function promise(images, preset, rate) {
  const wanted = asPercent(rate);
  const scores = needed(rate);
  if (preset !== "best") {
    const few = images < scores ? ` With fewer than ${scores.toLocaleString("en")} images, the threshold is the highest score of a good image.` : "";
    return [false, `Fast guarantees no false-alarm rate, because every image trains the model.${few} For a guarantee, choose Best, or calibrate with other good images later.`];
  }
  const all = neededInAll(rate);
  const held = calibrating(images, preset);
  if (held >= scores && held > 1) return [true, `${count(images, "image")} can guarantee a false-alarm rate of ${wanted}: ${held.toLocaleString("en")} of them set the threshold.`];
  if (held < 2) return [false, `${count(images, "image")} can guarantee no false-alarm rate: ${wanted} requires ${all.toLocaleString("en")} images.`];
  return [false, `${count(images, "image")} cannot guarantee ${wanted}: ${held.toLocaleString("en")} of them set the threshold, which allows ${asPercent(1 / (held + 1))} at best. `
    + `${wanted} requires ${scores.toLocaleString("en")} of them, ${all.toLocaleString("en")} images in all. You can train now and calibrate later with ${scores.toLocaleString("en")} other good images.`];
}
