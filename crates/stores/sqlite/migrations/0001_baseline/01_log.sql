-- The log: an insert-only table of messages. Times are milliseconds since 1970, on the clock of the machine that has the
-- file. Names begin with `relevo_`, because the file belongs to the application.

-- One transaction at a time can write, from its first insert to its commit: the order of `seq` is the commit order.
-- AUTOINCREMENT, because a number must not be used again after retention has deleted the highest row.
CREATE TABLE relevo_message (
    seq           INTEGER PRIMARY KEY AUTOINCREMENT,
    slot          INTEGER NOT NULL,
    id            BLOB NOT NULL,
    created_at_ms INTEGER NOT NULL,
    topic         TEXT NOT NULL,
    key           TEXT NOT NULL,
    type          TEXT NOT NULL,
    content_type  TEXT NOT NULL,
    headers       TEXT,
    payload       BLOB NOT NULL
) STRICT;
CREATE INDEX relevo_message_id_idx ON relevo_message (id);

-- Message ids that callers chose, to detect duplicates. An id that `emit` generates needs no row.
CREATE TABLE relevo_dedup_id (
    id            BLOB PRIMARY KEY,
    claimed_at_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX relevo_dedup_id_claimed_at_idx ON relevo_dedup_id (claimed_at_ms);

-- Scheduled messages. A relay moves them to the log when they are due.
CREATE TABLE relevo_scheduled (
    ordinal       INTEGER PRIMARY KEY AUTOINCREMENT,
    due_at_ms     INTEGER NOT NULL,
    slot          INTEGER NOT NULL,
    id            BLOB NOT NULL UNIQUE,
    created_at_ms INTEGER NOT NULL,
    topic         TEXT NOT NULL,
    key           TEXT NOT NULL,
    type          TEXT NOT NULL,
    content_type  TEXT NOT NULL,
    headers       TEXT,
    payload       BLOB NOT NULL
) STRICT;
CREATE INDEX relevo_scheduled_due_at_idx ON relevo_scheduled (due_at_ms, ordinal);
CREATE INDEX relevo_scheduled_key_idx ON relevo_scheduled (key);
