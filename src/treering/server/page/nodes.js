// Makes elements. Names of classes and files are hostile, so text only ever becomes a text node here.

const SVG = "http://www.w3.org/2000/svg";

function filled(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(name.slice(2), value);
    else if (value !== false && value != null) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child != null && child !== false));
  return made;
}

/** Make an HTML element; an attribute such as `onclick` takes a function. */
export const node = (tag, attributes = {}, ...children) => filled(document.createElement(tag), attributes, children);

/** Make an SVG element. */
export const drawn = (tag, attributes = {}, ...children) => filled(document.createElementNS(SVG, tag), attributes, children);

export const byId = (id) => document.getElementById(id);

/** Make a button; the word on it is already in the language in use. */
export const button = (word, onclick, attributes = {}) => node("button", { type: "button", onclick, ...attributes }, word);

/** Make the children of a parent those of the items; an item that was there before keeps its element, and so its focus. */
export function keep(parent, items, make, key = JSON.stringify) {
  const before = new Map([...parent.children].map((child) => [child.madeFrom, child]));
  const after = items.map((item) => {
    const from = document.documentElement.lang + key(item);
    const child = before.get(from) ?? make(item);
    child.madeFrom = from;
    child.renew?.(item);
    before.delete(from);
    return child;
  });
  for (const gone of before.values()) gone.remove();
  after.forEach((child, at) => parent.children[at] !== child && parent.insertBefore(child, parent.children[at] ?? null));
}

/** Return a function that says a text to screen readers in `place`, at most every few seconds, and the last one surely. */
export function speaker(place, seconds = 4) {
  let last = 0;
  let timer;
  return (text) => {
    clearTimeout(timer);
    const speak = () => {
      last = Date.now();
      if (place.textContent !== text) place.textContent = text;
    };
    timer = setTimeout(speak, Math.max(0, last + 1000 * seconds - Date.now()));
  };
}

/** Run something that may be refused, with the error told at its place. */
export async function tried(place, action) {
  place.textContent = "";
  try {
    return await action();
  } catch (error) {
    place.lang = error.lang ?? document.documentElement.lang;
    place.textContent = error.message;
    return null;
  }
}

/** Ask whether to go on, in the page; Escape means no. The focus returns to where it was. */
export function confirmed(question, detail, yes) {
  const dialog = byId("confirm");
  const from = document.activeElement;
  byId("confirm-question").textContent = question;
  byId("confirm-detail").textContent = detail;
  byId("confirm-yes").textContent = yes;
  dialog.returnValue = "";
  byId("confirm-yes").onclick = () => dialog.close("yes");
  byId("confirm-no").onclick = () => dialog.close();
  dialog.showModal();
  byId("confirm-no").focus();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      from?.focus();
      resolve(dialog.returnValue === "yes");
    }, { once: true });
  });
}
