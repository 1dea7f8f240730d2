// Draws the charts of the report from the JSON in the page: values on hover, touch and arrow keys.
"use strict";

const charts = JSON.parse(document.getElementById("charts").textContent);
const root = document.documentElement;

function create(name, attributes = {}, ...children) {
  const inSvg = ["svg", "g", "path", "line", "rect", "circle", "text"].includes(name);
  const node = inSvg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

const clamp = (value, low, high) => Math.max(low, Math.min(high, value));
const percent = (value, deviation) => value.toFixed(1) + (deviation == null ? "" : ` ± ${deviation.toFixed(1)}`);

// What is under the pointer or the keyboard's focus, beside it and read out aloud.
class Tip {
  constructor(box) {
    this.box = box;
    this.node = create("div", { class: "tip", role: "status", hidden: "" });
    box.append(this.node);
  }
  show(x, y, title, rows) {
    this.node.replaceChildren(create("strong", {}, title), ...rows.map(([colour, label, value]) => {
      const dot = colour ? [create("i", { style: `background:${colour}` })] : [];
      return create("div", {}, ...dot, create("span", {}, label), value);
    }));
    this.node.hidden = false;
    const width = this.node.offsetWidth, room = this.box.clientWidth;
    const left = x + 14 + width <= room ? x + 14 : x - 14 - width;
    this.node.style.transform = `translate(${clamp(left, 0, Math.max(0, room - width))}px, ${y}px)`;
  }
  hide() {
    this.node.hidden = true;
  }
}

// Draw now, when a panel is chosen, and whenever the width changes; a hidden chart has none and waits. The first two
// wait for no frame, which a busy browser may show late.
const fits = [];
function whenSized(box, draw) {
  let last = 0;
  const fit = (act) => {
    const width = Math.floor(box.clientWidth);
    if (width && width !== last) act(() => draw(width));
    last = width || last;
  };
  const fitNow = () => fit((act) => act());
  fitNow();
  fits.push(fitNow);
  new ResizeObserver(() => fit(requestAnimationFrame)).observe(box);
}

// Places along x that can be pointed at: `show(index)` or `show(null)`.
function explore(target, count, nearest, show) {
  let now = null;
  const go = (index) => show((now = index));
  target.setAttribute("tabindex", "0");
  target.addEventListener("pointermove", (event) => go(nearest(event)));
  target.addEventListener("pointerdown", (event) => go(nearest(event)));
  target.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && go(null));
  target.addEventListener("blur", () => go(null));
  target.addEventListener("keydown", (event) => {
    const moves = { ArrowRight: (now ?? -1) + 1, ArrowLeft: (now ?? count) - 1, Home: 0, End: count - 1 };
    if (event.key === "Escape") go(null);
    if (!(event.key in moves)) return;
    event.preventDefault();
    go(clamp(moves[event.key], 0, count - 1));
  });
}

function markerPath(kind, x, y, r) {
  const point = (dx, dy) => `${(x + dx * r).toFixed(1)},${(y + dy * r).toFixed(1)}`;
  const shapes = {
    circle: [[1, 0], [0.7, 0.7], [0, 1], [-0.7, 0.7], [-1, 0], [-0.7, -0.7], [0, -1], [0.7, -0.7]],
    square: [[-0.9, -0.9], [0.9, -0.9], [0.9, 0.9], [-0.9, 0.9]],
    triangle: [[0, -1.1], [1.1, 0.9], [-1.1, 0.9]],
    down: [[0, 1.1], [1.1, -0.9], [-1.1, -0.9]],
    diamond: [[0, -1.3], [1.3, 0], [0, 1.3], [-1.3, 0]],
  };
  if (kind === "cross") return `M${point(-1, -1)}L${point(1, 1)}M${point(1, -1)}L${point(-1, 1)}`;
  return `M${shapes[kind].map(([dx, dy]) => point(dx, dy)).join("L")}Z`;
}

function marker(line, x, y, r) {
  const look = line.marker === "cross" ? { stroke: line.colour, "stroke-width": 2.5, fill: "none" } : { fill: line.colour };
  return create("path", { d: markerPath(line.marker, x, y, line.marker === "cross" ? r * 1.4 : r), ...look });
}

// The frame that line and bar charts share: 0 to 100 per cent, a grid, an x axis with a title.
function frame(width, xTitle) {
  const height = clamp(Math.round(width * 0.5), 250, 400);
  const area = { left: 34, right: width - 14, top: 12, bottom: height - 46 };
  const y = (value) => area.bottom - (value / 100) * (area.bottom - area.top);
  const svg = create("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img" });
  for (let tick = 0; tick <= 100; tick += 20) {
    svg.append(
      create("line", { class: "grid", x1: area.left, x2: area.right, y1: y(tick), y2: y(tick) }),
      create("text", { x: area.left - 8, y: y(tick) + 4, "text-anchor": "end" }, tick === 100 ? "100 %" : String(tick)),
    );
  }
  svg.append(create("text", { x: (area.left + area.right) / 2, y: height - 6, "text-anchor": "middle" }, xTitle));
  return { svg, area, y };
}

