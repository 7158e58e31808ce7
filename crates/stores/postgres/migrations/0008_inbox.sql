-- The inbox: one row for each (consumer, message, replay), written in the transaction of the handler's effect. The insert is
-- the check: a row that is there is a repeat.

CREATE TABLE inbox (
    consumer   text NOT NULL,
    id         uuid NOT NULL,
    -- Zero, but for messages that are handled again on purpose.
    replay     int NOT NULL DEFAULT 0,
    -- `open`, `calling`, `waiting`, `done`, `skipped`, `dead` or `reopened`. Only functions write it: a constraint would cost a
    -- quarter of the insert.
    state      text NOT NULL DEFAULT 'done',
    -- How often handling was begun that has not ended.
    started    int NOT NULL DEFAULT 0,
    -- Counts for pruning; infinity while it waits or is dead, so that pruning never passes by it.
    entered_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- Whose call to the far side it is, and for how long at most, in state `calling`.
    token      uuid,
    until      timestamptz,
    PRIMARY KEY (consumer, id, replay)
) WITH (fillfactor = 90);
-- No index has the state in it, so that changing it touches none.
CREATE INDEX inbox_entered_at_idx ON inbox (consumer, entered_at);

-- Who may handle the messages of a lane, for consumers that keep order. Handlers hold this row while they work, so that
-- nothing stands here that a heartbeat or an operator writes.
CREATE TABLE inbox_lane (
    consumer text NOT NULL,
    lane     text NOT NULL,
    -- Rises with every change of owner.
    epoch    bigint NOT NULL,
    owner    uuid,
    PRIMARY KEY (consumer, lane)
);

-- A message that arrived, with all that a dead letter keeps of it.
CREATE TYPE inbox_arrival AS (
    id uuid, replay int, queue text, header_names bytea[], header_values bytea[], payload bytea, address text, lane text,
    place numeric, correlation text
);

-- The retry table: queues, and the messages that wait in them.
CREATE TABLE inbox_queue (
    consumer    text NOT NULL,
    -- A key for a consumer that keeps order, a message's id for one that does not.
    queue       text NOT NULL,
    -- When its first message may be tried; null while it waits for a person.
    next_at     timestamptz,
    -- The member that works on it, and for how long at most.
    token       uuid,
    claim_until timestamptz,
    -- A dead letter holds it.
    held        boolean NOT NULL DEFAULT false,
    PRIMARY KEY (consumer, queue)
) WITH (fillfactor = 80);
CREATE INDEX inbox_queue_next_at_idx ON inbox_queue (consumer, next_at) WHERE next_at IS NOT NULL;

CREATE SEQUENCE inbox_seq AS bigint CACHE 1;
CREATE TABLE inbox_waiting (
    consumer      text NOT NULL,
    queue         text NOT NULL,
    no            bigint NOT NULL DEFAULT nextval('inbox_seq'),
    id            uuid NOT NULL,
    replay        int NOT NULL,
    -- As they came: names in UTF-8, a value for each, in their order.
    header_names  bytea[] NOT NULL,
    header_values bytea[] NOT NULL,
    payload       bytea NOT NULL,
    address       text NOT NULL,
    lane          text NOT NULL,
    place         numeric(20),
    correlation   text,
    attempts      int NOT NULL DEFAULT 0,
    -- How often handling was begun that has not ended.
    started       int NOT NULL DEFAULT 0,
    -- A person took it out of the dead letters.
    reopened      boolean NOT NULL DEFAULT false,
    class         text NOT NULL DEFAULT '',
    error         text NOT NULL DEFAULT '',
    arrived_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (consumer, queue, no)
);
CREATE INDEX inbox_waiting_replay_idx ON inbox_waiting (consumer, replay) WHERE replay > 0;

