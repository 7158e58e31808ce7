-- What operators read, and how they redrive and discard dead letters.

-- One row for each message and destination, derived from the log.
CREATE VIEW outbox AS
SELECT NULL::bigint AS seq, s.id, NULL::text AS destination, s.topic, s.key, s.type, s.created_at,
    'scheduled' AS status, 0 AS attempts, s.due_at AS next_attempt_at, NULL::text AS last_error,
    NULL::timestamptz AS published_at
FROM scheduled AS s
UNION ALL
SELECT p.seq, p.id, p.destination, p.topic, p.key, p.type, p.created_at,
    CASE WHEN p.head AND k.state <> 'dead' THEN k.state ELSE 'waiting' END,
    CASE WHEN p.head AND k.state <> 'dead' THEN k.attempts ELSE 0 END,
    CASE WHEN p.head THEN coalesce(k.next_at, (
        SELECT h.next_at FROM address_hold AS h WHERE h.destination = k.destination AND h.address = k.address)) END,
    CASE WHEN p.head THEN k.error END,
    NULL
FROM parked_key AS k CROSS JOIN LATERAL (
    SELECT m.*, m.ordinal = min(m.ordinal) OVER () AS head FROM parked_message AS m
    WHERE m.destination = k.destination AND m.key = k.key
) AS p
UNION ALL
SELECT d.seq, d.id, d.destination, d.topic, d.key, d.type, d.created_at,
    CASE d.state WHEN 'discarded' THEN 'discarded' ELSE 'dead' END, d.attempts, NULL, d.error, NULL
FROM dead_letter AS d WHERE d.state <> 'redriven'
UNION ALL
SELECT m.seq, m.id, d.name, m.topic, m.key, m.type, m.created_at,
    CASE WHEN settled.is THEN 'published' ELSE 'pending' END, 0, NULL, NULL,
    CASE WHEN settled.is THEN coalesce((
        SELECT l.published_at FROM parked_published AS l WHERE l.destination = d.name AND l.seq = m.seq
    ), (
        SELECT p.settled_at FROM progress AS p
        JOIN tick AS f ON f.tick = p.from_tick JOIN tick AS t ON t.tick = p.to_tick
        WHERE p.destination = d.name AND m.slot % p.shards = p.shard AND p.settled_at >= m.created_at
            AND (pg_visible_in_snapshot(m.xid, f.snapshot)
                OR (m.seq <= p.settled_seq AND pg_visible_in_snapshot(m.xid, t.snapshot)))
        ORDER BY p.settled_at LIMIT 1)) END
FROM message AS m CROSS JOIN destination AS d
CROSS JOIN LATERAL (
    SELECT p.* FROM progress AS p
    WHERE p.destination = d.name AND p.shards = d.shards AND p.shard = m.slot % d.shards
    ORDER BY p.progress_id DESC LIMIT 1
) AS now
JOIN tick AS f ON f.tick = now.from_tick
JOIN tick AS t ON t.tick = now.to_tick
CROSS JOIN LATERAL (
    SELECT pg_visible_in_snapshot(m.xid, f.snapshot)
        OR (m.seq <= now.settled_seq AND pg_visible_in_snapshot(m.xid, t.snapshot)) AS is
) AS settled
WHERE NOT EXISTS (SELECT 1 FROM parked_message AS p WHERE p.destination = d.name AND p.seq = m.seq)
    AND NOT EXISTS (
        SELECT 1 FROM dead_letter AS x WHERE x.destination = d.name AND x.seq = m.seq AND x.state <> 'redriven');

