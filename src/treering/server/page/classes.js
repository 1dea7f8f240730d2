// Shows the classes with their photos, and one class in full: how it did, and renaming, merging or forgetting it.

import { drawInterval } from "./accuracy.js";
import { call } from "./api.js";
import { classNamed, here, isLearning, latest, pointAt, shown, take } from "./model.js";
import { byId, button, confirmed, drawn, keep, node, tried } from "./nodes.js";
import { photos, say, score } from "./words.js";

const THUMBS = 4; // exemplars on a card
let opened = null; // the name of the class whose dialog is open
let teachMore;

const accuracy = (known) => (latest(known)?.percent ?? 101);
const ORDERS = {
  step: (a, b) => b.step - a.step || a.name.localeCompare(b.name),
  name: (a, b) => a.name.localeCompare(b.name),
  weak: (a, b) => accuracy(a) - accuracy(b),
};

/** An exemplar; without a number it is an ornament beside its class's name. */
const exemplar = (url, name, n) =>
  node("img", { src: url, alt: n ? say("exemplar", { n, name }) : "", loading: "lazy", decoding: "async" });

function drawCard(known) {
  const last = latest(known);
  const [first, ...others] = known.exemplars.slice(0, THUMBS);
  return node("li", { "data-class": known.name, "data-step": known.step },
    node("button", {
      type: "button", class: "plain", onclick: () => openClass(known.name),
      onmouseenter: () => pointAt(known.name), onmouseleave: () => pointAt(null),
      onfocus: () => pointAt(known.name), onblur: () => pointAt(null),
    },
    node("span", { class: "print" }, first && exemplar(first),
      node("span", { class: "others" }, ...others.map((url) => exemplar(url)))),
    node("span", { class: "name" }, known.name),
    node("span", { class: "facts" }, say("step", { n: known.step }), " · ", photos(known.photos)),
    known.lost && node("span", { class: "badge lost", "data-lost": known.name }, say("lost")),
    last && drawInterval(last),
    last && node("span", { class: "facts" }, score(last))));
}

function paintCards(model) {
  const sought = byId("filter").value.trim().toLocaleLowerCase();
  const found = model.classes.filter((c) => c.name.toLocaleLowerCase().includes(sought)).sort(ORDERS[byId("order").value]);
  keep(byId("class-list"), found, drawCard);
  byId("classes").classList.toggle("many", model.classes.length > 40);
  byId("classes").hidden = !model.classes.length;
  byId("no-classes").textContent = found.length ? "" : say("noneFound");
  pointAt(shown.pointed);
}

/** The accuracy by step as a curve in its band of intervals. */
function drawCourse(points) {
  const width = 300;
  const x = (i) => 45 + ((width - 30) * i) / (points.length - 1), y = (p) => 110 - p;
  const path = (values) => values.map(([i, p]) => `${x(i)} ${y(p)}`).join("L");
  const each = (key) => points.map((p, i) => [i, p[key]]);
  return drawn("svg", { class: "course", viewBox: `0 0 ${width + 40} 132`, "aria-hidden": "true" },
    ...[0, 50, 100].flatMap((p) => [
      drawn("path", { class: "rule", d: `M26 ${y(p)}H${width + 30}` }),
      drawn("text", { x: 0, y: y(p) + 4 }, String(p))]),
    drawn("path", { class: "range", d: `M${path(each("low"))}L${path(each("high").reverse())}Z` }),
    drawn("path", { class: "curve", d: `M${path(each("percent"))}` }),
    ...points.flatMap((p, i) => [
      drawn("path", { class: "whisker", d: `M${x(i)} ${y(p.low)}V${y(p.high)}` }),
      drawn("circle", { cx: x(i), cy: y(p.percent), r: 3.5 }),
      drawn("text", { x: x(i), y: 129, class: "step" }, String(p.step))]));
}

function drawAccuracy(known) {
  const points = known.course;
  if (!points.length) return [node("p", { class: "hint" }, say("noCourse"))];
  return [
    points.length > 1 ? drawCourse(points) : drawInterval(points[0]),
    node("ul", { class: "by-step" }, ...points.map((p) => node("li", {}, node("b", {}, say("step", { n: p.step })), ` ${score(p)}`))),
    known.lost
      ? node("p", { class: "error" }, say("itLost", { before: score(known.lost.before), after: score(known.lost.after) }))
      : node("p", { class: "good" }, say("notLost")),
  ];
}

