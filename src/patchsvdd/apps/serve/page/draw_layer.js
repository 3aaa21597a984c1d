/** The layer above the picture on which a drawing is shown. Its lines are not scaled, so that they stay thin. */

import { h } from "./dom.js";

const COLOUR = "#21e6a1";
const SHOWN = 350;
/** Milliseconds that a smooth change of the zoom lasts, and a little more. */

export class DrawLayer {
  /** `redraw` is called whenever the picture may have another size or place. */
  constructor(stage, redraw) {
    this.stage = stage;
    this.redraw = redraw;
    this.width = 1;
    /** Width of the image in its own pixels. */
    this.under = h("canvas", { class: "drawn", "aria-hidden": "true" });
    this.over = h("canvas", { class: "drawn-lines", "aria-hidden": "true" });
    stage.frame.append(this.under, this.over);
    stage.onPlaced = (smooth) => this.follow(smooth);
    new ResizeObserver(redraw).observe(stage.frame);
  }

  /** Where the image lies in the frame: left, top, and screen pixels per pixel of the image. */
  place() {
    const frame = this.stage.frame.getBoundingClientRect();
    const box = this.stage.inner.getBoundingClientRect();
    return { left: box.left - frame.left, top: box.top - frame.top, scale: box.width / this.width || 1 };
  }

  toImage(x, y) {
    const { left, top, scale } = this.place();
    return [(x - left) / scale, (y - top) / scale];
  }

  /** A pointer's place in pixels of the image. */
  at(event) {
    const frame = this.stage.frame.getBoundingClientRect();
    return this.toImage(event.clientX - frame.left, event.clientY - frame.top);
  }

  /** The zoom has changed; while it does so smoothly, the drawing moves with the picture. */
  follow(smooth) {
    this.redraw();
    if (!smooth || this.under.hidden) return;
    const end = performance.now() + SHOWN;
    const again = () => {
      this.redraw();
      if (performance.now() < end) requestAnimationFrame(again);
    };
    requestAnimationFrame(again);
  }

  /** Show a drawing; null for none. `more` paints what is not finished, with both pens, the scale and the colour. */
  show(drawing, more = null) {
    for (const one of [this.under, this.over]) one.hidden = !drawing;
    if (!drawing) return;
    this.width = drawing.width;
    const { left, top, scale } = this.place();
    const [under, over] = [this.under, this.over].map((canvas) => this.penOf(canvas, left, top, scale));
    drawing.paint(under, COLOUR);
    for (const path of drawing.outlines()) this.line(over, scale, path);
    more?.(under, over, scale, COLOUR);
  }

  penOf(canvas, left, top, scale) {
    const { clientWidth: width, clientHeight: height } = this.stage.frame;
    const ratio = devicePixelRatio || 1;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
    }
    const pen = canvas.getContext("2d");
    pen.setTransform(1, 0, 0, 1, 0, 0);
    pen.clearRect(0, 0, canvas.width, canvas.height);
    pen.setTransform(ratio * scale, 0, 0, ratio * scale, ratio * left, ratio * top);
    return pen;
  }

  /** Stroke twice, dark and light, so that the line is visible on every picture. */
  line(pen, scale, path) {
    for (const [colour, width] of [["rgb(0 0 0 / 75%)", 3.5], ["#fff", 1.5]]) {
      pen.strokeStyle = colour;
      pen.lineWidth = width / scale;
      pen.lineJoin = "round";
      pen.stroke(path);
    }
  }
}
