// Draws the page of the API from /openapi.json: each operation with its parameters, body, answers and a curl line.

import { call } from "./api.js";
import { byId, node, tried } from "./nodes.js";
import { say, startLanguage } from "./words.js";

const METHODS = ["get", "post", "put", "patch", "delete"];
let description = null;

const resolved = (part) =>
  part?.$ref ? part.$ref.slice(2).split("/").reduce((at, key) => at?.[key.replaceAll("~1", "/").replaceAll("~0", "~")], description) : part;

/** A schema in the manner of TypeScript; one that holds itself is named the second time. */
function sketch(schema, indent = "", within = []) {
  const name = schema?.$ref?.split("/").at(-1);
  if (name && within.includes(name)) return name;
  const inner = name ? [...within, name] : within;
  const { type, enum: values, const: value, anyOf, oneOf, allOf, items, prefixItems, ...more } = resolved(schema) ?? {};
  const { properties, additionalProperties, required = [], format } = more;
  if (value !== undefined) return JSON.stringify(value);
  if (values) return values.map((one) => JSON.stringify(one)).join(" | ");
  const choice = anyOf ?? oneOf ?? allOf;
  if (choice) return [...new Set(choice.map((one) => sketch(one, indent, inner)))].join(allOf ? " & " : " | ");
  if (prefixItems) return `[${prefixItems.map((one) => sketch(one, indent, inner)).join(", ")}]`;
  if (type === "array") return `[${items ? sketch(items, indent, inner) : ""}, …]`;
  if (properties) {
    const mark = (key) => (required.includes(key) ? "" : "?");
    const lines = Object.entries(properties).map(([key, one]) => `${indent}  "${key}"${mark(key)}: ${sketch(one, indent + "  ", inner)}`);
    return `{\n${lines.join(",\n")}\n${indent}}`;
  }
  if (additionalProperties && additionalProperties !== true) return `{ …: ${sketch(additionalProperties, indent, inner)} }`;
  if (Array.isArray(type)) return type.join(" | ");
  return [type ?? "any", format && `(${format})`].filter(Boolean).join(" ");
}

const quoted = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

/** An example of a value; strings stand for themselves in angle brackets where nothing better is known. */
function exampleOf(schema, name, depth = 0) {
  const { example, examples, default: usual, enum: values, anyOf, oneOf, type, items, properties } = resolved(schema) ?? {};
  const known = example ?? examples?.[0] ?? usual ?? values?.[0];
  if (known !== undefined && known !== null) return known;
  if (anyOf ?? oneOf) return exampleOf((anyOf ?? oneOf)[0], name, depth);
  const entries = Object.entries(properties ?? {});
  if (properties && depth < 3) return Object.fromEntries(entries.map(([key, one]) => [key, exampleOf(one, key, depth + 1)]));
  if (type === "array") return [exampleOf(items, name, depth + 1)];
  return { integer: 1, number: 1, boolean: true }[type] ?? name.toUpperCase();
}

function curl(method, path, parameters, body) {
  const value = (p) => encodeURIComponent(p.example ?? exampleOf(p.schema, p.name));
  const ofPath = (name) => parameters.find((p) => p.in === "path" && p.name === name);
  const filledPath = path.replace(/\{(\w+)\}/g, (_, name) => (ofPath(name) ? value(ofPath(name)) : name.toUpperCase()));
  const query = parameters.filter((p) => p.in === "query" && p.required).map((p) => `${p.name}=${value(p)}`).join("&");
  const types = Object.keys(body?.content ?? {}), json = body?.content?.["application/json"];
  const image = types.find((type) => type.startsWith("image/") && !type.includes("*")) ?? "application/octet-stream";
  const words = ["curl"];
  if (method !== "get" && !(method === "post" && types.length)) words.push("-X", method.toUpperCase());
  if (json) words.push("-H 'Content-Type: application/json' -d", quoted(JSON.stringify(exampleOf(json.schema, "body"))));
  else if (types.length) words.push("-H", quoted(`Content-Type: ${image}`), "--data-binary @photo.jpg");
  return [...words, quoted(location.origin + filledPath + (query && "?" + query))].join(" ");
}

function drawContent(content) {
  return Object.entries(content ?? {}).flatMap(([type, { schema }]) => [
    node("p", { class: "facts" }, type),
    ...(schema ? [node("pre", { tabindex: 0, role: "group", "aria-label": type }, sketch(schema))] : []),
  ]);
}

function drawParameters(parameters) {
  const usual = (schema) => (schema?.default === undefined ? "" : ` = ${JSON.stringify(schema.default)}`);
  const head = ["name", "where", "type", "meaning"].map((word) => node("th", { scope: "col" }, say(word)));
  const rows = parameters.map((p) => node("tr", {},
    node("th", { scope: "row" }, node("code", {}, p.name)),
    node("td", {}, p.in + (p.required ? `, ${say("required")}` : "")),
    node("td", {}, node("code", {}, sketch(p.schema) + usual(resolved(p.schema)))),
    node("td", { lang: "en" }, p.description ?? resolved(p.schema)?.description ?? "")));
  const table = node("table", {}, node("thead", {}, node("tr", {}, ...head)), node("tbody", {}, ...rows));
  return [
    node("h3", {}, say("parameters")),
    node("div", { class: "wide", tabindex: 0, role: "group", "aria-label": say("parameters") }, table),
  ];
}

function drawOperation(method, path, operation, shared) {
  const parameters = [...shared, ...(operation.parameters ?? [])].map(resolved);
  const body = resolved(operation.requestBody);
  const text = operation.description !== operation.summary && operation.description;
  return node("section", { id: `${method}${path}`, class: "operation" },
    node("h2", {}, node("span", { class: `method ${method}` }, method.toUpperCase()), " ", node("code", {}, path)),
    operation.summary && node("p", { class: "summary", lang: "en" }, operation.summary),
    text && node("p", { class: "text", lang: "en" }, text),
    ...(parameters.length ? drawParameters(parameters) : []),
    body && node("h3", {}, say("body")),
    body?.description && node("p", { lang: "en" }, body.description),
    ...drawContent(body?.content),
    node("h3", {}, say("answers")),
    ...Object.entries(operation.responses ?? {}).map(([status, answer]) => {
      const { description: meaning, content } = resolved(answer);
      const summary = node("summary", {}, node("b", {}, status), " ", node("span", { lang: "en" }, meaning ?? ""));
      return node("details", {}, summary, ...drawContent(content));
    }),
    node("h3", {}, say("example")),
    node("pre", { tabindex: 0, role: "group", "aria-label": say("example") }, curl(method, path, parameters, body)));
}

function paint() {
  const operations = Object.entries(description.paths).flatMap(([path, item]) =>
    METHODS.filter((method) => item[method]).map((method) => [method, path, item[method], item.parameters ?? []]));
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
