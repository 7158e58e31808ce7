-- Consumers, their members and lanes, and the operator's controls.

CREATE TABLE inbox_consumer (
    name           text PRIMARY KEY,
    paused         boolean NOT NULL DEFAULT false,
    -- The retention of handled messages at the last prune; null before the first. A message that is redelivered later is handled
    -- again, so that operators must be able to see it.
    done_retention interval,
    -- When an operator removed the consumer; null again after a heartbeat.
    removed_at     timestamptz
);

CREATE TABLE inbox_member (
    consumer        text NOT NULL,
    owner           uuid NOT NULL,
    name            text NOT NULL,
    expires_at      timestamptz NOT NULL,
    beat_at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_message_at timestamptz,
    PRIMARY KEY (consumer, owner)
) WITH (fillfactor = 50);

-- The state of a lane beside its owner: the settled position at the broker, the breaker, the operator's controls.
CREATE TABLE inbox_lane_status (
    consumer       text NOT NULL,
    lane           text NOT NULL,
    settled_offset numeric(20),
    breaker_reason text,
    paused         boolean NOT NULL DEFAULT false,
    breaker_forced boolean,
    PRIMARY KEY (consumer, lane)
) WITH (fillfactor = 50);

-- All known consumers. Consumers that have only inbox rows are found by an index skip scan. A removed consumer is listed only while it
-- has queued messages or dead letters, or handled messages after its removal without a heartbeat.
CREATE FUNCTION inbox_consumer_names() RETURNS SETOF text
LANGUAGE sql STABLE SET search_path = @schema@, pg_temp
AS $$
    WITH RECURSIVE name (n) AS (
        (SELECT i.consumer FROM inbox AS i ORDER BY i.consumer LIMIT 1)
        UNION ALL
        SELECT (SELECT i.consumer FROM inbox AS i WHERE i.consumer > name.n ORDER BY i.consumer LIMIT 1)
        FROM name WHERE name.n IS NOT NULL
    ), heard (n) AS (
        SELECT n FROM name WHERE n IS NOT NULL UNION SELECT c.name FROM inbox_consumer AS c
    )
    SELECT h.n FROM heard AS h LEFT JOIN inbox_consumer AS c ON c.name = h.n
    WHERE c.removed_at IS NULL
        OR EXISTS (SELECT 1 FROM inbox_retry_message AS w WHERE w.consumer = h.n)
        OR EXISTS (SELECT 1 FROM inbox_dead_letter AS d WHERE d.consumer = h.n AND d.state = 'dead')
        OR EXISTS (
            SELECT 1 FROM inbox AS i
            WHERE i.consumer = h.n AND i.entered_at > c.removed_at AND i.entered_at < 'infinity')
$$;

-- A member's heartbeat with the state of its lanes: offsets are [[lane, offset], …], breakers [[lane, reason], …]. Returns the operator's
-- controls, and whether the member's row was absent or expired. A removed consumer is known again.
CREATE FUNCTION inbox_heartbeat(
    p_consumer text, p_owner uuid, p_name text, p_lease_ms bigint, p_last_message_at timestamptz, p_offsets jsonb, p_breakers jsonb,
    p_lock_timeout_ms int
) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = @schema@, pg_temp
AS $$
DECLARE
    before timestamptz;
