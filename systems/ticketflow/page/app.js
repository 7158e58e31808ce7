// The page: who one is, which ticket is looked at, and one look a second at what changed.

import { at, begin, element, keep, say, shown } from "./draw.js";
import { Away, Refused, become, isSomebody, read } from "./server.js";
import { language, names, one, speak, word } from "./words.js";
import * as arrivals from "./arrivals.js";
import * as create from "./create.js";
import * as ticket from "./ticket.js";

const LOOK_MS = 1_000;
const PAGE = 25;

/** Who one is, or nobody. */
let me = null;
/** Whom one can be without a token of one's own. */
let people = [];
/** How many pages of the list are shown. */
let pages = 1;
/** Ends the pause between two looks. */
let wake = () => {};

// --- One look a second, while somebody can see it -----------------------------------------------------------------

async function live() {
  for (;;) {
    if (!document.hidden) await look();
    await new Promise(done => {
      wake = done;
      setTimeout(done, LOOK_MS);
    });
  }
}

async function look() {
  const parts = [arrivals.health()];
  if (me) parts.push(list(), ticket.look(), arrivals.emails(), arrivals.figures(me));
  for (const part of await Promise.allSettled(parts)) {
    if (part.status === "rejected") missed(part.reason);
  }
}

/** A look that failed leaves what is shown. Only a token that is no longer known changes who one is. */
function missed(reason) {
  if (reason instanceof Refused && reason.status === 401) leave();
  // Neither an answer nor the lack of one: a fault of this page.
  else if (!(reason instanceof Refused || reason instanceof Away)) console.error(reason);
}

// --- Who one is ----------------------------------------------------------------------------------------------------

async function enter(token) {
  say(at("token-fault"), "");
  become(token);
  try {
    const { body } = await read("/api/me");
    forget();
    await ticket.meet(body);
    me = body;
  } catch (reason) {
    const isUnknown = reason instanceof Refused && reason.status === 401;
    // Whatever else went wrong, it may still be right: another load of the page tries it again.
    if (isUnknown) become(null);
    const why = reason instanceof Away ? word("no_answer") : word("failed", { why: reason.message });
    say(at("token-fault"), isUnknown ? word("unknown_token") : why);
    return;
  }
  at("token").value = "";
  route();
}

function leave() {
  become(null);
  me = null;
  forget();
  route();
}

/** Nothing of what another person saw stays on the page. */
function forget() {
  pages = 1;
  begin(at("list"));
  create.forget();
  ticket.forget();
  arrivals.forget();
}

/** The people of the sample, if there is one: a visitor can be any of them. */
async function offer() {
  const answer = await fetch("/assets/people.json").catch(() => null);
  people = answer?.ok ? (await answer.json()).items : [];
  drawPeople();
}

function drawPeople() {
  keep(at("people"), people, person => person.token, person => {
    const button = element("button", { class: "person" },
      element("b", {}, person.name), element("small", {}, `${one("roles", person.role)} · ${person.language.toUpperCase()}`));
    button.addEventListener("click", () => enter(person.token));
    return element("li", {}, button);
  });
  for (const id of ["people", "who-sample"]) shown(at(id), people.length > 0);
}

// --- What is looked at -----------------------------------------------------------------------------------------------

function route() {
  const [, place, id] = location.hash.split("/");
  const view = !me ? "who" : place === "new" ? "new" : place === "tickets" && id ? "ticket" : "list";
  const isNew = document.body.dataset.view !== view;
  document.body.dataset.view = view;
  shown(at("who"), view === "who");
  for (const part of ["tickets", "desk", "arrivals", "me", "leave"]) shown(at(part), view !== "who");
  shown(at("choose"), view === "list");
  shown(at("create"), view === "new");
  if (me) say(at("me"), `${me.name} · ${one("roles", me.role)}`);
  ticket.choose(view === "ticket" ? decoded(id) : null);
  mark();
  if (isNew && view === "new") at("title").focus();
  if (isNew && view === "who") (document.querySelector("#people button") ?? at("token")).focus();
  wake();
}

/** As it was before it stood in an address; what never was is taken as it is, and no ticket has that id. */
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** The ticket that is shown is marked in the list. */
function mark() {
  for (const link of at("list").querySelectorAll("a")) {
    if (link.hash === location.hash) link.setAttribute("aria-current", "true");
    else link.removeAttribute("aria-current");
  }
}

