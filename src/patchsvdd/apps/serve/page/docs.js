/** The API's documentation, drawn from /openapi.json: routes by tag, parameters, bodies, responses, a command for each. */

import { announce, count, h, put } from "./dom.js";

const main = document.getElementById("main");
const TAGS = {
  inspect: "Inspect", overview: "Overview", line: "Line", models: "Models", candidates: "Candidates", history: "History", review: "Review",
  train: "Jobs and training", reports: "Reports", session: "Sign-in", people: "People", health: "Health and metrics",
};
const WORDS = { get: "GET", post: "POST", put: "PUT", patch: "PATCH", delete: "DELETE" };

async function start() {
  let response;
  try {
    response = await fetch("/openapi.json", { credentials: "same-origin" });
  } catch {
    return say("The service does not respond. Is it running?");
  }
  if (response.status === 401) return location.replace("/");  // sign in first
  if (!response.ok) return say(`The description of the API cannot be read: ${response.status} ${response.statusText}`);
  return draw(await response.json());
}

const say = (words) => put(main, h("div", { class: "view" }, h("h1", {}, "API"), h("p", { class: "wrong", role: "alert" }, words)));

function draw(api) {
  const routes = Object.entries(api.paths).flatMap(([path, methods]) => Object.entries(methods).map(([method, route]) => ({ path, method, ...route })));
  const known = Object.keys(TAGS);
  const tags = [...new Set(routes.flatMap((one) => (one.tags ?? ["other"]).slice(0, 1)))];
  tags.sort((one, other) => (known.indexOf(one) + 100) % 100 - (known.indexOf(other) + 100) % 100);
  const search = h("input", { id: "search", type: "search", autocomplete: "off", spellcheck: "false", placeholder: "route, parameter, word …", oninput: () => filter(search.value) });
  const found = h("p", { class: "summary", role: "status" });
  const groups = tags.map((tag) => {
    const cards = routes.filter((one) => (one.tags ?? ["other"])[0] === tag).map((one) => card(one, api));
    return { tag, cards, el: h("section", { id: `tag-${tag}`, "aria-label": TAGS[tag] ?? tag }, h("h2", {}, TAGS[tag] ?? tag), cards.map((one) => one.el)) };
  });
  const contents = h("nav", { class: "contents", "aria-label": "Contents" }, groups.map((group) => h("a", { href: `#tag-${group.tag}` }, TAGS[group.tag] ?? group.tag, h("small", {}, count(group.cards.length, "route")))));
  const nothing = h("p", { class: "quiet", hidden: true }, "No route matches.");
  put(main, h("div", { class: "view" },
    h("div", { class: "title" }, h("h1", {}, "API"), h("p", { class: "summary" }, `${api.info.title} ${api.info.version}`), found),
    prose(api.info.description), h("p", {}, h("a", { href: "/openapi.json" }, "openapi.json"), " describes the same for programs."),
    h("div", { class: "field search" }, h("label", { for: "search" }, "Search"), search),
    h("div", { class: "docs-body" }, contents, h("div", { class: "docs-routes" }, groups.map((group) => group.el), nothing))));

  function filter(text) {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const group of groups) {
      let any = 0;
      for (const one of group.cards) {
        one.el.hidden = !words.every((word) => one.text.includes(word));
        any += one.el.hidden ? 0 : 1;
      }
      group.el.hidden = any === 0;
      shown += any;
    }
    nothing.hidden = shown > 0;
    found.textContent = words.length ? count(shown, "route") : "";
  }
  if (location.hash) document.getElementById(location.hash.slice(1))?.scrollIntoView();
}

/** Paragraphs of a docstring; `code` between backquotes. */
function prose(text) {
  return (text ?? "").split(/\n\s*\n/).filter(Boolean).map((part) => h("p", {}, part.split(/``?/).map((piece, index) => (index % 2 ? h("code", {}, piece) : piece.replace(/\n/g, " ")))));
}