BEGIN
    PERFORM set_config('lock_timeout', p_lock_timeout_ms::text, true);
    -- A crash may lose a heartbeat.
    PERFORM set_config('synchronous_commit', 'off', true);
    PERFORM pg_advisory_xact_lock_shared(advisory_lock_key('consumer/' || p_consumer));
    INSERT INTO inbox_consumer (name) SELECT p_consumer
    WHERE NOT EXISTS (SELECT 1 FROM inbox_consumer AS c WHERE c.name = p_consumer) ON CONFLICT DO NOTHING;
    UPDATE inbox_consumer AS c SET removed_at = NULL WHERE c.name = p_consumer AND c.removed_at IS NOT NULL;
    SELECT m.expires_at INTO before FROM inbox_member AS m WHERE m.consumer = p_consumer AND m.owner = p_owner FOR UPDATE;
    INSERT INTO inbox_member AS m (consumer, owner, name, expires_at, last_message_at)
    VALUES (p_consumer, p_owner, p_name, after_ms(p_lease_ms), p_last_message_at)
    ON CONFLICT (consumer, owner) DO UPDATE SET name = excluded.name, expires_at = excluded.expires_at, beat_at = excluded.beat_at,
        last_message_at = coalesce(excluded.last_message_at, m.last_message_at);
    -- Only its own lanes. A breaker that it does not report is closed.
    INSERT INTO inbox_lane_status AS k (consumer, lane, settled_offset, breaker_reason)
    SELECT p_consumer, l.lane,
        (SELECT max((e ->> 1)::numeric) FROM jsonb_array_elements(p_offsets) AS e WHERE e ->> 0 = l.lane),
        (SELECT max(e ->> 1) FROM jsonb_array_elements(p_breakers) AS e WHERE e ->> 0 = l.lane)
    FROM inbox_lane AS l WHERE l.consumer = p_consumer AND l.owner = p_owner ORDER BY l.lane
    ON CONFLICT (consumer, lane) DO UPDATE SET settled_offset = coalesce(excluded.settled_offset, k.settled_offset),
        breaker_reason = excluded.breaker_reason
    WHERE (k.settled_offset, k.breaker_reason) IS DISTINCT FROM (coalesce(excluded.settled_offset, k.settled_offset),
        excluded.breaker_reason);
    RETURN jsonb_build_object(
        'absent', before IS NULL,
        'expired', before IS NOT NULL AND before < clock_timestamp(),
        'paused', (SELECT c.paused FROM inbox_consumer AS c WHERE c.name = p_consumer),
        'paused_lanes', coalesce((
            SELECT jsonb_agg(k.lane ORDER BY k.lane) FROM inbox_lane_status AS k
            WHERE k.consumer = p_consumer AND k.paused), '[]'),
        'breaker_forced', coalesce((
            SELECT jsonb_agg(jsonb_build_array(k.lane, k.breaker_forced) ORDER BY k.lane) FROM inbox_lane_status AS k
            WHERE k.consumer = p_consumer AND k.breaker_forced IS NOT NULL), '[]'));
END $$;

