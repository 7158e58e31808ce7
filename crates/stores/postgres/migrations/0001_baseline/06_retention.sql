-- Settings, partitions and retention.

-- One row. Operators change it by hand.
CREATE TABLE setting (
    only_row          boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    partition_rows    bigint NOT NULL DEFAULT 1000000 CHECK (partition_rows > 0),
    partitions_ahead  int NOT NULL DEFAULT 4 CHECK (partitions_ahead > 0),
    retention         interval NOT NULL DEFAULT '7 days',
    id_retention      interval NOT NULL DEFAULT '30 days',
    dead_retention    interval NOT NULL DEFAULT '90 days',
    -- How many rows a destination that does not move may hold back, and which gives way then: `disk` keeps the rows and
    -- warns, `delivery` drops them and records the loss.
    holdback_rows_max bigint NOT NULL DEFAULT 50000000,
    gives_way         text NOT NULL DEFAULT 'disk' CHECK (gives_way IN ('disk', 'delivery'))
);
INSERT INTO setting DEFAULT VALUES;

-- The attached partitions. An emptied one is dropped later, when its lock is free.
CREATE TABLE partition (
    first      bigint PRIMARY KEY,
    past       bigint NOT NULL,
    emptied_at timestamptz
);
INSERT INTO partition (first, past) VALUES (1, 1000001);

-- Rows that retention dropped although a destination had not published them.
CREATE TABLE loss (
    lost_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    first   bigint NOT NULL,
    past    bigint NOT NULL,
    rows    bigint NOT NULL
);

-- Attaches partitions ahead of the sequence. This blocks no writer: ATTACH takes a lock that admits writers.
CREATE FUNCTION create_partitions_ahead() RETURNS int
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

-- Whether every destination has settled every row of a partition. The caller holds the partition's lock, so that no writer can commit
-- into it, and this statement's snapshot is newer than the lock.
CREATE FUNCTION partition_is_settled(p_partition_name text, p_oldest pg_snapshot) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = @schema@, pg_temp
AS $$
DECLARE
    answer boolean;
BEGIN
    EXECUTE format('SELECT NOT EXISTS (SELECT 1 FROM %I WHERE xid >= $1 AND NOT pg_visible_in_snapshot(xid, $2))',
        p_partition_name) INTO answer USING pg_snapshot_xmin(p_oldest), p_oldest;
    RETURN answer;
END $$;

-- Empties old, settled partitions without waiting. TRUNCATE takes no lock on the parent, so `emit` never waits. A partition with an open
-- writer or reader is skipped until the next call.
CREATE FUNCTION empty_old_partitions(OUT dropped int, OUT warnings text[])
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
    IF NOT pg_try_advisory_xact_lock(advisory_lock_key('retention')) THEN
        RETURN; -- A destination is being added: again next time.
    END IF;
    SELECT d.name INTO who FROM destination AS d CROSS JOIN LATERAL shard_positions(d.name) AS s ORDER BY s.from_tick LIMIT 1;
    IF FOUND THEN
        SELECT * INTO oldest FROM tick
        WHERE tick = (SELECT min(s.from_tick) FROM destination AS d CROSS JOIN LATERAL shard_positions(d.name) AS s);
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
            IF NOT partition_is_settled('message_' || p.first, oldest.snapshot) THEN
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

-- Drops emptied partitions. This needs the parent's lock: it is tried without waiting, and with a short wait only when many partitions
-- are emptied.
CREATE FUNCTION drop_emptied_partitions() RETURNS int
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

-- How much longer than `retention` a row may stay before it is deleted by row. Partitions that fill within that time are emptied whole,
-- which costs almost nothing; the others receive so few rows that deleting them is cheap.
CREATE FUNCTION row_delete_delay(p_settings setting) RETURNS interval
LANGUAGE sql IMMUTABLE SET search_path = @schema@, pg_temp
AS $$ SELECT least(p_settings.retention, interval '1 day') $$;

-- Deletes the oldest rows of the log that every destination has settled, if the first one is far too old: one batch a call, and no more
-- rows are inspected than that. No reader needs these rows, so no session waits.
CREATE FUNCTION delete_old_rows() RETURNS int
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
    IF first_at IS NULL OR first_at > clock_timestamp() - st.retention - row_delete_delay(st)
        OR NOT pg_try_advisory_xact_lock(advisory_lock_key('retention')) THEN
        RETURN 0;
    END IF;
    SELECT * INTO oldest FROM tick WHERE tick = coalesce(
        (SELECT min(s.from_tick) FROM destination AS d CROSS JOIN LATERAL shard_positions(d.name) AS s),
        (SELECT max(t.tick) FROM tick AS t));
    EXECUTE format('DELETE FROM %1$I WHERE seq IN (
        SELECT m.seq FROM (SELECT seq, xid, created_at FROM %1$I ORDER BY seq LIMIT 10000) AS m
        WHERE m.created_at < $1 AND m.seq <= $2 AND pg_visible_in_snapshot(m.xid, $3))', 'message_' || p.first)
    USING clock_timestamp() - st.retention, oldest.high, oldest.snapshot;
    GET DIAGNOSTICS swept = ROW_COUNT;
    RETURN swept;
END $$;

-- Deletes old history, one batch a call. The newest progress of a shard, and the ticks that it names, are never deleted. Progress and
-- ticks stay as long as a message may: they show when it was published.
CREATE FUNCTION prune_history() RETURNS void
LANGUAGE plpgsql SET search_path = @schema@, pg_temp
AS $$
DECLARE
    st setting;
    before timestamptz;
BEGIN
    SELECT * INTO st FROM setting;
    before := clock_timestamp() - st.retention - 2 * row_delete_delay(st);
    PERFORM delete_old_rows();
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
                SELECT min(s.from_tick) FROM destination AS d CROSS JOIN LATERAL shard_positions(d.name) AS s), t.tick + 1)
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

-- All maintenance. One session runs it at a time.
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
    ELSIF NOT pg_try_advisory_xact_lock(advisory_lock_key('maintain')) THEN
        RETURN '{"busy": true, "prepared": 0, "dropped": 0, "warnings": []}';
    END IF;
    -- What takes locks comes last, and ends with the transaction.
    PERFORM prune_history();
    prepared := create_partitions_ahead();
    SELECT * INTO kept FROM empty_old_partitions();
    gone := drop_emptied_partitions();
    RETURN jsonb_build_object('busy', false, 'prepared', prepared, 'dropped', kept.dropped, 'gone', gone,
        'warnings', to_jsonb(kept.warnings));
END $$;
