/** Train a model with good images. Training continues when the page is closed or the service is restarted. */

import { api, follow, jobPicture } from "./api.js";
import { lossChart } from "./chart.js";
import { announce, complain, count, h, icon, number, progress, put, time } from "./dom.js";
import { state } from "./state.js";

export const title = "Train";
const THUMBS = 60;
const STATES = { waiting: "waiting", running: "running", done: "done", failed: "failed", cancelled: "cancelled" };
const STAGES = { images: "Reading images", training: "Training", validation: "Validating with synthetic defects", critic: "Training the critic", memory: "Building the memory",
  graph: "Indexing", thinning: "Selecting a coreset", threshold: "Calibrating", fusion: "Fusing memory and critic", pictures: "Drawing heat maps", waiting: "Waiting for other jobs", done: "Done" };

let turn = () => false;
export const turnTo = (rest) => turn(rest);

export async function mount(root, rest) {
  await state.refresh();
  let gone = new AbortController();
  let closed = false;
  let files = [];
  const form = state.may("admin") ? makeForm() : h("p", { class: "card hint" }, "Training requires a key with the role admin.");
  const list = h("section", { class: "card jobs", hidden: true });
  const body = h("div", { class: "job" });
  put(root, h("div", { class: "title" }, h("h1", {}, "Train a model")), body, form, list);

  function makeForm() {
    const drop = h("section", { class: "drop small", "aria-label": "Good images" });
    const input = h("input", { type: "file", multiple: true, accept: "image/png,image/jpeg,image/webp,image/bmp,image/tiff", class: "unseen", id: "good", tabindex: "-1", "aria-label": "Good images",
      onchange: () => { take([...input.files]); input.value = ""; } });
    const thumbs = h("ul", { class: "gallery small" });
    const chosenCount = h("p", { class: "quiet", role: "status" });
    const wrong = h("p", { class: "wrong", role: "alert" });
    const sent = h("div", {});
    const start = h("button", { class: "main" }, "Start training");
    const field = (id, label, attributes, help) => h("div", { class: "field" }, h("label", { for: id }, label), h("input", { id, name: id, ...attributes }), help && h("small", { class: "help" }, help));
    const made = h("form", { class: "card train", "aria-label": "A new model", onsubmit: submit }, h("h2", {}, "New model"),
      h("div", { class: "two" },
        h("div", {}, drop, input, chosenCount, thumbs),
        h("div", { class: "settings" },
          field("model-name", "Name", { type: "text", required: true, pattern: "[A-Za-z0-9][A-Za-z0-9._\\-]*", maxlength: 100, autocomplete: "off", spellcheck: "false" }, "Letters, digits, and . _ -"),
          h("fieldset", { class: "presets" }, h("legend", {}, "Preset"),
            radio("best", "Best", "default: encoder and critic, most accurate", true), radio("encoder", "Encoder", "no critic: faster, less accurate")),
          field("minutes", "Minutes of training", { type: "number", min: 0.1, max: 100000, step: "any", placeholder: "preset's value" }, "Leave empty to use the preset's value."),
          h("details", {}, h("summary", {}, "More settings"),
            field("image-size", "Image size in pixels", { type: "number", min: 32, max: 2048, step: 1, placeholder: "256" }),
            field("steps", "Steps (instead of minutes)", { type: "number", min: 1, max: 1000000, step: 1, placeholder: "preset's value" }),
            field("rate", "False-alarm rate in per cent", { type: "number", min: 0.01, max: 50, step: "any", placeholder: "1" })),
          wrong, sent, h("p", { class: "actions" }, start))));
    put(drop, icon("upload"), h("p", { class: "lead" }, "Drop images of good parts"), h("p", { class: "quiet" }, "Use 40 or more images that show the normal variation. No defects are needed."),
      h("p", { class: "actions" }, h("button", { type: "button", onclick: () => input.click() }, "Choose images")));
    draw();

    function radio(value, name, words, checked = false) {
      return h("label", { class: "radio" }, h("input", { type: "radio", name: "preset", value, checked }), h("span", {}, h("strong", {}, name), h("small", {}, words)));
    }
    function take(chosen) {
      const images = chosen.filter((one) => one.type.startsWith("image/") || /\.(png|jpe?g|webp|bmp|tiff?)$/i.test(one.name));
      if (images.length < chosen.length) complain(new Error(`${count(chosen.length - images.length, "file")} ignored: not an image.`));
      files.push(...images);
      draw();
    }
    function draw() {
      chosenCount.textContent = files.length ? `${count(files.length, "image")} chosen` : "";
      for (const picture of thumbs.querySelectorAll("img")) URL.revokeObjectURL(picture.src);
      put(thumbs, files.slice(0, THUMBS).map((file, index) => h("li", {}, h("img", { src: URL.createObjectURL(file), alt: file.name, title: file.name }),
        h("button", { type: "button", class: "plain", "aria-label": `Remove ${file.name}`, onclick: () => { files.splice(index, 1); draw(); } }, icon("close")))),
        files.length > THUMBS && h("li", { class: "more" }, `and ${files.length - THUMBS} more`));
      start.disabled = files.length < 2;
      start.title = start.disabled ? "Training requires at least 2 images" : "";
    }
    async function submit(event) {
      event.preventDefault();
      const value = (id) => made.querySelector(`#${id}`).value.trim();
      wrong.textContent = "";
      start.disabled = true;
      const fields = { name: value("model-name"), preset: made.querySelector("[name=preset]:checked").value, minutes: value("minutes"), image_size: value("image-size"), steps: value("steps"),
        false_alarm_rate: value("rate") && String(Number(value("rate")) / 100) };
      try {
        const job = await api.train(fields, files, (loaded, total) => put(sent, progress("Upload", loaded, total), h("p", { class: "quiet" }, `Sending ${count(files.length, "image")}`)));
        files = [];
        made.reset();
        location.hash = `#/train/${job.id}`;
      } catch (error) {
        wrong.textContent = error.message;
      }
      put(sent);
      draw();
    }
    const over = (event) => { event.preventDefault(); root.classList.add("over"); };
    const out = (event) => { if (!event.relatedTarget) root.classList.remove("over"); };
    const dropped = (event) => { event.preventDefault(); root.classList.remove("over"); take([...event.dataTransfer.files]); };
    document.addEventListener("dragover", over);
    document.addEventListener("dragleave", out);
    document.addEventListener("drop", dropped);
    root.addEventListener("closed", () => {
      document.removeEventListener("dragover", over);
      document.removeEventListener("dragleave", out);
      document.removeEventListener("drop", dropped);
    });
    return made;
  }

  async function drawList() {
    const jobs = (await api.jobs({ limit: 200 })).filter((job) => job.kind === "train");
    if (closed) return;
    list.hidden = !jobs.length;
    put(list, h("h2", {}, "Trainings"), h("ul", {}, jobs.map((job) => h("li", {}, h("a", { href: `#/train/${job.id}` }, h("strong", {}, job.model)),
      h("span", { class: `state ${job.state}` }, STATES[job.state]), h("span", { class: "quiet" }, time(job.created))))));
    return jobs;
  }

  async function open(id) {
    gone.abort();
    gone = new AbortController();
    const { signal } = gone;
    const chart = lossChart();
    const head = h("div", {});
    const heat = h("div", { class: "heatmaps" });
    const losses = h("div", { hidden: true }, h("h3", {}, "Losses"), chart.el);
    const foot = h("div", {});
    const heading = h("h2", { tabindex: "-1" }, "Training");
    put(body, h("section", { class: "card" }, h("div", { class: "line" }, heading, h("a", { class: "button", href: "#/train" }, "New training")), head, foot, h("div", { class: "course" }, losses, heat)));
    form.hidden = true;
    heading.focus({ preventScroll: true });
    window.scrollTo(0, 0);
    let seen = "";
    let last = null;
    const update = (job) => {
      heading.textContent = job.model;
      const running = ["waiting", "running"].includes(job.state);
      const stage = STAGES[job.stage] ?? job.stage;
      if (running) {
        put(head, progress(stage, job.done, job.total), h("p", { class: "stage-words" }, h("strong", {}, stage), job.total > 0 && ` ${job.done.toLocaleString("en")} of ${job.total.toLocaleString("en")}`));
        if (stage !== last) announce(stage);
        last = stage;
        if (!foot.firstChild) {
          put(foot, h("p", { class: "quiet" }, "You can close this page: training continues, and resumes if the service is restarted."),
            state.may("admin") && h("p", { class: "actions" }, h("button", { type: "button", onclick: () => api.cancel(id).catch(complain) }, "Cancel training")));
        }
      }
      losses.hidden = job.losses.length < 2;
      if (job.losses.length > 1) chart.set(job.losses);
      if (job.pictures.join() !== seen) {
        seen = job.pictures.join();
        put(heat, heatmaps(id, job.pictures));
      }
    };
    try {
      const ended = await follow(id, update, signal, 1);
      if (!ended || signal.aborted) return;
      if (ended.state === "done") {
        await state.refresh();
        const { result } = ended;
        put(head, h("p", { class: "hint done" }, icon("good"), h("span", {}, h("strong", {}, "Trained and calibrated."), result.threshold !== undefined && result.threshold !== null ? ` Threshold ${number(result.threshold)}, from ${count(result.images, "good image")}.` : "")),
          result.guarantee && h("p", {}, `${result.guarantee[0].toUpperCase()}${result.guarantee.slice(1)}.`),
          result.copies?.length > 0 && h("details", {}, h("summary", {}, `${count(result.copies.length, "image")} left out as duplicates or near-duplicates`), h("ul", {}, result.copies.map((one) => h("li", {}, one)))),
          result.caveat && h("p", { class: "hint" }, icon("warn"), h("span", {}, `${result.caveat[0].toUpperCase()}${result.caveat.slice(1)}.`)),
          result.skipped?.length > 0 && h("details", {}, h("summary", {}, `${count(result.skipped.length, "file")} could not be used`), h("ul", {}, result.skipped.map((one) => h("li", {}, one)))));
        put(foot, h("p", { class: "actions" }, h("a", { class: "button main", href: "#/inspect", onclick: () => state.choose(ended.model, true) }, "Use it"),
          h("a", { class: "button", href: `#/models/${encodeURIComponent(ended.model)}` }, "Show model")));
        announce(`${ended.model} is trained`);
      } else {
        put(head, h("p", { class: "hint bad" }, icon("warn"), ended.state === "failed" ? `The training failed: ${ended.error}` : "The training was cancelled."));
        put(foot);
      }
      await drawList();
    } catch (error) {
      complain(error);
      location.hash = "#/train";
    }
  }

  function showForm() {
    gone.abort();
    form.hidden = false;
    put(body);
  }

  turn = (to) => {
    if (closed) return false;
    if (to.length) open(to[0]);
    else {
      showForm();
      drawList().catch(complain);
    }
    return true;
  };

  const jobs = await drawList();
  const running = jobs?.find((job) => ["waiting", "running"].includes(job.state));
  if (rest.length) open(rest[0]);
  else if (running) location.replace(`#/train/${running.id}`);
  return () => {
    closed = true;
    gone.abort();
    root.dispatchEvent(new Event("closed"));
  };
}

