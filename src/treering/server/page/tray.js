// Teaches: takes photos into the tray on the server, shows what waits there, and starts the learning.

import { call } from "./api.js";
import { Camera } from "./camera.js";
import { chosenFiles, mayBePhoto } from "./files.js";
import { classNamed, here, isLearning, isLearnt, shown } from "./model.js";
import { byId, button, confirmed, keep, node, speaker, tried } from "./nodes.js";
import { classes, photos, say } from "./words.js";

const AT_ONCE = 4; // uploads, so that other requests of the page get through
const SHOWN = 10; // photos of a class before "more"
const BURST = 200; // milliseconds between two pictures
const lanes = Array(AT_ONCE).fill(Promise.resolve()); // each the end of the last upload that goes there
const opened = new Set(); // classes whose photos are all shown
let onTheWay = new Map(); // class: uploads that have not been answered
let refused = []; // {class, name, error}
let held = []; // files that wait for the name of their class
let camera;

const typed = () => byId("class-name").value.trim().normalize("NFC");

/** Whether a class is being taught just now: then photos from outside a target belong here. */
export const isTeaching = () => Boolean(typed()) || byId("teach").contains(document.activeElement) || !isLearnt();

/** Take files into the tray. A folder names its class, unless all lie in one folder and a name is typed. */
export function teachFiles(files) {
  const folders = new Set(files.map(({ folder }) => folder));
  for (const { file, folder } of files) {
    const name = folders.size === 1 && typed() ? typed() : (folder ?? typed());
    if (name) send(file, name);
    else held.push(file);
  }
  if (held.length) byId("class-name").focus();
  paint();
}

function releaseHeld() {
  if (!typed() || !held.length) return;
  for (const file of held.splice(0)) send(file, typed());
  paint();
}

/** Send a photo after those before it. */
function upload(target, file) {
  const answer = lanes.shift().then(() => call("POST", target, file));
  lanes.push(answer.catch(() => {}));
  return answer;
}

async function send(file, name) {
  const model = shown.name, target = here("/tray", { class: name });
  const refuse = (error) => refused.unshift({ class: name, name: file.name ?? say("camera"), error });
  if (!mayBePhoto(file)) return refuse(say("notPhoto"));
  onTheWay.set(name, (onTheWay.get(name) ?? 0) + 1);
  let answer = null, reason = null;
  try {
    answer = await upload(target, file);
  } catch (error) {
    reason = error.message;
  }
  if (model !== shown.name) return;
  if (reason) refuse(reason);
  if (onTheWay.get(name) > 1) onTheWay.set(name, onTheWay.get(name) - 1);
  else onTheWay.delete(name);
  if (answer) put(answer);
  paint();
  // Answers overtake each other, so the tray itself is asked for when all are in.
  if (!onTheWay.size) takeTray(await tried(byId("teach-error"), () => call("GET", here("/tray"))));
}

/** Add photos to the tray as it is shown. */
function put({ added, room }) {
  const { tray } = shown.model;
  for (const { id, url, class: name } of added) {
    let place = tray.classes.find((c) => c.name === name);
    if (!place) tray.classes.push((place = { name, known: Boolean(classNamed(name)), photos: [] }));
    if (!place.photos.some((photo) => photo.id === id)) place.photos.push({ id, url });
  }
  tray.photos = tray.classes.reduce((sum, c) => sum + c.photos.length, 0);
  tray.room = room;
}

function takeTray(tray) {
  if (!tray || onTheWay.size) return;
  shown.model.tray = tray;
  paint();
}

const remove = async (rest, query) => takeTray(await tried(byId("teach-error"), () => call("DELETE", here("/tray" + rest, query))));

async function removePhoto(name, at, id) {
  await remove(`/${encodeURIComponent(id)}`);
  const left = [...byId("tray").querySelectorAll("section")].find((c) => c.dataset.class === name);
  (left?.querySelectorAll("li .remove")[at] ?? left?.querySelector("button") ?? byId("class-name")).focus();
}

function drawPhoto({ id, url, name, at }) {
  return node("li", {}, node("img", { src: url, alt: "", loading: "lazy" }),
    button("×", () => removePhoto(name, at, id), { class: "remove", "aria-label": say("waitingPhoto", { n: at + 1, name }) }));
}

/** A class in the tray; as photos come, it is renewed in place. */
function drawClass({ name, known }) {
  const count = node("p", { class: "count" }), thumbs = node("ul", { class: "photos" }), reasons = node("ul", { class: "reasons" });
  const discard = button("×", () => remove("", { class: name }), { class: "remove", "aria-label": say("removeClass", { name }) });
  const more = button("", () => { opened.add(name); paint(); }, { class: "quiet" });
  const dismiss = button(say("dismiss"), () => { refused = refused.filter((r) => r.class !== name); paint(); }, { class: "quiet" });
  const section = node("section", { "data-class": name },
    node("h3", {}, name, node("span", { class: "badge" }, say(known ? "isKnown" : "isNew"))),
    discard, count, thumbs, more, reasons, dismiss);
  section.renew = ({ photos: waiting }) => {
    const coming = onTheWay.get(name) ?? 0, wrong = refused.filter((r) => r.class === name);
    const visible = opened.has(name) ? waiting : waiting.slice(0, SHOWN);
    count.textContent = photos(waiting.length) + (coming ? ` · ${say("uploading", { n: coming })}` : "");
    discard.hidden = coming > 0 || !waiting.length;
    keep(thumbs, visible.map((photo, at) => ({ ...photo, name, at })), drawPhoto);
    more.hidden = visible.length === waiting.length;
    more.textContent = say("more", { n: waiting.length - visible.length });
    keep(reasons, wrong.slice(0, 20), (r) => node("li", {}, node("b", {}, r.name), ` ${r.error}`));
    dismiss.hidden = !wrong.length;
  };
  return section;
}

