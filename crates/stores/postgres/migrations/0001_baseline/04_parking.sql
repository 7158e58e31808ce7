-- Settling, and the keys and messages that could not be published: parked keys, dead letters and address holds. Parked messages are full
-- copies, so that retention does not wait for them.

CREATE TABLE parked_key (
    destination text NOT NULL REFERENCES destination ON DELETE CASCADE,
    key         text NOT NULL,
    -- A parked key belongs to a slot, not to a shard, so that resharding gives it to its new owner.
    slot        smallint NOT NULL,
    state       text NOT NULL CHECK (state IN ('retrying', 'held', 'quarantined', 'dead')),
    attempts    int NOT NULL,
    -- The next attempt of its first message; null while it waits for an operator or for its address.
    next_at     timestamptz,
    address     text,
    -- The dead letter that blocks the key, in state `dead`.
    dead_id     uuid,
    route       text NOT NULL,
    class       text NOT NULL,
    error       text NOT NULL,
    since       timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (destination, key)
);
CREATE INDEX parked_key_next_at_idx ON parked_key (destination, next_at) WHERE next_at IS NOT NULL;
CREATE INDEX parked_key_address_idx ON parked_key (destination, address, since) WHERE state = 'held';

CREATE SEQUENCE parked_seq AS bigint CACHE 1;

CREATE TABLE parked_message (
    destination  text NOT NULL,
    key          text NOT NULL,
    ordinal      bigint NOT NULL DEFAULT nextval('parked_seq'),
    seq          bigint NOT NULL,
    slot         smallint NOT NULL,
    id           uuid NOT NULL,
    created_at   timestamptz NOT NULL,
    topic        text NOT NULL,
    type         text NOT NULL,
    content_type text NOT NULL,
    headers      jsonb,
    payload      bytea NOT NULL,
    PRIMARY KEY (destination, key, ordinal),
    FOREIGN KEY (destination, key) REFERENCES parked_key ON DELETE CASCADE
);
CREATE INDEX parked_message_seq_idx ON parked_message (destination, seq);

CREATE TABLE dead_letter (
    destination  text NOT NULL REFERENCES destination ON DELETE CASCADE,
    id           uuid NOT NULL,
    seq          bigint NOT NULL,
    slot         smallint NOT NULL,
    created_at   timestamptz NOT NULL,
    topic        text NOT NULL,
    key          text NOT NULL,
    type         text NOT NULL,
    content_type text NOT NULL,
    headers      jsonb,
    payload      bytea NOT NULL,
    route        text NOT NULL,
    class        text NOT NULL,
    error        text NOT NULL,
    attempts     int NOT NULL,
    state        text NOT NULL DEFAULT 'dead'
        CHECK (state IN ('dead', 'redriving', 'discarding', 'redriven', 'discarded')),
    dead_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    redrives     int NOT NULL DEFAULT 0,
    marked_at    timestamptz,
    marked_by    text,
    reason       text,
    PRIMARY KEY (destination, id)
);
CREATE INDEX dead_letter_marked_idx ON dead_letter (destination, seq) WHERE state IN ('redriving', 'discarding');
CREATE INDEX dead_letter_seq_idx ON dead_letter (destination, seq);
-- `backlog` counts unmarked dead letters by this index, however many were redriven or discarded.
CREATE INDEX dead_letter_dead_idx ON dead_letter (destination, seq) WHERE state = 'dead';

-- When parked messages were published. Progress passed them earlier.
CREATE TABLE parked_published (
    destination  text NOT NULL REFERENCES destination ON DELETE CASCADE,
    seq          bigint NOT NULL,
    published_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (destination, seq)
);
CREATE INDEX parked_published_published_at_idx ON parked_published (published_at);

-- Addresses that accept no messages, and when one message probes them.
CREATE TABLE address_hold (
    destination text NOT NULL REFERENCES destination ON DELETE CASCADE,
    address     text NOT NULL,
    class       text NOT NULL,
    error       text NOT NULL,
    since       timestamptz NOT NULL DEFAULT clock_timestamp(),
    next_at     timestamptz NOT NULL,
    PRIMARY KEY (destination, address)
);

-- One message that was not published, as relays send it.
CREATE TYPE park_request AS (
    seq bigint, slot smallint, key text, stop text, after_ms bigint, attempts int, class text, error text, route text,
    address text
);

