/** An image with its heat map overlaid and its regions outlined. */

import { mapOf, pictureOf } from "./api.js";
import { count, h, icon, level, number, put, remember, remembered, VERDICTS } from "./dom.js";
import { Zoom } from "./zoom.js";

const LARGE = 1600;
/** Images with a longer side than this are fetched downscaled, until they are enlarged. */
const SHARPER = 2;
/** Magnification at which a large image is fetched in full. */
const TAG = 22;
/** Height of a region's number in pixels, with the gap to its box. */
let serial = 0;

/** A decoded image; rejects if it cannot be loaded. */
async function load(source) {
  const image = new Image();
  image.src = source;
  await image.decode();
  return image;
}

const percents = (value) => `${100 * value}%`;

export class Stage {
  /** `onState` receives "loading", "ready" or "failed" when that changes, also after "Try again". */
  constructor({ onState = () => {} } = {}) {
    this.onState = onState;
    this.turn = 0;
    this.ready = false;
    /** Whether picture, map and boxes of `inspection` are on screen; a review is allowed only then. */
    this.marks = [];
    this.zoomed = null;
    this.onRegion = () => {};
    this.onPlaced = () => {};
    /** Called with whether the change is smooth, when the picture was put in its place. */
    const id = `heat-${++serial}`;
    this.picture = h("img", { class: "picture", alt: "", draggable: "false" });
    this.map = h("img", { class: "map", alt: "", "aria-hidden": "true", draggable: "false" });
    this.inner = h("div", { class: "inner" }, this.picture, this.map);
    this.boxes = h("div", { class: "boxes", "aria-hidden": "true" });
    this.canvas = h("div", { class: "canvas" }, this.inner, this.boxes);
    this.frame = frame("Image: plus and minus zoom, arrow keys move, 0 shows all of it", this.canvas);
    this.message = h("div", { class: "message", role: "status" });
    this.pit = h("div", { class: "pit" }, this.frame);
    this.slider = h("input", { id, type: "range", min: 0, max: 100, step: 1, value: remembered("heat", "70"), oninput: () => this.blend() });
    this.percent = h("output", { for: id });
    this.outlines = h("input", { type: "checkbox", checked: remembered("outlines", "1") === "1", onchange: () => this.blend() });
    this.beside = h("button", { type: "button", class: "beside", "aria-pressed": "false", onclick: () => this.sideBySide(!this.twin) }, icon("beside"), "Side by side");
    this.magnified = h("output", { class: "magnified" });
    const button = (words, sign, action) => h("button", { type: "button", "aria-label": words, title: words, onclick: action }, sign);
    this.legend = h("div", { class: "legend", role: "img", "aria-label": "Colours of the heat map: blue below the threshold, red to yellow above, brightest at three times the threshold and above" },
      h("div", { class: "ramp" }), h("div", { class: "ticks" }, h("span", {}, "0"), h("span", {}, "threshold"), h("span", {}, "2×"), h("span", {}, "3×")));
    this.controls = h("figcaption", { class: "controls" },
      h("div", { class: "magnify", role: "group", "aria-label": "Zoom" }, button("Zoom out", icon("minus"), () => this.view.farther()), this.magnified,
        button("Zoom in", icon("plus"), () => this.view.closer()), h("button", { type: "button", title: "Show all of the image", onclick: () => this.zoom(null) }, "Fit")),
      this.beside, h("label", { class: "check" }, this.outlines, "Outlines"),
      h("div", { class: "heat" }, h("label", { for: id }, "Heat map"), this.slider, this.percent), this.legend);
    this.el = h("figure", { class: "stage" }, h("div", { class: "window" }, this.pit, this.message), this.controls);
    this.view = new Zoom((view, smooth) => this.placed(view, smooth));
    this.view.add(this.frame, this.inner);
    this.blend();
    if (remembered("beside", "0") === "1") this.sideBySide(true);
  }

