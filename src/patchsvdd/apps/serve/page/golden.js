/** Golden images: the last check of a model with images whose verdicts are known. */

import { api } from "./api.js";
import { announce, complain, h, icon, put, VERDICTS } from "./dom.js";
import { state } from "./state.js";
import { moment, sentence } from "./words.js";

/** What a failed check means for inspections; null if it passed or the model has no golden images. */
export function goldenHint(model) {
  const { check } = model;
  if (!check || check.passed) return null;
  const what = check.blocked ? "This model failed its check and inspects nothing until it passes" : "This model failed its check; its verdicts may be wrong";
  return h("p", { class: "hint bad golden-hint" }, icon("warn"), h("span", {}, `${what}: ${sentence(check.problem)}`));
}

/** The section of a model with the results of its last check; null without golden images. */
export function goldenSection(model) {
  if (!model.check) return null;
  const body = h("div", {});
  const button = h("button", { type: "button", onclick: run }, "Check now");
  const title = h("div", { class: "line" }, h("h2", { id: "golden-title" }, "Golden images"), state.may("review") && button);

  function draw({ check }) {
    put(body, goldenHint({ check }) ?? h("p", {}, check.images === 1 ? "The golden image is judged as expected." : `All ${check.images} golden images are judged as expected.`),
      h("p", { class: "quiet" }, `Checked ${moment(check.at)}.`),
      h("ul", { class: "golden" }, check.results.map((one) => h("li", {}, icon(one.passed ? "good" : "anomalous"),
        h("span", {}, h("strong", {}, one.name), h("span", { class: "quiet" }, ` expected ${VERDICTS[one.expected]}, ${one.passed ? "passed" : one.problem}`))))));
  }

  async function run() {
    button.disabled = true;
    try {
      const check = await api.check(model.name);
      draw({ check });
      announce(check.passed ? "The check passed" : `The check failed: ${check.problem}`);
      await state.refresh();
    } catch (error) {
      complain(error);
    }
    button.disabled = false;
    button.focus({ preventScroll: true });
  }

  draw(model);
  return h("section", { class: "card", "aria-labelledby": "golden-title" }, title, body);
}