function card(route, api) {
  const [head, ...rest] = (route.description ?? route.summary ?? "").split(/\n\s*\n/);
  const parameters = route.parameters ?? [];
  const bodies = Object.entries(resolve(route.requestBody, api)?.content ?? {});
  const answers = Object.entries(route.responses ?? {});
  const command = curl(route, bodies, api);
  const copy = h("button", { type: "button", onclick: () => copied(copy, command) }, "Copy");
  const text = [route.path, route.method, route.summary, route.description, ...parameters.map((one) => `${one.name} ${one.description ?? ""}`)].join(" ").toLowerCase();
  const id = `${route.method}-${route.path.replace(/[^A-Za-z0-9]+/g, "-").replace(/^-|-$/g, "")}`;
  const el = h("article", { class: "card route", id },
    h("h3", {}, h("span", { class: `method ${route.method}` }, WORDS[route.method] ?? route.method), h("code", {}, route.path)),
    prose(head), prose(rest.join("\n\n")),
    (route.security ?? []).length === 0 && h("p", { class: "quiet" }, "Needs no key."),
    h("div", { class: "command" }, h("pre", {}, h("code", {}, command)), copy),
    parameters.length > 0 && [h("h4", {}, "Parameters"), wide(h("table", {}, h("tbody", {}, parameters.map((one) => h("tr", {},
      h("th", { scope: "row" }, h("code", {}, one.name), one.required && h("small", {}, " required")), h("td", {}, one.in), h("td", {}, type(one.schema, api)), h("td", {}, one.description ?? one.schema?.description ?? ""))))))],
    bodies.length > 0 && [h("h4", {}, "Body"), bodies.map(([kind, body]) => h("details", { open: bodies.length === 1 }, h("summary", {}, h("code", {}, kind)), fields(body.schema, api)))],
    h("h4", {}, "Responses"), answers.map(([status, answer]) => {
      const schema = answer.content?.["application/json"]?.schema;
      const kinds = Object.keys(answer.content ?? {}).filter((one) => one !== "application/json" || !schema);
      const line = [h("strong", { class: status < 300 ? "fine" : "refused" }, status), " ", answer.description, kinds.length > 0 && [" · ", h("code", {}, kinds.join(", "))]];
      return schema && Object.keys(schema).length ? h("details", {}, h("summary", {}, line), fields(schema, api)) : h("p", { class: "answer" }, line);
    }));
  return { el, text };
}

const wide = (content) => h("div", { class: "docs-scroll", tabindex: "0" }, content);

/** Follow a reference into the components. */
function resolve(schema, api) {
  if (!schema?.$ref) return schema;
  return schema.$ref.split("/").slice(1).reduce((at, name) => at?.[name], api);
}

/** A schema in a few words. */
function type(schema, api) {
  if (!schema || schema === true) return "";
  if (schema.$ref) return schema.$ref.split("/").pop();
  const several = schema.anyOf ?? schema.oneOf ?? schema.allOf;
  if (several) return several.map((one) => type(one, api)).filter((one, index, all) => all.indexOf(one) === index).join(" or ");
  if (schema.enum) return schema.enum.map((one) => JSON.stringify(one)).join(" or ");
  if ("const" in schema) return JSON.stringify(schema.const);
  if (schema.type === "array") return `list of ${type(schema.items, api) || "anything"}`;
  if (schema.type === "object" && schema.additionalProperties) return `object of ${type(schema.additionalProperties, api) || "anything"}`;
  const limits = [schema.minimum !== undefined && `≥ ${schema.minimum}`, schema.exclusiveMinimum !== undefined && `> ${schema.exclusiveMinimum}`,
    schema.maximum !== undefined && `≤ ${schema.maximum}`, schema.maxLength !== undefined && `≤ ${schema.maxLength} characters`].filter(Boolean).join(", ");
  const name = schema.format === "binary" ? "file" : schema.type ?? "anything";
  const preset = schema.default === undefined || schema.default === null ? "" : `, default ${JSON.stringify(schema.default)}`;
  return `${name}${limits && ` ${limits}`}${preset}`;
}

