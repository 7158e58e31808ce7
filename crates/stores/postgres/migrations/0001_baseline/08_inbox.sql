-- The inbox: one row for each (consumer, message, replay), written in the handler's transaction. The insert is the check: a conflict
-- means that the message is a duplicate.

CREATE TABLE inbox (
    consumer          text NOT NULL,
    message_id        uuid NOT NULL,
    -- Zero, except for messages that are handled again on purpose.
    replay            int NOT NULL DEFAULT 0,
    -- `started`, `calling`, `waiting`, `done`, `skipped`, `dead` or `redriven`. Only functions write it: a constraint would cost a
    -- quarter of the insert.
    state             text NOT NULL DEFAULT 'done',
    -- How often handling started without ending.
    unfinished_starts int NOT NULL DEFAULT 0,
    -- The age for pruning; infinity while the message waits or is dead, so that pruning never inspects it.
    entered_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- The claim of a call to an external service, and when it expires, in state `calling`.
    claim_token       uuid,
    claim_expires_at  timestamptz,
    PRIMARY KEY (consumer, message_id, replay)
) WITH (fillfactor = 90);
-- No index has the state in it, so that changing it touches none.
CREATE INDEX inbox_entered_at_idx ON inbox (consumer, entered_at);

-- Which member may handle the messages of a lane, for consumers that keep order. A handler's transaction locks this row, so it has no
-- column that a heartbeat or an operator updates.
CREATE TABLE inbox_lane (
    consumer text NOT NULL,
    lane     text NOT NULL,
    -- Incremented with every change of owner.
    epoch    bigint NOT NULL,
    owner    uuid,
    PRIMARY KEY (consumer, lane)
);

-- A delivered message, with everything that a dead letter stores.
CREATE TYPE inbox_arrival AS (
    id uuid, replay int, queue text, header_names bytea[], header_values bytea[], payload bytea, address text, lane text,
    broker_offset numeric, attempts int
);

-- Prepares a call that is its own transaction: READ COMMITTED, a lock timeout, a durable commit.
CREATE FUNCTION inbox_begin_call(p_lock_timeout_ms int) RETURNS void
LANGUAGE plpgsql SET search_path = @schema@, pg_temp
AS $$
BEGIN
    PERFORM require_read_committed();
    PERFORM set_config('lock_timeout', p_lock_timeout_ms::text, true);
    PERFORM require_durable_commit();
END $$;

-- Sets the time limits of a handler's transaction. The lock timeout applies to the calling function only: its SET lock_timeout restores
-- the old value.
CREATE FUNCTION inbox_limit_handler(p_stall_timeout_ms int) RETURNS void
LANGUAGE plpgsql SET search_path = @schema@, pg_temp
AS $$
BEGIN
    PERFORM require_durable_commit();
    IF p_stall_timeout_ms > 0 AND current_setting('statement_timeout') = '0' THEN
        PERFORM set_config('statement_timeout', p_stall_timeout_ms::text, true);
    END IF;
    IF p_stall_timeout_ms > 0 AND current_setting('idle_in_transaction_session_timeout') = '0' THEN
        PERFORM set_config('idle_in_transaction_session_timeout', p_stall_timeout_ms::text, true);
    END IF;
END $$;

-- Locks a lane against a change of its owner until the transaction ends. Returns false if another member owns it, true without a lane.
CREATE FUNCTION inbox_lock_lane(p_consumer text, p_lane text, p_lane_epoch bigint, p_lane_owner uuid) RETURNS boolean
LANGUAGE plpgsql SET search_path = @schema@, pg_temp
AS $$
BEGIN
    IF p_lane IS NULL THEN
        RETURN true;
    END IF;
    PERFORM 1 FROM inbox_lane AS l
    WHERE l.consumer = p_consumer AND l.lane = p_lane AND l.epoch = p_lane_epoch AND l.owner = p_lane_owner FOR SHARE;
    RETURN FOUND;
END $$;

