-- Retry queues and dead letters of consumers. A transaction that appends to a queue holds the queue's row FOR SHARE. A transaction that
-- empties a queue holds the row FOR UPDATE and checks again in a later statement (rule C3).

-- A retry queue: the messages of a key, or a single message.
CREATE TABLE inbox_retry_queue (
    consumer         text NOT NULL,
    -- A message key for a consumer that keeps order, a message id for one that does not.
    queue            text NOT NULL,
    -- The next attempt of its first message; null while it waits for an operator.
    next_at          timestamptz,
    -- The claim of the member that works on it, and when it expires.
    claim_token      uuid,
    claim_expires_at timestamptz,
    -- A dead letter blocks it.
    blocked          boolean NOT NULL DEFAULT false,
    PRIMARY KEY (consumer, queue)
) WITH (fillfactor = 80);
CREATE INDEX inbox_retry_queue_next_at_idx ON inbox_retry_queue (consumer, next_at) WHERE next_at IS NOT NULL;

CREATE SEQUENCE inbox_seq AS bigint CACHE 1;

CREATE TABLE inbox_retry_message (
    consumer          text NOT NULL,
    queue             text NOT NULL,
    ordinal           bigint NOT NULL DEFAULT nextval('inbox_seq'),
    id                uuid NOT NULL,
    replay            int NOT NULL,
    -- As received: names in UTF-8, with one value each, in order.
    header_names      bytea[] NOT NULL,
    header_values     bytea[] NOT NULL,
    payload           bytea NOT NULL,
    address           text NOT NULL,
    lane              text NOT NULL,
    broker_offset     numeric(20),
    attempts          int NOT NULL DEFAULT 0,
    -- How often handling started without ending.
    unfinished_starts int NOT NULL DEFAULT 0,
    -- An operator redrove it.
    redriven          boolean NOT NULL DEFAULT false,
    class             text NOT NULL DEFAULT '',
    error             text NOT NULL DEFAULT '',
    arrived_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- The replay's cursor before this message was fed; null for any other message.
    fed_cursor        text,
    -- Earliest time of the next attempt: it failed, or was redriven at a rate. Null before the first attempt.
    not_before        timestamptz,
    PRIMARY KEY (consumer, queue, ordinal)
);
CREATE INDEX inbox_retry_message_replay_idx ON inbox_retry_message (consumer, replay) WHERE replay > 0;

CREATE TABLE inbox_dead_letter (
    consumer      text NOT NULL,
    id            uuid NOT NULL,
    replay        int NOT NULL,
    queue         text NOT NULL,
    -- Its position in its queue. A redrive restores it.
    ordinal       bigint NOT NULL,
    header_names  bytea[] NOT NULL,
    header_values bytea[] NOT NULL,
    payload       bytea NOT NULL,
    address       text NOT NULL,
    lane          text NOT NULL,
    broker_offset numeric(20),
    class         text NOT NULL,
    error         text NOT NULL,
    backtrace     text,
    attempts      int NOT NULL,
    arrived_at    timestamptz NOT NULL,
    dead_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    redrives      int NOT NULL DEFAULT 0,
    state         text NOT NULL DEFAULT 'dead' CHECK (state IN ('dead', 'redriven', 'discarded')),
    -- It blocks its queue until an operator acts.
    blocks_queue  boolean NOT NULL DEFAULT false,
    reason        text,
    marked_by     text,
    marked_at     timestamptz,
    PRIMARY KEY (consumer, id, replay)
);
CREATE INDEX inbox_dead_letter_dead_idx ON inbox_dead_letter (consumer, ordinal) WHERE state = 'dead';
CREATE INDEX inbox_dead_letter_blocks_queue_idx ON inbox_dead_letter (consumer, queue, ordinal) WHERE blocks_queue;
CREATE INDEX inbox_dead_letter_marked_at_idx ON inbox_dead_letter (consumer, marked_at) WHERE state <> 'dead';
CREATE INDEX inbox_dead_letter_dead_at_idx ON inbox_dead_letter (dead_at, ordinal);
-- Dead letters of a replay are counted whenever it is fed.
CREATE INDEX inbox_dead_letter_replay_idx ON inbox_dead_letter (consumer, replay) WHERE replay > 0;