function lineChart(box, chart) {
  const legend = create("div", { class: "legend" }), place = create("div"), hidden = new Set();
  box.append(legend, place);
  const tip = new Tip(box);
  let width = 0;
  for (const line of chart.lines) {
    const swatch = create("svg", { viewBox: "0 0 30 12", "aria-hidden": "true" });
    if (line.x.length > 1) swatch.append(create("path", { d: "M0,6H30", stroke: line.colour, "stroke-width": 2.2, "stroke-dasharray": line.dash }));
    swatch.append(marker(line, 15, 6, 4));
    const button = create("button", { type: "button", "aria-pressed": "true" }, swatch, line.label, create("small", {}, line.summary));
    button.addEventListener("click", () => {
      const shown = hidden.delete(line) || !hidden.add(line);
      button.setAttribute("aria-pressed", String(shown));
      draw(width);
    });
    legend.append(button);
  }
  const xs = [...new Set(chart.lines.flatMap((line) => line.x))].sort((a, b) => a - b);

  function draw(now) {
    width = now;
    tip.hide();
    const { svg, area, y } = frame(width, "classes learnt");
    const span = xs[xs.length - 1] - xs[0] || 1;
    const x = (value) => area.left + 8 + ((value - xs[0]) / span) * (area.right - area.left - 16);
    const every = Math.ceil(xs.length / Math.max(2, Math.floor(width / 60)));
    xs.forEach((value, index) => {
      if ((xs.length - 1 - index) % every === 0) svg.append(create("text", { x: x(value), y: area.bottom + 18, "text-anchor": "middle" }, String(value)));
    });
    const lines = chart.lines.filter((line) => !hidden.has(line));
    for (const line of lines) {
      if (!line.deviation) continue;
      const edge = (sign) => line.x.map((value, index) => `${x(value)},${y(clamp(line.y[index] + sign * line.deviation[index], 0, 100))}`);
      svg.append(create("path", { d: `M${[...edge(1), ...edge(-1).reverse()].join("L")}Z`, fill: line.colour, opacity: 0.16 }));
    }
    for (const line of lines) {
      const points = line.x.map((value, index) => [x(value), y(line.y[index])]);
      const look = { fill: "none", stroke: line.colour, "stroke-width": 2.2, "stroke-dasharray": line.dash, "stroke-linejoin": "round" };
      if (points.length > 1) svg.append(create("path", { d: `M${points.join("L")}`, ...look }));
      const gap = Math.max(1, Math.floor(points.length / 12));
      points.forEach(([px, py], index) => index % gap === 0 && svg.append(marker(line, px, py, 4)));
    }
    const spot = create("g", { "pointer-events": "none" });
    svg.append(spot);
    svg.setAttribute("aria-label", `${chart.title}: accuracy after each step. Arrow keys read the values.`);
    const nearest = (event) => {
      const at = event.clientX - svg.getBoundingClientRect().left;
      return xs.reduce((best, value, index) => (Math.abs(x(value) - at) < Math.abs(x(xs[best]) - at) ? index : best), 0);
    };
    explore(svg, xs.length, nearest, (index) => {
      spot.replaceChildren();
      if (index === null) return tip.hide();
      const value = xs[index];
      const found = lines.filter((line) => line.x.includes(value)).map((line) => [line, line.x.indexOf(value)]);
      found.sort(([a, i], [b, j]) => b.y[j] - a.y[i]);
      spot.append(create("line", { class: "rule", x1: x(value), x2: x(value), y1: area.top, y2: area.bottom }));
      found.forEach(([line, at]) => spot.append(marker(line, x(value), y(line.y[at]), 5.5)));
      const rows = found.map(([line, at]) => [line.colour, line.label, percent(line.y[at], line.deviation?.[at])]);
      tip.show(x(value), place.offsetTop + 8, `${value} classes`, rows);
    });
    place.replaceChildren(svg);
  }
  whenSized(box, draw);
}