-- The new `entered_at` of a row whose state changes. A recent value is kept, so that no index changes.
CREATE FUNCTION inbox_entered_at(p_before timestamptz) RETURNS timestamptz
LANGUAGE sql VOLATILE
AS $$
    SELECT CASE WHEN p_before > clock_timestamp() - interval '1 hour' AND p_before < 'infinity' THEN p_before
        ELSE clock_timestamp() END
$$;

-- Like `inbox_insert_many` for one message, the common case. With arrays of one element the settings, the checks and the queue lookup
-- cost as much as the insert itself.
CREATE FUNCTION inbox_insert_one(
    p_consumer text, p_message_id uuid, p_replay int, p_queue text, p_lane text, p_lane_epoch bigint, p_lane_owner uuid,
    p_lock_timeout_ms int, p_stall_timeout_ms int
) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER
AS $$
DECLARE
    waits pg_catalog.text := pg_catalog.current_setting('lock_timeout');
    answer pg_catalog.text := pg_catalog.concat(
        pg_catalog.set_config('lock_timeout', p_lock_timeout_ms::pg_catalog.text, true),
        CASE WHEN p_stall_timeout_ms OPERATOR(pg_catalog.>) 0
            AND pg_catalog.current_setting('statement_timeout') OPERATOR(pg_catalog.=) '0'
            THEN pg_catalog.set_config('statement_timeout', p_stall_timeout_ms::pg_catalog.text, true) END,
        CASE WHEN p_stall_timeout_ms OPERATOR(pg_catalog.>) 0
            AND pg_catalog.current_setting('idle_in_transaction_session_timeout') OPERATOR(pg_catalog.=) '0'
            THEN pg_catalog.set_config('idle_in_transaction_session_timeout', p_stall_timeout_ms::pg_catalog.text, true) END,
        CASE WHEN pg_catalog.current_setting('synchronous_commit') OPERATOR(pg_catalog.=) ANY ('{off,local}')
            THEN pg_catalog.set_config('synchronous_commit', 'on', true) END);
    fresh pg_catalog.bool;
BEGIN
    IF p_lane IS NOT NULL THEN
        PERFORM 1 FROM @schema@.inbox_lane AS l
        WHERE l.consumer OPERATOR(pg_catalog.=) p_consumer AND l.lane OPERATOR(pg_catalog.=) p_lane
            AND l.epoch OPERATOR(pg_catalog.=) p_lane_epoch AND l.owner OPERATOR(pg_catalog.=) p_lane_owner FOR SHARE;
        IF NOT FOUND THEN
            RETURN 'lost';
        END IF;
    END IF;
    INSERT INTO @schema@.inbox (consumer, message_id, replay) VALUES (p_consumer, p_message_id, p_replay) ON CONFLICT DO NOTHING;
    IF FOUND THEN
        -- Whether a queue exists is decided under its lock, and stays so until the transaction ends.
        PERFORM 1 FROM @schema@.inbox_retry_queue AS q
        WHERE q.consumer OPERATOR(pg_catalog.=) p_consumer AND q.queue OPERATOR(pg_catalog.=) p_queue FOR SHARE;
        IF NOT FOUND THEN
            answer := pg_catalog.set_config('lock_timeout', waits, true);
            RETURN NULL;
        END IF;
        fresh := true;
    END IF;
    answer := @schema@.inbox_classify_known(
        p_consumer, ARRAY[p_message_id], ARRAY[p_replay], ARRAY[p_queue],
        CASE WHEN fresh THEN ARRAY[p_message_id] ELSE '{}' END, CASE WHEN fresh THEN ARRAY[p_replay] ELSE '{}' END);
    PERFORM pg_catalog.set_config('lock_timeout', waits, true);
    RETURN answer;
END $$;

