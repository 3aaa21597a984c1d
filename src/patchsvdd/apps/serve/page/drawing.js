/** What is drawn on an image: shapes and strokes in pixels of the original image, with undo and redo. */

const MOST_SIDE = 4000;
/** Painted pixels are shown reduced if one of their sides is longer. */

const clamp = (value, low, high) => Math.min(high, Math.max(low, value));
const tenth = (value) => Math.round(10 * value) / 10;

export class Drawing {
  /** `size`: height and width of the image; `entries`: what is stored, as the service returns it. */
  constructor(size, entries = []) {
    [this.height, this.width] = size;
    this.entries = entries;
    this.stored = entries;
    this.past = [];
    this.future = [];
  }

  /** Whether something changed since it was stored. */
  get dirty() {
    return this.entries !== this.stored;
  }

  add(entry) {
    this.change([...this.entries, entry]);
  }

  clear() {
    if (this.entries.length) this.change([]);
  }

  change(entries) {
    this.past.push(this.entries);
    this.future = [];
    this.entries = entries;
  }

  /** Take the last change back; returns whether there was one. */
  undo() {
    return this.step(this.past, this.future);
  }

  redo() {
    return this.step(this.future, this.past);
  }

  step(from, to) {
    if (!from.length) return false;
    to.push(this.entries);
    this.entries = from.pop();
    return true;
  }

  /** A point of the image, to a tenth of a pixel and never outside. */
  inside([x, y]) {
    return [tenth(clamp(x, 0, this.width)), tenth(clamp(y, 0, this.height))];
  }

  /** The kinds of the shapes, each once. */
  get kinds() {
    return [...new Set(this.entries.filter((one) => one.type !== "erase").map((one) => one.kind))];
  }

  /** Paint everything in order, opaque; `pen` has the scale of the image. */
  paint(pen, colour) {
    for (const entry of this.entries) {
      pen.globalCompositeOperation = entry.type === "erase" ? "destination-out" : "source-over";
      pen.fillStyle = colour;
      pen.strokeStyle = colour;
      if (entry.type === "brush") paintPixels(pen, entry, colour);
      else if (entry.type === "stroke" || entry.type === "erase") paintLine(pen, entry.points, entry.width);
      else pen.fill(outline(entry));
    }
    pen.globalCompositeOperation = "source-over";
  }

  /** Outlines of the polygons and boxes that no eraser came after. */
  outlines() {
    const last = this.entries.findLastIndex((one) => one.type === "erase");
    return this.entries.slice(last + 1).filter((one) => one.type === "polygon" || one.type === "box").map(outline);
  }
}

/** A line with round ends; a single point is a dot. */
export function paintLine(pen, points, width) {
  pen.lineWidth = width;
  pen.lineCap = "round";
  pen.lineJoin = "round";
  pen.beginPath();
  pen.moveTo(...points[0]);
  for (const point of points.length > 1 ? points.slice(1) : points) pen.lineTo(...point);
  pen.stroke();
}

function outline(entry) {
  const path = new Path2D();
  if (entry.type === "box") {
    const [left, top, right, bottom] = entry.box;
    path.rect(left, top, right - left, bottom - top);
    return path;
  }
  for (const ring of entry.rings) {
    ring.forEach(([x, y], index) => (index ? path.lineTo(x, y) : path.moveTo(x, y)));
    path.closePath();
  }
  return path;
}

const painted = new WeakMap();
/** Entry → canvas with its pixels. */

function paintPixels(pen, entry, colour) {
  if (!painted.has(entry)) painted.set(entry, pixelsOf(entry, colour));
  const [height, width] = entry.size;
  pen.imageSmoothingEnabled = false;
  pen.drawImage(painted.get(entry), entry.left, entry.top, width, height);
}

/** A canvas with the pixels of run lengths by column, the first of which are not set. */
function pixelsOf({ size: [height, width], counts }, colour) {
  const step = Math.ceil(Math.max(height, width) / MOST_SIDE);
  const canvas = document.createElement("canvas");
  canvas.width = Math.ceil(width / step);
  canvas.height = Math.ceil(height / step);
  const pen = canvas.getContext("2d");
  pen.fillStyle = colour;
  let at = 0;
  let set = false;
  for (const count of runLengths(counts)) {
    for (let start = at; set && start < at + count;) {  // a run may go on in the next column
      const row = start % height;
      const length = Math.min(height - row, at + count - start);
      pen.fillRect(Math.floor((start - row) / height / step), Math.floor(row / step), 1, Math.ceil(length / step));
      start += length;
    }
    at += count;
    set = !set;
  }
  return canvas;
}

/** The numbers in COCO's text of run lengths. */
export function runLengths(text) {
  const counts = [];
  for (let at = 0; at < text.length;) {
    let value = 0;
    let factor = 1;
    let bits;
    do {
      bits = text.charCodeAt(at++) - 48;
      value += (bits & 31) * factor;
      factor *= 32;
    } while (bits & 32);
    if (bits & 16) value -= factor;
    counts.push(counts.length > 2 ? value + counts.at(-2) : value);
  }
  return counts;
}
