-- Whose turn it is in the retry table, and when: calls that nobody ended, redrives beside a worker and at a rate.

-- Before then the message is not tried: it failed, or was redriven at a rate. Null for one that was not tried yet.
ALTER TABLE inbox_waiting ADD COLUMN not_before timestamptz;

-- When a queue is tried that nobody works on and nobody holds: as soon as its first message may be.
CREATE FUNCTION inbox_first_at(of_consumer text, of_queue text) RETURNS timestamptz
LANGUAGE sql VOLATILE SET search_path = @schema@, pg_temp
AS $$
    SELECT greatest(clock_timestamp(), (
        SELECT w.not_before FROM inbox_waiting AS w
        WHERE w.consumer = of_consumer AND w.queue = of_queue ORDER BY w.no LIMIT 1))
$$;

-- As before, and a call whose time is over counts as one that was only begun: whoever made it is gone. `busy` while another's
-- call may still run. The pause is the message's own, whatever goes before it meanwhile. `wait` is for a message that was not tried:
-- how often it was begun before its claim counts on.
CREATE OR REPLACE FUNCTION inbox_set_back(
    of_consumer text, a inbox_arrival, of_lane text, lane_epoch bigint, lane_owner uuid, claim uuid, stop text,
    pause_ms bigint, attempts int, class text, error text, backtrace text, wait_ms int, traced boolean
) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = @schema@, pg_temp
AS $$
DECLARE
    word text;
    arrived timestamptz;
    begun int;
    again timestamptz := after_ms(pause_ms);
    of_no bigint;
BEGIN
    PERFORM inbox_call(wait_ms);
    IF NOT inbox_hold_lane(of_consumer, of_lane, lane_epoch, lane_owner) THEN
        RETURN 'lost';
    END IF;
    SELECT i.entered_at, i.started INTO arrived, begun FROM inbox AS i
    WHERE i.consumer = of_consumer AND i.id = a.id AND i.replay = a.replay AND i.state IN ('open', 'calling');
    IF claim IS NULL THEN
        INSERT INTO inbox AS i (consumer, id, replay, state, entered_at)
        VALUES (of_consumer, a.id, a.replay, 'waiting', 'infinity')
        ON CONFLICT (consumer, id, replay) DO UPDATE
        SET state = 'waiting', entered_at = 'infinity', started = 0, token = NULL, until = NULL
        WHERE i.state = 'open' OR (i.state = 'calling' AND i.until < clock_timestamp());
    ELSE
        UPDATE inbox AS i SET state = 'waiting', entered_at = 'infinity', started = 0, token = NULL, until = NULL
        WHERE i.consumer = of_consumer AND i.id = a.id AND i.replay = a.replay AND i.state = 'calling' AND i.token = claim;
    END IF;
    IF NOT FOUND THEN
        SELECT i.state INTO word FROM inbox AS i
        WHERE i.consumer = of_consumer AND i.id = a.id AND i.replay = a.replay;
        IF word IS NULL OR word IN ('open', 'calling') THEN
            RETURN CASE WHEN claim IS NULL THEN 'busy' ELSE 'lost' END;
        ELSIF traced THEN
            PERFORM inbox_note(of_consumer, a, word, true);
        END IF;
        RETURN word;
    END IF;
    IF stop <> 'dead_continue' THEN
        PERFORM inbox_ensure_queue(of_consumer, a.queue, again);
    END IF;
    INSERT INTO inbox_waiting AS w
        (consumer, queue, id, replay, header_names, header_values, payload, address, lane, place, correlation, attempts,
        started, class, error, arrived_at, not_before)
    VALUES (of_consumer, a.queue, a.id, a.replay, a.header_names, a.header_values, a.payload, a.address, a.lane, a.place,
        a.correlation, inbox_set_back.attempts, CASE stop WHEN 'wait' THEN greatest(coalesce(begun, 0) - 1, 0) ELSE 0 END,
        inbox_set_back.class, inbox_set_back.error, coalesce(arrived, clock_timestamp()), again)
    RETURNING w.no INTO of_no;
    IF stop NOT IN ('retry', 'wait') THEN
        PERFORM inbox_bury(of_consumer, a.queue, of_no, attempts, class, error, backtrace, stop = 'dead_hold', traced);
    ELSIF traced THEN
        PERFORM inbox_note(of_consumer, a, 'waiting');
    END IF;
    IF stop = 'dead_hold' THEN
        UPDATE inbox_queue AS q SET next_at = NULL, held = true WHERE q.consumer = of_consumer AND q.queue = a.queue;
    END IF;
    RETURN 'kept';
