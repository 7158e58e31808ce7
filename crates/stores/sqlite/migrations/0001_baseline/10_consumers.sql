CREATE TABLE relevo_inbox_consumer (
    name            TEXT PRIMARY KEY,
    paused          INTEGER NOT NULL DEFAULT 0,
    -- Retention of handled messages at the last pruning; null if it was never pruned.
    remembers_ms    INTEGER,
    -- When an operator removed the consumer; null once a member works again.
    forgotten_at_ms INTEGER
) STRICT, WITHOUT ROWID;

CREATE TABLE relevo_inbox_member (
    consumer           TEXT NOT NULL,
    owner              BLOB NOT NULL,
    name               TEXT NOT NULL,
    until_ms           INTEGER NOT NULL,
    beat_at_ms         INTEGER NOT NULL,
    last_message_at_ms INTEGER,
    PRIMARY KEY (consumer, owner)
) STRICT, WITHOUT ROWID;

-- Every consumer that was heard of, without those that were forgotten and have left nothing that people would look for: nothing waits
-- or is dead, and nothing was handled since. Those that only have rows in the inbox are found by stepping from name to name.
CREATE VIEW relevo_inbox_known (name) AS
WITH RECURSIVE step (name) AS (
    SELECT min(consumer) FROM relevo_inbox
    UNION ALL
    SELECT (SELECT min(i.consumer) FROM relevo_inbox AS i WHERE i.consumer > step.name)
    FROM step WHERE step.name IS NOT NULL
), heard (name) AS (
    SELECT name FROM step WHERE name IS NOT NULL UNION SELECT name FROM relevo_inbox_consumer
)
SELECT h.name FROM heard AS h LEFT JOIN relevo_inbox_consumer AS c ON c.name = h.name
WHERE c.forgotten_at_ms IS NULL
    OR EXISTS (SELECT 1 FROM relevo_inbox_waiting AS w WHERE w.consumer = h.name)
    OR EXISTS (SELECT 1 FROM relevo_inbox_dead AS d WHERE d.consumer = h.name AND d.fate = 'pending')
    OR EXISTS (
        SELECT 1 FROM relevo_inbox AS i
        WHERE i.consumer = h.name AND i.state IN ('done', 'skipped') AND i.entered_at_ms > c.forgotten_at_ms);
