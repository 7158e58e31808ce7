// Every word of the page, in English and Spanish. `{name}` is filled in.

const en = {
  "statuses": { open: "Open", in_progress: "In progress", waiting: "Waiting", resolved: "Resolved", closed: "Closed" },
  "moves": { open: "Back to open", in_progress: "Work on it", waiting: "Wait", resolved: "Resolve", closed: "Close" },
  "priorities": { low: "Low", normal: "Normal", high: "High", urgent: "Urgent" },
  "roles": { requester: "Requester", agent: "Agent", admin: "Admin" },
  "skip": "To the tickets",
  "enter": "Enter",
  "leave": "Leave",
  "who": "Who are you?",
  "who_sample": "These people are samples. Open a second tab to be two of them at once.",
  "who_token": "Paste the token that you were given.",
  "unknown_token": "Nobody has this token.",
  "tickets": "Tickets",
  "new": "New ticket",
  "search": "Search",
  "status": "Status",
  "any_status": "Status",
  "priority": "Priority",
  "any_priority": "Priority",
  "assignee": "Assigned to",
  "anybody": "Assigned",
  "me": "Me",
  "nobody": "Nobody",
  "somebody": "somebody else",
  "more": "More",
  "no_tickets": "No ticket here.",
  "choose": "Choose a ticket, or open one.",
  "title": "Title",
  "description": "Description",
  "create": "Open ticket",
  "cancel": "Cancel",
  "back": "All tickets",
  "requester": "Opened by",
  "first_response": "First response",
  "resolved": "Resolved",
  "not_yet": "not yet",
  "next": "Next",
  "reopen": "Reopen",
  "no_next": "Nothing more to do here.",
  "assign": "Assign",
  "take": "Take it",
  "history": "History",
  "comment": "Comment",
  "send": "Send comment",
  "is_open": "{name} opened the ticket",
  "is_status": "{name}: {from} → {to}",
  "is_assigned": "{name} assigned it to {to}",
  "is_taken": "{name} took it",
  "is_unassigned": "{name} took the assignment away",
  "is_comment": "{name} wrote",
  "stale": "Somebody changed this ticket meanwhile, so nothing was done. This is how it is now.",
  "changed": "{name} has just changed this ticket.",
  "gone": "There is no such ticket, or it is not yours.",
  "failed": "That did not work: {why}",
  "no_answer": "The service does not answer. What you wrote is still here; try again.",
  "emails": "E-mails",
  "no_emails": "None yet. They come when a ticket is opened, assigned or changes its status.",
  "email_to": "to {to}",
  "text": "Text",
  "html": "HTML",
  "close": "Close",
  "figures": "Figures",
  "no_figures": "None yet.",
  "day": "Day",
  "agent": "Agent",
  "opened_count": "Opened",
  "resolved_count": "Resolved",
  "response_avg": "First response",
  "resolution_avg": "Resolution",
  "pending": "under way",
  "dead": "failed for good",
  "health": { ok: "All well", degraded: "Degraded", down: "Down", away: "No answer", unknown: "…" },
  "checks": { database: "Database", broker: "Broker", worker: "Worker" },
  "states": { ok: "well", up: "well", degraded: "degraded", down: "down", away: "away", stale: "silent", unknown: "unknown" },
  "codes": { missing: "Is missing.", empty: "Cannot be left empty." },
};