-- Creates a queue and returns true. If the queue exists, locks its row FOR SHARE and returns false.
CREATE FUNCTION inbox_ensure_queue(p_consumer text, p_queue text, p_next_at timestamptz) RETURNS boolean
LANGUAGE plpgsql SET search_path = @schema@, pg_temp
AS $$
BEGIN
    LOOP
        INSERT INTO inbox_retry_queue (consumer, queue, next_at) VALUES (p_consumer, p_queue, p_next_at) ON CONFLICT DO NOTHING;
        IF FOUND THEN
            RETURN true;
        END IF;
        PERFORM 1 FROM inbox_retry_queue AS q WHERE q.consumer = p_consumer AND q.queue = p_queue FOR SHARE;
        IF FOUND THEN
            RETURN false;
        END IF;
    END LOOP;
END $$;

-- Appends messages to their queues, whose rows this transaction holds FOR SHARE.
CREATE FUNCTION inbox_append(p_consumer text, p_arrivals inbox_arrival[]) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = @schema@, pg_temp
AS $$
    INSERT INTO inbox_retry_message
        (consumer, queue, id, replay, header_names, header_values, payload, address, lane, broker_offset, attempts)
    SELECT p_consumer, a.queue, a.id, a.replay, a.header_names, a.header_values, a.payload, a.address, a.lane, a.broker_offset,
        a.attempts
    FROM unnest(p_arrivals) WITH ORDINALITY AS a ORDER BY a.ordinality
$$;

-- When an unclaimed, unblocked queue is due: when its first message is.
CREATE FUNCTION inbox_queue_due_at(p_consumer text, p_queue text) RETURNS timestamptz
LANGUAGE sql VOLATILE SET search_path = @schema@, pg_temp
AS $$
    SELECT greatest(clock_timestamp(), (
        SELECT w.not_before FROM inbox_retry_message AS w
        WHERE w.consumer = p_consumer AND w.queue = p_queue ORDER BY w.ordinal LIMIT 1))
$$;

-- Moves a queued message to the dead letters. A letter that was redriven before is dead again.
CREATE FUNCTION inbox_move_to_dead_letters(
    p_consumer text, p_queue text, p_ordinal bigint, p_attempts int, p_class text, p_error text, p_backtrace text,
        p_blocks_queue boolean
) RETURNS void
LANGUAGE plpgsql SET search_path = @schema@, pg_temp
AS $$
DECLARE
    w inbox_retry_message;
BEGIN
    DELETE FROM inbox_retry_message AS q WHERE q.consumer = p_consumer AND q.queue = p_queue AND q.ordinal = p_ordinal
    RETURNING q.* INTO STRICT w;
    INSERT INTO inbox_dead_letter AS d
        (consumer, id, replay, queue, ordinal, header_names, header_values, payload, address, lane, broker_offset, class, error,
        backtrace, attempts, arrived_at, blocks_queue)
    VALUES (w.consumer, w.id, w.replay, w.queue, w.ordinal, w.header_names, w.header_values, w.payload, w.address, w.lane,
        w.broker_offset, p_class, p_error, p_backtrace, p_attempts,
        w.arrived_at, p_blocks_queue)
    ON CONFLICT (consumer, id, replay) DO UPDATE
    SET state = 'dead', class = excluded.class, error = excluded.error, backtrace = excluded.backtrace,
        attempts = excluded.attempts, dead_at = excluded.dead_at, blocks_queue = excluded.blocks_queue;
    UPDATE inbox AS i SET state = 'dead', entered_at = 'infinity'
    WHERE i.consumer = w.consumer AND i.message_id = w.id AND i.replay = w.replay;
END $$;

