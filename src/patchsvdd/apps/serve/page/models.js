/** Models: provenance, guarantee of the threshold, and the effect of other thresholds. */

import { api, goodPicture } from "./api.js";
import { calibrationChart, histogram, lossChart } from "./chart.js";
import { announce, complain, count, h, icon, number, percent, put, time } from "./dom.js";
import { noModel, state } from "./state.js";

export const title = "Models";
const TRIED = 1000;
/** Number of inspections used to try a threshold. */
const GALLERY = 48;

let turn = () => false;
export const turnTo = (rest) => turn(rest);

export async function mount(root, rest) {
  await state.refresh();
  if (!state.models.length) {
    put(root, noModel());
    return null;
  }
  let closed = false;
  const list = h("nav", { class: "side", "aria-label": "Models" });
  const body = h("div", { class: "body" });
  put(root, h("div", { class: "title" }, h("h1", {}, "Models")), h("div", { class: "split" }, list, body));

  function drawList() {
    put(list, state.models.map((one) => h("a", { href: `#/models/${encodeURIComponent(one.name)}`, "aria-current": one.name === state.model ? "true" : null },
      h("strong", {}, one.name), h("small", {}, `${one.preset} · ${count(one.images, "good image")}`), one.trouble && h("small", { class: "bad" }, "the model in its folder cannot be used"))));
  }

  async function open(name) {
    state.choose(name);
    drawList();
    try {
      const [model, scores] = await Promise.all([api.model(name), api.scores({ model: name, limit: TRIED })]);
      if (closed || state.model !== name) return;
      put(body, head(model), model.calibration ? threshold(model, scores) : null, provenance(model), gallery(model));
      announce(`Model ${name}`);
    } catch (error) {
      complain(error);
    }
  }

  function head(model) {
    const reload = async () => {
      try {
        const reloaded = await api.reload(model.name);
        announce(reloaded.replaced ? "The model was reloaded from its folder" : "The model is up to date");
        await state.refresh();
        await open(model.name);
      } catch (error) {
        complain(error);
      }
    };
    const patches = Object.entries(model.patches).map(([size, many]) => `${many.toLocaleString("en")} of ${size} px`).join(", ");
    return h("section", { class: "card" },
      h("div", { class: "line" }, h("h2", {}, model.name), h("a", { class: "button main", href: "#/inspect", onclick: () => state.choose(model.name, true) }, "Inspect with this model"),
        state.may("admin") && h("button", { type: "button", onclick: reload }, "Check for a newer version")),
      model.trouble && h("p", { class: "hint bad" }, icon("warn"), model.trouble),
      h("dl", { class: "tiles" },
        tile("Threshold", number(model.threshold)), tile("Good images", model.images.toLocaleString("en")), tile("False-alarm rate", model.false_alarm_rate === null ? "–" : percent(model.false_alarm_rate)),
        tile("Image size", model.image_size ? `${model.image_size[1]} × ${model.image_size[0]}` : "original")),
      model.promise && h("p", {}, `${model.promise[0].toUpperCase()}${model.promise.slice(1)}.`),
      model.caveat && h("p", { class: "hint" }, icon("warn"), h("span", {}, `${model.caveat[0].toUpperCase()}${model.caveat.slice(1)}.`)),
      h("p", { class: "quiet" }, `Normal patches: ${patches}. Device: ${model.device}.`, model.region_of_interest && ` Region of interest: ${model.region_of_interest}.`, model.min_area > 0 && ` Ignores regions smaller than ${model.min_area} pixels.`));
  }

  function threshold(model, data) {
    const { scores: good, threshold: now } = model.calibration;
    const most = 1.05 * Math.max(now, ...good, ...(data.score.length ? data.score : [0]));
    const curve = calibrationChart(good, now);
    const bars = data.score.length ? histogram(data.score, now, most) : null;
    const slider = h("input", { id: "try", type: "range", min: 0, max: 1000, step: 1, oninput: draw, "aria-describedby": "meaning" });
    const exact = h("output", { for: "try" });
    const plain = h("span", {});
    const meaning = h("div", { class: "meaning", id: "meaning", role: "status" });
    // Quadratic, so that the slider is most precise in the range of typical thresholds.
    const valueOf = (place) => most * (place / 1000) ** 2;
    const placeOf = (value) => String(Math.round(1000 * Math.sqrt(value / most)));
    const older = data.identity.filter((one) => one !== model.identity).length;

    function draw(event) {
      const same = slider.value === placeOf(now);
      const tried = same ? now : valueOf(Number(slider.value));
      if (event) { curve.set(tried); bars?.set(tried); }
      plain.textContent = number(tried);
      exact.textContent = `${number(tried / now)}×`;
      slider.setAttribute("aria-valuetext", `${number(tried / now)} times the model's threshold`);
      const above = (list, limit) => list.filter((score) => score > limit).length;
      const of = (review) => data.score.filter((_, index) => data.review[index] === review);
      const [alarms, defects] = [of("false_alarm"), of("true_defect")];
      const row = (name, many, before, total) => h("tr", {}, h("th", { scope: "row" }, name), h("td", { class: "figure" }, `${before.toLocaleString("en")}`), h("td", { class: "figure" }, h("strong", {}, many.toLocaleString("en"))), h("td", { class: "figure quiet" }, `of ${total.toLocaleString("en")}`));
      const past = data.score.map((score, index) => data.verdict[index] === "anomalous");
      put(meaning, h("table", {}, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, ""), h("th", { scope: "col" }, "now"), h("th", { scope: "col" }, `at ${number(tried / now)}×`), h("td", {}))),
        h("tbody", {},
          row("Anomalous inspections", above(data.score, tried), above(data.score, now), past.length),
          row("Reviewed false alarms above it", above(alarms, tried), above(alarms, now), alarms.length),
          row("Reviewed true defects above it", above(defects, tried), above(defects, now), defects.length),
          row("Good calibration images above it", above(good, tried), above(good, now), good.length))));
    }

    const section = h("section", { class: "card" }, h("h2", {}, "Threshold"),
      h("div", { class: "two" },
        h("div", {}, h("h3", {}, `Calibration: ${count(good.length, "good image")}`), curve.el),
        h("div", {}, h("h3", {}, data.score.length ? `The last ${count(data.score.length, "inspection")}` : "No inspections yet"), bars?.el ?? h("p", { class: "quiet" }, "Inspect some images to see the effect of another threshold."))),
      h("div", { class: "try" }, h("label", { for: "try" }, "Try a threshold"), slider, exact, h("button", { type: "button", onclick: () => { slider.value = placeOf(now); draw(true); } }, "Reset to the model's")),
      meaning,
      h("p", { class: "help" }, older > 0 && `${count(older, "of these inspections was", "of these inspections were")} made with an earlier version of the model. `, `The model's threshold, 1×, is ${number(now)}; this one would be `, plain, ". Trying a threshold changes nothing. To set it: ", h("code", {}, "patchsvdd calibrate MODEL GOOD --false-alarm-rate 0.01")));
    slider.value = placeOf(now);
    draw();
    return section;
  }

  function provenance(model) {
    const { provenance: origin } = model;
    const training = origin.training ?? {};
    const versions = Object.entries(origin.versions ?? {}).map(([name, version]) => `${name} ${version}`).join(", ");
    const row = (name, value) => value !== null && value !== undefined && value !== "" && [h("dt", {}, name), h("dd", {}, value)];
    const kept = training.kept === "untrained" || training.kept_untrained;
    const losses = (training.history ?? []).map((one) => ({ ...one, steps: training.steps }));
    const chart = losses.length > 1 ? lossChart() : null;
    chart?.set(losses);
    const journal = model.journal.map((entry) => h("li", {}, `${entry.at ? time(entry.at) : ""} ${CHANGES[entry.change] ?? entry.change} ${entry.images?.length ? count(entry.images.length, "image") : ""}`));
    return h("section", { class: "card" }, h("h2", {}, "Provenance"),
      h("dl", { class: "facts wide" },
        row("Trained", origin.created && new Date(origin.created).toLocaleString()), row("Device", origin.device), row("Preset", model.preset),
        row("Training", training.steps ? `${training.steps.toLocaleString("en")} steps in ${duration(training.seconds)}${kept ? "; discarded, because the untrained encoder was better" : ""}` : "no training of the encoder"),
        row("Seed", origin.seed), row("Software", versions),
        row("Images", origin.data && `${count(origin.data.images, "image")} of ${origin.data.original_size?.[1]} × ${origin.data.original_size?.[0]} px${origin.data.skipped?.length ? `, ${origin.data.skipped.length} left out` : ""}`),
        row("Data fingerprint", origin.data?.fingerprint && h("code", {}, origin.data.fingerprint.slice(0, 16))), row("Model identity", h("code", {}, model.identity))),
      chart && h("div", {}, h("h3", {}, "Training losses"), chart.el),
      journal.length > 0 && h("div", {}, h("h3", {}, "Changes"), h("ol", { class: "journal" }, journal)));
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
    return h("section", { class: "card" }, h("h2", {}, `${count(model.pictures, "good image")} in the memory`), wall, more);
  }

  turn = (to) => {
    if (closed || !to.length) return false;
    open(to[0]);
    return true;
  };
  const first = state.models.some((one) => one.name === rest[0]) ? rest[0] : state.model;
  await open(first);
  return () => { closed = true; };
}

const CHANGES = { add: "added", remove: "removed", undo: "undid", calibrate: "calibrated with" };
const tile = (name, value) => h("div", {}, h("dt", {}, name), h("dd", {}, value));
const duration = (seconds) => (seconds < 90 ? `${Math.round(seconds)} s` : `${Math.round(seconds / 60)} min`);
