-- Replays that go on where they were stopped, and that one reader at a time feeds.

-- Where the reader stood when it fed a message; null for any other.
ALTER TABLE inbox_waiting ADD COLUMN fed_from text;
-- Dead letters of a replay are counted whenever it is fed.
CREATE INDEX inbox_dead_replay_idx ON inbox_dead (consumer, replay) WHERE replay > 0;

-- Dead letters of a replay that nobody redrove.
CREATE FUNCTION inbox_replay_dead(of_consumer text, of_number int) RETURNS bigint
LANGUAGE sql STABLE SET search_path = @schema@, pg_temp
AS $$
    SELECT count(*) FROM inbox_dead AS d
    WHERE d.consumer = of_consumer AND d.replay = of_number AND d.replay > 0 AND d.fate <> 'replayed'
$$;

-- What of a replay could be handled now, counted up to 100 000.
CREATE FUNCTION inbox_ready(of_consumer text, of_number int) RETURNS bigint
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = @schema@, pg_temp
AS $$
    SELECT count(*) FROM (
        SELECT 1 FROM inbox_waiting AS w JOIN inbox_queue AS q ON q.consumer = w.consumer AND q.queue = w.queue
        WHERE w.consumer = of_consumer AND w.replay = of_number AND w.replay > 0 AND q.next_at <= clock_timestamp()
        LIMIT 100000) AS r
$$;

-- Puts messages into their queues under the replay's number, and moves the replay from one cursor to the next; without a next
-- one everything was read. `kept`; `moved` if the replay stands elsewhere; `ended` if it does not run, or has so many dead
-- letters that it stops now.
CREATE FUNCTION inbox_feed_portion(
    of_consumer text, of_number int, arrivals inbox_arrival[], from_cursor text, to_cursor text
) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = @schema@, pg_temp
AS $$
DECLARE
    r inbox_replay;
    a inbox_arrival;
    n bigint := 0;
BEGIN
    PERFORM inbox_read_committed();
    PERFORM inbox_durable();
    SELECT * INTO r FROM inbox_replay AS o WHERE o.consumer = of_consumer AND o.number = of_number FOR UPDATE;
    IF r.state IS DISTINCT FROM 'running' THEN
        RETURN 'ended';
    ELSIF inbox_replay_dead(of_consumer, of_number) >= greatest(r.dead_max, 1) THEN
        PERFORM inbox_stop_replay(of_consumer, of_number);
        RETURN 'ended';
    ELSIF r.cursor IS DISTINCT FROM from_cursor THEN
        RETURN 'moved';
    END IF;
    FOREACH a IN ARRAY arrivals LOOP
        INSERT INTO inbox (consumer, id, replay, state, entered_at) VALUES (of_consumer, a.id, of_number, 'waiting', 'infinity')
        ON CONFLICT DO NOTHING;
        IF FOUND THEN
            PERFORM inbox_ensure_queue(of_consumer, a.queue, clock_timestamp());
            INSERT INTO inbox_waiting
                (consumer, queue, id, replay, header_names, header_values, payload, address, lane, place, correlation, fed_from)
            VALUES (of_consumer, a.queue, a.id, of_number, a.header_names, a.header_values, a.payload, a.address, a.lane,
                a.place, a.correlation, from_cursor);
            n := n + 1;
        END IF;
    END LOOP;
    UPDATE inbox_replay AS o SET fed = o.fed + n, cursor = coalesce(to_cursor, o.cursor),
        state = CASE WHEN to_cursor IS NULL THEN 'finished' ELSE o.state END
    WHERE o.consumer = of_consumer AND o.number = of_number;
    RETURN 'kept';
END $$;

-- As before, and the reader goes on before the first message that was taken out.
CREATE OR REPLACE FUNCTION inbox_stop_replay(of_consumer text, of_number int) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = @schema@, pg_temp
AS $$
DECLARE
    touched text[];
    n bigint;
    first_from text;
BEGIN
    PERFORM inbox_read_committed();
    UPDATE inbox_replay AS o SET state = 'stopped'
    WHERE o.consumer = of_consumer AND o.number = of_number AND o.state = 'running';
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    touched := ARRAY(
        SELECT q.queue FROM inbox_queue AS q WHERE q.consumer = of_consumer AND q.queue IN (
            SELECT w.queue FROM inbox_waiting AS w
            WHERE w.consumer = of_consumer AND w.replay = of_number AND w.replay > 0)
        ORDER BY q.queue FOR UPDATE);
    WITH gone AS (
        DELETE FROM inbox_waiting AS w
        WHERE w.consumer = of_consumer AND w.replay = of_number AND w.replay > 0 AND w.started = 0 AND w.attempts = 0
            AND NOT w.reopened
        RETURNING w.id, w.no, w.fed_from
    ), forgotten AS (
        DELETE FROM inbox AS i USING gone AS g
        WHERE i.consumer = of_consumer AND i.id = g.id AND i.replay = of_number AND i.state = 'waiting'
    )
    SELECT count(*), (array_agg(g.fed_from ORDER BY g.no))[1] INTO n, first_from FROM gone AS g;
    UPDATE inbox_replay AS o SET fed = o.fed - n, cursor = CASE WHEN n > 0 THEN first_from ELSE o.cursor END
    WHERE o.consumer = of_consumer AND o.number = of_number;
    -- Whoever works on a queue releases it.
    PERFORM inbox_drop_if_empty(of_consumer, q.queue) FROM inbox_queue AS q
    WHERE q.consumer = of_consumer AND q.queue = ANY (touched) AND q.token IS NULL;
    RETURN true;
END $$;

-- Lets a stopped replay run again, until it has so many dead letters more than now.
CREATE FUNCTION inbox_resume_replay(of_consumer text, of_number int, dead_more bigint) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = @schema@, pg_temp
AS $$
BEGIN
    UPDATE inbox_replay AS o
    SET state = 'running', dead_max = inbox_replay_dead(of_consumer, of_number) + dead_more
    WHERE o.consumer = of_consumer AND o.number = of_number AND o.state = 'stopped';
    RETURN FOUND;
END $$;

-- As before, with what is new here.
CREATE OR REPLACE FUNCTION grant_operator(role_name text) RETURNS void
LANGUAGE plpgsql SET search_path = @schema@, pg_temp
AS $$
BEGIN
    EXECUTE format('GRANT USAGE ON SCHEMA @schema@ TO %I', role_name);
    EXECUTE format('GRANT SELECT ON ALL TABLES IN SCHEMA @schema@ TO %I', role_name);
    EXECUTE format('GRANT EXECUTE ON FUNCTION backlog, mark_dead, inbox_consumers, inbox_show, inbox_order, '
        'inbox_micros, inbox_means, inbox_mark_dead, inbox_begin_replay, inbox_feed, inbox_feed_portion, '
        'inbox_stop_replay, inbox_resume_replay, inbox_ready, inbox_replays TO %I', role_name);
END $$;