/** Rows of synthetic defects, each with its heat maps in the order of training. */
function heatmaps(id, names) {
  const rows = new Map();
  const moments = new Set();
  for (const name of names) {
    const [, kind, step, row] = name.match(/^(picture|step|final)(?:-(\d+))?-(\d+)\.jpg$/) ?? [];
    if (!kind) continue;
    const moment = kind === "step" ? Number(step) : kind === "final" ? Infinity : -1;
    moments.add(moment);
    if (!rows.has(row)) rows.set(row, new Map());
    rows.get(row).set(moment, name);
  }
  if (!rows.size) return null;
  const order = [...moments].sort((a, b) => a - b);
  const words = (moment) => (moment === -1 ? "synthetic defect" : moment === Infinity ? "finished model" : moment === 0 ? "before" : `step ${moment.toLocaleString("en")}`);
  return [h("h3", {}, "Heat maps of synthetic defects"), h("p", { class: "help" }, "Synthetic defects in good images that are not in the small memory used here. Blue is normal, red to yellow is anomalous."),
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Heat maps so far" }, h("table", { class: "maps" }, h("thead", {}, h("tr", {}, order.map((one) => h("th", { scope: "col" }, words(one))))),
      h("tbody", {}, [...rows.keys()].sort().map((row) => h("tr", {}, order.map((moment) => {
        const name = rows.get(row).get(moment);
        return h("td", {}, name && h("img", { src: jobPicture(id, name), alt: `Sample ${Number(row)}, ${words(moment)}`, width: 128, height: 128 }));
      }))))))];
}
