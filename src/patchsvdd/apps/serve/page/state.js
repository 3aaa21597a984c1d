/** What all views share: who is asking, the models, and the one that is chosen. */

import { api } from "./api.js";
import { h, put } from "./dom.js";

const ROLES = ["inspect", "review", "admin"];

export const state = {
  me: null,
  models: [],
  model: null,
  onChoice: () => {},

  /** Whether whoever is asking has at least a role. */
  may(role) {
    return ROLES.indexOf(this.me?.role) >= ROLES.indexOf(role);
  },

  async refresh() {
    this.models = await api.models();
    if (!this.models.some((one) => one.name === this.model)) this.model = this.models[0]?.name ?? null;
    return this.models;
  },

  choose(name) {
    this.model = name;
    this.onChoice(name);
  },

  /** The model that is chosen. */
  get chosen() {
    return this.models.find((one) => one.name === this.model) ?? null;
  },
};

/** A choice of models; `onChange` hears of a new one. With `all`, none may be chosen. */
export function modelChoice(onChange, { all = false, id = "model", value = state.model } = {}) {
  const select = h("select", { id, onchange: () => {
    if (select.value) state.choose(select.value);
    onChange(select.value);
  } });
  put(select, all && h("option", { value: "" }, "All models"),
    state.models.map((one) => h("option", { value: one.name }, one.name)));
  select.value = value ?? "";
  return h("div", { class: "field" }, h("label", { for: id }, "Model"), select);
}

/** What is shown where there is no model. */
export function noModel() {
  return h("div", { class: "card empty" }, h("h1", {}, "No model yet"),
    h("p", {}, "Train one from pictures of good parts: it takes no pictures of defects."),
    state.may("admin") && h("p", {}, h("a", { class: "button main", href: "#/train" }, "Train a model")));
}