CREATE TABLE inbox_dead (
    consumer      text NOT NULL,
    id            uuid NOT NULL,
    replay        int NOT NULL,
    queue         text NOT NULL,
    -- Its place among the messages of its queue, which it goes back to.
    no            bigint NOT NULL,
    header_names  bytea[] NOT NULL,
    header_values bytea[] NOT NULL,
    payload       bytea NOT NULL,
    address       text NOT NULL,
    lane          text NOT NULL,
    place         numeric(20),
    correlation   text,
    class         text NOT NULL,
    error         text NOT NULL,
    backtrace     text,
    attempts      int NOT NULL,
    arrived_at    timestamptz NOT NULL,
    dead_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    redriven      int NOT NULL DEFAULT 0,
    fate          text NOT NULL DEFAULT 'pending' CHECK (fate IN ('pending', 'replayed', 'archived')),
    -- Its queue waits for a person because of it.
    holds         boolean NOT NULL DEFAULT false,
    note          text,
    marked_by     text,
    marked_at     timestamptz,
    PRIMARY KEY (consumer, id, replay)
);
CREATE INDEX inbox_dead_pending_idx ON inbox_dead (consumer, no) WHERE fate = 'pending';
CREATE INDEX inbox_dead_holds_idx ON inbox_dead (consumer, queue, no) WHERE holds;
CREATE INDEX inbox_dead_marked_at_idx ON inbox_dead (consumer, marked_at) WHERE fate <> 'pending';
CREATE INDEX inbox_dead_dead_at_idx ON inbox_dead (dead_at, no);

-- What consumers did with messages, for those that trace.
CREATE TABLE inbox_trace (
    consumer    text NOT NULL,
    id          uuid NOT NULL,
    replay      int NOT NULL,
    state       text NOT NULL,
    repeats     int NOT NULL DEFAULT 0,
    address     text NOT NULL,
    lane        text NOT NULL,
    place       numeric(20),
    correlation text,
    at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (id, consumer, replay)
);
CREATE INDEX inbox_trace_at_idx ON inbox_trace (consumer, at);

-- What every transaction of an inbox needs that is followed by an acknowledgement: a commit that survives a crash.
CREATE FUNCTION inbox_durable() RETURNS void
LANGUAGE plpgsql SET search_path = @schema@, pg_temp
AS $$
BEGIN
    IF current_setting('synchronous_commit') IN ('off', 'local') THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
END $$;

-- What was committed while a function waited is seen by its later statements only in READ COMMITTED. Functions that rely on
-- that refuse anything else.
CREATE FUNCTION inbox_read_committed() RETURNS void
LANGUAGE plpgsql SET search_path = @schema@, pg_temp
AS $$
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'this needs READ COMMITTED' USING ERRCODE = 'RV001';
    END IF;
END $$;

-- For a call that is a transaction of its own: waits for locks no longer than this.
CREATE FUNCTION inbox_call(wait_ms int) RETURNS void
LANGUAGE plpgsql SET search_path = @schema@, pg_temp
AS $$
BEGIN
    PERFORM inbox_read_committed();
    PERFORM set_config('lock_timeout', wait_ms::text, true);
    PERFORM inbox_durable();
END $$;

-- For a transaction in which a handler works, what `inbox_enter` says of it. The wait for locks is only the calling
-- function's, which says SET lock_timeout and so has it restored.
CREATE FUNCTION inbox_handling(stall_ms int) RETURNS void
LANGUAGE plpgsql SET search_path = @schema@, pg_temp
AS $$
BEGIN
    PERFORM inbox_durable();
    IF stall_ms > 0 AND current_setting('statement_timeout') = '0' THEN
        PERFORM set_config('statement_timeout', stall_ms::text, true);
    END IF;
    IF stall_ms > 0 AND current_setting('idle_in_transaction_session_timeout') = '0' THEN
        PERFORM set_config('idle_in_transaction_session_timeout', stall_ms::text, true);
    END IF;
END $$;

-- Locks a lane against a change of its owner until the transaction ends; false if it is another's. True without a lane.
CREATE FUNCTION inbox_hold_lane(of_consumer text, of_lane text, lane_epoch bigint, lane_owner uuid) RETURNS boolean
LANGUAGE plpgsql SET search_path = @schema@, pg_temp
AS $$
BEGIN
    IF of_lane IS NULL THEN
        RETURN true;
    END IF;
    PERFORM 1 FROM inbox_lane AS l
    WHERE l.consumer = of_consumer AND l.lane = of_lane AND l.epoch = lane_epoch AND l.owner = lane_owner FOR SHARE;
    RETURN FOUND;
END $$;

