-- Destinations, the leases of their shards, and the progress of each shard.

CREATE TABLE relevo_destination (
    name          TEXT PRIMARY KEY CHECK (name <> ''),
    shards        INTEGER NOT NULL CHECK (shards BETWEEN 1 AND 256),
    enabled       INTEGER NOT NULL DEFAULT 1,
    -- During a change of the shard count: the new count, and the `seq` at which every shard stops first.
    reshard_to    INTEGER CHECK (reshard_to BETWEEN 1 AND 256),
    reshard_seq   INTEGER,
    -- The ordinals last used at the two ends of its parked queues. None is used twice, so that a late settlement cannot
    -- refer to another message.
    last_ordinal  INTEGER NOT NULL DEFAULT 0,
    first_ordinal INTEGER NOT NULL DEFAULT 0,
    added_at_ms   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE relevo_lease (
    destination   TEXT NOT NULL REFERENCES relevo_destination ON DELETE CASCADE,
    shard         INTEGER NOT NULL,
    -- Rises with every change of owner, and does not fall when the shard count changes.
    epoch         INTEGER NOT NULL,
    owner         BLOB,
    expires_at_ms INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (destination, shard)
) STRICT, WITHOUT ROWID;

-- The running relays of a destination. They share its shards evenly.
CREATE TABLE relevo_relay (
    destination   TEXT NOT NULL REFERENCES relevo_destination ON DELETE CASCADE,
    owner         BLOB NOT NULL,
    name          TEXT NOT NULL,
    expires_at_ms INTEGER NOT NULL,
    PRIMARY KEY (destination, owner)
) STRICT, WITHOUT ROWID;

-- The position of each shard. Its window has the messages above `from_seq` up to `to_seq`; those up to `settled_seq` are
-- settled.
CREATE TABLE relevo_progress (
    destination   TEXT NOT NULL REFERENCES relevo_destination ON DELETE CASCADE,
    shard         INTEGER NOT NULL,
    from_seq      INTEGER NOT NULL,
    to_seq        INTEGER NOT NULL,
    settled_seq   INTEGER NOT NULL,
    settled_at_ms INTEGER NOT NULL,
    PRIMARY KEY (destination, shard)
) STRICT, WITHOUT ROWID;

-- Insert-only history of progress. It answers when a message was published, and is pruned with the messages. One row
-- stands for all shards that reached the same `seq` in one settlement.
CREATE TABLE relevo_settle_history (
    history_id    INTEGER PRIMARY KEY,
    destination   TEXT NOT NULL REFERENCES relevo_destination ON DELETE CASCADE,
    settled_at_ms INTEGER NOT NULL,
    settled_seq   INTEGER NOT NULL,
    shards        INTEGER NOT NULL,
    -- For example `,0,3,`; null for all shards.
    shard_list    TEXT
) STRICT;
CREATE INDEX relevo_settle_history_at_idx ON relevo_settle_history (destination, settled_at_ms);
