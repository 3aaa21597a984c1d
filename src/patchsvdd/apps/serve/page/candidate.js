/** The candidate of a model: it inspects in the shadow of the live one. State, rates, disagreements, switch and roll back. */

import { api } from "./api.js";
import { confirmDialog } from "./dialogs.js";
import { announce, complain, count, h, icon, percent, put, time, VERDICTS } from "./dom.js";
import { state } from "./state.js";
import { moment, sentence } from "./words.js";

const EVERY = 5;
/** Seconds between two looks at the results. */
const PAGE = 10;
/** Disagreements shown at a time. */
const SIGNIFICANT = 0.05;

let done = null;
/** What has just happened, for the section that is drawn next. */

/** The section of a model for those who may review; null for others. `onChanged` is called after a switch or a roll back. */
export function candidateSection(model, signal, onChanged) {
  if (!state.may("review")) return null;
  const title = h("h2", { id: "candidate-title", tabindex: -1 }, "Candidate");
  const note = h("div", { role: "status" });
  const facts = h("div", {});
  const results = h("div", {});
  const buttons = h("div", { class: "actions" });
  const list = h("ul", { class: "disagreements" });
  const more = h("button", { type: "button", hidden: true, onclick: () => page(next) }, "Show more");
  const lists = h("div", { hidden: true }, h("h3", {}, "Disagreements, newest first"), list, more);
  const section = h("section", { class: "card candidate", "aria-labelledby": "candidate-title", hidden: true }, title, note, facts, results, buttons, lists);
  let next = null;
  let differed = null;
  let timer = null;
  let turn = 0;

  if (done) put(note, h("p", { class: "hint done" }, icon("good"), h("span", {}, done)));
  const isNew = done !== null;
  done = null;
  signal.addEventListener("abort", () => { turn += 1; clearTimeout(timer); });

  async function load({ focus = false } = {}) {
    const mine = ++turn;
    clearTimeout(timer);
    try {
      const found = await api.candidate(model.name);
      if (mine !== turn) return;
      draw(found);
      if (focus) title.focus({ preventScroll: true });
      if (found.candidate?.identity) await compare(mine, found);
    } catch (error) {
      if (mine === turn) complain(error);
    }
  }

  function draw(found) {
    const { candidate, rollback } = found;
    const others = state.models.filter((one) => one.name !== model.name && one.identity !== found.identity);
    section.hidden = !candidate && !rollback && !state.may("admin");
    put(facts,
      candidate ? h("p", {}, h("strong", {}, candidate.model), " inspects in the shadow of ", h("strong", {}, model.name), `: it sees the same images when nothing else waits, and changes no answer. Set by ${candidate.by} ${moment(candidate.since)}.`)
        : h("p", { class: "help" }, "A candidate inspects the same images in the shadow of the live model, and changes no answer. Compare both before you switch."),
      candidate?.trouble && h("p", { class: "hint bad" }, icon("warn"), h("span", {}, `It does not inspect now: ${sentence(candidate.trouble)}`)),
      rollback && h("p", { class: "quiet" }, `Switched by ${rollback.by} ${moment(rollback.at)}. The model in use is that of the folder ${found.folder ?? "–"}; before, it was that of ${rollback.folder}.`));
    put(results);
    lists.hidden = true;
    differed = null;
    const admin = state.may("admin");
    const choice = h("select", { id: "candidate-model" }, others.map((one) => h("option", { value: one.name }, one.name)));
    put(buttons,
      admin && candidate?.identity && h("button", { type: "button", class: "main", onclick: () => ask("switch", found) }, `Switch to ${candidate.model}`),
      admin && candidate && h("button", { type: "button", onclick: remove }, "Remove the candidate"),
      admin && rollback && h("button", { type: "button", onclick: () => ask("rollback", found) }, "Roll back"),
      admin && !candidate && (others.length ? [h("div", { class: "field" }, h("label", { for: "candidate-model" }, "Model"), choice), h("button", { type: "button", onclick: () => set(choice.value) }, "Set as candidate")]
        : h("p", { class: "help" }, "No other model is served. Train one, or serve another model folder, to compare it with this one.")));
    if (isNew && turn === 1) title.focus({ preventScroll: true });
  }

  async function compare(mine, found) {
    const shadow = await api.shadow(model.name);
    if (mine !== turn) return;
    put(results, rates(shadow));
    const now = shadow.only_live + shadow.only_candidate;
    if (now !== differed && !list.contains(document.activeElement)) {
      differed = now;
      await page(null, mine);
    }
    timer = setTimeout(() => compare(mine, found).catch((error) => mine === turn && complain(error)), 1000 * EVERY);
  }

  async function page(before, mine = turn) {
    try {
      const found = await api.disagreements(model.name, { before, limit: PAGE });
      if (mine !== turn) return;
      const drawn = found.disagreements.map(disagreement);
      if (before) list.append(...drawn);
      else put(list, drawn);
      next = found.next;
      more.hidden = next === null;
      lists.hidden = list.children.length === 0;
      if (before) drawn[0]?.querySelector("a").focus({ preventScroll: true });
    } catch (error) {
      if (mine === turn) complain(error);
    }
  }

  async function change(work, words) {
    try {
      await work();
      announce(words);
      await load({ focus: true });  // the button that was pressed is gone
    } catch (error) {
      complain(error);
    }
  }

  const set = (name) => change(() => api.setCandidate(model.name, name), `${name} is the candidate now`);
  const remove = () => change(() => api.removeCandidate(model.name), "The candidate was removed");

  async function ask(what, found) {
    const isSwitch = what === "switch";
    const heading = isSwitch ? `Switch ${model.name} to ${found.candidate.model}?` : `Roll back ${model.name}?`;
    const words = isSwitch
      ? `From the next image on, ${model.name} gives the verdicts of ${found.candidate.model}. Images in progress are finished with the present model. You can roll back.`
      : `From the next image on, ${model.name} gives the verdicts of the model in the folder ${found.rollback.folder} again. Images in progress are finished with the present model.`;
    const identity = isSwitch ? found.candidate.identity : found.identity;
    const send = () => (isSwitch ? api.switchModel(model.name, identity) : api.rollBack(model.name, identity));
    if (!(await confirmDialog(heading, words, isSwitch ? "Switch" : "Roll back", send))) return;
    done = isSwitch ? `${found.candidate.model} is live under the name ${model.name}.` : `${model.name} was rolled back to the model in the folder ${found.rollback.folder}.`;
    announce(done);
    await onChanged();
  }

  load();
  return section;
}