-- Settles batches: {"leases": [[shard, epoch, owner], …], "shards": n, "progress": [[shard, from_tick, to_tick, settled_seq], …], "parks": [park, …]}.
-- One call is one transaction and locks the leases first. For a shard whose lease is lost, nothing changes. The same holds for a shard
-- with a message that was to wait behind a head that is no longer parked.
CREATE FUNCTION settle(p_destination text, p_request jsonb) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = @schema@, pg_temp
AS $$
DECLARE
    held smallint[] := lock_held_leases(p_destination, p_request -> 'leases');
    passed bigint[] := '{}';
    n smallint := (p_request ->> 'shards')::smallint;
BEGIN
    IF jsonb_array_length(p_request -> 'parks') > 0 THEN
        IF current_setting('synchronous_commit') IN ('off', 'local') THEN
            PERFORM set_config('synchronous_commit', 'on', true);
        END IF;
        SELECT park_messages(p_destination, n, held, p_request -> 'parks') INTO passed;
        IF cardinality(passed) > 0 THEN
            SELECT coalesce(array_agg(shard), '{}') INTO held FROM unnest(held) AS shard
            WHERE NOT EXISTS (
                SELECT 1 FROM jsonb_populate_recordset(NULL::park_request, p_request -> 'parks') AS p
                WHERE p.seq = ANY (passed) AND p.slot % n = shard);
        END IF;
    ELSE
        -- A crash may lose progress: messages are then published again with the same id.
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
    INSERT INTO progress (destination, shards, shard, from_tick, to_tick, settled_seq, epoch)
    SELECT p_destination, n, (p ->> 0)::smallint, (p ->> 1)::bigint, (p ->> 2)::bigint, (p ->> 3)::bigint,
        (SELECT (l ->> 1)::bigint FROM jsonb_array_elements(p_request -> 'leases') AS l WHERE l -> 0 = p -> 0)
    FROM jsonb_array_elements(p_request -> 'progress') AS p
    WHERE (p ->> 0)::smallint = ANY (held);
    RETURN jsonb_build_object(
        'lost', coalesce((
            SELECT jsonb_agg(l -> 0) FROM jsonb_array_elements(p_request -> 'leases') AS l
            WHERE (l ->> 0)::smallint <> ALL (held)
                AND NOT EXISTS (
                    SELECT 1 FROM jsonb_populate_recordset(NULL::park_request, p_request -> 'parks') AS p
                    WHERE p.seq = ANY (passed) AND p.slot % n = (l ->> 0)::smallint)), '[]'),
        'passed', to_jsonb(passed));
END $$;

-- Parks messages that were not published. Returns the messages that were to wait behind a head that is no longer parked; nothing of
-- their shards is parked.
CREATE FUNCTION park_messages(p_destination text, p_shards smallint, p_held smallint[], p_parks jsonb) RETURNS bigint[]
LANGUAGE plpgsql SET search_path = @schema@, pg_temp
AS $$
DECLARE
    passed bigint[];
    all_parks park_request[] := ARRAY(
        SELECT p FROM jsonb_populate_recordset(NULL::park_request, p_parks) AS p WHERE p.slot % p_shards = ANY (p_held)
            ORDER BY p.seq);
    ok park_request[];
    existing text[];
