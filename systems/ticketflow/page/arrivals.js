// What arrives by itself: e-mails, figures, and how the service is.

import { at, begin as emptied, element, keep, say, shown } from "./draw.js";
import { Away, read } from "./server.js";
import { day, lasting, moment, names, one, word } from "./words.js";

const EMAILS = 30;

/** Rises when another person comes: what was asked for before is not shown to them. */
let visit = 0;
let letter = null;
let figured = null;
let well = { status: "unknown", checks: {} };

export function forget() {
  visit += 1;
  emptied(at("emails"));
  emptied(at("days"));
  figured = null;
  shown(at("figures"), false);
  at("letter").close();
}

export function translate() {
  if (figured) drawFigures();
  if (letter) open(letter);
  drawHealth();
}

/** Lets e-mails be opened and closed. */
export function begin() {
  at("letter-close").addEventListener("click", () => at("letter").close());
  at("letter").addEventListener("close", () => { letter = null; });
  at("as-html").addEventListener("click", () => as("html"));
  at("as-text").addEventListener("click", () => as("text"));
  addEventListener("message", ({ source }) => {
    if (source === at("letter-html").contentWindow) fill();
  });
}

// --- E-mails ------------------------------------------------------------------------------------------------------------

export async function emails() {
  const asked = visit;
  const { body } = await read(`/api/emails?limit=${EMAILS}`);
  if (asked !== visit) return;
  keep(at("emails"), body.items, email => email.message_id, email => {
    const button = element("button", { class: "email" },
      element("b", {}, email.subject),
      element("small", {}, word("email_to", { to: email.to })),
      element("small", {}, moment(email.sent_at)));
    button.addEventListener("click", () => open(email));
    return element("li", {}, button);
  });
  shown(at("emails-empty"), body.items.length === 0);
}

function open(email) {
  const before = letter;
  letter = email;
  say(at("letter-subject"), email.subject);
  say(at("letter-text"), email.text);
  const facts = [["To", email.to], ["Message-ID", email.message_id], ["X-Event-Id", email.event_id], ["X-Correlation-Id", email.correlation_id]];
  keep(at("letter-facts"), facts, ([name]) => name, ([name, value]) =>
    element("div", {}, element("dt", {}, name), element("dd", {}, value ?? "–")));
  if (!before) {
    as("html");
    at("letter").showModal();
  }
  fill();
}

/** The frame is filled by a message, for it has an origin of its own. It says when it is there: it may come later than the first. */
function fill() {
  if (letter) at("letter-html").contentWindow.postMessage(letter.html, "*");
}

function as(part) {
  for (const name of ["html", "text"]) {
    at(`as-${name}`).setAttribute("aria-pressed", String(name === part));
    shown(at(`letter-${name}`), name === part);
  }
}

// --- Figures ---------------------------------------------------------------------------------------------------------

/** Requesters are not shown any. */
export async function figures(me) {
  if (me.role === "requester") return;
  const asked = visit;
  const { body } = await read("/api/figures");
  if (asked !== visit) return;
  figured = body;
  drawFigures();
}

function drawFigures() {
  const { by_status, by_agent, days, pending, dead } = figured;
  const counts = names("statuses").map(status => ({ status, count: by_status[status] ?? 0 }));
  const all = counts.reduce((sum, { count }) => sum + count, 0);
  const some = counts.filter(({ count }) => count > 0);
  keep(at("bar"), some, ({ status }) => status, ({ status }) => element("span", { class: status }));
  // A property, not an attribute: the policy allows no styles in the markup.
  some.forEach(({ count }, index) => { at("bar").children[index].style.flexGrow = count; });
  keep(at("by-status"), counts, ({ status }) => status, ({ status, count }) =>
    element("li", {}, element("i", { class: status }), `${one("statuses", status)} `, element("b", {}, String(count))));
  keep(at("by-agent"), by_agent, ({ agent }) => agent?.id, ({ agent, by_status }) => {
    const has = names("statuses").filter(status => by_status[status]);
    const told = has.map(status => `${one("statuses", status)} ${by_status[status]}`).join(" · ");
    return element("li", {}, element("b", {}, agent?.name ?? word("nobody")), ` ${told}`);
  });
  keep(at("days"), days, row => `${row.day} ${row.agent?.id}`, row => element("tr", {},
    element("td", {}, day(row.day)), element("td", {}, row.agent?.name ?? "–"),
    element("td", {}, String(row.opened)), element("td", {}, String(row.resolved)),
    element("td", {}, lasting(row.first_response_seconds_avg)), element("td", {}, lasting(row.resolution_seconds_avg))));
  const lost = dead.notifications + dead.metrics;
  say(at("under-way"), `${pending} ${word("pending")} · ${lost} ${word("dead")}`);
  at("under-way").classList.toggle("bad", lost > 0);
  for (const id of ["bar", "by-status", "by-agent"]) shown(at(id), all > 0);
  shown(at("days-frame"), days.length > 0);
  shown(at("figures-empty"), all === 0 && days.length === 0);
  shown(at("figures"), true);
}

// --- Health ----------------------------------------------------------------------------------------------------------

/** How the service is. It tells that with a 503 too. */
export async function health() {
  try {
    well = (await read("/health", { refusedToo: true })).body;
  } catch (reason) {
    if (!(reason instanceof Away)) throw reason;
    well = { status: "away", checks: {} };
  }
  drawHealth();
}

function drawHealth() {
  at("health").className = well.status;
  say(at("health-word"), one("health", well.status));
  keep(at("checks"), Object.entries(well.checks ?? {}), ([name]) => name, ([name, check]) =>
    element("div", { class: check.status }, element("dt", {}, one("checks", name)), element("dd", {}, one("states", check.status))));
}
