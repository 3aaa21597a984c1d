/** Why an image was judged as it was: its most unusual patches beside the nearest ones of good images. */

import { goodPicture, pictureOf } from "./api.js";
import { h, number, percent } from "./dom.js";

const AROUND = 1.0;
/** Margin shown around a patch on each side, as a fraction of its size. */
const SIDE = 320;
const LARGE = 1600;

/** One reason: patch by patch what is unusual. Of a good part it is said how far below the threshold it is. */
export function reasonCard(reason, index, why, inspection) {
  const { threshold, image_size: size } = inspection;
  const side = Math.max(...size) > LARGE ? LARGE : null;
  const scales = reason.scales.map((scale) => {
    const times = scale.times_usual === null ? "unlike any good patch" : `${number(scale.times_usual)}× the typical distance`;
    return h("div", { class: "pair" },
      patch(pictureOf(inspection.id, side), scale.box, "This image", `${scale.patch_size}-pixel patch of this image`, size),
      patch(goodPicture(inspection.model, scale.nearest.index, why.identity), scale.nearest.box, `Nearest normal: ${scale.nearest.image}`, `nearest normal patch, in ${scale.nearest.image}`),
      h("p", { class: "times" }, reason.region ? [h("strong", {}, times), ` · ${scale.patch_size} px · ${percent(scale.share)} of the peak`] : `Patches of ${scale.patch_size} px`));
  });
  const below = !reason.region && threshold && h("p", {}, `The most unusual place is at ${number(reason.peak / threshold)} × threshold: below it, so the part counts as good.`);
  return h("article", { class: "reason" }, h("h3", {}, reason.region ? `Region ${index + 1}` : "The most unusual place"), below, scales,
    h("details", {}, h("summary", {}, "As text"), h("p", {}, reason.in_words)));
}

/** A patch with a margin, cropped from an image. Boxes are in pixels of an image of `size`, or of the image itself. */
function patch(source, box, caption, alt, size) {
  const canvas = h("canvas", { width: SIDE, height: SIDE, role: "img", "aria-label": alt });
  const picture = new Image();
  picture.onload = () => {
    const scale = size ? picture.naturalWidth / size[1] : 1;
    const [left, top, right, bottom] = box.map((one) => one * scale);
    const side = Math.max(right - left, bottom - top) * (1 + 2 * AROUND);
    const x = (left + right - side) / 2;
    const y = (top + bottom - side) / 2;
    const ratio = SIDE / side;
    const pen = canvas.getContext("2d");
    pen.imageSmoothingQuality = "high";
    pen.drawImage(picture, -x * ratio, -y * ratio, picture.naturalWidth * ratio, picture.naturalHeight * ratio);
    const place = [(left - x) * ratio, (top - y) * ratio, (right - left) * ratio, (bottom - top) * ratio];
    pen.strokeStyle = "rgba(0, 0, 0, 0.6)";
    pen.lineWidth = 8;
    pen.strokeRect(...place);
    pen.strokeStyle = "#fff";
    pen.lineWidth = 3.5;
    pen.strokeRect(...place);
  };
  picture.src = source;
  return h("figure", {}, canvas, h("figcaption", {}, caption));
}
