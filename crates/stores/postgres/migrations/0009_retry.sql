-- The retry table. Whoever appends to a queue holds its row FOR SHARE in the transaction that takes the message; whoever
-- empties it holds it FOR UPDATE and looks again in a later statement (rule C3).

-- Makes a queue if it is not there; true if it was made, otherwise its row is locked FOR SHARE.
CREATE FUNCTION inbox_ensure_queue(of_consumer text, of_queue text, at timestamptz) RETURNS boolean
LANGUAGE plpgsql SET search_path = @schema@, pg_temp
AS $$
BEGIN
    LOOP
        INSERT INTO inbox_queue (consumer, queue, next_at) VALUES (of_consumer, of_queue, at) ON CONFLICT DO NOTHING;
        IF FOUND THEN
            RETURN true;
        END IF;
        PERFORM 1 FROM inbox_queue AS q WHERE q.consumer = of_consumer AND q.queue = of_queue FOR SHARE;
        IF FOUND THEN
            RETURN false;
        END IF;
    END LOOP;
END $$;

-- The message of a row of the retry table.
CREATE FUNCTION inbox_arrived(w inbox_waiting) RETURNS inbox_arrival
LANGUAGE sql STABLE
AS $$
    SELECT w.id, w.replay, w.queue, w.header_names, w.header_values, w.payload, w.address, w.lane, w.place, w.correlation
$$;

-- Moves a waiting message to the dead letters; one that was there before is pending again.
CREATE FUNCTION inbox_bury(
    of_consumer text, of_queue text, of_no bigint, attempts int, class text, error text, backtrace text, holds boolean,
    traced boolean
) RETURNS void
LANGUAGE plpgsql SET search_path = @schema@, pg_temp
AS $$
DECLARE
    w inbox_waiting;
BEGIN
    DELETE FROM inbox_waiting AS q WHERE q.consumer = of_consumer AND q.queue = of_queue AND q.no = of_no
    RETURNING q.* INTO STRICT w;
    INSERT INTO inbox_dead AS d
        (consumer, id, replay, queue, no, header_names, header_values, payload, address, lane, place, correlation, class,
        error, backtrace, attempts, arrived_at, holds)
    VALUES (w.consumer, w.id, w.replay, w.queue, w.no, w.header_names, w.header_values, w.payload, w.address, w.lane,
        w.place, w.correlation, inbox_bury.class, inbox_bury.error, inbox_bury.backtrace, inbox_bury.attempts,
        w.arrived_at, inbox_bury.holds)
    ON CONFLICT (consumer, id, replay) DO UPDATE
    SET fate = 'pending', class = excluded.class, error = excluded.error, backtrace = excluded.backtrace,
        attempts = excluded.attempts, dead_at = excluded.dead_at, holds = excluded.holds;
    UPDATE inbox AS i SET state = 'dead', entered_at = 'infinity'
    WHERE i.consumer = w.consumer AND i.id = w.id AND i.replay = w.replay;
    IF traced THEN
        PERFORM inbox_note(w.consumer, inbox_arrived(w), 'dead');
    END IF;
END $$;

-- Keeps a message that was not handled, in the retry table behind what waits there, or as a dead letter. Says `kept`, `lost`,
-- `busy`, or the state of one that ended or waits already.
CREATE FUNCTION inbox_set_back(
    of_consumer text, a inbox_arrival, of_lane text, lane_epoch bigint, lane_owner uuid, claim uuid, stop text,
    pause_ms bigint, attempts int, class text, error text, backtrace text, wait_ms int, traced boolean
) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = @schema@, pg_temp
AS $$
DECLARE
    word text;
    arrived timestamptz;
    of_no bigint;