END $$;

-- As before, and `wait` is for a message that was not tried: only the start counts no more which its claim has counted, it is
-- its queue that waits, and what went wrong the last time that it was tried is told on.
CREATE OR REPLACE FUNCTION inbox_set_back_due(
    of_consumer text, of_queue text, claim uuid, of_no bigint, stop text, pause_ms bigint, attempts int, class text,
    error text, backtrace text, wait_ms int, traced boolean
) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = @schema@, pg_temp
AS $$
DECLARE
    waits boolean := stop IN ('retry', 'wait');
    again timestamptz := after_ms(pause_ms);
    w inbox_waiting;
BEGIN
    PERFORM inbox_call(wait_ms);
    PERFORM 1 FROM inbox_queue AS q
    WHERE q.consumer = of_consumer AND q.queue = of_queue AND q.token = claim FOR UPDATE;
    IF NOT FOUND THEN
        RETURN 'lost';
    END IF;
    UPDATE inbox_waiting AS u SET attempts = inbox_set_back_due.attempts,
        class = CASE WHEN stop = 'wait' AND u.attempts > 0 THEN u.class ELSE inbox_set_back_due.class END,
        error = CASE WHEN stop = 'wait' AND u.attempts > 0 THEN u.error ELSE inbox_set_back_due.error END, started = CASE stop WHEN 'wait' THEN greatest(u.started - 1, 0) ELSE 0 END,
        not_before = CASE stop WHEN 'wait' THEN u.not_before ELSE again END
    WHERE u.consumer = of_consumer AND u.queue = of_queue AND u.no = of_no AND NOT EXISTS (
        SELECT 1 FROM inbox_waiting AS f WHERE f.consumer = of_consumer AND f.queue = of_queue AND f.no < of_no)
    RETURNING u.* INTO w;
    IF w.no IS NULL THEN
        RETURN 'lost';
    ELSIF NOT waits THEN
        PERFORM inbox_bury(of_consumer, of_queue, of_no, attempts, class, error, backtrace, stop = 'dead_hold', traced);
    ELSIF traced THEN
        PERFORM inbox_note(of_consumer, inbox_arrived(w), 'waiting');
    END IF;
    IF stop <> 'dead_continue' THEN
        UPDATE inbox_queue AS q SET token = NULL, claim_until = NULL, held = q.held OR stop = 'dead_hold',
            next_at = CASE WHEN waits AND NOT q.held THEN again END
        WHERE q.consumer = of_consumer AND q.queue = of_queue;
    END IF;
    RETURN 'kept';
END $$;

-- As before, and the letter is not tried before its time. Whoever works on the queue keeps its claim: it finds that another message
-- is the first now, and gives the queue back. Until then nobody else calls the far side for what that one calls for.
CREATE OR REPLACE FUNCTION inbox_reopen(d inbox_dead, at timestamptz) RETURNS void
LANGUAGE plpgsql SET search_path = @schema@, pg_temp
AS $$
BEGIN
    PERFORM inbox_ensure_queue(d.consumer, d.queue, at);
    PERFORM 1 FROM inbox_queue AS q WHERE q.consumer = d.consumer AND q.queue = d.queue FOR UPDATE;
    INSERT INTO inbox_waiting
        (consumer, queue, no, id, replay, header_names, header_values, payload, address, lane, place, correlation, reopened,
        class, error, arrived_at, not_before)
    VALUES (d.consumer, d.queue, d.no, d.id, d.replay, d.header_names, d.header_values, d.payload, d.address, d.lane,
        d.place, d.correlation, true, d.class, d.error, d.arrived_at, at);
    UPDATE inbox AS i SET state = 'reopened', started = 0
    WHERE i.consumer = d.consumer AND i.id = d.id AND i.replay = d.replay AND i.state = 'dead';
    UPDATE inbox_trace AS t SET state = 'reopened', at = clock_timestamp()
    WHERE t.consumer = d.consumer AND t.id = d.id AND t.replay = d.replay;
    IF NOT inbox_free(d) THEN
        RETURN;
    END IF;
    -- Where it is not the head, everything stays as it is.
    UPDATE inbox_queue AS q SET next_at = at
    WHERE q.consumer = d.consumer AND q.queue = d.queue AND NOT EXISTS (
        SELECT 1 FROM inbox_waiting AS w WHERE w.consumer = d.consumer AND w.queue = d.queue AND w.no < d.no);
