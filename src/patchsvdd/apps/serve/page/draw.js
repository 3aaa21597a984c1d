/** Draw on the stage where a defect is: polygon, box, brush and eraser, by pointer or by keyboard. */

import { api } from "./api.js";
import { announce, complain, count, h, icon, put, remember, remembered } from "./dom.js";
import { DrawLayer } from "./draw_layer.js";
import { BoxTool, BrushTool, PolygonTool } from "./draw_tools.js";
import { Drawing, paintLine } from "./drawing.js";
import { state } from "./state.js";

const KEYBOARD = 1;
const KEYBOARD_FAST = 10;
/** Pixels of the image that an arrow key moves the cursor, without and with Shift. */
const EDGE = 0.08;
/** The picture moves when the cursor is closer to the edge of the frame than this part of it. */
const TOUCH = 8;
/** Pixels on the screen that count as the same place. */
const WIDTHS = [1, 200];
const TOOLS = {
  polygon: { key: "p", words: "Polygon", how: "Click point by point. Enter or a double click closes it, Backspace removes the last point." },
  box: { key: "b", words: "Box", how: "Drag from corner to corner." },
  brush: { key: "r", words: "Brush", how: "Paint. [ and ] change the width." },
  erase: { key: "e", words: "Eraser", how: "Remove what was drawn. [ and ] change the width." },
  move: { key: "m", words: "Move", how: "Drag the picture. The wheel zooms with every tool." },
};
let serial = 0;

export class DrawTools {
  /** `saves`: whether it has a button to save; otherwise its owner saves. */
  constructor(stage, { saves = false } = {}) {
    this.stage = stage;
    this.saves = saves;
    this.inspection = null;
    this.drawing = null;
    this.open = false;
    this.cursor = null;
    this.pointers = new Set();
    this.layer = new DrawLayer(stage, () => this.draw());
    this.tools = { polygon: new PolygonTool(this), box: new BoxTool(this), brush: new BrushTool(this), erase: new BrushTool(this, true), move: null };
    const id = `draw-${++serial}`;
    const button = (words, sign, action, more = {}) => h("button", { type: "button", onclick: action, ...more }, sign, words);
    this.opener = button("Mark the defect", icon("draw"), () => this.start(), { class: "open-draw", hidden: true });
    this.choices = Object.entries(TOOLS).map(([name, { key, words }]) => button(words, null, () => this.choose(name), { "data-tool": name, "aria-pressed": "false", title: `${words} (${key.toUpperCase()})` }));
    this.kindInput = h("input", { id: `${id}-kind`, type: "text", maxlength: 100, autocomplete: "off", list: `${id}-kinds`, placeholder: "defect", value: remembered("kind", "") });
    this.kinds = h("datalist", { id: `${id}-kinds` });
    this.slider = h("input", { id: `${id}-width`, type: "range", min: WIDTHS[0], max: WIDTHS[1], step: 1, value: remembered("brush", "12"), oninput: () => this.resized() });
    this.widthShown = h("output", { for: `${id}-width` });
    this.undoButton = button(null, icon("undo"), () => this.undo(), { "aria-label": "Undo", title: "Undo (Ctrl+Z)" });
    this.redoButton = button(null, icon("redo"), () => this.redo(), { "aria-label": "Redo", title: "Redo (Ctrl+Shift+Z)" });
    this.clearButton = button("Clear", null, () => this.change(() => this.drawing.clear()));
    this.saveButton = saves && button("Save", null, () => this.save(), { class: "main" });
    this.closer = button("Close", null, () => this.close());
    this.words = h("p", { class: "help draw-help" });
    this.summary = h("p", { class: "quiet draw-summary" });
    this.shown = h("p", { class: "quiet draw-shown" });
    this.bar = h("div", { class: "draw-bar", role: "group", "aria-label": "Draw where the defect is", hidden: true },
      h("div", { class: "draw-row" }, h("div", { class: "draw-choices", role: "group", "aria-label": "Tool" }, this.choices),
        h("div", { class: "draw-width" }, h("label", { for: `${id}-width` }, "Width"), this.slider, this.widthShown)),
      h("div", { class: "draw-row" }, h("label", { class: "draw-kind", for: `${id}-kind` }, "Kind", this.kindInput), this.kinds,
        h("div", { class: "draw-actions" }, this.undoButton, this.redoButton, this.clearButton, this.saveButton, this.closer)),
      h("div", { class: "draw-row" }, this.words, this.summary));
    stage.controls.before(this.bar);
    stage.beside.after(this.opener);
    stage.controls.append(this.shown);
    this.listen();
    this.resized();
  }

