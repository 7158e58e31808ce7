-- The tables of the broker. Their names begin with `broker_`, so that they can be in the file of an outbox.

-- One row: the version of these tables, and the size of the log.
CREATE TABLE broker_meta (
    one      INTEGER PRIMARY KEY CHECK (one = 1),
    version  INTEGER NOT NULL,
    messages INTEGER NOT NULL DEFAULT 0,
    bytes    INTEGER NOT NULL DEFAULT 0
) STRICT;

-- The log. SQLite has one writer at a time, so the order of `seq` is the commit order. AUTOINCREMENT never uses a number
-- twice, not even after the newest rows are deleted. `id` is null for a message that no outbox published.
CREATE TABLE broker_message (
    seq          INTEGER PRIMARY KEY AUTOINCREMENT,
    address      TEXT    NOT NULL,
    slot         INTEGER NOT NULL,
    key          TEXT    NOT NULL,
    id           BLOB,
    stored_at_ms INTEGER NOT NULL,
    headers      TEXT    NOT NULL,
    payload      BLOB    NOT NULL
) STRICT;

-- A duplicate of a stored message is confirmed and not stored again.
CREATE UNIQUE INDEX broker_message_id ON broker_message (id, address) WHERE id IS NOT NULL;

CREATE TABLE broker_group (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    name       TEXT    NOT NULL UNIQUE,
    patterns   TEXT    NOT NULL,
    lanes      INTEGER NOT NULL,
    ordered    INTEGER NOT NULL,
    created_ms INTEGER NOT NULL
) STRICT;

-- A lane of a group: everything up to `cursor` was handed out. `owner` is the consumer that leases it.
CREATE TABLE broker_lane (
    group_id       INTEGER NOT NULL REFERENCES broker_group (id) ON DELETE CASCADE,
    lane           INTEGER NOT NULL,
    cursor         INTEGER NOT NULL,
    owner          BLOB,
    epoch          INTEGER NOT NULL DEFAULT 0,
    lease_until_ms INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (group_id, lane)
) STRICT, WITHOUT ROWID;

CREATE TABLE broker_member (
    group_id       INTEGER NOT NULL REFERENCES broker_group (id) ON DELETE CASCADE,
    owner          BLOB    NOT NULL,
    name           TEXT    NOT NULL,
    lease_until_ms INTEGER NOT NULL,
    PRIMARY KEY (group_id, owner)
) STRICT, WITHOUT ROWID;

-- Messages up to a lane's cursor that are not settled. States: 0 ready, 1 handed out, 2 waits until `due_ms`, 3 behind
-- another message of its key. `key` is set once a message came back, or waits behind another. A row with `due_ms` is the
-- head of its key, and holds the others back even while it is handed out again.
CREATE TABLE broker_pending (
    seq      INTEGER NOT NULL,
    group_id INTEGER NOT NULL REFERENCES broker_group (id) ON DELETE CASCADE,
    lane     INTEGER NOT NULL,
    state    INTEGER NOT NULL,
    count    INTEGER NOT NULL,
    due_ms   INTEGER,
    key      TEXT,
    -- How many retries a consumer requested. `count` is the number of deliveries.
    retries  INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (seq, group_id)
) STRICT, WITHOUT ROWID;

-- Nearly all rows are handed out, and in none of these indexes.
CREATE INDEX broker_pending_ready ON broker_pending (group_id, lane, seq) WHERE state = 0;
CREATE INDEX broker_pending_due ON broker_pending (group_id, due_ms) WHERE state = 2;
CREATE INDEX broker_pending_head ON broker_pending (group_id, lane, key) WHERE due_ms IS NOT NULL;
CREATE INDEX broker_pending_key ON broker_pending (group_id, lane, key, seq) WHERE key IS NOT NULL;

-- Messages that a group rejected. A message stays in the log as long as its row is here.
CREATE TABLE broker_dead (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    group_id   INTEGER NOT NULL REFERENCES broker_group (id) ON DELETE CASCADE,
    seq        INTEGER NOT NULL,
    lane       INTEGER NOT NULL,
    count      INTEGER NOT NULL,
    reason     TEXT    NOT NULL,
    dead_at_ms INTEGER NOT NULL,
    UNIQUE (seq, group_id)
) STRICT;

CREATE INDEX broker_dead_group ON broker_dead (group_id, id);

INSERT INTO broker_meta (one, version) VALUES (1, 1);
