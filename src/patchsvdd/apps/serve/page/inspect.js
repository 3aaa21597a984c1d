/** Inspect: drop, paste, choose or photograph images, and see the results. */

import { pictureOf } from "./api.js";
import { Session, worst } from "./batch.js";
import { Camera } from "./camera.js";
import { announce, complain, count, h, icon, level, put, remember, remembered, VERDICTS } from "./dom.js";
import { goldenHint } from "./golden.js";
import { aboutModel } from "./hints.js";
import { Result, verdictWords } from "./result.js";
import { modelChoice, noModel, state } from "./state.js";

export const title = "Inspect";
const FIELDS = { serial: "Serial number", lot: "Lot", line: "Line", station: "Station" };
const session = new Session();
let opened = null;
/** The image on screen, or null. */

export async function mount(root) {
  await state.refresh();
  if (!state.models.length) {
    put(root, noModel());
    return null;
  }
  const files = h("input", { type: "file", id: "files", multiple: true, accept: "image/png,image/jpeg,image/webp,image/bmp,image/tiff", class: "unseen", tabindex: "-1", "aria-label": "Images to inspect",
    onchange: () => { take([...files.files]); files.value = ""; } });
  const live = h("div", { class: "unseen", "aria-live": "assertive", id: "verdict" });
  const status = h("p", { class: "busy", role: "status" });
  const cancel = h("button", { type: "button", onclick: () => session.cancel() }, "Cancel");
  const again = h("button", { type: "button", onclick: () => { stays = false; session.retry(session.failed); } }, icon("retry"), "Try all again");
  const progress = h("div", { class: "progress" }, status, cancel, again);
  const thumbs = new Map();
  const strip = h("ol", { class: "strip", "aria-label": "Inspected just now" });
  const result = new Result({ below: strip, onReview: (changed) => {
    const one = session.entries.find((entry) => entry.inspection?.id === changed.id);
    if (one) one.inspection = changed;
  } });
  const drop = h("section", { class: "drop", "aria-label": "Images to inspect" });
  const place = h("div", { class: "place" });
  const camera = new Camera((file) => take([file]));
  const model = modelChoice(modelChosen, { ask: state.guessed });
  const trace = partDetails();
  let held = [];
  /** Files that wait until a model is chosen. */
  let stays = false;
  /** Whether the user has turned to an image since the last choice of files; results then do not replace it. */

  const buttons = (main) => [h("button", { type: "button", class: main ? "main" : "", onclick: () => files.click() }, icon("upload"), "Choose images"),
    h("button", { type: "button", onclick: () => camera.toggle() }, icon("camera"), "Camera")];
  const tools = h("div", { class: "tools" }, model, h("div", { class: "sources" }, buttons()), trace.el, files, progress);
  const golden = h("div", { role: "status" });
  put(root, h("h1", { class: "unseen" }, "Inspect"), live, tools, golden, h("div", { class: "work" }, camera.el, place));
  for (const kind of ["pointerdown", "keydown"]) {
    result.el.addEventListener(kind, (event) => {
      if (!session.busy || strip.contains(event.target) || event.key === "Tab" || event.target.closest(".top")) return;
      stays = true;
      result.resume();
    });
  }

  function drawEmpty() {
    root.classList.add("fresh");
    const chosen = state.guessed ? null : state.chosen;
    const about = h("p", { class: "quiet about" });
    put(drop, icon("upload"), h("p", { class: "lead" }, "Drop images here"), h("p", { class: "quiet" }, "or paste them, choose files, or use a camera"),
      h("p", { class: "actions" }, buttons(true)),
      h("div", { class: "which" }, chosen ? [h("p", {}, "Model: ", h("strong", {}, chosen.name)), about] : h("p", {}, "Choose the model for your part first.")));
    if (chosen) aboutModel(chosen).then((words) => { about.textContent = words; }, () => {});
    put(place, drop);
  }

  function drawGolden() {
    put(golden, !state.guessed && state.chosen && goldenHint(state.chosen));
  }

  function modelChosen() {
    drawGolden();
    model.querySelector("option[disabled]")?.remove();
    if (!opened && !session.busy) drawEmpty();
    if (held.length) take(held.splice(0));
  }

  /** Show an ended image. */
  async function open(entry, loud = true) {
    opened = entry;
    root.classList.remove("fresh");
    if (!place.contains(result.el)) put(place, result.el);
    drawStrip();
    if (entry.state === "none") {
      result.notInspected(entry.name, entry.reason, entry.usable ? () => { stays = false; session.retry([entry]); } : null);
      if (loud) live.textContent = `${entry.name}: ${VERDICTS.none}. ${entry.reason}`;
      return;
    }
    const { inspection } = entry;
    if (await result.show(inspection) && loud && root.isConnected) live.textContent = `${inspection.name}: ${VERDICTS[inspection.verdict]}, ${verdictWords(inspection)}`;
  }

  function thumb(entry) {
    const { inspection, name } = entry;
    const kind = inspection?.verdict ?? "none";
    return h("li", {}, h("button", { type: "button", class: `thumb ${kind}`, title: inspection ? name : `${name}: ${entry.reason}`,
      onclick: () => {
        stays = true;
        open(entry);
      } },
      inspection ? h("img", { src: pictureOf(inspection.id, 160), alt: "", loading: "lazy" }) : h("span", { class: "no-picture" }, name),
      h("span", { class: "caption" }, icon(kind), inspection ? [h("span", { class: "unseen" }, `${name}, ${VERDICTS[kind]}, `), level(inspection.score, inspection.threshold)] : VERDICTS.none)));
  }

  /** Add new thumbnails and remove old ones; the others stay as they are, with the focus. */
  function drawStrip() {
    for (const [entry, item] of thumbs) {
      if (session.entries.includes(entry)) continue;
      item.remove();
      thumbs.delete(entry);
    }
    session.entries.forEach((entry, index) => {
      if (!thumbs.has(entry)) {
        thumbs.set(entry, thumb(entry));
        strip.insertBefore(thumbs.get(entry), strip.children[index] ?? null);
      }
      const button = thumbs.get(entry).firstChild;
      if (entry === opened) button.setAttribute("aria-current", "true");
      else button.removeAttribute("aria-current");
    });
  }

  function drawProgress() {
    const { total, ended } = session.counts;
    const { busy } = session;
    const summed = total > 1 || (total > 0 && stays);
    const words = !busy ? summed && session.summary : total > 1 ? `Inspecting: ${Math.min(total, ended + 1)} of ${total}` : `Inspecting ${session.current[0].name}…`;
    status.classList.toggle("on", busy);
    if (status.textContent !== (words || "")) status.textContent = words || "";
    cancel.hidden = !busy || total < 2;
    again.hidden = busy || session.failed.length < 2;
    progress.classList.toggle("idle", !words && again.hidden);
  }

  function drawWaiting() {
    if (!session.busy || stays) return;
    const { total } = session.counts;
    const now = session.current.find((one) => one.state === "running") ?? session.current[0];
    root.classList.remove("fresh");
    if (!place.contains(result.el)) put(place, result.el);
    result.wait("Inspecting…", total > 1 ? count(total, "image") : now.name);
  }

  function take(chosen) {
    if (!chosen.length) return;
    if (state.guessed) {
      held.push(...chosen);
      complain(new Error(`Choose a model first: ${count(held.length, "image")} will be inspected then.`));
      model.querySelector("select").focus();
      return;
    }
    stays = false;
    session.add(chosen, state.model, trace.take());
  }

  session.listen({
    onChange() {
      drawStrip();
      drawProgress();
      drawWaiting();
    },
    onEnd(entry) {
      if (stays) announce(`${entry.name}: ${VERDICTS[entry.inspection?.verdict ?? "none"]}`);
    },
    onGroup(group) {
      if (!stays) open(worst(group));
    },
  });

  drawStrip();
  drawProgress();
  if (opened) open(opened, false);
  else if (!session.busy) drawEmpty();
  drawGolden();
  drawWaiting();

  const over = (event) => {
    if (![...event.dataTransfer.types].includes("Files")) return;
    event.preventDefault();
    root.classList.add("over");
  };
  const out = (event) => { if (!event.relatedTarget) root.classList.remove("over"); };
  const dropped = (event) => {
    event.preventDefault();
    root.classList.remove("over");
    take([...event.dataTransfer.files]);
  };
  const pasted = (event) => take([...(event.clipboardData?.files ?? [])]);
  const left = new AbortController();
  for (const [kind, handler] of Object.entries({ dragover: over, dragleave: out, drop: dropped, paste: pasted })) document.addEventListener(kind, handler, { signal: left.signal });
  return () => {
    session.listen();
    camera.close();
    left.abort();
  };
}