function barChart(box, chart) {
  const legend = create("div", { class: "legend" }), place = create("div");
  for (const bar of chart.bars) {
    const swatch = create("svg", { viewBox: "0 0 12 12", style: "width:12px" });
    swatch.append(create("rect", { width: 12, height: 12, rx: 2, fill: bar.colour }));
    legend.append(create("span", {}, swatch, bar.label));
  }
  const tick = create("svg", { viewBox: "0 0 16 12", style: "width:16px" });
  tick.append(create("path", { d: "M0,6H16", class: "mark" }));
  legend.append(create("span", {}, tick, "the paper"));
  box.append(legend, place);
  const tip = new Tip(box);

  whenSized(box, (width) => {
    const { svg, area, y } = frame(width, chart.x_label);
    const step = (area.right - area.left) / chart.groups.length;
    const wide = Math.min(44, (step * 0.78) / chart.bars.length);
    const middle = (index) => area.left + step * (index + 0.5);
    const band = create("rect", { class: "band", y: area.top, height: area.bottom - area.top, width: step, visibility: "hidden" });
    svg.prepend(band);
    chart.groups.forEach((group, index) => {
      svg.append(create("text", { x: middle(index), y: area.bottom + 18, "text-anchor": "middle" }, group));
      chart.bars.forEach((bar, order) => {
        const left = middle(index) + (order - chart.bars.length / 2) * wide, centre = left + wide / 2;
        const value = bar.values[index], paper = bar.paper[index], deviation = bar.deviation[index];
        if (value == null) {
          const at = `translate(${centre + 4}, ${area.bottom - 5}) rotate(-90)`;
          svg.append(create("text", { transform: at, style: "font-size:11px" }, "not run"));
        } else {
          svg.append(create("rect", { x: left + 1, width: wide - 2, y: y(value), height: area.bottom - y(value), fill: bar.colour }));
        }
        if (paper != null) {
          const d = `M${left - 1},${y(paper)}H${left + wide + 1}`;
          svg.append(create("path", { d, class: "mark" }));
        }
        if (deviation != null) svg.append(create("path", { d: `M${centre},${y(value - deviation)}V${y(value + deviation)}`, stroke: "var(--ink)" }));
      });
    });
    svg.setAttribute("aria-label", `${chart.title}: ours as bars, the paper's as marks. Arrow keys read the values.`);
    const nearest = (event) => clamp(Math.floor((event.clientX - svg.getBoundingClientRect().left - area.left) / step), 0, chart.groups.length - 1);
    explore(svg, chart.groups.length, nearest, (index) => {
      band.setAttribute("visibility", index === null ? "hidden" : "visible");
      if (index === null) return tip.hide();
      band.setAttribute("x", area.left + step * index);
      const rows = chart.bars.map((bar) => {
        const ours = bar.values[index] == null ? "not run" : percent(bar.values[index], bar.deviation[index]);
        return [bar.colour, bar.label, ours + (bar.paper[index] == null ? "" : ` · paper ${bar.paper[index].toFixed(1)}`)];
      });
      tip.show(middle(index), place.offsetTop + 8, `${chart.groups[index]} (${chart.x_label})`, rows);
    });
    place.replaceChildren(svg);
  });
}

const VIRIDIS = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];

function viridis(share) {
  const at = clamp(share, 0, 1) * (VIRIDIS.length - 1), low = Math.min(VIRIDIS.length - 2, Math.floor(at));
  return VIRIDIS[low].map((value, channel) => Math.round(value + (at - low) * (VIRIDIS[low + 1][channel] - value)));
}

