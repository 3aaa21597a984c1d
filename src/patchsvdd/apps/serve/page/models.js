/** Models: what each was made from, what its threshold promises, and what another threshold would have meant. */

import { api, goodPicture } from "./api.js";
import { calibrationChart, histogram, lossChart } from "./chart.js";
import { announce, complain, count, h, icon, number, percent, put, time } from "./dom.js";
import { noModel, state } from "./state.js";

export const title = "Models";
const TRIED = 1000;
/** Inspections that a threshold is tried on. */
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
      h("strong", {}, one.name), h("small", {}, `${one.preset} · ${count(one.images, "good image")}`), one.trouble && h("small", { class: "bad" }, "its folder holds a model that cannot be used"))));
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
        const said = await api.reload(model.name);
        announce(said.replaced ? "The model in the folder is in use now" : "The model in the folder is the one in use");
        await state.refresh();
        await open(model.name);
      } catch (error) {
        complain(error);
      }
    };
    const patches = Object.entries(model.patches).map(([size, many]) => `${many.toLocaleString("en")} of ${size} px`).join(", ");
    return h("section", { class: "card" },
      h("div", { class: "line" }, h("h2", {}, model.name), h("a", { class: "button main", href: "#/inspect" }, "Inspect with it"),
        state.may("admin") && h("button", { type: "button", onclick: reload }, "Look for a newer one")),
      model.trouble && h("p", { class: "hint bad" }, icon("warn"), model.trouble),
      h("dl", { class: "tiles" },
        tile("Threshold", number(model.threshold)), tile("Good images", model.images.toLocaleString("en")), tile("False alarms wanted", model.false_alarm_rate === null ? "–" : percent(model.false_alarm_rate)),
        tile("Image size", model.image_size ? `${model.image_size[1]} × ${model.image_size[0]}` : "as they come")),
      model.promise && h("p", {}, `${model.promise[0].toUpperCase()}${model.promise.slice(1)}.`),
      model.caveat && h("p", { class: "hint" }, icon("warn"), h("span", {}, `${model.caveat[0].toUpperCase()}${model.caveat.slice(1)}.`)),
      h("p", { class: "quiet" }, `Normal patches: ${patches}. Device: ${model.device}.`, model.region_of_interest && ` Looks at ${model.region_of_interest}.`, model.min_area > 0 && ` Passes over what is smaller than ${model.min_area} pixels.`));
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
    // The slider is finest where thresholds lie: scores grow with its square.
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
          row("Inspections called anomalous", above(data.score, tried), above(data.score, now), past.length),
          row("Reviewed false alarms that alarm again", above(alarms, tried), above(alarms, now), alarms.length),
          row("Reviewed true defects that are found", above(defects, tried), above(defects, now), defects.length),
          row("Good calibration images above it", above(good, tried), above(good, now), good.length))));
    }

    const section = h("section", { class: "card" }, h("h2", {}, "Threshold"),
      h("div", { class: "two" },
        h("div", {}, h("h3", {}, `Calibration: ${count(good.length, "good image")}`), curve.el),
        h("div", {}, h("h3", {}, data.score.length ? `The last ${count(data.score.length, "inspection")}` : "No inspections yet"), bars?.el ?? h("p", { class: "quiet" }, "Inspect some images to see what another threshold would have meant."))),
      h("div", { class: "try" }, h("label", { for: "try" }, "Try a threshold"), slider, exact, h("button", { type: "button", onclick: () => { slider.value = placeOf(now); draw(true); } }, "Back to the model's")),
      meaning,
      h("p", { class: "help" }, older > 0 && `${count(older, "of these inspections was", "of these inspections were")} judged by an earlier state of the model. `, `The model's threshold, 1×, is ${number(now)}; this one would be `, plain, ". Trying changes nothing. To set it: ", h("code", {}, "patchsvdd calibrate MODEL GOOD --false-alarm-rate 0.01")));
    slider.value = placeOf(now);
    draw();
    return section;
  }

  function provenance(model) {
    const { provenance: told } = model;
    const training = told.training ?? {};
    const versions = Object.entries(told.versions ?? {}).map(([name, version]) => `${name} ${version}`).join(", ");
    const row = (name, value) => value !== null && value !== undefined && value !== "" && [h("dt", {}, name), h("dd", {}, value)];
    const kept = training.kept === "untrained" || training.kept_untrained;
    const losses = (training.history ?? []).map((one) => ({ ...one, steps: training.steps }));
    const chart = losses.length > 1 ? lossChart() : null;
    chart?.set(losses);
    const journal = model.journal.map((entry) => h("li", {}, `${entry.at ? time(entry.at) : ""} ${CHANGES[entry.change] ?? entry.change} ${entry.images?.length ? count(entry.images.length, "image") : ""}`));
    return h("section", { class: "card" }, h("h2", {}, "Where it comes from"),
      h("dl", { class: "facts wide" },
        row("Trained", told.created && new Date(told.created).toLocaleString()), row("On", told.device), row("Preset", model.preset),
        row("Training", training.steps ? `${training.steps.toLocaleString("en")} steps in ${duration(training.seconds)}${kept ? "; the encoder was kept as it was before, which found more" : ""}` : "none of the encoder: it was kept as it was"),
        row("Seed", told.seed), row("Software", versions),
        row("Images", told.data && `${count(told.data.images, "image")} of ${told.data.original_size?.[1]} × ${told.data.original_size?.[0]} px${told.data.skipped?.length ? `, ${told.data.skipped.length} left out` : ""}`),
        row("Data's fingerprint", told.data?.fingerprint && h("code", {}, told.data.fingerprint.slice(0, 16))), row("Model's identity", h("code", {}, model.identity))),
      chart && h("div", {}, h("h3", {}, "Losses of its training"), chart.el),
      journal.length > 0 && h("div", {}, h("h3", {}, "Changed since"), h("ol", { class: "journal" }, journal)));
  }

  function gallery(model) {
    if (!model.pictures) return h("section", { class: "card" }, h("h2", {}, "Good images"), h("p", { class: "quiet" }, "This model keeps no pictures."));
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
    return h("section", { class: "card" }, h("h2", {}, `${count(model.pictures, "good image")} it has learned from`), wall, more);
  }

  turn = (to) => {
    if (closed || !to.length) return false;
    open(to[0]);
    return true;
  };
  const wanted = state.models.some((one) => one.name === rest[0]) ? rest[0] : state.model;
  await open(wanted);
  return () => { closed = true; };
}

const CHANGES = { add: "learned", remove: "forgot", undo: "took back", calibrate: "set the threshold by" };
const tile = (name, value) => h("div", {}, h("dt", {}, name), h("dd", {}, value));
const duration = (seconds) => (seconds < 90 ? `${Math.round(seconds)} s` : `${Math.round(seconds / 60)} min`);
