/** Models: what each was made of, its threshold and what it costs, and its changes. */

import { api, goodPicture } from "./api.js";
import { candidateSection } from "./candidate.js";
import { lossChart } from "./chart.js";
import { closeDialogs } from "./dialogs.js";
import { announce, complain, count, h, icon, percent, put } from "./dom.js";
import { goldenSection } from "./golden.js";
import { noModel, state } from "./state.js";
import { thresholdSection } from "./threshold.js";
import { TradeOff, unfinished } from "./trade_off.js";
import { goToUnusual, unusualSection } from "./unusual.js";
import { AIMS, duration, moment, presetName, sentence } from "./words.js";

export const title = "Models";
const TRIED = 1000;
/** Number of inspections used to try a threshold. */
const GALLERY = 48;

let turn = () => false;
export const turnTo = (rest) => turn(rest);

export async function mount(root, rest) {
  await state.refresh();
  const forMachines = h("p", { class: "help machines" }, "Machines inspect through the API: ", h("a", { href: "/docs" }, "API documentation"), ".");
  if (!state.models.length) {
    put(root, state.unavailable.length ? [h("div", { class: "title" }, h("h1", {}, "Models")), unavailable()] : noModel(), forMachines);
    return null;
  }
  const left = new AbortController();
  let closed = false;
  let shown = null;
  const list = h("nav", { class: "side", "aria-label": "Models" });
  const broken = h("div", {});
  const body = h("div", { class: "body" });
  put(root, h("div", { class: "title" }, h("h1", {}, "Models")), broken, h("div", { class: "split" }, list, body), forMachines);

  function drawList() {
    put(list, state.models.map((one) => h("a", { href: `#/models/${encodeURIComponent(one.name)}`, "aria-current": one.name === state.model ? "true" : null },
      h("strong", {}, one.name), h("small", {}, `${presetName(one.preset)} · ${count(one.images, "good image")}`), one.trouble && h("small", { class: "bad" }, "a newer version cannot be used"), one.check?.passed === false && h("small", { class: "bad" }, "failed its check"))),
      state.unavailable.map((one) => h("p", { class: "lost" }, h("strong", {}, one.name), h("small", { class: "bad" }, "cannot be used"))));
    put(broken, state.unavailable.length > 0 && unavailable());
  }

  /** Show a model; `said` is what has just happened to its threshold, `place` the section to go to. */
  async function open(name, said = null, place = null) {
    state.choose(name);
    drawList();
    try {
      const [model, scores, facts, reviewed, again, job] = await Promise.all([api.model(name), api.scores({ model: name, limit: TRIED }), api.tradeOff(name), api.thresholdProposal(name), api.recalibration(name), unfinished(name)]);
      if (closed || state.model !== name) return;
      shown?.abort();
      shown = new AbortController();
      const signal = AbortSignal.any([left.signal, shown.signal]);
      const candidate = candidateSection(model, signal, () => state.refresh().then(() => open(name)));
      const trade = new TradeOff({ model, facts, reviewed, again, scores, signal, onChanged: (words) => state.refresh().then(() => open(name, words)) });
      put(body, head(model, reload), trade.el, model.calibration ? thresholdSection(model, scores) : null, goldenSection(model), candidate, unusualSection(model), origin(model), changes(model), gallery(model));
      if (said) trade.draw(h("p", { class: "hint done", role: "status" }, icon("good"), h("span", {}, said)));
      if (said) trade.title.focus({ preventScroll: true });
      goToUnusual(body, place);
      announce(said ?? `Model ${name}`);
      if (job) trade.watch(job);
    } catch (error) {
      if (!closed) complain(error);
    }
  }

  async function reload(name) {
    try {
      const reloaded = await api.reload(name);
      announce(reloaded.replaced ? "The model was reloaded from its folder" : "The model is up to date");
      await state.refresh();
      if (!closed) await open(name);
    } catch (error) {
      complain(error);
    }
  }

  turn = (to) => {
    if (closed || !to.length) return false;
    closeDialogs();
    open(to[0], null, to[1]);
    return true;
  };
  const first = state.models.some((one) => one.name === rest[0]) ? rest[0] : state.model;
  await open(first, null, first === rest[0] ? rest[1] : null);
  return () => {
    closed = true;
    left.abort();
    closeDialogs();
  };
}

/** The models that could not be loaded, why, and what to do. */
function unavailable() {
  const many = state.unavailable.length;
  return h("section", { class: "hint bad lost-models" }, icon("warn"), h("div", {},
    h("p", {}, h("strong", {}, `${count(many, "model")} cannot be used. The others are not affected.`)),
    h("ul", {}, state.unavailable.map((one) => h("li", {}, h("strong", {}, one.name), `: ${sentence(one.reason)}`))),
    h("p", {}, "Copy the model's folder from a backup, or train the model again. The service loads it by itself once it is repaired.")));
}