  // What is drawn on

  /** Draw on an inspection from now on; what was not saved of the one before is dropped. `load`: fetch what is stored. */
  show(inspection, load = false) {
    if (this.saves && this.drawing?.dirty) complain(new Error(`${this.inspection.name}: the drawing was not saved.`));
    this.close();
    this.inspection = inspection;
    this.drawing = null;
    this.cursor = null;
    this.opener.hidden = !this.possible;
    this.draw();
    this.report();
    if (inspection && load) this.load().catch(() => {});
  }

  get possible() {
    return Boolean(this.inspection?.has_picture) && state.may("review");
  }

  /** Fetch what is stored for the inspection; false if another one is shown meanwhile. */
  async load() {
    const { inspection } = this;
    const stored = await api.annotation(inspection.id);
    if (inspection !== this.inspection) return false;
    this.take(stored);
    return true;
  }

  take(stored) {
    this.drawing = new Drawing(this.inspection.image_size, stored.shapes);
    put(this.kinds, stored.kinds.map((kind) => h("option", { value: kind })));
    this.report();
    this.draw();
  }

  async start() {
    if (!this.stage.ready || this.open) return;
    try {
      if (!this.drawing && !await this.load()) return;
    } catch (error) {
      complain(error);
      return;
    }
    this.open = true;
    this.bar.hidden = false;
    this.opener.hidden = true;
    this.stage.el.classList.add("drawing");
    this.choose(this.tool ?? "polygon");
    this.report();
    this.stage.frame.focus({ preventScroll: true });
    this.stage.el.scrollIntoView({ block: "start" });
    announce("Drawing. Arrow keys move the cursor, Shift makes larger steps, Space sets a point, Enter closes, Escape cancels.");
  }

  close() {
    if (!this.open) return;
    this.active?.cancel();
    this.open = false;
    this.bar.hidden = true;
    this.opener.hidden = !this.possible;
    this.cursor = null;
    this.stage.el.classList.remove("drawing");
    delete this.stage.frame.dataset.tool;
    this.report();
    this.draw();
  }

  /** The shapes to save; null if nothing changed. */
  get unsaved() {
    this.active?.cancel();
    return this.drawing?.dirty ? this.drawing.entries : null;
  }

  get isEmpty() {
    return !this.drawing?.entries.length;
  }

  /** Save; returns whether that worked. */
  async save() {
    const { inspection, unsaved } = this;
    if (!unsaved) return true;
    try {
      const stored = await api.annotate(inspection.id, unsaved);
      if (this.open && document.activeElement === this.saveButton) this.stage.frame.focus({ preventScroll: true });
      if (inspection === this.inspection) this.take(stored);
      announce("The drawing is saved.");
      return true;
    } catch (error) {
      complain(Object.assign(new Error(`${inspection.name}: the drawing was not saved. ${error.message}`), { status: error.status }));
      return false;
    }
  }

  // What the tools need

  get active() {
    return this.open ? this.tools[this.tool] : null;
  }

  get kind() {
    const kind = this.kindInput.value.trim() || "defect";
    remember("kind", kind);
    return kind;
  }

  get width() {
    return Number(this.slider.value);
  }

  /** Pixels of the image that count as the same place. */
  get reach() {
    return TOUCH / this.layer.place().scale;
  }

  say(words) {
    announce(words);
    this.words.textContent = words;
  }

  add(entry) {
    this.change(() => this.drawing.add(entry));
  }

  change(act) {
    act();
    this.report();
    this.draw();
  }

  undo() {
    if (this.active?.busy) this.change(() => this.active.cancel());
    else this.change(() => this.drawing.undo() && announce("Undone."));
  }

