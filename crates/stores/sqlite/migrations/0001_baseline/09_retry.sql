-- The retry table: queues, and the messages that wait in them.
CREATE TABLE relevo_inbox_queue (
    consumer       TEXT NOT NULL,
    -- A key for a consumer that keeps order, a message's id for one that does not.
    queue          TEXT NOT NULL,
    -- When its first message may be tried; null while it waits for a person.
    next_at_ms     INTEGER,
    -- The member that works on it, and for how long at most.
    token          BLOB,
    claim_until_ms INTEGER,
    -- A dead letter holds it.
    held           INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (consumer, queue)
) STRICT, WITHOUT ROWID;
CREATE INDEX relevo_inbox_queue_next_at_idx ON relevo_inbox_queue (consumer, next_at_ms) WHERE next_at_ms IS NOT NULL;

-- AUTOINCREMENT, because a number must never mean another message.
CREATE TABLE relevo_inbox_waiting (
    no            INTEGER PRIMARY KEY AUTOINCREMENT,
    consumer      TEXT NOT NULL,
    queue         TEXT NOT NULL,
    id            BLOB NOT NULL,
    replay        INTEGER NOT NULL,
    -- As they came: [[name, value in hexadecimal], …].
    headers       TEXT NOT NULL,
    payload       BLOB NOT NULL,
    address       TEXT NOT NULL,
    lane          TEXT NOT NULL,
    place         INTEGER,
    correlation   TEXT,
    attempts      INTEGER NOT NULL DEFAULT 0,
    -- How often handling was begun that has not ended.
    started       INTEGER NOT NULL DEFAULT 0,
    -- A person took it out of the dead letters.
    reopened      INTEGER NOT NULL DEFAULT 0,
    class         TEXT NOT NULL DEFAULT '',
    error         TEXT NOT NULL DEFAULT '',
    arrived_at_ms INTEGER NOT NULL,
    -- The position of the replay's reader when it fed the message; null for any other message.
    fed_from      TEXT,
    -- The message is not tried before this time, because it failed or was redriven at a rate. Null for a message that
    -- was not tried yet.
    not_before_ms INTEGER
) STRICT;
CREATE INDEX relevo_inbox_waiting_queue_idx ON relevo_inbox_waiting (consumer, queue, no);
CREATE INDEX relevo_inbox_waiting_replay_idx ON relevo_inbox_waiting (consumer, replay) WHERE replay > 0;

CREATE TABLE relevo_inbox_dead (
    consumer      TEXT NOT NULL,
    id            BLOB NOT NULL,
    replay        INTEGER NOT NULL,
    queue         TEXT NOT NULL,
    -- Its place among the messages of its queue, which it goes back to.
    no            INTEGER NOT NULL,
    headers       TEXT NOT NULL,
    payload       BLOB NOT NULL,
    address       TEXT NOT NULL,
    lane          TEXT NOT NULL,
    place         INTEGER,
    correlation   TEXT,
    class         TEXT NOT NULL,
    error         TEXT NOT NULL,
    backtrace     TEXT,
    attempts      INTEGER NOT NULL,
    arrived_at_ms INTEGER NOT NULL,
    dead_at_ms    INTEGER NOT NULL,
    redriven      INTEGER NOT NULL DEFAULT 0,
    fate          TEXT NOT NULL DEFAULT 'pending' CHECK (fate IN ('pending', 'replayed', 'archived')),
    -- Its queue waits for a person because of it.
    holds         INTEGER NOT NULL DEFAULT 0,
    note          TEXT,
    marked_by     TEXT,
    marked_at_ms  INTEGER,
    PRIMARY KEY (consumer, id, replay)
) STRICT;
CREATE INDEX relevo_inbox_dead_pending_idx ON relevo_inbox_dead (consumer, no) WHERE fate = 'pending';
CREATE INDEX relevo_inbox_dead_holds_idx ON relevo_inbox_dead (consumer, queue, no) WHERE holds;
CREATE INDEX relevo_inbox_dead_marked_at_idx ON relevo_inbox_dead (consumer, marked_at_ms) WHERE fate <> 'pending';
CREATE INDEX relevo_inbox_dead_at_idx ON relevo_inbox_dead (dead_at_ms, no);
-- For the count of a replay's dead letters at each of its steps.
CREATE INDEX relevo_inbox_dead_replay_idx ON relevo_inbox_dead (consumer, replay) WHERE replay > 0;