-- Inserts messages in the handler's transaction. Returns null if all of them are new. Returns `lost` or `busy` for all of them, and the
-- transaction must be rolled back. Otherwise returns a line `id replay word` for each message that is not new: its state if it is a
-- duplicate, or `behind` if its queue is not empty. `inbox_append` then appends those to their queues in the same transaction. Every
-- (id, replay) occurs once.
--
-- It waits for locks no longer than `wait_ms`; the lock timeout of the handler's statements is unchanged. The server aborts the
-- transaction if a statement runs, or the session is idle, for `stall_ms`, because its locks block the lane. A session with limits of
-- its own keeps them. The commit must survive a crash, because an acknowledgement follows it.
--
-- As in `emit_message`, the common case has as few expressions as possible, with every name and operator qualified.
CREATE FUNCTION inbox_insert_many(
    p_consumer text, p_ids uuid[], p_replays int[], p_queues text[], p_lane text, p_lane_epoch bigint, p_lane_owner uuid,
    p_lock_timeout_ms int, p_stall_timeout_ms int
) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER
AS $$
DECLARE
    waits pg_catalog.text := pg_catalog.current_setting('lock_timeout');
    fresh_ids pg_catalog.uuid[] := p_ids;
    fresh_replays pg_catalog.int4[] := p_replays;
    answer pg_catalog.text := pg_catalog.concat(
        pg_catalog.set_config('lock_timeout', p_lock_timeout_ms::pg_catalog.text, true),
        CASE WHEN p_stall_timeout_ms OPERATOR(pg_catalog.>) 0
            AND pg_catalog.current_setting('statement_timeout') OPERATOR(pg_catalog.=) '0'
            THEN pg_catalog.set_config('statement_timeout', p_stall_timeout_ms::pg_catalog.text, true) END,
        CASE WHEN p_stall_timeout_ms OPERATOR(pg_catalog.>) 0
            AND pg_catalog.current_setting('idle_in_transaction_session_timeout') OPERATOR(pg_catalog.=) '0'
            THEN pg_catalog.set_config('idle_in_transaction_session_timeout', p_stall_timeout_ms::pg_catalog.text, true) END,
        CASE WHEN pg_catalog.current_setting('synchronous_commit') OPERATOR(pg_catalog.=) ANY ('{off,local}')
            THEN pg_catalog.set_config('synchronous_commit', 'on', true) END);
BEGIN
    IF p_lane IS NOT NULL THEN
        PERFORM 1 FROM @schema@.inbox_lane AS l
        WHERE l.consumer OPERATOR(pg_catalog.=) p_consumer AND l.lane OPERATOR(pg_catalog.=) p_lane
            AND l.epoch OPERATOR(pg_catalog.=) p_lane_epoch AND l.owner OPERATOR(pg_catalog.=) p_lane_owner FOR SHARE;
        IF NOT FOUND THEN
            RETURN 'lost';
        END IF;
    END IF;
    IF pg_catalog.cardinality(p_ids) OPERATOR(pg_catalog.=) 1 THEN
        INSERT INTO @schema@.inbox (consumer, message_id, replay) VALUES (p_consumer, p_ids[1],
            p_replays[1]) ON CONFLICT DO NOTHING;
        IF NOT FOUND THEN
            fresh_ids := '{}';
            fresh_replays := '{}';
        END IF;
    ELSE
        -- Ordered by id, so that two batches cannot deadlock.
        WITH entered AS (
            INSERT INTO @schema@.inbox AS i (consumer, message_id, replay)
            SELECT p_consumer, e.id, e.replay FROM ROWS FROM (pg_catalog.unnest(p_ids), pg_catalog.unnest(p_replays)) AS e (id,
                replay)
            ORDER BY e.id, e.replay
            ON CONFLICT DO NOTHING RETURNING i.message_id, i.replay
        )
        SELECT pg_catalog.array_agg(e.message_id), pg_catalog.array_agg(e.replay) INTO fresh_ids, fresh_replays FROM entered AS e;
    END IF;
    IF pg_catalog.cardinality(fresh_ids) OPERATOR(pg_catalog.=) pg_catalog.cardinality(p_ids) THEN
        -- Whether a queue exists is decided under its lock, and stays so until the transaction ends.
        PERFORM 1 FROM @schema@.inbox_retry_queue AS q
        WHERE q.consumer OPERATOR(pg_catalog.=) p_consumer AND q.queue OPERATOR(pg_catalog.=) ANY (p_queues) FOR SHARE;
        IF NOT FOUND THEN
            answer := pg_catalog.set_config('lock_timeout', waits, true);
            RETURN NULL;
        END IF;
    END IF;
    answer := @schema@.inbox_classify_known(p_consumer, p_ids, p_replays, p_queues, fresh_ids, fresh_replays);
    PERFORM pg_catalog.set_config('lock_timeout', waits, true);
    RETURN answer;
