/** Zoom and pan by wheel, pinch, drag, double click and keyboard. Several frames can share one zoom. */

const MOST = 16;
/** Largest magnification. */
const STEP = 1.5;
/** Factor of one key press or button press. */
const DOUBLE_CLICK = 2.5;
const PAN = 0.15;
/** Part of the frame that an arrow key moves. */

const clamp = (value, low, high) => Math.min(high, Math.max(low, value));

/**
 * The magnification `scale` and the position `x`, `y` of what is shown, as fractions of its size at scale 1.
 * At scale 1 all of it is shown. `onChange` is called after every change, with the zoom and whether the change is smooth.
 */
export class Zoom {
  constructor(onChange = () => {}) {
    this.onChange = onChange;
    this.frames = [];
    this.scale = 1;
    this.x = 0;
    this.y = 0;
    this.sizes = new ResizeObserver(() => this.set(this.scale, this.x, this.y));
  }

  /** Let `frame` show `content`, which lies centred in it, and take the user's gestures. Returns a function that ends it. */
  add(frame, content) {
    const pointers = new Map();
    const entry = { frame, content };
    const ended = new AbortController();
    const on = (kind, handler, options = {}) => frame.addEventListener(kind, handler, { ...options, signal: ended.signal });
    on("wheel", (event) => this.wheel(event, entry), { passive: false });
    on("dblclick", (event) => this.doubleClick(event, entry));
    on("keydown", (event) => this.key(event));
    on("pointerdown", (event) => this.down(event, entry, pointers));
    on("pointermove", (event) => this.moved(event, entry, pointers));
    for (const kind of ["pointerup", "pointercancel", "lostpointercapture"]) on(kind, (event) => { pointers.delete(event.pointerId); });
    // One finger scrolls the page until the image is zoomed; two fingers always zoom.
    for (const kind of ["touchstart", "touchmove"]) {
      on(kind, (event) => { if (event.cancelable && (event.touches.length > 1 || (this.scale > 1 && kind === "touchmove"))) event.preventDefault(); }, { passive: false });
    }
    this.frames.push(entry);
    this.sizes.observe(frame);
    this.set(this.scale, this.x, this.y);
    return () => {
      ended.abort();
      this.sizes.unobserve(frame);
      this.frames = this.frames.filter((one) => one !== entry);
    };
  }

  /** Show at a scale and position; the content never leaves the frame. */
  set(scale, x, y, smooth = false) {
    this.scale = scale < 1.001 ? 1 : Math.min(scale, MOST);
    const [first] = this.frames;
    const limit = (place, content, frame) => {
      const room = content && frame ? Math.max(1, frame / content) : 1;
      // Smaller than the frame: centred. Larger: no gap at either side.
      if (this.scale <= room) return (1 - this.scale) / 2;
      return clamp(place, (1 + room) / 2 - this.scale, (1 - room) / 2);
    };
    this.x = limit(x, first?.content.offsetWidth, first?.frame.clientWidth);
    this.y = limit(y, first?.content.offsetHeight, first?.frame.clientHeight);
    for (const { frame, content } of this.frames) {
      content.classList.toggle("smooth", smooth);
      content.style.transform = this.scale === 1 ? "" : `translate(${100 * this.x}%, ${100 * this.y}%) scale(${this.scale})`;
      frame.classList.toggle("zoomed", this.scale > 1);
    }
    this.onChange(this, smooth);
  }

  /** Show all. */
  fit(smooth = false) {
    this.set(1, 0, 0, smooth);
  }

  /** Magnify by a factor; the point (in fractions of the content at scale 1) stays where it is. */
  by(factor, [x, y] = [0.5, 0.5], smooth = false) {
    const scale = clamp(this.scale * factor, 1, MOST);
    const ratio = scale / this.scale;
    this.set(scale, x - ratio * (x - this.x), y - ratio * (y - this.y), smooth);
  }

  /** Enlarge in one step, as a button or a key does. */
  closer() {
    this.by(STEP, undefined, true);
  }

  /** The opposite of `closer`. */
  farther() {
    this.by(1 / STEP, undefined, true);
  }

  /** Show a box: left, top, right, bottom as fractions of the content. */
  to([left, top, right, bottom], most = 8) {
    const scale = clamp(0.6 / Math.max(right - left, bottom - top), 1, most);
    this.set(scale, 0.5 - scale * (left + right) / 2, 0.5 - scale * (top + bottom) / 2, true);
  }

  /** A point on the screen in fractions of the content at scale 1. */
  point(event, { frame, content }) {
    const box = frame.getBoundingClientRect();
    return [(event.clientX - box.left - box.width / 2) / (content.offsetWidth || 1) + 0.5,
      (event.clientY - box.top - box.height / 2) / (content.offsetHeight || 1) + 0.5];
  }

  wheel(event, entry) {
    const pixels = event.deltaY * (event.deltaMode === 1 ? 30 : event.deltaMode === 2 ? 300 : 1);
    if (!pixels || (this.scale === 1 && pixels > 0 && !event.ctrlKey)) return;  // all is shown: the page scrolls
    event.preventDefault();
    this.by(Math.exp(-clamp(pixels, -300, 300) * (event.ctrlKey ? 0.01 : 0.0025)), this.point(event, entry));
  }

  doubleClick(event, entry) {
    event.preventDefault();
    if (this.scale > 1) this.fit(true);
    else this.by(DOUBLE_CLICK, this.point(event, entry), true);
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const step = PAN * (event.shiftKey ? 3 : 1);
    const moves = { ArrowLeft: [step, 0], ArrowRight: [-step, 0], ArrowUp: [0, step], ArrowDown: [0, -step] };
    if (event.key === "+" || event.key === "=") this.closer();
    else if (event.key === "-" || event.key === "_") this.farther();
    else if (event.key === "0") this.fit(true);
    else if (event.key in moves && this.scale > 1) this.set(this.scale, this.x + moves[event.key][0], this.y + moves[event.key][1], true);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  down(event, entry, pointers) {
    if (event.pointerType === "mouse" && event.button !== 0) return;
    pointers.set(event.pointerId, event);
    if (this.scale > 1 || pointers.size > 1) for (const id of pointers.keys()) capture(entry.frame, id);
  }

  moved(event, entry, pointers) {
    const before = pointers.get(event.pointerId);
    if (!before) return;
    const others = [...pointers.values()].filter((one) => one.pointerId !== event.pointerId);
    pointers.set(event.pointerId, event);
    const [x, y] = this.point(event, entry);
    const [oldX, oldY] = this.point(before, entry);
    if (!others.length) {
      if (this.scale > 1) this.set(this.scale, this.x + x - oldX, this.y + y - oldY);
      return;
    }
    const [other] = others;
    const apart = (one) => Math.hypot(one.clientX - other.clientX, one.clientY - other.clientY);
    const [otherX, otherY] = this.point(other, entry);
    const middle = [(x + otherX) / 2, (y + otherY) / 2];
    this.set(this.scale, this.x + (x - oldX) / 2, this.y + (y - oldY) / 2);
    if (apart(before) > 0) this.by(apart(event) / apart(before), middle);
  }
}

/** Let an element receive all further events of a pointer; it may have left already. */
function capture(element, id) {
  try {
    element.setPointerCapture(id);
  } catch { /* the pointer is gone */ }
}
