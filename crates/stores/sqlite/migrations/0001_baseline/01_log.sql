-- The log: an insert-only table of messages. Times are milliseconds since 1970, on the clock of the machine that has the
-- file. Names begin with `relevo_`, because the file is the application's own.

-- One writer at a time, from its first insert to its commit: the order of the numbers is the order of the commits.
-- AUTOINCREMENT, because a number must never be given out again once retention has deleted the highest row.
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

-- Ids that callers brought. Ids made by `emit` need no row.
CREATE TABLE relevo_own_id (
    id            BLOB PRIMARY KEY,
    claimed_at_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX relevo_own_id_claimed_at_idx ON relevo_own_id (claimed_at_ms);

-- Messages that wait for their time; they enter the log when it comes.
CREATE TABLE relevo_scheduled (
    no            INTEGER PRIMARY KEY AUTOINCREMENT,
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
CREATE INDEX relevo_scheduled_due_at_idx ON relevo_scheduled (due_at_ms, no);
CREATE INDEX relevo_scheduled_key_idx ON relevo_scheduled (key);
