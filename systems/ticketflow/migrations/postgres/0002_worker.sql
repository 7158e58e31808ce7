-- What the worker keeps: e-mails that were sent, and figures. Each row is written in the transaction that enters its event into the
-- inbox, and so once.

CREATE TABLE ticketflow.email (
    -- Without the angle brackets; the same at every try.
    message_id     text PRIMARY KEY,
    event_id       uuid NOT NULL,
    ticket_id      uuid NOT NULL,
    person_id      uuid NOT NULL,
    recipient      text NOT NULL,
    subject        text NOT NULL,
    language       text NOT NULL,
    correlation_id text NOT NULL,
    body_text      text NOT NULL,
    body_html      text NOT NULL,
    sent_at        timestamptz NOT NULL
);
CREATE INDEX email_sent_at_idx ON ticketflow.email (sent_at);
CREATE INDEX email_ticket_idx ON ticketflow.email (ticket_id, sent_at);
CREATE INDEX email_person_idx ON ticketflow.email (person_id, sent_at);

-- A ticket as far as the figures know it.
CREATE TABLE ticketflow.figure_ticket (
    ticket_id         uuid PRIMARY KEY,
    number            bigint NOT NULL,
    status            text NOT NULL,
    requester_id      uuid NOT NULL,
    agent_id          uuid,
    agent_name        text,
    opened_at         timestamptz NOT NULL,
    first_response_at timestamptz,
    resolved_at       timestamptz,
    -- Of the event that was counted last.
    version           bigint NOT NULL
) WITH (fillfactor = 80);

-- What happened on a day (UTC), by whoever did it; tickets are opened by nobody's doing of ours.
CREATE TABLE ticketflow.figure_day (
    day               date NOT NULL,
    agent_id          uuid,
    agent_name        text,
    opened            bigint NOT NULL DEFAULT 0,
    resolved          bigint NOT NULL DEFAULT 0,
    first_responses   bigint NOT NULL DEFAULT 0,
    -- Sums: divided by the counts they are averages.
    first_response_ms bigint NOT NULL DEFAULT 0,
    resolution_ms     bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);
CREATE UNIQUE INDEX figure_day_idx
    ON ticketflow.figure_day (day, (coalesce(agent_id, '00000000-0000-0000-0000-000000000000'::uuid)));