  redo() {
    this.change(() => this.drawing.redo() && announce("Done again."));
  }

  choose(name) {
    this.active?.cancel();
    this.tool = name;
    for (const one of this.choices) one.setAttribute("aria-pressed", String(one.dataset.tool === name));
    this.stage.frame.dataset.tool = name;
    this.words.textContent = TOOLS[name].how;
    this.bar.classList.toggle("with-width", name === "brush" || name === "erase");
    this.draw();
  }

  resized() {
    this.widthShown.textContent = `${this.slider.value} px`;
    remember("brush", this.slider.value);
    this.draw();
  }

  report() {
    const entries = this.drawing?.entries ?? [];
    const shapes = entries.filter((one) => one.type !== "erase").length;
    const kinds = this.drawing?.kinds.join(", ");
    const unsaved = this.drawing?.dirty ? " · not saved yet" : "";
    this.summary.textContent = shapes || unsaved ? `${count(shapes, "shape")}${kinds ? `: ${kinds}` : ""}${unsaved}` : "";
    this.shown.textContent = this.open ? "" : this.summary.textContent;
    this.opener.lastChild.textContent = shapes ? "Change drawing" : "Mark the defect";
    this.undoButton.disabled = !this.drawing?.past.length;
    this.redoButton.disabled = !this.drawing?.future.length;
    this.clearButton.disabled = !entries.length;
    if (this.saveButton) this.saveButton.disabled = !unsaved;
  }

  // Pointer

  listen() {
    const { frame } = this.stage;
    // In the capture phase: the zoom must not take what belongs to a tool.
    const on = (kind, handler) => frame.addEventListener(kind, (event) => this.active && handler(event), { capture: true });
    on("pointerdown", (event) => this.down(event));
    on("pointermove", (event) => this.moved(event));
    for (const kind of ["pointerup", "pointercancel"]) on(kind, (event) => this.up(event, kind === "pointerup"));
    on("touchmove", (event) => { if (this.pointers.size < 2 && event.cancelable) event.preventDefault(); });
    on("dblclick", (event) => {
      event.preventDefault();
      event.stopPropagation();
      if (this.tool === "polygon" && this.active.busy) this.change(() => this.active.finish());
    });
    frame.addEventListener("keydown", (event) => this.open && this.key(event), { capture: true });
    this.bar.addEventListener("keydown", (event) => {
      if (this.combination(event) || event.key !== "Escape") return;
      event.preventDefault();  // a dialog around the stage stays open
      event.stopPropagation();
      frame.focus({ preventScroll: true });
    });
  }

  down(event) {
    if (event.pointerType === "mouse" && event.button !== 0) return;
    this.pointers.add(event.pointerId);
    this.cursor = null;
    if (this.pointers.size > 1) return void this.change(() => this.active.cancel());  // two fingers zoom
    this.change(() => this.active.down(this.at(event)));
  }

  moved(event) {
    if (this.pointers.size > 1) return;
    event.stopPropagation();
    this.hover = this.at(event);
    if (this.pointers.size) this.active.moved(this.hover);
    this.draw();
  }

  up(event, ended) {
    const alone = this.pointers.delete(event.pointerId) && !this.pointers.size;
    if (alone && ended) this.change(() => this.active.up(this.at(event)));
    else if (!ended) this.change(() => this.active.cancel());
  }

  // Keyboard

  key(event) {
    if (this.combination(event)) return;
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const step = event.shiftKey ? KEYBOARD_FAST : KEYBOARD;
    const moves = { ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, -step], ArrowDown: [0, step] };
    const named = Object.entries(TOOLS).find(([, one]) => one.key === event.key.toLowerCase());
    const { active } = this;
    if (event.key in moves && active) this.step(moves[event.key]);
    else if (event.key === " " && active) this.change(() => active.set(this.cursorPlace()));
    else if (event.key === "Enter" && active?.busy) this.change(() => active.finish());
    else if (event.key === "Escape") this.escape();
    else if (event.key === "Backspace" && active?.back) this.change(() => active.back());
    else if (event.key === "[" || event.key === "]") this.widen(event.key === "]" ? 1 : -1);
    else if (named && !event.repeat) this.choose(named[0]);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /** Ctrl+Z and Ctrl+Shift+Z, except where text is typed. */
  combination(event) {
    if (!(event.ctrlKey || event.metaKey) || event.key.toLowerCase() !== "z" || event.target === this.kindInput) return false;
    event.preventDefault();
    event.stopPropagation();
    if (event.shiftKey) this.redo();
    else this.undo();
    return true;
  }

