-- Consumers, their members and lanes, and what operators do with them.

CREATE TABLE inbox_consumer (
    name   text PRIMARY KEY,
    paused boolean NOT NULL DEFAULT false
);

CREATE TABLE inbox_member (
    consumer        text NOT NULL,
    owner           uuid NOT NULL,
    name            text NOT NULL,
    until           timestamptz NOT NULL,
    beat_at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_message_at timestamptz,
    PRIMARY KEY (consumer, owner)
) WITH (fillfactor = 50);

-- What is known of a lane beside its owner: how far it has come at the broker, its breaker, what people ordered.
CREATE TABLE inbox_mark (
    consumer text NOT NULL,
    lane     text NOT NULL,
    mark     numeric(20),
    breaker  text,
    paused   boolean NOT NULL DEFAULT false,
    forced   boolean,
    PRIMARY KEY (consumer, lane)
) WITH (fillfactor = 50);

CREATE TABLE inbox_replay (
    consumer text NOT NULL,
    number   int NOT NULL CHECK (number > 0),
    source   text NOT NULL,
    count    bigint NOT NULL,
    rate     bigint NOT NULL,
    dead_max bigint NOT NULL,
    asked_by text NOT NULL,
    reason   text NOT NULL,
    state    text NOT NULL DEFAULT 'running' CHECK (state IN ('running', 'finished', 'stopped')),
    fed      bigint NOT NULL DEFAULT 0,
    cursor   text,
    began_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (consumer, number)
);

-- A member is alive, and says what it does: marks are [[lane, mark], …], breakers [[lane, why], …]. Tells it what people ordered,
-- and how its row was found: absent, or expired.
CREATE FUNCTION inbox_beat(
    of_consumer text, me uuid, called text, lasts_ms bigint, last_message timestamptz, marks jsonb, breakers jsonb,
    wait_ms int
) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = @schema@, pg_temp
AS $$
DECLARE
    before timestamptz;
BEGIN
    PERFORM set_config('lock_timeout', wait_ms::text, true);
    -- A heartbeat that is lost in a crash is the least that is lost then.
    PERFORM set_config('synchronous_commit', 'off', true);
    INSERT INTO inbox_consumer (name) SELECT of_consumer
    WHERE NOT EXISTS (SELECT 1 FROM inbox_consumer AS c WHERE c.name = of_consumer) ON CONFLICT DO NOTHING;
    SELECT m.until INTO before FROM inbox_member AS m WHERE m.consumer = of_consumer AND m.owner = me FOR UPDATE;
    INSERT INTO inbox_member AS m (consumer, owner, name, until, last_message_at)
    VALUES (of_consumer, me, called, after_ms(lasts_ms), last_message)
    ON CONFLICT (consumer, owner) DO UPDATE SET name = excluded.name, until = excluded.until, beat_at = excluded.beat_at,
        last_message_at = coalesce(excluded.last_message_at, m.last_message_at);
    -- Of its own lanes only. A breaker that it does not name is closed.
    INSERT INTO inbox_mark AS k (consumer, lane, mark, breaker)
    SELECT of_consumer, l.lane,
        (SELECT max((e ->> 1)::numeric) FROM jsonb_array_elements(marks) AS e WHERE e ->> 0 = l.lane),
        (SELECT max(e ->> 1) FROM jsonb_array_elements(breakers) AS e WHERE e ->> 0 = l.lane)
    FROM inbox_lane AS l WHERE l.consumer = of_consumer AND l.owner = me ORDER BY l.lane
    ON CONFLICT (consumer, lane) DO UPDATE SET mark = coalesce(excluded.mark, k.mark), breaker = excluded.breaker
    WHERE (k.mark, k.breaker) IS DISTINCT FROM (coalesce(excluded.mark, k.mark), excluded.breaker);
    RETURN jsonb_build_object(
        'absent', before IS NULL,
        'expired', before IS NOT NULL AND before < clock_timestamp(),
        'paused', (SELECT c.paused FROM inbox_consumer AS c WHERE c.name = of_consumer),
        'paused_lanes', coalesce((
            SELECT jsonb_agg(k.lane ORDER BY k.lane) FROM inbox_mark AS k
            WHERE k.consumer = of_consumer AND k.paused), '[]'),
        'forced', coalesce((
            SELECT jsonb_agg(jsonb_build_array(k.lane, k.forced) ORDER BY k.lane) FROM inbox_mark AS k
            WHERE k.consumer = of_consumer AND k.forced IS NOT NULL), '[]'));
