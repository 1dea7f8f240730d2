// The model that the page shows, its job, and the class that is pointed at. Every part of the page listens here.

import { address, call } from "./api.js";

export const shown = { name: null, model: null, job: null, answered: null, pointed: null };
const painters = [], progressPainters = [];

/** Have a part of the page drawn anew whenever the model, the job's state or the language changes. */
export const whenChanged = (paint) => painters.push(paint);

/** Have a part drawn anew whenever the job is further, too, which is several times a second. */
export const whenProgress = (paint) => progressPainters.push(paint);

export function paintProgress() {
  if (shown.model) for (const paint of progressPainters) paint(shown.model, shown.job);
}

export function paintAll() {
  paintProgress();
  if (shown.model) for (const paint of painters) paint(shown.model, shown.job);
}

export const isLearning = (job = shown.job) => ["queued", "running"].includes(job?.state);
export const isLearnt = () => Boolean(shown.model?.version);
export const classNamed = (name) => shown.model?.classes.find((c) => c.name === name);
export const here = (rest, query) => address(shown.name, rest, query);

/** Show what the server says the model is now. */
export function take(model) {
  if (model.name !== shown.name) return; // another model was picked meanwhile
  shown.model = model;
  paintAll();
}

export async function reload() {
  take(await call("GET", here()));
}

/** The newest accuracy of a class, if it was ever measured. */
export const latest = (known) => known.course.at(-1);

/** Light up a class wherever it is on the page; without one, the class of the last answer. */
export function pointAt(name) {
  const lit = name ?? shown.answered;
  shown.pointed = lit;
  for (const marked of document.querySelectorAll("#rings [data-class], #class-list [data-class]")) {
    marked.classList.toggle("lit", marked.dataset.class === lit);
  }
  document.dispatchEvent(new Event("pointed"));
}