-- Stores a message that was not handled: at the end of its retry queue, or as a dead letter. Returns `kept`, `lost`, `busy` while another
-- member's call may still run, or the state of a message that was handled or waits already. An expired call counts as a start only: the
-- process that made it crashed. The pause belongs to the message, whatever is queued before it meanwhile. `wait` defers a message that
-- was not tried: earlier starts still count.
CREATE FUNCTION inbox_fail(
    p_consumer text, p_arrival inbox_arrival, p_lane text, p_lane_epoch bigint, p_lane_owner uuid, p_token uuid, p_stop text,
    p_pause_ms bigint, p_attempts int, p_class text, p_error text, p_backtrace text, p_lock_timeout_ms int
) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = @schema@, pg_temp
AS $$
DECLARE
    word text;
    arrived timestamptz;
    begun int;
    again timestamptz := after_ms(p_pause_ms);
    of_no bigint;
BEGIN
    PERFORM inbox_begin_call(p_lock_timeout_ms);
    IF NOT inbox_lock_lane(p_consumer, p_lane, p_lane_epoch, p_lane_owner) THEN
        RETURN 'lost';
    END IF;
    SELECT i.entered_at, i.unfinished_starts INTO arrived, begun FROM inbox AS i
    WHERE i.consumer = p_consumer AND i.message_id = p_arrival.id AND i.replay = p_arrival.replay AND i.state IN ('started',
        'calling');
    IF p_token IS NULL THEN
        INSERT INTO inbox AS i (consumer, message_id, replay, state, entered_at)
        VALUES (p_consumer, p_arrival.id, p_arrival.replay, 'waiting', 'infinity')
        ON CONFLICT (consumer, message_id, replay) DO UPDATE
        SET state = 'waiting', entered_at = 'infinity', unfinished_starts = 0, claim_token = NULL, claim_expires_at = NULL
        WHERE i.state = 'started' OR (i.state = 'calling' AND i.claim_expires_at < clock_timestamp());
    ELSE
        UPDATE inbox AS i SET state = 'waiting', entered_at = 'infinity', unfinished_starts = 0, claim_token = NULL,
            claim_expires_at = NULL
        WHERE i.consumer = p_consumer AND i.message_id = p_arrival.id AND i.replay = p_arrival.replay
        AND i.state = 'calling' AND i.claim_token = p_token;
    END IF;
    IF NOT FOUND THEN
        SELECT i.state INTO word FROM inbox AS i
        WHERE i.consumer = p_consumer AND i.message_id = p_arrival.id AND i.replay = p_arrival.replay;
        IF word IS NULL OR word IN ('started', 'calling') THEN
            RETURN CASE WHEN p_token IS NULL THEN 'busy' ELSE 'lost' END;
        END IF;
        RETURN word;
    END IF;
    IF p_stop <> 'dead_continue' THEN
        PERFORM inbox_ensure_queue(p_consumer, p_arrival.queue, again);
    END IF;
    INSERT INTO inbox_retry_message AS w
        (consumer, queue, id, replay, header_names, header_values, payload, address, lane, broker_offset, attempts,
        unfinished_starts, class, error, arrived_at, not_before)
    VALUES (p_consumer, p_arrival.queue, p_arrival.id, p_arrival.replay, p_arrival.header_names, p_arrival.header_values,
        p_arrival.payload, p_arrival.address, p_arrival.lane, p_arrival.broker_offset,
        p_attempts, CASE p_stop WHEN 'wait' THEN greatest(coalesce(begun, 0) - 1, 0) ELSE 0 END,
        p_class, p_error, coalesce(arrived, clock_timestamp()), again)
    RETURNING w.ordinal INTO of_no;
    IF p_stop NOT IN ('retry', 'wait') THEN
        PERFORM inbox_move_to_dead_letters(p_consumer, p_arrival.queue, of_no, p_attempts, p_class, p_error, p_backtrace,
            p_stop = 'dead_hold');
    END IF;
    IF p_stop = 'dead_hold' THEN
        UPDATE inbox_retry_queue AS q SET next_at = NULL, blocked = true WHERE q.consumer = p_consumer
            AND q.queue = p_arrival.queue;
    END IF;
    RETURN 'kept';
END $$;