-- Unsettled messages: an exact count up to `exact_max`, an estimate above. It is called every few seconds and costs the same whatever the
-- tables hold: messages settled in the middle of a window are skipped by index too. Below a shard's position only transactions that
-- were open at one of its ticks remain.
CREATE FUNCTION backlog(destination text, exact_max int DEFAULT 10000,
    OUT pending bigint, OUT exact boolean, OUT parked bigint, OUT dead bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = @schema@, pg_temp
AS $$
DECLARE
    n smallint := (SELECT d.shards FROM destination AS d WHERE d.name = backlog.destination);
    g record;
    part bigint;
BEGIN
    IF n IS NULL THEN
        RAISE EXCEPTION 'destination "%" is not known', backlog.destination
            USING ERRCODE = 'RV005', HINT = 'Add it with `relevo destination add`.';
    END IF;
    pending := 0;
    exact := true;
    FOR g IN
        SELECT array_agg(s.shard) AS shards, s.settled_seq, f.snapshot AS f, t.snapshot AS t, greatest(f.max_seq,
            s.settled_seq) AS start,
            ARRAY(SELECT DISTINCT unnest(f.late_xids || t.late_xids)) AS late_xids
        FROM shard_positions(backlog.destination) AS s
        JOIN tick AS f ON f.tick = s.from_tick JOIN tick AS t ON t.tick = s.to_tick
        GROUP BY s.settled_seq, f.tick, t.tick
    LOOP
        SELECT count(*) INTO part FROM (
            (SELECT 1 FROM message AS m
            WHERE m.seq > g.start AND CASE WHEN m.slot % n = ANY (g.shards) AND NOT pg_visible_in_snapshot(m.xid, g.f)
                THEN true END
            ORDER BY m.seq LIMIT exact_max + 1 - pending)
            UNION ALL
            (SELECT 1 FROM unnest(g.late_xids) AS x CROSS JOIN LATERAL (
                SELECT 1 FROM message AS m
                WHERE (m.xid, m.seq) > (x, 0) AND (m.xid, m.seq) <= (x, g.start)
                    AND CASE WHEN m.slot % n = ANY (g.shards) AND NOT pg_visible_in_snapshot(m.xid, g.f)
                        AND NOT (m.seq <= g.settled_seq AND pg_visible_in_snapshot(m.xid, g.t)) THEN true END
                ORDER BY m.xid, m.seq LIMIT exact_max + 1 - pending) AS m)
            LIMIT exact_max + 1 - pending
        ) AS counted;
        pending := pending + part;
        IF pending > exact_max THEN
            exact := false;
            SELECT sum(q.last_value - greatest(f.max_seq, s.settled_seq)) / n INTO pending
            FROM shard_positions(backlog.destination) AS s JOIN tick AS f ON f.tick = s.from_tick CROSS JOIN message_seq AS q;
            EXIT;
        END IF;
    END LOOP;
    SELECT count(*) INTO parked FROM (
        SELECT 1 FROM parked_message AS m WHERE m.destination = backlog.destination ORDER BY m.seq LIMIT exact_max) AS counted;
    SELECT count(*) INTO dead FROM (
        SELECT 1 FROM dead_letter AS d WHERE d.destination = backlog.destination AND d.state = 'dead'
        ORDER BY d.seq LIMIT exact_max) AS counted;
END $$;

-- Marks dead letters. Only letters in state `dead` are marked: a repeated call marks nothing. `p_filter` is {"ids": [uuid, …], "key": …,
-- "topic": …, "type": …, "route": …, "class": …, "error": part of the error, "since": …, "until": …}, each optional. "since" and "until"
-- compare with the time of dead-lettering.
CREATE FUNCTION mark_dead_letters(
    p_destination text, p_state text, p_filter jsonb, p_requested_by text, p_reason text, p_dry_run boolean
) RETURNS bigint
LANGUAGE plpgsql SET search_path = @schema@, pg_temp
AS $$
DECLARE
    marked bigint;
    ids uuid[];
BEGIN
    IF coalesce(p_requested_by, '') = '' OR coalesce(p_reason, '') = '' THEN
        RAISE EXCEPTION 'arguments "requested_by" and "reason" are required' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF jsonb_typeof(p_filter -> 'ids') = 'array' AND jsonb_array_length(p_filter -> 'ids') > 0 THEN
        ids := ARRAY(SELECT i::uuid FROM jsonb_array_elements_text(p_filter -> 'ids') AS i);
    END IF;
    WITH wanted AS (
        SELECT d.id FROM dead_letter AS d
        WHERE d.destination = p_destination AND d.state = 'dead'
            AND (ids IS NULL OR d.id = ANY (ids))
            AND (p_filter ->> 'key' IS NULL OR d.key = p_filter ->> 'key')
            AND (p_filter ->> 'topic' IS NULL OR d.topic = p_filter ->> 'topic')
            AND (p_filter ->> 'type' IS NULL OR d.type = p_filter ->> 'type')
            AND (p_filter ->> 'route' IS NULL OR d.route = p_filter ->> 'route')
            AND (p_filter ->> 'class' IS NULL OR d.class = p_filter ->> 'class')
            AND (p_filter ->> 'error' IS NULL OR strpos(lower(d.error), lower(p_filter ->> 'error')) > 0)
            AND (p_filter ->> 'since' IS NULL OR d.dead_at >= (p_filter ->> 'since')::timestamptz)
            AND (p_filter ->> 'until' IS NULL OR d.dead_at < (p_filter ->> 'until')::timestamptz)
            AND (coalesce(p_filter -> 'states', 'null') IN ('null', '[]') OR p_filter -> 'states' ? d.state)
    ), changed AS (
        UPDATE dead_letter AS d
        SET state = p_state, marked_at = clock_timestamp(), marked_by = p_requested_by, reason = p_reason
        FROM wanted AS w
        WHERE NOT p_dry_run AND d.destination = p_destination AND d.id = w.id AND d.state = 'dead'
        RETURNING 1
    )
    SELECT CASE WHEN p_dry_run THEN (SELECT count(*) FROM wanted) ELSE (SELECT count(*) FROM changed) END INTO marked;
    RETURN marked;
END $$;

-- Marks dead letters as `redriving`: the relay that leases their shard publishes them again. Returns their number; a dry run only counts.
CREATE FUNCTION redrive(destination text, filter jsonb, requested_by text, reason text,
    dry_run boolean DEFAULT false) RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = @schema@, pg_temp
AS $$ SELECT mark_dead_letters(destination, 'redriving', filter, requested_by, reason, dry_run) $$;

-- Marks dead letters as `discarding`: the relay that leases their shard discards them, and their keys continue without them.
CREATE FUNCTION discard(destination text, filter jsonb, requested_by text, reason text,
    dry_run boolean DEFAULT false) RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = @schema@, pg_temp
AS $$ SELECT mark_dead_letters(destination, 'discarding', filter, requested_by, reason, dry_run) $$;