END $$;

-- As before, and what waited goes on when its first message may be tried, whichever letter was the last to hold it.
DROP FUNCTION inbox_free(inbox_dead, timestamptz);
CREATE FUNCTION inbox_free(d inbox_dead) RETURNS boolean
LANGUAGE plpgsql SET search_path = @schema@, pg_temp
AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM inbox_dead AS o WHERE o.consumer = d.consumer AND o.queue = d.queue AND o.holds) THEN
        RETURN false;
    END IF;
    UPDATE inbox_queue AS q SET next_at = inbox_first_at(q.consumer, q.queue), held = false
    WHERE q.consumer = d.consumer AND q.queue = d.queue AND q.held;
    RETURN true;
END $$;

CREATE OR REPLACE FUNCTION inbox_put_aside(d inbox_dead) RETURNS void
LANGUAGE plpgsql SET search_path = @schema@, pg_temp
AS $$
BEGIN
    PERFORM 1 FROM inbox_queue AS q WHERE q.consumer = d.consumer AND q.queue = d.queue FOR UPDATE;
    IF inbox_free(d) THEN
        PERFORM inbox_drop_if_empty(d.consumer, d.queue);
    END IF;
END $$;

-- As before, and the messages of a queue end before the first that is not to be tried yet.
CREATE OR REPLACE FUNCTION inbox_due(of_consumer text, queues int, messages int, lasts_ms bigint)
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
    WHERE w.consumer = of_consumer AND w.queue = m.queue AND w.no = first.no AND (w.not_before IS NULL OR w.not_before <= at);
    RETURN QUERY
        SELECT q.queue, q.token, w.attempts, w.started, w.reopened, w.no, w.id, w.replay, w.header_names, w.header_values,
            w.payload, w.address, w.lane, w.place::text, w.correlation
        FROM unnest(mine) WITH ORDINALITY AS m (queue, n)
        JOIN inbox_queue AS q ON q.consumer = of_consumer AND q.queue = m.queue
        LEFT JOIN LATERAL (
            SELECT * FROM (
                SELECT l.*, bool_or(l.not_before > at) OVER (ORDER BY l.no) AS is_early FROM (
                    SELECT * FROM inbox_waiting AS f
                    WHERE f.consumer = of_consumer AND f.queue = m.queue ORDER BY f.no LIMIT messages
                ) AS l
            ) AS r WHERE r.is_early IS NOT TRUE
        ) AS w ON true
        ORDER BY m.n, w.no;
END $$;

-- Ends a claim. An empty queue is gone, the others are due as soon as their first message is.
CREATE OR REPLACE FUNCTION inbox_release(of_consumer text, of_queue text, claim uuid, wait_ms int) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = @schema@, pg_temp
AS $$
BEGIN
    PERFORM inbox_call(wait_ms);
    PERFORM 1 FROM inbox_queue AS q
    WHERE q.consumer = of_consumer AND q.queue = of_queue AND q.token = claim FOR UPDATE;
    IF FOUND AND NOT inbox_drop_if_empty(of_consumer, of_queue) THEN
        UPDATE inbox_queue AS q SET token = NULL, claim_until = NULL,
            next_at = CASE WHEN NOT q.held THEN inbox_first_at(of_consumer, of_queue) END
        WHERE q.consumer = of_consumer AND q.queue = of_queue;
        -- It was given back in peace, whatever was begun.
        UPDATE inbox_waiting AS w SET started = 0
        WHERE w.consumer = of_consumer AND w.queue = of_queue AND w.started > 0;
    END IF;
END $$;