BEGIN
    PERFORM inbox_call(wait_ms);
    IF NOT inbox_hold_lane(of_consumer, of_lane, lane_epoch, lane_owner) THEN
        RETURN 'lost';
    END IF;
    SELECT i.entered_at INTO arrived FROM inbox AS i
    WHERE i.consumer = of_consumer AND i.id = a.id AND i.replay = a.replay AND i.state IN ('open', 'calling');
    IF claim IS NULL THEN
        INSERT INTO inbox AS i (consumer, id, replay, state, entered_at)
        VALUES (of_consumer, a.id, a.replay, 'waiting', 'infinity')
        ON CONFLICT (consumer, id, replay) DO UPDATE SET state = 'waiting', entered_at = 'infinity', started = 0
        WHERE i.state = 'open';
    ELSE
        UPDATE inbox AS i SET state = 'waiting', entered_at = 'infinity', started = 0, token = NULL, until = NULL
        WHERE i.consumer = of_consumer AND i.id = a.id AND i.replay = a.replay AND i.state = 'calling' AND i.token = claim;
    END IF;
    IF NOT FOUND THEN
        SELECT i.state INTO word FROM inbox AS i
        WHERE i.consumer = of_consumer AND i.id = a.id AND i.replay = a.replay;
        IF word IS NULL OR word IN ('open', 'calling') THEN
            RETURN CASE WHEN claim IS NULL AND word IS NULL THEN 'busy' ELSE 'lost' END;
        ELSIF traced THEN
            PERFORM inbox_note(of_consumer, a, word, true);
        END IF;
        RETURN word;
    END IF;
    IF stop <> 'dead_continue' THEN
        PERFORM inbox_ensure_queue(of_consumer, a.queue, after_ms(pause_ms));
    END IF;
    INSERT INTO inbox_waiting AS w
        (consumer, queue, id, replay, header_names, header_values, payload, address, lane, place, correlation, attempts,
        class, error, arrived_at)
    VALUES (of_consumer, a.queue, a.id, a.replay, a.header_names, a.header_values, a.payload, a.address, a.lane, a.place,
        a.correlation, inbox_set_back.attempts, inbox_set_back.class, inbox_set_back.error,
        coalesce(arrived, clock_timestamp()))
    RETURNING w.no INTO of_no;
    IF stop <> 'retry' THEN
        PERFORM inbox_bury(of_consumer, a.queue, of_no, attempts, class, error, backtrace, stop = 'dead_hold', traced);
    ELSIF traced THEN
        PERFORM inbox_note(of_consumer, a, 'waiting');
    END IF;
    IF stop = 'dead_hold' THEN
        UPDATE inbox_queue AS q SET next_at = NULL, held = true WHERE q.consumer = of_consumer AND q.queue = a.queue;
    END IF;
    RETURN 'kept';
END $$;

