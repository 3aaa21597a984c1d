/** The form for a new model: good images, a name, how long to train, and what the threshold is for. */

import { api } from "./api.js";
import { announce, complain, count, h, icon, progress, put } from "./dom.js";
import { state } from "./state.js";
import { AIMS, asPercent, neededInAll, promise } from "./words.js";

const THUMBS = 60;
const RATE = 0.01;
/** The default false-alarm rate. */
const FEW = 60;
/** Number of images from which a model is usually good; the smallest one measured had as many. */
const NAME = /^[A-Za-z0-9][A-Za-z0-9._-]*$/;

/** What is wrong with a model's name, in words; empty if nothing is. */
function wrongName(name) {
  if (!name) return "";
  if (!NAME.test(name)) return `Use letters, digits and . _ - without spaces, starting with a letter or digit: for example washer-2, not "washer 2".`;
  const taken = [...state.models, ...state.unavailable].some((one) => one.name === name);
  return taken ? `There is a model named ${name} already. Choose another name, for example ${name}-2.` : "";
}

export class TrainForm {
  constructor(root) {
    this.root = root;
    this.files = [];
    const choose = h("input", { type: "file", multiple: true, accept: "image/png,image/jpeg,image/webp,image/bmp,image/tiff", class: "unseen", id: "good", tabindex: "-1", "aria-label": "Good images",
      onchange: () => { this.take([...choose.files]); choose.value = ""; } });
    const redraw = () => this.draw();
    const field = (id, label, attributes, help) => h("div", { class: "field" }, h("label", { for: id }, label), h("input", { id, name: id, "aria-describedby": help ? `${id}-help` : null, ...attributes }), help && h("small", { class: "help", id: `${id}-help` }, help));
    const radio = (group, value, name, words) => h("label", { class: "radio" }, h("input", { type: "radio", name: group, value, onchange: redraw }),
      h("span", {}, h("strong", {}, name), h("small", {}, words), h("small", { class: "technical" }, `${group} ${value}`)));
    const aim = (value, words) => radio("aim", value, AIMS[value], words);
    this.leftOut = h("div", { class: "left-out" });
    this.title = h("h2", { tabindex: "-1" }, "New model");
    this.thumbs = h("ul", { class: "gallery small" });
    this.chosenCount = h("p", { class: "chosen", role: "status" });
    this.enough = h("p", { class: "help" });
    this.promised = h("div", { class: "promised", role: "status" });
    this.wrong = h("p", { class: "wrong", role: "alert" });
    this.missing = h("p", { class: "help", id: "missing" });
    this.sent = h("div", {});
    this.start = h("button", { class: "main", "aria-describedby": "missing" }, "Start training");
    this.nameError = h("small", { class: "wrong", role: "alert" });
    this.rateField = field("rate", "False-alarm rate in per cent", { type: "number", min: 0.01, max: 50, step: "any", placeholder: "1", oninput: redraw }, "How many good parts may be called anomalous. Empty: 1 %.");
    this.sending = false;
    this.el = h("form", { class: "card train", "aria-label": "A new model", onsubmit: (event) => this.submit(event) }, this.title, this.leftOut,
      h("div", { class: "two" },
        h("div", {}, h("section", { class: "drop small", "aria-label": "Good images" }, icon("upload"), h("p", { class: "lead" }, "Drop images of good parts"), this.enough,
          h("p", { class: "actions" }, h("button", { type: "button", onclick: () => choose.click() }, "Choose images"))), choose, this.chosenCount, this.thumbs, this.promised),
        h("div", { class: "settings" },
          field("model-name", "Name", { type: "text", required: true, maxlength: 100, autocomplete: "off", spellcheck: "false", placeholder: "washer-2", oninput: redraw }, "Letters, digits, and . _ -"), this.nameError,
          h("fieldset", { class: "presets" }, h("legend", {}, "Quality"),
            radio("preset", "best", "Best", "Finds the most defects. Up to 40 minutes without a graphics card."),
            radio("preset", "encoder", "Fast", "Quicker to train, but misses more defects and guarantees no false-alarm rate.")),
          h("fieldset", { class: "aims" }, h("legend", {}, "What the threshold is for"),
            aim("balanced", "False alarms and missed defects count the same. Both are estimated with synthetic defects; no rate is guaranteed."),
            aim("few-alarms", "You choose how many good parts may raise a false alarm. This rate is guaranteed if there are enough images; more defects may be missed."),
            aim("few-misses", "Missed defects count four times as much as false alarms. Expect more false alarms; no rate is guaranteed.")),
          this.rateField,
          field("minutes", "Minutes of training", { type: "number", min: 0.1, max: 100000, step: "any", placeholder: "automatic" }, "Empty: as long as it takes, at most 40 minutes without a graphics card."),
          h("details", {}, h("summary", {}, "More settings"),
            field("image-size", "Image size in pixels", { type: "number", min: 32, max: 2048, step: 1, placeholder: "chosen from the images" }, "Empty: chosen from the images, which keep their aspect ratio. A number makes them square; larger finds smaller defects and takes longer."),
            field("steps", "Steps (instead of minutes)", { type: "number", min: 1, max: 1000000, step: 1, placeholder: "automatic" })),
          this.wrong, this.sent, h("p", { class: "actions" }, this.start), this.missing)));
    for (const value of ["best", "balanced"]) this.el.querySelector(`[value=${value}]`).defaultChecked = true;  // also after a reset
    this.listen();
    this.drawThumbs();
  }

  control(id) {
    return this.el.querySelector(`#${id}`);
  }

  value(id) {
    return this.control(id).value.trim();
  }

  get preset() {
    return this.el.querySelector("[name=preset]:checked").value;
  }

