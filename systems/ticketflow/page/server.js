// Calls to the service. An answer that did not change is not sent again: what was read is kept with its ETag.

const DEADLINE_MS = 10_000;
const known = new Map();
let token = sessionStorage.getItem("token");

/** The service said no: `problem` is its problem+json, or nothing where it could not be read. */
export class Refused extends Error {
  constructor(status, problem) {
    super(problem.detail ?? problem.title ?? `HTTP ${status}`);
    this.status = status;
    this.problem = problem;
  }
}

/** The service did not answer. */
export class Away extends Error {}

/** Whose token is sent from now on; each tab has its own, so two tabs can be two people. */
export function become(other) {
  token = other;
  known.clear();
  if (other) sessionStorage.setItem("token", other);
  else sessionStorage.removeItem("token");
}

export const isSomebody = () => Boolean(token);

/** Reads; the body may be the one of last time, and is then the same object. */
export async function read(path, { refusedToo = false } = {}) {
  const asWhom = token;
  const before = known.get(path);
  const answer = await call(path, { headers: before?.etag ? { "if-none-match": before.etag } : {} });
  if (answer.status === 304 && before) return before;
  const { text, etag } = answer;
  if (!answer.ok && !refusedToo) throw new Refused(answer.status, parsed(text));
  const found = before?.text === text && before.etag === etag ? before : { body: parsed(text), etag, text };
  if (asWhom === token) known.set(path, found);
  return found;
}

/** Changes something. `once` is the key that makes a repeat harmless; `match` is the ETag of what the person saw. */
export async function send(path, body, { once, match } = {}) {
  const headers = { "content-type": "application/json" };
  if (once) headers["idempotency-key"] = once;
  if (match) headers["if-match"] = match;
  const answer = await call(path, { method: "POST", headers, body: JSON.stringify(body) });
  if (!answer.ok) throw new Refused(answer.status, parsed(answer.text));
  return { body: parsed(answer.text), etag: answer.etag };
}

/** A key for `send`. Browsers have `randomUUID` only on safe connections. */
export function key() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map(byte => byte.toString(16).padStart(2, "0")).join("");
}

async function call(path, { headers, ...rest }) {
  const login = token ? { authorization: `Bearer ${token}` } : {};
  // The keeping is done here: the browser's own would hide the 304.
  const options = { ...rest, headers: { ...headers, ...login }, cache: "no-store", credentials: "omit" };
  try {
    const answer = await fetch(path, { ...options, signal: AbortSignal.timeout(DEADLINE_MS) });
    return { status: answer.status, ok: answer.ok, etag: answer.headers.get("etag"), text: await answer.text() };
  } catch (cause) {
    throw new Away("no answer", { cause });
  }
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return {};
  }
}
