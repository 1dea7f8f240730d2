// Follows a job by server-sent events, shows how far it is, and at the end what it brought and cost.

import { drawScores } from "./accuracy.js";
import { call, connectionLost } from "./api.js";
import { classNamed, here, isLearning, paintAll, paintProgress, shown, take } from "./model.js";
import { byId, button, node, speaker, tried } from "./nodes.js";
import { duration, list, number, say, score } from "./words.js";

const SEEN = "treering-seen-job"; // the ended job whose result was dismissed in this tab
let source = null;
let turn = Promise.resolve();
let speak;

/** Follow a job to its end. */
export function follow(job) {
  source?.close();
  show(job);
  if (!isLearning(job)) return;
  source = new EventSource(`/api/jobs/${encodeURIComponent(job.id)}/events`);
  source.onmessage = ({ data }) => show(JSON.parse(data));
  source.onerror = () => connectionLost(); // once the server is back, the page looks for the job again
}

/** Stop following, for another model is shown. */
export function unfollow() {
  source?.close();
  shown.job = null;
}

/** Show what is told of a job, one thing after the other. */
function show(job) {
  if (!isLearning(job)) source?.close();
  turn = turn.then(() => showNext(job)).catch(reportError); // one that fails must not keep the next from being shown
  return turn;
}

async function showNext(job) {
  const before = shown.job?.id === job.id ? shown.job : null;
  const isSame = before && before.state === job.state && Boolean(before.solved) === Boolean(job.solved);
  // The model may know the new classes now; it is fetched first, so that what the page says of the job holds.
  const model = before && !isSame ? await tried(byId("trouble"), () => call("GET", here())) : null;
  if (job.model !== shown.name) return;
  shown.job = job;
  if (isSame) paintProgress();
  else if (model) take(model);
  else paintAll();
}

/** Show the newest job of the model that is shown: one that runs, or the result of one that ended. */
export async function findJob(model) {
  if (model.job) return follow(model.job);
  const { jobs } = await call("GET", "/api/jobs");
  const newest = jobs.find((job) => job.model === model.name);
  const isUndone = newest?.state === "done" && !Object.keys(newest.classes).every(classNamed);
  if (newest && !isUndone && newest.id !== sessionStorage.getItem(SEEN)) follow(newest);
}

/** Put the result of an ended job away. */
export function dismissJob() {
  if (!shown.job || isLearning()) return;
  sessionStorage.setItem(SEEN, shown.job.id);
  shown.job = null;
  paintAll();
}

function factsOf(job) {
  return [
    job.ahead > 0 && say("ahead", { n: job.ahead }),
    job.epoch && job.epochs && say("epoch", { n: job.epoch, epochs: job.epochs }),
    job.rate && say("rate", { n: Math.round(job.rate) }),
    job.seconds_left != null && say("timeLeft", { time: duration(job.seconds_left) }),
  ].filter(Boolean).join(" · ") || list(Object.keys(job.classes));
}

const drawWarnings = (warnings) => node("ul", { lang: "en" }, ...warnings.map((text) => node("li", {}, text)));

/** The panel of a job that runs; its texts are renewed in place, so that its button can be pressed at any moment. */
function drawRunning(place, id) {
  const title = node("h3"), bar = node("progress"), facts = node("p", { class: "facts" });
  const solved = node("p", { class: "good" }), warned = node("div"), parts = [title, bar, facts, solved, warned];
  const trouble = node("p", { class: "error", role: "alert" });
  const cancel = () => tried(trouble, async () => show(await call("DELETE", `/api/jobs/${encodeURIComponent(id)}`)));
  const watched = node("div", { class: "running", "aria-live": "off" }, ...parts); // it is spoken in `said`, less often
  place.replaceChildren(watched, button(say("cancel"), cancel, { id: "cancel" }), trouble);
  return (job) => {
    title.textContent = say(job.state === "queued" ? "waiting" : job.stage);
    bar.setAttribute("aria-label", title.textContent);
    if (job.total) [bar.max, bar.value] = [job.total, job.done];
    else bar.removeAttribute("value");
    facts.textContent = factsOf(job);
    solved.textContent = job.solved ? say("solved", { score: score(job.solved) }) : "";
    if (job.warnings.length) warned.replaceChildren(drawWarnings(job.warnings));
    speak(`${title.textContent} ${job.total ? number((100 * job.done) / job.total) + " %" : ""}. ${solved.textContent}`);
  };
}

function drawEnded(place, job) {
  const result = job.result ?? { lost: [], confused: [], needy: [] };
  const title = job.state === "done" && job.result
    ? say("done", { time: duration(result.seconds), classes: list(Object.keys(job.classes)) }) : say(job.state);
  const note = (text, attributes) => node("li", attributes, text);
  const notes = [
    ...result.lost.map(({ class: name, before, after }) =>
      note(say("lostClass", { name, before: score(before), after: score(after) }), { "data-lost": name })),
    ...result.confused.map(({ first, second, times }) => note(say("confused", { first, second, n: times }))),
    ...result.needy.map((needy) => note(say("needy", { name: needy.class, n: needy.photos }))),
    result.trained && note(say(result.trained)),
  ].filter(Boolean);
  place.replaceChildren(...[
    node("h3", {}, title),
    job.error && node("p", { class: "error", lang: "en" }, job.error),
    job.result && drawScores(result),
    notes.length > 0 && node("ul", {}, ...notes),
    job.warnings.length > 0 && drawWarnings(job.warnings),
    button(say("dismiss"), () => {
      dismissJob();
      byId("class-name").focus();
    }, { class: "quiet", id: "dismiss" }),
  ].filter(Boolean));
}

let renew = null;
let drawnFrom = null;

function paint(model, job) {
  const place = byId("job");
  place.hidden = !job;
  place.dataset.state = job?.state ?? "none";
  place.dataset.stage = job?.stage ?? "ended";
  const from = [document.documentElement.lang, job?.id, isLearning()].join();
  if (from !== drawnFrom) {
    const hadFocus = place.contains(document.activeElement);
    renew = null;
    if (!job) place.replaceChildren();
    else if (isLearning()) renew = drawRunning(place, job.id);
    else drawEnded(place, job);
    drawnFrom = from;
    if (hadFocus) place.querySelector("button")?.focus();
  }
  renew?.(job);
}

/** Start the part of the page that shows jobs. */
export function startJob(whenProgress) {
  speak = speaker(byId("said"), 8);
  whenProgress(paint);
}
