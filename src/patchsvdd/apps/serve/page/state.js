/** State shared by all views: the user, the models, and the selected model. */

import { api } from "./api.js";
import { h, put } from "./dom.js";

const ROLES = ["inspect", "review", "admin"];

export const state = {
  me: null,
  models: [],
  unavailable: [],
  model: null,
  guessed: false,
  /** Whether nobody has chosen `model`: it is only the first of several. */
  onChoice: () => {},
  leftOut: [],
  /** Names of files that the next training leaves out. */

  /** Whether the user has at least a role. */
  may(role) {
    return ROLES.indexOf(this.me?.role) >= ROLES.indexOf(role);
  },

  async refresh() {
    const { models, unavailable = [] } = await api.modelList();
    this.models = models;
    this.unavailable = unavailable;
    if (!this.models.some((one) => one.name === this.model)) {
      this.model = this.models[0]?.name ?? null;
      this.guessed = this.models.length > 1;
    }
    return this.models;
  },

  /** Select a model. Showing the guessed one is no choice, unless the user asked for it. */
  choose(name, asked = name !== this.model) {
    if (this.guessed && !asked) return;
    this.guessed = false;
    this.model = name;
    this.onChoice(name);
  },

  /** The selected model. */
  get chosen() {
    return this.models.find((one) => one.name === this.model) ?? null;
  },
};

/** A model selector; `onChange` receives the new name. With `all`, "All models" is an option; with `ask`, "Choose a model". */
export function modelChoice(onChange, { all = false, ask = false, id = "model", value = ask ? null : state.model } = {}) {
  const select = h("select", { id, onchange: () => {
    if (select.value) state.choose(select.value, true);
    onChange(select.value);
  } });
  put(select, all && h("option", { value: "" }, "All models"), ask && h("option", { value: "", disabled: true }, "Choose a model"),
    state.models.map((one) => h("option", { value: one.name }, one.name)));
  select.value = value ?? "";
  return h("div", { class: "field" }, h("label", { for: id }, "Model"), select);
}

/** The card shown when there is no model. */
export function noModel() {
  return h("div", { class: "card empty" }, h("h1", {}, "No model yet"),
    h("p", {}, "Train one with images of good parts. No images of defects are needed."),
    state.may("admin") && h("p", {}, h("a", { class: "button main", href: "#/train" }, "Train a model")));
}
