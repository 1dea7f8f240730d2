// Draws the model as a tree's rings: a ring per step, an arc per class, and the ring that grows while a job runs.

import { classNamed, isLearning, isLearnt, latest, pointAt, shown } from "./model.js";
import { byId, drawn, node } from "./nodes.js";
import { bytes, classes, photos, say, score } from "./words.js";

const MIDDLE = 250, PITH = 15, FULL = 222, BARK = 9, THINNEST = 9; // in units of a 500 × 500 picture
const GOLDEN = 2.399963; // radians; turning each ring by the golden angle keeps the seams apart
const LETTER = 6.6, FEWEST = 6; // the mean width of a letter on an arc, and the fewest letters that say something

/** A small generator of numbers in 0..1: the same step always gets the same wobble. */
function numbers(seed) {
  let state = (seed + 1) * 0x9e3779b9;
  return () => {
    state = Math.imul(state ^ (state >>> 15), state | 1);
    state ^= state + Math.imul(state ^ (state >>> 7), state | 61);
    return ((state ^ (state >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** The radius by angle of a ring's outer edge: the whole trunk is a little crooked, and each ring once more. */
function edge(radius, step, rough) {
  const random = numbers(step);
  const waves = [2, 3, 5, 7, 11].map((n) => [n, random() * 2 * Math.PI, rough * (0.4 + random()) / Math.sqrt(n)]);
  return (angle) =>
    radius * (1 + 0.028 * Math.cos(angle - 0.6) + 0.018 * Math.cos(2 * angle + 0.7) + 0.01 * Math.cos(3 * angle + 2)) +
    waves.reduce((sum, [n, phase, height]) => sum + height * Math.cos(n * angle + phase), 0);
}

const between = (inner, outer, share) => (angle) => inner(angle) + (outer(angle) - inner(angle)) * share;

function line(at, from, to) {
  const count = Math.max(2, Math.ceil(Math.abs(to - from) / 0.045));
  return Array.from({ length: count + 1 }, (_, i) => {
    const angle = from + ((to - from) * i) / count;
    return `${(MIDDLE + at(angle) * Math.cos(angle)).toFixed(1)} ${(MIDDLE + at(angle) * Math.sin(angle)).toFixed(1)}`;
  }).join("L");
}

const band = (inner, outer, from, to) => `M${line(outer, from, to)}L${line(inner, to, from)}Z`;
const round = (at) => `M${line(at, 0, 2 * Math.PI)}Z`;

/** The rings from the centre outwards: those of the steps, and the one that a job will add. */
function layout(model, job) {
  const rings = model.steps.map(({ step }) => ({ step, arcs: model.classes.filter((c) => c.step === step) }));
  const last = rings.at(-1);
  const isSaved = job?.solved && model.steps.at(-1)?.new_classes.every((name) => name in job.classes);
  if (isLearning() && isSaved) last.growing = true;
  else if (isLearning()) {
    const fresh = Object.keys(job.classes).filter((name) => !classNamed(name)).length;
    rings.push({ step: (last?.step ?? 0) + 1, arcs: [], count: fresh, growing: true });
  }
  const counts = rings.map((ring) => ring.count ?? ring.arcs.length);
  const outermost = Math.min(FULL, 130 + 32 * rings.length);
  const thinnest = Math.min(THINNEST, (outermost - PITH) / (2 * rings.length));
  const rest = outermost - PITH - thinnest * rings.length;
  const total = counts.reduce((a, b) => a + b, 0) || 1;
  let radius = PITH, inner = edge(PITH, 0, 1);
  rings.forEach((ring, i) => {
    ring.thickness = thinnest + (rest * counts[i]) / total;
    radius += ring.thickness;
    ring.inner = inner;
    ring.outer = inner = edge(radius, ring.step, Math.min(3.4, ring.thickness * 0.12));
    ring.radius = radius;
  });
  return rings;
}

const described = (known) => {
  const last = latest(known);
  return say("arc", { name: known.name, step: known.step, score: last ? score(last) : photos(known.photos) });
};

/** Draw the focus above all arcs, since an arc's own edge is half hidden by its neighbours. */
const outline = (d) => byId("rings").querySelector(".outline")?.setAttribute("d", d);

/** A class's arc, with its name on it where there is room. */
function drawArc(ring, known, at, open) {
  const random = numbers(ring.step * 1000 + at);
  const width = (2 * Math.PI) / ring.arcs.length;
  const from = ring.step * GOLDEN + width * at, to = from + width;
  const shape = drawn("path", { class: "wood", d: band(ring.inner, ring.outer, from, to) });
  shape.style.setProperty("--tone", `${Math.round(15 + 70 * random())}%`);
  const arc = drawn("g", {
    class: ["arc", known.lost && "lost", ring.growing && "growing"].filter(Boolean).join(" "),
    role: "button", tabindex: -1, "data-class": known.name, "data-step": ring.step,
    "aria-label": described(known) + (known.lost ? ", " + say("lost") : ""),
    onclick: () => open(known.name),
    onmouseenter: () => pointAt(known.name), onmouseleave: () => pointAt(null),
    onfocus: () => {
      pointAt(known.name);
      outline(arc.matches(":focus-visible") ? shape.getAttribute("d") : "");
    },
    onblur: () => {
      pointAt(null);
      outline("");
    },
  }, shape);
  arc.middle = (from + to) / 2;
  arc.regrow = (outer) => shape.setAttribute("d", band(ring.inner, outer, from, to));
  if (!ring.growing) arc.append(...writeName(ring, known.name, from, to, `track-${ring.step}-${at}`));
  return arc;
}

/** A class's name along its arc, or outwards where the ring is thicker than the arc is long; cut where it does not fit. */
function writeName(ring, name, from, to, id) {
  const middle = (from + to) / 2;
  const along = (ring.radius - ring.thickness * 0.45) * (to - from) - 12, outwards = ring.thickness - 12;
  const isAlong = along > outwards || name.length * LETTER < along;
  const letters = Math.floor((isAlong ? along : outwards) / LETTER);
  if (letters < Math.min(FEWEST, name.length) || (isAlong ? ring.thickness : along) < 15) return [];
  const turned = isAlong ? Math.sin(middle) > 0 : Math.cos(middle) < 0; // a name must not stand on its head
  const track = between(ring.inner, ring.outer, turned ? 0.6 : 0.42);
  const spoke = [0.06, 0.98].map((share) => line(between(ring.inner, ring.outer, share), middle, middle).split("L")[0]);
  const path = isAlong ? line(track, turned ? to : from, turned ? from : to) : (turned ? spoke.reverse() : spoke).join("L");
  const text = name.length > letters ? name.slice(0, letters - 1).trimEnd() + "…" : name;
  const written = drawn("textPath", { href: `#${id}`, startOffset: "50%" }, text);
  return [drawn("path", { id, class: "track", d: `M${path}` }), drawn("text", { "aria-hidden": "true", dy: isAlong ? 0 : 4 }, written)];
}

/** The fine lines within a ring. */
function drawGrain(ring) {
  const random = numbers(ring.step + 77);
  const count = Math.min(9, Math.floor(ring.thickness / 6));
  const share = (i) => (i + 0.4 + random() * 0.7) / (count + 0.4);
  const lines = Array.from({ length: count }, (_, i) => round(between(ring.inner, ring.outer, share(i))));
  return drawn("path", { class: "grain", d: lines.join("") });
}

function drawSeed() {
  return drawn("svg", { viewBox: "0 0 500 500", class: "seed", "aria-hidden": "true" },
    ...[70, 120, 170, 214].map((radius, i) => drawn("path", { class: "someday", d: round(edge(radius, i + 3, 3)) })),
    drawn("path", { class: "shell", d: "M250 208c25 14 35 46 22 68-9 15-35 15-44 0-13-22-3-54 22-68z" }),
    drawn("path", { class: "shine", d: "M246 226c-10 11-14 26-11 40" }),
    drawn("path", { class: "stem", d: "M250 208c0-20 3-34 12-46" }),
    drawn("path", { class: "sprout", d: "M251 188c-14-1-25-9-28-22 15-1 26 7 28 22zm9-24c2-15 13-25 30-25-1 16-13 27-30 25z" }));
}

// How far the ring is grown at the beginning and the end of each stage of a job.
const GROWTH = { reading: [0.05, 0.3], solving: [0.3, 0.4], training: [0.4, 0.95], saving: [0.95, 1], ended: [1, 1] };
let rings = [];
let grown = { job: null, share: 0 };

/** Let the outer ring be as thick as the job is far; the bark goes around it. */
function grow(job) {
  const ring = rings.at(-1);
  const svg = byId("rings").querySelector("svg");
  if (!ring?.growing || !svg) return;
  if (grown.job !== job.id) grown = { job: job.id, share: 0.05 };
  const [start, end] = GROWTH[job.stage] ?? [0, 0];
  grown.share = Math.max(grown.share, start + (end - start) * (job.total ? Math.min(1, job.done / job.total) : 0));
  const outer = between(ring.inner, ring.outer, grown.share);
  svg.querySelector(".cambium").setAttribute("d", band(ring.inner, outer, 0, 2 * Math.PI));
  svg.querySelector(".bark").setAttribute("d", bark(outer, ring.step));
  for (const arc of svg.querySelectorAll(".arc")) if (arc.dataset.step === String(ring.step)) arc.regrow(outer);
}

const bark = (outer, step) => {
  const rough = edge(BARK, step + 500, 1.6);
  return band(outer, (angle) => outer(angle) + rough(angle) + 0.9 * Math.sin(41 * angle) + 0.7 * Math.sin(67 * angle), 0, 2 * Math.PI);
};

/** The arrow keys move in a ring, and to the ring outside or inside; only one arc is a tab stop. */
function move(event) {
  const arcs = [...event.currentTarget.querySelectorAll(".arc")];
  const at = arcs.indexOf(event.target);
  if (at < 0) return;
  const away = { ArrowRight: 1, ArrowLeft: -1 }[event.key], out = { ArrowUp: 1, ArrowDown: -1 }[event.key];
  let goal = { Home: arcs[0], End: arcs.at(-1) }[event.key];
  if (event.key === "Enter" || event.key === " ") arcs[at].dispatchEvent(new Event("click"));
  else if (away) goal = arcs[(at + away + arcs.length) % arcs.length];
  else if (out) {
    const steps = [...new Set(arcs.map((arc) => arc.dataset.step))];
    const step = steps[steps.indexOf(arcs[at].dataset.step) + out];
    const off = (arc) => 1 - Math.cos(arc.middle - arcs[at].middle);
    goal = arcs.filter((arc) => arc.dataset.step === step).sort((a, b) => off(a) - off(b))[0];
  } else if (!goal) return;
  event.preventDefault();
  if (!goal) return;
  for (const arc of arcs) arc.setAttribute("tabindex", arc === goal ? 0 : -1);
  goal.focus();
}

function describe(model) {
  const steps = say("nSteps", { n: model.steps.length });
  const known = classNamed(shown.pointed);
  if (known) return described(known);
  const size = { photos: photos(model.memory.photos), bytes: bytes(model.bytes) };
  if (isLearnt()) return say("treeCaption", { classes: classes(model.classes.length), steps, ...size });
  return say(rings.length ? "seedGrows" : "seed");
}

function drawTree(model, open) {
  const arcs = rings.flatMap((ring) => ring.arcs.map((known, at) => drawArc(ring, known, at, open)));
  const done = rings.filter((ring) => !ring.growing), outermost = rings.at(-1);
  const label = say("ringsLabel", { classes: classes(model.classes.length), steps: say("nSteps", { n: model.steps.length }) });
  arcs[0]?.setAttribute("tabindex", 0);
  return drawn("svg", { viewBox: "0 0 500 500", role: "group", "aria-label": label, onkeydown: move },
    drawn("pattern", { id: "hatch", width: 7, height: 7, patternUnits: "userSpaceOnUse", patternTransform: "rotate(40)" },
      drawn("rect", { width: 7, height: 7 }), drawn("path", { d: "M0 0V7" })),
    outermost.growing && drawn("path", { class: "goal", d: round(outermost.outer) }),
    drawn("path", { class: "bark", d: bark(outermost.outer, outermost.step) }),
    drawn("path", { class: "cambium" }),
    ...done.filter((ring) => !ring.arcs.length).map(({ inner, outer }) =>
      drawn("path", { class: "wood", d: band(inner, outer, 0, 2 * Math.PI) })),
    ...arcs,
    ...done.flatMap((ring) => [drawGrain(ring), drawn("path", { class: "latewood", d: round(ring.outer) })]),
    drawn("path", { class: "pith", d: round(edge(PITH, 0, 1)) }),
    drawn("path", { class: "outline", d: "" }));
}

let drawnFrom = null;

function paint(model, job, open) {
  const from = [document.documentElement.lang, model.name, model.version, isLearning() && [job.id, Boolean(job.solved)]].join();
  if (from !== drawnFrom) {
    rings = layout(model, job);
    const place = byId("rings");
    const focused = place.contains(document.activeElement) ? document.activeElement.dataset.class : null;
    place.replaceChildren(rings.length ? drawTree(model, open) : drawSeed());
    [...place.querySelectorAll(".arc")].find((arc) => arc.dataset.class === focused)?.focus();
    pointAt(shown.pointed);
    drawnFrom = from;
  }
  if (isLearning()) grow(job);
  caption();
}

function caption() {
  const isSeed = !isLearnt() && !rings.length;
  byId("caption").replaceChildren(describe(shown.model), isSeed ? node("span", { class: "hint" }, say("seedHint")) : "");
}

/** Start the rings; `open` shows a class. */
export function startRings(whenProgress, open) {
  whenProgress((model, job) => paint(model, job, open));
  document.addEventListener("pointed", () => shown.model && caption());
}
