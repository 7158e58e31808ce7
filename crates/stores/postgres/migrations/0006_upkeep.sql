-- Which database this is, partitions ahead, retention, and what to do after a restore.

CREATE TABLE identity (
    only_row          boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    system_identifier bigint NOT NULL,
    database_oid      oid NOT NULL
);
INSERT INTO identity (system_identifier, database_oid)
SELECT c.system_identifier, d.oid FROM pg_control_system() AS c, pg_database AS d WHERE d.datname = current_database();

-- The prepared partitions; an emptied one waits for a quiet moment to be dropped.
CREATE TABLE partition (
    first      bigint PRIMARY KEY,
    past       bigint NOT NULL,
    emptied_at timestamptz
);
INSERT INTO partition (first, past) VALUES (1, 1000001);

-- Rows that were dropped although a destination had not taken them, because `gives_way` said so.
CREATE TABLE loss (
    lost_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    first   bigint NOT NULL,
    past    bigint NOT NULL,
    rows    bigint NOT NULL
);

-- Whether every stored transaction id is behind the server's counter.
CREATE FUNCTION counters_are_ahead() RETURNS boolean
LANGUAGE sql STABLE SET search_path = @schema@, pg_temp
AS $$
    SELECT pg_snapshot_xmax(pg_current_snapshot()) > ALL (ARRAY(
        SELECT pg_snapshot_xmax(t.snapshot) FROM tick AS t ORDER BY t.tick DESC LIMIT 1))
        AND pg_snapshot_xmax(pg_current_snapshot()) > ALL (ARRAY(SELECT m.xid FROM message AS m ORDER BY m.xid DESC LIMIT 1))
$$;

-- Stops whoever runs in a database whose rows were written in another one.
CREATE FUNCTION check_identity() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = @schema@, pg_temp
AS $$
DECLARE
    known identity;
    mend text;
BEGIN
    IF pg_is_in_recovery() THEN
        RAISE EXCEPTION 'this server is a standby' USING ERRCODE = 'RV002';
    END IF;
    SELECT * INTO known FROM identity;
    IF NOT EXISTS (
        SELECT 1 FROM pg_control_system() AS c, pg_database AS d
        WHERE d.datname = current_database() AND d.oid = known.database_oid
            AND c.system_identifier = known.system_identifier)
    THEN
        mend := CASE WHEN counters_are_ahead() THEN 'adopt' ELSE 'rebase' END;
        RAISE EXCEPTION 'the outbox was written in another database (system %, oid %): a copy, a restored dump or an upgraded cluster',
            known.system_identifier, known.database_oid
            USING ERRCODE = 'RV003', HINT = format('If this one shall publish from now on, run `relevo %s`.', mend);
    END IF;
END $$;

-- Takes the outbox over as it is: after an upgrade, or where a copy shall publish from now on.
CREATE FUNCTION adopt() RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = @schema@, pg_temp
AS $$
BEGIN
    IF NOT counters_are_ahead() THEN
        RAISE EXCEPTION 'stored transaction ids are ahead of this server''s counter' USING ERRCODE = 'RV003',
            HINT = 'Run `relevo rebase`.';
    END IF;
    UPDATE lease SET owner = NULL, until = '-infinity', epoch = epoch + 1, timeline = 0;
    UPDATE identity SET (system_identifier, database_oid) = (
        SELECT c.system_identifier, d.oid FROM pg_control_system() AS c, pg_database AS d
        WHERE d.datname = current_database());
END $$;

-- Gives every row a transaction id of this server: one that is visible to all for what every destination has taken, this
-- transaction's for the rest, so that the next window holds exactly that. What one destination had taken and another
-- had not is sent to both.
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
    PERFORM setval('message_seq', greatest(
        (SELECT last_value FROM message_seq), coalesce((SELECT max(seq) FROM message), 1)));
    SELECT max(tick) + 1 INTO next_tick FROM tick;
    DELETE FROM tick WHERE tick <> 0;
    INSERT INTO tick (tick, snapshot, high, late, timeline)
    SELECT next_tick, s, last_value, ARRAY(
        SELECT pg_snapshot_xip(s)
        UNION ALL
        SELECT x::text::xid8 FROM generate_series(pg_snapshot_xmax(s)::text::bigint, r::text::bigint) AS x
    ), current_timeline() FROM message_seq;
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

-- Attaches partitions ahead of the sequence. An attached partition blocks no writer: the parent's lock admits them.
CREATE FUNCTION prepare_partitions() RETURNS int
LANGUAGE plpgsql SET search_path = @schema@, pg_temp SET lock_timeout = '200ms'
AS $$
DECLARE
    st setting;
    at bigint := (SELECT last_value FROM message_seq);
    next_first bigint := (SELECT max(past) FROM partition);
    made int := 0;
