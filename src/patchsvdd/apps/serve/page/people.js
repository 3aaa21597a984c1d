/** People: users and API keys, for administrators. */

import { h, put } from "./dom.js";

export const title = "People";

export async function mount(root) {
  put(root, h("div", { class: "title" }, h("h1", {}, "People")));
  return null;
}
