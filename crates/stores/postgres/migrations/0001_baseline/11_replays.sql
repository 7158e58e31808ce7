-- Replays: messages that a consumer handles again on purpose.

CREATE TABLE inbox_replay (
    consumer         text NOT NULL,
    number           int NOT NULL CHECK (number > 0),
    source           text NOT NULL,
    count            bigint NOT NULL,
    rate             bigint NOT NULL,
    dead_letters_max bigint NOT NULL,
    requested_by     text NOT NULL,
    reason           text NOT NULL,
    state            text NOT NULL DEFAULT 'running' CHECK (state IN ('running', 'finished', 'stopped')),
    fed              bigint NOT NULL DEFAULT 0,
    cursor           text,
    started_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (consumer, number)
);

-- Dead letters of a replay that were not redriven.
CREATE FUNCTION inbox_replay_dead_letters(p_consumer text, p_number int) RETURNS bigint
LANGUAGE sql STABLE SET search_path = @schema@, pg_temp
AS $$
    SELECT count(*) FROM inbox_dead_letter AS d
    WHERE d.consumer = p_consumer AND d.replay = p_number AND d.replay > 0 AND d.state <> 'redriven'
$$;

-- The number of queued messages of a replay that are due, counted up to 100 000.
CREATE FUNCTION inbox_replay_ready(p_consumer text, p_number int) RETURNS bigint
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = @schema@, pg_temp
AS $$
    SELECT count(*) FROM (
        SELECT 1 FROM inbox_retry_message AS w JOIN inbox_retry_queue AS q ON q.consumer = w.consumer AND q.queue = w.queue
        WHERE w.consumer = p_consumer AND w.replay = p_number AND w.replay > 0 AND q.next_at <= (SELECT clock_timestamp())
        LIMIT 100000) AS r
$$;

-- Creates a replay and returns its number.
CREATE FUNCTION inbox_create_replay(
    p_consumer text, p_source text, p_count bigint, p_rate bigint, p_dead_letters_max bigint, p_requested_by text, p_reason text
) RETURNS int
LANGUAGE plpgsql SECURITY DEFINER SET search_path = @schema@, pg_temp
AS $$
DECLARE
    new_number int;
BEGIN
    INSERT INTO inbox_consumer (name) VALUES (p_consumer) ON CONFLICT DO NOTHING;
    PERFORM 1 FROM inbox_consumer AS c WHERE c.name = p_consumer FOR UPDATE;
    SELECT coalesce(max(r.number), 0) + 1 INTO new_number FROM inbox_replay AS r WHERE r.consumer = p_consumer;
    INSERT INTO inbox_replay (consumer, number, source, count, rate, dead_letters_max, requested_by, reason)
    VALUES (p_consumer, new_number, p_source, p_count, p_rate,
        p_dead_letters_max, p_requested_by, p_reason);
    RETURN new_number;
END $$;

-- Appends messages to their queues under the replay's number and moves its cursor; without a next cursor the replay is finished. Returns
-- `kept`; `moved` if the cursor is another one; `ended` if the replay is not running, or has too many dead letters and stops now.
CREATE FUNCTION inbox_feed_replay(
    p_consumer text, p_number int, p_arrivals inbox_arrival[], p_from_cursor text, p_to_cursor text
) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = @schema@, pg_temp
AS $$
DECLARE
    r inbox_replay;
    a inbox_arrival;
    n bigint := 0;
BEGIN
    PERFORM require_read_committed();
    PERFORM require_durable_commit();
    SELECT * INTO r FROM inbox_replay AS o WHERE o.consumer = p_consumer AND o.number = p_number FOR UPDATE;
    IF r.state IS DISTINCT FROM 'running' THEN
        RETURN 'ended';
    ELSIF inbox_replay_dead_letters(p_consumer, p_number) >= greatest(r.dead_letters_max, 1) THEN
        PERFORM inbox_stop_replay(p_consumer, p_number);
        RETURN 'ended';
    ELSIF r.cursor IS DISTINCT FROM p_from_cursor THEN
        RETURN 'moved';
    END IF;
    FOREACH a IN ARRAY p_arrivals LOOP
        INSERT INTO inbox (consumer, message_id, replay, state, entered_at) VALUES (p_consumer, a.id, p_number, 'waiting',
            'infinity')
        ON CONFLICT DO NOTHING;
        IF FOUND THEN
            PERFORM inbox_ensure_queue(p_consumer, a.queue, clock_timestamp());
            INSERT INTO inbox_retry_message
                (consumer, queue, id, replay, header_names, header_values, payload, address, lane, broker_offset,
                    fed_cursor)
            VALUES (p_consumer, a.queue, a.id, p_number, a.header_names, a.header_values, a.payload, a.address, a.lane,
                a.broker_offset, p_from_cursor);
            n := n + 1;
        END IF;
    END LOOP;
    UPDATE inbox_replay AS o SET fed = o.fed + n, cursor = coalesce(p_to_cursor, o.cursor),
        state = CASE WHEN p_to_cursor IS NULL THEN 'finished' ELSE o.state END
    WHERE o.consumer = p_consumer AND o.number = p_number;
    RETURN 'kept';