  /**
   * Show an inspection. The previous picture, map and boxes go at once; the new ones appear together when picture and
   * map are decoded. Resolves to true then, and to false if another inspection was shown meanwhile or a file cannot be
   * loaded. In the latter case the stage says so and offers "Try again"; `onState` reports whether that worked.
   */
  async show(inspection) {
    const turn = ++this.turn;
    this.inspection = inspection;
    this.ready = false;
    this.clear();
    this.say(null, `Loading ${inspection.name}…`);
    this.onState("loading");
    const [height, width] = inspection.image_size;
    (this.el.closest(".result") ?? this.el).style.setProperty("--ratio", String(width / height));
    const large = Math.max(width, height) > LARGE;
    let loaded = null;
    try {
      loaded = await Promise.all([inspection.has_picture ? load(pictureOf(inspection.id, large ? LARGE : null)) : null,
        inspection.has_map ? load(mapOf(inspection.id)) : null]);
    } catch { /* the message is shown below */ }
    if (turn !== this.turn) return false;
    this.el.classList.remove("loading");
    if (!loaded) {
      this.el.classList.add("failed");
      this.say("warn", `The image or the heat map of ${inspection.name} could not be loaded.`, h("button", { type: "button", onclick: () => this.show(inspection) }, "Try again"));
      this.onState("failed");
      return false;
    }
    const [picture, map] = loaded;
    this.whole = !large || !picture;
    if (picture) this.replace("picture", picture);
    if (map) this.replace("map", map);
    this.picture.alt = `${inspection.name}: ${VERDICTS[inspection.verdict]}, ${count(inspection.regions.length, "region")} above the threshold`;
    this.picture.hidden = !picture;
    this.map.hidden = !map;
    this.drawTwin();
    this.drawBoxes(inspection);
    if (picture) this.say();
    else this.say(null, "The image is no longer stored.");
    this.ready = true;
    this.onState("ready");
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
    this.drawTwin();
    this.zoom(null);
  }

  /** Show nothing, for example because an image could not be inspected. */
  empty() {
    this.turn += 1;
    this.inspection = null;
    this.ready = false;
    this.clear();
    this.el.classList.remove("loading");
    this.say();
  }

  /** Words in the place of the picture. */
  say(sign, words, more) {
    put(this.message, words && [sign && icon(sign), h("p", {}, words), more]);
    this.message.hidden = !words;
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
    this.marks = inspection.regions.map((region, index) => {
      const [left, top, right, bottom] = region.box;
      return { place: [left / width, top / height, right / width, bottom / height], box: h("div", { class: "box" }, h("span", { class: "tag" }, String(index + 1))) };
    });
    put(this.boxes, this.marks.map((one) => one.box));
    this.placed(this.view, false);
  }

  /** Draw the boxes where the zoom has put their regions. They are not scaled, so that lines stay thin. */
  placed(view, smooth) {
    const { scale, x, y } = view;
    this.magnified.textContent = `${Math.round(100 * scale)} %`;
    this.onPlaced(smooth);
    for (const { place: [left, top, right, bottom], box } of this.marks) {
      box.classList.toggle("smooth", smooth);
      box.style.left = percents(x + scale * left);
      box.style.top = percents(y + scale * top);
      box.style.width = percents(scale * (right - left));
      box.style.height = percents(scale * (bottom - top));
      const above = (y + scale * top) * this.canvas.offsetHeight + this.canvas.offsetTop;
      const beneath = this.frame.clientHeight - above - scale * (bottom - top) * this.canvas.offsetHeight;
      box.classList.toggle("below", above < TAG && beneath >= TAG);
      box.classList.toggle("inside", above < TAG && beneath < TAG);
    }
    if (this.zoomed !== null && scale !== this.regionScale) this.released();
    if (scale >= SHARPER && !this.whole && this.ready) this.sharpen();
  }

  /** Load the image in its full size. */
  async sharpen() {
    const { turn, inspection } = this;
    this.whole = true;
    try {
      const picture = await load(pictureOf(inspection.id));
      if (turn !== this.turn || !this.ready) return;
      this.replace("picture", picture);
      this.drawTwin();
    } catch { /* the smaller one stays */ }
  }

  blend() {
    this.map.style.opacity = String(this.slider.value / 100);
    this.percent.textContent = `${this.slider.value} %`;
    this.canvas.classList.toggle("bare", !this.outlines.checked);
    remember("heat", this.slider.value);
    remember("outlines", this.outlines.checked ? "1" : "0");
  }