function paintTray(tray) {
  const names = new Set([...tray.classes.map((c) => c.name), ...onTheWay.keys(), ...refused.map((r) => r.class)]);
  const waiting = (name) => tray.classes.find((c) => c.name === name);
  const entries = [...names].map((name) => waiting(name) ?? { name, known: Boolean(classNamed(name)), photos: [] });
  keep(byId("tray"), entries, drawClass, ({ name, known }) => JSON.stringify([name, known]));
}

/** Why learning cannot begin, or what would be learnt. */
function paintLearn(tray) {
  const fresh = tray.classes.length < 2 && !isLearnt();
  const reason = isLearning() ? "learnBusy" : onTheWay.size ? "learnUploading"
    : !tray.photos ? "learnEmpty" : fresh ? "learnTwo" : null;
  byId("learn").disabled = reason !== null;
  const content = { classes: classes(tray.classes.length), photos: photos(tray.photos), room: tray.room };
  const state = tray.photos ? say("trayState", content) : "";
  byId("learn-hint").textContent = reason ? `${say(reason)} ${state}` : state;
  byId("clear-tray").hidden = !tray.photos;
}

function paintHint() {
  const name = typed();
  const known = classNamed(name);
  byId("class-hint").textContent = held.length ? say("nameFirst", { photos: photos(held.length) })
    : known ? say("classKnown", { name, photos: photos(known.photos) }) : say(name ? "classNew" : "classHint", { name });
  byId("class-hint").classList.toggle("urgent", held.length > 0);
}

function paint() {
  paintTray(shown.model.tray);
  paintLearn(shown.model.tray);
  paintHint();
}

/** Let a button take pictures for as long as it is held, by pointer or by key. */
function startShutter(speak) {
  const shutter = byId("shutter");
  let pressed = false, taken = 0;
  const release = () => {
    if (pressed && taken) speak(say("taken", { photos: photos(taken), name: typed() }));
    pressed = false;
  };
  const press = async () => {
    if (pressed) return;
    if (!typed()) return byId("class-name").focus();
    pressed = true;
    taken = 0;
    do {
      if ((onTheWay.get(typed()) ?? 0) < 3 * AT_ONCE) { // a slow server is not flooded
        const picture = await camera.picture();
        if (picture) {
          send(picture, typed());
          taken += 1;
          paint();
        }
      }
      await new Promise((resolve) => setTimeout(resolve, BURST));
    } while (pressed && camera.isOn);
    pressed = false;
  };
  const isKey = (event) => event.key === " " || event.key === "Enter";
  shutter.addEventListener("pointerdown", (event) => {
    shutter.setPointerCapture(event.pointerId);
    press();
  });
  for (const end of ["pointerup", "pointercancel", "blur"]) shutter.addEventListener(end, release);
  shutter.addEventListener("keydown", (event) => {
    if (!isKey(event)) return;
    event.preventDefault();
    press();
  });
  shutter.addEventListener("keyup", (event) => isKey(event) && release());
  shutter.addEventListener("contextmenu", (event) => event.preventDefault()); // a long touch would open the menu
}

/** Let more photos be taught to a class, or held photos be named. */
export function teachClass(name, photo = null) {
  if (photo) held.push(photo);
  byId("class-name").value = name;
  byId("class-name").focus();
  releaseHeld();
  paint();
}

/** Start the part of the page that teaches; `started` gets the job that learns the tray. */
export function startTray(whenChanged, started) {
  camera = new Camera(byId("teach-video"), byId("teach-camera"), byId("teach-error"), "camera", (isOn) => {
    byId("teach-drop").classList.toggle("full", isOn);
    byId("shutter").hidden = !isOn;
  });
  startShutter(speaker(byId("said"), 2));
  for (const [opener, input] of [["teach-choose", "teach-files"], ["teach-folder", "teach-folders"]]) {
    byId(opener).addEventListener("click", () => byId(input).click());
    byId(input).addEventListener("change", ({ target }) => {
      teachFiles(chosenFiles(target));
      target.value = "";
    });
  }
  byId("class-name").addEventListener("input", paintHint);
  byId("class-name").addEventListener("change", releaseHeld);
  byId("learn").addEventListener("click", () => tried(byId("teach-error"), async () => {
    byId("learn").disabled = true;
    const job = await call("POST", here("/jobs"), { effort: byId("effort").value }).finally(() => paintLearn(shown.model.tray));
    byId("class-name").value = "";
    takeTray(await call("GET", here("/tray")));
    started(job);
    byId("job").scrollIntoView({ block: "nearest" });
  }));
  byId("clear-tray").addEventListener("click", async () => {
    const detail = say("clearTrayDetail", { photos: photos(shown.model.tray.photos) });
    if (await confirmed(say("clearTrayAsk"), detail, say("clearTray"))) await remove("", {});
  });
  let taught = null;
  whenChanged((model) => {
    if (taught !== model.name) [onTheWay, refused, held] = [new Map(), [], []];
    taught = model.name;
    paint();
    keep(byId("known-classes"), model.classes.map((c) => c.name), (name) => node("option", { value: name }));
  });
}