-- Traces what became of a message. A repeat only counts.
CREATE FUNCTION inbox_note(of_consumer text, a inbox_arrival, as_state text, is_repeat boolean DEFAULT false) RETURNS void
LANGUAGE sql SET search_path = @schema@, pg_temp
AS $$
    INSERT INTO inbox_trace AS t (consumer, id, replay, state, repeats, address, lane, place, correlation)
    VALUES (of_consumer, a.id, a.replay, as_state, is_repeat::int, a.address, a.lane, a.place, a.correlation)
    ON CONFLICT (id, consumer, replay) DO UPDATE SET
        state = CASE WHEN is_repeat THEN t.state ELSE excluded.state END,
        repeats = t.repeats + is_repeat::int,
        at = CASE WHEN is_repeat THEN t.at ELSE excluded.at END
$$;

-- When a row counts as entered whose state changes: as before if that is not long ago, so that no index is touched.
CREATE FUNCTION inbox_entered(before timestamptz) RETURNS timestamptz
LANGUAGE sql VOLATILE
AS $$
    SELECT CASE WHEN before > clock_timestamp() - interval '1 hour' AND before < 'infinity' THEN before
        ELSE clock_timestamp() END
$$;

-- Enters messages in the handler's transaction. Null if all of them are plainly new; `lost` or `busy` of all of them, and the
-- transaction is to be rolled back; otherwise a line, `id replay word`, for each that is not new: its state if it is a
-- repeat, or `behind` if its queue waits. Those are then put into their queues by `inbox_append`, in the same
-- transaction. Every (id, replay) stands once.
--
-- Waits for locks no longer than `wait_ms`; the handler's statements wait as long as before. If a statement of the
-- transaction runs, or nothing happens in it, for `stall_ms`, the server ends it, because its locks keep the lane from
-- everybody; a session with limits of its own keeps them. A commit that is followed by an acknowledgement must survive
-- a crash.
--
-- For the usual case in as few expressions as there can be, as `put` is, with every name and operator qualified.
CREATE FUNCTION inbox_enter(
    of_consumer text, ids uuid[], replays int[], queues text[], of_lane text, lane_epoch bigint, lane_owner uuid,
    wait_ms int, stall_ms int, traces inbox_arrival[]
) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER
AS $$
DECLARE
    waits pg_catalog.text := pg_catalog.current_setting('lock_timeout');
    fresh_ids pg_catalog.uuid[] := ids;
    fresh_replays pg_catalog.int4[] := replays;
    answer pg_catalog.text := pg_catalog.concat(
        pg_catalog.set_config('lock_timeout', wait_ms::pg_catalog.text, true),
        CASE WHEN stall_ms OPERATOR(pg_catalog.>) 0
            AND pg_catalog.current_setting('statement_timeout') OPERATOR(pg_catalog.=) '0'
            THEN pg_catalog.set_config('statement_timeout', stall_ms::pg_catalog.text, true) END,
        CASE WHEN stall_ms OPERATOR(pg_catalog.>) 0
            AND pg_catalog.current_setting('idle_in_transaction_session_timeout') OPERATOR(pg_catalog.=) '0'
            THEN pg_catalog.set_config('idle_in_transaction_session_timeout', stall_ms::pg_catalog.text, true) END,
        CASE WHEN pg_catalog.current_setting('synchronous_commit') OPERATOR(pg_catalog.=) ANY ('{off,local}')
            THEN pg_catalog.set_config('synchronous_commit', 'on', true) END);