  get aim() {
    return this.el.querySelector("[name=aim]:checked").value;
  }

  /** The false-alarm rate to guarantee; null if the threshold is for something else. */
  get rate() {
    if (this.aim !== "few-alarms") return null;
    const given = Number(this.value("rate")) / 100;
    return given > 0 && given < 1 ? given : RATE;
  }

  /** The chosen files without those to be left out. */
  get used() {
    return this.files.filter((one) => !state.leftOut.includes(one.name));
  }

  take(chosen) {
    const images = chosen.filter((one) => one.type.startsWith("image/") || /\.(png|jpe?g|webp|bmp|tiff?)$/i.test(one.name));
    if (images.length < chosen.length) complain(new Error(`${count(chosen.length - images.length, "file")} ignored: not an image.`));
    this.files.push(...images);
    this.drawThumbs();
  }

  drawThumbs() {
    const files = this.used;
    for (const picture of this.thumbs.querySelectorAll("img")) URL.revokeObjectURL(picture.src);
    put(this.thumbs, files.slice(0, THUMBS).map((file) => h("li", {}, h("img", { src: URL.createObjectURL(file), alt: file.name, title: file.name }),
      h("button", { type: "button", class: "plain", "aria-label": `Remove ${file.name}`, onclick: () => { this.files.splice(this.files.indexOf(file), 1); this.drawThumbs(); } }, icon("close")))),
      files.length > THUMBS && h("li", { class: "more" }, `and ${(files.length - THUMBS).toLocaleString("en")} more`));
    this.drawLeftOut();
    this.draw();
  }

  /** Say which files will be left out, and which of them are not among the chosen ones. */
  drawLeftOut() {
    const names = state.leftOut;
    const lost = this.files.length ? names.filter((name) => !this.files.some((one) => one.name === name)) : [];
    const useAll = () => {
      state.leftOut = [];
      this.drawThumbs();
      this.title.focus({ preventScroll: true });
      announce("All images will be used");
    };
    put(this.leftOut, names.length > 0 && h("div", { class: "hint" }, icon("warn"), h("div", {},
      h("p", {}, h("strong", {}, `${count(names.length, "image")} will be left out:`), ` ${names.join(", ")}`),
      h("p", {}, "Choose the same images again: a new training does not use those of the earlier one."),
      lost.length > 0 && h("p", { class: "wrong" }, `Not among the chosen images: ${lost.join(", ")}`),
      h("p", {}, h("button", { type: "button", onclick: useAll }, "Use all images")))));
  }

  /** Show what can be promised with the chosen images, and what is missing before the training can start. */
  draw() {
    const { used, preset, rate } = this;
    const many = used.length;
    const gone = this.files.length - many;
    this.rateField.hidden = rate === null;
    this.control("rate").disabled = rate === null;
    const guaranteed = preset === "best" && rate !== null ? ` To guarantee a false-alarm rate of ${asPercent(rate)}, use ${neededInAll(rate).toLocaleString("en")} or more.` : "";
    this.enough.textContent = `Use ${FEW} or more that show the normal variation; copies count once. No defects are needed.${guaranteed}`;
    this.chosenCount.textContent = this.files.length ? `${count(many, "image")} chosen${gone ? `, ${gone.toLocaleString("en")} left out` : ""}` : "";
    const [sure, words] = many > 1 && rate !== null ? promise(many, preset, rate) : [true, ""];
    put(this.promised, words && h("p", { class: sure ? "hint done" : "hint" }, icon(sure ? "good" : "warn"), h("span", {}, words)));
    const name = this.value("model-name");
    const wrong = wrongName(name);
    this.control("model-name").setCustomValidity(wrong);
    this.nameError.textContent = wrong;
    const fewest = rate !== null ? 2 : 4;  // a threshold that weighs false alarms and misses requires four
    const missing = [many < fewest && `choose at least ${fewest} images`, !name && "enter a name", wrong && "correct the name"].filter(Boolean);
    this.start.disabled = missing.length > 0 || this.sending;
    this.missing.textContent = missing.length && !this.sending ? `To start, ${missing.join(" and ")}.` : "";
  }

  async submit(event) {
    event.preventDefault();
    if (this.sending || this.start.disabled) return;
    this.sending = true;
    this.wrong.textContent = "";
    this.draw();
    const { used } = this;
    const rate = this.rate === null ? "" : this.value("rate");
    const fields = { name: this.value("model-name"), preset: this.preset, aim: this.aim, minutes: this.value("minutes"), image_size: this.value("image-size"), steps: this.value("steps"), false_alarm_rate: rate && String(Number(rate) / 100) };
    try {
      const job = await api.train(fields, used, (loaded, total) => put(this.sent, progress("Upload", loaded, total), h("p", { class: "quiet" }, `Sending ${count(used.length, "image")}`)));
      this.files = [];
      state.leftOut = [];
      this.el.reset();
      if (this.el.isConnected) location.hash = `#/train/${job.id}`;
    } catch (error) {
      this.wrong.textContent = error.message;
    }
    this.sending = false;
    put(this.sent);
    this.drawThumbs();
  }

  listen() {
    const { root } = this;
    const kinds = {
      dragover: (event) => { event.preventDefault(); root.classList.add("over"); },
      dragleave: (event) => { if (!event.relatedTarget) root.classList.remove("over"); },
      drop: (event) => { event.preventDefault(); root.classList.remove("over"); if (!this.el.hidden) this.take([...event.dataTransfer.files]); },
    };
    for (const [kind, handle] of Object.entries(kinds)) document.addEventListener(kind, handle);
    this.close = () => { for (const [kind, handle] of Object.entries(kinds)) document.removeEventListener(kind, handle); };
  }
}