END $$;

-- Takes lanes for a living member: free ones, and those whose owner is dead and has no transaction open. Returns every lane
-- of those named that is its own now.
CREATE FUNCTION inbox_take(of_consumer text, me uuid, lanes text[], wait_ms int)
RETURNS TABLE (lane text, epoch bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = @schema@, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    PERFORM inbox_call(wait_ms);
    IF NOT EXISTS (
        SELECT 1 FROM inbox_member AS m
        WHERE m.consumer = of_consumer AND m.owner = me AND m.until >= clock_timestamp()) THEN
        RETURN;
    END IF;
    INSERT INTO inbox_lane (consumer, lane, epoch)
    SELECT DISTINCT of_consumer, w, 0 FROM unnest(lanes) AS w
    WHERE NOT EXISTS (SELECT 1 FROM inbox_lane AS l WHERE l.consumer = of_consumer AND l.lane = w)
    ORDER BY w ON CONFLICT DO NOTHING;
    -- A handler's transaction holds the row of its lane: such a lane is left out.
    WITH free AS (
        SELECT f.lane FROM inbox_lane AS f
        WHERE f.consumer = of_consumer AND f.lane = ANY (lanes) AND f.owner IS DISTINCT FROM me AND NOT EXISTS (
            SELECT 1 FROM inbox_member AS m
            WHERE m.consumer = of_consumer AND m.owner = f.owner AND m.until >= clock_timestamp())
        ORDER BY f.lane FOR UPDATE SKIP LOCKED
    ), taken AS (
        UPDATE inbox_lane AS l SET epoch = l.epoch + 1, owner = me
        FROM free WHERE l.consumer = of_consumer AND l.lane = free.lane RETURNING l.lane
    )
    UPDATE inbox_mark AS k SET breaker = NULL
    FROM taken AS t WHERE k.consumer = of_consumer AND k.lane = t.lane AND k.breaker IS NOT NULL;
    RETURN QUERY SELECT l.lane, l.epoch FROM inbox_lane AS l
        WHERE l.consumer = of_consumer AND l.lane = ANY (lanes) AND l.owner = me ORDER BY l.lane;
END $$;

-- Frees lanes of a member, or all of them and the member too if none are named.
CREATE FUNCTION inbox_give_back(of_consumer text, me uuid, lanes text[], wait_ms int) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = @schema@, pg_temp
AS $$
BEGIN
    PERFORM inbox_call(wait_ms);
    UPDATE inbox_mark AS k SET breaker = NULL
    WHERE k.consumer = of_consumer AND k.breaker IS NOT NULL AND EXISTS (
        SELECT 1 FROM inbox_lane AS l WHERE l.consumer = of_consumer AND l.lane = k.lane AND l.owner = me
            AND (lanes IS NULL OR l.lane = ANY (lanes)));
    UPDATE inbox_lane AS l SET owner = NULL
    WHERE l.consumer = of_consumer AND l.owner = me AND (lanes IS NULL OR l.lane = ANY (lanes));
    IF lanes IS NULL THEN
        DELETE FROM inbox_member AS m WHERE m.consumer = of_consumer AND m.owner = me;
    END IF;
END $$;

-- Deletes what is older than its retention, at most so many rows of each kind; says whether there is more. What waits or is
-- dead is never deleted. Call it from time to time if no consumer runtime does.
-- Sessions live long and plan while tables are small: nothing but an index in the order of time is left to the planner.
CREATE FUNCTION inbox_prune(
    consumer text, keep_done interval DEFAULT '30 days', keep_dead interval DEFAULT '90 days',
    keep_trace interval DEFAULT '30 days', most int DEFAULT 10000
) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = @schema@, pg_temp
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
AS $$
DECLARE
    -- Values, which an index can be searched for: the function could change from row to row.
    done_before timestamptz := clock_timestamp() - keep_done;
    dead_before timestamptz := clock_timestamp() - keep_dead;
    traced_before timestamptz := clock_timestamp() - keep_trace;
    n bigint;
    more boolean := false;
BEGIN
    DELETE FROM inbox AS i WHERE i.ctid = ANY (ARRAY(
        SELECT o.ctid FROM inbox AS o
        WHERE o.consumer = inbox_prune.consumer AND o.entered_at < done_before AND o.state IN ('done', 'skipped')
        ORDER BY o.entered_at LIMIT most FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS n = ROW_COUNT;
    more := more OR n >= most;
    DELETE FROM inbox_dead AS d WHERE d.ctid = ANY (ARRAY(
        SELECT o.ctid FROM inbox_dead AS o
        WHERE o.consumer = inbox_prune.consumer AND o.fate <> 'pending' AND o.marked_at < dead_before
        ORDER BY o.marked_at LIMIT most FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS n = ROW_COUNT;
    more := more OR n >= most;
    DELETE FROM inbox_trace AS t WHERE t.ctid = ANY (ARRAY(
        SELECT o.ctid FROM inbox_trace AS o
        WHERE o.consumer = inbox_prune.consumer AND o.at < traced_before
        ORDER BY o.at LIMIT most FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS n = ROW_COUNT;
    more := more OR n >= most;
    DELETE FROM inbox_member AS m
    WHERE m.consumer = inbox_prune.consumer AND m.until < clock_timestamp() - interval '1 day';
    RETURN more;
END $$;

-- Every consumer that was heard of; those that only have rows in the inbox are found by stepping from name to name.
CREATE FUNCTION inbox_names() RETURNS SETOF text
LANGUAGE sql STABLE SET search_path = @schema@, pg_temp
AS $$
    WITH RECURSIVE name (n) AS (
        (SELECT i.consumer FROM inbox AS i ORDER BY i.consumer LIMIT 1)
        UNION ALL
        SELECT (SELECT i.consumer FROM inbox AS i WHERE i.consumer > name.n ORDER BY i.consumer LIMIT 1)
        FROM name WHERE name.n IS NOT NULL
    )
    SELECT n FROM name WHERE n IS NOT NULL UNION SELECT c.name FROM inbox_consumer AS c
$$;

-- Microseconds since 1970, exactly: up to PostgreSQL 13 the epoch is a float, which has too few digits for both parts at once.
CREATE FUNCTION inbox_micros(at timestamptz) RETURNS bigint
LANGUAGE sql STABLE
AS $$
    SELECT date_part('epoch', date_trunc('second', at))::bigint * 1000000 + date_part('microseconds', at)::bigint % 1000000
$$;

-- Consumers, or the one of this name.
CREATE FUNCTION inbox_consumers(only_name text)
RETURNS TABLE (name text, paused boolean, members bigint, beat_at bigint, last_message_at bigint, waiting bigint, dead bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = @schema@, pg_temp
AS $$
    SELECT n, coalesce(c.paused, false), m.members, inbox_micros(m.beat_at), inbox_micros(m.last_message_at),
        (SELECT count(*) FROM (SELECT 1 FROM inbox_waiting AS w WHERE w.consumer = n LIMIT 10000) AS w),
        (SELECT count(*) FROM (
            SELECT 1 FROM inbox_dead AS d WHERE d.consumer = n AND d.fate = 'pending' LIMIT 10000) AS d)
    FROM inbox_names() AS n LEFT JOIN inbox_consumer AS c ON c.name = n
    CROSS JOIN LATERAL (
        SELECT count(*) FILTER (WHERE m.until >= clock_timestamp()) AS members, max(m.beat_at) AS beat_at,
            max(m.last_message_at) AS last_message_at
        FROM inbox_member AS m WHERE m.consumer = n
    ) AS m
    WHERE only_name IS NULL OR n = only_name ORDER BY n
$$;

-- The first queues of a consumer; the head of one that waits for a person is the dead letter.
CREATE FUNCTION inbox_queues(of_consumer text, most int)
RETURNS TABLE (queue text, id uuid, replay int, length bigint, attempts int, next_at timestamptz, error text)
LANGUAGE sql STABLE SET search_path = @schema@, pg_temp
AS $$
    SELECT q.queue, coalesce(d.id, w.id), coalesce(d.replay, w.replay),
        (SELECT count(*) FROM (
            SELECT 1 FROM inbox_waiting AS b WHERE b.consumer = of_consumer AND b.queue = q.queue LIMIT 10000) AS b),
        coalesce(d.attempts, w.attempts), q.next_at, coalesce(d.error, w.error)
    FROM (SELECT * FROM inbox_queue AS a WHERE a.consumer = of_consumer ORDER BY a.next_at, a.queue LIMIT most) AS q
    LEFT JOIN LATERAL (
        SELECT * FROM inbox_dead AS h WHERE h.consumer = of_consumer AND h.queue = q.queue AND h.holds ORDER BY h.no LIMIT 1
    ) AS d ON true
    LEFT JOIN LATERAL (
        SELECT * FROM inbox_waiting AS f WHERE f.consumer = of_consumer AND f.queue = q.queue ORDER BY f.no LIMIT 1
    ) AS w ON true
    WHERE coalesce(d.id, w.id) IS NOT NULL
$$;

-- Members, lanes and the first queues of a consumer.
CREATE FUNCTION inbox_show(of_consumer text, most int) RETURNS jsonb
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = @schema@, pg_temp
AS $$
    SELECT jsonb_build_object(
        'members', coalesce((
            SELECT jsonb_agg(jsonb_build_object('name', m.name, 'alive', m.until >= clock_timestamp(),
                'beat_at', inbox_micros(m.beat_at), 'last_message_at', inbox_micros(m.last_message_at))
                ORDER BY m.until >= clock_timestamp() DESC, m.name, m.owner)
            FROM inbox_member AS m WHERE m.consumer = of_consumer), '[]'),
        'lanes', coalesce((
            SELECT jsonb_agg(jsonb_build_object('name', lane, 'owner', m.name, 'epoch', coalesce(l.epoch, 0),
                'mark', k.mark::text, 'paused', coalesce(k.paused, false), 'breaker', k.breaker, 'forced', k.forced)
                ORDER BY lane)
            FROM (SELECT * FROM inbox_lane WHERE consumer = of_consumer) AS l
            FULL JOIN (SELECT * FROM inbox_mark WHERE consumer = of_consumer) AS k USING (lane)
            LEFT JOIN inbox_member AS m ON m.consumer = of_consumer AND m.owner = l.owner), '[]'),
        'queues', coalesce((
            SELECT jsonb_agg(jsonb_build_object('queue', q.queue, 'id', q.id, 'replay', q.replay, 'length', q.length,
                'attempts', q.attempts, 'next_at', inbox_micros(q.next_at), 'error', q.error) ORDER BY q.next_at, q.queue)
            FROM inbox_queues(of_consumer, most) AS q), '[]'))
$$;

-- What people order of a consumer, or of one of its lanes: pause, resume, open, close or free the breaker.
CREATE FUNCTION inbox_order(of_consumer text, of_lane text, what text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = @schema@, pg_temp
AS $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM inbox_names() AS n WHERE n = of_consumer) THEN
        RETURN false;
    ELSIF of_lane IS NULL AND what IN ('pause', 'resume') THEN
        INSERT INTO inbox_consumer AS c (name, paused) VALUES (of_consumer, what = 'pause')
        ON CONFLICT (name) DO UPDATE SET paused = excluded.paused;
        RETURN true;
    END IF;
    INSERT INTO inbox_mark (consumer, lane)
    SELECT of_consumer, l.lane FROM inbox_lane AS l
    WHERE l.consumer = of_consumer AND (of_lane IS NULL OR l.lane = of_lane) ON CONFLICT DO NOTHING;
    UPDATE inbox_mark AS k SET
        paused = CASE what WHEN 'pause' THEN true WHEN 'resume' THEN false ELSE k.paused END,
        forced = CASE what WHEN 'open' THEN true WHEN 'close' THEN false WHEN 'free' THEN NULL ELSE k.forced END
    WHERE k.consumer = of_consumer AND (of_lane IS NULL OR k.lane = of_lane);
    RETURN FOUND;
END $$;

-- Whether a filter, {"consumer", "ids", "queue", "class", "fate", "since", "until"} with each part optional, means a dead letter.
CREATE FUNCTION inbox_means(filter jsonb, d inbox_dead) RETURNS boolean
LANGUAGE sql STABLE
AS $$
    SELECT (filter ->> 'consumer' IS NULL OR d.consumer = filter ->> 'consumer')
        AND (jsonb_array_length(filter -> 'ids') = 0 OR filter -> 'ids' ? d.id::text)
        AND (filter ->> 'queue' IS NULL OR d.queue = filter ->> 'queue')
        AND (filter ->> 'class' IS NULL OR d.class = filter ->> 'class')
        AND (filter ->> 'fate' IS NULL OR d.fate = filter ->> 'fate')
        AND (filter ->> 'since' IS NULL OR d.dead_at >= (filter ->> 'since')::timestamptz)
        AND (filter ->> 'until' IS NULL OR d.dead_at < (filter ->> 'until')::timestamptz)
$$;

-- Puts the pending dead letters that a filter means back into their queues, or aside; returns how many. A letter that is not
-- pending any more when its row is locked is left alone, so that two calls at once act once.
CREATE FUNCTION inbox_mark_dead(as_fate text, filter jsonb, dry_run boolean, rate int, by_whom text, why text) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = @schema@, pg_temp
AS $$
DECLARE
    d inbox_dead;
    began timestamptz := clock_timestamp();
    place bigint := 0;
BEGIN
    IF dry_run THEN
        RETURN (SELECT count(*) FROM inbox_dead AS o WHERE o.fate = 'pending' AND inbox_means(filter, o));
    END IF;
    PERFORM inbox_read_committed();
    PERFORM inbox_durable();
    FOR d IN
        SELECT * FROM inbox_dead AS o WHERE o.fate = 'pending' AND inbox_means(filter, o) ORDER BY o.no FOR UPDATE
    LOOP
        UPDATE inbox_dead AS o SET fate = as_fate, holds = false, redriven = o.redriven + (as_fate = 'replayed')::int, note = why,
            marked_by = by_whom, marked_at = clock_timestamp()
        WHERE o.consumer = d.consumer AND o.id = d.id AND o.replay = d.replay;
        IF as_fate = 'replayed' THEN
            PERFORM inbox_reopen(d, began + CASE WHEN rate > 0 THEN place * 1000000 / rate ELSE 0 END * interval '1 microsecond');
        ELSIF d.holds THEN
            PERFORM inbox_put_aside(d);
        END IF;
        place := place + 1;
    END LOOP;
    RETURN place;
END $$;

-- Puts a dead letter back where it was in its queue: in front of everything that came after it.
CREATE FUNCTION inbox_reopen(d inbox_dead, at timestamptz) RETURNS void
LANGUAGE plpgsql SET search_path = @schema@, pg_temp
AS $$
BEGIN
    PERFORM inbox_ensure_queue(d.consumer, d.queue, at);
    PERFORM 1 FROM inbox_queue AS q WHERE q.consumer = d.consumer AND q.queue = d.queue FOR UPDATE;
    INSERT INTO inbox_waiting
        (consumer, queue, no, id, replay, header_names, header_values, payload, address, lane, place, correlation, reopened,
        class, error, arrived_at)
    VALUES (d.consumer, d.queue, d.no, d.id, d.replay, d.header_names, d.header_values, d.payload, d.address, d.lane,
        d.place, d.correlation, true, d.class, d.error, d.arrived_at);
    UPDATE inbox AS i SET state = 'reopened', started = 0
    WHERE i.consumer = d.consumer AND i.id = d.id AND i.replay = d.replay AND i.state = 'dead';
    UPDATE inbox_trace AS t SET state = 'reopened', at = clock_timestamp()
    WHERE t.consumer = d.consumer AND t.id = d.id AND t.replay = d.replay;
    IF NOT inbox_free(d, at) THEN
        RETURN;
    END IF;
    -- A claim ends, so that nobody goes on behind the new head; where it is not the head, everything stays as it is.
    UPDATE inbox_queue AS q SET next_at = at, token = NULL, claim_until = NULL
    WHERE q.consumer = d.consumer AND q.queue = d.queue AND NOT EXISTS (
        SELECT 1 FROM inbox_waiting AS w WHERE w.consumer = d.consumer AND w.queue = d.queue AND w.no < d.no);
END $$;

-- A queue that waited for this dead letter goes on; true unless another one holds it. The caller holds its row FOR UPDATE.
CREATE FUNCTION inbox_free(d inbox_dead, at timestamptz) RETURNS boolean
LANGUAGE plpgsql SET search_path = @schema@, pg_temp
AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM inbox_dead AS o WHERE o.consumer = d.consumer AND o.queue = d.queue AND o.holds) THEN
        RETURN false;
    END IF;
    UPDATE inbox_queue AS q SET next_at = at, held = false
    WHERE q.consumer = d.consumer AND q.queue = d.queue AND q.held;
    RETURN true;
END $$;

-- Puts a dead letter aside that held its queue.
CREATE FUNCTION inbox_put_aside(d inbox_dead) RETURNS void
LANGUAGE plpgsql SET search_path = @schema@, pg_temp
AS $$
BEGIN
    PERFORM 1 FROM inbox_queue AS q WHERE q.consumer = d.consumer AND q.queue = d.queue FOR UPDATE;
    IF inbox_free(d, clock_timestamp()) THEN
        PERFORM inbox_drop_if_empty(d.consumer, d.queue);
    END IF;
END $$;

-- Begins a replay on purpose; returns its number.
CREATE FUNCTION inbox_begin_replay(
    of_consumer text, source text, count bigint, rate bigint, dead_max bigint, by_whom text, why text
) RETURNS int
LANGUAGE plpgsql SECURITY DEFINER SET search_path = @schema@, pg_temp
AS $$
DECLARE
    new_number int;
BEGIN
    INSERT INTO inbox_consumer (name) VALUES (of_consumer) ON CONFLICT DO NOTHING;
    PERFORM 1 FROM inbox_consumer AS c WHERE c.name = of_consumer FOR UPDATE;
    SELECT coalesce(max(r.number), 0) + 1 INTO new_number FROM inbox_replay AS r WHERE r.consumer = of_consumer;
    INSERT INTO inbox_replay (consumer, number, source, count, rate, dead_max, asked_by, reason)
    VALUES (of_consumer, new_number, inbox_begin_replay.source, inbox_begin_replay.count, inbox_begin_replay.rate,
        inbox_begin_replay.dead_max, by_whom, why);
    RETURN new_number;
END $$;

-- Puts messages into their queues under the replay's number, and notes where the reader goes on; without a cursor it has read
-- everything. False, and nothing is changed, if the replay does not run, or has so many dead letters that it stops now.
CREATE FUNCTION inbox_feed(of_consumer text, of_number int, arrivals inbox_arrival[], next_cursor text) RETURNS boolean
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
        RETURN false;
    ELSIF (
        SELECT count(*) FROM inbox_dead AS d
        WHERE d.consumer = of_consumer AND d.replay = of_number AND d.fate <> 'replayed'
    ) >= greatest(r.dead_max, 1) THEN
        PERFORM inbox_stop_replay(of_consumer, of_number);
        RETURN false;
    END IF;
    FOREACH a IN ARRAY arrivals LOOP
        a.replay := of_number;
        INSERT INTO inbox (consumer, id, replay, state, entered_at) VALUES (of_consumer, a.id, of_number, 'waiting', 'infinity')
        ON CONFLICT DO NOTHING;
        IF FOUND THEN
            PERFORM inbox_ensure_queue(of_consumer, a.queue, clock_timestamp());
            PERFORM inbox_append(of_consumer, ARRAY[a]);
            n := n + 1;
        END IF;
    END LOOP;
    UPDATE inbox_replay AS o SET fed = o.fed + n, cursor = coalesce(next_cursor, o.cursor),
        state = CASE WHEN next_cursor IS NULL THEN 'finished' ELSE o.state END
    WHERE o.consumer = of_consumer AND o.number = of_number;
    RETURN true;
END $$;

-- Stops a replay; what of it waits and was never begun is taken out, as if it had not been fed.
CREATE FUNCTION inbox_stop_replay(of_consumer text, of_number int) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = @schema@, pg_temp
AS $$
DECLARE
    touched text[];
    n bigint := 0;
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
        RETURNING w.id
    )
    DELETE FROM inbox AS i USING gone AS g
    WHERE i.consumer = of_consumer AND i.id = g.id AND i.replay = of_number AND i.state = 'waiting';
    GET DIAGNOSTICS n = ROW_COUNT;
    UPDATE inbox_replay AS o SET fed = o.fed - n WHERE o.consumer = of_consumer AND o.number = of_number;
    -- Whoever works on a queue releases it.
    PERFORM inbox_drop_if_empty(of_consumer, q.queue) FROM inbox_queue AS q
    WHERE q.consumer = of_consumer AND q.queue = ANY (touched) AND q.token IS NULL;
    RETURN true;
END $$;

-- The replays of a consumer, newest first. Done is what was fed and neither waits nor is dead.
CREATE FUNCTION inbox_replays(of_consumer text)
RETURNS TABLE (number int, source text, count bigint, rate bigint, dead_max bigint, asked_by text, reason text, state text,
    fed bigint, done bigint, dead bigint, cursor text, began_at bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = @schema@, pg_temp
AS $$
    SELECT r.number, r.source, r.count, r.rate, r.dead_max, r.asked_by, r.reason, r.state, r.fed,
        r.fed - s.waiting - s.dead, s.dead, r.cursor, inbox_micros(r.began_at)
    FROM inbox_replay AS r CROSS JOIN LATERAL (
        SELECT
            (SELECT count(*) FROM inbox_waiting AS w
            WHERE w.consumer = of_consumer AND w.replay = r.number AND w.replay > 0) AS waiting,
            (SELECT count(*) FROM inbox_dead AS d
            WHERE d.consumer = of_consumer AND d.replay = r.number AND d.fate <> 'replayed') AS dead
    ) AS s
    WHERE r.consumer = of_consumer ORDER BY r.number DESC
$$;

-- A consumer may take messages in and work on its retry table, through functions that check its rights to a lane or a queue;
-- it reads no table but that of versions.
CREATE FUNCTION grant_consumer(role_name text) RETURNS void
LANGUAGE plpgsql SET search_path = @schema@, pg_temp
AS $$
BEGIN
    EXECUTE format('GRANT USAGE ON SCHEMA @schema@ TO %I', role_name);
    EXECUTE format('GRANT SELECT ON migration TO %I', role_name);
    EXECUTE format('GRANT EXECUTE ON FUNCTION inbox_begin, inbox_enter, inbox_append, inbox_skip, inbox_start, '
        'inbox_started, inbox_ended, inbox_claim, inbox_begin_claimed, inbox_set_back, inbox_due, inbox_begin_due, '
        'inbox_set_back_due, inbox_release, inbox_beat, inbox_take, inbox_give_back, inbox_prune TO %I', role_name);
END $$;

-- An operator may read everything and do what people do with dead letters and consumers.
CREATE FUNCTION grant_operator(role_name text) RETURNS void
LANGUAGE plpgsql SET search_path = @schema@, pg_temp
AS $$
BEGIN
    EXECUTE format('GRANT USAGE ON SCHEMA @schema@ TO %I', role_name);
    EXECUTE format('GRANT SELECT ON ALL TABLES IN SCHEMA @schema@ TO %I', role_name);
    EXECUTE format('GRANT EXECUTE ON FUNCTION backlog, mark_dead, inbox_consumers, inbox_show, inbox_order, '
        'inbox_micros, inbox_means, inbox_mark_dead, inbox_begin_replay, inbox_feed, inbox_stop_replay, inbox_replays TO %I',
        role_name);
END $$;
