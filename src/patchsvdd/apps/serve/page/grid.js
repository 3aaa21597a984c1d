/** A virtual grid of thumbnails: only visible cells exist. Rows are fetched by index, one page at a time.
 *
 * Browsers limit the height of an element (Chromium: 33.5 million pixels). A longer list gets an element of TALLEST
 * pixels: jumps of the scroll bar are scaled to the length of the list, while small steps move it as usual.
 */

import { h } from "./dom.js";

const PAGE = 100;
const KEPT = 40;
/** Pages kept in memory. */
const GAP = 12;
const SPARE = 2;
/** Rows drawn above and below the visible ones. */
const TALLEST = 8_000_000;
/** Maximum height of the element in pixels. */
const MARGIN = { top: 80, bottom: 12 };
/** Space kept free above (the page's bar) and below a cell that is scrolled to. */

export class Grid {
  /** `fetch(offset, limit)` returns rows; `draw(row)` fills a cell; `open(row, index)` is called for a selected one. */
  constructor({ fetch, draw, open, label, cell = 168, height = 196 }) {
    Object.assign(this, { fetch, draw, open, cell, height });
    this.total = 0;
    this.pages = new Map();
    this.cells = new Map();
    this.at = 0;
    this.last = { scroll: 0, list: 0 };
    this.el = h("div", { class: "grid", role: "list", "aria-label": label, onkeydown: (event) => this.key(event) });
    this.refresh = () => requestAnimationFrame(() => this.layout());
    window.addEventListener("scroll", this.refresh, { passive: true });
    window.addEventListener("resize", this.refresh);
  }

  close() {
    this.closed = true;
    window.removeEventListener("scroll", this.refresh);
    window.removeEventListener("resize", this.refresh);
  }

  /** Start over with `total` rows. */
  reset(total, first = []) {
    this.total = total;
    this.generation = (this.generation ?? 0) + 1;
    this.pages.clear();
    if (first.length) this.pages.set(0, first);
    for (const cell of this.cells.values()) cell.remove();
    this.cells.clear();
    this.at = 0;
    this.last = { scroll: 0, list: 0 };
    this.layout();
  }

  /** Replace a row that has changed. */
  change(index, row) {
    const page = this.pages.get(Math.floor(index / PAGE));
    if (page) page[index % PAGE] = row;
    this.cells.get(index)?.remove();
    this.cells.delete(index);
    this.layout();
  }

  row(index) {
    return this.pages.get(Math.floor(index / PAGE))?.[index % PAGE];
  }

  async load(page) {
    if (this.pages.has(page)) return;
    const { generation } = this;
    this.pages.set(page, []);
    try {
      const rows = await this.fetch(page * PAGE, PAGE);
      if (generation !== this.generation || this.closed) return;
      this.pages.set(page, rows);
      while (this.pages.size > KEPT) this.pages.delete(this.pages.keys().next().value);
    } catch {
      if (generation === this.generation) this.pages.delete(page);
      return;
    }
    this.layout();
  }

  /** Heights of the list and of the element, and how far each can be scrolled. */
  measure() {
    const width = this.el.clientWidth;
    this.columns = Math.max(1, Math.floor((width + GAP) / (this.cell + GAP)));
    this.wide = (width + GAP) / this.columns - GAP;
    this.tall = this.height + GAP;
    const list = Math.max(0, Math.ceil(this.total / this.columns) * this.tall - GAP);
    const height = Math.min(list, TALLEST);
    this.el.style.height = `${height}px`;
    const most = { list: list - window.innerHeight, scroll: height - window.innerHeight };
    return { scroll: -this.el.getBoundingClientRect().top, most, scaled: list > TALLEST };
  }

  /** The pixel of the list at the top of the window, given how far the element is scrolled. */
  place({ scroll, most, scaled }) {
    const { last } = this;
    let list = scroll;
    if (scaled && scroll >= most.scroll) list = most.list + scroll - most.scroll;
    else if (scaled && scroll > 0) {
      const step = scroll - last.scroll;
      if (Math.abs(step) > 2 * window.innerHeight) list = (scroll * most.list) / most.scroll;
      else list = nudge(last, scroll, most);
    }
    this.last = { scroll, list };
    return list;
  }

