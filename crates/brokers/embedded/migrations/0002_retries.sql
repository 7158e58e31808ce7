-- How often a message was to be retried, apart from how often it was handed out: only an answer raises it.
ALTER TABLE broker_pending ADD COLUMN retries INTEGER NOT NULL DEFAULT 0;

-- Until now the two were one number. What waits for its time was handed out once for each retry; what is out of those
-- again, once more.
UPDATE broker_pending SET retries = max(count - (state <> 2), 1) WHERE due_ms IS NOT NULL;

UPDATE broker_meta SET version = 2;
