-- Consumers that were taken away for good: who worked for them is forgotten, and what they did is not.

-- When a person said that nobody will work for it any more; null once somebody does.
ALTER TABLE inbox_consumer ADD COLUMN forgotten_at timestamptz;

-- As before, without those that were forgotten and have left nothing that people would look for: nothing waits or is dead, and nothing
-- was handled since, by whoever gives no sign of life.
CREATE OR REPLACE FUNCTION inbox_names() RETURNS SETOF text
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
    WHERE c.forgotten_at IS NULL
        OR EXISTS (SELECT 1 FROM inbox_waiting AS w WHERE w.consumer = h.n)
        OR EXISTS (SELECT 1 FROM inbox_dead AS d WHERE d.consumer = h.n AND d.fate = 'pending')
        OR EXISTS (
            SELECT 1 FROM inbox AS i
            WHERE i.consumer = h.n AND i.entered_at > c.forgotten_at AND i.entered_at < 'infinity')
$$;

-- Forgets who worked for a consumer: members, lanes, marks and what people ordered. `gone`; `alive` if somebody still does, and nothing
-- is changed; `unknown`. Heartbeats and those who take lanes share a lock that this has alone: they come before it and are seen, or
-- after it and begin anew.
CREATE FUNCTION inbox_forget(of_consumer text) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = @schema@, pg_temp
AS $$
DECLARE
    free bigint;
BEGIN
    PERFORM inbox_call(5000);
    PERFORM pg_advisory_xact_lock(lock_number('consumer/' || of_consumer));
    IF NOT EXISTS (SELECT 1 FROM inbox_names() AS n WHERE n = of_consumer) THEN
        RETURN 'unknown';
    ELSIF EXISTS (
        SELECT 1 FROM inbox_member AS m WHERE m.consumer = of_consumer AND m.until >= clock_timestamp()) THEN
        RETURN 'alive';
    END IF;
    -- In the order of those who do not share the lock: pruning has the consumer before its members, and whoever gives lanes back has
    -- their marks before them.
    PERFORM 1 FROM inbox_consumer AS c WHERE c.name = of_consumer FOR UPDATE;
    PERFORM 1 FROM inbox_mark AS k WHERE k.consumer = of_consumer ORDER BY k.lane FOR UPDATE;
    -- A handler's transaction holds the row of its lane, however long ago its member was heard of.
    SELECT count(*) INTO free FROM (
        SELECT 1 FROM inbox_lane AS l WHERE l.consumer = of_consumer FOR UPDATE SKIP LOCKED) AS f;
    IF free < (SELECT count(*) FROM inbox_lane AS l WHERE l.consumer = of_consumer) THEN
        RETURN 'alive';
    END IF;
    DELETE FROM inbox_mark AS k WHERE k.consumer = of_consumer;
    DELETE FROM inbox_lane AS l WHERE l.consumer = of_consumer;
    DELETE FROM inbox_member AS m WHERE m.consumer = of_consumer;
    INSERT INTO inbox_consumer (name, forgotten_at) VALUES (of_consumer, clock_timestamp())
    ON CONFLICT (name) DO UPDATE SET paused = false, forgotten_at = excluded.forgotten_at;
    RETURN 'gone';
END $$;

-- As before, and a consumer that was forgotten is known again.
CREATE OR REPLACE FUNCTION inbox_beat(
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
    PERFORM pg_advisory_xact_lock_shared(lock_number('consumer/' || of_consumer));
    INSERT INTO inbox_consumer (name) SELECT of_consumer
    WHERE NOT EXISTS (SELECT 1 FROM inbox_consumer AS c WHERE c.name = of_consumer) ON CONFLICT DO NOTHING;
    UPDATE inbox_consumer AS c SET forgotten_at = NULL WHERE c.name = of_consumer AND c.forgotten_at IS NOT NULL;
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

-- As before, and nobody forgets the consumer meanwhile.
CREATE OR REPLACE FUNCTION inbox_take(of_consumer text, me uuid, lanes text[], wait_ms int)
RETURNS TABLE (lane text, epoch bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = @schema@, pg_temp
AS $$
#variable_conflict use_column
BEGIN
    PERFORM inbox_call(wait_ms);
    PERFORM pg_advisory_xact_lock_shared(lock_number('consumer/' || of_consumer));
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

-- As before, with what is new here.
CREATE OR REPLACE FUNCTION grant_operator(role_name text) RETURNS void
LANGUAGE plpgsql SET search_path = @schema@, pg_temp
AS $$
BEGIN
    EXECUTE format('GRANT USAGE ON SCHEMA @schema@ TO %I', role_name);
    EXECUTE format('GRANT SELECT ON ALL TABLES IN SCHEMA @schema@ TO %I', role_name);
    EXECUTE format('GRANT EXECUTE ON FUNCTION backlog, mark_dead, inbox_consumers, inbox_show, inbox_order, '
        'inbox_forget, inbox_micros, inbox_means, inbox_mark_dead, inbox_begin_replay, inbox_feed, inbox_feed_portion, '
        'inbox_stop_replay, inbox_resume_replay, inbox_ready, inbox_replays TO %I', role_name);
END $$;

-- Whoever may order something of a consumer may forget it: operators that were granted long ago are those of today.
DO $$
DECLARE
    grantee regrole;
BEGIN
    FOR grantee IN
        SELECT DISTINCT a.grantee FROM pg_proc AS p CROSS JOIN LATERAL aclexplode(p.proacl) AS a
        WHERE p.oid = '@schema@.inbox_order'::regproc AND a.privilege_type = 'EXECUTE' AND a.grantee NOT IN (0, p.proowner)
    LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION @schema@.inbox_forget TO %s', grantee);
    END LOOP;
END $$;