/** Alarms of both models on the same images, and what the difference means. */
function rates(found) {
  const left = [`${count(found.waiting, "image")} waiting`, found.dropped > 0 && `${found.dropped.toLocaleString("en")} left out because too many waited`, found.failed > 0 && `${found.failed.toLocaleString("en")} could not be inspected`].filter(Boolean).join(", ");
  const status = h("p", { class: "quiet" }, sentence(left));
  if (!found.images) return [h("p", {}, "No image was compared yet."), status];
  const row = (name, alarms) => h("tr", {}, h("th", { scope: "row" }, name), h("td", { class: "figure" }, alarms.count.toLocaleString("en")),
    h("td", { class: "figure" }, h("strong", {}, percent(alarms.rate))), h("td", { class: "figure quiet" }, `${percent(alarms.interval[0])} to ${percent(alarms.interval[1])}`));
  return [
    h("div", { class: "meaning" }, h("table", {}, h("thead", {}, h("tr", {}, [`On ${count(found.images, "image")}`, "Alarms", "Rate", "95 % interval"].map((words) => h("th", { scope: "col" }, words)))),
      h("tbody", {}, row(`${found.model} (live)`, found.live_alarms), row(`${found.candidate} (candidate)`, found.candidate_alarms)))),
    h("p", {}, `${conclusion(found)} `, h("span", { class: "quiet" }, `Difference ${points(found.difference)} (95 %: ${points(found.interval[0])} to ${points(found.interval[1])}), McNemar ${found.p_value < 0.0001 ? "p < 0.0001" : `p = ${Number(found.p_value.toPrecision(2))}`}. Only the live model: ${found.only_live.toLocaleString("en")}, only the candidate: ${found.only_candidate.toLocaleString("en")}.`)),
    status,
  ];
}

function conclusion(found) {
  if (found.p_value > SIGNIFICANT) return "No difference in alarms is shown: it may be chance.";
  return `The candidate raises ${found.difference < 0 ? "fewer" : "more"} alarms; this is hardly chance.`;
}

const points = (share) => `${share < 0 ? "−" : "+"}${Math.abs(100 * share).toFixed(1)} points`;

/** An inspection with both verdicts; it opens in the history. */
function disagreement({ inspection, shadow }) {
  const verdict = (who, found) => h("span", { class: `said ${found.verdict}` }, icon(found.verdict), `${who} ${VERDICTS[found.verdict]}, ${(found.score / found.threshold).toFixed(2)}×`);
  return h("li", {}, h("a", { href: `#/history/${inspection.id}` }, inspection.name), verdict("live", inspection), verdict("candidate", shadow), h("time", { datetime: inspection.at, class: "quiet" }, time(inspection.at)));
}
