// The entry: starts the parts of the page, picks the model, and leads photos from anywhere on the page to the right part.

import { call, isConnected, onConnection } from "./api.js";
import { askFiles, startAsk } from "./ask.js";
import { openClass, startClasses } from "./classes.js";
import { filesOf } from "./files.js";
import { findJob, follow, startJob, unfollow } from "./job.js";
import { here, isLearning, paintAll, reload, shown, take, whenChanged, whenProgress } from "./model.js";
import { byId, keep, node, tried } from "./nodes.js";
import { startRings } from "./rings.js";
import { startSteps } from "./steps.js";
import { isTeaching, startTray, teachClass, teachFiles } from "./tray.js";
import { say, startLanguage } from "./words.js";

const CHECK = 20000; // milliseconds between two looks whether the model was changed elsewhere
const trouble = byId("trouble");

async function loadModels() {
  const { models, can_add: canAdd } = await call("GET", "/api/models");
  keep(byId("model"), models.map(({ name }) => name), (name) => node("option", { value: name }, name));
  byId("models").hidden = models.length < 2 && !canAdd;
  byId("add-model").hidden = !canAdd;
  byId("model").hidden = models.length === 0;
  return models.map(({ name }) => name);
}

/** Show a model; the address of the page names it, so that a reload and a link come back to it. */
async function showModel(name) {
  unfollow();
  shown.name = name;
  shown.model = null;
  byId("model").value = name;
  history.replaceState(null, "", `#${encodeURIComponent(name)}`);
  await reload();
  document.body.classList.add("ready");
  await findJob(shown.model);
}

async function start() {
  await tried(trouble, async () => {
    const names = await loadModels();
    const wanted = decodeURIComponent(location.hash.slice(1));
    if (names.length) await showModel(names.includes(wanted) ? wanted : names[0]);
    else trouble.textContent = say("noModel");
  });
}

function startModels() {
  const form = byId("model-form"), name = byId("model-name");
  const unfold = (open) => {
    form.hidden = !open;
    byId("add-model").setAttribute("aria-expanded", open);
    (open ? name : byId("add-model")).focus();
  };
  byId("model").addEventListener("change", ({ target }) => tried(trouble, () => showModel(target.value)));
  byId("add-model").addEventListener("click", () => unfold(form.hidden));
  form.addEventListener("keydown", (event) => event.key === "Escape" && unfold(false));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    tried(trouble, async () => {
      const added = await call("POST", "/api/models", { name: name.value.trim() });
      name.value = "";
      unfold(false);
      await loadModels();
      await showModel(added.name);
    });
  });
}

const isIn = (target, part) => Boolean(target.closest?.(part));
const isToTeach = (target) => isIn(target, "#teach") || (!isIn(target, "#ask") && isTeaching());

/** Lead photos to the part of the page that they were dropped on, or else to the one in use. */
async function receive(transfer, target) {
  const files = await filesOf(transfer);
  if (!files.length || !shown.model || document.querySelector("dialog[open]")) return;
  if (isToTeach(target) || (!isIn(target, "#ask") && files.some(({ folder }) => folder))) teachFiles(files);
  else askFiles(files);
}

function startReceiving() {
  const hasFiles = (event) => event.dataTransfer?.types.includes("Files");
  document.addEventListener("dragover", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    const teach = isToTeach(event.target);
    byId("ask-drop").classList.toggle("over", !teach);
    byId("teach-drop").classList.toggle("over", teach);
  });
  const end = () => document.querySelectorAll(".over").forEach((zone) => zone.classList.remove("over"));
  document.addEventListener("dragleave", (event) => !event.relatedTarget && end());
  document.addEventListener("drop", (event) => {
    end();
    if (!hasFiles(event)) return;
    event.preventDefault();
    tried(trouble, () => receive(event.dataTransfer, event.target));
  });
  document.addEventListener("paste", (event) => {
    if (!event.clipboardData.files.length) return; // text goes where the browser puts it
    event.preventDefault();
    tried(trouble, () => receive(event.clipboardData, event.target));
  });
}

function startConnection() {
  onConnection((now) => {
    document.body.dataset.connection = now;
    if (!isConnected()) trouble.textContent = say(now);
    else if (shown.model) tried(trouble, async () => { await reload(); await findJob(shown.model); });
    else start();
  });
  const check = async () => {
    if (document.hidden || !shown.model || (isLearning() && isConnected())) return;
    const now = await call("GET", here()).catch(() => null);
    if (!now || (now.version === shown.model.version && !now.job)) return;
    take(now);
    if (now.job) follow(now.job);
  };
  setInterval(check, CHECK);
  document.addEventListener("visibilitychange", check);
}

startLanguage(paintAll);
startRings(whenProgress, openClass);
startJob(whenProgress);
startAsk(whenChanged, openClass, (photo) => teachClass("", photo));
startTray(whenChanged, follow);
startSteps(whenChanged);
startClasses(whenChanged, teachClass);
startModels();
startReceiving();
startConnection();
start();
