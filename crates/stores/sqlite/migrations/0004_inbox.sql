-- The inbox: one row for each (consumer, message, replay), written in the transaction of the handler's effect. The insert is
-- the check: a row that is there is a repeat. One writer at a time, so that whatever a transaction has looked at stays so
-- until it ends: no row needs a lock of its own.

CREATE TABLE relevo_inbox (
    consumer      TEXT NOT NULL,
    id            BLOB NOT NULL,
    -- Zero, but for messages that are handled again on purpose.
    replay        INTEGER NOT NULL DEFAULT 0,
    state         TEXT NOT NULL DEFAULT 'done'
        CHECK (state IN ('open', 'calling', 'waiting', 'done', 'skipped', 'dead', 'reopened')),
    -- How often handling was begun that has not ended.
    started       INTEGER NOT NULL DEFAULT 0,
    entered_at_ms INTEGER NOT NULL,
    -- Whose call to the far side it is, and for how long at most, in state `calling`.
    token         BLOB,
    until_ms      INTEGER,
    PRIMARY KEY (consumer, id, replay)
) STRICT, WITHOUT ROWID;
-- What pruning looks at: nothing else is ever forgotten.
CREATE INDEX relevo_inbox_entered_at_idx ON relevo_inbox (consumer, entered_at_ms) WHERE state IN ('done', 'skipped');

-- Who may handle the messages of a lane, for consumers that keep order.
CREATE TABLE relevo_inbox_lane (
    consumer TEXT NOT NULL,
    lane     TEXT NOT NULL,
    -- Rises with every change of owner.
    epoch    INTEGER NOT NULL,
    owner    BLOB,
    -- Everything up to this number of the broker's was settled when it was last written.
    mark     INTEGER,
    -- Its breaker is open, and why.
    breaker  TEXT,
    -- What people ordered.
    paused   INTEGER NOT NULL DEFAULT 0,
    forced   INTEGER,
    PRIMARY KEY (consumer, lane)
) STRICT, WITHOUT ROWID;

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
    arrived_at_ms INTEGER NOT NULL
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

-- What consumers did with messages, for those that trace.
CREATE TABLE relevo_inbox_trace (
    id          BLOB NOT NULL,
    consumer    TEXT NOT NULL,
    replay      INTEGER NOT NULL,
    state       TEXT NOT NULL,
    repeats     INTEGER NOT NULL DEFAULT 0,
    address     TEXT NOT NULL,
    lane        TEXT NOT NULL,
    place       INTEGER,
    correlation TEXT,
    at_ms       INTEGER NOT NULL,
    PRIMARY KEY (id, consumer, replay)
) STRICT, WITHOUT ROWID;
CREATE INDEX relevo_inbox_trace_at_idx ON relevo_inbox_trace (consumer, at_ms);

CREATE TABLE relevo_inbox_consumer (
    name   TEXT PRIMARY KEY,
    paused INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;

CREATE TABLE relevo_inbox_member (
    consumer           TEXT NOT NULL,
    owner              BLOB NOT NULL,
    name               TEXT NOT NULL,
    until_ms           INTEGER NOT NULL,
    beat_at_ms         INTEGER NOT NULL,
    last_message_at_ms INTEGER,
    PRIMARY KEY (consumer, owner)
) STRICT, WITHOUT ROWID;

CREATE TABLE relevo_inbox_replay (
    consumer    TEXT NOT NULL,
    number      INTEGER NOT NULL CHECK (number > 0),
    source      TEXT NOT NULL,
    count       INTEGER NOT NULL,
    rate        INTEGER NOT NULL,
    dead_max    INTEGER NOT NULL,
    asked_by    TEXT NOT NULL,
    reason      TEXT NOT NULL,
    state       TEXT NOT NULL DEFAULT 'running' CHECK (state IN ('running', 'finished', 'stopped')),
    fed         INTEGER NOT NULL DEFAULT 0,
    cursor      TEXT,
    began_at_ms INTEGER NOT NULL,
    PRIMARY KEY (consumer, number)
) STRICT, WITHOUT ROWID;
