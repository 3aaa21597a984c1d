/** Sample review: the choice to review good parts, and how many are drawn per day. */

import { api } from "./api.js";
import { complain, count, h, put } from "./dom.js";
import { state } from "./state.js";

export class SampleTools {
  /** `onChange` receives what was changed, in words. */
  constructor(onChange) {
    this.onChange = onChange;
    this.model = null;
    this.option = h("option", { value: "samples", hidden: true, disabled: true }, "Good parts to confirm");
    this.form = h("form", { class: "tools", hidden: true, onsubmit: (event) => this.save(event) });
  }

  /** Show the choice if the service draws samples, with the number of parts that are due. */
  async offer(model) {
    this.model = model;
    const answer = await api.sample(model).catch(() => null);
    if (model !== this.model) return;
    this.option.hidden = this.option.disabled = !answer;
    this.option.textContent = answer?.due ? `Good parts to confirm (${answer.due.toLocaleString("en")})` : "Good parts to confirm";
  }

  /** Show how many are drawn per day, to administrators who review samples. */
  draw({ perDay }) {
    this.form.hidden = perDay === null || !state.may("admin");
    this.number = h("input", { id: "per-day", type: "number", min: 0, max: 1000, step: 1, required: true, value: perDay ?? 0 });
    put(this.form, h("div", { class: "field" }, h("label", { for: "per-day" }, "Good parts per day"), this.number), h("button", {}, "Save"));
  }

  async save(event) {
    event.preventDefault();
    const { model } = this;
    const many = this.number.valueAsNumber;
    try {
      await api.setSample(model, many);
    } catch (error) {
      return void complain(error);
    }
    if (model === this.model) this.onChange(many ? `${count(many, "good part")} of ${model} per day will be drawn for review.` : `No good parts of ${model} will be drawn for review.`);
  }
}
