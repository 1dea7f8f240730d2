// Draws the page of the API from /openapi.json: each operation with its parameters, body, answers and a curl line.

import { call } from "./api.js";
import { byId, node, tried } from "./nodes.js";
import { say, startLanguage } from "./words.js";

let description = null;

const nameOf = (schema) => schema.$ref?.split("/").at(-1);
const resolved = (schema) => description.components.schemas[nameOf(schema)] ?? schema;

/** A schema in the manner of TypeScript; one that holds itself is named the second time. */
function sketch(schema, indent = "", within = []) {
  const name = nameOf(schema);
  if (name && within.includes(name)) return name;
  const inner = name ? [...within, name] : within;
  const { type, enum: values, const: value, anyOf, items, properties, additionalProperties, required = [], format } = resolved(schema);
  if (value !== undefined) return JSON.stringify(value);
  if (values) return values.map((one) => JSON.stringify(one)).join(" | ");
  if (anyOf) return anyOf.map((one) => sketch(one, indent, inner)).join(" | ");
  if (type === "array") return `[${sketch(items, indent, inner)}, …]`;
  if (properties) {
    const mark = (key) => (required.includes(key) ? "" : "?");
    const lines = Object.entries(properties).map(([key, one]) => `${indent}  "${key}"${mark(key)}: ${sketch(one, indent + "  ", inner)}`);
    return `{\n${lines.join(",\n")}\n${indent}}`;
  }
  if (additionalProperties && additionalProperties !== true) return `{ …: ${sketch(additionalProperties, indent, inner)} }`;
  return [type ?? "any", format && `(${format})`].filter(Boolean).join(" ");
}

const quoted = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

/** An example of a value; where none is known, a string is its own name in capitals. */
function exampleOf(schema, name) {
  const { default: usual, enum: values, anyOf, type, items, properties } = resolved(schema);
  const known = usual ?? values?.[0];
  if (known != null) return known;
  if (anyOf) return exampleOf(anyOf[0], name);
  if (properties) return Object.fromEntries(Object.entries(properties).map(([key, one]) => [key, exampleOf(one, key)]));
  if (type === "array") return [exampleOf(items, name)];
  return { integer: 1, number: 1, boolean: true }[type] ?? name.toUpperCase();
}

function curl(method, path, parameters, body) {
  const value = (p) => encodeURIComponent(exampleOf(p.schema, p.name));
  const filledPath = path.replace(/\{(\w+)\}/g, (_, name) => name.toUpperCase());
  const query = parameters.filter((p) => p.in === "query" && p.required).map((p) => `${p.name}=${value(p)}`).join("&");
  const json = body?.content["application/json"];
  const words = ["curl"];
  if (method !== "get" && !(method === "post" && body)) words.push("-X", method.toUpperCase());
  if (json) words.push("-H 'Content-Type: application/json' -d", quoted(JSON.stringify(exampleOf(json.schema, "body"))));
  else if (body) words.push("-H 'Content-Type: application/octet-stream' --data-binary @photo.jpg");
  return [...words, quoted(location.origin + filledPath + (query && "?" + query))].join(" ");
}

function drawContent(content) {
  return Object.entries(content ?? {}).flatMap(([type, { schema }]) => [
    node("p", { class: "facts" }, type),
    ...(schema ? [node("pre", { tabindex: 0, role: "group", "aria-label": type }, sketch(schema))] : []),
  ]);
}

function drawParameters(parameters) {
  const usual = (schema) => (schema.default === undefined ? "" : ` = ${JSON.stringify(schema.default)}`);
  const head = ["name", "where", "type", "meaning"].map((word) => node("th", { scope: "col" }, say(word)));
  const rows = parameters.map((p) => node("tr", {},
    node("th", { scope: "row" }, node("code", {}, p.name)),
    node("td", {}, p.in + (p.required ? `, ${say("required")}` : "")),
    node("td", {}, node("code", {}, sketch(p.schema) + usual(p.schema))),
    node("td", { lang: "en" }, p.description ?? "")));
  const table = node("table", {}, node("thead", {}, node("tr", {}, ...head)), node("tbody", {}, ...rows));
  return [
    node("h3", {}, say("parameters")),
    node("div", { class: "wide", tabindex: 0, role: "group", "aria-label": say("parameters") }, table),
  ];
}

function drawOperation(method, path, operation) {
  const { parameters = [], requestBody: body, summary, description: text } = operation;
  return node("section", { id: `${method}${path}`, class: "operation" },
    node("h2", {}, node("span", { class: `method ${method}` }, method.toUpperCase()), " ", node("code", {}, path)),
    node("p", { class: "summary", lang: "en" }, summary),
    text && node("p", { class: "text", lang: "en" }, text),
    ...(parameters.length ? drawParameters(parameters) : []),
    body && node("h3", {}, say("body")),
    body?.description && node("p", { lang: "en" }, body.description),
    ...drawContent(body?.content),
    node("h3", {}, say("answers")),
    ...Object.entries(operation.responses).filter(([status]) => status < 400).map(([status, { description: meaning, content }]) => node("details", {},
      node("summary", {}, node("b", {}, status), " ", node("span", { lang: "en" }, meaning)), ...drawContent(content))),
    node("h3", {}, say("example")),
    node("pre", { tabindex: 0, role: "group", "aria-label": say("example") }, curl(method, path, parameters, body)));
}

function paint() {
  const operations = Object.entries(description.paths).flatMap(([path, item]) =>
    Object.entries(item).map(([method, operation]) => [method, path, operation]));
  byId("contents").replaceChildren(node("ul", {}, ...operations.map(([method, path]) =>
    node("li", {}, node("a", { href: `#${encodeURI(method + path)}` },
      node("span", { class: `method ${method}` }, method.toUpperCase()), ` ${path}`)))));
  byId("operations").replaceChildren(...operations.map((one) => drawOperation(...one)));
}

startLanguage(() => description && paint());
tried(byId("trouble"), async () => {
  description = await call("GET", "/openapi.json");
  paint();
});
