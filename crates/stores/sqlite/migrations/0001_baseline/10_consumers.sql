-- Consumers and their members.

CREATE TABLE relevo_inbox_consumer (
    name              TEXT PRIMARY KEY,
    paused            INTEGER NOT NULL DEFAULT 0,
    -- Retention of handled messages at the last pruning; null if the inbox was never pruned.
    done_retention_ms INTEGER,
    -- When an operator removed the consumer; null once a member works for it again.
    removed_at_ms     INTEGER
) STRICT, WITHOUT ROWID;

CREATE TABLE relevo_inbox_member (
    consumer           TEXT NOT NULL,
    owner              BLOB NOT NULL,
    name               TEXT NOT NULL,
    expires_at_ms      INTEGER NOT NULL,
    beat_at_ms         INTEGER NOT NULL,
    last_message_at_ms INTEGER,
    PRIMARY KEY (consumer, owner)
) STRICT, WITHOUT ROWID;

-- The names of all consumers, except removed ones that have no retry message, no dead letter, and have handled nothing
-- since. The recursive step finds consumers that have rows in the inbox only, with one index lookup per name.
CREATE VIEW relevo_inbox_consumer_name (name) AS
WITH RECURSIVE step (name) AS (
    SELECT min(consumer) FROM relevo_inbox
    UNION ALL
    SELECT (SELECT min(i.consumer) FROM relevo_inbox AS i WHERE i.consumer > step.name)
    FROM step WHERE step.name IS NOT NULL
), recorded (name) AS (
    SELECT name FROM step WHERE name IS NOT NULL UNION SELECT name FROM relevo_inbox_consumer
)
SELECT r.name FROM recorded AS r LEFT JOIN relevo_inbox_consumer AS c ON c.name = r.name
WHERE c.removed_at_ms IS NULL
    OR EXISTS (SELECT 1 FROM relevo_inbox_retry_message AS m WHERE m.consumer = r.name)
    OR EXISTS (SELECT 1 FROM relevo_inbox_dead_letter AS d WHERE d.consumer = r.name AND d.state = 'pending')
    OR EXISTS (
        SELECT 1 FROM relevo_inbox AS i
        WHERE i.consumer = r.name AND i.state IN ('done', 'skipped') AND i.entered_at_ms > c.removed_at_ms);
