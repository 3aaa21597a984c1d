/** An image with its heat map overlaid and its regions outlined. */

import { mapOf, pictureOf } from "./api.js";
import { count, h, level, number, put, remember, remembered, s, VERDICTS } from "./dom.js";

const LARGE = 1600;
/** Images with a longer side than this are fetched downscaled. */
let serial = 0;

/** A decoded image; rejects if it cannot be loaded. */
async function load(source) {
  const image = new Image();
  image.src = source;
  await image.decode();
  return image;
}

export class Stage {
  constructor() {
    this.turn = 0;
    this.ready = false;
    /** Whether picture, map and boxes of `inspection` are on screen; a review is allowed only then. */
    const id = `heat-${++serial}`;
    this.picture = h("img", { class: "picture", alt: "", draggable: "false" });
    this.map = h("img", { class: "map", alt: "", "aria-hidden": "true", draggable: "false" });
    this.boxes = s("svg", { class: "boxes", preserveAspectRatio: "none", "aria-hidden": "true" });
    this.tags = h("div", { class: "tags", "aria-hidden": "true" });
    this.inner = h("div", { class: "inner" }, this.picture, this.map, this.boxes, this.tags);
    this.canvas = h("div", { class: "canvas" }, this.inner);
    this.slider = h("input", { id, type: "range", min: 0, max: 100, step: 1, value: remembered("heat", "70"), oninput: () => this.blend() });
    this.percent = h("output", { for: id });
    this.outlines = h("input", { type: "checkbox", checked: remembered("outlines", "1") === "1", onchange: () => this.blend() });
    this.legend = h("div", { class: "legend", role: "img", "aria-label": "Colours of the heat map: blue below the threshold, red to yellow above, brightest at three times the threshold and above" },
      h("div", { class: "ramp" }), h("div", { class: "ticks" }, h("span", {}, "0"), h("span", {}, "threshold"), h("span", {}, "2×"), h("span", {}, "3×")));
    this.el = h("figure", { class: "stage" }, h("div", { class: "pit" }, this.canvas),
      h("figcaption", { class: "controls" },
        h("div", { class: "heat" }, h("label", { for: id }, "Heat map"), this.slider, this.percent),
        h("label", { class: "check" }, this.outlines, "Outlines"), this.legend));
    this.blend();
  }

  /**
   * Show an inspection. The previous picture, map and boxes go at once; the new ones appear together when picture and
   * map are decoded. Resolves to true then, and to false if another inspection was shown meanwhile or a file is missing.
   */
  async show(inspection) {
    const turn = ++this.turn;
    this.inspection = inspection;
    this.ready = false;
    this.clear();
    const [height, width] = inspection.image_size;
    this.canvas.style.setProperty("--ratio", String(width / height));
    this.zoom(null);
    const picture = inspection.has_picture ? load(pictureOf(inspection.id, Math.max(width, height) > LARGE ? LARGE : null)) : null;
    const map = inspection.has_map ? load(mapOf(inspection.id)) : null;
    let failed = null;
    try {
      await Promise.all([picture, map]);
    } catch (error) {
      failed = error;
    }
    if (turn !== this.turn) return false;
    this.el.classList.remove("loading");
    if (failed) {
      this.el.classList.add("failed");
      return false;
    }
    const regions = count(inspection.regions.length, "region");
    if (picture) this.replace("picture", await picture);
    if (map) this.replace("map", await map);
    if (turn !== this.turn) return false;
    this.picture.alt = `${inspection.name}: ${VERDICTS[inspection.verdict]}, ${regions} above the threshold`;
    this.picture.hidden = !picture;
    this.map.hidden = !map;
    this.drawBoxes(inspection);
    this.ready = true;
    return true;
  }

  /** Remove picture, map and boxes. */
  clear() {
    this.el.classList.add("loading");
    this.el.classList.remove("failed");
    this.picture.hidden = true;
    this.map.hidden = true;
    this.marks = [];
    put(this.boxes);
    put(this.tags);
  }

  /** Put a decoded image in the place of `this[name]`. */
  replace(name, image) {
    const old = this[name];
    for (const attribute of ["class", "alt", "aria-hidden", "draggable"]) if (old.hasAttribute(attribute)) image.setAttribute(attribute, old.getAttribute(attribute));
    old.replaceWith(image);
    this[name] = image;
    if (name === "map") this.blend();
  }

