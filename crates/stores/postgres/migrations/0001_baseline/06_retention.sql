-- Settings, partitions and retention.

-- One row. Operators change it by hand.
CREATE TABLE settings (
    only_row              boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    partition_rows        bigint NOT NULL DEFAULT 1000000 CHECK (partition_rows > 0),
    partitions_ahead      int NOT NULL DEFAULT 4 CHECK (partitions_ahead > 0),
    retention             interval NOT NULL DEFAULT '7 days',
    id_retention          interval NOT NULL DEFAULT '30 days',
    dead_letter_retention interval NOT NULL DEFAULT '90 days',
    -- The number of undelivered rows that retention keeps for a destination. Above it, `keep` keeps the rows and warns; `drop` drops
    -- them and records the loss.
    undelivered_rows_max  bigint NOT NULL DEFAULT 50000000,
    overflow_policy       text NOT NULL DEFAULT 'keep' CHECK (overflow_policy IN ('keep', 'drop'))
);
INSERT INTO settings DEFAULT VALUES;

-- The attached partitions. An emptied one is dropped later, when its lock is free.
CREATE TABLE message_partition (
    first_seq  bigint PRIMARY KEY,
    end_seq    bigint NOT NULL,
    emptied_at timestamptz
);
INSERT INTO message_partition (first_seq, end_seq) VALUES (1, 1000001);

-- Rows that retention dropped although a destination had not published them.
CREATE TABLE data_loss (
    lost_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    first_seq bigint NOT NULL,
    end_seq   bigint NOT NULL,
    rows      bigint NOT NULL
);

-- Attaches partitions ahead of the sequence. This blocks no writer: ATTACH takes a lock that admits writers.
CREATE FUNCTION create_partitions_ahead() RETURNS int
LANGUAGE plpgsql SET search_path = @schema@, pg_temp SET lock_timeout = '200ms'
AS $$
DECLARE
    st settings;
    at bigint := (SELECT last_value FROM message_seq);
    next_first bigint := (SELECT max(end_seq) FROM message_partition);
    made int := 0;
BEGIN
    SELECT * INTO st FROM settings;
    -- The default partition has rows from here on, or will have: leave a margin, in which open writers finish.
    IF at >= next_first THEN
        next_first := (at / st.partition_rows + 2) * st.partition_rows + 1;
    END IF;
    WHILE next_first <= at + st.partitions_ahead * st.partition_rows LOOP
        BEGIN
            EXECUTE format('CREATE TABLE %I (LIKE message INCLUDING ALL)', 'message_' || next_first);
            EXECUTE format('ALTER TABLE message ATTACH PARTITION %I FOR VALUES FROM (%s) TO (%s)',
                'message_' || next_first, next_first, next_first + st.partition_rows);
            INSERT INTO message_partition (first_seq, end_seq) VALUES (next_first, next_first + st.partition_rows);
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
CREATE FUNCTION empty_old_partitions(OUT emptied int, OUT warnings text[])
LANGUAGE plpgsql SET search_path = @schema@, pg_temp
AS $$
DECLARE
    st settings;
    oldest tick;
    who text;
    p message_partition;
    newest timestamptz;
    lost bigint;
    held_back bigint;
    drops boolean;
    must_go boolean;
    at bigint := (SELECT last_value FROM message_seq);
    before timestamptz;
BEGIN
    emptied := 0;
    warnings := '{}';
    SELECT * INTO st FROM settings;
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
    before := clock_timestamp() - st.retention;
    held_back := at - oldest.max_seq;
    drops := held_back > st.undelivered_rows_max AND st.overflow_policy = 'drop';
    IF held_back > st.undelivered_rows_max / 2 AND who IS NOT NULL THEN
        warnings := warnings || format('destination "%s" has %s undelivered rows (limit %s); above the limit rows are %s', who,
            held_back, st.undelivered_rows_max, CASE st.overflow_policy WHEN 'keep' THEN 'kept' ELSE 'dropped' END);
    END IF;
    FOR p IN SELECT * FROM message_partition WHERE emptied_at IS NULL AND end_seq <= at ORDER BY first_seq LIMIT 16 LOOP
        EXECUTE format('SELECT created_at FROM %I ORDER BY seq DESC LIMIT 1', 'message_' || p.first_seq) INTO newest;
        must_go := drops AND p.end_seq <= at - st.undelivered_rows_max;
        EXIT WHEN newest > before AND NOT must_go;
        BEGIN
            EXECUTE format('LOCK TABLE %I IN ACCESS EXCLUSIVE MODE NOWAIT', 'message_' || p.first_seq);
            IF NOT partition_is_settled('message_' || p.first_seq, oldest.snapshot) THEN
                IF NOT must_go THEN
                    RAISE EXCEPTION 'not settled' USING ERRCODE = 'RV009'; -- Gives the lock back.
                END IF;
                EXECUTE format('SELECT count(*) FROM %I WHERE NOT pg_visible_in_snapshot(xid, $1)', 'message_' || p.first_seq)
                INTO lost USING oldest.snapshot;
                INSERT INTO data_loss (first_seq, end_seq, rows) VALUES (p.first_seq, p.end_seq, lost);
                warnings := warnings || format('dropped %s rows from %s to %s that destination "%s" had not published',
                    lost, p.first_seq, p.end_seq, who);
            END IF;
            EXECUTE format('TRUNCATE %I', 'message_' || p.first_seq);
            UPDATE message_partition SET emptied_at = clock_timestamp() WHERE first_seq = p.first_seq;
            emptied := emptied + 1;
        EXCEPTION
            WHEN lock_not_available THEN CONTINUE;
            WHEN SQLSTATE 'RV009' THEN EXIT;
        END;
    END LOOP;
    DELETE FROM message_overflow WHERE seq IN (
        SELECT m.seq FROM message_overflow AS m
        WHERE m.created_at < before AND m.seq <= oldest.max_seq
            AND pg_visible_in_snapshot(m.xid, oldest.snapshot)
        ORDER BY m.seq LIMIT 10000);
