-- People, tickets, what was written under them and what happened to them; and the views that the owners asked for.

-- Whether tokens that everybody knows are let in here: whoever opens the desk first says it, and it stays so.
CREATE TABLE ticketflow.desk (
    id   bigint PRIMARY KEY CHECK (id = 1),
    kind text NOT NULL CHECK (kind IN ('real', 'sample'))
);

CREATE TABLE ticketflow.person (
    id           uuid PRIMARY KEY,
    name         text NOT NULL,
    email        text NOT NULL,
    role         text NOT NULL CHECK (role IN ('requester', 'agent', 'admin')),
    language     text NOT NULL CHECK (language IN ('es', 'en')),
    -- The token itself is told once and kept nowhere.
    token_sha256 bytea NOT NULL UNIQUE,
    created_at   timestamptz NOT NULL
);
CREATE UNIQUE INDEX person_email_idx ON ticketflow.person (lower(email));

CREATE TABLE ticketflow.ticket (
    id                uuid PRIMARY KEY,
    number            bigint GENERATED ALWAYS AS IDENTITY UNIQUE,
    title             text NOT NULL,
    description       text NOT NULL,
    status            text NOT NULL CHECK (status IN ('open', 'in_progress', 'waiting', 'resolved', 'closed')),
    priority          text NOT NULL CHECK (priority IN ('low', 'normal', 'high', 'urgent')),
    requester_id      uuid NOT NULL REFERENCES ticketflow.person,
    assignee_id       uuid REFERENCES ticketflow.person,
    version           bigint NOT NULL,
    created_at        timestamptz NOT NULL,
    updated_at        timestamptz NOT NULL,
    first_response_at timestamptz,
    resolved_at       timestamptz
) WITH (fillfactor = 80);
-- Lists are newest first, and most ask for one person's.
CREATE INDEX ticket_requester_idx ON ticketflow.ticket (requester_id, number);
CREATE INDEX ticket_assignee_idx ON ticketflow.ticket (assignee_id, number);

CREATE TABLE ticketflow.comment (
    id         uuid PRIMARY KEY,
    ticket_id  uuid NOT NULL REFERENCES ticketflow.ticket,
    author_id  uuid NOT NULL REFERENCES ticketflow.person,
    body       text NOT NULL,
    created_at timestamptz NOT NULL
);

CREATE TABLE ticketflow.history (
    ticket_id      uuid NOT NULL REFERENCES ticketflow.ticket,
    -- The ticket's version that it made.
    version        bigint NOT NULL,
    at             timestamptz NOT NULL,
    actor_id       uuid NOT NULL REFERENCES ticketflow.person,
    kind           text NOT NULL CHECK (kind IN ('created', 'status', 'assigned', 'comment')),
    -- Statuses or people.
    before         text,
    after          text,
    comment_id     uuid REFERENCES ticketflow.comment,
    correlation_id text NOT NULL,
    PRIMARY KEY (ticket_id, version)
);

-- Requests that may come again: what they were told the first time, in the transaction of their effect.
CREATE TABLE ticketflow.idempotency (
    person_id      uuid NOT NULL REFERENCES ticketflow.person,
    key            text NOT NULL,
    request_sha256 bytea NOT NULL,
    status         bigint NOT NULL,
    location       text,
    etag           text,
    body           text NOT NULL,
    created_at     timestamptz NOT NULL,
    PRIMARY KEY (person_id, key)
);
CREATE INDEX idempotency_created_at_idx ON ticketflow.idempotency (created_at);

CREATE VIEW ticketflow."Tickets" AS
SELECT id AS "Id", number AS "Number", title AS "Title", description AS "Description", status AS "Status",
    priority AS "Priority", requester_id AS "RequesterId", assignee_id AS "AssigneeId", version AS "Version",
    created_at AS "CreatedAt", updated_at AS "UpdatedAt"
FROM ticketflow.ticket;

-- The log has no such column: a message is dispatched once every destination has settled it.
CREATE VIEW ticketflow."Outbox" AS
SELECT m.id AS "Id", m.type AS "Type", convert_from(m.payload, 'UTF8') AS "PayloadJson", m.created_at AS "CreatedAt", (
        SELECT CASE WHEN count(*) = count(o.published_at) THEN max(o.published_at) END
        FROM relevo.outbox AS o WHERE o.seq = m.seq
    ) AS "DispatchedAt"
FROM relevo.message AS m;

CREATE VIEW ticketflow."ProcessedEvents" AS
SELECT message_id AS "EventId", consumer AS "Consumer", entered_at AS "ProcessedAt"
FROM relevo.inbox WHERE state IN ('done', 'skipped');
