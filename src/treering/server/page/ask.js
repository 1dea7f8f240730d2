// Asks the model what a photo shows, or what the camera sees, and shows the answer.

import { call } from "./api.js";
import { Camera } from "./camera.js";
import { chosenFiles, mayBePhoto } from "./files.js";
import { byId, button, node, speaker, tried } from "./nodes.js";
import { classNamed, here, isLearnt, pointAt, shown } from "./model.js";
import { number, percent, say } from "./words.js";

const PAUSE = 250; // milliseconds at least between two questions of the camera
const KEPT = 8; // answers that can be looked at again
const answers = [];
let current = null;
let openClass, teachPhoto, camera, speak;

/** Ask for one photo; what refuses it is told at its place. */
async function ask(photo) {
  const query = { top: 5, nearest: 3, ...(shown.model.unknown && { unknown: 0.05 }) };
  const answer = (await call("POST", here("/predict", query), photo)).predictions[0];
  if (answer.error) throw new Error(answer.error);
  return answer;
}

/** Ask for files one after the other, and show the last answer. */
export async function askFiles(files) {
  const trouble = byId("ask-error");
  camera.close();
  for (const { file } of files) {
    await tried(trouble, async () => {
      if (!isLearnt()) throw new Error(say("askNothing"));
      if (!mayBePhoto(file)) throw new Error(`${file.name}: ${say("notPhoto")}`);
      const asked = { photo: file, url: URL.createObjectURL(file), answer: null };
      preview(asked.url);
      byId("ask").classList.add("thinking");
      asked.answer = await ask(file).finally(() => byId("ask").classList.remove("thinking"));
      answers.unshift(asked);
      for (const old of answers.splice(KEPT)) URL.revokeObjectURL(old.url);
      show(asked);
    });
    if (trouble.textContent) byId("answer").hidden = true;
  }
}

function preview(url) {
  byId("asked").src = url;
  byId("asked").hidden = false;
  byId("ask-drop").classList.add("full");
}

function show(asked) {
  current = asked;
  if (asked.url) preview(asked.url);
  paintAnswer();
  paintBefore();
}

function paintAnswer() {
  byId("answer").hidden = !current;
  if (!current) return;
  const { classes, unknown, nearest } = current.answer;
  const best = classes[0];
  const certain = percent(best.probability);
  const verdict = unknown ? say("isUnknown") : say("verdict", { name: best.name, percent: certain });
  const likely = say("mostLike", { name: best.name, percent: certain });
  byId("verdict").textContent = unknown ? verdict : best.name;
  byId("answer").dataset.class = unknown ? "" : best.name;
  byId("unknown").hidden = !unknown;
  byId("unknown").textContent = unknown ? likely : "";
  byId("answer-bars").replaceChildren(...classes.map(({ name, probability }) => {
    const bar = node("span", { class: "bar" });
    bar.style.width = `${100 * probability}%`;
    return node("li", { "data-class": name },
      node("button", { type: "button", class: "plain", onclick: () => openClass(name), onmouseenter: () => pointAt(name), onmouseleave: () => pointAt(null) }, name),
      node("span", { class: "share" }, percent(probability)), node("span", { class: "track" }, bar));
  }));
  byId("nearest").replaceChildren(...(nearest?.length ? [node("h3", {}, say("nearest")), node("div", { class: "strip" }, ...nearest.map((near) =>
    node("figure", {}, node("img", { src: near.exemplar, alt: say("likeness", { name: near.class, n: number(near.likeness, 2) }), loading: "lazy" }),
      node("figcaption", { "aria-hidden": "true" }, near.class))))] : []));
  if (current.photo) byId("nearest").append(button(say("teachThis"), () => teachPhoto(current.photo), { class: "quiet" }));
  byId("answer").classList.toggle("is-unknown", Boolean(unknown));
  shown.answered = unknown ? null : best.name;
  pointAt(null);
  speak(unknown ? `${verdict}. ${likely}` : verdict);
}

function paintBefore() {
  byId("asked-before").replaceChildren(...(answers.length > 1 ? [node("h3", {}, say("askedBefore")), node("div", { class: "strip small" }, ...answers.map((asked) =>
    node("button", { type: "button", class: "plain", "aria-pressed": String(asked === current), onclick: () => show(asked),
      "aria-label": asked.answer.unknown ? say("isUnknown") : asked.answer.classes[0].name }, node("img", { src: asked.url, alt: "" }))))] : []));
}

/** Ask again as soon as the last answer came, for as long as the camera is on. */
async function askLive() {
  while (camera.isOn) {
    const began = performance.now();
    const photo = await camera.picture();
    const answer = photo && (await tried(byId("ask-error"), () => ask(photo)));
    if (!camera.isOn) return;
    if (answer) show({ photo, url: null, answer });
    const pause = answer ? PAUSE : 2000;
    await new Promise((resolve) => setTimeout(resolve, Math.max(0, began + pause - performance.now())));
  }
}

function forgetAnswers() {
  for (const { url } of answers.splice(0)) URL.revokeObjectURL(url);
  current = shown.answered = null;
  byId("asked").hidden = true;
  byId("ask-drop").classList.remove("full");
  byId("ask-error").textContent = "";
  camera.close();
}

/** Start the part of the page that asks. */
export function startAsk(whenChanged, open, teach) {
  let asked = null;
  [openClass, teachPhoto, speak] = [open, teach, speaker(byId("said"))];
  camera = new Camera(byId("ask-video"), byId("ask-camera"), byId("ask-error"), "cameraLive", (isOn) => {
    byId("ask-drop").classList.toggle("full", isOn || !byId("asked").hidden);
    if (isOn) {
      byId("asked").hidden = true;
      askLive();
    }
  });
  byId("ask-choose").addEventListener("click", () => byId("ask-files").click());
  byId("ask-files").addEventListener("change", ({ target }) => {
    askFiles(chosenFiles(target));
    target.value = "";
  });
  whenChanged((model) => {
    if (asked !== model.name) forgetAnswers();
    asked = model.name;
    for (const id of ["ask-choose", "ask-camera"]) byId(id).disabled = !isLearnt();
    byId("ask-drop").querySelector(".invitation").textContent = say(isLearnt() ? "askHint" : "askNothing");
    if (current && !current.answer.classes.every(({ name }) => classNamed(name))) current = shown.answered = null; // undone or forgotten
    paintAnswer();
    paintBefore();
  });
}