const es = {
  "statuses": { open: "Abierto", in_progress: "En curso", waiting: "En espera", resolved: "Resuelto", closed: "Cerrado" },
  "moves": { open: "Volver a abierto", in_progress: "Trabajar en él", waiting: "Poner en espera", resolved: "Resolver", closed: "Cerrar" },
  "priorities": { low: "Baja", normal: "Normal", high: "Alta", urgent: "Urgente" },
  "roles": { requester: "Solicitante", agent: "Agente", admin: "Administración" },
  "skip": "Ir a los tickets",
  "enter": "Entrar",
  "leave": "Salir",
  "who": "¿Quién eres?",
  "who_sample": "Son personas de ejemplo. Abre otra pestaña para ser dos a la vez.",
  "who_token": "Pega el token que te dieron.",
  "unknown_token": "Nadie tiene este token.",
  "tickets": "Tickets",
  "new": "Nuevo ticket",
  "search": "Buscar",
  "status": "Estado",
  "any_status": "Estado",
  "priority": "Prioridad",
  "any_priority": "Prioridad",
  "assignee": "Asignado a",
  "anybody": "Asignado",
  "me": "Mí",
  "nobody": "Nadie",
  "somebody": "otra persona",
  "more": "Más",
  "no_tickets": "Aquí no hay tickets.",
  "choose": "Elige un ticket o abre uno.",
  "title": "Título",
  "description": "Descripción",
  "create": "Abrir ticket",
  "cancel": "Cancelar",
  "back": "Todos los tickets",
  "requester": "Abierto por",
  "first_response": "Primera respuesta",
  "resolved": "Resuelto",
  "not_yet": "todavía no",
  "next": "Siguiente",
  "reopen": "Reabrir",
  "no_next": "Aquí no queda nada por hacer.",
  "assign": "Asignar",
  "take": "Me lo quedo",
  "history": "Historia",
  "comment": "Comentario",
  "send": "Enviar comentario",
  "is_open": "{name} abrió el ticket",
  "is_status": "{name}: {from} → {to}",
  "is_assigned": "{name} lo asignó a {to}",
  "is_taken": "{name} se lo quedó",
  "is_unassigned": "{name} quitó la asignación",
  "is_comment": "{name} escribió",
  "stale": "Alguien cambió este ticket entretanto, así que no se hizo nada. Así está ahora.",
  "changed": "{name} acaba de cambiar este ticket.",
  "gone": "No existe ese ticket, o no es tuyo.",
  "failed": "No pudo ser: {why}",
  "no_answer": "El servicio no responde. Lo que escribiste sigue aquí; inténtalo de nuevo.",
  "emails": "Correos",
  "no_emails": "Ninguno todavía. Llegan cuando un ticket se abre, se asigna o cambia de estado.",
  "email_to": "para {to}",
  "text": "Texto",
  "html": "HTML",
  "close": "Cerrar",
  "figures": "Cifras",
  "no_figures": "Ninguna todavía.",
  "day": "Día",
  "agent": "Agente",
  "opened_count": "Abiertos",
  "resolved_count": "Resueltos",
  "response_avg": "Primera respuesta",
  "resolution_avg": "Resolución",
  "pending": "en camino",
  "dead": "fallidos",
  "health": { ok: "Todo bien", degraded: "Degradado", down: "Caído", away: "Sin respuesta", unknown: "…" },
  "checks": { database: "Base de datos", broker: "Broker", worker: "Worker" },
  "states": { ok: "bien", up: "bien", degraded: "degradado", down: "caído", away: "sin conexión", stale: "en silencio", unknown: "desconocido" },
  "codes": {
    missing: "Falta.",
    empty: "No puede quedar vacío.",
    too_long: "Es demasiado largo.",
    control_character: "Tiene un carácter de control.",
    malformed: "No tiene la forma debida.",
    unknown: "No es un valor conocido.",
  },
};

const languages = { en, es };
let words = languages[localStorage.getItem("language")] ?? (navigator.language.startsWith("es") ? es : en);

export const language = () => (words === es ? "es" : "en");

export function speak(name) {
  words = languages[name];
  localStorage.setItem("language", name);
}

/** A sentence, with what it speaks of filled in. */
export function word(name, values = {}) {
  return words[name].replace(/\{(\w+)\}/g, (_, value) => values[value]);
}

/** One of a set of words, such as a status; what is not known is shown as it came. */
export const one = (set, name) => words[set][name] ?? name;

/** The names in a set of words, in the order in which they are shown. */
export const names = set => Object.keys(en[set]);

/** What is wrong with a field: in the reader's language where its code is known. */
export const fault = ({ code, message }) => words.codes[code] ?? message;

const date = options => moment => new Intl.DateTimeFormat(language(), options).format(new Date(moment));

export const moment = date({ day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
export const day = text => date({ day: "numeric", month: "short", timeZone: "UTC" })(`${text}T00:00:00Z`);

/** A duration for people: its two largest units. */
export function lasting(seconds) {
  if (seconds == null) return "–";
  if (seconds < 10) return `${new Intl.NumberFormat(language(), { maximumFractionDigits: 1 }).format(seconds)} s`;
  const whole = Math.round(seconds);
  const parts = [[Math.floor(whole / 86_400), "d"], [Math.floor(whole / 3_600) % 24, "h"], [Math.floor(whole / 60) % 60, "min"], [whole % 60, "s"]];
  const first = parts.findIndex(([count]) => count > 0);
  return parts.slice(first, first + 2).filter(([count]) => count > 0).map(([count, unit]) => `${count} ${unit}`).join(" ");
}