BEGIN
    -- Lock order of all functions: holds by address, then parked keys by key, then new keys. New holds are inserted first too, because
    -- another transaction may wait for them.
    PERFORM hold_address(p_destination, p, false)
    FROM (SELECT DISTINCT ON (o.address) o FROM unnest(all_parks) AS o WHERE o.stop = 'held' ORDER BY o.address, o.seq) AS first(p);
    -- Locked against unparking until this transaction ends. The next statement reads the keys with a new snapshot.
    PERFORM 1 FROM parked_key AS k
    WHERE k.destination = p_destination AND k.key = ANY (ARRAY(SELECT p.key FROM unnest(all_parks) AS p))
    ORDER BY k.key FOR SHARE;
    existing := ARRAY(
        SELECT k.key FROM parked_key AS k
        WHERE k.destination = p_destination AND k.key = ANY (ARRAY(SELECT p.key FROM unnest(all_parks) AS p)));
    passed := ARRAY(
        SELECT p.seq FROM unnest(all_parks) AS p
        WHERE p.stop IS NULL AND p.key <> ALL (existing) AND NOT EXISTS (
            SELECT 1 FROM unnest(all_parks) AS head
            WHERE head.key = p.key AND head.seq < p.seq AND head.stop IS NOT NULL AND head.stop <> 'dead_continue'));
    ok := ARRAY(
        SELECT p FROM unnest(all_parks) AS p
        WHERE NOT EXISTS (
            SELECT 1 FROM unnest(all_parks) AS q WHERE q.seq = ANY (passed) AND q.slot % p_shards = p.slot % p_shards));
    INSERT INTO parked_key (destination, key, slot, state, attempts, next_at, address, dead_id, route, class, error)
    SELECT DISTINCT ON (p.key)
        p_destination, p.key, p.slot, CASE p.stop WHEN 'dead_hold' THEN 'dead' ELSE p.stop END, p.attempts,
        CASE WHEN p.stop IN ('retrying', 'quarantined') THEN after_ms(p.after_ms) END, p.address,
        CASE p.stop WHEN 'dead_hold' THEN (SELECT m.id FROM message AS m WHERE m.seq = p.seq) END,
        p.route, p.class, p.error
    FROM unnest(ok) AS p WHERE p.stop IS NOT NULL AND p.stop <> 'dead_continue' AND p.key <> ALL (existing)
    ORDER BY p.key, p.seq;
    -- A message that failed while its key was parked already goes to the end of the queue.
    INSERT INTO parked_message
        (destination, key, seq, slot, id, created_at, topic, type, content_type, headers, payload)
    SELECT p_destination, m.key, m.seq, m.slot, m.id, m.created_at, m.topic, m.type, m.content_type, m.headers, m.payload
    FROM message AS m
    WHERE m.seq = ANY (ARRAY(
        SELECT p.seq FROM unnest(ok) AS p
        WHERE p.stop IS NULL OR p.stop NOT IN ('dead_hold', 'dead_continue')
            OR (p.stop = 'dead_hold' AND p.key = ANY (existing))))
    ORDER BY m.seq;
    INSERT INTO dead_letter
        (destination, id, seq, slot, created_at, topic, key, type, content_type, headers, payload, route, class, error, attempts)
    SELECT p_destination, m.id, m.seq, m.slot, m.created_at, m.topic, m.key, m.type, m.content_type, m.headers,
        m.payload, p.route, p.class, p.error, p.attempts
    FROM unnest(ok) AS p JOIN message AS m ON m.seq = p.seq
    WHERE p.stop = 'dead_continue' OR (p.stop = 'dead_hold' AND p.key <> ALL (existing))
    ON CONFLICT (destination, id) DO UPDATE
    SET state = 'dead', class = excluded.class, error = excluded.error, dead_at = clock_timestamp();
    IF cardinality(passed) > 0 THEN
        -- Nothing is parked for these addresses now. Their holds are locked, so that no other transaction parks a key for them.
        DELETE FROM address_hold AS h
        WHERE h.destination = p_destination
            AND h.address = ANY (ARRAY(SELECT p.address FROM unnest(all_parks) AS p WHERE p.stop = 'held'))
            AND NOT EXISTS (
                SELECT 1 FROM parked_key AS k
                WHERE k.destination = p_destination AND k.address = h.address AND k.state = 'held');
    END IF;
    RETURN passed;
END $$;

-- Holds an address. Only a failed probe that was due extends the hold. Messages that arrive meanwhile were not tried, and would postpone
-- the probe forever. The row is locked in any case, so that a release sees the keys parked for it.
CREATE FUNCTION hold_address(p_destination text, p_park park_request, p_probed boolean) RETURNS void
LANGUAGE sql SET search_path = @schema@, pg_temp
AS $$
    INSERT INTO address_hold AS h (destination, address, class, error, next_at)
    VALUES (p_destination, p_park.address, p_park.class, p_park.error, after_ms(p_park.after_ms))
    ON CONFLICT (destination, address) DO UPDATE SET
        class = CASE WHEN p_probed AND h.next_at <= clock_timestamp() THEN excluded.class ELSE h.class END,
        error = CASE WHEN p_probed AND h.next_at <= clock_timestamp() THEN excluded.error ELSE h.error END,
        next_at = CASE WHEN p_probed AND h.next_at <= clock_timestamp() THEN excluded.next_at ELSE h.next_at END
$$;

-- Redrives and discards the dead letters that operators marked, for the held shards.
CREATE FUNCTION apply_marks(p_destination text, p_shards smallint, p_held smallint[]) RETURNS void
LANGUAGE plpgsql SET search_path = @schema@, pg_temp
AS $$
DECLARE
    marked_keys text[] := ARRAY(
        SELECT d.key FROM dead_letter AS d
        WHERE d.destination = p_destination AND d.state IN ('redriving', 'discarding') AND d.slot % p_shards = ANY (p_held));
    d dead_letter;
