// Draws accuracies with their intervals, always with the same in words.

import { node } from "./nodes.js";
import { say, score } from "./words.js";

/** The 95 % interval after Wilson, which treering uses too, for counts that come without one. */
export function withInterval({ right, images }) {
  const z = 1.96, p = right / images, scale = 1 + z ** 2 / images;
  const middle = (p + z ** 2 / (2 * images)) / scale;
  const half = (z / scale) * Math.sqrt((p * (1 - p)) / images + z ** 2 / (4 * images ** 2));
  return { right, images, percent: 100 * p, low: 100 * Math.max(0, middle - half), high: 100 * Math.min(1, middle + half) };
}

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