-- Stores a message of a claimed queue that failed again. Returns `kept` or `lost`. `wait` defers a message that was not tried: the start
-- is not counted, the queue is delayed, the last error is kept.
CREATE FUNCTION inbox_fail_queued(
    p_consumer text, p_queue text, p_token uuid, p_ordinal bigint, p_stop text, p_pause_ms bigint, p_attempts int, p_class text,
    p_error text, p_backtrace text, p_lock_timeout_ms int
) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = @schema@, pg_temp
AS $$
DECLARE
    waits boolean := p_stop IN ('retry', 'wait');
    again timestamptz := after_ms(p_pause_ms);
    w inbox_retry_message;
BEGIN
    PERFORM inbox_begin_call(p_lock_timeout_ms);
    PERFORM 1 FROM inbox_retry_queue AS q
    WHERE q.consumer = p_consumer AND q.queue = p_queue AND q.claim_token = p_token FOR UPDATE;
    IF NOT FOUND THEN
        RETURN 'lost';
    END IF;
    UPDATE inbox_retry_message AS u SET attempts = p_attempts,
        class = CASE WHEN p_stop = 'wait' AND u.class <> '' THEN u.class ELSE p_class END,
        error = CASE WHEN p_stop = 'wait' AND u.class <> '' THEN u.error ELSE p_error END,
            unfinished_starts = CASE p_stop WHEN 'wait' THEN greatest(u.unfinished_starts - 1, 0) ELSE 0 END,
        not_before = CASE p_stop WHEN 'wait' THEN u.not_before ELSE again END
    WHERE u.consumer = p_consumer AND u.queue = p_queue AND u.ordinal = p_ordinal AND NOT EXISTS (
        SELECT 1 FROM inbox_retry_message AS f WHERE f.consumer = p_consumer AND f.queue = p_queue AND f.ordinal < p_ordinal)
    RETURNING u.* INTO w;
    IF w.ordinal IS NULL THEN
        RETURN 'lost';
    ELSIF NOT waits THEN
        PERFORM inbox_move_to_dead_letters(p_consumer, p_queue, p_ordinal, p_attempts, p_class, p_error, p_backtrace,
            p_stop = 'dead_hold');
    END IF;
    IF p_stop <> 'dead_continue' THEN
        UPDATE inbox_retry_queue AS q SET claim_token = NULL, claim_expires_at = NULL, blocked = q.blocked OR p_stop = 'dead_hold',
            next_at = CASE WHEN waits AND NOT q.blocked THEN again END
        WHERE q.consumer = p_consumer AND q.queue = p_queue;
    END IF;
    RETURN 'kept';
END $$;