  layout() {
    if (this.closed || !this.el.isConnected) return;
    const measured = this.measure();
    const top = this.place(measured);
    const { tall, wide } = this;
    const shift = measured.scroll - top;
    const first = Math.max(0, Math.floor(top / tall) - SPARE) * this.columns;
    const last = Math.min(this.total, (Math.ceil((top + window.innerHeight) / tall) + SPARE) * this.columns);
    const move = (index, cell) => {
      cell.style.transform = `translate(${(index % this.columns) * (wide + GAP)}px, ${Math.floor(index / this.columns) * tall + shift}px)`;
      cell.style.width = `${wide}px`;
      cell.style.height = `${this.height}px`;
    };
    for (const [index, cell] of this.cells) {
      if (index >= first && index < last) continue;
      if (cell.contains(document.activeElement)) {
        move(index, cell);  // the focus stays where it is
        continue;
      }
      cell.remove();
      this.cells.delete(index);
    }
    for (let index = first; index < last; index += 1) {
      const row = this.row(index);
      if (row === undefined) this.load(Math.floor(index / PAGE));
      let cell = this.cells.get(index);
      if (!cell || (row !== undefined && cell.dataset.id !== row.id)) {
        const fresh = this.make(index, row);
        if (cell) cell.replaceWith(fresh);
        else this.el.append(fresh);
        cell = fresh;
        this.cells.set(index, cell);
      }
      move(index, cell);
    }
    if (this.pending !== undefined && this.cells.has(this.pending) && this.row(this.pending)) {
      this.cells.get(this.pending).firstChild.focus({ preventScroll: true });
      this.pending = undefined;
    }
  }

  make(index, row) {
    const cell = h("div", { class: "cell", role: "listitem", "aria-setsize": this.total, "aria-posinset": index + 1 });
    if (row === undefined) {
      cell.append(h("div", { class: "loading" }));
      return cell;
    }
    cell.dataset.id = row.id;
    const button = h("button", { type: "button", class: `thumb ${row.verdict}`, tabindex: index === this.at ? "0" : "-1",
      onclick: () => { this.at = index; this.open(row, index); }, onfocus: () => this.focused(index) }, this.draw(row));
    cell.append(button);
    return cell;
  }

  focused(index) {
    this.cells.get(this.at)?.firstChild.setAttribute?.("tabindex", "-1");
    this.at = index;
    this.cells.get(index)?.firstChild.setAttribute?.("tabindex", "0");
  }

  /** Scroll to a cell and focus it. */
  go(index) {
    const to = Math.max(0, Math.min(this.total - 1, index));
    const measured = this.measure();
    const top = this.place(measured);
    const row = Math.floor(to / this.columns) * this.tall;
    if (row - top < MARGIN.top - 20) this.scroll(measured, top, row - MARGIN.top);
    else if (row + this.tall - top > window.innerHeight) this.scroll(measured, top, row + this.tall + MARGIN.bottom - window.innerHeight);
    this.pending = to;
    this.layout();
  }

  /** Scroll so that the pixel `to` of the list is at the top of the window, where `from` is now. */
  scroll({ scroll, most, scaled }, from, to) {
    if (!scaled || to <= 0) {
      window.scrollBy(0, to - scroll);
      return;
    }
    const near = Math.abs(to - from) < window.innerHeight && scroll + to - from > 0 && scroll + to - from < most.scroll;
    const wanted = to >= most.list ? most.scroll + to - most.list : near ? scroll + to - from : (to * most.scroll) / most.list;
    window.scrollBy(0, wanted - scroll);
    this.last = { scroll: -this.el.getBoundingClientRect().top, list: to };
  }

  key(event) {
    const sight = this.columns * Math.max(1, Math.floor(window.innerHeight / (this.height + GAP)) - 1);
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: this.columns, ArrowUp: -this.columns, PageDown: sight, PageUp: -sight };
    if (event.key in steps) this.go(this.at + steps[event.key]);
    else if (event.key === "Home") this.go(0);
    else if (event.key === "End") this.go(this.total - 1);
    else return;
    event.preventDefault();
  }
}

/** A small step moves the list as far as the scroll bar, except near the ends, which both reach together. */
function nudge(last, scroll, most) {
  const edge = 4 * window.innerHeight;
  const step = scroll - last.scroll;
  if (step < 0 && scroll < edge && last.scroll > 0) return (last.list * scroll) / last.scroll;
  if (step > 0 && scroll > most.scroll - edge && last.scroll < most.scroll) {
    return most.list - ((most.list - last.list) * (most.scroll - scroll)) / (most.scroll - last.scroll);
  }
  return Math.max(0, Math.min(most.list, last.list + step));
}
