-- The last number that was drawn, read so that it is true.
--
-- `SELECT last_value` reads a sequence's row without its lock. While `nextval` logs, which it does once in 32 numbers, the row
-- says for a moment what the log says: a number up to 32 ahead. A tick with such a `high` passes over the messages whose
-- numbers are drawn after it and are not above: nobody reads them, ever. Or the next tick finds the number lower, and says
-- that the database was restored. This function of the server's takes the lock.
CREATE FUNCTION last_number() RETURNS bigint
LANGUAGE sql VOLATILE
AS $$ SELECT coalesce(pg_sequence_last_value('@schema@.message_seq'::regclass), 0) $$;

-- As before, but for the last number.
CREATE OR REPLACE FUNCTION make_tick() RETURNS TABLE (tick bigint, snapshot text, high bigint, late text, timeline int, due boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = @schema@, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    last_tick tick;
    s pg_snapshot;
    h bigint;
    b xid8;
    line int;
BEGIN
    IF pg_is_in_recovery() THEN
        RAISE EXCEPTION 'a standby cannot make ticks: its snapshots do not list open transactions'
            USING ERRCODE = 'RV002';
    ELSIF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'a tick needs READ COMMITTED: in % its snapshot would be older than its lock',
            upper(current_setting('transaction_isolation')) USING ERRCODE = 'RV001';
    ELSIF pg_current_xact_id_if_assigned() IS NOT NULL THEN
        RAISE EXCEPTION 'a tick needs a transaction of its own that has written nothing' USING ERRCODE = 'RV001';
    END IF;
    IF pg_try_advisory_xact_lock(lock_number('tick')) THEN
        SELECT * INTO last_tick FROM tick ORDER BY tick DESC LIMIT 1;
        SELECT pg_current_snapshot() INTO s;
        SELECT last_number() INTO h;
        line := current_timeline();
        IF pg_snapshot_xmin(s) < pg_snapshot_xmin(last_tick.snapshot)
            OR pg_snapshot_xmax(s) < pg_snapshot_xmax(last_tick.snapshot) OR h < last_tick.high THEN
            RAISE EXCEPTION 'the transaction counter or the sequence went back: this database was restored'
                USING ERRCODE = 'RV003', HINT = 'Run `relevo rebase`.';
        END IF;
        IF h > last_tick.high OR line <> last_tick.timeline
            OR EXISTS (SELECT 1 FROM unnest(last_tick.late) AS x WHERE pg_visible_in_snapshot(x, s)) THEN
            IF current_setting('synchronous_commit') IN ('off', 'local') THEN
                PERFORM set_config('synchronous_commit', 'on', true);
            END IF;
            b := pg_current_xact_id();
            INSERT INTO tick (tick, snapshot, high, late, timeline)
            VALUES (last_tick.tick + 1, s, h, ARRAY(
                SELECT pg_snapshot_xip(s)
                UNION ALL
                SELECT x::text::xid8
                FROM generate_series(pg_snapshot_xmax(s)::text::bigint, b::text::bigint - 1) AS x
            ), line);
        END IF;
    END IF;
    -- A statement of its own: it sees this tick, or the one of the session that held the lock.
    RETURN QUERY
        SELECT t.tick, t.snapshot::text, t.high, t.late::text, t.timeline,
            EXISTS (SELECT 1 FROM scheduled WHERE due_at <= clock_timestamp())
        FROM tick AS t ORDER BY t.tick DESC LIMIT 1;
END $$;

-- As before, but for the last number.
CREATE OR REPLACE FUNCTION rebase() RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = @schema@, pg_temp
AS $$
DECLARE
    s pg_snapshot;
    r xid8;
    next_tick bigint;
    waiting bigint;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'rebase needs READ COMMITTED' USING ERRCODE = 'RV001';
    END IF;
    -- Writers wait; no transaction id is assigned before the snapshot is taken.
    LOCK TABLE message IN SHARE ROW EXCLUSIVE MODE;
    SELECT pg_current_snapshot() INTO s;
    r := pg_current_xact_id();
    UPDATE lease SET owner = NULL, until = '-infinity', epoch = epoch + 1, timeline = 0;
    UPDATE message AS m SET xid = CASE WHEN EXISTS (
        SELECT 1 FROM destination AS d CROSS JOIN LATERAL standing(d.name) AS p
        JOIN tick AS f ON f.tick = p.from_tick JOIN tick AS t ON t.tick = p.to_tick
        WHERE p.shard = m.slot % d.shards
            AND NOT (m.seq <= f.high AND pg_visible_in_snapshot(m.xid, f.snapshot))
            AND NOT (m.seq <= p.place AND m.seq <= t.high AND pg_visible_in_snapshot(m.xid, t.snapshot))
    ) THEN r ELSE '3'::xid8 END;
    SELECT count(*) INTO waiting FROM message WHERE xid = r;
    PERFORM setval('message_seq', greatest(last_number(), (SELECT max(seq) FROM message), 1));
    SELECT max(tick) + 1 INTO next_tick FROM tick;
    DELETE FROM tick WHERE tick <> 0;
    INSERT INTO tick (tick, snapshot, high, late, timeline)
    SELECT next_tick, s, last_number(), ARRAY(
        SELECT pg_snapshot_xip(s)
        UNION ALL
        SELECT x::text::xid8 FROM generate_series(pg_snapshot_xmax(s)::text::bigint, r::text::bigint) AS x
    ), current_timeline();
    DELETE FROM progress;
    INSERT INTO progress (destination, shards, shard, from_tick, to_tick, place, epoch)
    SELECT l.destination, d.shards, l.shard, next_tick, next_tick, 0, l.epoch
    FROM lease AS l JOIN destination AS d ON d.name = l.destination;
    UPDATE destination SET regroup_tick = NULL;
    UPDATE identity SET (system_identifier, database_oid) = (
        SELECT c.system_identifier, d.oid FROM pg_control_system() AS c, pg_database AS d
        WHERE d.datname = current_database());
    RETURN waiting;
END $$;
