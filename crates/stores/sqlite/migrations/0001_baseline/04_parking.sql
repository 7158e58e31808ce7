-- Keys that wait, with whole messages, so that retention does not wait for them; dead letters; held addresses.

CREATE TABLE relevo_parked_key (
    destination TEXT NOT NULL REFERENCES relevo_destination ON DELETE CASCADE,
    key         TEXT NOT NULL,
    -- Parked keys belong to a slot, not to a shard: they find their new owner when shards are regrouped.
    slot        INTEGER NOT NULL,
    state       TEXT NOT NULL CHECK (state IN ('retry', 'address', 'quarantine', 'dead')),
    attempts    INTEGER NOT NULL,
    -- When its first message may be tried; null while only a person or a released address can free it.
    next_at_ms  INTEGER,
    address     TEXT,
    -- The dead letter that holds the key, in state `dead`.
    dead_id     BLOB,
    route       TEXT NOT NULL,
    class       TEXT NOT NULL,
    error       TEXT NOT NULL,
    since_ms    INTEGER NOT NULL,
    PRIMARY KEY (destination, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX relevo_parked_key_next_at_idx ON relevo_parked_key (destination, next_at_ms) WHERE next_at_ms IS NOT NULL;
CREATE INDEX relevo_parked_key_address_idx ON relevo_parked_key (destination, address, since_ms)
    WHERE state = 'address';

CREATE TABLE relevo_parked_message (
    destination   TEXT NOT NULL,
    key           TEXT NOT NULL,
    no            INTEGER NOT NULL,
    seq           INTEGER NOT NULL,
    slot          INTEGER NOT NULL,
    id            BLOB NOT NULL,
    created_at_ms INTEGER NOT NULL,
    topic         TEXT NOT NULL,
    type          TEXT NOT NULL,
    content_type  TEXT NOT NULL,
    headers       TEXT,
    payload       BLOB NOT NULL,
    PRIMARY KEY (destination, key, no),
    FOREIGN KEY (destination, key) REFERENCES relevo_parked_key ON DELETE CASCADE
) STRICT;
CREATE INDEX relevo_parked_message_seq_idx ON relevo_parked_message (destination, seq);
CREATE INDEX relevo_parked_message_id_idx ON relevo_parked_message (id);

CREATE TABLE relevo_dead_letter (
    destination   TEXT NOT NULL REFERENCES relevo_destination ON DELETE CASCADE,
    id            BLOB NOT NULL,
    seq           INTEGER NOT NULL,
    slot          INTEGER NOT NULL,
    created_at_ms INTEGER NOT NULL,
    topic         TEXT NOT NULL,
    key           TEXT NOT NULL,
    type          TEXT NOT NULL,
    content_type  TEXT NOT NULL,
    headers       TEXT,
    payload       BLOB NOT NULL,
    route         TEXT NOT NULL,
    class         TEXT NOT NULL,
    error         TEXT NOT NULL,
    attempts      INTEGER NOT NULL,
    state         TEXT NOT NULL DEFAULT 'dead'
        CHECK (state IN ('dead', 'redrive', 'discard', 'redriven', 'discarded')),
    dead_at_ms    INTEGER NOT NULL,
    redrives      INTEGER NOT NULL DEFAULT 0,
    marked_at_ms  INTEGER,
    marked_by     TEXT,
    reason        TEXT,
    PRIMARY KEY (destination, id)
) STRICT;
CREATE INDEX relevo_dead_letter_marked_idx ON relevo_dead_letter (destination, seq)
    WHERE state IN ('redrive', 'discard');
CREATE INDEX relevo_dead_letter_done_idx ON relevo_dead_letter (marked_at_ms)
    WHERE state IN ('redriven', 'discarded');
-- For counts of unmarked dead letters every few seconds, however many marked ones there are.
CREATE INDEX relevo_dead_letter_dead_idx ON relevo_dead_letter (destination, seq) WHERE state = 'dead';
CREATE INDEX relevo_dead_letter_seq_idx ON relevo_dead_letter (destination, seq);

-- When messages went out that had been parked: progress passed them earlier.
CREATE TABLE relevo_parked_delivery (
    destination     TEXT NOT NULL REFERENCES relevo_destination ON DELETE CASCADE,
    seq             INTEGER NOT NULL,
    delivered_at_ms INTEGER NOT NULL,
    PRIMARY KEY (destination, seq)
) STRICT, WITHOUT ROWID;
CREATE INDEX relevo_parked_delivery_at_idx ON relevo_parked_delivery (delivered_at_ms);

-- Addresses that nothing can pass to, and when one message probes them.
CREATE TABLE relevo_hold (
    destination TEXT NOT NULL REFERENCES relevo_destination ON DELETE CASCADE,
    address     TEXT NOT NULL,
    class       TEXT NOT NULL,
    error       TEXT NOT NULL,
    since_ms    INTEGER NOT NULL,
    next_at_ms  INTEGER NOT NULL,
    PRIMARY KEY (destination, address)
) STRICT, WITHOUT ROWID;
