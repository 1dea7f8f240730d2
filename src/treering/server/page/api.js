// Talks to the server: one function per kind of request, errors in the server's words, and word of a lost connection.

import { say } from "./words.js";

/** What the server answered when it refused; the message is the server's own sentence. */
export class Refusal extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

const RETRY = 2000; // milliseconds
const listeners = [];
let connected = true;

export const onConnection = (told) => listeners.push(told);

/** Note that the server could not be reached, and try until it can. */
export function connectionLost() {
  if (!connected) return;
  connected = false;
  for (const told of listeners) told(false);
  const retry = setInterval(async () => {
    const answer = await fetch("/health", { cache: "no-store" }).catch(() => null);
    if (!answer?.ok) return;
    clearInterval(retry);
    connected = true;
    for (const told of listeners) told(true);
  }, RETRY);
}

/** Request something and return the answer's JSON. A Blob is sent as it is, anything else as JSON. */
export async function call(method, path, body) {
  const request = { method, cache: "no-store", headers: {} };
  if (body instanceof Blob) {
    request.body = body;
    request.headers["Content-Type"] = body.type || "application/octet-stream";
  } else if (body !== undefined) {
    request.body = JSON.stringify(body);
    request.headers["Content-Type"] = "application/json";
  }
  let answer;
  try {
    answer = await fetch(path, request);
  } catch {
    connectionLost();
    throw new Error(say("unreachable"));
  }
  const content = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Refusal(answer.status, content.error ?? `${answer.status} ${answer.statusText}`);
  return content;
}

/** The address of something that belongs to a model. */
export function address(model, rest = "", query = {}) {
  const search = new URLSearchParams(query).toString();
  return `/api/models/${encodeURIComponent(model)}${rest}${search && "?" + search}`;
}

/** Return a function that runs tasks in their order, at most so many at once. */
export function queue(most) {
  const waiting = [];
  let running = 0;
  const next = () => {
    if (running >= most || !waiting.length) return;
    running += 1;
    waiting.shift()().finally(() => {
      running -= 1;
      next();
    });
  };
  return (task) =>
    new Promise((resolve, reject) => {
      waiting.push(() => task().then(resolve, reject));
      next();
    });
}