/** Properties of a schema as a table; those of a reference can be opened. */
function fields(schema, api, depth = 0) {
  const whole = resolve(schema, api) ?? {};
  if (whole.type === "array") return [h("p", { class: "quiet" }, type(whole, api)), depth < 4 && whole.items?.$ref && fields(whole.items, api, depth + 1)];
  const several = (whole.anyOf ?? []).filter((one) => one.$ref);
  if (!whole.properties && several.length) return several.map((one) => fields(one, api, depth));
  if (!whole.properties) return h("p", { class: "quiet" }, type(whole, api) || "anything");
  const example = whole.example ?? whole.examples?.[0];
  return [whole.description && h("p", { class: "quiet" }, whole.description), example && h("pre", {}, h("code", {}, JSON.stringify(example, null, 1))),
    wide(h("table", {}, h("tbody", {}, Object.entries(whole.properties).map(([name, one]) => {
      const inner = reference(one);
      return h("tr", {}, h("th", { scope: "row" }, h("code", {}, name), (whole.required ?? []).includes(name) ? null : h("small", {}, " optional")), h("td", {}, type(one, api)),
        h("td", {}, one.description ?? "", one.examples?.length > 0 && h("span", { class: "quiet" }, ` e.g. ${JSON.stringify(one.examples[0])}`), inner && depth < 4 && later(inner, api, depth)));
    }))))];
}

/** The fields of a nested schema, drawn when they are opened. */
function later(schema, api, depth) {
  const box = h("details", { ontoggle: () => { if (box.open && box.children.length === 1) box.append(...[fields(schema, api, depth + 1)].flat(Infinity).filter(Boolean)); } }, h("summary", {}, schema.$ref.split("/").pop()));
  return box;
}

function reference(schema) {
  if (schema?.$ref) return schema;
  if (!schema || schema === true) return null;
  const parts = [...(schema.anyOf ?? []), ...(schema.allOf ?? []), ...(schema.items ? [schema.items] : [])];
  return parts.map(reference).find(Boolean) ?? null;
}

/** A command that calls the route. */
function curl(route, bodies, api) {
  const value = (one) => String(one.example ?? one.schema?.examples?.[0] ?? one.schema?.enum?.[0] ?? (one.schema?.type === "integer" || one.schema?.type === "number" ? 1 : one.name.toUpperCase()));
  let path = route.path;
  for (const one of route.parameters ?? []) if (one.in === "path") path = path.replace(`{${one.name}}`, encodeURIComponent(value(one)));
  const asked = (route.parameters ?? []).filter((one) => one.in === "query" && one.required).map((one) => `${one.name}=${encodeURIComponent(value(one))}`).join("&");
  const parts = ["curl"];
  const kinds = Object.fromEntries(bodies);
  if ((route.security ?? []).length > 0) parts.push("-H 'Authorization: Bearer psk_…'");
  if (kinds["multipart/form-data"]) {
    const form = resolve(kinds["multipart/form-data"].schema, api);
    for (const name of form.required ?? []) {
      const file = JSON.stringify(form.properties[name]).includes("binary");
      parts.push(`-F ${name}=${file ? "@part.png" : form.properties[name].example ?? "VALUE"}`);
    }
  } else if (kinds["application/json"]) {
    if (route.method !== "post") parts.push(`-X ${WORDS[route.method]}`);
    parts.push("-H 'Content-Type: application/json'", `-d '${JSON.stringify(sample(kinds["application/json"].schema, api))}'`);
  } else if (route.method !== "get") parts.push(`-X ${WORDS[route.method]}`);
  const url = `${location.origin}${path}${asked && `?${asked}`}`;
  parts.push(asked ? `'${url}'` : url);
  const files = Object.keys(resolve(route.responses?.["200"], api)?.content ?? {});
  if (files.length && !files.includes("application/json") && !files.includes("text/plain")) parts.push("-OJ");
  return parts.join(" ");
}

/** An example of a body. */
function sample(schema, api) {
  const whole = resolve(schema, api) ?? {};
  const several = (whole.anyOf ?? []).find((one) => one.$ref);
  if (several) return sample(several, api);
  if (whole.example ?? whole.examples) return whole.example ?? whole.examples[0];
  return Object.fromEntries((whole.required ?? []).map((name) => [name, whole.properties[name].examples?.[0] ?? whole.properties[name].enum?.[0] ?? "…"]));
}

async function copied(button, text) {
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
    announce("Copied");
  } catch {  // not allowed without HTTPS: select it instead
    const range = document.createRange();
    range.selectNodeContents(button.parentElement.querySelector("code"));
    getSelection().removeAllRanges();
    getSelection().addRange(range);
    button.textContent = "Selected";
  }
  setTimeout(() => { button.textContent = "Copy"; }, 2000);
}

document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
start();
