/** Images given to Inspect since the page was opened: those that wait, those under way, and their results. */

import { api } from "./api.js";
import { count, reasonOf } from "./dom.js";

const KEPT = 60;
/** Results kept; images that were not inspected are all kept. */
const PARALLEL = 2;
/** Images sent at the same time. */
const IMAGE = /\.(png|jpe?g|webp|bmp|tiff?)$/i;

/** A key that lets the service recognize an image that is sent again. */
function newKey() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((one) => one.toString(16).padStart(2, "0")).join("");
}

/** How bad a result is: the score in units of the threshold. */
const badness = ({ inspection }) => (inspection ? inspection.score / (inspection.threshold || 1) : -1);

/**
 * The images of one page. An entry has a name, a `state` (waiting, running, done or none, for "not inspected"), and an
 * `inspection` or the `reason` why there is none. `onEnd(entry)` is called for each ended image, `onGroup(entries)` when
 * all images of one choice have ended, `onChange()` after every change.
 */
export class Session {
  constructor() {
    this.entries = [];
    /** Ended images, newest first. */
    this.current = [];
    /** Images since the session was last idle. */
    this.queue = [];
    this.working = 0;
    this.stop = new AbortController();
    this.listen();
  }

  /** Set the callbacks for changes; without arguments there are none. */
  listen({ onChange = () => {}, onEnd = () => {}, onGroup = () => {} } = {}) {
    Object.assign(this, { onChange, onEnd, onGroup });
  }

  get busy() {
    return this.current.some((one) => one.state === "waiting" || one.state === "running");
  }

  /** Numbers of the current images by result. */
  get counts() {
    const many = (test) => this.current.filter(test).length;
    return { total: this.current.length, ended: many((one) => one.state === "done" || one.state === "none"), none: many((one) => one.state === "none"),
      anomalous: many((one) => one.inspection?.is_anomalous), good: many((one) => one.inspection && !one.inspection.is_anomalous) };
  }

  /** The results of the current images as text. */
  get summary() {
    const { total, good, anomalous, none } = this.counts;
    const parts = [good && `${good} good`, anomalous && `${anomalous} anomalous`, none && `${none} not inspected`];
    return `${count(total, "image")}: ${parts.filter(Boolean).join(", ")}`;
  }

  /** Images that were not inspected and can be sent again. */
  get failed() {
    return this.entries.filter((one) => one.state === "none" && one.usable);
  }

  /** Inspect files. Those that are no images end at once, as not inspected. */
  add(files, model, trace = {}) {
    const group = files.map((file) => ({ file, model, trace, name: file.name, key: newKey(), usable: file.type.startsWith("image/") || IMAGE.test(file.name) }));
    this.start(group);
  }

  /** Send images again that were not inspected. */
  retry(entries) {
    this.entries = this.entries.filter((one) => !entries.includes(one));
    if (this.busy) this.current = this.current.filter((one) => !entries.includes(one));
    this.start(entries);
  }

  start(group) {
    if (!this.busy) this.current = [];
    this.current.push(...group);
    for (const entry of group) Object.assign(entry, { group, state: "waiting", reason: null });
    for (const entry of group) {
      if (entry.usable) this.queue.push(entry);
      else this.end(entry, { state: "none", reason: "It is not an image that can be inspected. Use PNG, JPEG, WebP, BMP or TIFF." });
    }
    this.onChange();
    for (; this.working < Math.min(PARALLEL, this.queue.length + this.working); this.working += 1) this.work();
  }

  /** Stop: what waits or is under way ends as not inspected. */
  cancel() {
    this.stop.abort();
    this.stop = new AbortController();
    for (const entry of this.queue.splice(0)) this.end(entry, { state: "none", reason: "Cancelled." });
    this.onChange();
  }

  async work() {
    for (let entry = this.queue.shift(); entry; entry = this.queue.shift()) {
      entry.state = "running";
      this.onChange();
      try {
        const inspection = await api.inspect(entry.model, entry.file, { trace: entry.trace, key: entry.key, signal: this.stop.signal });
        this.end(entry, { state: "done", inspection, file: null });
      } catch (error) {
        const cancelled = error.name === "AbortError" && "Cancelled. If the service had received the image, its result is in History.";
        this.end(entry, { state: "none", reason: cancelled || reasonOf(entry.name, error) });
      }
    }
    this.working -= 1;
    this.onChange();
  }

  end(entry, result) {
    Object.assign(entry, result);
    let kept = 0;
    this.entries = [entry, ...this.entries].filter((one) => one.state === "none" || ++kept <= KEPT);
    this.onEnd(entry);
    if (entry.group.every((one) => one.state === "done" || one.state === "none")) this.onGroup(entry.group);
  }
}

/** The worst of some images: the highest score in units of the threshold; not inspected ones if there are no others. */
export const worst = (entries) => entries.reduce((one, other) => (badness(other) > badness(one) ? other : one));