-- Claims due queues, longest due first, and returns the first messages of each, up to the first message that is not due. Returns a row
-- without a message for an empty queue, which only has to be released.
-- Sessions are long-lived and plan while tables are small: these settings leave the planner only indexes.
CREATE FUNCTION inbox_claim_due_queues(p_consumer text, p_queue_limit int, p_message_limit int, p_claim_ms bigint)
RETURNS TABLE (queue text, claim_token uuid, attempts int, unfinished_starts int, ordinal bigint, id uuid, replay int,
    header_names bytea[], header_values bytea[], payload bytea, address text, lane text, broker_offset text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = @schema@, pg_temp
    SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    mine text[];
    -- A variable, which an index can be searched for. The function could return another time for each row.
    at timestamptz := clock_timestamp();
BEGIN
    PERFORM require_read_committed();
    WITH ready AS (
        SELECT q.queue FROM inbox_retry_queue AS q
        WHERE q.consumer = p_consumer AND q.next_at <= at AND (q.claim_expires_at IS NULL OR q.claim_expires_at < at)
        ORDER BY q.next_at LIMIT p_queue_limit FOR UPDATE SKIP LOCKED
    ), claimed AS (
        UPDATE inbox_retry_queue AS q SET claim_token = gen_random_uuid(), claim_expires_at = after_ms(p_claim_ms)
        FROM ready AS r WHERE q.consumer = p_consumer AND q.queue = r.queue
        RETURNING q.queue, q.next_at
    )
    SELECT array_agg(c.queue ORDER BY c.next_at, c.queue) INTO mine FROM claimed AS c;
    IF mine IS NULL THEN
        RETURN;
    END IF;
    -- Later statements see what the previous holder of a queue appended.
    UPDATE inbox_retry_message AS w SET unfinished_starts = w.unfinished_starts + 1
    FROM unnest(mine) AS m (queue) CROSS JOIN LATERAL (
        SELECT f.ordinal FROM inbox_retry_message AS f WHERE f.consumer = p_consumer AND f.queue = m.queue
            ORDER BY f.ordinal LIMIT 1
    ) AS first
    WHERE w.consumer = p_consumer AND w.queue = m.queue AND w.ordinal = first.ordinal
        AND (w.not_before IS NULL OR w.not_before <= at);
    RETURN QUERY
        SELECT q.queue, q.claim_token, w.attempts, w.unfinished_starts, w.ordinal, w.id, w.replay, w.header_names, w.header_values,
            w.payload, w.address, w.lane, w.broker_offset::text
        FROM unnest(mine) WITH ORDINALITY AS m (queue, n)
        JOIN inbox_retry_queue AS q ON q.consumer = p_consumer AND q.queue = m.queue
        LEFT JOIN LATERAL (
            SELECT * FROM (
                SELECT l.*, bool_or(l.not_before > at) OVER (ORDER BY l.ordinal) AS is_early FROM (
                    SELECT * FROM inbox_retry_message AS f
                    WHERE f.consumer = p_consumer AND f.queue = m.queue ORDER BY f.ordinal LIMIT p_message_limit
                ) AS l
            ) AS r WHERE r.is_early IS NOT TRUE
        ) AS w ON true
        ORDER BY m.n, w.ordinal;
END $$;

-- Deletes the first message of a claimed queue in the handler's transaction and records it as done. Returns false if the claim expired or
-- belongs to another member, or if another message is first.
CREATE FUNCTION inbox_complete_queued(
    p_consumer text, p_queue text, p_token uuid, p_ordinal bigint, p_lock_timeout_ms int, p_stall_timeout_ms int
) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = @schema@, pg_temp SET lock_timeout = '100ms'
AS $$
DECLARE
    w inbox_retry_message;
BEGIN
    PERFORM inbox_limit_handler(p_stall_timeout_ms);
    PERFORM set_config('lock_timeout', p_lock_timeout_ms::text, true);
    PERFORM 1 FROM inbox_retry_queue AS q
    WHERE q.consumer = p_consumer AND q.queue = p_queue AND q.claim_token = p_token AND q.claim_expires_at >= clock_timestamp()
    FOR SHARE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    DELETE FROM inbox_retry_message AS d
    WHERE d.consumer = p_consumer AND d.queue = p_queue AND d.ordinal = p_ordinal AND NOT EXISTS (
        SELECT 1 FROM inbox_retry_message AS f WHERE f.consumer = p_consumer AND f.queue = p_queue AND f.ordinal < p_ordinal)
    RETURNING d.* INTO w;
    IF w.ordinal IS NULL THEN
        RETURN false;
    END IF;
    UPDATE inbox AS i SET state = 'done', entered_at = clock_timestamp()
    WHERE i.consumer = p_consumer AND i.message_id = w.id AND i.replay = w.replay AND i.state IN ('waiting', 'redriven');
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    RETURN true;
END $$;

-- Deletes an empty queue that no dead letter blocks. The caller holds its row FOR UPDATE since an earlier statement.
CREATE FUNCTION inbox_delete_empty_queue(p_consumer text, p_queue text) RETURNS boolean
LANGUAGE plpgsql SET search_path = @schema@, pg_temp
AS $$
BEGIN
    DELETE FROM inbox_retry_queue AS q
    WHERE q.consumer = p_consumer AND q.queue = p_queue AND NOT q.blocked AND NOT EXISTS (
        SELECT 1 FROM inbox_retry_message AS w WHERE w.consumer = p_consumer AND w.queue = p_queue);
    RETURN FOUND;
END $$;

-- Ends a claim. An empty queue is deleted; any other is due when its first message is.
CREATE FUNCTION inbox_release_queue(p_consumer text, p_queue text, p_token uuid, p_lock_timeout_ms int) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = @schema@, pg_temp
AS $$
BEGIN
    PERFORM inbox_begin_call(p_lock_timeout_ms);
    PERFORM 1 FROM inbox_retry_queue AS q
    WHERE q.consumer = p_consumer AND q.queue = p_queue AND q.claim_token = p_token FOR UPDATE;
    IF FOUND AND NOT inbox_delete_empty_queue(p_consumer, p_queue) THEN
        UPDATE inbox_retry_queue AS q SET claim_token = NULL, claim_expires_at = NULL,
            next_at = CASE WHEN NOT q.blocked THEN inbox_queue_due_at(p_consumer, p_queue) END
        WHERE q.consumer = p_consumer AND q.queue = p_queue;
        -- The member released it in good order: its starts do not count.
        UPDATE inbox_retry_message AS w SET unfinished_starts = 0
        WHERE w.consumer = p_consumer AND w.queue = p_queue AND w.unfinished_starts > 0;
    END IF;
END $$;

-- Whether a filter matches a dead letter: {"consumer", "ids", "key", "class", "error", "states", "since", "until"}, each optional. The key
-- is the name of the queue.
CREATE FUNCTION inbox_dead_letter_matches(p_filter jsonb, p_letter inbox_dead_letter) RETURNS boolean
LANGUAGE sql STABLE
AS $$
    SELECT (p_filter ->> 'consumer' IS NULL OR p_letter.consumer = p_filter ->> 'consumer')
        AND (coalesce(p_filter -> 'ids', 'null') IN ('null', '[]') OR p_filter -> 'ids' ? p_letter.id::text)
        AND (p_filter ->> 'key' IS NULL OR p_letter.queue = p_filter ->> 'key')
        AND (p_filter ->> 'class' IS NULL OR p_letter.class = p_filter ->> 'class')
        AND (p_filter ->> 'error' IS NULL OR strpos(lower(p_letter.error), lower(p_filter ->> 'error')) > 0)
        AND (coalesce(p_filter -> 'states', 'null') IN ('null', '[]') OR p_filter -> 'states' ? p_letter.state)
        AND (p_filter ->> 'since' IS NULL OR p_letter.dead_at >= (p_filter ->> 'since')::timestamptz)
        AND (p_filter ->> 'until' IS NULL OR p_letter.dead_at < (p_filter ->> 'until')::timestamptz)
$$;

-- Moves a dead letter back to its place in its queue, before everything that arrived after it; it is not due before `at`. A member that
-- works on the queue keeps its claim: it finds another message first and releases the queue. Until then no other member repeats its call
-- to an external service.
CREATE FUNCTION inbox_redrive_one(p_letter inbox_dead_letter, p_at timestamptz) RETURNS void
LANGUAGE plpgsql SET search_path = @schema@, pg_temp
AS $$
BEGIN
    PERFORM inbox_ensure_queue(p_letter.consumer, p_letter.queue, p_at);
    PERFORM 1 FROM inbox_retry_queue AS q WHERE q.consumer = p_letter.consumer AND q.queue = p_letter.queue FOR UPDATE;
    INSERT INTO inbox_retry_message
        (consumer, queue, ordinal, id, replay, header_names, header_values, payload, address, lane, broker_offset, redriven,
        class, error, arrived_at, not_before)
    VALUES (p_letter.consumer, p_letter.queue, p_letter.ordinal, p_letter.id, p_letter.replay, p_letter.header_names,
        p_letter.header_values, p_letter.payload, p_letter.address, p_letter.lane,
        p_letter.broker_offset, true, p_letter.class, p_letter.error, p_letter.arrived_at, p_at);
    UPDATE inbox AS i SET state = 'redriven', unfinished_starts = 0
    WHERE i.consumer = p_letter.consumer AND i.message_id = p_letter.id AND i.replay = p_letter.replay AND i.state = 'dead';
    IF NOT inbox_unblock_queue(p_letter) THEN
        RETURN;
    END IF;
    -- If it is not the head, the queue is unchanged.
    UPDATE inbox_retry_queue AS q SET next_at = p_at
    WHERE q.consumer = p_letter.consumer AND q.queue = p_letter.queue AND NOT EXISTS (
        SELECT 1 FROM inbox_retry_message AS w WHERE w.consumer = p_letter.consumer AND w.queue = p_letter.queue
            AND w.ordinal < p_letter.ordinal);
END $$;

-- Unblocks a queue after this dead letter, unless another one blocks it; returns whether it did. The queue is due when its first message
-- is. The caller holds its row FOR UPDATE.
CREATE FUNCTION inbox_unblock_queue(p_letter inbox_dead_letter) RETURNS boolean
LANGUAGE plpgsql SET search_path = @schema@, pg_temp
AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM inbox_dead_letter AS o WHERE o.consumer = p_letter.consumer AND o.queue = p_letter.queue
        AND o.blocks_queue) THEN
        RETURN false;
    END IF;
    UPDATE inbox_retry_queue AS q SET next_at = inbox_queue_due_at(q.consumer, q.queue), blocked = false
    WHERE q.consumer = p_letter.consumer AND q.queue = p_letter.queue AND q.blocked;
    RETURN true;