function head(model, reload) {
  const patches = Object.entries(model.patches).map(([size, many]) => `${many.toLocaleString("en")} of ${size} × ${size} px`).join(", ");
  return h("section", { class: "card" },
    h("div", { class: "line" }, h("h2", {}, model.name), h("a", { class: "button main", href: "#/inspect", onclick: () => state.choose(model.name, true) }, "Inspect with this model"),
      state.may("admin") && h("button", { type: "button", onclick: () => reload(model.name) }, "Check for a newer version")),
    model.trouble && h("p", { class: "hint bad" }, icon("warn"), h("span", {}, sentence(model.trouble))),
    h("dl", { class: "tiles" },
      tile("Good images", model.images.toLocaleString("en")), tile("Images for the threshold", model.calibration ? model.calibration.scores.length.toLocaleString("en") : "none"),
      model.calibration && model.calibration.aim !== "few-alarms" ? tile("Threshold", AIMS[model.calibration.aim]) : tile("Wanted false-alarm rate", model.false_alarm_rate === null ? "–" : percent(model.false_alarm_rate)),
      tile("Image size", model.image_size ? `${model.image_size[1]} × ${model.image_size[0]}` : "original")),
    model.promise && h("p", {}, sentence(model.promise)),
    model.caveat && h("p", { class: "hint" }, icon("warn"), h("span", {}, sentence(model.caveat))),
    h("p", { class: "quiet" }, `It compares images with stored patches of good parts: ${patches}. Computed on: ${model.device}.`, model.region_of_interest && ` Only part of the image is inspected: ${model.region_of_interest}.`,
      model.min_area > 0 && ` Regions smaller than ${count(model.min_area, "pixel")} are ignored.`,
      model.provenance?.data?.sizing && ` ${sentence(model.provenance.data.sizing.sentence)}`));
}

function origin(model) {
  const { provenance } = model;
  const training = provenance.training ?? {};
  const { critic, data } = provenance;
  const versions = Object.entries(provenance.versions ?? {}).map(([name, version]) => `${name} ${version}`).join(", ");
  const row = (name, value) => value !== null && value !== undefined && value !== "" && [h("dt", {}, name), h("dd", {}, value)];
  const discarded = training.kept === "untrained" ? "; the result was discarded, because it found synthetic defects less well than no training" : "";
  const losses = (training.history ?? []).map((one) => ({ ...one, steps: training.steps }));
  const chart = losses.length > 1 ? lossChart() : null;
  chart?.set(losses);
  return h("section", { class: "card" }, h("h2", {}, "How it was made"),
    h("dl", { class: "facts wide" },
      row("Trained", provenance.created && moment(provenance.created)), row("Kind", [presetName(model.preset), h("small", { class: "quiet" }, ` preset ${model.preset}`)]),
      row("Images", data && `${count(data.images, "good image")}${data.original_size ? ` of ${data.original_size[1]} × ${data.original_size[0]} px` : ""}${data.skipped?.length ? `, ${count(data.skipped.length, "file")} left out` : ""}`),
      row("Comparing patches", training.steps ? `learned in ${training.steps.toLocaleString("en")} steps, ${duration(training.seconds)}${discarded}` : "not learned: a network without training is used"),
      row("Finding defects", critic ? `learned from defects drawn into good images, in ${critic.steps.toLocaleString("en")} steps, ${duration(critic.seconds)}` : "not learned; only patches are compared"),
      row("Taught defects", Object.entries(model.taught).map(([kind, many]) => `${kind} (${many.toLocaleString("en")})`).join(", "))),
    chart && h("div", { class: "course-chart" }, h("h3", {}, "Training error"), chart.el, h("p", { class: "help" }, "How well the model knew good parts at each step. The lines should fall and level off.")),
    h("details", {}, h("summary", {}, "Technical details"), h("dl", { class: "facts wide" },
      row("Computed on", provenance.device), row("Random seed", provenance.seed), row("Software", versions),
      row("Fingerprint of the images", data?.fingerprint && h("code", {}, data.fingerprint.slice(0, 16))), row("Version of the model", h("code", {}, model.identity)))));
}

/** The changes since training, newest first. */
function changes(model) {
  const { journal } = model;
  const words = (entry) => {
    const many = count(entry.images?.length ?? 0, "image");
    if (entry.change === "add") return `Learned ${many}`;
    if (entry.change === "teach") return `Taught ${count(entry.images?.length ?? 0, "confirmed defect")}`;
    if (entry.change === "remove") return `Removed ${many}`;
    if (entry.change === "calibrate") return "Set the threshold again (calibrated)";
    if (entry.change !== "undo") return sentence(String(entry.change)).slice(0, -1);
    const undone = journal.find((one) => one.number === entry.undoes);
    return undone ? `Undid change ${undone.number}: ${words(undone).toLowerCase()}` : "Undid a change";
  };
  return h("section", { class: "card" }, h("h2", {}, "Changes since training"),
    journal.length ? h("ol", { class: "journal" }, [...journal].reverse().map((entry) => h("li", {}, h("span", { class: "nr" }, String(entry.number)), h("div", {}, h("p", {}, words(entry)),
      entry.images?.length > 0 && h("details", {}, h("summary", {}, "Which images"), h("p", { class: "file" }, entry.images.join(", ")))), entry.at && h("time", { datetime: entry.at, class: "quiet" }, moment(entry.at)))))
      : h("p", { class: "quiet" }, "None. Learning false alarms, teaching defects, removing images and calibrating are listed here."));
}

function gallery(model) {
  if (!model.pictures) return h("section", { class: "card" }, h("h2", {}, "Good images"), h("p", { class: "quiet" }, "This model has no stored images."));
  const wall = h("ul", { class: "gallery" });
  let shown = 0;
  const more = h("button", { type: "button", onclick: show }, "Show more");
  function show() {
    const until = Math.min(model.pictures, shown + GALLERY);
    for (; shown < until; shown += 1) {
      const name = model.image_names[shown] ?? `image ${shown}`;
      wall.append(h("li", {}, h("img", { src: goodPicture(model.name, shown, model.identity), alt: `Good image ${name}`, title: name, loading: "lazy", decoding: "async" })));
    }
    more.hidden = shown >= model.pictures;
  }
  show();
  return h("section", { class: "card" }, h("h2", {}, `${count(model.pictures, "good image")} that it compares with`), wall, more);
}

const tile = (name, value) => h("div", {}, h("dt", {}, name), h("dd", {}, value));
