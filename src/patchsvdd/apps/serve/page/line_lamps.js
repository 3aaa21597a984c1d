/** Lamps of the sources and buses: a shape, a name and a word. */

import { h, put } from "./dom.js";
import { figure, t } from "./language.js";
import { shape } from "./line_signs.js";

const SOURCES = { starting: "source.starting", running: "source.running", failed: "source.failed", stopped: "source.stopped" };
const SIGNS = { starting: "starting", running: "good", failed: "fault", stopped: "stopped" };
const RECENT = 60_000;
/** Milliseconds for which a lamp says that images were lost. */
const BUSES = { opcua: "OPC UA", modbus: "Modbus TCP" };

export class Lamps {
  constructor() {
    this.losses = new Map();
    this.el = h("ul", { class: "lamps", "aria-label": t("label.lamps") });
    this.drawn = null;
  }

  show({ sources, buses }) {
    const all = [...sources.map((one) => source(one, this.lostNow(one))), ...buses.map(bus)];
    const text = JSON.stringify(all);
    if (text === this.drawn) return;
    this.drawn = text;
    put(this.el, all.map((one) => h("li", { class: "lamp", "data-kind": one.kind, title: one.more }, shape(one.sign), h("span", {}, h("strong", {}, one.name), h("span", { class: "lamp-word" }, one.word), h("span", { class: "unseen" }, ` ${one.more}`)))));
  }

  /** How many images of a source were lost or dropped lately. */
  lostNow(one) {
    const now = Date.now();
    const counts = this.losses.get(one.name) ?? [];
    counts.push([now, one.lost + one.dropped]);
    while (counts.length > 1 && counts[1][0] < now - RECENT) counts.shift();
    this.losses.set(one.name, counts);
    return Math.max(0, counts.at(-1)[1] - counts[0][1]);
  }
}

function source(one, losses) {
  const numbers = t("source.numbers", { frames: figure(one.frames), rate: figure(one.frames_per_second, 1), dropped: figure(one.dropped), lost: figure(one.lost), late: figure(one.late), reconnects: figure(one.reconnects) });
  const kind = { running: losses ? "warn" : "good", starting: "none", failed: "fault", stopped: "none" }[one.state];
  return { name: one.name, sign: SIGNS[one.state], kind, word: losses && one.state === "running" ? t("source.losses", { lost: figure(losses) }) : t(SOURCES[one.state]), more: one.reason ? `${one.reason} – ${numbers}` : numbers };
}

function bus(one) {
  const name = BUSES[one.kind] ?? one.kind;
  if (one.trouble) return { name, sign: "fault", kind: "fault", word: t("bus.trouble"), more: `${one.address}: ${one.trouble}` };
  if (one.clients === 0) return { name, sign: "none", kind: "none", word: t("bus.alone"), more: one.address };
  return { name, sign: "good", kind: "good", word: t("bus.clients", { clients: figure(one.clients) }), more: one.address };
}
