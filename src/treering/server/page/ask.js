// Asks the model what a photo shows, or what the camera sees, and shows the answer.

import { call } from "./api.js";
import { Camera } from "./camera.js";
import { chosenFiles, mayBePhoto } from "./files.js";
import { classNamed, here, isLearnt, pointAt, shown } from "./model.js";
import { byId, keep, node, speaker, tried } from "./nodes.js";
import { number, percent, say } from "./words.js";

const PAUSE = 250; // milliseconds at least between two questions of the camera
const KEPT = 8; // answers that can be looked at again
const NEAREST = 3; // they cost the server a second pass, so the camera asks for none
const answers = [];
let current = null;
let openClass, camera, speak;

/** Ask for one photo, and for so many kept photos that are like it. */
const ask = async (photo, nearest) => (await call("POST", here("/predict", { nearest }), photo)).predictions[0];

/** Ask for files one after the other; the last answer is shown, and the others are at hand below it. */
export async function askFiles(files) {
  if (camera.isOn) current = null; // these are asked instead of the camera's last picture
  camera.close();
  await tried(byId("ask-error"), async () => {
    const refused = [];
    if (!isLearnt()) throw new Error(say("askNothing"));
    byId("ask").classList.add("thinking");
    for (const { file } of files) {
      const asked = { photo: file, url: URL.createObjectURL(file), answer: null };
      preview(asked.url);
      try {
        if (!mayBePhoto(file)) throw new Error(say("notPhoto"));
        asked.answer = await ask(file, NEAREST);
        answers.unshift(asked);
        for (const old of answers.splice(KEPT)) URL.revokeObjectURL(old.url);
        show(asked);
      } catch (error) {
        refused.push(files.length > 1 ? `${file.name}: ${error.message}` : error.message);
        current = null;
        paint();
      }
    }
    byId("ask").classList.remove("thinking");
    if (refused.length) throw new Error(refused.join(" "));
  });
}

function preview(url) {
  byId("asked").src = url;
  byId("asked").hidden = false;
  byId("ask-drop").classList.add("full");
}

function show(asked) {
  current = asked;
  if (asked.url) preview(asked.url);
  paint();
}

/** A bar of the answer; the live camera renews it in place. */
function drawBar() {
  const name = node("button", { type: "button", class: "plain", onmouseleave: () => pointAt(null) });
  const share = node("span", { class: "share" }), bar = node("span", { class: "bar" });
  const item = node("li", {}, name, share, node("span", { class: "track" }, bar));
  name.addEventListener("click", () => openClass(item.dataset.class));
  name.addEventListener("mouseenter", () => pointAt(item.dataset.class));
  item.renew = (guess) => {
    item.dataset.class = name.textContent = guess.name;
    share.textContent = percent(guess.probability);
    bar.style.width = `${100 * guess.probability}%`;
  };
  return item;
}

function drawNear() {
  const image = node("img"), caption = node("figcaption", { "aria-hidden": "true" });
  const figure = node("figure", {}, image, caption);
  figure.renew = (near) => {
    image.src = near.exemplar;
    image.alt = say("likeness", { name: near.class, n: number(near.likeness, 2) });
    caption.textContent = near.class;
  };
  return figure;
}

const drawAsked = ({ asked }) => node("button", { type: "button", class: "plain", onclick: () => show(asked),
  "aria-label": asked.answer.unknown ? say("isUnknown") : asked.answer.classes[0].name }, node("img", { src: asked.url, alt: "" }));

function paint() {
  byId("answer").hidden = !current;
  byId("asked-before").hidden = answers.length < 2;
  keep(byId("asked-strip"), answers.map((asked) => ({ url: asked.url, asked })), drawAsked, ({ url }) => url);
  [...byId("asked-strip").children].forEach((choice, at) => choice.setAttribute("aria-pressed", answers[at] === current));
  if (!current) return;
  const { classes, unknown, nearest } = current.answer;
  const best = { name: classes[0].name, percent: percent(classes[0].probability) };
  byId("answer").classList.toggle("is-unknown", Boolean(unknown));
  byId("verdict").textContent = unknown ? say("isUnknown") : best.name;
  byId("unknown").hidden = !unknown;
  byId("unknown").textContent = unknown ? say("mostLike", best) : "";
  const numbered = (items) => items.map((item, at) => ({ ...item, at }));
  keep(byId("answer-bars"), numbered(classes), drawBar, ({ at }) => at);
  keep(byId("nearest"), numbered(nearest ?? []), drawNear, ({ at }) => at);
  byId("nearest-title").hidden = !nearest?.length;
  const answered = unknown ? null : best.name;
  if (shown.answered !== answered) {
    shown.answered = answered;
    pointAt(null);
  }
  speak(unknown ? `${say("isUnknown")}. ${say("mostLike", best)}` : `${best.name}, ${best.percent}`);
}

/** Ask again as soon as the last answer came, for as long as the camera is on. */
async function askLive() {
  while (camera.isOn) {
    const began = performance.now();
    const photo = await camera.picture();
    const answer = photo && (await tried(byId("ask-error"), () => ask(photo, 0)));
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
  [openClass, speak] = [open, speaker(byId("said"))];
  camera = new Camera(byId("ask-video"), byId("ask-camera"), byId("ask-error"), "cameraLive", (isOn) => {
    byId("ask-drop").classList.toggle("full", isOn || !byId("asked").hidden);
    if (isOn) {
      byId("asked").hidden = true;
      askLive();
    } else if (current && !current.url) {
      const { photo } = current;
      current = null;
      askFiles([{ file: photo }]); // the last picture stays to be looked at, now with the photos nearest to it
    }
  });
  byId("teach-this").addEventListener("click", () => teach(current.photo));
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
    paint();
  });
}
