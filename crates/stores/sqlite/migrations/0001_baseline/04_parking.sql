-- Parked keys with copies of their messages, so that they do not delay retention; dead letters; addresses on hold.

CREATE TABLE relevo_parked_key (
    destination TEXT NOT NULL REFERENCES relevo_destination ON DELETE CASCADE,
    key         TEXT NOT NULL,
    -- A parked key belongs to a slot, not to a shard: it keeps its slot when the shard count changes.
    slot        INTEGER NOT NULL,
    state       TEXT NOT NULL CHECK (state IN ('retrying', 'held', 'quarantined', 'dead')),
    attempts    INTEGER NOT NULL,
    -- When its first message may be tried; null while it waits for an operator or for its address.
    next_at_ms  INTEGER,
    address     TEXT,
    -- The dead letter that blocks the key, in state `dead`.
    dead_id     BLOB,
    route       TEXT NOT NULL,
    class       TEXT NOT NULL,
    error       TEXT NOT NULL,
    since_ms    INTEGER NOT NULL,
    PRIMARY KEY (destination, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX relevo_parked_key_next_at_idx ON relevo_parked_key (destination, next_at_ms) WHERE next_at_ms IS NOT NULL;
CREATE INDEX relevo_parked_key_address_idx ON relevo_parked_key (destination, address, since_ms)
    WHERE state = 'held';

CREATE TABLE relevo_parked_message (
    destination   TEXT NOT NULL,
    key           TEXT NOT NULL,
    ordinal       INTEGER NOT NULL,
    seq           INTEGER NOT NULL,
    slot          INTEGER NOT NULL,
    id            BLOB NOT NULL,
    created_at_ms INTEGER NOT NULL,
    topic         TEXT NOT NULL,
    type          TEXT NOT NULL,
    content_type  TEXT NOT NULL,
    headers       TEXT,
    payload       BLOB NOT NULL,
    PRIMARY KEY (destination, key, ordinal),
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

-- When parked messages were published. Progress passed them earlier, so its history does not answer for them.
CREATE TABLE relevo_parked_published (
    destination     TEXT NOT NULL REFERENCES relevo_destination ON DELETE CASCADE,
    seq             INTEGER NOT NULL,
    published_at_ms INTEGER NOT NULL,
    PRIMARY KEY (destination, seq)
) STRICT, WITHOUT ROWID;
CREATE INDEX relevo_parked_published_at_idx ON relevo_parked_published (published_at_ms);

-- Addresses on hold, and when one message probes each of them.
CREATE TABLE relevo_address_hold (
    destination TEXT NOT NULL REFERENCES relevo_destination ON DELETE CASCADE,
    address     TEXT NOT NULL,
    class       TEXT NOT NULL,
    error       TEXT NOT NULL,
    since_ms    INTEGER NOT NULL,
    next_at_ms  INTEGER NOT NULL,
    PRIMARY KEY (destination, address)
) STRICT, WITHOUT ROWID;
