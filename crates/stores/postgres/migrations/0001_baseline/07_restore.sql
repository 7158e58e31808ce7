-- The identity of the database, and recovery after a restore.

CREATE TABLE database_identity (
    only_row          boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    system_identifier bigint NOT NULL,
    database_oid      oid NOT NULL
);
INSERT INTO database_identity (system_identifier, database_oid)
SELECT c.system_identifier, d.oid FROM pg_control_system() AS c, pg_database AS d WHERE d.datname = current_database();

-- Whether every stored transaction id is below the server's counter.
CREATE FUNCTION xid_counter_is_ahead() RETURNS boolean
LANGUAGE sql STABLE SET search_path = @schema@, pg_temp
AS $$
    SELECT pg_snapshot_xmax(pg_current_snapshot()) > ALL (ARRAY(
        SELECT pg_snapshot_xmax(t.snapshot) FROM tick AS t ORDER BY t.tick DESC LIMIT 1))
        AND pg_snapshot_xmax(pg_current_snapshot()) > ALL (ARRAY(SELECT m.xid FROM message AS m ORDER BY m.xid DESC LIMIT 1))
$$;

-- Raises an error in a database whose rows were written in another one.
CREATE FUNCTION check_database_identity() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = @schema@, pg_temp
AS $$
DECLARE
    known database_identity;
    command text;
BEGIN
    IF pg_is_in_recovery() THEN
        RAISE EXCEPTION 'this server is a standby' USING ERRCODE = 'RV002';
    END IF;
    SELECT * INTO known FROM database_identity;
    IF NOT EXISTS (
        SELECT 1 FROM pg_control_system() AS c, pg_database AS d
        WHERE d.datname = current_database() AND d.oid = known.database_oid
            AND c.system_identifier = known.system_identifier)
    THEN
        command := CASE WHEN xid_counter_is_ahead() THEN 'adopt' ELSE 'rebase' END;
        RAISE EXCEPTION 'the outbox was written in another database (system %, oid %): a copy, a restored dump or an upgraded cluster',
            known.system_identifier, known.database_oid
            USING ERRCODE = 'RV003', HINT = format('If this one shall publish from now on, run `relevo outbox %s`.', command);
    END IF;
END $$;

-- Accepts the outbox as it is: after an upgrade, or where a copy is to publish from now on.
CREATE FUNCTION adopt() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = @schema@, pg_temp
AS $$
BEGIN
    IF NOT xid_counter_is_ahead() THEN
        RAISE EXCEPTION 'stored transaction ids are ahead of this server''s counter' USING ERRCODE = 'RV003',
            HINT = 'Run `relevo outbox rebase`.';
    END IF;
    UPDATE lease SET owner = NULL, expires_at = '-infinity', epoch = epoch + 1, timeline = 0;
    UPDATE database_identity SET (system_identifier, database_oid) = (
        SELECT c.system_identifier, d.oid FROM pg_control_system() AS c, pg_database AS d
        WHERE d.datname = current_database());
END $$;

-- Assigns transaction ids of this server to all rows: an id visible to everyone for rows that every destination has settled, this
-- transaction's id for the rest, so that the next window contains exactly those. A message that only some destinations had settled is
-- published to all of them.
CREATE FUNCTION rebase() RETURNS bigint
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
    -- Writers wait. No transaction id is assigned before the snapshot is taken.
    LOCK TABLE message IN SHARE ROW EXCLUSIVE MODE;
    SELECT pg_current_snapshot() INTO s;
    r := pg_current_xact_id();
    UPDATE lease SET owner = NULL, expires_at = '-infinity', epoch = epoch + 1, timeline = 0;
    UPDATE message AS m SET xid = CASE WHEN EXISTS (
        SELECT 1 FROM destination AS d CROSS JOIN LATERAL shard_positions(d.name) AS p
        JOIN tick AS f ON f.tick = p.from_tick JOIN tick AS t ON t.tick = p.to_tick
        WHERE p.shard = m.slot % d.shards
            AND NOT (m.seq <= f.max_seq AND pg_visible_in_snapshot(m.xid, f.snapshot))
            AND NOT (m.seq <= p.settled_seq AND m.seq <= t.max_seq AND pg_visible_in_snapshot(m.xid, t.snapshot))
    ) THEN r ELSE '3'::xid8 END;
    SELECT count(*) INTO waiting FROM message WHERE xid = r;
    -- A logical copy has rows, but may not have the values of sequences. A smaller ordinal would overtake the queue of its key.
    PERFORM setval('message_seq', greatest(last_seq(), (SELECT max(seq) FROM message), (SELECT max(max_seq) FROM tick), 1));
    PERFORM setval(pg_get_serial_sequence('scheduled', 'ordinal'), greatest(
        nextval(pg_get_serial_sequence('scheduled', 'ordinal')), (SELECT max(ordinal) FROM scheduled)));
    PERFORM setval('parked_seq', greatest(nextval('parked_seq'), (SELECT max(ordinal) FROM parked_message)));
    PERFORM setval('inbox_seq', greatest(
        nextval('inbox_seq'), (SELECT max(ordinal) FROM inbox_retry_message), (SELECT max(ordinal) FROM inbox_dead_letter)));
    SELECT max(tick) + 1 INTO next_tick FROM tick;
    DELETE FROM tick WHERE tick <> 0;
    INSERT INTO tick (tick, snapshot, max_seq, late_xids, timeline)
    SELECT next_tick, s, last_seq(), ARRAY(
        SELECT pg_snapshot_xip(s)
        UNION ALL
        SELECT x::text::xid8 FROM generate_series(pg_snapshot_xmax(s)::text::bigint, r::text::bigint) AS x
    ), current_timeline();
    DELETE FROM progress;
    INSERT INTO progress (destination, shards, shard, from_tick, to_tick, settled_seq, epoch)
    SELECT l.destination, d.shards, l.shard, next_tick, next_tick, 0, l.epoch
    FROM lease AS l JOIN destination AS d ON d.name = l.destination;
    UPDATE destination SET reshard_tick = NULL;
    UPDATE database_identity SET (system_identifier, database_oid) = (
        SELECT c.system_identifier, d.oid FROM pg_control_system() AS c, pg_database AS d
        WHERE d.datname = current_database());
    RETURN waiting;
END $$;