function matrixChart(box, matrix, kind) {
  const confusion = kind === "confusion", side = matrix.rows.length;
  const canvas = create("canvas", { role: "img", tabindex: "0" }), place = create("div", { class: "frame" }, canvas);
  const axis = confusion ? "true class from top to bottom, taken for from left to right" : "classes of each step from top to bottom, after each step from left to right";
  canvas.setAttribute("aria-label", `${matrix.label}: ${axis}. Arrow keys read the values.`);
  const spot = create("div", { class: "spot", hidden: "" });
  place.append(spot);
  box.append(place, create("p", { class: "axis" }, confusion ? "↓ true class → taken for" : "↓ classes of step → after step"));
  const tip = new Tip(box);
  const totals = matrix.values.map((row) => row.reduce((sum, value) => sum + (value ?? 0), 0));

  whenSized(box, (width) => {
    const sharp = window.devicePixelRatio || 1, size = width * sharp, cell = size / side;
    canvas.width = canvas.height = size;
    const pen = canvas.getContext("2d");
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    pen.font = `${Math.min(13 * sharp, cell * 0.42)}px system-ui, sans-serif`;
    matrix.values.forEach((row, i) => row.forEach((value, j) => {
      if (value == null) return;
      const [left, top] = [Math.round(j * cell), Math.round(i * cell)];
      const [right, bottom] = [Math.round((j + 1) * cell), Math.round((i + 1) * cell)];
      const share = confusion ? Math.sqrt(value / (totals[i] || 1)) : value / 100;
      pen.fillStyle = confusion ? `rgba(38, 120, 190, ${0.04 + 0.96 * share})` : `rgb(${viridis(share)})`;
      pen.fillRect(left, top, right - left, bottom - top);
      if (cell / sharp >= 26 && (value || !confusion)) {
        pen.fillStyle = confusion ? (share > 0.6 ? "#fff" : "#808080") : share > 0.6 ? "#111" : "#fff";
        pen.fillText(String(Math.round(value)), (left + right) / 2, (top + bottom) / 2);
      }
    }));
    pen.fillStyle = `rgba(128, 128, 128, ${matrix.boundaries.length > 20 ? 0.25 : 0.55})`;
    for (const boundary of matrix.boundaries) {
      const at = Math.round(boundary * cell);
      pen.fillRect(at, 0, Math.max(1, sharp / 2), size);
      pen.fillRect(0, at, size, Math.max(1, sharp / 2));
    }
  });

  let now = null;
  function show(place) {
    now = place;
    spot.hidden = !now;
    if (!now) return tip.hide();
    const [i, j] = now, cell = canvas.clientWidth / side, value = matrix.values[i][j];
    Object.assign(spot.style, { left: `${j * cell - 2}px`, top: `${i * cell - 2}px`, width: `${cell + 4}px`, height: `${cell + 4}px` });
    const below = (i + 1) * cell + 10, top = below > canvas.clientHeight * 0.75 ? i * cell - 84 : below;
    const title = confusion ? matrix.rows[i] : `Classes of ${matrix.rows[i]}, after ${matrix.columns[j]}`;
    const count = confusion ? `${value} of ${totals[i]}` : value == null ? "not learnt yet" : `${value.toFixed(1)} %`;
    const label = confusion ? (i === j ? "recognised" : `taken for ${matrix.columns[j]}`) : "accuracy";
    tip.show((j + 0.5) * cell, top, title, [[null, label, count]]);
  }
  const cellAt = (event) => {
    const edge = canvas.getBoundingClientRect();
    const index = (at, length) => clamp(Math.floor((at / length) * side), 0, side - 1);
    return [index(event.clientY - edge.top, edge.height), index(event.clientX - edge.left, edge.width)];
  };
  for (const kind of ["pointermove", "pointerdown"]) canvas.addEventListener(kind, (event) => show(cellAt(event)));
  canvas.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && show(null));
  canvas.addEventListener("blur", () => show(null));
  canvas.addEventListener("keydown", (event) => {
    const move = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1] }[event.key];
    if (event.key === "Escape") show(null);
    if (!move) return;
    event.preventDefault();
    show(now ? now.map((value, axis) => clamp(value + move[axis], 0, side - 1)) : [0, 0]);
  });
}

// The choice of light or dark is kept where the browser lets a local page keep anything.
const theme = create("button", { type: "button", class: "theme" });
const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches);
const label = () => (theme.textContent = isDark() ? "Light" : "Dark");
try { root.dataset.theme = localStorage.getItem("theme") || ""; } catch { /* not kept */ }
theme.addEventListener("click", () => {
  root.dataset.theme = isDark() ? "light" : "dark";
  try { localStorage.setItem("theme", root.dataset.theme); } catch { /* not kept */ }
  label();
});
label();
document.body.prepend(theme);

// Panels of which one is seen; without this script all are.
document.querySelectorAll(".switch").forEach((box) => {
  const panels = [...box.children], list = create("div", { class: "tabs", role: "tablist", "aria-label": "Settings" });
  const tabs = panels.map((panel) => create("button", { type: "button", role: "tab", "aria-controls": panel.id }, panel.dataset.label));
  const select = (chosen) => {
    panels.forEach((panel, index) => {
      panel.hidden = index !== chosen;
      tabs[index].setAttribute("aria-selected", String(index === chosen));
      tabs[index].tabIndex = index === chosen ? 0 : -1;
    });
    fits.forEach((fit) => fit());
  };
  tabs.forEach((tab, index) => {
    panels[index].setAttribute("role", "tabpanel");
    panels[index].setAttribute("aria-label", panels[index].dataset.label);
    tab.addEventListener("click", () => select(index));
    tab.addEventListener("keydown", (event) => {
      const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!move) return;
      const next = (index + move + tabs.length) % tabs.length;
      select(next);
      tabs[next].focus();
    });
  });
  list.append(...tabs);
  box.prepend(list);
  select(Math.max(0, panels.findIndex((panel) => "first" in panel.dataset)));
});

document.querySelectorAll("[data-chart]").forEach((box) => {
  const chart = charts[box.dataset.chart];
  if (chart.lines) lineChart(box, chart);
  else if (chart.bars) barChart(box, chart);
  else matrixChart(box, chart.matrices[box.dataset.matrix], chart.kind);
});
