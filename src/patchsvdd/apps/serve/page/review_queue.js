/** What is left to review: alarms, those marked unsure, or a sample of good parts. */

import { api } from "./api.js";

const PAGE = 50;
const AHEAD = 3;
/** More are fetched when fewer than this are left. */

export class ReviewQueue {
  /** `what`: "none" (alarms not reviewed), "unsure" or "samples". */
  constructor(model, what) {
    this.model = model;
    this.what = what;
    this.items = [];
    /** Inspections to review; the first one is shown. */
    this.left = 0;
    /** How many the service has left, including the skipped ones. */
    this.skipped = 0;
    this.lost = 0;
    /** How many have no picture any more. */
    this.perDay = null;
    this.known = new Set();
    this.cursor = null;
    this.ended = false;
    this.fetching = null;
  }

  /** Fetch more if only a few are left. */
  fill() {
    if (this.ended || this.items.length >= AHEAD) return Promise.resolve();
    this.fetching ??= this.fetch().finally(() => { this.fetching = null; });
    return this.fetching;
  }

  /** Ask the service again from the top: new ones may have come in. */
  async refill() {
    await this.fetching?.catch(() => null);
    this.cursor = null;
    this.ended = false;
    await this.fill();
  }

  async fetch() {
    do {
      const { inspections, next, total } = await (this.what === "samples" ? this.samples() : this.alarms());
      for (const one of inspections) {
        if (this.known.has(one.id)) continue;
        this.known.add(one.id);
        if (one.has_picture) this.items.push(one);
        else this.lost += 1;
      }
      this.cursor = next;
      this.ended = next === null;
      this.left = total;
    } while (!this.items.length && !this.ended);
  }

  async alarms() {
    const filter = { model: this.model, verdict: "anomalous", review: this.what };
    const [page, counts] = await Promise.all([api.inspections({ ...filter, before: this.cursor, limit: PAGE }), api.counts(filter)]);
    return { ...page, total: counts.total };
  }

  async samples() {
    const answer = await api.sample(this.model);
    this.perDay = answer.per_day;
    const inspections = answer.inspections.filter((one) => !["confirmed_good", "true_defect"].includes(one.review?.verdict));
    return { inspections, next: null, total: inspections.length };
  }

  /** Remove an inspection after `verdict`. Returns how many fewer are left: 0 if the verdict keeps it in the list. */
  remove(inspection, verdict) {
    this.items = this.items.filter((one) => one.id !== inspection.id);
    const fewer = verdict === "unsure" && this.what !== "none" ? 0 : 1;
    this.left = Math.max(0, this.left - fewer);
    return fewer;
  }

  skip() {
    this.skipped += 1;
    return this.items.shift();
  }

  /** Put an inspection back to the front. */
  restore({ inspection, skipped, fewer }) {
    if (skipped) this.skipped -= 1;
    else this.left += fewer;
    this.items.unshift(inspection);
  }
}
