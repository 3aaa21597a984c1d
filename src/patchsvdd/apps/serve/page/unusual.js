/** The good images of a model that are least like the others, and which of them to leave out of the next training. */

import { goodPicture } from "./api.js";
import { add, count, h, icon, put, s } from "./dom.js";
import { state } from "./state.js";

const FIRST = 12;
/** Images shown before the button is pressed. */
const RING = "13%";
const WHERE = "unusual";
/** What an address ends with that leads to the section. */

const ticks = new Map();
/** By model: the indices of the ticked images. They last until the page is closed. */

/** The address of a model's section. */
export const unusualOf = (name) => `#/models/${encodeURIComponent(name)}/${WHERE}`;

/** Bring the section of the shown model into view, if the address asks for it. */
export function goToUnusual(body, place) {
  const title = place === WHERE ? body.querySelector(".unusual h2") : null;
  title?.focus({ preventScroll: true });
  title?.scrollIntoView();
}

/** The section; null for a model without the list. */
export function unusualSection(model) {
  const found = model.unusual ?? [];
  if (!found.length) return null;
  const admin = state.may("admin");
  const known = found.map((one) => one.image);
  const ticked = new Set([...(ticks.get(model.name) ?? [])].filter((image) => known.includes(image)));
  ticks.set(model.name, ticked);
  const again = h("button", { type: "button", class: "main", onclick: () => {
    state.leftOut = [...new Set(found.filter((one) => ticked.has(one.image)).map((one) => fileOf(one.name)))];
    location.hash = "#/train";
  } });
  const draw = () => {
    again.disabled = !ticked.size;
    again.textContent = `Train again without ${ticked.size ? count(ticked.size, "image") : "the ticked images"}`;
  };
  const tick = (image, chosen) => {
    if (chosen) ticked.add(image);
    else ticked.delete(image);
    draw();
  };
  const card = (one) => h("li", {}, picture(model, one),
    h("p", { class: "file" }, one.name),
    h("p", { class: "quiet" }, `${one.ratio.toFixed(one.ratio < 10 ? 1 : 0)} × the usual`),
    one.stands_out && h("p", { class: "badge stands-out" }, icon("warn"), "stands out"),
    admin && h("label", { class: "check" }, h("input", { type: "checkbox", checked: ticked.has(one.image), onchange: (event) => tick(one.image, event.target.checked) }),
      h("span", {}, "Leave out", h("span", { class: "unseen" }, ` ${one.name}`))));
  const list = h("ul", {}, found.slice(0, FIRST).map(card));
  const more = h("button", { type: "button", hidden: found.length <= FIRST, onclick: () => {
    add(list, found.slice(FIRST).map(card));
    more.hidden = true;
    const next = list.children[FIRST];
    next.tabIndex = -1;
    (next.querySelector("input") ?? next).focus();  // the button is gone
  } }, `Show all ${found.length.toLocaleString("en")}`);
  draw();
  return h("section", { class: "card unusual" }, h("h2", { tabindex: "-1" }, "Good images least like the others"),
    h("p", {}, !found.some((one) => one.stands_out) && "None of them stands out. ",
      `Check whether one of them shows a defect. If so, ${admin ? "train again without it." : "ask an administrator to train again without it."}`,
      model.pictures > 0 && h("span", { class: "quiet" }, " The ring is where an image is least like the others.")),
    list, h("p", { class: "actions" }, more, admin && again));
}

/** The image with a ring where it is least like the others; null if the model has no picture of it. */
function picture(model, one) {
  if (one.image >= model.pictures) return null;
  const ring = s("svg", { "aria-hidden": "true" });
  const img = h("img", { src: goodPicture(model.name, one.image, model.identity), alt: `Good image ${one.name}`, loading: "lazy", decoding: "async", onload: () => {
    const { naturalWidth: width, naturalHeight: height } = img;
    const side = Math.max(width, height);  // the image is fitted into a square
    const share = (at, length) => `${(100 * (0.5 + ((at - 0.5) * length) / side)).toFixed(2)}%`;
    const place = { cx: share(one.at[1], width), cy: share(one.at[0], height), r: RING };
    put(ring, s("circle", { class: "edge", ...place }), s("circle", place));
  } });
  return h("div", { class: "ringed" }, img, ring);
}

/** The name of a file without its folders. */
const fileOf = (name) => name.split(/[\\/]/).at(-1);
