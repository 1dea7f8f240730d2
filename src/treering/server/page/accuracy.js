// Draws accuracies with their intervals, always with the same in words.

import { node } from "./nodes.js";
import { say, score } from "./words.js";

/** A dot in its interval on a line from 0 to 100 %. */
export function drawInterval(measured) {
  const range = node("span", { class: "range" }), dot = node("span", { class: "dot" });
  range.style.left = `${measured.low}%`;
  range.style.width = `${measured.high - measured.low}%`;
  dot.style.left = `${measured.percent}%`;
  return node("span", { class: "interval", "aria-hidden": "true" }, range, dot);
}

/** The accuracies of a step: all, new and old classes, and the old ones before it. */
export function drawScores(scores) {
  const rows = ["all", "new", "old"].filter((key) => scores[key]);
  if (!rows.length) return node("p", { class: "hint" }, say("noScore"));
  return node("dl", { class: "scores" }, ...rows.map((key) => node("div", {}, node("dt", {}, say(key)), node("dd", {},
    score(scores[key]), drawInterval(scores[key]),
    key === "old" && scores.old_before && node("span", { class: "before" }, say("oldBefore", { score: score(scores.old_before) }))))));
}