END $$;

-- The uncommon rest of inserting: some messages are known, or their queues are not empty. Messages in state `started`, or whose call has
-- expired, become `done` and count as new. Returns `busy` if a row that conflicted does not exist any more.
CREATE FUNCTION inbox_classify_known(
    p_consumer text, p_ids uuid[], p_replays int[], p_queues text[], p_fresh_ids uuid[], p_fresh_replays int[]
) RETURNS text
LANGUAGE plpgsql SET search_path = @schema@, pg_temp
AS $$
DECLARE
    opened_ids uuid[];
    opened_replays int[];
    known jsonb;
    behind text[];
    answers jsonb;
    now_at timestamptz := clock_timestamp();
BEGIN
    WITH was_open AS (
        SELECT i.message_id, i.replay FROM unnest(p_ids, p_replays) AS a (id, replay)
        JOIN inbox AS i ON i.consumer = p_consumer AND i.message_id = a.id AND i.replay = a.replay
        WHERE i.state = 'started' OR (i.state = 'calling' AND i.claim_expires_at < now_at)
        ORDER BY i.message_id, i.replay FOR UPDATE OF i
    ), opened AS (
        UPDATE inbox AS i SET state = 'done', claim_token = NULL, claim_expires_at = NULL,
            entered_at = inbox_entered_at(i.entered_at)
        FROM was_open AS o WHERE i.consumer = p_consumer AND i.message_id = o.message_id AND i.replay = o.replay
        RETURNING i.message_id, i.replay
    )
    SELECT array_agg(o.message_id), array_agg(o.replay) INTO opened_ids, opened_replays FROM opened AS o;
    p_fresh_ids := p_fresh_ids || opened_ids;
    p_fresh_replays := p_fresh_replays || opened_replays;
    SELECT coalesce(jsonb_object_agg(i.message_id || ' ' || i.replay, i.state), '{}') INTO known
    FROM unnest(p_ids, p_replays) AS a (id, replay)
    JOIN inbox AS i ON i.consumer = p_consumer AND i.message_id = a.id AND i.replay = a.replay
    WHERE (a.id, a.replay) NOT IN (SELECT * FROM unnest(p_fresh_ids, p_fresh_replays));
    IF (SELECT count(*) FROM jsonb_object_keys(known)) + coalesce(cardinality(p_fresh_ids), 0) < cardinality(p_ids) THEN
        RETURN 'busy';
    END IF;
    -- Whether a queue exists is decided under its lock, and stays so until the transaction ends.
    behind := ARRAY(
        SELECT q.queue FROM inbox_retry_queue AS q
        WHERE q.consumer = p_consumer AND q.queue = ANY (ARRAY(
            SELECT a.queue FROM unnest(p_ids, p_replays, p_queues) AS a (id, replay, queue)
            WHERE NOT known ? (a.id || ' ' || a.replay)))
        ORDER BY q.queue FOR SHARE);
    SELECT known || coalesce(jsonb_object_agg(a.id || ' ' || a.replay, 'behind'), '{}') INTO answers
    FROM unnest(p_ids, p_replays, p_queues) AS a (id, replay, queue)
    WHERE a.queue = ANY (behind) AND NOT known ? (a.id || ' ' || a.replay);
    UPDATE inbox AS i SET state = 'waiting', entered_at = 'infinity', unfinished_starts = 0
    FROM unnest(p_ids, p_replays) AS a (id, replay)
    WHERE i.consumer = p_consumer AND i.message_id = a.id AND i.replay = a.replay
        AND answers ->> (a.id || ' ' || a.replay) = 'behind';
    RETURN (SELECT string_agg(a.key || ' ' || a.value, E'\n') FROM jsonb_each_text(answers) AS a);