-- Acquires lanes for a live member: free ones, and those of a dead owner without an open transaction. Returns the named lanes that the
-- member owns now. The shared lock excludes a concurrent removal of the consumer.
CREATE FUNCTION inbox_acquire_lanes(p_consumer text, p_owner uuid, p_lanes text[], p_lock_timeout_ms int)
RETURNS TABLE (lane text, epoch bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = @schema@, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    now_at timestamptz;
BEGIN
    PERFORM inbox_begin_call(p_lock_timeout_ms);
    PERFORM pg_advisory_xact_lock_shared(advisory_lock_key('consumer/' || p_consumer));
    now_at := clock_timestamp();
    IF NOT EXISTS (
        SELECT 1 FROM inbox_member AS m
        WHERE m.consumer = p_consumer AND m.owner = p_owner AND m.expires_at >= now_at) THEN
        RETURN;
    END IF;
    INSERT INTO inbox_lane (consumer, lane, epoch)
    SELECT DISTINCT p_consumer, w, 0 FROM unnest(p_lanes) AS w
    WHERE NOT EXISTS (SELECT 1 FROM inbox_lane AS l WHERE l.consumer = p_consumer AND l.lane = w)
    ORDER BY w ON CONFLICT DO NOTHING;
    -- A handler's transaction locks the row of its lane: such a lane is skipped.
    WITH free AS (
        SELECT f.lane FROM inbox_lane AS f
        WHERE f.consumer = p_consumer AND f.lane = ANY (p_lanes) AND f.owner IS DISTINCT FROM p_owner AND NOT EXISTS (
            SELECT 1 FROM inbox_member AS m
            WHERE m.consumer = p_consumer AND m.owner = f.owner AND m.expires_at >= now_at)
        ORDER BY f.lane FOR UPDATE SKIP LOCKED
    ), taken AS (
        UPDATE inbox_lane AS l SET epoch = l.epoch + 1, owner = p_owner
        FROM free WHERE l.consumer = p_consumer AND l.lane = free.lane RETURNING l.lane
    )
    UPDATE inbox_lane_status AS k SET breaker_reason = NULL
    FROM taken AS t WHERE k.consumer = p_consumer AND k.lane = t.lane AND k.breaker_reason IS NOT NULL;
    RETURN QUERY SELECT l.lane, l.epoch FROM inbox_lane AS l
        WHERE l.consumer = p_consumer AND l.lane = ANY (p_lanes) AND l.owner = p_owner ORDER BY l.lane;
END $$;

-- Releases lanes of a member; all of them, and the member itself, if none are named.
CREATE FUNCTION inbox_release_lanes(p_consumer text, p_owner uuid, p_lanes text[], p_lock_timeout_ms int) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = @schema@, pg_temp
AS $$
BEGIN
    PERFORM inbox_begin_call(p_lock_timeout_ms);
    UPDATE inbox_lane_status AS k SET breaker_reason = NULL
    WHERE k.consumer = p_consumer AND k.breaker_reason IS NOT NULL AND EXISTS (
        SELECT 1 FROM inbox_lane AS l WHERE l.consumer = p_consumer AND l.lane = k.lane AND l.owner = p_owner
            AND (p_lanes IS NULL OR l.lane = ANY (p_lanes)));
    UPDATE inbox_lane AS l SET owner = NULL
    WHERE l.consumer = p_consumer AND l.owner = p_owner AND (p_lanes IS NULL OR l.lane = ANY (p_lanes));
    IF p_lanes IS NULL THEN
        DELETE FROM inbox_member AS m WHERE m.consumer = p_consumer AND m.owner = p_owner;
    END IF;
END $$;

-- Deletes the members, lanes and controls of a consumer that was shut down for good; its inbox rows stay. Returns `gone`; `alive` and
-- changes nothing if a member is alive; `unknown`. Heartbeats and lane acquisition share a lock that this takes exclusively: they run
-- before it and are seen, or after it and start again.
CREATE FUNCTION inbox_remove_consumer(p_consumer text) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = @schema@, pg_temp
AS $$
DECLARE
    free bigint;
    now_at timestamptz;
BEGIN
    PERFORM inbox_begin_call(5000);
    PERFORM pg_advisory_xact_lock(advisory_lock_key('consumer/' || p_consumer));
    now_at := clock_timestamp();
    IF NOT EXISTS (SELECT 1 FROM inbox_consumer_names() AS n WHERE n = p_consumer) THEN
        RETURN 'unknown';
    ELSIF EXISTS (
        SELECT 1 FROM inbox_member AS m WHERE m.consumer = p_consumer AND m.expires_at >= now_at) THEN
        RETURN 'alive';
    END IF;
    -- Lock order as in the functions that do not share the advisory lock: pruning locks the consumer before its members, and releasing
    -- lanes locks their status before the lanes.
    PERFORM 1 FROM inbox_consumer AS c WHERE c.name = p_consumer FOR UPDATE;
    PERFORM 1 FROM inbox_lane_status AS k WHERE k.consumer = p_consumer ORDER BY k.lane FOR UPDATE;
    -- A handler's transaction locks the row of its lane, however old its member's heartbeat is.
    SELECT count(*) INTO free FROM (
        SELECT 1 FROM inbox_lane AS l WHERE l.consumer = p_consumer FOR UPDATE SKIP LOCKED) AS f;
    IF free < (SELECT count(*) FROM inbox_lane AS l WHERE l.consumer = p_consumer) THEN
        RETURN 'alive';
    END IF;
    DELETE FROM inbox_lane_status AS k WHERE k.consumer = p_consumer;
    DELETE FROM inbox_lane AS l WHERE l.consumer = p_consumer;
    DELETE FROM inbox_member AS m WHERE m.consumer = p_consumer;
    INSERT INTO inbox_consumer (name, removed_at) VALUES (p_consumer, clock_timestamp())
    ON CONFLICT (name) DO UPDATE SET paused = false, removed_at = excluded.removed_at;
    RETURN 'gone';
END $$;

-- Deletes rows older than their retention, up to a number of each kind. Returns whether more remain. Queued messages and dead letters in
-- state `dead` are never deleted. Call it regularly if no consumer runtime does. It records how long the inbox keeps handled messages.
-- Sessions are long-lived and plan while tables are small: these settings leave the planner only indexes ordered by time.
CREATE FUNCTION inbox_prune(
    consumer text, done_retention interval DEFAULT '30 days', dead_letter_retention interval DEFAULT '90 days',
    row_limit int DEFAULT 10000
) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = @schema@, pg_temp
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
AS $$
DECLARE
    -- Variables, which an index can be searched for. The function could return another time for each row.
    done_before timestamptz := clock_timestamp() - done_retention;
    dead_before timestamptz := clock_timestamp() - dead_letter_retention;
    members_before timestamptz := clock_timestamp() - interval '1 day';
    n bigint;
    more boolean := false;
BEGIN
    INSERT INTO inbox_consumer AS c (name, done_retention) VALUES (inbox_prune.consumer, inbox_prune.done_retention)
    ON CONFLICT (name) DO UPDATE SET done_retention = excluded.done_retention
    WHERE c.done_retention IS DISTINCT FROM excluded.done_retention;
    DELETE FROM inbox AS i WHERE i.ctid = ANY (ARRAY(
        SELECT o.ctid FROM inbox AS o
        WHERE o.consumer = inbox_prune.consumer AND o.entered_at < done_before AND o.state IN ('done', 'skipped')
        ORDER BY o.entered_at LIMIT row_limit FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS n = ROW_COUNT;
    more := more OR n >= row_limit;
    DELETE FROM inbox_dead_letter AS d WHERE d.ctid = ANY (ARRAY(
        SELECT o.ctid FROM inbox_dead_letter AS o
        WHERE o.consumer = inbox_prune.consumer AND o.state <> 'dead' AND o.marked_at < dead_before
        ORDER BY o.marked_at LIMIT row_limit FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS n = ROW_COUNT;
    more := more OR n >= row_limit;
    DELETE FROM inbox_member AS m
    WHERE m.consumer = inbox_prune.consumer AND m.expires_at < members_before;
    RETURN more;
END $$;

-- Microseconds since 1970, exactly. Before PostgreSQL 14 the epoch is a float, which has too few digits for seconds and microseconds together.
CREATE FUNCTION epoch_micros(p_at timestamptz) RETURNS bigint
LANGUAGE sql STABLE
AS $$
    SELECT date_part('epoch', date_trunc('second', p_at))::bigint * 1000000 + date_part('microseconds', p_at)::bigint % 1000000
$$;

-- All consumers, or the one with this name.
CREATE FUNCTION inbox_list_consumers(p_name text)
RETURNS TABLE (name text, paused boolean, members bigint, beat_at bigint, last_message_at bigint, waiting bigint, dead bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = @schema@, pg_temp
AS $$
    SELECT n, coalesce(c.paused, false), m.members, epoch_micros(m.beat_at), epoch_micros(m.last_message_at),
        (SELECT count(*) FROM (SELECT 1 FROM inbox_retry_message AS w WHERE w.consumer = n LIMIT 10000) AS w),
        (SELECT count(*) FROM (
            SELECT 1 FROM inbox_dead_letter AS d WHERE d.consumer = n AND d.state = 'dead' LIMIT 10000) AS d)
    FROM inbox_consumer_names() AS n LEFT JOIN inbox_consumer AS c ON c.name = n
    CROSS JOIN LATERAL (
        SELECT count(*) FILTER (WHERE m.expires_at >= clock_timestamp()) AS members, max(m.beat_at) AS beat_at,
            max(m.last_message_at) AS last_message_at
        FROM inbox_member AS m WHERE m.consumer = n
    ) AS m
    WHERE p_name IS NULL OR n = p_name ORDER BY n
$$;

-- The first queues of a consumer. The head of a blocked queue is its dead letter.
CREATE FUNCTION inbox_list_queues(p_consumer text, p_limit int)
RETURNS TABLE (queue text, id uuid, replay int, length bigint, attempts int, next_at timestamptz, error text)
LANGUAGE sql STABLE SET search_path = @schema@, pg_temp
AS $$
    SELECT q.queue, coalesce(d.id, w.id), coalesce(d.replay, w.replay),
        (SELECT count(*) FROM (
            SELECT 1 FROM inbox_retry_message AS b WHERE b.consumer = p_consumer AND b.queue = q.queue LIMIT 10000) AS b),
        coalesce(d.attempts, w.attempts), q.next_at, coalesce(d.error, w.error)
    FROM (SELECT * FROM inbox_retry_queue AS a WHERE a.consumer = p_consumer ORDER BY a.next_at, a.queue LIMIT p_limit) AS q
    LEFT JOIN LATERAL (
        SELECT * FROM inbox_dead_letter AS h WHERE h.consumer = p_consumer AND h.queue = q.queue AND h.blocks_queue
            ORDER BY h.ordinal LIMIT 1
    ) AS d ON true
    LEFT JOIN LATERAL (
        SELECT * FROM inbox_retry_message AS f WHERE f.consumer = p_consumer AND f.queue = q.queue ORDER BY f.ordinal LIMIT 1
    ) AS w ON true
    WHERE coalesce(d.id, w.id) IS NOT NULL
$$;

-- Members, lanes and the first queues of a consumer.
CREATE FUNCTION inbox_show_consumer(p_consumer text, p_limit int) RETURNS jsonb
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = @schema@, pg_temp
AS $$
    SELECT jsonb_build_object(
        'members', coalesce((
            SELECT jsonb_agg(jsonb_build_object('name', m.name, 'alive', m.expires_at >= clock_timestamp(),
                'beat_at', epoch_micros(m.beat_at), 'last_message_at', epoch_micros(m.last_message_at))
                ORDER BY m.expires_at >= clock_timestamp() DESC, m.name, m.owner)
            FROM inbox_member AS m WHERE m.consumer = p_consumer), '[]'),
        'lanes', coalesce((
            SELECT jsonb_agg(jsonb_build_object('name', lane, 'owner', m.name, 'epoch', coalesce(l.epoch, 0),
                'settled_offset', k.settled_offset::text, 'paused', coalesce(k.paused, false), 'breaker_reason', k.breaker_reason,
                    'breaker_forced', k.breaker_forced)
                ORDER BY lane)
            FROM (SELECT * FROM inbox_lane WHERE consumer = p_consumer) AS l
            FULL JOIN (SELECT * FROM inbox_lane_status WHERE consumer = p_consumer) AS k USING (lane)
            LEFT JOIN inbox_member AS m ON m.consumer = p_consumer AND m.owner = l.owner), '[]'),
        'queues', coalesce((
            SELECT jsonb_agg(jsonb_build_object('queue', q.queue, 'id', q.id, 'replay', q.replay, 'length', q.length,
                'attempts', q.attempts, 'next_at', epoch_micros(q.next_at), 'error', q.error) ORDER BY q.next_at, q.queue)
            FROM inbox_list_queues(p_consumer, p_limit) AS q), '[]'))
$$;

-- An operator's control of a consumer, or of one of its lanes: pause, resume, open, close or free the breaker.
CREATE FUNCTION inbox_set_control(p_consumer text, p_lane text, p_control text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = @schema@, pg_temp
AS $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM inbox_consumer_names() AS n WHERE n = p_consumer) THEN
        RETURN false;
    ELSIF p_lane IS NULL AND p_control IN ('pause', 'resume') THEN
        INSERT INTO inbox_consumer AS c (name, paused) VALUES (p_consumer, p_control = 'pause')
        ON CONFLICT (name) DO UPDATE SET paused = excluded.paused;
        RETURN true;
    END IF;
    INSERT INTO inbox_lane_status (consumer, lane)
    SELECT p_consumer, l.lane FROM inbox_lane AS l
    WHERE l.consumer = p_consumer AND (p_lane IS NULL OR l.lane = p_lane) ON CONFLICT DO NOTHING;
    UPDATE inbox_lane_status AS k SET
        paused = CASE p_control WHEN 'pause' THEN true WHEN 'resume' THEN false ELSE k.paused END,
        breaker_forced = CASE p_control WHEN 'open' THEN true WHEN 'close' THEN false WHEN 'free' THEN NULL
            ELSE k.breaker_forced END
    WHERE k.consumer = p_consumer AND (p_lane IS NULL OR k.lane = p_lane);
    RETURN FOUND;
END $$;
