-- What the worker keeps: e-mails that were sent, and figures. Each row is written in the transaction that enters its event into the
-- inbox, and so once. Times are milliseconds since 1970, ids are text.

CREATE TABLE email (
    -- Without the angle brackets; the same at every try.
    message_id     TEXT PRIMARY KEY,
    event_id       TEXT NOT NULL,
    ticket_id      TEXT NOT NULL,
    person_id      TEXT NOT NULL,
    recipient      TEXT NOT NULL,
    subject        TEXT NOT NULL,
    language       TEXT NOT NULL,
    correlation_id TEXT NOT NULL,
    body_text      TEXT NOT NULL,
    body_html      TEXT NOT NULL,
    sent_at        INTEGER NOT NULL
) STRICT;
CREATE INDEX email_sent_at_idx ON email (sent_at);
CREATE INDEX email_ticket_idx ON email (ticket_id, sent_at);
CREATE INDEX email_person_idx ON email (person_id, sent_at);

-- A ticket as far as the figures know it.
CREATE TABLE figure_ticket (
    ticket_id         TEXT PRIMARY KEY,
    number            INTEGER NOT NULL,
    status            TEXT NOT NULL,
    requester_id      TEXT NOT NULL,
    agent_id          TEXT,
    agent_name        TEXT,
    opened_at         INTEGER NOT NULL,
    first_response_at INTEGER,
    resolved_at       INTEGER,
    -- Of the event that was counted last.
    version           INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- What happened on a day (UTC, as 2026-11-16), by whoever did it; tickets are opened by nobody's doing of ours.
CREATE TABLE figure_day (
    day               TEXT NOT NULL,
    agent_id          TEXT,
    agent_name        TEXT,
    opened            INTEGER NOT NULL DEFAULT 0,
    resolved          INTEGER NOT NULL DEFAULT 0,
    first_responses   INTEGER NOT NULL DEFAULT 0,
    -- Sums: divided by the counts they are averages.
    first_response_ms INTEGER NOT NULL DEFAULT 0,
    resolution_ms     INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE UNIQUE INDEX figure_day_idx ON figure_day (day, coalesce(agent_id, ''));