// --- The list --------------------------------------------------------------------------------------------------------

async function list() {
  const asked = filters().toString();
  const whose = me;
  const items = [];
  let next = null;
  for (let page = 0; page < pages; page += 1) {
    const query = new URLSearchParams(asked);
    if (next) query.set("cursor", next);
    const { body } = await read(`/api/tickets?${query}`);
    items.push(...body.items);
    next = body.next;
    if (!next) break;
  }
  // The answer to an older question, or to another person, is not shown.
  if (!me || me !== whose || asked !== filters().toString()) return;
  keep(at("list"), items, item => item.id, line);
  shown(at("list-empty"), items.length === 0);
  shown(at("more"), next !== null);
  mark();
}

function line({ id, number, title, status, priority, assignee, requester }) {
  const people = assignee ? `${requester.name} → ${assignee.name}` : requester.name;
  return element("li", {}, element("a", { href: `#/tickets/${id}` },
    element("span", { class: "number" }, `#${number}`),
    element("span", { class: "title" }, title),
    element("span", { class: "people" }, people),
    element("span", { class: "chips" },
      priority === "normal" ? null : element("span", { class: `chip priority-${priority}` }, one("priorities", priority)),
      element("span", { class: `chip ${status}` }, one("statuses", status)))));
}

function filters() {
  const query = new URLSearchParams({ limit: PAGE });
  for (const [name, id] of [["q", "q"], ["status", "status"], ["priority", "by-priority"], ["assignee", "by-assignee"]]) {
    const value = at(id).value.trim();
    if (value) query.set(name, value);
  }
  return query;
}

function refilter() {
  pages = 1;
  begin(at("list"));
  wake();
}

// --- Language -----------------------------------------------------------------------------------------------------------

function translate() {
  document.documentElement.lang = language();
  for (const node of document.querySelectorAll("[data-say]")) say(node, word(node.dataset.say));
  for (const node of document.querySelectorAll("[data-label]")) node.setAttribute("aria-label", word(node.dataset.label));
  at("q").placeholder = word("search");
  for (const name of ["en", "es"]) at(name).setAttribute("aria-pressed", String(name === language()));
  options(at("status"), [["", word("any_status")], ...worded("statuses")]);
  options(at("by-priority"), [["", word("any_priority")], ...worded("priorities")]);
  options(at("by-assignee"), [["", word("anybody")], ["me", word("me")], ["none", word("nobody")]]);
  options(at("priority"), worded("priorities"), "normal");
}

const worded = set => names(set).map(name => [name, one(set, name)]);

/** Fills a choice; what was chosen stays chosen. */
function options(select, pairs, first) {
  const chosen = select.value || first;
  select.replaceChildren(...pairs.map(([value, text]) => element("option", { value }, text)));
  if (chosen) select.value = chosen;
}

// --- Begin -----------------------------------------------------------------------------------------------------------

for (const name of ["en", "es"]) {
  at(name).addEventListener("click", () => {
    speak(name);
    translate();
    drawPeople();
    ticket.translate();
    arrivals.translate();
    route();
  });
}
at("with-token").addEventListener("submit", event => {
  event.preventDefault();
  enter(at("token").value.trim());
});
at("leave").addEventListener("click", leave);
at("filters").addEventListener("submit", event => event.preventDefault());
at("filters").addEventListener("input", refilter);
at("more").addEventListener("click", () => {
  pages += 1;
  wake();
});
document.querySelector(".skip").addEventListener("click", event => {
  // The address stays that of what is looked at.
  event.preventDefault();
  at(me ? "tickets" : "who").focus();
});
addEventListener("hashchange", route);
document.addEventListener("visibilitychange", () => wake());
document.addEventListener("keydown", event => {
  if (!me || event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, textarea, select")) return;
  if (event.key === "n") location.hash = "#/new";
  else if (event.key === "/") at("q").focus();
  else return;
  event.preventDefault();
});

create.begin(id => { location.hash = `#/tickets/${id}`; });
ticket.begin(() => wake());
arrivals.begin();
translate();
await offer();
if (isSomebody()) await enter(sessionStorage.getItem("token"));
route();
live();