END $$;

-- Drops emptied partitions. This needs the parent's lock: it is tried without waiting, and with a short wait only when many partitions
-- are emptied. A writer may have paused between drawing its number and its insert, and inserted into an emptied partition. So this checks
-- again under the lock, and a partition with rows is in use again.
CREATE FUNCTION drop_emptied_partitions() RETURNS int
LANGUAGE plpgsql SET search_path = @schema@, pg_temp SET lock_timeout = '50ms'
AS $$
DECLARE
    p message_partition;
    has_rows boolean;
    dropped int := 0;
BEGIN
    IF NOT EXISTS (SELECT 1 FROM message_partition WHERE emptied_at IS NOT NULL) THEN
        RETURN 0;
    END IF;
    IF (SELECT count(*) FROM message_partition WHERE emptied_at IS NOT NULL) < 16 THEN
        LOCK TABLE message IN ACCESS EXCLUSIVE MODE NOWAIT;
    ELSE
        LOCK TABLE message IN ACCESS EXCLUSIVE MODE;
    END IF;
    FOR p IN
        SELECT * FROM message_partition
        WHERE emptied_at IS NOT NULL AND end_seq < (SELECT max(end_seq) FROM message_partition) ORDER BY first_seq
    LOOP
        EXECUTE format('SELECT EXISTS (SELECT 1 FROM %I)', 'message_' || p.first_seq) INTO has_rows;
        IF has_rows THEN
            UPDATE message_partition SET emptied_at = NULL WHERE first_seq = p.first_seq;
        ELSE
            EXECUTE format('DROP TABLE %I', 'message_' || p.first_seq);
            DELETE FROM message_partition WHERE first_seq = p.first_seq;
            dropped := dropped + 1;
        END IF;
    END LOOP;
    RETURN dropped;
EXCEPTION WHEN lock_not_available THEN
    RETURN 0;
END $$;

-- How much longer than `retention` a row may stay before it is deleted by row. Partitions that fill within that time are emptied whole,
-- which costs almost nothing; the others receive so few rows that deleting them is cheap.
CREATE FUNCTION row_delete_delay(p_settings settings) RETURNS interval
LANGUAGE sql IMMUTABLE SET search_path = @schema@, pg_temp
AS $$ SELECT least(p_settings.retention, interval '1 day') $$;

-- Deletes the oldest rows of the log that every destination has settled, if the first one is far too old: one batch a call, and no more
-- rows are inspected than that. No reader needs these rows, so no session waits.
CREATE FUNCTION delete_old_rows() RETURNS int
LANGUAGE plpgsql SET search_path = @schema@, pg_temp
AS $$
DECLARE
    st settings;
    oldest tick;
    p message_partition;
    first_at timestamptz;
    swept int;
BEGIN
    SELECT * INTO st FROM settings;
    SELECT * INTO p FROM message_partition WHERE emptied_at IS NULL ORDER BY first_seq LIMIT 1;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    EXECUTE format('SELECT created_at FROM %I ORDER BY seq LIMIT 1', 'message_' || p.first_seq) INTO first_at;
    IF first_at IS NULL OR first_at > clock_timestamp() - st.retention - row_delete_delay(st)
        OR NOT pg_try_advisory_xact_lock(advisory_lock_key('retention')) THEN
        RETURN 0;
    END IF;
    SELECT * INTO oldest FROM tick WHERE tick = coalesce(
        (SELECT min(s.from_tick) FROM destination AS d CROSS JOIN LATERAL shard_positions(d.name) AS s),
        (SELECT max(t.tick) FROM tick AS t));
    EXECUTE format('DELETE FROM %1$I WHERE seq IN (
        SELECT m.seq FROM (SELECT seq, xid, created_at FROM %1$I ORDER BY seq LIMIT 10000) AS m
        WHERE m.created_at < $1 AND m.seq <= $2 AND pg_visible_in_snapshot(m.xid, $3))', 'message_' || p.first_seq)
    USING clock_timestamp() - st.retention, oldest.max_seq, oldest.snapshot;
    GET DIAGNOSTICS swept = ROW_COUNT;
    RETURN swept;
