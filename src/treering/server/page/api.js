// Talks to the server: one function per kind of request, errors in the server's words, and word of a lost connection.

import { say } from "./words.js";

const RETRY = 2000; // milliseconds
let tell;
let connection = "connected"; // or "lostConnection", or "newToken": the server was started anew, with another token

export const isConnected = () => connection === "connected";

/** Have a function told whenever the connection is another. */
export const onConnection = (told) => { tell = told; };

function become(now) {
  if (now === connection) return;
  connection = now;
  tell?.(now);
}

/** Any answer means that the server is there; what it says, it says to who knows its token. */
const heard = ({ status }) => become(status === 401 ? "newToken" : "connected");

/** Note that the server could not be reached, and try until it can. */
export function connectionLost() {
  if (connection === "lostConnection") return;
  become("lostConnection");
  const retry = setInterval(async () => {
    const answer = await fetch("/health", { cache: "no-store" }).catch(() => null);
    if (!answer) return;
    clearInterval(retry);
    heard(answer);
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
  heard(answer);
  if (answer.status === 401) throw new Error(say("newToken"));
  const content = await answer.json().catch(() => ({}));
  if (answer.ok) return content;
  const reason = content.error ?? `${answer.status} ${answer.statusText}`;
  throw Object.assign(new Error(reason), { lang: "en" }); // the server's sentences are English
}

/** The address of something that belongs to a model. */
export function address(model, rest = "", query = {}) {
  const search = new URLSearchParams(query).toString();
  return `/api/models/${encodeURIComponent(model)}${rest}${search && "?" + search}`;
}