END $$;

-- Stops a replay. Its queued messages that were never tried are deleted, as if they had not been fed. The reader resumes before the first
-- of them.
CREATE FUNCTION inbox_stop_replay(p_consumer text, p_number int) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = @schema@, pg_temp
AS $$
DECLARE
    touched text[];
    n bigint;
    first_from text;
BEGIN
    PERFORM require_read_committed();
    UPDATE inbox_replay AS o SET state = 'stopped'
    WHERE o.consumer = p_consumer AND o.number = p_number AND o.state = 'running';
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    touched := ARRAY(
        SELECT q.queue FROM inbox_retry_queue AS q WHERE q.consumer = p_consumer AND q.queue IN (
            SELECT w.queue FROM inbox_retry_message AS w
            WHERE w.consumer = p_consumer AND w.replay = p_number AND w.replay > 0)
        ORDER BY q.queue FOR UPDATE);
    WITH gone AS (
        DELETE FROM inbox_retry_message AS w
        WHERE w.consumer = p_consumer AND w.replay = p_number AND w.replay > 0 AND w.unfinished_starts = 0 AND w.attempts = 0
            AND NOT w.redriven
        RETURNING w.id, w.ordinal, w.fed_cursor
    ), forgotten AS (
        DELETE FROM inbox AS i USING gone AS g
        WHERE i.consumer = p_consumer AND i.message_id = g.id AND i.replay = p_number AND i.state = 'waiting'
    )
    SELECT count(*), (array_agg(g.fed_cursor ORDER BY g.ordinal))[1] INTO n, first_from FROM gone AS g;
    UPDATE inbox_replay AS o SET fed = o.fed - n, cursor = CASE WHEN n > 0 THEN first_from ELSE o.cursor END
    WHERE o.consumer = p_consumer AND o.number = p_number;
    -- The member that works on a queue releases it.
    PERFORM inbox_delete_empty_queue(p_consumer, q.queue) FROM inbox_retry_queue AS q
    WHERE q.consumer = p_consumer AND q.queue = ANY (touched) AND q.claim_token IS NULL;
    RETURN true;
END $$;

-- Resumes a stopped replay, until it has this many more dead letters than now.
CREATE FUNCTION inbox_resume_replay(p_consumer text, p_number int, p_dead_letters_more bigint) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = @schema@, pg_temp
AS $$
BEGIN
    UPDATE inbox_replay AS o
    SET state = 'running', dead_letters_max = inbox_replay_dead_letters(p_consumer, p_number) + p_dead_letters_more
    WHERE o.consumer = p_consumer AND o.number = p_number AND o.state = 'stopped';
    RETURN FOUND;
END $$;

-- The replays of a consumer, newest first. A message is done if it was fed, and is neither queued nor dead.
CREATE FUNCTION inbox_list_replays(p_consumer text)
RETURNS TABLE (number int, source text, count bigint, rate bigint, dead_letters_max bigint, requested_by text, reason text,
    state text,
    fed bigint, done bigint, dead bigint, cursor text, started_at bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = @schema@, pg_temp
AS $$
    SELECT r.number, r.source, r.count, r.rate, r.dead_letters_max, r.requested_by, r.reason, r.state, r.fed,
        r.fed - s.waiting - s.dead, s.dead, r.cursor, epoch_micros(r.started_at)
    FROM inbox_replay AS r CROSS JOIN LATERAL (
        SELECT
            (SELECT count(*) FROM inbox_retry_message AS w
            WHERE w.consumer = p_consumer AND w.replay = r.number AND w.replay > 0) AS waiting,
            (SELECT count(*) FROM inbox_dead_letter AS d
            WHERE d.consumer = p_consumer AND d.replay = r.number AND d.state <> 'redriven') AS dead
    ) AS s
    WHERE r.consumer = p_consumer ORDER BY r.number DESC
$$;