/** Change the model; the server's answer is the model as it is now. */
async function change(path, body, openAfter) {
  const dialog = byId("class"), fields = dialog.querySelector("fieldset"), focused = document.activeElement.id;
  fields.disabled = true; // rewriting every version takes seconds
  fields.querySelector("legend").textContent = say("changing");
  const changed = await tried(byId("class-error"), () => call("POST", here(path), body));
  fields.disabled = isLearning();
  fields.querySelector("legend").textContent = say("change");
  if (changed) {
    opened = openAfter;
    if (!opened) dialog.close();
    take(changed);
  }
  if (dialog.open) (byId(focused) ?? byId("close")).focus();
}

async function merge(gone) {
  const kept = byId("merge-into").value;
  const agreed = await confirmed(say("mergeAsk", { gone, kept }), say("mergeDetail", { gone, kept }), say("merge"));
  if (agreed) await change("/merge", { kept, gone }, kept);
}

async function forget(name) {
  const agreed = await confirmed(say("forgetAsk", { name }), say("forgetDetail"), say("forget"));
  if (agreed) await change("/forget", { classes: [name] }, null);
}

function drawChanges({ name }) {
  const others = shown.model.classes.map((c) => c.name).filter((other) => other !== name).sort((a, b) => a.localeCompare(b));
  const rename = (event) => {
    event.preventDefault();
    const fresh = byId("new-name").value.trim();
    change("/rename", { old: name, new: fresh }, fresh);
  };
  return node("fieldset", { disabled: isLearning() },
    node("legend", {}, say("change")),
    isLearning() && node("p", { class: "hint" }, say("busy")),
    node("form", { onsubmit: rename },
      node("label", { for: "new-name" }, say("newName")),
      node("input", { id: "new-name", value: name, maxlength: 100, required: true, autocomplete: "off" }),
      node("button", { id: "rename" }, say("rename"))),
    others.length > 0 && node("div", { class: "row" },
      node("label", { for: "merge-into" }, say("mergeInto")),
      node("select", { id: "merge-into" }, ...others.map((other) => node("option", { value: other }, other))),
      button(say("merge"), () => merge(name), { id: "merge" })),
    node("div", { class: "row" }, button(say("forget"), () => forget(name), { id: "forget", class: "danger" })),
    node("p", { id: "class-error", class: "error", role: "alert" }));
}

function paintClass() {
  const dialog = byId("class");
  const known = classNamed(opened);
  if (!opened || !dialog.open) return;
  if (!known) return dialog.close(); // it was undone or forgotten elsewhere
  const { name, step, kept, photos: count } = known;
  const from = document.documentElement.lang + JSON.stringify(known) + isLearning() + shown.model.version;
  if (dialog.madeFrom === from) return;
  const focused = dialog.contains(document.activeElement) && document.activeElement.id;
  dialog.madeFrom = from;
  dialog.dataset.class = name;
  dialog.replaceChildren(
    node("header", {}, node("h2", { id: "class-title" }, name),
      button("×", () => dialog.close(), { class: "plain close", id: "close", "aria-label": say("close") })),
    node("p", { class: "facts" }, say("classFacts", { step, photos: photos(count), kept })),
    node("div", { class: "exemplars", role: "group", "aria-label": say("exemplars") },
      ...known.exemplars.map((url, at) => exemplar(url, name, at + 1))),
    node("h3", {}, say("course")), ...drawAccuracy(known),
    node("p", {}, button(say("teachMore"), () => { dialog.close(); teachMore(name); }, { class: "leaf" })),
    drawChanges(known));
  if (focused) (byId(focused) ?? byId("close")).focus();
}

/** Show one class in full; closing it leads back to where it was opened. */
export function openClass(name) {
  const dialog = byId("class");
  if (!classNamed(name)) return;
  opened = name;
  dialog.madeFrom = null;
  if (!dialog.open) dialog.showModal();
  paintClass();
  byId("close").focus();
}

/** Start the classes; `teach` takes the name of a class that shall get more photos. */
export function startClasses(whenChanged, teach) {
  teachMore = teach;
  const repaint = () => shown.model && paintCards(shown.model);
  byId("filter").addEventListener("input", repaint);
  byId("order").addEventListener("change", repaint);
  const dialog = byId("class");
  dialog.addEventListener("click", (event) => { // a click beside the sheet closes it
    const { left, right, top, bottom } = dialog.getBoundingClientRect();
    const isInside = event.clientX >= left && event.clientX <= right && event.clientY >= top && event.clientY <= bottom;
    if (event.target === dialog && !isInside) dialog.close();
  });
  dialog.addEventListener("close", () => {
    opened = null;
    const focused = document.activeElement;
    if (focused && focused !== document.body && !dialog.contains(focused)) return; // it is back at what opened the sheet
    const card = [...byId("class-list").children].find((one) => one.dataset.class === dialog.dataset.class);
    (card?.querySelector("button") ?? byId("filter")).focus();
  });
  whenChanged((model) => {
    paintCards(model);
    paintClass();
  });
}