END $$;

-- For handlers in any language: inserts a message in the caller's transaction and returns whether it is new. The caller's changes and this
-- row commit together, or not at all.
CREATE FUNCTION inbox_insert(consumer text, message_id uuid, replay int DEFAULT 0, lock_timeout_ms int DEFAULT 100) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = @schema@, pg_temp
AS $$
DECLARE
    word text;
BEGIN
    IF consumer IS NULL OR message_id IS NULL OR replay IS NULL OR lock_timeout_ms IS NULL THEN
        RAISE EXCEPTION 'argument "%" is null', CASE
            WHEN consumer IS NULL THEN 'consumer' WHEN message_id IS NULL THEN 'message_id' WHEN replay IS NULL THEN 'replay'
            ELSE 'lock_timeout_ms' END USING ERRCODE = 'null_value_not_allowed';
    ELSIF consumer = '' OR octet_length(consumer) > 255 OR consumer ~ '[[:cntrl:]]' THEN
        RAISE EXCEPTION 'argument "consumer" is empty, longer than 255 bytes or has a control character'
            USING ERRCODE = 'invalid_parameter_value';
    ELSIF replay < 0 OR lock_timeout_ms < 1 THEN
        RAISE EXCEPTION 'argument "%" is too small', CASE WHEN replay < 0 THEN 'replay' ELSE 'lock_timeout_ms' END
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    word := inbox_insert_many(
        consumer, ARRAY[message_id], ARRAY[replay], '{}', NULL, NULL, NULL, lock_timeout_ms, 0);
    IF word = 'busy' OR word LIKE '% calling' THEN
        RAISE EXCEPTION 'another worker handles message %', message_id USING ERRCODE = 'lock_not_available';
    END IF;
    RETURN word IS NULL;
END $$;

-- In the handler's transaction: a message that was inserted as `done` becomes `skipped`.
CREATE FUNCTION inbox_mark_skipped(p_consumer text, p_message_id uuid, p_replay int) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = @schema@, pg_temp
AS $$
BEGIN
    UPDATE inbox AS i SET state = 'skipped'
    WHERE i.consumer = p_consumer AND i.message_id = p_message_id AND i.replay = p_replay AND i.state = 'done';
END $$;

-- Records that handling starts. Returns the number of starts that have not ended. A message that was handled or waits is unchanged.
CREATE FUNCTION inbox_record_start(p_consumer text, p_message_id uuid, p_replay int, p_lock_timeout_ms int) RETURNS int
LANGUAGE plpgsql SECURITY DEFINER SET search_path = @schema@, pg_temp
AS $$
DECLARE
    times int;
BEGIN
    PERFORM inbox_begin_call(p_lock_timeout_ms);
    INSERT INTO inbox AS i (consumer, message_id, replay, state, unfinished_starts) VALUES (p_consumer, p_message_id, p_replay,
        'started', 1)
    ON CONFLICT (consumer, message_id, replay) DO UPDATE SET unfinished_starts = i.unfinished_starts + 1 WHERE i.state = 'started'
    RETURNING i.unfinished_starts INTO times;
    IF times IS NULL THEN
        times := inbox_starts(p_consumer, p_message_id, p_replay);
    END IF;
    RETURN times;
END $$;

-- The committed number of starts that have not ended.
CREATE FUNCTION inbox_starts(p_consumer text, p_message_id uuid, p_replay int) RETURNS int
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = @schema@, pg_temp
AS $$
    SELECT coalesce(max(i.unfinished_starts), 0) FROM inbox AS i
    WHERE i.consumer = p_consumer AND i.message_id = p_message_id AND i.replay = p_replay
$$;

-- Resets the count of starts after handling failed without a result in a live process, and ends a claim with this token.
CREATE FUNCTION inbox_reset_start(p_consumer text, p_message_id uuid, p_replay int, p_token uuid,
    p_lock_timeout_ms int) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = @schema@, pg_temp
