/** The views of a part: the images that were judged, with their regions; or live images; or where defects occurred. */

import { h, put, s } from "./dom.js";
import { multiple, t } from "./language.js";
import { shape, word } from "./line_signs.js";
import { pictureOf } from "./api.js";

const SIDE = 1600;
const LIVE_EVERY = 700;
/** Milliseconds between two live images. */

/** Load an image; rejects if it cannot be decoded. */
async function load(src) {
  const image = new Image();
  image.src = src;
  await image.decode();
  return image;
}

const CAPTION = 60;
/** Height of what a view has beside its image. */

/** The number of columns with which the images of an area become largest. */
function columnsFor(many, width, height, ratio) {
  let [best, most] = [1, 0];
  for (let columns = 1; columns <= many; columns += 1) {
    const size = Math.min(width / columns, ratio * (height / Math.ceil(many / columns) - CAPTION));
    if (size > 1.02 * most) [best, most] = [columns, size];
  }
  return best;
}

export class Views {
  constructor() {
    this.el = h("section", { class: "views", "aria-label": t("label.views") });
    this.cells = new Map();
    this.live = false;
    this.heatSince = null;
    this.timer = 0;
    this.part = null;
    new ResizeObserver(() => this.arrange()).observe(this.el);
  }

  /** Choose the columns for the room that there is. */
  arrange() {
    const ratio = Math.max(0.2, ...[...this.cells.values()].map((one) => one.ratio));
    this.el.style.setProperty("--columns", String(columnsFor(this.cells.size, this.el.clientWidth, this.el.clientHeight, ratio)));
  }

  /** Show the views of a part; `names` are the line's views, `sources` its sources. */
  show(names, sources, part) {
    this.sources = sources;
    if (names.join("\n") !== [...this.cells.keys()].join("\n")) {
      this.cells = new Map(names.map((name) => [name, new Cell(name, () => this.arrange())]));
      put(this.el, [...this.cells.values()].map((one) => one.el));
      this.arrange();
    }
    this.part = part;
    if (this.live) return;
    for (const cell of this.cells.values()) cell.show(part);
  }

  /** Show live images instead of the judged ones. */
  goLive(on) {
    this.live = on;
    clearTimeout(this.timer);
    this.el.classList.toggle("live", on);
    for (const cell of this.cells.values()) cell.again();
    if (on) this.followLive();
    else for (const cell of this.cells.values()) cell.show(this.part);
  }

  async followLive() {
    const taken = [...this.cells].filter(([name]) => this.sources.some((one) => one.view === name && one.frames > 0));
    await Promise.allSettled(taken.map(([, cell]) => cell.showLive(() => this.live)));
    if (this.live) this.timer = setTimeout(() => this.followLive(), LIVE_EVERY);
  }

  /** Lay over the images where defects occurred since a time; null for not at all. */
  heat(since) {
    this.heatSince = since;
    for (const cell of this.cells.values()) cell.heat(since);
  }

  close() {
    this.live = false;
    clearTimeout(this.timer);
  }
}

class Cell {
  /** `onShape` is called when the image has another shape than the one before. */
  constructor(name, onShape) {
    this.name = name;
    this.onShape = onShape;
    this.ratio = 1;
    this.plate = h("div", { class: "plate-of-view" });
    this.outlines = s("svg", { class: "outlines", "aria-hidden": "true", preserveAspectRatio: "none" });
    this.words = h("p", { class: "no-image" });
    this.verdict = h("span", { class: "verdict-of-view" });
    this.link = h("a", { class: "name-of-view" }, name);
    this.el = h("figure", { class: "view-of-part" }, h("div", { class: "frame-of-view" }, this.plate, this.words), h("figcaption", {}, this.link, this.verdict));
    this.heatLayer = null;
    this.shown = null;
    this.turn = 0;
    this.say(t("view.none"));
  }

  /** Draw again what comes next, even if it is the same. */
  again() {
    this.shown = null;
    this.turn += 1;
  }

  say(text) {
    this.words.textContent = text;
    this.words.hidden = !text;
    this.plate.hidden = Boolean(text);
  }

  async show(part) {
    const key = part?.id ?? null;
    const known = part?.views.find((one) => one.view === this.name)?.image_size ?? null;
    if (this.shown === `${key} ${known}`) return;
    this.shown = `${key} ${known}`;
    const mine = ++this.turn;
    const view = part?.views.find((one) => one.view === this.name) ?? null;
    this.el.dataset.kind = view ? view.verdict : part?.missing.includes(this.name) ? "incomplete" : "none";
    if (view) this.link.setAttribute("href", `/#/history/${view.inspection}`);
    else this.link.removeAttribute("href");
    put(this.verdict, view && [shape(view.verdict), h("span", { class: "unseen" }, word(view.verdict)), multiple(view.threshold > 0 ? view.score / view.threshold : null)]);
    if (!view) return this.blank(part ? t("view.missing") : t("view.none"));
    if (!view.image_size) return this.el.classList.add("loading");  // the next list of parts has it
    if (!view.has_picture) return this.blank(t("view.deleted"));
    this.el.classList.add("loading");
    let image;
    try {
      image = await load(pictureOf(view.inspection, SIDE));
    } catch {
      if (mine === this.turn) this.blank(t("view.failed"));
      return null;
    }
    if (mine !== this.turn) return null;
    const [height, width] = view.image_size;
    image.alt = t("view.alt", { view: this.name, verdict: word(view.verdict) });
    this.put(image, width / height);
    this.outlines.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const boxes = part.regions.filter((one) => one.view === this.name);
    for (const name of ["halo", "outline"]) {
      this.outlines.append(...boxes.map((one) => s("rect", { class: name, x: one.left, y: one.top, width: one.width, height: one.height })));
    }
    return null;
  }

  /** The latest image of the camera, whether it belongs to a part or not. */
  async showLive(wanted) {
    const mine = this.turn;
    const image = await load(`/v1/line/live/${encodeURIComponent(this.name)}?at=${Date.now()}`);
    if (mine !== this.turn || !wanted()) return;
    image.alt = t("view.live", { view: this.name });
    put(this.verdict, t("live.mark"));
    this.el.dataset.kind = "none";
    this.put(image, image.naturalWidth / image.naturalHeight);
  }

  put(image, ratio) {
    this.say("");
    this.el.classList.remove("loading");
    put(this.outlines);
    if (ratio !== this.ratio) {
      this.ratio = ratio;
      this.plate.style.setProperty("--ratio", String(ratio));
      this.onShape();
    }
    put(this.plate, image, this.heatLayer, this.outlines);
  }

  blank(text) {
    this.el.classList.remove("loading");
    put(this.plate);
    this.say(text);
    return null;
  }

  async heat(since) {
    const mine = (this.heatTurn = (this.heatTurn ?? 0) + 1);
    let layer = null;
    if (since !== null) {
      try {
        layer = await load(`/v1/line/heat/${encodeURIComponent(this.name)}?since=${since}`);
      } catch { /* drawn without it; the next one is tried with the next defect */ }
    }
    if (mine !== this.heatTurn) return;
    this.heatLayer?.remove();
    this.heatLayer = layer;
    if (!layer) return;
    layer.className = "heat-of-view";
    layer.alt = "";
    this.outlines.isConnected ? this.outlines.before(layer) : this.plate.append(layer);
  }
}