END $$;

-- Moves the matching dead letters back to their queues and returns their number; a dry run only counts. With `per_second` they are due at
-- that rate. A letter in another state when its row is locked is unchanged, so that two concurrent calls act once.
CREATE FUNCTION inbox_redrive(
    filter jsonb, requested_by text, reason text, dry_run boolean DEFAULT false, per_second int DEFAULT NULL
) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = @schema@, pg_temp
AS $$
DECLARE
    d inbox_dead_letter;
    now_at timestamptz := clock_timestamp();
    pause interval := CASE WHEN per_second > 0 THEN interval '1 second' / per_second ELSE interval '0' END;
    redriven bigint := 0;
BEGIN
    IF dry_run THEN
        RETURN (SELECT count(*) FROM inbox_dead_letter AS o WHERE o.state = 'dead' AND inbox_dead_letter_matches(filter, o));
    END IF;
    PERFORM require_read_committed();
    PERFORM require_durable_commit();
    FOR d IN
        SELECT * FROM inbox_dead_letter AS o WHERE o.state = 'dead' AND inbox_dead_letter_matches(filter, o)
        ORDER BY o.ordinal FOR UPDATE
    LOOP
        UPDATE inbox_dead_letter AS o
        SET state = 'redriven', blocks_queue = false, redrives = o.redrives + 1, reason = inbox_redrive.reason,
            marked_by = requested_by, marked_at = clock_timestamp()
        WHERE o.consumer = d.consumer AND o.id = d.id AND o.replay = d.replay;
        PERFORM inbox_redrive_one(d, now_at + redriven * pause);
        redriven := redriven + 1;
    END LOOP;
    RETURN redriven;
