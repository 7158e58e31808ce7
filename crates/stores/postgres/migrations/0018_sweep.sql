-- Retention where partitions take long to fill: a million messages may be years, and what was to be kept for a month is in them.

-- How much longer than `retention` a message may stay until it is deleted by itself. Partitions that are filled within that time
-- are emptied whole, which costs next to nothing; of others so few messages come that deleting them does not matter.
CREATE FUNCTION sweep_after(st setting) RETURNS interval
LANGUAGE sql IMMUTABLE SET search_path = @schema@, pg_temp
AS $$ SELECT least(st.retention, interval '1 day') $$;

-- Deletes the first messages of the log that are old and settled by every destination, if the first of all is far too old: a batch
-- at a time, looking at no more rows than that. Nobody reads them any more, so that nobody waits for this nor is waited for.
CREATE FUNCTION sweep() RETURNS int
LANGUAGE plpgsql SET search_path = @schema@, pg_temp
AS $$
DECLARE
    st setting;
    oldest tick;
    p partition;
    first_at timestamptz;
    swept int;
BEGIN
    SELECT * INTO st FROM setting;
    SELECT * INTO p FROM partition WHERE emptied_at IS NULL ORDER BY first LIMIT 1;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    EXECUTE format('SELECT created_at FROM %I ORDER BY seq LIMIT 1', 'message_' || p.first) INTO first_at;
    IF first_at IS NULL OR first_at > clock_timestamp() - st.retention - sweep_after(st)
        OR NOT pg_try_advisory_xact_lock(lock_number('retention')) THEN
        RETURN 0;
    END IF;
    SELECT * INTO oldest FROM tick WHERE tick = coalesce(
        (SELECT min(s.from_tick) FROM destination AS d CROSS JOIN LATERAL standing(d.name) AS s),
        (SELECT max(t.tick) FROM tick AS t));
    EXECUTE format('DELETE FROM %1$I WHERE seq IN (
        SELECT m.seq FROM (SELECT seq, xid, created_at FROM %1$I ORDER BY seq LIMIT 10000) AS m
        WHERE m.created_at < $1 AND m.seq <= $2 AND pg_visible_in_snapshot(m.xid, $3))', 'message_' || p.first)
    USING clock_timestamp() - st.retention, oldest.high, oldest.snapshot;
    GET DIAGNOSTICS swept = ROW_COUNT;
    RETURN swept;
END $$;

-- As before, and with the sweep. Progress and ticks stay as long as a message may: they say when it was published.
CREATE OR REPLACE FUNCTION prune() RETURNS void
LANGUAGE plpgsql SET search_path = @schema@, pg_temp
AS $$
DECLARE
    st setting;
    before timestamptz;
BEGIN
    SELECT * INTO st FROM setting;
    before := clock_timestamp() - st.retention - 2 * sweep_after(st);
    PERFORM sweep();
    DELETE FROM progress WHERE no IN (
        SELECT p.no FROM progress AS p
        WHERE p.settled_at < before AND p.no < (
            SELECT q.no FROM progress AS q
            WHERE q.destination = p.destination AND q.shards = p.shards AND q.shard = p.shard
            ORDER BY q.no DESC LIMIT 1)
        ORDER BY p.settled_at LIMIT 10000);
    DELETE FROM tick WHERE tick IN (
        SELECT t.tick FROM tick AS t
        WHERE t.tick > 0 AND t.made_at < before
            AND t.tick < (SELECT max(tick) FROM tick)
            AND t.tick < coalesce((
                SELECT min(s.from_tick) FROM destination AS d CROSS JOIN LATERAL standing(d.name) AS s), t.tick + 1)
            AND NOT EXISTS (SELECT 1 FROM destination AS d WHERE d.regroup_tick = t.tick)
        ORDER BY t.tick LIMIT 10000);
    DELETE FROM parked_delivery WHERE (destination, seq) IN (
        SELECT p.destination, p.seq FROM parked_delivery AS p
        WHERE p.delivered_at < before LIMIT 10000);
    DELETE FROM own_id WHERE id IN (
        SELECT o.id FROM own_id AS o WHERE o.claimed_at < clock_timestamp() - st.id_retention LIMIT 10000);
    DELETE FROM dead_letter WHERE (destination, id) IN (
        SELECT d.destination, d.id FROM dead_letter AS d
        WHERE d.state IN ('redriven', 'discarded') AND d.marked_at < clock_timestamp() - st.dead_retention LIMIT 1000);
END $$;
