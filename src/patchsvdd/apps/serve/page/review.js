/** Review: one key per verdict; then add the false alarms to the model's memory, after a preview of the effect. */

import { api, follow, pictureOf } from "./api.js";
import { announce, complain, count, h, icon, level, number, progress, put, REVIEWS, time, verdictBadge } from "./dom.js";
import { verdictWords } from "./result.js";
import { regionList, Stage } from "./stage.js";
import { modelChoice, noModel, state } from "./state.js";

export const title = "Review";
const PAGE = 50;
const SHOWN = 24;
/** Rows of a preview. */

const KEYS = {
  g: { verdict: "false_alarm", words: "Good", more: "a false alarm", sign: "good" },
  d: { verdict: "true_defect", words: "Defect", more: "a true defect", sign: "anomalous" },
  u: { verdict: "unsure", words: "Unsure", more: "for later", sign: "unsure" },
};

export async function mount(root) {
  await state.refresh();
  if (!state.models.length) {
    put(root, noModel());
    return null;
  }
  let queue = [];
  let cursor = null;
  let ended = false;
  let left = 0;
  let done = [];
  let busy = false;
  const gone = new AbortController();

  const what = h("select", { id: "what", onchange: load }, h("option", { value: "none" }, "Alarms not reviewed"), h("option", { value: "unsure" }, "Marked unsure"));
  const summary = h("p", { class: "summary", role: "status" });
  const stage = new Stage();
  const panel = h("div", { class: "panel" });
  const desk = h("div", { class: "result desk" }, h("div", { class: "left" }, stage.el), panel);
  const empty = h("div", { class: "card empty" });
  const learning = h("section", { class: "card learn", "aria-label": "Learn from false alarms" });
  const last = h("p", { class: "last", role: "status" });
  const undoButton = h("button", { type: "button", onclick: undo }, icon("undo"), "Undo ", h("kbd", {}, "Z"));
  const note = h("input", { id: "note", type: "text", maxlength: 500, autocomplete: "off" });
  const keys = h("div", { class: "keys", role: "group", "aria-label": "Your verdict" },
    Object.entries(KEYS).map(([key, one]) => h("button", { type: "button", class: `key ${one.sign}`, "data-key": key, "aria-keyshortcuts": key, onclick: () => say(one.verdict) },
      icon(one.sign), h("span", {}, h("strong", {}, one.words), h("small", {}, one.more)), h("kbd", {}, key.toUpperCase()))),
    h("button", { type: "button", class: "key", "data-key": "n", "aria-keyshortcuts": "n", onclick: () => next() }, icon("right"), h("span", {}, h("strong", {}, "Next"), h("small", {}, "skip")), h("kbd", {}, "N")));

  put(root, h("div", { class: "title" }, h("h1", {}, "Review"), summary),
    h("div", { class: "tools" }, modelChoice(load), h("div", { class: "field" }, h("label", { for: "what" }, "Show"), what), undoButton, last), desk, empty, learning);

  async function load() {
    queue = [];
    cursor = null;
    ended = false;
    await more();
    draw();
    drawLearning();
  }

  async function more() {
    if (ended) return;
    const filter = { model: state.model, verdict: "anomalous", review: what.value };
    try {
      const [page, counts] = await Promise.all([api.inspections({ ...filter, before: cursor, limit: PAGE }), api.counts(filter)]);
      queue.push(...page.inspections.filter((one) => one.has_picture));
      cursor = page.next;
      ended = page.next === null;
      left = counts.total;
    } catch (error) {
      ended = true;
      complain(error);
    }
  }

  function draw() {
    const now = queue[0];
    undoButton.disabled = !done.length;
    summary.textContent = now ? `${left.toLocaleString("en")} to review` : "";
    desk.hidden = !now;
    empty.hidden = Boolean(now);
    if (!now) {
      put(empty, h("h2", {}, icon("good"), "All reviewed"), h("p", {}, `All alarms of ${state.model} are reviewed.`));
      return;
    }
    stage.show(now);
    note.value = "";
    put(panel, h("div", { class: "line" }, verdictBadge(now.verdict), h("span", {}, verdictWords(now))),
      h("h2", { class: "file" }, now.name), h("p", { class: "quiet" }, time(now.at)),
      state.may("review") ? [keys, h("div", { class: "field" }, h("label", { for: "note" }, "Note (optional)"), note)] : h("p", { class: "hint" }, "Your key does not allow reviews."),
      h("section", { class: "part" }, h("h2", {}, "Regions"), regionList(stage, now)));
    const following = queue[1];
    if (following) new Image().src = pictureOf(following.id);
  }

  async function next() {
    if (!queue.length) return;
    const skipped = queue.shift();
    done.push({ inspection: skipped, skipped: true });
    if (queue.length < 3) await more();
    report(`${skipped.name}: skipped`);
    draw();
  }

  async function say(verdict) {
    const now = queue[0];
    if (!now || busy || !state.may("review")) return;
    busy = true;
    try {
      await api.review(now.id, verdict, note.value.trim());
      queue.shift();
      done.push({ inspection: now });
      left = Math.max(0, left - 1);
      report(`${now.name}: ${REVIEWS[verdict]}`);
      if (queue.length < 3) await more();
      draw();
      drawLearning();
    } catch (error) {
      complain(error);
    } finally {
      busy = false;
    }
  }

  async function undo() {
    if (!done.length || busy) return;
    const before = done.pop();
    busy = true;
    try {
      if (!before.skipped) {
        const had = before.inspection.review;
        await api.review(before.inspection.id, had?.verdict ?? null, had?.note ?? "");
        left += 1;
      }
      queue.unshift(before.inspection);
      report(`${before.inspection.name}: undone`);
      draw();
      drawLearning();
    } catch (error) {
      complain(error);
    } finally {
      busy = false;
    }
  }

  function report(words) {
    last.textContent = words;
    if (queue[0]) announce(`${words}. Next: ${queue[0].name}, ${verdictWords(queue[0])}`);
  }

  function pressed(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input:not([type=range]):not([type=checkbox]), select, textarea")) return;
    const key = event.key.toLowerCase();
    if (key in KEYS) say(KEYS[key].verdict);
    else if (key === "n") next();
    else if (key === "z") undo();
    else return;
    event.preventDefault();
    if (key !== "z") panel.querySelector(`[data-key=${key}]`)?.focus({ preventScroll: true });
  }
  document.addEventListener("keydown", pressed);

  // Learning

  let showing = null;
  /** The job that the panel shows. */

  async function drawLearning() {
    if (showing) return;
    const model = state.model;
    try {
      const [counts, jobs] = await Promise.all([api.counts({ model, review: "false_alarm", learned: false }), api.jobs({ model, limit: 20 })]);
      if (model !== state.model || gone.signal.aborted || showing) return;
      const running = jobs.find((job) => ["learn", "undo", "preview"].includes(job.kind) && ["waiting", "running"].includes(job.state));
      if (running) return void watch(running);
      const change = jobs.find((job) => ["learn", "undo"].includes(job.kind) && job.state === "done");
      const lately = change?.kind === "learn" ? change : null;
      const many = counts.total;
      put(learning, h("h2", {}, "Learn from false alarms"),
        many ? h("p", {}, `${count(many, "false alarm")} of ${model} ${many === 1 ? "is" : "are"} reviewed but not learned yet. Learning adds the images to the model's memory of normal parts. It changes nothing else and can be undone.`)
          : h("p", { class: "quiet" }, `There are no new reviewed false alarms of ${model} to learn from.`),
        state.may("admin") ? h("p", { class: "actions" },
          many > 0 && h("button", { type: "button", class: "main", onclick: () => begin("preview") }, "Preview what changes"),
          lately && h("button", { type: "button", onclick: () => begin("undo") }, icon("undo"), `Undo learning ${count(lately.result?.images?.length ?? 0, "image")}`))
          : h("p", { class: "quiet" }, "Learning requires a key with the role admin."));
    } catch (error) {
      complain(error);
    }
  }

  async function begin(kind, ids) {
    try {
      const model = state.model;
      const job = kind === "undo" ? await api.undo(model) : await api.learn(model, { preview: kind === "preview", inspections: ids ?? null });
      await watch(job);
    } catch (error) {
      showing = null;
      complain(error);
      drawLearning();
    }
  }

  async function watch(job) {
    showing = job.id;
    const names = { preview: "Trying it on a copy of the model", learn: "Learning", undo: "Undoing" };
    const bar = h("div", {});
    put(learning, h("h2", { tabindex: "-1" }, names[job.kind]), bar, h("p", { class: "actions" },
      h("button", { type: "button", onclick: () => api.cancel(job.id).catch(complain) }, "Cancel")));
    learning.firstChild.focus({ preventScroll: true });
    const ended = await follow(job.id, (now) => {
      put(bar, progress(names[job.kind], now.done, now.total), h("p", { class: "quiet" }, now.state === "waiting" ? "waiting for other work" : now.stage));
    }, gone.signal, 0.4).catch((error) => { complain(error); return null; });
    showing = null;
    if (gone.signal.aborted) return;
    if (ended?.state === "done" && ended.kind === "preview") return void drawPreview(ended);
    if (ended?.state === "failed") complain(new Error(ended.error));
    await state.refresh();
    await drawLearning();
    if (ended?.state === "done") {
      const words = ended.kind === "learn" ? `Learned ${count(ended.result.images.length, "image")}. ${ended.model} now treats them as normal.` : "Undone: the model is restored.";
      learning.append(h("p", { class: "hint done", role: "status" }, icon("good"), words));
    }
  }

  async function drawPreview(job) {
    showing = job.id;
    const { scores, threshold, threshold_before: before, alarming } = job.result;
    const ids = Object.keys(scores).map((file) => file.split(".")[0]);
    const rows = new Map();
    for (let at = 0; at < ids.length; at += 8) {
      const some = await Promise.all(ids.slice(at, at + 8).map((id) => api.inspection(id).catch(() => null)));
      for (const row of some) if (row) rows.set(row.id, row);
    }
    const after = new Map(Object.entries(scores).map(([file, one]) => [file.split(".")[0], one]));
    const learned = job.inspections.map((id) => rows.get(id)).filter(Boolean);
    const others = ids.filter((id) => !job.inspections.includes(id)).map((id) => rows.get(id)).filter(Boolean);
    const turned = others.filter((row) => row.verdict !== after.get(row.id).verdict);
    const missed = turned.filter((row) => row.review?.verdict === "true_defect");
    const alarms = new Set(alarming.map((name) => name.split("/").at(-1).split(".")[0]));
    const line = (row) => h("tr", { class: missed.includes(row) ? "bad" : null },
      h("td", {}, h("img", { src: pictureOf(row.id, 96), alt: "", width: 48, height: 48, loading: "lazy" })),
      h("th", { scope: "row" }, row.name, row.review && h("small", {}, ` ${REVIEWS[row.review.verdict].toLowerCase()}`)),
      h("td", { class: "figure" }, level(row.score, row.threshold)), h("td", { class: "figure" }, "→ ", level(after.get(row.id).score, threshold)),
      h("td", {}, verdictBadge(row.verdict)), h("td", {}, "→ ", verdictBadge(after.get(row.id).verdict)));
    const table = (list, caption) => h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
      h("table", {}, h("caption", {}, caption), h("thead", {}, h("tr", {}, ["Thumbnail", "Image", "Score", "after", "Verdict", "after"].map((one, index) => h("th", { scope: "col", class: index === 2 || index === 3 ? "figure" : null }, index ? one : h("span", { class: "unseen" }, one))))), h("tbody", {}, list.slice(0, SHOWN).map(line))));
    const lower = others.filter((row) => after.get(row.id).score < row.score - 1e-6).length;
    put(learning, h("h2", { tabindex: "-1" }, "What learning would change"),
      missed.length > 0 && h("p", { class: "hint bad" }, icon("warn"), `${count(missed.length, "true defect")} would no longer be detected. Check them below before you continue.`),
      h("ul", { class: "changes" },
        h("li", {}, before === threshold ? `The threshold stays at ${number(threshold)}.` : `The threshold changes from ${number(before)} to ${number(threshold)}.`),
        h("li", {}, alarms.size ? `${count(alarms.size, "of them", "of them")} would still raise an alarm if a slightly different part came: one example is not enough.` : "Parts that are similar enough to these will no longer raise an alarm."),
        h("li", {}, others.length ? `Of ${count(others.length, "other recent inspection")} ${lower ? `${lower} score lower` : "none changes its score"} and ${turned.length ? `${turned.length} ${turned.length === 1 ? "changes its" : "change their"} verdict` : "none changes its verdict"}.` : "There are no other recent inspections to compare with.")),
      table(learned, `Images to learn: ${learned.length.toLocaleString("en")}`),
      turned.length > 0 && table(turned, "Other inspections whose verdict changes"),
      h("p", { class: "actions" },
        h("button", { type: "button", class: "main", onclick: () => { showing = null; begin("learn", job.inspections); } }, job.inspections.length === 1 ? "Learn this false alarm" : `Learn these ${job.inspections.length} false alarms`),
        h("button", { type: "button", onclick: () => { showing = null; drawLearning(); } }, "Not now")));
    learning.firstChild.focus({ preventScroll: true });
    learning.scrollIntoView({ block: "start" });
    announce("Preview ready");
  }

  await load();
  return () => {
    gone.abort();
    document.removeEventListener("keydown", pressed);
  };
}