END $$;

-- Discards the matching dead letters and returns their number; a dry run only counts. A queue that one of them blocked continues.
CREATE FUNCTION inbox_discard(filter jsonb, requested_by text, reason text, dry_run boolean DEFAULT false) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = @schema@, pg_temp
AS $$
DECLARE
    d inbox_dead_letter;
    discarded bigint := 0;
BEGIN
    IF dry_run THEN
        RETURN (SELECT count(*) FROM inbox_dead_letter AS o WHERE o.state = 'dead' AND inbox_dead_letter_matches(filter, o));
    END IF;
    PERFORM require_read_committed();
    PERFORM require_durable_commit();
    FOR d IN
        SELECT * FROM inbox_dead_letter AS o WHERE o.state = 'dead' AND inbox_dead_letter_matches(filter, o)
        ORDER BY o.ordinal FOR UPDATE
    LOOP
        UPDATE inbox_dead_letter AS o
        SET state = 'discarded', blocks_queue = false, reason = inbox_discard.reason, marked_by = requested_by,
            marked_at = clock_timestamp()
        WHERE o.consumer = d.consumer AND o.id = d.id AND o.replay = d.replay;
        IF d.blocks_queue THEN
            PERFORM 1 FROM inbox_retry_queue AS q WHERE q.consumer = d.consumer AND q.queue = d.queue FOR UPDATE;
            IF inbox_unblock_queue(d) THEN
                PERFORM inbox_delete_empty_queue(d.consumer, d.queue);
            END IF;
        END IF;
        discarded := discarded + 1;
    END LOOP;
    RETURN discarded;
END $$;