BEGIN
    IF cardinality(marked_keys) = 0 THEN
        RETURN;
    END IF;
    PERFORM 1 FROM parked_key AS k
    WHERE k.destination = p_destination AND k.key = ANY (marked_keys) ORDER BY k.key FOR UPDATE;
    -- By key, because missing keys are inserted. In descending order within a key: each message goes to the front of the queue, so that
    -- the first ends up in front.
    FOR d IN
        SELECT * FROM dead_letter
        WHERE destination = p_destination AND state IN ('redriving', 'discarding') AND slot % p_shards = ANY (p_held)
            AND key = ANY (marked_keys)
        ORDER BY key, seq DESC FOR UPDATE SKIP LOCKED
    LOOP
        IF d.state = 'redriving' THEN
            -- A key that another dead letter blocks stays blocked. This message then waits in front.
            INSERT INTO parked_key AS k (destination, key, slot, state, attempts, next_at, route, class, error)
            VALUES (p_destination, d.key, d.slot, 'retrying', 0, clock_timestamp(), d.route, d.class, d.error)
            ON CONFLICT (destination, key) DO UPDATE
            SET state = 'retrying', attempts = 0, next_at = clock_timestamp(), address = NULL, dead_id = NULL
            WHERE k.state <> 'dead' OR k.dead_id = d.id;
            INSERT INTO parked_message
                (destination, key, ordinal, seq, slot, id, created_at, topic, type, content_type, headers, payload)
            VALUES (p_destination, d.key, (
                    SELECT coalesce(min(m.ordinal), nextval('parked_seq')) - 1 FROM parked_message AS m
                    WHERE m.destination = p_destination AND m.key = d.key),
                d.seq, d.slot, d.id, d.created_at, d.topic, d.type, d.content_type, d.headers, d.payload);
            UPDATE dead_letter SET state = 'redriven', redrives = redrives + 1
            WHERE destination = p_destination AND id = d.id;
        ELSE
            UPDATE dead_letter SET state = 'discarded' WHERE destination = p_destination AND id = d.id;
            UPDATE parked_key SET state = 'retrying', attempts = 0, next_at = clock_timestamp(), dead_id = NULL
            WHERE destination = p_destination AND key = d.key AND state = 'dead' AND dead_id = d.id;
            PERFORM unpark_if_empty(p_destination, d.key);
        END IF;
    END LOOP;
END $$;

-- Deletes a parked key whose queue is empty, unless a dead letter blocks it. The caller holds its row FOR UPDATE.
CREATE FUNCTION unpark_if_empty(p_destination text, p_key text) RETURNS boolean
LANGUAGE plpgsql SET search_path = @schema@, pg_temp
AS $$
BEGIN
    DELETE FROM parked_key AS k
    WHERE k.destination = p_destination AND k.key = p_key AND k.state <> 'dead'
        AND NOT EXISTS (
            SELECT 1 FROM parked_message AS m WHERE m.destination = p_destination AND m.key = p_key);
    RETURN FOUND;
END $$;

-- Applies the operators' marks, then returns due messages of parked keys: {"leases": …, "shards": n, "keys": limit, "messages": limit per
-- key}. One message probes each held address that is due.
CREATE FUNCTION read_parked(p_destination text, p_request jsonb)
RETURNS TABLE (key text, slot smallint, attempts int, state text, address text, ordinal bigint, seq bigint, id uuid,
    created_at timestamptz, topic text, type text, content_type text, headers text, payload bytea)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = @schema@, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    held smallint[] := lock_held_leases(p_destination, p_request -> 'leases');
    n smallint := (p_request ->> 'shards')::smallint;
    now_at timestamptz;
