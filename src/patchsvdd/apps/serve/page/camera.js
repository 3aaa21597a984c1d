/** The camera: a live image, and a button that takes a picture. */

import { complain, h, icon, put } from "./dom.js";

const REASONS = { NotAllowedError: "permission was denied", NotFoundError: "no camera was found", NotReadableError: "another program is using it" };

export class Camera {
  /** `onShot` receives each picture as a file. */
  constructor(onShot) {
    this.onShot = onShot;
    this.stream = null;
    this.closed = false;
    this.el = h("section", { class: "camera card", hidden: true, "aria-label": "Camera" });
  }

  /** Open the camera, or close it if it is open. */
  async toggle() {
    if (this.stream) return this.hide();
    if (!navigator.mediaDevices?.getUserMedia) {
      return complain(new Error("The browser does not allow this page to use a camera. Open it via HTTPS or on this machine (localhost)."));
    }
    try {
      this.stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: { ideal: "environment" }, width: { ideal: 1920 }, height: { ideal: 1080 } }, audio: false });
    } catch (error) {
      return complain(new Error(`The camera cannot be used: ${REASONS[error.name] ?? error.message}.`));
    }
    if (this.closed) return this.hide();
    const video = h("video", { autoplay: true, playsinline: true, "aria-label": "Camera image" });
    video.muted = true;
    video.srcObject = this.stream;
    const shoot = h("button", { type: "button", class: "main", onclick: () => this.shoot(video) }, icon("camera"), "Take and inspect");
    this.el.hidden = false;
    put(this.el, video, h("div", { class: "actions" }, shoot, h("button", { type: "button", onclick: () => this.hide() }, "Close camera")));
    return shoot.focus();
  }

  shoot(video) {
    const shot = h("canvas", { width: video.videoWidth, height: video.videoHeight });
    if (!shot.width) return;
    shot.getContext("2d").drawImage(video, 0, 0);
    const name = `camera-${new Date().toISOString().slice(0, 19).replaceAll(":", "")}.png`;
    shot.toBlob((blob) => this.onShot(new File([blob], name, { type: "image/png" })), "image/png");
  }

  hide() {
    this.stream?.getTracks().forEach((track) => track.stop());
    this.stream = null;
    this.el.hidden = true;
    put(this.el);
  }

  /** Stop for good: the view is left. */
  close() {
    this.closed = true;
    this.hide();
  }
}
