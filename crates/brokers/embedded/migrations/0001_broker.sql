-- The broker's tables. All of them begin with `broker_`, so that they can live in an outbox's file.

-- One row: the version of these tables, and what the log holds.
CREATE TABLE broker_meta (
    one      INTEGER PRIMARY KEY CHECK (one = 1),
    version  INTEGER NOT NULL,
    messages INTEGER NOT NULL DEFAULT 0,
    bytes    INTEGER NOT NULL DEFAULT 0
) STRICT;

-- The log. SQLite has one writer at a time, so the order of `seq` is the order of commits; AUTOINCREMENT never gives a
-- number twice, not even after the newest rows are gone. `id` is null for what is no message of ours.
CREATE TABLE broker_message (
    seq     INTEGER PRIMARY KEY AUTOINCREMENT,
    address TEXT    NOT NULL,
    slot    INTEGER NOT NULL,
    key     TEXT    NOT NULL,
    id      BLOB,
    at_ms   INTEGER NOT NULL,
    headers TEXT    NOT NULL,
    payload BLOB    NOT NULL
) STRICT;

-- A repeat of a message that is still kept is confirmed and not stored again.
CREATE UNIQUE INDEX broker_message_id ON broker_message (id, address) WHERE id IS NOT NULL;

CREATE TABLE broker_group (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    name       TEXT    NOT NULL UNIQUE,
    patterns   TEXT    NOT NULL,
    lanes      INTEGER NOT NULL,
    ordered    INTEGER NOT NULL,
    created_ms INTEGER NOT NULL
) STRICT;

-- A lane of a group: how far it was handed out, and to whom it belongs.
CREATE TABLE broker_lane (
    grp      INTEGER NOT NULL REFERENCES broker_group (id) ON DELETE CASCADE,
    lane     INTEGER NOT NULL,
    cursor   INTEGER NOT NULL,
    owner    BLOB,
    epoch    INTEGER NOT NULL DEFAULT 0,
    until_ms INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (grp, lane)
) STRICT, WITHOUT ROWID;

CREATE TABLE broker_member (
    grp      INTEGER NOT NULL REFERENCES broker_group (id) ON DELETE CASCADE,
    owner    BLOB    NOT NULL,
    name     TEXT    NOT NULL,
    until_ms INTEGER NOT NULL,
    PRIMARY KEY (grp, owner)
) STRICT, WITHOUT ROWID;

-- What lies at or below a lane's cursor and is not settled. States: 0 ready, 1 out, 2 waits until `due_ms`,
-- 3 behind another of its key. `key` is filled in for what has been out and came back, or waits behind; a row with
-- `due_ms` is the head of its key, and holds the others back even while it is out again.
CREATE TABLE broker_pending (
    seq    INTEGER NOT NULL,
    grp    INTEGER NOT NULL REFERENCES broker_group (id) ON DELETE CASCADE,
    lane   INTEGER NOT NULL,
    state  INTEGER NOT NULL,
    count  INTEGER NOT NULL,
    due_ms INTEGER,
    key    TEXT,
    PRIMARY KEY (seq, grp)
) STRICT, WITHOUT ROWID;

-- What is out, nearly all there is, is in none of these.
CREATE INDEX broker_pending_ready ON broker_pending (grp, lane, seq) WHERE state = 0;
CREATE INDEX broker_pending_due ON broker_pending (grp, due_ms) WHERE state = 2;
CREATE INDEX broker_pending_head ON broker_pending (grp, lane, key) WHERE due_ms IS NOT NULL;
CREATE INDEX broker_pending_key ON broker_pending (grp, lane, key, seq) WHERE key IS NOT NULL;

-- What a group rejected. The message stays in the log as long as this row does.
CREATE TABLE broker_dead (
    id     INTEGER PRIMARY KEY AUTOINCREMENT,
    grp    INTEGER NOT NULL REFERENCES broker_group (id) ON DELETE CASCADE,
    seq    INTEGER NOT NULL,
    lane   INTEGER NOT NULL,
    count  INTEGER NOT NULL,
    reason TEXT    NOT NULL,
    at_ms  INTEGER NOT NULL,
    UNIQUE (seq, grp)
) STRICT;

CREATE INDEX broker_dead_group ON broker_dead (grp, id);

INSERT INTO broker_meta (one, version) VALUES (1, 1);