BEGIN
    IF of_lane IS NOT NULL THEN
        PERFORM 1 FROM @schema@.inbox_lane AS l
        WHERE l.consumer OPERATOR(pg_catalog.=) of_consumer AND l.lane OPERATOR(pg_catalog.=) of_lane
            AND l.epoch OPERATOR(pg_catalog.=) lane_epoch AND l.owner OPERATOR(pg_catalog.=) lane_owner FOR SHARE;
        IF NOT FOUND THEN
            RETURN 'lost';
        END IF;
    END IF;
    IF pg_catalog.cardinality(ids) OPERATOR(pg_catalog.=) 1 THEN
        INSERT INTO @schema@.inbox (consumer, id, replay) VALUES (of_consumer, ids[1], replays[1]) ON CONFLICT DO NOTHING;
        IF NOT FOUND THEN
            fresh_ids := '{}';
            fresh_replays := '{}';
        END IF;
    ELSE
        -- In the order of ids, so that two batches cannot wait for each other in a circle.
        WITH entered AS (
            INSERT INTO @schema@.inbox AS i (consumer, id, replay)
            SELECT of_consumer, e.id, e.replay FROM ROWS FROM (pg_catalog.unnest(ids), pg_catalog.unnest(replays)) AS e (id, replay)
            ORDER BY e.id, e.replay
            ON CONFLICT DO NOTHING RETURNING i.id, i.replay
        )
        SELECT pg_catalog.array_agg(e.id), pg_catalog.array_agg(e.replay) INTO fresh_ids, fresh_replays FROM entered AS e;
    END IF;
    IF traces IS NULL AND pg_catalog.cardinality(fresh_ids) OPERATOR(pg_catalog.=) pg_catalog.cardinality(ids) THEN
        -- Whether a queue waits is decided under its lock, and stays so until the transaction ends.
        PERFORM 1 FROM @schema@.inbox_queue AS q
        WHERE q.consumer OPERATOR(pg_catalog.=) of_consumer AND q.queue OPERATOR(pg_catalog.=) ANY (queues) FOR SHARE;
        IF NOT FOUND THEN
            answer := pg_catalog.set_config('lock_timeout', waits, true);
            RETURN NULL;
        END IF;
    END IF;
    answer := @schema@.inbox_sort(of_consumer, ids, replays, queues, fresh_ids, fresh_replays, traces);
    PERFORM pg_catalog.set_config('lock_timeout', waits, true);
    RETURN answer;
END $$;

-- The rare end of entering, for messages of which some are known, or whose queues wait, or that are traced. Those that were
-- open, or whose call is over, become `done` and are new. `busy` if one was there a moment ago and is not now.
CREATE FUNCTION inbox_sort(
    of_consumer text, ids uuid[], replays int[], queues text[], fresh_ids uuid[], fresh_replays int[],
    traces inbox_arrival[]
) RETURNS text
LANGUAGE plpgsql SET search_path = @schema@, pg_temp
AS $$
DECLARE
    opened_ids uuid[];
    opened_replays int[];
    known jsonb;
    behind text[];
    answers jsonb;
BEGIN
    WITH was_open AS (
        SELECT i.id, i.replay FROM unnest(ids, replays) AS a (id, replay)
        JOIN inbox AS i ON i.consumer = of_consumer AND i.id = a.id AND i.replay = a.replay
        WHERE i.state = 'open' OR (i.state = 'calling' AND i.until < clock_timestamp())
        ORDER BY i.id, i.replay FOR UPDATE OF i
    ), opened AS (
        UPDATE inbox AS i SET state = 'done', token = NULL, until = NULL, entered_at = inbox_entered(i.entered_at)
        FROM was_open AS o WHERE i.consumer = of_consumer AND i.id = o.id AND i.replay = o.replay
        RETURNING i.id, i.replay
    )
    SELECT array_agg(o.id), array_agg(o.replay) INTO opened_ids, opened_replays FROM opened AS o;
    fresh_ids := fresh_ids || opened_ids;
    fresh_replays := fresh_replays || opened_replays;
    SELECT coalesce(jsonb_object_agg(i.id || ' ' || i.replay, i.state), '{}') INTO known
    FROM unnest(ids, replays) AS a (id, replay)
    JOIN inbox AS i ON i.consumer = of_consumer AND i.id = a.id AND i.replay = a.replay
    WHERE (a.id, a.replay) NOT IN (SELECT * FROM unnest(fresh_ids, fresh_replays));
    IF (SELECT count(*) FROM jsonb_object_keys(known)) + coalesce(cardinality(fresh_ids), 0) < cardinality(ids) THEN
        RETURN 'busy';
    END IF;
    -- Whether a queue waits is decided under its lock, and stays so until the transaction ends.
    behind := ARRAY(
        SELECT q.queue FROM inbox_queue AS q
        WHERE q.consumer = of_consumer AND q.queue = ANY (ARRAY(
            SELECT a.queue FROM unnest(ids, replays, queues) AS a (id, replay, queue)
            WHERE NOT known ? (a.id || ' ' || a.replay)))
        ORDER BY q.queue FOR SHARE);
    SELECT known || coalesce(jsonb_object_agg(a.id || ' ' || a.replay, 'behind'), '{}') INTO answers
    FROM unnest(ids, replays, queues) AS a (id, replay, queue)
    WHERE a.queue = ANY (behind) AND NOT known ? (a.id || ' ' || a.replay);
    UPDATE inbox AS i SET state = 'waiting', entered_at = 'infinity', started = 0
    FROM unnest(ids, replays) AS a (id, replay)
    WHERE i.consumer = of_consumer AND i.id = a.id AND i.replay = a.replay
        AND answers ->> (a.id || ' ' || a.replay) = 'behind';
    PERFORM inbox_note(of_consumer, w.t,
        CASE w.word WHEN 'behind' THEN 'waiting' ELSE coalesce(w.word, 'done') END, coalesce(w.word <> 'behind', false))
    FROM (
        SELECT t, answers ->> (t.id || ' ' || t.replay) FROM unnest(traces) AS t ORDER BY t.id, t.replay
    ) AS w (t, word);
    RETURN (SELECT string_agg(a.key || ' ' || a.value, E'\n') FROM jsonb_each_text(answers) AS a);