  /** Show the original beside the heat map; both zoom and move together. */
  sideBySide(on) {
    remember("beside", on ? "1" : "0");
    this.beside.setAttribute("aria-pressed", String(on));
    this.el.classList.toggle("paired", on);
    if (on) {
      const inner = h("div", { class: "copy" });
      const shown = frame("Original: plus and minus zoom, arrow keys move, 0 shows all of it", h("div", { class: "plate" }, inner));
      this.pit.prepend(shown);
      this.twin = { inner, shown, leave: this.view.add(shown, inner) };
      this.drawTwin();
    } else if (this.twin) {
      this.twin.leave();
      this.twin.shown.remove();
      this.twin = null;
    }
  }

  drawTwin() {
    if (!this.twin) return;
    const copy = this.picture.hidden ? null : this.picture.cloneNode();
    if (copy) {
      copy.alt = "The same image without the heat map";
      copy.className = "original";
    }
    put(this.twin.inner, copy);
  }

  /** Highlight one region; null for none. */
  highlight(index) {
    this.canvas.classList.toggle("picked", index !== null);
    this.marks.forEach((one, number) => one.box.classList.toggle("on", number === index));
  }

  /** Zoom to one region; null for the whole image. */
  zoom(index) {
    if (index === null) {
      this.released();
      this.view.fit(this.ready);
      return;
    }
    this.released();
    this.view.to(this.marks[index].place);
    this.zoomed = index;
    this.regionScale = this.view.scale;
    this.onRegion(index);
  }

  /** The user has left the region that was zoomed to. */
  released() {
    if (this.zoomed === null) return;
    this.zoomed = null;
    this.highlight(null);
    this.onRegion(null);
  }
}

/** A window onto the image, which can be reached by keyboard. */
const frame = (label, content) => h("div", { class: "frame", tabindex: "0", role: "group", "aria-label": label }, content);

/** The list of regions next to a stage: hover or focus highlights a region, a click zooms to it. */
export function regionList(stage, inspection) {
  if (!inspection.regions.length) return h("p", { class: "quiet" }, "No regions above the threshold.");
  const buttons = inspection.regions.map((region, index) => {
    const [left, top, right, bottom] = region.box;
    return h("button", { type: "button", class: "region", "aria-pressed": "false",
      onmouseenter: () => stage.highlight(index), onmouseleave: () => stage.highlight(stage.zoomed),
      onfocus: () => stage.highlight(index), onblur: () => stage.highlight(stage.zoomed),
      onclick: () => {
        if (!stage.ready) return;
        stage.zoom(stage.zoomed === index ? null : index);
        stage.highlight(index);
      } },
      h("span", { class: "nr" }, String(index + 1)),
      h("span", { class: "what" }, `${right - left} × ${bottom - top} px`, h("small", {}, ` at ${left}, ${top}`), region.like && h("small", { class: "like" }, region.like)),
      h("span", { class: "peak" }, level(region.peak, inspection.threshold)));
  });
  stage.onRegion = (zoomed) => buttons.forEach((one, index) => one.setAttribute("aria-pressed", String(index === zoomed)));
  const list = h("ol", { class: "regions" }, buttons.map((one) => h("li", {}, one)));
  return h("div", {}, h("p", { class: "help" }, "Click a region to zoom in; click again to zoom out."), list);
}

/** A score on a scale from 0 to three times the threshold. */
export function gauge(inspection) {
  const { score, threshold } = inspection;
  if (!threshold) return h("p", { class: "quiet" }, "This model has no threshold: it is not calibrated.");
  const mark = h("div", { class: "mark" });
  mark.style.left = `${Math.min(98, 100 * score / (3 * threshold))}%`;
  return h("div", { class: `gauge ${inspection.verdict}`, role: "img", "aria-label": `${number(score / threshold)} times the threshold` },
    h("div", { class: "track" }, h("div", { class: "below" }), h("div", { class: "above" }), mark),
    h("div", { class: "ticks" }, h("span", {}, "0"), h("span", {}, "threshold"), h("span", {}, `3×`)));
}
