-- People, tickets, what was written under them and what happened to them; and the views that the owners asked for.
-- Times are milliseconds since 1970, ids are text.

-- Whether tokens that everybody knows are let in here: whoever opens the desk first says it, and it stays so.
CREATE TABLE desk (
    id   INTEGER PRIMARY KEY CHECK (id = 1),
    kind TEXT NOT NULL CHECK (kind IN ('real', 'sample'))
) STRICT;

CREATE TABLE person (
    id           TEXT PRIMARY KEY,
    name         TEXT NOT NULL,
    email        TEXT NOT NULL,
    role         TEXT NOT NULL CHECK (role IN ('requester', 'agent', 'admin')),
    language     TEXT NOT NULL CHECK (language IN ('es', 'en')),
    -- The token itself is told once and kept nowhere.
    token_sha256 BLOB NOT NULL UNIQUE,
    created_at   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX person_email_idx ON person (lower(email));

CREATE TABLE ticket (
    number            INTEGER PRIMARY KEY AUTOINCREMENT,
    id                TEXT NOT NULL UNIQUE,
    title             TEXT NOT NULL,
    description       TEXT NOT NULL,
    status            TEXT NOT NULL CHECK (status IN ('open', 'in_progress', 'waiting', 'resolved', 'closed')),
    priority          TEXT NOT NULL CHECK (priority IN ('low', 'normal', 'high', 'urgent')),
    requester_id      TEXT NOT NULL REFERENCES person,
    assignee_id       TEXT REFERENCES person,
    version           INTEGER NOT NULL,
    created_at        INTEGER NOT NULL,
    updated_at        INTEGER NOT NULL,
    first_response_at INTEGER,
    resolved_at       INTEGER
) STRICT;
-- Lists are newest first, and most ask for one person's.
CREATE INDEX ticket_requester_idx ON ticket (requester_id, number);
CREATE INDEX ticket_assignee_idx ON ticket (assignee_id, number);

CREATE TABLE comment (
    id         TEXT PRIMARY KEY,
    ticket_id  TEXT NOT NULL REFERENCES ticket (id),
    author_id  TEXT NOT NULL REFERENCES person,
    body       TEXT NOT NULL,
    created_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE history (
    ticket_id      TEXT NOT NULL REFERENCES ticket (id),
    -- The ticket's version that it made.
    version        INTEGER NOT NULL,
    at             INTEGER NOT NULL,
    actor_id       TEXT NOT NULL REFERENCES person,
    kind           TEXT NOT NULL CHECK (kind IN ('created', 'status', 'assigned', 'comment')),
    -- Statuses or people.
    before         TEXT,
    after          TEXT,
    comment_id     TEXT REFERENCES comment,
    correlation_id TEXT NOT NULL,
    PRIMARY KEY (ticket_id, version)
) STRICT, WITHOUT ROWID;

-- Requests that may come again: what they were told the first time, in the transaction of their effect.
CREATE TABLE idempotency (
    person_id      TEXT NOT NULL REFERENCES person,
    key            TEXT NOT NULL,
    request_sha256 BLOB NOT NULL,
    status         INTEGER NOT NULL,
    location       TEXT,
    etag           TEXT,
    body           TEXT NOT NULL,
    created_at     INTEGER NOT NULL,
    PRIMARY KEY (person_id, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX idempotency_created_at_idx ON idempotency (created_at);

CREATE VIEW Tickets AS
SELECT id AS Id, number AS Number, title AS Title, description AS Description, status AS Status, priority AS Priority,
    requester_id AS RequesterId, assignee_id AS AssigneeId, version AS Version, created_at AS CreatedAt,
    updated_at AS UpdatedAt
FROM ticket;

-- The log has no such column: a message is dispatched once every destination has settled it, and neither waits nor is
-- dead there.
CREATE VIEW Outbox AS
WITH settled AS (
    SELECT m.seq, d.name AS destination, CASE WHEN m.seq <= max(p.from_seq, p.settled_seq)
            AND NOT EXISTS (
                SELECT 1 FROM relevo_parked_message AS w WHERE w.destination = d.name AND w.seq = m.seq)
            AND NOT EXISTS (
                SELECT 1 FROM relevo_dead_letter AS x
                WHERE x.destination = d.name AND x.seq = m.seq AND x.state <> 'redriven')
        THEN coalesce((
            SELECT l.published_at_ms FROM relevo_parked_published AS l WHERE l.destination = d.name AND l.seq = m.seq
        ), (
            SELECT min(s.settled_at_ms) FROM relevo_settle_history AS s
            WHERE s.destination = d.name AND s.settled_at_ms >= m.created_at_ms AND s.settled_seq >= m.seq
                AND (s.shard_list IS NULL OR instr(s.shard_list, ',' || (m.slot % s.shards) || ',') > 0)
        ), p.settled_at_ms) END AS at
    FROM relevo_message AS m CROSS JOIN relevo_destination AS d
    JOIN relevo_progress AS p ON p.destination = d.name AND p.shard = m.slot % d.shards
)
SELECT lower(substr(hex(m.id), 1, 8) || '-' || substr(hex(m.id), 9, 4) || '-' || substr(hex(m.id), 13, 4) || '-'
        || substr(hex(m.id), 17, 4) || '-' || substr(hex(m.id), 21)) AS Id,
    m.type AS Type, CAST(m.payload AS TEXT) AS PayloadJson, m.created_at_ms AS CreatedAt, (
        SELECT CASE WHEN count(*) = count(s.at) THEN max(s.at) END FROM settled AS s WHERE s.seq = m.seq
    ) AS DispatchedAt
FROM relevo_message AS m;

CREATE VIEW ProcessedEvents AS
SELECT lower(substr(hex(message_id), 1, 8) || '-' || substr(hex(message_id), 9, 4) || '-'
        || substr(hex(message_id), 13, 4) || '-' || substr(hex(message_id), 17, 4) || '-'
        || substr(hex(message_id), 21)) AS EventId,
    consumer AS Consumer, entered_at_ms AS ProcessedAt
FROM relevo_inbox WHERE state IN ('done', 'skipped');