END $$;

-- Deletes old history, one batch a call. Returns whether there may be more. The newest progress of a shard, and the ticks that it names, are never deleted. Progress and
-- ticks stay as long as a message may: they show when it was published.
CREATE FUNCTION prune_history() RETURNS boolean
LANGUAGE plpgsql SET search_path = @schema@, pg_temp
AS $$
DECLARE
    st settings;
    before timestamptz;
    ids_before timestamptz;
    letters_before timestamptz;
    deleted bigint;
    more boolean := false;
BEGIN
    SELECT * INTO st FROM settings;
    ids_before := clock_timestamp() - st.id_retention;
    letters_before := clock_timestamp() - st.dead_letter_retention;
    before := clock_timestamp() - st.retention - 2 * row_delete_delay(st);
    PERFORM delete_old_rows();
    DELETE FROM progress WHERE (destination, shards, shard, progress_id) IN (
        SELECT p.destination, p.shards, p.shard, p.progress_id FROM progress AS p
        WHERE p.settled_at < before AND p.progress_id < (
            SELECT q.progress_id FROM progress AS q
            WHERE q.destination = p.destination AND q.shards = p.shards AND q.shard = p.shard
            ORDER BY q.progress_id DESC LIMIT 1)
        ORDER BY p.settled_at LIMIT 10000);
    GET DIAGNOSTICS deleted = ROW_COUNT;
    more := more OR deleted >= 10000;
    DELETE FROM tick WHERE tick IN (
        SELECT t.tick FROM tick AS t
        WHERE t.tick > 0 AND t.created_at < before
            AND t.tick < (SELECT max(tick) FROM tick)
            AND t.tick < coalesce((
                SELECT min(s.from_tick) FROM destination AS d CROSS JOIN LATERAL shard_positions(d.name) AS s), t.tick + 1)
            AND NOT EXISTS (SELECT 1 FROM destination AS d WHERE d.reshard_tick = t.tick)
        ORDER BY t.tick LIMIT 10000);
    GET DIAGNOSTICS deleted = ROW_COUNT;
    more := more OR deleted >= 10000;
    DELETE FROM parked_published WHERE (destination, seq) IN (
        SELECT p.destination, p.seq FROM parked_published AS p
        WHERE p.published_at < before LIMIT 10000);
    GET DIAGNOSTICS deleted = ROW_COUNT;
    more := more OR deleted >= 10000;
    DELETE FROM dedup_id WHERE id IN (
        SELECT o.id FROM dedup_id AS o WHERE o.claimed_at < ids_before LIMIT 10000);
    GET DIAGNOSTICS deleted = ROW_COUNT;
    more := more OR deleted >= 10000;
    DELETE FROM dead_letter WHERE (destination, id) IN (
        SELECT d.destination, d.id FROM dead_letter AS d
        WHERE d.state IN ('redriven', 'discarded') AND d.marked_at < letters_before LIMIT 1000);
    GET DIAGNOSTICS deleted = ROW_COUNT;
    RETURN more OR deleted >= 1000;
END $$;

-- All maintenance. One session runs it at a time.
CREATE FUNCTION maintain(history_only boolean DEFAULT false) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = @schema@, pg_temp
AS $$
DECLARE
    more boolean;
    created int;
    retained record;
    dropped int;
BEGIN
    PERFORM require_read_committed();
    IF NOT pg_try_advisory_xact_lock(advisory_lock_key('maintain')) THEN
        RETURN '{"busy": true, "more": false, "partitions_created": 0, "partitions_emptied": 0, "partitions_dropped": 0, "warnings": []}';
    END IF;
    -- The functions that take table locks come last: the locks end with the transaction.
    more := prune_history();
    IF history_only THEN
        RETURN jsonb_build_object('busy', false, 'more', more, 'partitions_created', 0, 'partitions_emptied', 0,
            'partitions_dropped', 0, 'warnings', '[]'::jsonb);
    END IF;
    created := create_partitions_ahead();
    SELECT * INTO retained FROM empty_old_partitions();
    dropped := drop_emptied_partitions();
    RETURN jsonb_build_object('busy', false, 'more', more, 'partitions_created', created, 'partitions_emptied', retained.emptied,
        'partitions_dropped', dropped, 'warnings', to_jsonb(retained.warnings));
END $$;
