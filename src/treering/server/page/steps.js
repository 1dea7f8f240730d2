// Shows what each step brought and cost, and takes the last one back.

import { drawScores } from "./accuracy.js";
import { call } from "./api.js";
import { dismissJob } from "./job.js";
import { here, isLearning, shown, take } from "./model.js";
import { byId, confirmed, keep, node, tried } from "./nodes.js";
import { classes, day, list, photos, say } from "./words.js";

const MANY = 8; // names of new classes that are written out

function drawStep(step) {
  const names = step.new_classes.slice(0, MANY), more = step.new_classes.length - names.length;
  return node("li", { "data-step": step.step },
    node("h3", {}, say("step", { n: step.step }), node("span", { class: "facts" }, `${day(step.time)} · ${photos(step.images)}`)),
    node("p", {}, names.length ? list(more ? [...names, say("more", { n: more })] : names) : say("noNew")),
    drawScores(step));
}

async function undo({ steps, classes: known }) {
  const last = steps.at(-1);
  const gone = known.filter((c) => c.step === last.step).map((c) => c.name);
  const detail = say("undoDetail", { before: steps.at(-2)?.step ?? 0, classes: classes(known.length - gone.length) });
  const loss = gone.length ? say("undoGone", { names: list(gone) }) : "";
  if (!(await confirmed(say("undoAsk", { n: last.step }), `${detail} ${loss}`, say("undo")))) return;
  byId("undo").disabled = true;
  byId("undo-hint").textContent = say("changing");
  const changed = await tried(byId("undo-error"), () => call("POST", here("/undo")));
  if (!changed) return paint(shown.model);
  dismissJob(); // what it brought is gone
  take(changed);
  (byId("undo").disabled ? byId("class-name") : byId("undo")).focus();
}

function paint(model) {
  const reason = isLearning() ? say("busy") : model.undo === 0 ? say("undoNone") : null;
  keep(byId("step-list"), [...model.steps].reverse(), drawStep);
  byId("steps").hidden = !model.steps.length;
  byId("undo").disabled = reason !== null;
  byId("undo-hint").textContent = reason ?? say("undoHint", { n: model.steps.at(-2)?.step ?? 0 });
}

/** Start the list of steps. */
export function startSteps(whenChanged) {
  byId("undo").addEventListener("click", () => undo(shown.model));
  whenChanged(paint);
}
