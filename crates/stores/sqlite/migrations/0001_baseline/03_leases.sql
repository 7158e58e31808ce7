-- Who reads which shard for which destination, and how far each has come.

CREATE TABLE relevo_destination (
    name        TEXT PRIMARY KEY CHECK (name <> ''),
    shards      INTEGER NOT NULL CHECK (shards BETWEEN 1 AND 256),
    enabled     INTEGER NOT NULL DEFAULT 1,
    -- While shards are regrouped: how many there shall be, and the number at which all of them meet.
    regroup_to  INTEGER CHECK (regroup_to BETWEEN 1 AND 256),
    regroup_at  INTEGER,
    -- The last numbers given out at the two ends of its queues: none is given out twice, so that a late answer cannot
    -- mean another message.
    queue_back  INTEGER NOT NULL DEFAULT 0,
    queue_front INTEGER NOT NULL DEFAULT 0,
    added_at_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE relevo_lease (
    destination TEXT NOT NULL REFERENCES relevo_destination ON DELETE CASCADE,
    shard       INTEGER NOT NULL,
    -- Rises with every change of owner, and never goes back when shards are regrouped.
    epoch       INTEGER NOT NULL,
    owner       BLOB,
    until_ms    INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (destination, shard)
) STRICT, WITHOUT ROWID;

-- The relays that are alive, to share the shards evenly among them.
CREATE TABLE relevo_member (
    destination TEXT NOT NULL REFERENCES relevo_destination ON DELETE CASCADE,
    owner       BLOB NOT NULL,
    name        TEXT NOT NULL,
    until_ms    INTEGER NOT NULL,
    PRIMARY KEY (destination, owner)
) STRICT, WITHOUT ROWID;

-- Where each shard stands: a window is what has a number above `from_seq` and up to `to_seq`.
CREATE TABLE relevo_progress (
    destination   TEXT NOT NULL REFERENCES relevo_destination ON DELETE CASCADE,
    shard         INTEGER NOT NULL,
    from_seq      INTEGER NOT NULL,
    to_seq        INTEGER NOT NULL,
    place         INTEGER NOT NULL,
    settled_at_ms INTEGER NOT NULL,
    PRIMARY KEY (destination, shard)
) STRICT, WITHOUT ROWID;

-- The history from which is shown when a message went out; insert-only, pruned with the messages. One row for all shards
-- that came equally far at once.
CREATE TABLE relevo_settled (
    no            INTEGER PRIMARY KEY,
    destination   TEXT NOT NULL REFERENCES relevo_destination ON DELETE CASCADE,
    settled_at_ms INTEGER NOT NULL,
    upto          INTEGER NOT NULL,
    shards        INTEGER NOT NULL,
    -- Such as `,0,3,`; null for all of them.
    shard_list    TEXT
) STRICT;
CREATE INDEX relevo_settled_at_idx ON relevo_settled (destination, settled_at_ms);