BEGIN
    SELECT * INTO st FROM setting;
    -- The overflow partition holds rows from here on, or will: leave it a margin, in which open writers end.
    IF at >= next_first THEN
        next_first := (at / st.partition_rows + 2) * st.partition_rows + 1;
    END IF;
    WHILE next_first <= at + st.partitions_ahead * st.partition_rows LOOP
        BEGIN
            EXECUTE format('CREATE TABLE %I (LIKE message INCLUDING ALL)', 'message_' || next_first);
            EXECUTE format('ALTER TABLE message ATTACH PARTITION %I FOR VALUES FROM (%s) TO (%s)',
                'message_' || next_first, next_first, next_first + st.partition_rows);
            INSERT INTO partition (first, past) VALUES (next_first, next_first + st.partition_rows);
        EXCEPTION WHEN lock_not_available THEN
            RETURN made; -- A writer is in the overflow partition: again next time.
        END;
        next_first := next_first + st.partition_rows;
        made := made + 1;
    END LOOP;
    RETURN made;
END $$;

-- Whether every row of a partition is settled by every destination. The caller holds the partition's lock, so that no
-- writer can still commit into it, and this statement's snapshot is younger than the lock.
CREATE FUNCTION is_settled(partition_name text, oldest pg_snapshot) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = @schema@, pg_temp
AS $$
DECLARE
    answer boolean;
BEGIN
    EXECUTE format('SELECT NOT EXISTS (SELECT 1 FROM %I WHERE xid >= $1 AND NOT pg_visible_in_snapshot(xid, $2))',
        partition_name) INTO answer USING pg_snapshot_xmin(oldest), oldest;
    RETURN answer;
END $$;

-- Empties partitions that are old and settled, without waiting for anybody: TRUNCATE needs no lock on the parent, so no
-- emit waits; a partition with an open writer or reader is left for the next time.
CREATE FUNCTION apply_retention(OUT dropped int, OUT warnings text[])
LANGUAGE plpgsql SET search_path = @schema@, pg_temp
AS $$
DECLARE
    st setting;
    oldest tick;
    who text;
    p partition;
    newest timestamptz;
    lost bigint;
    held_back bigint;
    gives_way boolean;
    must_go boolean;
    at bigint := (SELECT last_value FROM message_seq);
BEGIN
    dropped := 0;
    warnings := '{}';
    SELECT * INTO st FROM setting;
    IF NOT pg_try_advisory_xact_lock(lock_number('retention')) THEN
        RETURN; -- A destination is being added: again next time.
    END IF;
    SELECT d.name INTO who FROM destination AS d CROSS JOIN LATERAL standing(d.name) AS s ORDER BY s.from_tick LIMIT 1;
    IF FOUND THEN
        SELECT * INTO oldest FROM tick
        WHERE tick = (SELECT min(s.from_tick) FROM destination AS d CROSS JOIN LATERAL standing(d.name) AS s);
    ELSE
        SELECT * INTO oldest FROM tick ORDER BY tick DESC LIMIT 1;
    END IF;
    held_back := at - oldest.high;
    gives_way := held_back > st.holdback_rows_max AND st.gives_way = 'delivery';
    IF held_back > st.holdback_rows_max / 2 AND who IS NOT NULL THEN
        warnings := warnings || format('destination "%s" holds back %s rows of %s allowed; then %s', who, held_back,
            st.holdback_rows_max, CASE st.gives_way WHEN 'disk' THEN 'the disk fills on' ELSE 'rows are dropped' END);
    END IF;
    FOR p IN SELECT * FROM partition WHERE emptied_at IS NULL AND past <= at ORDER BY first LIMIT 16 LOOP
        EXECUTE format('SELECT created_at FROM %I ORDER BY seq DESC LIMIT 1', 'message_' || p.first) INTO newest;
        must_go := gives_way AND p.past <= at - st.holdback_rows_max;
        EXIT WHEN newest > clock_timestamp() - st.retention AND NOT must_go;
        BEGIN
            EXECUTE format('LOCK TABLE %I IN ACCESS EXCLUSIVE MODE NOWAIT', 'message_' || p.first);
            IF NOT is_settled('message_' || p.first, oldest.snapshot) THEN
                IF NOT must_go THEN
                    RAISE EXCEPTION 'not settled' USING ERRCODE = 'RV009'; -- Gives the lock back.
                END IF;
                EXECUTE format('SELECT count(*) FROM %I WHERE NOT pg_visible_in_snapshot(xid, $1)', 'message_' || p.first)
                INTO lost USING oldest.snapshot;
                INSERT INTO loss (first, past, rows) VALUES (p.first, p.past, lost);
                warnings := warnings || format('%s rows from %s to %s were dropped before destination "%s" took them',
                    lost, p.first, p.past, who);
            END IF;
            EXECUTE format('TRUNCATE %I', 'message_' || p.first);
            UPDATE partition SET emptied_at = clock_timestamp() WHERE first = p.first;
            dropped := dropped + 1;
        EXCEPTION
            WHEN lock_not_available THEN CONTINUE;
            WHEN SQLSTATE 'RV009' THEN EXIT;
        END;
    END LOOP;
    DELETE FROM message_overflow WHERE seq IN (
        SELECT m.seq FROM message_overflow AS m
        WHERE m.created_at < clock_timestamp() - st.retention AND m.seq <= oldest.high
            AND pg_visible_in_snapshot(m.xid, oldest.snapshot)
        ORDER BY m.seq LIMIT 10000);
