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
