// A webcam behind a button: the video while it is on, and single pictures from it. Only one camera is on at a time.

import { tried } from "./nodes.js";
import { say } from "./words.js";

const SIDE = 640; // pixels; more would only make the upload slower
let open = null;

export class Camera {
  #stream = null;

  constructor(video, toggle, trouble, word, onChange) {
    Object.assign(this, { video, toggle, trouble, word, onChange });
    toggle.addEventListener("click", () => (this.isOn ? this.close() : this.start()));
  }

  get isOn() {
    return this.#stream !== null;
  }

  async start() {
    await tried(this.trouble, async () => {
      if (!navigator.mediaDevices) throw new Error(say("noCamera"));
      open?.close();
      const wanted = { video: { facingMode: "environment", width: { ideal: 1280 } } };
      const stream = await navigator.mediaDevices.getUserMedia(wanted).catch((error) => {
        throw new Error(say("cameraRefused", { reason: error.message }));
      });
      this.#stream = stream;
      open = this;
      const track = stream.getVideoTracks()[0];
      track.addEventListener("ended", () => this.close());
      this.video.classList.toggle("mirrored", track.getSettings().facingMode !== "environment");
      this.video.srcObject = stream;
      await this.video.play();
      this.#show();
    });
  }

  close() {
    for (const track of this.#stream?.getTracks() ?? []) track.stop();
    this.#stream = this.video.srcObject = null;
    if (open === this) open = null;
    this.#show();
  }

  #show() {
    this.video.hidden = !this.isOn;
    this.toggle.dataset.word = this.isOn ? "cameraOff" : this.word;
    this.toggle.textContent = say(this.toggle.dataset.word);
    this.onChange(this.isOn);
  }

  /** Return what the camera sees now as a JPEG (never mirrored, unlike the preview). */
  picture() {
    const { videoWidth: width, videoHeight: height } = this.video;
    const scale = Math.min(1, SIDE / Math.max(width, height));
    const canvas = document.createElement("canvas");
    canvas.width = width * scale;
    canvas.height = height * scale;
    canvas.getContext("2d").drawImage(this.video, 0, 0, canvas.width, canvas.height);
    return new Promise((resolve) => canvas.toBlob(resolve, "image/jpeg", 0.92));
  }
}