  drawBoxes(inspection) {
    const [height, width] = inspection.image_size;
    this.boxes.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.marks = inspection.regions.map((region, index) => {
      const [left, top, right, bottom] = region.box;
      const place = { x: left, y: top, width: right - left, height: bottom - top };
      const box = s("g", { class: "box" }, s("rect", { ...place, class: "halo" }), s("rect", place));
      const tag = h("span", { class: "tag" }, String(index + 1));
      tag.style.left = `${100 * left / width}%`;
      tag.style.top = `${100 * top / height}%`;
      return { box, tag };
    });
    put(this.boxes, this.marks.map((one) => one.box));
    put(this.tags, this.marks.map((one) => one.tag));
  }

  blend() {
    this.map.style.opacity = String(this.slider.value / 100);
    this.percent.textContent = `${this.slider.value} %`;
    this.canvas.classList.toggle("bare", !this.outlines.checked);
    remember("heat", this.slider.value);
    remember("outlines", this.outlines.checked ? "1" : "0");
  }

  /** Highlight one region; null for none. */
  highlight(index) {
    this.canvas.classList.toggle("picked", index !== null);
    this.marks?.forEach((one, number) => {
      one.box.classList.toggle("on", number === index);
      one.tag.classList.toggle("on", number === index);
    });
  }

  /** Zoom to one region; null for the whole image. */
  zoom(index) {
    this.zoomed = index;
    if (index === null) {
      this.inner.style.transform = "";
      this.canvas.style.setProperty("--zoom", "1");
      return;
    }
    const [height, width] = this.inspection.image_size;
    const [left, top, right, bottom] = this.inspection.regions[index].box;
    const scale = Math.max(1, Math.min(8, 0.6 * Math.min(width / (right - left), height / (bottom - top))));
    const clamp = (value) => Math.min(0, Math.max(1 - scale, value));
    const x = clamp(0.5 - scale * (left + right) / 2 / width);
    const y = clamp(0.5 - scale * (top + bottom) / 2 / height);
    this.inner.style.transform = `translate(${100 * x}%, ${100 * y}%) scale(${scale})`;
    this.canvas.style.setProperty("--zoom", String(scale));
  }
}

/** The list of regions next to a stage: hover or focus highlights a region, a click zooms to it. */
export function regionList(stage, inspection) {
  if (!inspection.regions.length) return h("p", { class: "quiet" }, "No regions above the threshold.");
  const buttons = inspection.regions.map((region, index) => {
    const [left, top, right, bottom] = region.box;
    const button = h("button", { type: "button", class: "region", "aria-pressed": "false",
      onmouseenter: () => stage.highlight(index), onmouseleave: () => stage.highlight(stage.zoomed),
      onfocus: () => stage.highlight(index), onblur: () => stage.highlight(stage.zoomed),
      onclick: () => {
        stage.zoom(stage.zoomed === index ? null : index);
        stage.highlight(stage.zoomed);
        buttons.forEach((one, number) => one.setAttribute("aria-pressed", String(number === stage.zoomed)));
      } },
      h("span", { class: "nr" }, String(index + 1)),
      h("span", { class: "what" }, `${right - left} × ${bottom - top} px`, h("small", {}, ` at ${left}, ${top}`)),
      h("span", { class: "peak" }, level(region.peak, inspection.threshold)));
    return button;
  });
  const list = h("ol", { class: "regions" }, buttons.map((one) => h("li", {}, one)));
  return h("div", {}, h("p", { class: "help" }, "Click a region to zoom in; click again to zoom out."), list);
}

/** A score on a scale from 0 to three times the threshold. */
export function gauge(inspection) {
  const { score, threshold } = inspection;
  if (!threshold) return h("p", { class: "quiet" }, "This model has no threshold: it is not calibrated.");
  const mark = h("div", { class: "mark" });
  mark.style.left = `${Math.min(98, 100 * score / (3 * threshold))}%`;
  return h("div", { class: `gauge ${inspection.verdict}`, role: "img", "aria-label": `Score ${number(score)}, threshold ${number(threshold)}` },
    h("div", { class: "track" }, h("div", { class: "below" }), h("div", { class: "above" }), mark),
    h("div", { class: "ticks" }, h("span", {}, "0"), h("span", {}, "threshold"), h("span", {}, `3×`)));
}
