-- As `inbox_enter` for one message that is not traced, which is how most handlers take theirs. With arrays of one the settings, the
-- checks and the look at the queue cost as much as the insert itself.
CREATE FUNCTION inbox_enter_one(
    of_consumer text, of_id uuid, of_replay int, of_queue text, of_lane text, lane_epoch bigint, lane_owner uuid,
    wait_ms int, stall_ms int
) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER
AS $$
DECLARE
    waits pg_catalog.text := pg_catalog.current_setting('lock_timeout');
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
    fresh pg_catalog.bool;
BEGIN
    IF of_lane IS NOT NULL THEN
        PERFORM 1 FROM @schema@.inbox_lane AS l
        WHERE l.consumer OPERATOR(pg_catalog.=) of_consumer AND l.lane OPERATOR(pg_catalog.=) of_lane
            AND l.epoch OPERATOR(pg_catalog.=) lane_epoch AND l.owner OPERATOR(pg_catalog.=) lane_owner FOR SHARE;
        IF NOT FOUND THEN
            RETURN 'lost';
        END IF;
    END IF;
    INSERT INTO @schema@.inbox (consumer, id, replay) VALUES (of_consumer, of_id, of_replay) ON CONFLICT DO NOTHING;
    IF FOUND THEN
        -- Whether a queue waits is decided under its lock, and stays so until the transaction ends.
        PERFORM 1 FROM @schema@.inbox_queue AS q
        WHERE q.consumer OPERATOR(pg_catalog.=) of_consumer AND q.queue OPERATOR(pg_catalog.=) of_queue FOR SHARE;
        IF NOT FOUND THEN
            answer := pg_catalog.set_config('lock_timeout', waits, true);
            RETURN NULL;
        END IF;
        fresh := true;
    END IF;
    answer := @schema@.inbox_sort(
        of_consumer, ARRAY[of_id], ARRAY[of_replay], ARRAY[of_queue],
        CASE WHEN fresh THEN ARRAY[of_id] ELSE '{}' END, CASE WHEN fresh THEN ARRAY[of_replay] ELSE '{}' END, NULL);
    PERFORM pg_catalog.set_config('lock_timeout', waits, true);
    RETURN answer;
END $$;

-- As before, and entering one.
CREATE OR REPLACE FUNCTION grant_consumer(role_name text) RETURNS void
LANGUAGE plpgsql SET search_path = @schema@, pg_temp
AS $$
BEGIN
    EXECUTE format('GRANT USAGE ON SCHEMA @schema@ TO %I', role_name);
    EXECUTE format('GRANT SELECT ON migration TO %I', role_name);
    EXECUTE format('GRANT EXECUTE ON FUNCTION inbox_begin, inbox_enter, inbox_enter_one, inbox_append, inbox_skip, inbox_start, '
        'inbox_started, inbox_ended, inbox_claim, inbox_begin_claimed, inbox_set_back, inbox_due, inbox_begin_due, '
        'inbox_set_back_due, inbox_release, inbox_beat, inbox_take, inbox_give_back, inbox_prune TO %I', role_name);
END $$;

-- Whoever may enter several may enter one: consumers that run go on after this.
DO $$
DECLARE
    grantee regrole;
BEGIN
    FOR grantee IN
        SELECT DISTINCT a.grantee FROM pg_proc AS p CROSS JOIN LATERAL aclexplode(p.proacl) AS a
        WHERE p.oid = '@schema@.inbox_enter'::regproc AND a.privilege_type = 'EXECUTE' AND a.grantee NOT IN (0, p.proowner)
    LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION @schema@.inbox_enter_one TO %s', grantee);
    END LOOP;
END $$;
