/** Teach a model the defects that people confirmed, so that it finds others like them. */

import { api } from "./api.js";
import { count, h } from "./dom.js";
import { sentence } from "./words.js";

const UNNAMED = "defect";

/** What `Learning` shows and does for confirmed defects. */
export const CONFIRMED_DEFECTS = {
  title: "Teach confirmed defects",
  review: "true_defect",
  jobs: ["teach", "teach-preview"],
  preview: "teach-preview",
  try: "Preview what teaching changes",
  change: "teach",
  start: (model, request) => api.teach(model, request),
  isPossible: (model) => model.not_teachable === null,
  role: "Teaching requires the role admin.",
  undoes: false,
  fields: () => h("div", { class: "field" }, h("label", { for: "taught-kind" }, "Name of these defects"),
    h("input", { id: "taught-kind", name: "kind", type: "text", maxlength: 100, autocomplete: "off", value: UNNAMED, "aria-describedby": "taught-kind-help" }),
    h("p", { class: "help", id: "taught-kind-help" }, "Defects that were marked on the picture keep the names given there.")),
  words: (many, model) => (many
    ? `${count(many, "confirmed defect")} of ${model} ${many === 1 ? "was" : "were"} not taught yet. Teaching helps the model to find defects like them, and alarms name the kind that they resemble. The rate of false alarms stays as it is. Mark where the defects are when you review: the model learns more from marked ones.`
    : `There are no new confirmed defects of ${model} to teach.`),
  done: (job) => `Taught ${count(job.result.images.length, "defect")}. ${job.model} now looks for others like them.`,
  heading: "What teaching would change",
  isWrong: (row, verdict) => (verdict === "good" ? row.review?.verdict === "true_defect" : ["false_alarm", "confirmed_good"].includes(row.review?.verdict)),
  warning: (many) => `${count(many, "reviewed part")} would be judged wrongly. Check ${many === 1 ? "it" : "them"} below before you continue.`,
  wrong: (many) => `Reviewed parts that would be judged wrongly: ${many.toLocaleString("en")}`,
  accept: (many) => `I accept that ${count(many, "reviewed part")} will be judged wrongly.`,
  news: ({ taught, calibration_images: images, alarms, alarms_before: before, guarantee }) => {
    const tried = taught.filter((one) => one.found_after !== null);
    const found = tried.filter((one) => one.found_after).length;
    const marked = taught.filter((one) => one.has_mask).length;
    return [
      `${taught.filter((one) => one.found_before).length} of ${count(taught.length, "defect")} raised an alarm before. ${tried.length ? `${found} of ${tried.length} would be found by a model that was taught only the others of the kind.` : "One image of a kind does not show whether others will be found."}`,
      marked < taught.length ? `${marked} of ${taught.length} are marked; of the others, the places that look most suspicious are taught.` : "All are marked.",
      `${alarms.toLocaleString("en")} of ${count(images, "good image")} of the calibration ${alarms === 1 ? "is" : "are"} above the threshold, before ${before.toLocaleString("en")}. ${sentence(guarantee)}`,
    ];
  },
  moved: "higher",
  images: (many) => `Defects to teach: ${many}`,
  button: (many) => (many === 1 ? "Teach this defect" : `Teach these ${many.toLocaleString("en")} defects`),
  anyway: "Teach anyway…",
};
