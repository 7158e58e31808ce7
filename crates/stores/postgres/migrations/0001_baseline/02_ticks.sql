-- Ticks: snapshots of the log. Any two ticks define a window of messages.

CREATE TABLE tick (
    tick       bigint PRIMARY KEY,
    snapshot   pg_snapshot NOT NULL,
    -- The sequence's last value, taken after the snapshot.
    max_seq    bigint NOT NULL,
    -- Transactions that may have numbers up to `max_seq` and are not visible in the snapshot: those open in it, and those whose id
    -- was assigned between the snapshot and this tick's own id.
    late_xids  xid8[] NOT NULL,
    timeline   int NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
-- Tick 0: nothing is visible (3 is the first normal transaction id).
INSERT INTO tick (tick, snapshot, max_seq, late_xids, timeline) VALUES (0, '3:3:', 0, '{}', 0);

-- Raises an error unless the isolation level is READ COMMITTED. Only there do later statements of a function see what was committed
-- while the function waited.
CREATE FUNCTION require_read_committed() RETURNS void
LANGUAGE plpgsql SET search_path = @schema@, pg_temp
AS $$
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'this needs READ COMMITTED' USING ERRCODE = 'RV001';
    END IF;
END $$;

-- Makes this transaction's commit survive a crash. An acknowledgement follows the commit.
CREATE FUNCTION require_durable_commit() RETURNS void
LANGUAGE plpgsql SET search_path = @schema@, pg_temp
AS $$
BEGIN
    IF current_setting('synchronous_commit') IN ('off', 'local') THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
END $$;

-- The time after this number of milliseconds.
CREATE FUNCTION after_ms(p_ms bigint) RETURNS timestamptz
LANGUAGE sql VOLATILE
AS $$ SELECT clock_timestamp() + make_interval(secs => p_ms / 1000.0) $$;

-- The server's timeline, read from the WAL insert position. The control file lags behind a promotion.
CREATE FUNCTION current_timeline() RETURNS int
LANGUAGE sql VOLATILE
AS $$ SELECT ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::int $$;

-- The last value drawn from the sequence. `SELECT last_value` reads the sequence's row without its lock: while `nextval` writes WAL, once
-- in 32 values, the row shows a value up to 32 ahead. A tick with such a value would skip every message that is emitted below it, or
-- the next tick would report a restored database. `pg_sequence_last_value` takes the lock.
CREATE FUNCTION last_seq() RETURNS bigint
LANGUAGE sql VOLATILE
AS $$ SELECT coalesce(pg_sequence_last_value('@schema@.message_seq'::regclass), 0) $$;

-- Makes a tick. Returns the newest one if nothing is new or another session makes one.
-- It must be a statement of its own. It takes the snapshot, the sequence's last value and the transaction id in this order, each in a
-- statement with a new snapshot, after the lock. The tick commits durably before anything of its window is published, which makes
-- everything that it sees durable too.
CREATE FUNCTION make_tick() RETURNS TABLE (tick bigint, snapshot text, max_seq bigint, late_xids text, timeline int, due boolean)
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
    IF pg_try_advisory_xact_lock(advisory_lock_key('tick')) THEN
        SELECT * INTO last_tick FROM tick ORDER BY tick DESC LIMIT 1;
        SELECT pg_current_snapshot() INTO s;
        SELECT last_seq() INTO h;
        line := current_timeline();
        IF pg_snapshot_xmin(s) < pg_snapshot_xmin(last_tick.snapshot)
            OR pg_snapshot_xmax(s) < pg_snapshot_xmax(last_tick.snapshot) OR h < last_tick.max_seq THEN
            RAISE EXCEPTION 'the transaction counter or the sequence went back: this database was restored'
                USING ERRCODE = 'RV003', HINT = 'Run `relevo outbox rebase`.';
        END IF;
        IF h > last_tick.max_seq OR line <> last_tick.timeline
            OR EXISTS (SELECT 1 FROM unnest(last_tick.late_xids) AS x WHERE pg_visible_in_snapshot(x, s)) THEN
            IF current_setting('synchronous_commit') IN ('off', 'local') THEN
                PERFORM set_config('synchronous_commit', 'on', true);
            END IF;
            b := pg_current_xact_id();
            INSERT INTO tick (tick, snapshot, max_seq, late_xids, timeline)
            VALUES (last_tick.tick + 1, s, h, ARRAY(
                SELECT pg_snapshot_xip(s)
                UNION ALL
                SELECT x::text::xid8
                FROM generate_series(pg_snapshot_xmax(s)::text::bigint, b::text::bigint - 1) AS x
            ), line);
        END IF;
    END IF;
    -- A separate statement: it sees this tick, or the tick of the session that held the lock.
    RETURN QUERY
        SELECT t.tick, t.snapshot::text, t.max_seq, t.late_xids::text, t.timeline,
            coalesce((SELECT s.due_at <= clock_timestamp() FROM scheduled AS s ORDER BY s.due_at, s.ordinal LIMIT 1), false)
        FROM tick AS t ORDER BY t.tick DESC LIMIT 1;
END $$;