/** Optional fields that are stored with each inspection. All but the serial number are remembered. */
function partDetails() {
  const field = (key) => h("input", { id: `part-${key}`, type: "text", maxlength: 100, autocomplete: "off", value: key === "serial" ? "" : remembered(`part-${key}`, ""),
    oninput: () => {
      if (key !== "serial") remember(`part-${key}`, inputs[key].value.trim());
      draw();
    } });
  const inputs = Object.fromEntries(Object.keys(FIELDS).map((key) => [key, field(key)]));
  const given = h("span", { class: "quiet" });
  const el = h("details", { class: "trace" }, h("summary", {}, "Part details", given),
    h("div", { class: "tools" }, Object.entries(FIELDS).map(([key, name]) => h("div", { class: "field" }, h("label", { for: `part-${key}` }, name), inputs[key]))),
    h("p", { class: "help" }, "Optional. Stored with each inspection. The serial number is cleared after each choice of images."));
  const values = () => Object.fromEntries(Object.entries(inputs).map(([key, input]) => [key, input.value.trim()]).filter(([, value]) => value));
  function draw() {
    given.textContent = Object.entries(values()).map(([key, value]) => ` · ${FIELDS[key]} ${value}`).join("");
  }
  draw();
  /** The fields' values for images chosen now. */
  function take() {
    const now = values();
    inputs.serial.value = "";
    draw();
    return now;
  }
  return { el, take };
}