-- Claims queues whose time has come, those that waited longest first, each with its first messages; a row without a message
-- for one that is empty and only has to be released.
-- Sessions live long and plan while tables are small: the planner is left nothing but indexes.
CREATE FUNCTION inbox_due(of_consumer text, queues int, messages int, lasts_ms bigint)
RETURNS TABLE (queue text, token uuid, attempts int, started int, reopened boolean, no bigint, id uuid, replay int,
    header_names bytea[], header_values bytea[], payload bytea, address text, lane text, place text, correlation text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = @schema@, pg_temp
    SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    mine text[];
    -- A value, which an index can be searched for: the function could change from row to row.
    at timestamptz := clock_timestamp();
BEGIN
    PERFORM inbox_read_committed();
    WITH ready AS (
        SELECT q.queue FROM inbox_queue AS q
        WHERE q.consumer = of_consumer AND q.next_at <= at AND (q.claim_until IS NULL OR q.claim_until < at)
        ORDER BY q.next_at LIMIT queues FOR UPDATE SKIP LOCKED
    ), claimed AS (
        UPDATE inbox_queue AS q SET token = gen_random_uuid(), claim_until = after_ms(lasts_ms)
        FROM ready AS r WHERE q.consumer = of_consumer AND q.queue = r.queue
        RETURNING q.queue, q.next_at
    )
    SELECT array_agg(c.queue ORDER BY c.next_at, c.queue) INTO mine FROM claimed AS c;
    IF mine IS NULL THEN
        RETURN;
    END IF;
    -- Later statements: what was appended by whoever held a queue before is seen.
    UPDATE inbox_waiting AS w SET started = w.started + 1
    FROM unnest(mine) AS m (queue) CROSS JOIN LATERAL (
        SELECT f.no FROM inbox_waiting AS f WHERE f.consumer = of_consumer AND f.queue = m.queue ORDER BY f.no LIMIT 1
    ) AS first
    WHERE w.consumer = of_consumer AND w.queue = m.queue AND w.no = first.no;
    RETURN QUERY
        SELECT q.queue, q.token, w.attempts, w.started, w.reopened, w.no, w.id, w.replay, w.header_names, w.header_values,
            w.payload, w.address, w.lane, w.place::text, w.correlation
        FROM unnest(mine) WITH ORDINALITY AS m (queue, n)
        JOIN inbox_queue AS q ON q.consumer = of_consumer AND q.queue = m.queue
        LEFT JOIN LATERAL (
            SELECT * FROM inbox_waiting AS f WHERE f.consumer = of_consumer AND f.queue = m.queue ORDER BY f.no LIMIT messages
        ) AS w ON true
        ORDER BY m.n, w.no;
END $$;

-- Takes the first message of a claimed queue out of it, in the handler's transaction, and enters it as done. False if the
-- claim is another's by now or has expired, or if another message is the first.
CREATE FUNCTION inbox_begin_due(
    of_consumer text, of_queue text, claim uuid, of_no bigint, wait_ms int, stall_ms int, traced boolean
) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = @schema@, pg_temp SET lock_timeout = '100ms'
AS $$
DECLARE
    w inbox_waiting;
BEGIN
    PERFORM inbox_handling(stall_ms);
    PERFORM set_config('lock_timeout', wait_ms::text, true);
    PERFORM 1 FROM inbox_queue AS q
    WHERE q.consumer = of_consumer AND q.queue = of_queue AND q.token = claim AND q.claim_until >= clock_timestamp()
    FOR SHARE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    DELETE FROM inbox_waiting AS d
    WHERE d.consumer = of_consumer AND d.queue = of_queue AND d.no = of_no AND NOT EXISTS (
        SELECT 1 FROM inbox_waiting AS f WHERE f.consumer = of_consumer AND f.queue = of_queue AND f.no < of_no)
    RETURNING d.* INTO w;
    IF w.no IS NULL THEN
        RETURN false;
    END IF;
    UPDATE inbox AS i SET state = 'done', entered_at = clock_timestamp()
    WHERE i.consumer = of_consumer AND i.id = w.id AND i.replay = w.replay AND i.state IN ('waiting', 'reopened');
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF traced THEN
        PERFORM inbox_note(of_consumer, inbox_arrived(w), 'done');
    END IF;
    RETURN true;
END $$;

-- Keeps a message of a claimed queue that was not handled again. Says `kept` or `lost`.
CREATE FUNCTION inbox_set_back_due(
    of_consumer text, of_queue text, claim uuid, of_no bigint, stop text, pause_ms bigint, attempts int, class text,
    error text, backtrace text, wait_ms int, traced boolean
) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = @schema@, pg_temp
AS $$
DECLARE
    w inbox_waiting;
BEGIN
    PERFORM inbox_call(wait_ms);
    PERFORM 1 FROM inbox_queue AS q
    WHERE q.consumer = of_consumer AND q.queue = of_queue AND q.token = claim FOR UPDATE;
    IF NOT FOUND THEN
        RETURN 'lost';
    END IF;
    UPDATE inbox_waiting AS u SET attempts = inbox_set_back_due.attempts, class = inbox_set_back_due.class,
        error = inbox_set_back_due.error, started = 0
    WHERE u.consumer = of_consumer AND u.queue = of_queue AND u.no = of_no AND NOT EXISTS (
        SELECT 1 FROM inbox_waiting AS f WHERE f.consumer = of_consumer AND f.queue = of_queue AND f.no < of_no)
    RETURNING u.* INTO w;
    IF w.no IS NULL THEN
        RETURN 'lost';
    ELSIF stop <> 'retry' THEN
        PERFORM inbox_bury(of_consumer, of_queue, of_no, attempts, class, error, backtrace, stop = 'dead_hold', traced);
    ELSIF traced THEN
        PERFORM inbox_note(of_consumer, inbox_arrived(w), 'waiting');
    END IF;
    IF stop <> 'dead_continue' THEN
        UPDATE inbox_queue AS q SET token = NULL, claim_until = NULL, held = q.held OR stop = 'dead_hold',
            next_at = CASE WHEN stop = 'retry' AND NOT q.held THEN after_ms(pause_ms) END
        WHERE q.consumer = of_consumer AND q.queue = of_queue;
    END IF;
    RETURN 'kept';
END $$;

-- Deletes a queue that is empty and waits for nobody. The caller holds its row FOR UPDATE, by an earlier statement.
CREATE FUNCTION inbox_drop_if_empty(of_consumer text, of_queue text) RETURNS boolean
LANGUAGE plpgsql SET search_path = @schema@, pg_temp
AS $$
BEGIN
    DELETE FROM inbox_queue AS q
    WHERE q.consumer = of_consumer AND q.queue = of_queue AND NOT q.held AND NOT EXISTS (
        SELECT 1 FROM inbox_waiting AS w WHERE w.consumer = of_consumer AND w.queue = of_queue);
    RETURN FOUND;
END $$;

-- Ends a claim. An empty queue is gone, the others are due.
CREATE FUNCTION inbox_release(of_consumer text, of_queue text, claim uuid, wait_ms int) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = @schema@, pg_temp
AS $$
BEGIN
    PERFORM inbox_call(wait_ms);
    PERFORM 1 FROM inbox_queue AS q
    WHERE q.consumer = of_consumer AND q.queue = of_queue AND q.token = claim FOR UPDATE;
    IF FOUND AND NOT inbox_drop_if_empty(of_consumer, of_queue) THEN
        UPDATE inbox_queue AS q SET token = NULL, claim_until = NULL,
            next_at = CASE WHEN NOT q.held THEN clock_timestamp() END
        WHERE q.consumer = of_consumer AND q.queue = of_queue;
        -- It was given back in peace, whatever was begun.
        UPDATE inbox_waiting AS w SET started = 0
        WHERE w.consumer = of_consumer AND w.queue = of_queue AND w.started > 0;
    END IF;
END $$;
