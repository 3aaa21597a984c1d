/** Hints beside a verdict: what is known about the threshold, and whether the image has the model's shape. */

import { api } from "./api.js";
import { count, h, icon } from "./dom.js";
import { state } from "./state.js";

const DIFFERENT = 0.05;
/** Difference of two aspect ratios from which the image is noticeably of another shape. */
const known = new Map();

/** A served model with its origin, by its name; asked for once per version. */
export function detailsOf(model) {
  if (!known.has(model.identity)) {
    const asked = api.model(model.name);
    known.set(model.identity, asked);
    asked.catch(() => known.delete(model.identity));
  }
  return known.get(model.identity);
}

/** What is uncertain about the threshold of an inspection's model, in a line; null if nothing is. */
export function caveat(inspection) {
  const model = state.models.find((one) => one.identity === inspection.identity);
  if (!model || (model.guaranteed && !model.caveat)) return null;
  const link = h("a", { href: `#/models/${encodeURIComponent(model.name)}` }, "More on this model");
  if (!model.threshold) return h("p", { class: "caveat" }, "This model has no threshold yet, so it calls no part anomalous. ", link);
  const why = model.caveat ? model.caveat.split(/: |\. /)[0] : (model.promise ?? "no false-alarm rate is guaranteed").split(". ")[0];
  return h("p", { class: "caveat" }, `This model's threshold is provisional: ${why}. `, link);
}

/** A hint if an image has another shape than the images the model knows; null if not. */
export async function squeezed(inspection) {
  const model = state.models.find((one) => one.name === inspection.model);
  if (!model) return null;
  const details = await detailsOf(model);
  const { original_size: trained = null, sizing } = details.provenance?.data ?? {};
  if (sizing && String(sizing.smallest_image) !== String(sizing.largest_image)) return null;  // it knows several shapes
  const wanted = trained ?? model.image_size;
  if (!wanted) return null;
  const [height, width] = inspection.image_size;
  const ratio = (width / height) / (wanted[1] / wanted[0]);
  if (Math.max(ratio, 1 / ratio) <= 1 + DIFFERENT) return null;
  const size = ([high, wide]) => `${wide} × ${high}`;
  const origin = trained ? `the model was trained with images of ${size(trained)}` : `the model works at ${size(wanted)}`;
  const effect = model.image_size && details.config?.fit !== "letterbox" ? "It is squeezed to fit. " : "";
  return h("p", { class: "hint shape" }, icon("warn"), h("span", {}, `This image is ${width} × ${height}; ${origin}. ${effect}Was it taken with another camera, or of another part?`));
}

/** What a model is for, as a line. */
export async function aboutModel(model) {
  const details = await detailsOf(model);
  const created = details.provenance?.created;
  const day = created ? new Date(created).toLocaleDateString("en", { year: "numeric", month: "long", day: "numeric" }) : null;
  return `Trained with ${count(model.images, "good image")}${day ? ` on ${day}` : ""}.`;
}
