-- How long a consumer's inbox remembers what was handled: what it was last pruned with, null if it never was. A message that is
-- delivered again later than that is not recognised, so that people must be able to see it.
ALTER TABLE inbox_consumer ADD COLUMN remembers interval;

-- As before, and it notes how long the inbox remembers.
CREATE OR REPLACE FUNCTION inbox_prune(
    consumer text, keep_done interval DEFAULT '30 days', keep_dead interval DEFAULT '90 days',
    keep_trace interval DEFAULT '30 days', most int DEFAULT 10000
) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = @schema@, pg_temp
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
AS $$
DECLARE
    -- Values, which an index can be searched for: the function could change from row to row.
    done_before timestamptz := clock_timestamp() - keep_done;
    dead_before timestamptz := clock_timestamp() - keep_dead;
    traced_before timestamptz := clock_timestamp() - keep_trace;
    n bigint;
    more boolean := false;
BEGIN
    INSERT INTO inbox_consumer AS c (name, remembers) VALUES (inbox_prune.consumer, keep_done)
    ON CONFLICT (name) DO UPDATE SET remembers = excluded.remembers
    WHERE c.remembers IS DISTINCT FROM excluded.remembers;
    DELETE FROM inbox AS i WHERE i.ctid = ANY (ARRAY(
        SELECT o.ctid FROM inbox AS o
        WHERE o.consumer = inbox_prune.consumer AND o.entered_at < done_before AND o.state IN ('done', 'skipped')
        ORDER BY o.entered_at LIMIT most FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS n = ROW_COUNT;
    more := more OR n >= most;
    DELETE FROM inbox_dead AS d WHERE d.ctid = ANY (ARRAY(
        SELECT o.ctid FROM inbox_dead AS o
        WHERE o.consumer = inbox_prune.consumer AND o.fate <> 'pending' AND o.marked_at < dead_before
        ORDER BY o.marked_at LIMIT most FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS n = ROW_COUNT;
    more := more OR n >= most;
    DELETE FROM inbox_trace AS t WHERE t.ctid = ANY (ARRAY(
        SELECT o.ctid FROM inbox_trace AS o
        WHERE o.consumer = inbox_prune.consumer AND o.at < traced_before
        ORDER BY o.at LIMIT most FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS n = ROW_COUNT;
    more := more OR n >= most;
    DELETE FROM inbox_member AS m
    WHERE m.consumer = inbox_prune.consumer AND m.until < clock_timestamp() - interval '1 day';
    RETURN more;
END $$;
