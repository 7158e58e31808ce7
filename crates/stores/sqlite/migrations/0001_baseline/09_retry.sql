-- The retry queues of consumers, the messages in them, and dead letters.

CREATE TABLE relevo_inbox_retry_queue (
    consumer            TEXT NOT NULL,
    -- The message key for a consumer that keeps order, the message id for one that does not.
    queue               TEXT NOT NULL,
    -- When its first message may be tried; null while it waits for an operator.
    next_at_ms          INTEGER,
    -- The member that works on it, and the end of its claim.
    claim_token         BLOB,
    claim_expires_at_ms INTEGER,
    -- A dead letter blocks it.
    blocked             INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (consumer, queue)
) STRICT, WITHOUT ROWID;
CREATE INDEX relevo_inbox_retry_queue_next_at_idx ON relevo_inbox_retry_queue (consumer, next_at_ms)
    WHERE next_at_ms IS NOT NULL;

-- AUTOINCREMENT, because an ordinal must never refer to another message.
CREATE TABLE relevo_inbox_retry_message (
    ordinal           INTEGER PRIMARY KEY AUTOINCREMENT,
    consumer          TEXT NOT NULL,
    queue             TEXT NOT NULL,
    id                BLOB NOT NULL,
    replay            INTEGER NOT NULL,
    -- As received: [[name, value in hexadecimal], …].
    headers           TEXT NOT NULL,
    payload           BLOB NOT NULL,
    address           TEXT NOT NULL,
    lane              TEXT NOT NULL,
    broker_offset     INTEGER,
    attempts          INTEGER NOT NULL DEFAULT 0,
    -- How many times handling was started and has not ended.
    unfinished_starts INTEGER NOT NULL DEFAULT 0,
    -- An operator redrove it from the dead letters.
    redriven          INTEGER NOT NULL DEFAULT 0,
    class             TEXT NOT NULL DEFAULT '',
    error             TEXT NOT NULL DEFAULT '',
    arrived_at_ms     INTEGER NOT NULL,
    -- The position of the replay's reader when it fed the message; null for any other message.
    fed_cursor        TEXT,
    -- The message is not tried before this time, because it failed, was deferred, or was redriven at a rate. Null for a
    -- message that only waits for those before it.
    not_before_ms     INTEGER
) STRICT;
CREATE INDEX relevo_inbox_retry_message_queue_idx ON relevo_inbox_retry_message (consumer, queue, ordinal);
CREATE INDEX relevo_inbox_retry_message_replay_idx ON relevo_inbox_retry_message (consumer, replay) WHERE replay > 0;

CREATE TABLE relevo_inbox_dead_letter (
    consumer      TEXT NOT NULL,
    id            BLOB NOT NULL,
    replay        INTEGER NOT NULL,
    queue         TEXT NOT NULL,
    -- Its position in its queue. A redrive puts it back there.
    ordinal       INTEGER NOT NULL,
    headers       TEXT NOT NULL,
    payload       BLOB NOT NULL,
    address       TEXT NOT NULL,
    lane          TEXT NOT NULL,
    broker_offset INTEGER,
    class         TEXT NOT NULL,
    error         TEXT NOT NULL,
    backtrace     TEXT,
    attempts      INTEGER NOT NULL,
    arrived_at_ms INTEGER NOT NULL,
    dead_at_ms    INTEGER NOT NULL,
    redrives      INTEGER NOT NULL DEFAULT 0,
    state         TEXT NOT NULL DEFAULT 'dead' CHECK (state IN ('dead', 'redriven', 'discarded')),
    -- Its queue waits for an operator because of it.
    blocks_queue  INTEGER NOT NULL DEFAULT 0,
    reason        TEXT,
    marked_by     TEXT,
    marked_at_ms  INTEGER,
    PRIMARY KEY (consumer, id, replay)
) STRICT;
CREATE INDEX relevo_inbox_dead_letter_dead_idx ON relevo_inbox_dead_letter (consumer, ordinal) WHERE state = 'dead';
CREATE INDEX relevo_inbox_dead_letter_blocks_idx ON relevo_inbox_dead_letter (consumer, queue, ordinal)
    WHERE blocks_queue;
CREATE INDEX relevo_inbox_dead_letter_marked_at_idx ON relevo_inbox_dead_letter (consumer, marked_at_ms)
    WHERE state <> 'dead';
CREATE INDEX relevo_inbox_dead_letter_at_idx ON relevo_inbox_dead_letter (dead_at_ms, ordinal);
-- For the count of a replay's dead letters at each of its steps.
CREATE INDEX relevo_inbox_dead_letter_replay_idx ON relevo_inbox_dead_letter (consumer, replay) WHERE replay > 0;
