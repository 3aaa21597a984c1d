/** Overview: the landing view. */

import { h, put } from "./dom.js";

export const title = "Overview";

export async function mount(root) {
  put(root, h("div", { class: "title" }, h("h1", {}, "Overview")));
  return null;
}
