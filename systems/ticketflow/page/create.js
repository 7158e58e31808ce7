// The form that opens a ticket, and what forms have in common: faults stand beside their fields, and nothing typed is lost.

import { at, say } from "./draw.js";
import { Away, Refused, key, send } from "./server.js";
import { fault, word } from "./words.js";

const NEWS_MS = 10_000;
let old;

/** One key for each text: sent twice it is one ticket, changed it is another. */
const once = repeatable();

/** Lets tickets be opened; `then` is told the id of a new one. */
export function begin(then) {
  at("create").addEventListener("submit", async event => {
    event.preventDefault();
    const body = { title: at("title").value, description: at("description").value, priority: at("priority").value };
    const made = await attempt(at("create"), () => send("/api/tickets", body, { once: once(body) }));
    if (!made) return;
    forget();
    then(made.body.id);
  });
}

/** Empties the form. The same words again are another ticket. */
export function forget() {
  once(null);
  clear(at("create"));
  at("create").reset();
  at("priority").value = "normal";
}

/** Gives the same key for the same request, and a new one for another. */
export function repeatable() {
  let last = { told: null, key: null };
  return request => {
    const told = JSON.stringify(request);
    if (last.told !== told) last = { told, key: key() };
    return last.key;
  };
}

/** Sends what a form holds: its buttons rest meanwhile, and what is refused is said where it belongs. Returns nothing then. */
export async function attempt(form, sending, refused = () => false) {
  const buttons = [...form.querySelectorAll("button")];
  for (const button of buttons) button.setAttribute("aria-disabled", "true");
  clear(form);
  notice("");
  try {
    return await sending();
  } catch (reason) {
    if (reason instanceof Away) notice(word("no_answer"));
    else if (!(reason instanceof Refused)) throw reason;
    else if (!(await refused(reason)) && !faults(form, reason.problem.errors ?? [])) {
      notice(word("failed", { why: reason.message }));
    }
    return undefined;
  } finally {
    for (const button of buttons) button.removeAttribute("aria-disabled");
  }
}

/** Something that concerns the whole ticket; read aloud. News grow old, what went wrong stays. */
export function notice(text, kind = "bad") {
  if (kind === "news" && at("notice").classList.contains("bad")) return;
  clearTimeout(old);
  if (kind === "news") old = setTimeout(notice, NEWS_MS, "");
  at("notice").className = text ? `card ${kind}` : "";
  say(at("notice"), text);
}

/** Says every fault beside its field, and goes to the first. Whether all found their place. */
function faults(form, errors) {
  const placed = errors.filter(({ field }) => named(form, field));
  for (const error of placed) {
    named(form, error.field).setAttribute("aria-invalid", "true");
    say(at(`${error.field}-fault`), fault(error));
  }
  if (placed.length > 0) named(form, placed[0].field).focus();
  return placed.length > 0 && placed.length === errors.length;
}

function clear(form) {
  for (const field of form.querySelectorAll("[name]")) {
    field.removeAttribute("aria-invalid");
    say(at(`${field.name}-fault`), "");
  }
}

const named = (form, field) => form.querySelector(`[name="${CSS.escape(field)}"]`);
