/** Train a model with good images. Training continues when the page is closed or the service is restarted. */

import { api, follow, jobPicture } from "./api.js";
import { lossChart } from "./chart.js";
import { announce, complain, count, h, icon, progress, put } from "./dom.js";
import { state } from "./state.js";
import { TrainForm } from "./train_form.js";
import { unusualOf } from "./unusual.js";
import { moment, sentence, timeLeft } from "./words.js";

export const title = "Train";
const STATES = { waiting: "waiting", running: "running", done: "done", failed: "failed", cancelled: "cancelled" };
const PARTS = [
  ["Read the images", ["images"]],
  ["Learn what good parts look like", ["training", "validation"]],
  ["Learn to find drawn defects", ["critic", "features"]],
  ["Store patches of good parts", ["memory", "graph", "thinning", "reach"]],
  ["Set the threshold", ["threshold", "fusion", "evidence", "check", "unusual"]],
  ["Draw examples", ["pictures"]],
];
/** What a training does, in order, with the names of its stages. */
const CRITIC = 2;
const UNFINISHED = ["waiting", "running"];

let turn = () => false;
export const turnTo = (rest) => turn(rest);

export async function mount(root, rest) {
  await state.refresh();
  let gone = new AbortController();
  let closed = false;
  const form = state.may("admin") ? new TrainForm(root) : null;
  const formEl = form?.el ?? h("p", { class: "card hint" }, "Training requires a key with the role admin.");
  const heading = h("h1", { tabindex: "-1" }, "Train a model");
  const list = h("section", { class: "card jobs" });
  const body = h("div", { class: "job" });
  const newTraining = h("a", { class: "button", href: "#/train", hidden: true }, "New training");
  put(root, h("div", { class: "title" }, heading, newTraining), body, formEl, list);

  /** Continue an ended training or start it over, then follow it. */
  async function again(order, id, button) {
    button.disabled = true;
    try {
      const job = await order(id);
      if (closed) return;
      if (location.hash === `#/train/${job.id}`) open(job.id);
      else location.hash = `#/train/${job.id}`;
      await drawList();
    } catch (error) {
      if (!closed) complain(error);
      button.disabled = false;
    }
  }

  /** Buttons for a training that failed or was cancelled. */
  function repeat(job) {
    if (!state.may("admin") || !["failed", "cancelled"].includes(job.state) || job.here === false) return null;
    return [h("button", { type: "button", "aria-label": `Continue: ${job.model}`, onclick: (event) => again(api.continueJob, job.id, event.currentTarget) }, "Continue"),
      h("button", { type: "button", "aria-label": `Start over: ${job.model}`, onclick: (event) => again(api.restartJob, job.id, event.currentTarget) }, "Start over")];
  }

  async function drawList() {
    const jobs = (await api.jobs({ limit: 200 })).filter((job) => job.kind === "train");
    if (closed) return jobs;
    const served = (name) => state.models.some((one) => one.name === name);
    put(list, h("h2", {}, "Trainings"), jobs.length ? h("ul", {}, jobs.map((job) => h("li", {},
      h("div", { class: "what" }, h("p", {}, h("a", { href: `#/train/${job.id}` }, h("strong", {}, job.model)), " ", h("span", { class: `state ${job.state}` }, STATES[job.state])),
        h("p", { class: "quiet" }, moment(job.created), job.state === "running" && timeLeft(job.seconds_left) && `, ${timeLeft(job.seconds_left)}`),
        job.error && h("p", { class: "reason-text" }, sentence(job.error))),
      h("div", { class: "does" }, repeat(job), job.state === "done" && served(job.model) && h("a", { class: "button", href: `#/models/${encodeURIComponent(job.model)}` }, "Show model")))))
      : h("p", { class: "quiet" }, "None yet. A training goes on when you close this page, and is listed here."));
    return jobs;
  }

  async function open(id) {
    gone.abort();
    gone = new AbortController();
    const { signal } = gone;
    const chart = lossChart();
    const head = h("div", {});
    const heat = h("div", { class: "heatmaps" });
    const losses = h("div", {}, h("h2", {}, "Training error"), chart.el, h("p", { class: "help" }, "How well the model knows good parts so far. The lines should fall and level off."));
    const foot = h("div", {});
    const stages = h("ol", { class: "stages" });
    put(body, h("section", { class: "card" }, head, stages, foot, h("div", { class: "course" }, losses, heat)));
    formEl.hidden = true;
    newTraining.hidden = false;
    drawList().catch(complain);
    heading.textContent = "Training";
    heading.focus({ preventScroll: true });
    window.scrollTo(0, 0);
    let seen = "";
    let last = null;
    let reached = 0;
    let critic = false;
    const update = (job) => {
      heading.textContent = `Training ${job.model}`;
      if (UNFINISHED.includes(job.state)) {
        reached = Math.max(reached, partOf(job, reached));
        critic ||= job.stage === "critic";
        const stage = job.state === "waiting" || job.stage === "waiting" ? waiting(job) : PARTS[reached][0];
        const whole = typeof job.fraction === "number";
        const left = timeLeft(job.seconds_left);
        put(head, whole ? progress("Training", job.fraction, 1) : progress(stage, job.done, job.total),
          h("p", { class: "stage-words" }, h("strong", {}, whole && job.state === "running" ? `${Math.floor(100 * job.fraction)} %` : stage), left && `, ${left}`));
        drawStages(job);
        if (stage !== last) announce(stage);
        last = stage;
        if (!foot.firstChild) {
          put(foot, h("p", { class: "quiet" }, "You can close this page: training continues, and resumes if the service is restarted."),
            state.may("admin") && h("p", { class: "actions" }, h("button", { type: "button", onclick: () => api.cancel(id).catch(complain) }, "Cancel training")));
        }
      }
      chart.set(job.losses);
      if (job.pictures.join() !== seen) {
        seen = job.pictures.join();
        put(heat, heatmaps(id, job.pictures));
      }
    };
    const drawStages = (job) => put(stages, PARTS.map(([words], index) => {
      if (index === CRITIC && reached > CRITIC && !critic) return null;  // this model has no such part
      const where = index < reached ? "past" : index === reached && job.state === "running" ? "now" : "later";
      const part = where === "now" && job.total > 1 ? ` ${job.done.toLocaleString("en")} of ${job.total.toLocaleString("en")}` : "";
      return h("li", { class: where, "aria-current": where === "now" ? "step" : null }, where === "past" ? icon("good") : h("span", { class: "spot" }), h("span", {}, words, where === "past" && h("span", { class: "unseen" }, ": done"), part && h("small", { class: "quiet" }, part)));
    }));
    try {
      const ended = await follow(id, update, signal, 1);
      if (!ended || signal.aborted || closed) return;
      put(stages);
      if (ended.state === "done") await state.refresh();
      if (signal.aborted || closed) return;
      losses.hidden = !ended.losses.length;
      heading.textContent = { done: `${ended.model} is trained`, failed: `Training ${ended.model} failed`, cancelled: `Training ${ended.model} was cancelled` }[ended.state];
      announce(heading.textContent);
      put(head, ended.state === "done" ? success(ended) : h("div", { class: "hint bad" }, icon("warn"), h("div", {}, h("p", {}, ended.state === "failed" ? sentence(`The training failed: ${ended.error}`) : "The training was cancelled."),
        state.may("admin") && h("p", {}, "Continue goes on from the last saved step. Start over begins again with the same images."))));
      put(foot, h("p", { class: "actions" }, ended.state === "done" ? [h("a", { class: "button main", href: "#/inspect", onclick: () => state.choose(ended.model, true) }, "Use it"),
        h("a", { class: "button", href: `#/models/${encodeURIComponent(ended.model)}` }, "Show model")] : repeat(ended)));
      await drawList();
    } catch (error) {
      if (signal.aborted || closed) return;
      complain(error);
      location.hash = "#/train";
    }
  }

  function showForm() {
    gone.abort();
    formEl.hidden = false;
    newTraining.hidden = true;
    heading.textContent = "Train a model";
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
  const running = jobs?.find((job) => UNFINISHED.includes(job.state));
  if (rest.length) open(rest[0]);
  else if (running && !state.leftOut.length) location.replace(`#/train/${running.id}`);
  return () => {
    closed = true;
    gone.abort();
    form?.close();
  };
}

/** The part of a training that a job is in. Examples are drawn before and after it. */
function partOf(job, reached) {
  const index = PARTS.findIndex(([, stages]) => stages.includes(job.stage));
  if (job.stage === "pictures" && reached < 2 && !job.losses.length) return 0;
  if (job.stage === "pictures" && reached < CRITIC + 1 && job.losses.length && job.losses.at(-1).step < job.losses.at(-1).steps) return 1;
  return Math.max(0, index);
}

/** What a waiting training waits for. */
function waiting({ waiting_for: other }) {
  const kinds = { train: "training", learn: "learning", preview: "a preview", undo: "an undo" };
  return other ? `Waiting for ${kinds[other.kind] ?? other.kind} of ${other.model}` : "Waiting for other jobs";
}

/** What a finished training has to say. */
function success({ result, model }) {
  const names = (words, list) => list?.length > 0 && h("details", {}, h("summary", {}, words), h("ul", { class: "files" }, list.map((one) => h("li", {}, one))));
  return [h("p", { class: "hint done" }, icon("good"), h("span", {}, h("strong", {}, "Trained and calibrated"), result.images ? ` with ${count(result.images, "good image")}.` : ".")),
    result.guarantee && h("p", {}, sentence(result.guarantee)),
    names(`${count(result.copies?.length ?? 0, "image")} left out as duplicates or near-duplicates`, result.copies),
    result.caveat && h("p", { class: "hint" }, icon("warn"), h("span", {}, sentence(result.caveat))),
    result.unusual?.length > 0 && h("p", { class: "hint" }, icon("warn"), h("span", {}, sentence(result.unusual_in_words), " ", h("a", { href: unusualOf(model) }, result.unusual.length === 1 ? "Show it" : "Show them"))),
    names(`${count(result.skipped?.length ?? 0, "file")} could not be used`, result.skipped)];
}

/** Rows of synthetic defects, each with its heat maps in the order of training. */
function heatmaps(id, names) {
  const rows = new Map();
  const moments = new Set();
  for (const name of names) {
    const [, kind, step, row] = name.match(/^(picture|step|final)(?:-(\d+))?-(\d+)\.jpg$/) ?? [];
    if (!kind) continue;
    const at = kind === "step" ? Number(step) : kind === "final" ? Infinity : -1;
    moments.add(at);
    if (!rows.has(row)) rows.set(row, new Map());
    rows.get(row).set(at, name);
  }
  if (!rows.size) return null;
  const order = [...moments].sort((a, b) => a - b);
  const words = (at) => (at === -1 ? "synthetic defect" : at === Infinity ? "finished model" : at === 0 ? "before" : `step ${at.toLocaleString("en")}`);
  return [h("h2", {}, "Watch it learn"), h("p", { class: "help" }, "Defects drawn into good images. Blue is normal, red to yellow is anomalous. Until the end, only a few of your images are compared; the last column is the finished model."),
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Heat maps so far" }, h("table", { class: "maps" }, h("thead", {}, h("tr", {}, order.map((one) => h("th", { scope: "col" }, words(one))))),
      h("tbody", {}, [...rows.keys()].sort().map((row) => h("tr", {}, order.map((at) => {
        const name = rows.get(row).get(at);
        return h("td", {}, name && h("img", { src: jobPicture(id, name), alt: `Sample ${Number(row)}, ${words(at)}`, width: 128, height: 128 }));
      }))))))];
}
