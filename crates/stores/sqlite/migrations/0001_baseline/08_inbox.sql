-- The inbox: one row for each (consumer, message, replay), written in the transaction of the handler's effect. The insert
-- is the check: an existing row means a duplicate. One transaction at a time can write, so that everything it has read
-- stays the same until it ends, and no row needs a lock of its own.

CREATE TABLE relevo_inbox (
    consumer            TEXT NOT NULL,
    message_id          BLOB NOT NULL,
    -- Zero, except for a message that a replay handles again.
    replay              INTEGER NOT NULL DEFAULT 0,
    state               TEXT NOT NULL DEFAULT 'done'
        CHECK (state IN ('started', 'calling', 'waiting', 'done', 'skipped', 'dead', 'redriven')),
    -- How many times handling was started and has not ended.
    unfinished_starts   INTEGER NOT NULL DEFAULT 0,
    entered_at_ms       INTEGER NOT NULL,
    -- The member that calls the external service, and the end of its claim, in state `calling`.
    claim_token         BLOB,
    claim_expires_at_ms INTEGER,
    PRIMARY KEY (consumer, message_id, replay)
) STRICT, WITHOUT ROWID;
-- For pruning, which deletes rows of these states only.
CREATE INDEX relevo_inbox_entered_at_idx ON relevo_inbox (consumer, entered_at_ms) WHERE state IN ('done', 'skipped');

-- The owner of each lane, for consumers that keep order.
CREATE TABLE relevo_inbox_lane (
    consumer       TEXT NOT NULL,
    lane           TEXT NOT NULL,
    -- Rises with every change of owner.
    epoch          INTEGER NOT NULL,
    owner          BLOB,
    -- Everything up to this offset of the broker was settled at the last heartbeat.
    settled_offset INTEGER,
    -- Why its circuit breaker is open; null while it is closed.
    breaker_reason TEXT,
    -- What an operator ordered. `breaker_forced` is null unless the breaker is forced open or closed.
    paused         INTEGER NOT NULL DEFAULT 0,
    breaker_forced INTEGER,
    PRIMARY KEY (consumer, lane)
) STRICT, WITHOUT ROWID;