BEGIN
    PERFORM apply_marks(p_destination, n, held);
    -- A variable, so that an index can be used. It is set after the marks, because the marked keys are due now.
    now_at := clock_timestamp();
    RETURN QUERY
        WITH ready AS (
            (SELECT k.* FROM parked_key AS k
            WHERE k.destination = p_destination AND k.next_at <= now_at AND k.slot % n = ANY (held)
            ORDER BY k.next_at LIMIT (p_request ->> 'keys')::int)
            UNION ALL
            (SELECT k.* FROM address_hold AS h CROSS JOIN LATERAL (
                SELECT * FROM parked_key AS k
                WHERE k.destination = p_destination AND k.address = h.address AND k.state = 'held'
                    AND k.slot % n = ANY (held)
                ORDER BY k.since LIMIT 1
            ) AS k
            WHERE h.destination = p_destination AND h.next_at <= now_at)
        )
        SELECT r.key, r.slot, r.attempts, r.state, r.address, m.ordinal, m.seq, m.id, m.created_at, m.topic, m.type,
            m.content_type, m.headers::text, m.payload
        FROM ready AS r CROSS JOIN LATERAL (
            SELECT * FROM parked_message AS m
            WHERE m.destination = p_destination AND m.key = r.key ORDER BY m.ordinal
            LIMIT CASE WHEN r.state IN ('held', 'quarantined') THEN 1 ELSE (p_request ->> 'messages')::int END
        ) AS m
        ORDER BY r.next_at, r.key, m.ordinal;
END $$;

-- Locks the rows that settling retries may change, in the lock order of all functions: holds by address, then parked keys by key. A new
-- hold is inserted here. The addresses of the settled keys count too, because another transaction may release them. Returns the locked
-- addresses: a hold that another transaction released meanwhile is missing.
CREATE FUNCTION lock_parked(p_destination text, p_runs jsonb) RETURNS text[]
LANGUAGE plpgsql SET search_path = @schema@, pg_temp
AS $$
DECLARE
    run_keys text[] := ARRAY(SELECT r ->> 'key' FROM jsonb_array_elements(p_runs) AS r);
    released text[] := ARRAY(SELECT r ->> 'released' FROM jsonb_array_elements(p_runs) AS r WHERE r ->> 'released' IS NOT NULL);
    locked text[] := '{}';
    a record;
BEGIN
    FOR a IN
        SELECT w.address, max(w.park::text)::jsonb AS park FROM (
            SELECT r -> 'park' ->> 'address' AS address, r -> 'park' AS park FROM jsonb_array_elements(p_runs) AS r
            WHERE r -> 'park' ->> 'stop' = 'held'
            UNION ALL
            SELECT unnest(released), NULL
            UNION ALL
            SELECT k.address, NULL FROM parked_key AS k WHERE k.destination = p_destination AND k.key = ANY (run_keys)
        ) AS w
        WHERE w.address IS NOT NULL GROUP BY w.address ORDER BY w.address
    LOOP
        IF a.park IS NOT NULL THEN
            PERFORM hold_address(p_destination, jsonb_populate_record(NULL::park_request, a.park), true);
        ELSE
            PERFORM 1 FROM address_hold AS h WHERE h.destination = p_destination AND h.address = a.address FOR UPDATE;
        END IF;
        IF FOUND THEN
            locked := locked || a.address;
        END IF;
    END LOOP;
    released := ARRAY(SELECT r FROM unnest(released) AS r WHERE r = ANY (locked));
    IF cardinality(released) = 0 THEN
        PERFORM 1 FROM parked_key AS k
        WHERE k.destination = p_destination AND k.key = ANY (run_keys) ORDER BY k.key FOR UPDATE;
    ELSE
        -- Their holds are locked: no other transaction can park a key for them after this statement.
        PERFORM 1 FROM parked_key AS k
        WHERE k.destination = p_destination
            AND (k.key = ANY (run_keys) OR (k.state = 'held' AND k.address = ANY (released)))
        ORDER BY k.key FOR UPDATE;
    END IF;
    RETURN locked;
END $$;

-- Records the results of retries: {"leases": …, "shards": n, "runs": [{"key", "shard", "delivered": [ordinal, …],
-- "ordinal": of the failed message, "park": …, "released": address}, …]}. Returns "lost", "unparked" or "waits" for each.
CREATE FUNCTION settle_parked(p_destination text, p_request jsonb) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = @schema@, pg_temp
AS $$
DECLARE
    held smallint[] := lock_held_leases(p_destination, p_request -> 'leases');
    answers jsonb := '[]';
    run jsonb;
    p park_request;
    of_key text;
    locked text[];
    dead_letter_id uuid;
    overtaken boolean;
