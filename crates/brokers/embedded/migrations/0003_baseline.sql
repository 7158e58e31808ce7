-- The tables of the broker. Their names begin with `broker_`, so that they can be in the file of an outbox.

-- One row: the version of these tables, and the size of the log. `boot_id` names the last start of the machine that
-- opened the file. Messages up to `redelivered_through` may have been delivered before that start, and a power failure
-- may have undone the record of it.
CREATE TABLE broker_meta (
    one                 INTEGER PRIMARY KEY CHECK (one = 1),
    version             INTEGER NOT NULL,
    messages            INTEGER NOT NULL DEFAULT 0,
    bytes               INTEGER NOT NULL DEFAULT 0,
    boot_id             TEXT,
    redelivered_through INTEGER NOT NULL DEFAULT 0
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
    created_ms INTEGER NOT NULL
) STRICT;

-- A lane of a group: everything up to `cursor` was delivered. `owner` is the consumer that leases it.
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

-- Messages up to a lane's cursor that are not acknowledged. `outstanding` is 1 while a consumer has the message, and 0 when
-- it was returned and waits for the next delivery.
CREATE TABLE broker_unacknowledged (
    seq         INTEGER NOT NULL,
    group_id    INTEGER NOT NULL REFERENCES broker_group (id) ON DELETE CASCADE,
    lane        INTEGER NOT NULL,
    outstanding INTEGER NOT NULL,
    PRIMARY KEY (seq, group_id)
) STRICT, WITHOUT ROWID;

-- Nearly all rows are outstanding, and not in this index.
CREATE INDEX broker_unacknowledged_ready ON broker_unacknowledged (group_id, lane, seq) WHERE outstanding = 0;

INSERT INTO broker_meta (one, version) VALUES (1, 3);