END $$;

-- Drops emptied partitions. That needs the parent's lock: it is tried without waiting, and only when many have come
-- together does it wait, shortly.
CREATE FUNCTION drop_emptied() RETURNS int
LANGUAGE plpgsql SET search_path = @schema@, pg_temp SET lock_timeout = '50ms'
AS $$
DECLARE
    p partition;
    gone int := 0;
BEGIN
    IF NOT EXISTS (SELECT 1 FROM partition WHERE emptied_at IS NOT NULL) THEN
        RETURN 0;
    END IF;
    IF (SELECT count(*) FROM partition WHERE emptied_at IS NOT NULL) < 16 THEN
        LOCK TABLE message IN ACCESS EXCLUSIVE MODE NOWAIT;
    ELSE
        LOCK TABLE message IN ACCESS EXCLUSIVE MODE;
    END IF;
    FOR p IN DELETE FROM partition WHERE emptied_at IS NOT NULL AND past < (SELECT max(past) FROM partition) RETURNING * LOOP
        EXECUTE format('DROP TABLE %I', 'message_' || p.first);
        gone := gone + 1;
    END LOOP;
    RETURN gone;
EXCEPTION WHEN lock_not_available THEN
    RETURN 0;
END $$;

-- Prunes histories, a batch at a time. The newest progress of a shard, and the ticks that it names, are never pruned.
CREATE FUNCTION prune() RETURNS void
LANGUAGE plpgsql SET search_path = @schema@, pg_temp
AS $$
DECLARE
    st setting;
BEGIN
    SELECT * INTO st FROM setting;
    DELETE FROM progress WHERE no IN (
        SELECT p.no FROM progress AS p
        WHERE p.settled_at < clock_timestamp() - st.retention AND p.no < (
            SELECT q.no FROM progress AS q
            WHERE q.destination = p.destination AND q.shards = p.shards AND q.shard = p.shard
            ORDER BY q.no DESC LIMIT 1)
        ORDER BY p.settled_at LIMIT 10000);
    DELETE FROM tick WHERE tick IN (
        SELECT t.tick FROM tick AS t
        WHERE t.tick > 0 AND t.made_at < clock_timestamp() - st.retention
            AND t.tick < (SELECT max(tick) FROM tick)
            AND t.tick < coalesce((
                SELECT min(s.from_tick) FROM destination AS d CROSS JOIN LATERAL standing(d.name) AS s), t.tick + 1)
            AND NOT EXISTS (SELECT 1 FROM destination AS d WHERE d.regroup_tick = t.tick)
        ORDER BY t.tick LIMIT 10000);
    DELETE FROM parked_delivery WHERE (destination, seq) IN (
        SELECT p.destination, p.seq FROM parked_delivery AS p
        WHERE p.delivered_at < clock_timestamp() - st.retention LIMIT 10000);
    DELETE FROM own_id WHERE id IN (
        SELECT o.id FROM own_id AS o WHERE o.claimed_at < clock_timestamp() - st.id_retention LIMIT 10000);
    DELETE FROM dead_letter WHERE (destination, id) IN (
        SELECT d.destination, d.id FROM dead_letter AS d
        WHERE d.state IN ('redriven', 'discarded') AND d.marked_at < clock_timestamp() - st.dead_retention LIMIT 1000);
END $$;

-- All of the upkeep; one session does it at a time.
CREATE FUNCTION maintain() RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = @schema@, pg_temp
AS $$
DECLARE
    prepared int;
    kept record;
    gone int;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'upkeep needs READ COMMITTED' USING ERRCODE = 'RV001';
    ELSIF NOT pg_try_advisory_xact_lock(lock_number('maintain')) THEN
        RETURN '{"busy": true, "prepared": 0, "dropped": 0, "warnings": []}';
    END IF;
    -- What takes locks comes last, and ends with the transaction.
    PERFORM prune();
    prepared := prepare_partitions();
    SELECT * INTO kept FROM apply_retention();
    gone := drop_emptied();
    RETURN jsonb_build_object('busy', false, 'prepared', prepared, 'dropped', kept.dropped, 'gone', gone,
        'warnings', to_jsonb(kept.warnings));
END $$;
