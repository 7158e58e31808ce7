// One ticket: what it says, what may be done with it now, and what happened to it.

import { at, begin as emptied, element, keep, say, shown } from "./draw.js";
import { attempt, notice, repeatable } from "./create.js";
import { Refused, read, send } from "./server.js";
import { moment, one, word } from "./words.js";

let me = null;
/** Those whom a ticket can be assigned to; requesters are not told. */
let agents = [];
/** The id of what is looked at. */
let id = null;
/** The ticket as shown, and its ETag. */
let seen = null;
let entries = [];
/** What was typed and not sent, by ticket. */
const drafts = new Map();
/** Somebody is choosing an assignee: the choice is theirs until it is sent. */
let choosing = false;
let wake = () => {};
const once = repeatable();

const path = (rest = "") => `/api/tickets/${encodeURIComponent(id)}${rest}`;

/** Somebody else looks at tickets from now on. */
export async function meet(person) {
  me = person;
  agents = [];
  if (me.role === "requester") return;
  const roles = await Promise.all(["agent", "admin"].map(role => read(`/api/people?role=${role}`)));
  agents = roles.flatMap(({ body }) => body.items);
}

export function forget() {
  drafts.clear();
  choose(null);
}

/** Which ticket is shown; nothing for none. */
export function choose(next) {
  shown(at("ticket"), false);
  if (next === id) return shown(at("ticket"), seen !== null);
  if (id) drafts.set(id, at("body").value);
  id = next;
  seen = null;
  entries = [];
  choosing = false;
  notice("");
  at("body").value = drafts.get(id) ?? "";
  say(at("body-fault"), "");
  emptied(at("history"));
  emptied(at("moves"));
}

/** Reads the ticket again, and shows what is new. */
export async function look() {
  const asked = id;
  const whose = me;
  const isAsked = () => asked === id && whose === me;
  if (!asked) return;
  try {
    const [found, history] = await Promise.all([read(path()), read(path("/history"))]);
    if (isAsked()) show(found, history.body.items);
  } catch (reason) {
    if (reason instanceof Refused && [403, 404].includes(reason.status) && isAsked()) {
      shown(at("ticket"), false);
      notice(word("gone"));
    } else throw reason;
  }
}

export function translate() {
  if (seen) draw();
}

/** Lets the ticket be changed; `woken` has the page look at once. */
export function begin(woken) {
  wake = woken;
  at("assignee").addEventListener("input", () => { choosing = true; });
  at("assign").addEventListener("submit", event => {
    event.preventDefault();
    change(at("assign"), "/assignee", { assignee: at("assignee").value || null });
  });
  at("take").addEventListener("click", () => change(at("assign"), "/assignee", { assignee: me.id }));
  at("comment").addEventListener("submit", async event => {
    event.preventDefault();
    const body = { body: at("body").value };
    const written = await attempt(at("comment"), () => send(path("/comments"), body, { once: once([id, body]) }));
    if (!written) return;
    once(null); // The same words again are another comment.
    at("body").value = "";
    wake();
  });
}

function show(found, items) {
  const first = seen === null;
  // A look that began before a change of ours may end after it.
  if (!first && found.body.version < seen.body.version) return;
  const others = items.slice(entries.length).filter(({ actor }) => actor.id !== me.id);
  if (!first && seen.body.version !== found.body.version && others.length > 0) {
    notice(word("changed", { name: others.at(-1).actor.name }), "news");
  }
  seen = found;
  entries = items;
  draw();
  shown(at("ticket"), true);
  if (first) at("ticket-title").focus({ preventScroll: true });
}

function draw() {
  const ticket = seen.body;
  say(at("ticket-number"), `#${ticket.number}`);
  chip(at("ticket-status"), ticket.status, one("statuses", ticket.status));
  chip(at("ticket-priority"), `priority-${ticket.priority}`, one("priorities", ticket.priority));
  say(at("ticket-title"), ticket.title);
  say(at("ticket-description"), ticket.description);
  say(at("ticket-requester"), `${ticket.requester.name}, ${moment(ticket.created_at)}`);
  say(at("ticket-assignee"), ticket.assignee?.name ?? word("nobody"));
  say(at("ticket-response"), ticket.first_response_at ? moment(ticket.first_response_at) : word("not_yet"));
  say(at("ticket-resolved"), ticket.resolved_at ? moment(ticket.resolved_at) : word("not_yet"));
  keep(at("moves"), ticket.allowed.map(to => ({ from: ticket.status, to })), ({ to }) => to, move);
  shown(at("no-moves"), ticket.allowed.length === 0);
  // The service takes neither once a ticket is closed.
  shown(at("assign"), agents.length > 0 && ticket.status !== "closed");
  shown(at("comment"), ticket.status !== "closed");
  shown(at("take"), ticket.assignee?.id !== me.id);
  if (!choosing) candidates(ticket.assignee?.id ?? "");
  keep(at("history"), entries.map((entry, index) => ({ ...entry, index })), ({ index }) => index, happened);
}

/** A button for a status that may be set now. */
function move({ from, to }) {
  const label = from === "resolved" && to === "in_progress" ? word("reopen") : one("moves", to);
  const button = element("button", { type: "button", "data-status": to, class: to === "closed" || to === "open" ? "quiet" : null }, label);
  button.addEventListener("click", () => change(at("moves"), "/status", { status: to }));
  return button;
}

function candidates(chosen) {
  const told = JSON.stringify([document.documentElement.lang, agents]);
  const select = at("assignee");
  if (select.told !== told) {
    const people = agents.map(({ id, name }) => element("option", { value: id }, name));
    select.replaceChildren(element("option", { value: "" }, word("nobody")), ...people);
    select.told = told;
  }
  if (select.value !== chosen) select.value = chosen;
}

/** Changes what the person saw, and nothing newer: a stale change is told, and the newer ticket shown. */
async function change(form, rest, body) {
  const asked = id;
  const match = seen.etag;
  const changed = await attempt(form, () => send(path(rest), body, { match, once: once([id, match, rest, body]) }), async refused => {
    if (refused.status !== 412) return false;
    notice(word("stale"));
    choosing = false;
    const [found, history] = await Promise.all([read(path()), read(path("/history"))]);
    if (asked === id) {
      [seen, entries] = [found, history.body.items];
      draw();
    }
    return true;
  });
  if (!changed || asked !== id) return;
  choosing = false;
  if (changed.body.version > seen.body.version) seen = changed;
  draw();
  wake();
}

function happened(entry) {
  const name = entry.actor.name;
  const sentence = {
    created: () => word("is_open", { name }),
    status: () => word("is_status", { name, from: one("statuses", entry.from), to: one("statuses", entry.to) }),
    assigned: () => assigned(entry),
    comment: () => word("is_comment", { name }),
  }[entry.kind];
  return element("li", { class: entry.kind },
    element("p", {}, element("span", {}, sentence()), element("time", { datetime: entry.at, title: entry.correlation_id }, moment(entry.at))),
    entry.comment ? element("blockquote", { class: "prose" }, entry.comment) : null);
}

function assigned({ actor, to }) {
  if (!to) return word("is_unassigned", { name: actor.name });
  if (to === actor.id) return word("is_taken", { name: actor.name });
  // The history names people by their id, and requesters cannot look everybody up.
  const known = [...agents, me, seen.body.assignee].find(person => person?.id === to);
  return word("is_assigned", { name: actor.name, to: known?.name ?? word("somebody") });
}

function chip(node, kind, text) {
  node.className = `chip ${kind}`;
  say(node, text);
}
