/** A virtual grid of thumbnails: only visible cells exist. Rows are fetched by index, one page at a time. */

import { h } from "./dom.js";

const PAGE = 100;
const KEPT = 40;
/** Pages kept in memory. */
const GAP = 12;
const SPARE = 2;
/** Rows drawn above and below the visible ones. */

export class Grid {
  /** `fetch(offset, limit)` returns rows; `draw(row)` fills a cell; `open(row, index)` is called for a selected one. */
  constructor({ fetch, draw, open, label, cell = 168, height = 196 }) {
    Object.assign(this, { fetch, draw, open, cell, height });
    this.total = 0;
    this.pages = new Map();
    this.cells = new Map();
    this.at = 0;
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
      this.pages.delete(page);
      return;
    }
    this.layout();
  }

  layout() {
    if (this.closed || !this.el.isConnected) return;
    const width = this.el.clientWidth;
    this.columns = Math.max(1, Math.floor((width + GAP) / (this.cell + GAP)));
    const wide = (width + GAP) / this.columns - GAP;
    const rows = Math.ceil(this.total / this.columns);
    const tall = this.height + GAP;
    this.el.style.height = `${Math.max(0, rows * tall - GAP)}px`;
    const top = -this.el.getBoundingClientRect().top;
    const first = Math.max(0, Math.floor(top / tall) - SPARE) * this.columns;
    const last = Math.min(this.total, (Math.ceil((top + window.innerHeight) / tall) + SPARE) * this.columns);
    for (const [index, cell] of this.cells) {
      if ((index < first || index >= last) && cell !== document.activeElement) {
        cell.remove();
        this.cells.delete(index);
      }
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
      cell.style.transform = `translate(${(index % this.columns) * (wide + GAP)}px, ${Math.floor(index / this.columns) * tall}px)`;
      cell.style.width = `${wide}px`;
      cell.style.height = `${this.height}px`;
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
    const tall = this.height + GAP;
    const row = Math.floor(to / this.columns) * tall;
    const top = this.el.getBoundingClientRect().top;
    if (top + row < 60) window.scrollBy(0, top + row - 80);
    else if (top + row + tall > window.innerHeight) window.scrollBy(0, top + row + tall + 12 - window.innerHeight);
    this.pending = to;
    this.layout();
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
