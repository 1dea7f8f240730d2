// Tells the values in the figures on hover, touch and arrow keys; switches between panels, and between light and dark.
"use strict";

function create(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

// The choice of light or dark is kept where the browser lets a local page keep anything.
const root = document.documentElement, theme = create("button", { type: "button", class: "theme" });
const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches);
const setTheme = (chosen) => { root.dataset.theme = chosen; theme.textContent = isDark() ? "Light" : "Dark"; };
try { setTheme(localStorage.getItem("theme") || ""); } catch { setTheme(""); }
theme.addEventListener("click", () => {
  setTheme(isDark() ? "light" : "dark");
  try { localStorage.setItem("theme", root.dataset.theme); } catch { /* not kept */ }
});
document.body.prepend(theme);

// Panels of which one is seen; without this script all are.
document.querySelectorAll(".switch").forEach((box) => {
  const panels = [...box.children];
  const tabs = panels.map((panel) => create("button", { type: "button", role: "tab", "aria-controls": panel.id }, panel.getAttribute("aria-label")));
  const list = create("div", { class: "tabs", role: "tablist", "aria-label": "Settings" }, ...tabs);
  const select = (chosen) => panels.forEach((panel, index) => {
    panel.hidden = index !== chosen;
    tabs[index].setAttribute("aria-selected", String(index === chosen));
    tabs[index].tabIndex = index === chosen ? 0 : -1;
  });
  tabs.forEach((tab, index) => {
    tab.addEventListener("click", () => select(index));
    tab.addEventListener("keydown", (event) => {
      const next = tabs[(index + { ArrowRight: 1, ArrowLeft: -1 }[event.key] + tabs.length) % tabs.length];
      if (next) { next.click(); next.focus(); }
    });
  });
  box.prepend(list);
  select(Math.max(0, panels.findIndex((panel) => "first" in panel.dataset)));
});

// A key of a chart hides and shows its line.
document.querySelectorAll("[data-key]").forEach((key) => {
  const toggle = () => {
    const shown = key.getAttribute("aria-pressed") !== "true";
    key.setAttribute("aria-pressed", String(shown));
    for (const part of key.closest("svg").querySelectorAll(`[data-line="${key.dataset.key}"]`)) part.style.visibility = shown ? "" : "hidden";
  };
  key.addEventListener("click", toggle);
  key.addEventListener("keydown", (event) => ["Enter", " "].includes(event.key) && (event.preventDefault(), toggle()));
});

// What is under the pointer or the keyboard's focus is framed, told beside it and read out aloud.
const shown = (cell) => (cell.innerText || cell.textContent).replace(/\s+/g, " ");
const tip = create("div", { class: "tip", role: "status", hidden: "" });
document.body.append(tip);
addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });
document.querySelectorAll(".hot").forEach((hot) => {
  const area = hot.firstElementChild, spot = document.createElementNS(area.namespaceURI, "rect"), edges = hot.dataset.x.split(" ").map(Number);
  const names = hot.dataset.names?.split("\n"), cells = hot.dataset.cells?.split(";").map((row) => row.split(","));
  const last = [(cells?.length ?? 1) - 1, edges.length - 2];
  let now = null;
  function words([row, column]) {
    if (!cells) {  // a column of the table beside the chart
      const table = hot.closest(".valued").querySelector("table"), lines = [...table.tBodies[0].rows].map((line) => [...line.cells]);
      const told = lines.filter((line) => line[column + 1].textContent).map((line) => `${line[0].firstChild.data}: ${shown(line[column + 1])}`);
      return [table.tHead.lastElementChild.cells[column + 1].textContent, ...told];
    }
    const value = cells[row][column], total = cells[row].reduce((sum, count) => sum + Number(count), 0);
    if (hot.dataset.kind === "forgetting") return [`Classes of ${names[row]}, after ${names[column]}`, value ? `${value} %` : "not learnt yet"];
    return [names[row], `${value || 0} of ${total} ${row === column ? "recognised" : `taken for ${names[column]}`}`];
  }
  function show(place) {
    now = place && place.map((value, axis) => Math.max(0, Math.min(last[axis], value)));
    tip.hidden = !now;
    spot.remove();
    if (!now) return;
    const [row, column] = now, box = area.getBBox(), height = box.height / (last[0] + 1);
    const frame = { x: box.x + edges[column] * box.width, y: box.y + row * height, width: (edges[column + 1] - edges[column]) * box.width, height };
    for (const [key, value] of Object.entries({ class: "spot", ...frame })) spot.setAttribute(key, value);
    hot.append(spot);
    const [title, ...lines] = words(now);
    tip.replaceChildren(create("strong", {}, title), ...lines.map((line) => create("div", {}, line)));
    const at = spot.getBoundingClientRect(), width = tip.offsetWidth;
    tip.style.left = `${at.right + 12 + width < innerWidth ? at.right + 12 : Math.max(4, at.left - 12 - width)}px`;
    tip.style.top = `${Math.max(4, Math.min(at.top, innerHeight - tip.offsetHeight - 4))}px`;
  }
  for (const kind of ["pointermove", "pointerdown"]) hot.addEventListener(kind, (event) => {
    const box = area.getBoundingClientRect(), right = (event.clientX - box.left) / box.width, down = (event.clientY - box.top) / box.height;
    show([Math.floor(down * (last[0] + 1)), edges.findLastIndex((edge) => edge <= right)]);
  });
  hot.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && show(null));
  hot.addEventListener("blur", () => show(null));
  hot.addEventListener("keydown", (event) => {
    const move = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1] }[event.key];
    if (event.key === "Escape") show(null);
    if (move) event.preventDefault(), show(now ? now.map((value, axis) => value + move[axis]) : [0, 0]);
  });
});