AS $$
BEGIN
    PERFORM inbox_begin_call(p_lock_timeout_ms);
    UPDATE inbox AS i SET state = 'started', unfinished_starts = 0, claim_token = NULL, claim_expires_at = NULL
    WHERE i.consumer = p_consumer AND i.message_id = p_message_id AND i.replay = p_replay
        AND CASE WHEN p_token IS NULL THEN i.state = 'started' ELSE i.state = 'calling' AND i.claim_token = p_token END;
END $$;

-- Claims a message for a call to an external service. Returns `mine` with the token, `lost`, `busy` with the remaining time of another
-- member's call, `behind` if the queue is not empty (nothing changes), or the state of a duplicate.
CREATE FUNCTION inbox_claim_call(
    p_consumer text, p_arrival inbox_arrival, p_lane text, p_lane_epoch bigint, p_lane_owner uuid, p_claim_ms bigint,
        p_lock_timeout_ms int,
    OUT word text, OUT claim uuid, OUT times int, OUT rest_ms bigint
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = @schema@, pg_temp
AS $$
DECLARE
    ends timestamptz;
BEGIN
    PERFORM inbox_begin_call(p_lock_timeout_ms);
    IF NOT inbox_lock_lane(p_consumer, p_lane, p_lane_epoch, p_lane_owner) THEN
        word := 'lost';
        RETURN;
    END IF;
    PERFORM 1 FROM inbox_retry_queue AS q WHERE q.consumer = p_consumer AND q.queue = p_arrival.queue FOR SHARE;
    IF FOUND THEN
        word := 'behind';
        RETURN;
    END IF;
    INSERT INTO inbox AS i (consumer, message_id, replay, state, unfinished_starts, claim_token, claim_expires_at)
    VALUES (p_consumer, p_arrival.id, p_arrival.replay, 'calling', 1, gen_random_uuid(), after_ms(p_claim_ms))
    ON CONFLICT (consumer, message_id, replay) DO UPDATE
    SET state = 'calling', unfinished_starts = i.unfinished_starts + 1, claim_token = excluded.claim_token,
        claim_expires_at = excluded.claim_expires_at
    WHERE i.state = 'started' OR (i.state = 'calling' AND i.claim_expires_at < clock_timestamp())
    RETURNING 'mine', i.claim_token, i.unfinished_starts INTO word, claim, times;
    IF word IS NULL THEN
        SELECT i.state, i.claim_expires_at INTO word, ends FROM inbox AS i
        WHERE i.consumer = p_consumer AND i.message_id = p_arrival.id AND i.replay = p_arrival.replay;
        IF word IS NULL OR word = 'calling' THEN
            word := 'busy';
            rest_ms := greatest(ceil(date_part('epoch', ends - clock_timestamp()) * 1000), 0);
        END IF;
    END IF;
END $$;

-- Records the result of a call in the handler's transaction. Returns false if the claim is no longer this one.
CREATE FUNCTION inbox_complete_call(
    p_consumer text, p_arrival inbox_arrival, p_lane text, p_lane_epoch bigint, p_lane_owner uuid, p_token uuid,
        p_lock_timeout_ms int,
    p_stall_timeout_ms int
) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = @schema@, pg_temp SET lock_timeout = '100ms'
AS $$
BEGIN
    PERFORM inbox_limit_handler(p_stall_timeout_ms);
    PERFORM set_config('lock_timeout', p_lock_timeout_ms::text, true);
    IF NOT inbox_lock_lane(p_consumer, p_lane, p_lane_epoch, p_lane_owner) THEN
        RETURN false;
    END IF;
    UPDATE inbox AS i SET state = 'done', claim_token = NULL, claim_expires_at = NULL, entered_at = inbox_entered_at(i.entered_at)
    WHERE i.consumer = p_consumer AND i.message_id = p_arrival.id AND i.replay = p_arrival.replay
        AND i.state = 'calling' AND i.claim_token = p_token;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    RETURN true;
END $$;
