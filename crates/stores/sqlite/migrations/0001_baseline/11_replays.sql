-- Replays that operators requested.

CREATE TABLE relevo_inbox_replay (
    consumer         TEXT NOT NULL,
    number           INTEGER NOT NULL CHECK (number > 0),
    source           TEXT NOT NULL,
    count            INTEGER NOT NULL,
    rate             INTEGER NOT NULL,
    dead_letters_max INTEGER NOT NULL,
    requested_by     TEXT NOT NULL,
    reason           TEXT NOT NULL,
    state            TEXT NOT NULL DEFAULT 'running' CHECK (state IN ('running', 'finished', 'stopped')),
    fed              INTEGER NOT NULL DEFAULT 0,
    cursor           TEXT,
    started_at_ms    INTEGER NOT NULL,
    PRIMARY KEY (consumer, number)
) STRICT, WITHOUT ROWID;