END $$;

-- Puts messages behind those of their queues, whose rows this transaction holds FOR SHARE.
CREATE FUNCTION inbox_append(of_consumer text, arrivals inbox_arrival[]) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = @schema@, pg_temp
AS $$
    INSERT INTO inbox_waiting
        (consumer, queue, id, replay, header_names, header_values, payload, address, lane, place, correlation)
    SELECT of_consumer, a.queue, a.id, a.replay, a.header_names, a.header_values, a.payload, a.address, a.lane, a.place,
        a.correlation
    FROM unnest(arrivals) WITH ORDINALITY AS a ORDER BY a.ordinality
$$;

-- For any language: enters a message in the caller's transaction and says whether it is new. The caller's effect and this
-- entry commit together, or not at all.
CREATE FUNCTION inbox_begin(consumer text, id uuid, replay int DEFAULT 0, wait_ms int DEFAULT 100) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = @schema@, pg_temp
AS $$
DECLARE
    word text;
BEGIN
    IF consumer IS NULL OR id IS NULL OR replay IS NULL OR wait_ms IS NULL THEN
        RAISE EXCEPTION 'argument "%" is null', CASE
            WHEN consumer IS NULL THEN 'consumer' WHEN id IS NULL THEN 'id' WHEN replay IS NULL THEN 'replay'
            ELSE 'wait_ms' END USING ERRCODE = 'null_value_not_allowed';
    ELSIF consumer = '' OR octet_length(consumer) > 255 OR consumer ~ '[[:cntrl:]]' THEN
        RAISE EXCEPTION 'argument "consumer" is empty, longer than 255 bytes or has a control character'
            USING ERRCODE = 'invalid_parameter_value';
    ELSIF replay < 0 OR wait_ms < 1 THEN
        RAISE EXCEPTION 'argument "%" is too small', CASE WHEN replay < 0 THEN 'replay' ELSE 'wait_ms' END
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    word := inbox_enter(consumer, ARRAY[id], ARRAY[replay], '{}', NULL, NULL, NULL, wait_ms, 0, NULL);
    IF word = 'busy' OR word LIKE '% calling' THEN
        RAISE EXCEPTION 'message % is being handled', id USING ERRCODE = 'lock_not_available';
    END IF;
    RETURN word IS NULL;
END $$;

-- In the handler's transaction: what was entered as handled counts as skipped.
CREATE FUNCTION inbox_skip(of_consumer text, of_id uuid, of_replay int) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = @schema@, pg_temp
AS $$
BEGIN
    UPDATE inbox AS i SET state = 'skipped'
    WHERE i.consumer = of_consumer AND i.id = of_id AND i.replay = of_replay AND i.state = 'done';
    UPDATE inbox_trace AS t SET state = 'skipped'
    WHERE t.consumer = of_consumer AND t.id = of_id AND t.replay = of_replay AND t.state = 'done';
END $$;

-- Notes that handling begins; says how often it did. A message that has ended or waits is left as it is.
CREATE FUNCTION inbox_start(of_consumer text, of_id uuid, of_replay int, wait_ms int) RETURNS int
LANGUAGE plpgsql SECURITY DEFINER SET search_path = @schema@, pg_temp
AS $$
DECLARE
    times int;
BEGIN
    PERFORM inbox_call(wait_ms);
    INSERT INTO inbox AS i (consumer, id, replay, state, started) VALUES (of_consumer, of_id, of_replay, 'open', 1)
    ON CONFLICT (consumer, id, replay) DO UPDATE SET started = i.started + 1 WHERE i.state = 'open'
    RETURNING i.started INTO times;
    IF times IS NULL THEN
        times := inbox_started(of_consumer, of_id, of_replay);
    END IF;
    RETURN times;