  escape() {
    if (this.active?.busy) this.change(() => this.active.cancel());
    else this.choices.find((one) => one.dataset.tool === this.tool).focus();
  }

  widen(way) {
    const step = Math.max(1, Math.round(this.width / 8));
    this.slider.value = String(this.width + way * step);
    this.resized();
    announce(`${this.slider.value} pixels wide`);
  }

  /** Where the keyboard's cursor is; it starts in the middle of what is visible. */
  cursorPlace() {
    if (!this.cursor) {
      const { frame } = this.stage;
      this.cursor = this.drawing.inside(this.layer.toImage(frame.clientWidth / 2, frame.clientHeight / 2).map(Math.round));
    }
    return this.cursor;
  }

  step([x, y]) {
    const [oldX, oldY] = this.cursorPlace();
    this.cursor = this.drawing.inside([oldX + x, oldY + y]);
    this.active.moved(this.cursor);
    this.keepInSight();
    this.draw();
    this.words.textContent = `Cursor at ${this.cursor[0]}, ${this.cursor[1]}. Space sets a point.`;
  }

  /** Move the picture so that the cursor stays visible. */
  keepInSight() {
    const { view, frame } = this.stage;
    if (view.scale === 1) return;
    const { left, top, scale } = this.layer.place();
    const [x, y] = [left + this.cursor[0] * scale, top + this.cursor[1] * scale];
    const beyond = (at, length) => (at < EDGE * length ? EDGE * length - at : at > (1 - EDGE) * length ? (1 - EDGE) * length - at : 0);
    const { offsetWidth: wide, offsetHeight: high } = this.stage.inner;
    view.set(view.scale, view.x + beyond(x, frame.clientWidth) / wide, view.y + beyond(y, frame.clientHeight) / high);
  }

  // On the screen

  at(event) {
    return this.drawing.inside(this.layer.at(event));
  }

  draw() {
    const shown = this.drawing && this.stage.ready && (this.open || this.drawing.entries.length > 0);
    this.layer.show(shown ? this.drawing : null, this.open ? (...pens) => this.drawUnfinished(...pens) : null);
  }

  drawUnfinished(under, over, scale, colour) {
    const { active } = this;
    const tip = this.cursor ?? this.hover;
    const path = new Path2D();
    if (active?.busy && this.tool === "polygon") {
      active.points.forEach(([x, y], index) => (index ? path.lineTo(x, y) : path.moveTo(x, y)));
      if (tip) path.lineTo(...tip);
      for (const [x, y] of active.points) path.rect(x - 3 / scale, y - 3 / scale, 6 / scale, 6 / scale);
    } else if (active?.busy && this.tool === "box") {
      const [[x0, y0], [x1, y1]] = active.points;
      path.rect(x0, y0, x1 - x0, y1 - y0);
    } else if (active?.busy) {
      under.globalCompositeOperation = active.erases ? "destination-out" : "source-over";
      under.strokeStyle = colour;
      paintLine(under, active.points, this.width);
      under.globalCompositeOperation = "source-over";
    }
    if (tip && (this.tool === "brush" || this.tool === "erase")) {
      path.moveTo(tip[0] + this.width / 2, tip[1]);
      path.arc(...tip, this.width / 2, 0, 2 * Math.PI);
    }
    if (this.cursor) {
      const arm = 9 / scale;
      path.moveTo(this.cursor[0] - arm, this.cursor[1]);
      path.lineTo(this.cursor[0] + arm, this.cursor[1]);
      path.moveTo(this.cursor[0], this.cursor[1] - arm);
      path.lineTo(this.cursor[0], this.cursor[1] + arm);
    }
    this.layer.line(over, scale, path);
  }
}
