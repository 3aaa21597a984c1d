/** Inspect: drop, paste, choose or photograph images, and see the results. */

import { api, pictureOf } from "./api.js";
import { announce, complain, count, h, icon, level, put, VERDICTS } from "./dom.js";
import { Result, verdictWords } from "./result.js";
import { modelChoice, noModel, state } from "./state.js";

export const title = "Inspect";
const KEPT = 60;
const PARALLEL = 2;
/** Images sent at the same time. */

let session = [];
/** Images inspected since the page was opened, newest first. */

export async function mount(root) {
  await state.refresh();
  if (!state.models.length) {
    put(root, noModel());
    return null;
  }
  const files = h("input", { type: "file", id: "files", multiple: true, accept: "image/png,image/jpeg,image/webp,image/bmp,image/tiff", class: "unseen",
    onchange: () => { take([...files.files]); files.value = ""; } });
  const busy = h("p", { class: "busy", role: "status", "aria-live": "polite" });
  const live = h("div", { class: "unseen", "aria-live": "assertive", id: "verdict" });
  const strip = h("ol", { class: "strip", "aria-label": "Inspected just now" });
  const result = new Result({ below: strip, onReview: (changed) => {
    const one = session.find((entry) => entry.inspection.id === changed.id);
    if (one) one.inspection = changed;
    drawStrip();
  } });
  const drop = h("section", { class: "drop", "aria-label": "Images to inspect" },
    icon("upload"), h("p", { class: "lead" }, "Drop images here"),
    h("p", { class: "quiet" }, "or paste them, choose files, or use a camera"),
    h("p", { class: "actions" }, chooser("main"), cameraButton()));
  const camera = h("section", { class: "camera card", hidden: true, "aria-label": "Camera" });
  const place = h("div", { class: "place" });
  let stream = null;
  let waiting = 0;
  let current = null;

  function chooser(kind = "") {
    return h("button", { type: "button", class: kind, onclick: () => files.click() }, icon("upload"), "Choose images");
  }
  function cameraButton() {
    return h("button", { type: "button", onclick: openCamera }, icon("camera"), "Camera");
  }

  put(root, h("h1", { class: "unseen" }, "Inspect"), live,
    h("div", { class: "tools" }, modelChoice(() => drawEmpty()), chooser(), cameraButton(), files, busy), camera, place);
  drawEmpty();
  drawStrip();
  if (session.length) open(session[0].inspection, false);

  function drawEmpty() {
    if (!current) put(place, drop);
  }

  function open(inspection, loud = true) {
    current = inspection;
    result.show(inspection);
    if (!place.contains(result.el)) put(place, result.el);
    if (loud) live.textContent = `${inspection.name}: ${VERDICTS[inspection.verdict]}, ${verdictWords(inspection)}`;
    drawStrip();
  }

  function drawStrip() {
    put(strip, session.map(({ inspection }) => h("li", {}, h("button", { type: "button", class: `thumb ${inspection.verdict}`,
      "aria-current": current?.id === inspection.id ? "true" : null, title: inspection.name,
      onclick: () => { open(inspection); strip.querySelector("[aria-current]")?.focus(); } },
      h("img", { src: pictureOf(inspection.id, 160), alt: "", loading: "lazy" }),
      h("span", { class: "caption" }, icon(inspection.verdict), h("span", { class: "unseen" }, `${inspection.name}, ${VERDICTS[inspection.verdict]}, `), level(inspection.score, inspection.threshold))))));
  }

  async function take(chosen) {
    const images = chosen.filter((one) => one.type.startsWith("image/") || /\.(png|jpe?g|webp|bmp|tiff?)$/i.test(one.name));
    if (!images.length) {
      if (chosen.length) complain(new Error("These files are not supported. Use PNG, JPEG, WebP, BMP or TIFF images."));
      return;
    }
    const model = state.model;
    const line = images.slice();
    waiting += images.length;
    showBusy();
    const work = async () => {
      for (let file = line.shift(); file; file = line.shift()) {
        try {
          const inspection = await api.inspect(model, file);
          session.unshift({ inspection });
          session = session.slice(0, KEPT);
          if (root.isConnected) open(inspection);
        } catch (error) {
          complain(error.status ? new Error(`${file.name}: ${error.message}`) : error);
        }
        waiting -= 1;
        showBusy();
      }
    };
    await Promise.all(Array.from({ length: PARALLEL }, work));
    const latest = session.slice(0, images.length);
    if (images.length > 1 && root.isConnected) {
      announce(`${count(images.length, "image")} inspected, ${latest.filter((one) => one.inspection.is_anomalous).length} anomalous`);
    }
  }

  function showBusy() {
    busy.classList.toggle("on", waiting > 0);
    busy.textContent = waiting > 0 ? `Inspecting ${count(waiting, "image")}…` : "";
  }

  async function openCamera() {
    if (stream) return closeCamera();
    if (!navigator.mediaDevices?.getUserMedia) {
      return complain(new Error("The browser does not allow this page to use a camera. Open it via HTTPS or on this machine (localhost)."));
    }
    try {
      stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: { ideal: "environment" }, width: { ideal: 1920 }, height: { ideal: 1080 } }, audio: false });
    } catch (error) {
      const why = { NotAllowedError: "permission was denied", NotFoundError: "no camera was found", NotReadableError: "another program is using it" };
      return complain(new Error(`The camera cannot be used: ${why[error.name] ?? error.message}.`));
    }
    const video = h("video", { autoplay: true, playsinline: true, "aria-label": "Camera image" });
    video.muted = true;
    video.srcObject = stream;
    const shoot = h("button", { type: "button", class: "main", onclick: () => photograph(video) }, icon("camera"), "Take and inspect");
    camera.hidden = false;
    put(camera, video, h("div", { class: "actions" }, shoot, h("button", { type: "button", onclick: closeCamera }, "Close camera")));
    shoot.focus();
  }

  function photograph(video) {
    const shot = h("canvas", { width: video.videoWidth, height: video.videoHeight });
    if (!shot.width) return;
    shot.getContext("2d").drawImage(video, 0, 0);
    const name = `camera-${new Date().toISOString().slice(0, 19).replaceAll(":", "")}.png`;
    shot.toBlob((blob) => take([new File([blob], name, { type: "image/png" })]), "image/png");
  }

  function closeCamera() {
    stream?.getTracks().forEach((track) => track.stop());
    stream = null;
    camera.hidden = true;
    put(camera);
  }

  const over = (event) => {
    if (![...event.dataTransfer.types].includes("Files")) return;
    event.preventDefault();
    root.classList.add("over");
  };
  const out = (event) => { if (!event.relatedTarget) root.classList.remove("over"); };
  const dropped = (event) => {
    event.preventDefault();
    root.classList.remove("over");
    take([...event.dataTransfer.files]);
  };
  const pasted = (event) => {
    const images = [...(event.clipboardData?.files ?? [])];
    if (images.length) take(images);
  };
  document.addEventListener("dragover", over);
  document.addEventListener("dragleave", out);
  document.addEventListener("drop", dropped);
  document.addEventListener("paste", pasted);
  return () => {
    closeCamera();
    document.removeEventListener("dragover", over);
    document.removeEventListener("dragleave", out);
    document.removeEventListener("drop", dropped);
    document.removeEventListener("paste", pasted);
  };
}