END $$;

-- How often handling was begun, as far as that is committed.
CREATE FUNCTION inbox_started(of_consumer text, of_id uuid, of_replay int) RETURNS int
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = @schema@, pg_temp
AS $$
    SELECT coalesce(max(i.started), 0) FROM inbox AS i
    WHERE i.consumer = of_consumer AND i.id = of_id AND i.replay = of_replay
$$;

-- Handling ended without a result while the process lives: it counts from zero again, and a claim of this token ends.
CREATE FUNCTION inbox_ended(of_consumer text, of_id uuid, of_replay int, claim uuid, wait_ms int) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = @schema@, pg_temp
AS $$
BEGIN
    PERFORM inbox_call(wait_ms);
    UPDATE inbox AS i SET state = 'open', started = 0, token = NULL, until = NULL
    WHERE i.consumer = of_consumer AND i.id = of_id AND i.replay = of_replay
        AND CASE WHEN claim IS NULL THEN i.state = 'open' ELSE i.state = 'calling' AND i.token = claim END;
END $$;

-- Claims a message for a call to the far side. Says `mine` with the token, `lost`, `busy` with how long another's call may
-- still run, `behind` if its queue waits (nothing is changed then), or the state of one that came before.
CREATE FUNCTION inbox_claim(
    of_consumer text, a inbox_arrival, of_lane text, lane_epoch bigint, lane_owner uuid, lasts_ms bigint, wait_ms int,
    OUT word text, OUT claim uuid, OUT times int, OUT rest_ms bigint
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = @schema@, pg_temp
AS $$
DECLARE
    ends timestamptz;
BEGIN
    PERFORM inbox_call(wait_ms);
    IF NOT inbox_hold_lane(of_consumer, of_lane, lane_epoch, lane_owner) THEN
        word := 'lost';
        RETURN;
    END IF;
    PERFORM 1 FROM inbox_queue AS q WHERE q.consumer = of_consumer AND q.queue = a.queue FOR SHARE;
    IF FOUND THEN
        word := 'behind';
        RETURN;
    END IF;
    INSERT INTO inbox AS i (consumer, id, replay, state, started, token, until)
    VALUES (of_consumer, a.id, a.replay, 'calling', 1, gen_random_uuid(), after_ms(lasts_ms))
    ON CONFLICT (consumer, id, replay) DO UPDATE
    SET state = 'calling', started = i.started + 1, token = excluded.token, until = excluded.until
    WHERE i.state = 'open' OR (i.state = 'calling' AND i.until < clock_timestamp())
    RETURNING 'mine', i.token, i.started INTO word, claim, times;
    IF word IS NULL THEN
        SELECT i.state, i.until INTO word, ends FROM inbox AS i
        WHERE i.consumer = of_consumer AND i.id = a.id AND i.replay = a.replay;
        IF word IS NULL OR word = 'calling' THEN
            word := 'busy';
            rest_ms := greatest(ceil(date_part('epoch', ends - clock_timestamp()) * 1000), 0);
        END IF;
    END IF;
END $$;

-- Enters the result of a call in the handler's transaction, only while the claim is this one.
CREATE FUNCTION inbox_begin_claimed(
    of_consumer text, a inbox_arrival, of_lane text, lane_epoch bigint, lane_owner uuid, claim uuid, wait_ms int,
    stall_ms int, traced boolean
) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = @schema@, pg_temp SET lock_timeout = '100ms'
AS $$
BEGIN
    PERFORM inbox_handling(stall_ms);
    PERFORM set_config('lock_timeout', wait_ms::text, true);
    IF NOT inbox_hold_lane(of_consumer, of_lane, lane_epoch, lane_owner) THEN
        RETURN false;
    END IF;
    UPDATE inbox AS i SET state = 'done', token = NULL, until = NULL, entered_at = inbox_entered(i.entered_at)
    WHERE i.consumer = of_consumer AND i.id = a.id AND i.replay = a.replay AND i.state = 'calling' AND i.token = claim;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF traced THEN
        PERFORM inbox_note(of_consumer, a, 'done');
    END IF;
    RETURN true;
END $$;