BEGIN
    IF current_setting('synchronous_commit') IN ('off', 'local') THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    locked := lock_parked(p_destination, (
        SELECT jsonb_agg(r) FROM jsonb_array_elements(p_request -> 'runs') AS r WHERE (r ->> 'shard')::smallint = ANY (held)));
    FOR run IN SELECT r FROM jsonb_array_elements(p_request -> 'runs') AS r LOOP
        IF (run ->> 'shard')::smallint <> ALL (held) THEN
            answers := answers || '"lost"'::jsonb;
            CONTINUE;
        END IF;
        of_key := run ->> 'key';
        IF run ->> 'released' = ANY (locked) THEN
            DELETE FROM address_hold WHERE destination = p_destination AND address = run ->> 'released';
            UPDATE parked_key SET state = 'retrying', next_at = clock_timestamp(), address = NULL
            WHERE destination = p_destination AND state = 'held' AND address = run ->> 'released';
        END IF;
        WITH gone AS (
            DELETE FROM parked_message AS m
            WHERE m.destination = p_destination AND m.key = of_key
                AND m.ordinal IN (SELECT v::bigint FROM jsonb_array_elements_text(run -> 'delivered') AS v)
            RETURNING m.seq
        )
        INSERT INTO parked_published (destination, seq) SELECT p_destination, g.seq FROM gone AS g
        ON CONFLICT DO NOTHING;
        IF jsonb_typeof(run -> 'park') = 'object' THEN
            p := jsonb_populate_record(NULL::park_request, run -> 'park');
            dead_letter_id := NULL;
            IF p.stop IN ('dead_hold', 'dead_continue') THEN
                dead_letter_id := move_to_dead_letters(p_destination, of_key, (run ->> 'ordinal')::bigint, p);
            END IF;
            IF p.stop = 'held' THEN
                PERFORM hold_address(p_destination, p, true);
            END IF;
            -- A message that was redriven to the front meanwhile has its own attempts.
            overtaken := EXISTS (
                SELECT 1 FROM parked_message AS m
                WHERE m.destination = p_destination AND m.key = of_key AND m.ordinal < (run ->> 'ordinal')::bigint);
            UPDATE parked_key AS k SET
                state = CASE
                    WHEN p.stop = 'dead_hold' THEN 'dead'
                    WHEN p.stop = 'dead_continue' OR overtaken THEN 'retrying' ELSE p.stop END,
                attempts = CASE WHEN p.stop = 'dead_continue' OR overtaken THEN 0 ELSE p.attempts END,
                next_at = CASE
                    WHEN p.stop = 'dead_hold' THEN NULL
                    WHEN p.stop = 'dead_continue' OR overtaken THEN clock_timestamp()
                    WHEN p.stop IN ('retrying', 'quarantined') THEN after_ms(p.after_ms) END,
                address = CASE WHEN NOT overtaken THEN p.address END, dead_id = dead_letter_id,
                route = p.route, class = p.class, error = p.error
            WHERE k.destination = p_destination AND k.key = of_key;
        ELSIF jsonb_array_length(run -> 'delivered') > 0 THEN
            UPDATE parked_key AS k SET state = 'retrying', attempts = 0, next_at = clock_timestamp(), address = NULL
            WHERE k.destination = p_destination AND k.key = of_key;
        END IF;
        answers := answers || CASE
            WHEN unpark_if_empty(p_destination, of_key)
                OR NOT EXISTS (SELECT 1 FROM parked_key AS k WHERE k.destination = p_destination AND k.key = of_key)
            THEN '"unparked"'::jsonb ELSE '"waits"'::jsonb END;
    END LOOP;
    RETURN answers;
END $$;

-- Moves a parked message to the dead letters. A dead letter that was redriven is dead again.
CREATE FUNCTION move_to_dead_letters(p_destination text, p_key text, p_ordinal bigint, p_park park_request) RETURNS uuid
LANGUAGE plpgsql SET search_path = @schema@, pg_temp
AS $$
DECLARE
    m parked_message;
BEGIN
    DELETE FROM parked_message AS q WHERE q.destination = p_destination AND q.key = p_key AND q.ordinal = p_ordinal
    RETURNING q.* INTO m;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    INSERT INTO dead_letter AS d
        (destination, id, seq, slot, created_at, topic, key, type, content_type, headers, payload, route, class, error, attempts)
    VALUES (p_destination, m.id, m.seq, m.slot, m.created_at, m.topic, m.key, m.type, m.content_type, m.headers,
        m.payload, p_park.route, p_park.class, p_park.error, p_park.attempts)
    ON CONFLICT (destination, id) DO UPDATE
    SET state = 'dead', class = excluded.class, error = excluded.error, attempts = d.attempts + excluded.attempts,
        dead_at = clock_timestamp();
    RETURN m.id;
END $$;
