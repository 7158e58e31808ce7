-- Destinations, the relays that lease their shards, and the progress of each shard.

CREATE TABLE destination (
    name         text PRIMARY KEY CHECK (name <> ''),
    shards       smallint NOT NULL CHECK (shards BETWEEN 1 AND 256),
    enabled      boolean NOT NULL DEFAULT true,
    -- While the destination is resharded: the requested number of shards, and the tick that all shards must reach.
    reshard_to   smallint CHECK (reshard_to BETWEEN 1 AND 256),
    reshard_tick bigint
);

CREATE TABLE lease (
    destination text NOT NULL REFERENCES destination ON DELETE CASCADE,
    shard       smallint NOT NULL,
    -- Incremented with every change of owner. Resharding never decreases it.
    epoch       bigint NOT NULL,
    owner       uuid,
    expires_at  timestamptz NOT NULL DEFAULT '-infinity',
    -- The timeline on which the lease was acquired: a lease does not outlive a failover, not even behind a pooler.
    timeline    int NOT NULL DEFAULT 0,
    PRIMARY KEY (destination, shard)
);

-- The live relays. Shards are shared evenly among them.
CREATE TABLE relay (
    destination text NOT NULL REFERENCES destination ON DELETE CASCADE,
    owner       uuid NOT NULL,
    name        text NOT NULL,
    expires_at  timestamptz NOT NULL,
    PRIMARY KEY (destination, owner)
);

-- Insert-only: one row for each settled batch. The newest row counts; the history shows when a message was published.
CREATE TABLE progress (
    progress_id bigint GENERATED ALWAYS AS IDENTITY (CACHE 1),
    destination text NOT NULL REFERENCES destination ON DELETE CASCADE,
    shards      smallint NOT NULL,
    shard       smallint NOT NULL,
    from_tick   bigint NOT NULL,
    to_tick     bigint NOT NULL,
    settled_seq bigint NOT NULL,
    epoch       bigint NOT NULL,
    settled_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- The newest row of a shard is read backwards from its end.
    PRIMARY KEY (destination, shards, shard, progress_id)
);
CREATE INDEX progress_settled_at_idx ON progress (settled_at);

-- The current position of each shard of a destination.
CREATE FUNCTION shard_positions(p_destination text)
RETURNS TABLE (shard smallint, from_tick bigint, to_tick bigint, settled_seq bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = @schema@, pg_temp
AS $$
    SELECT l.shard, p.from_tick, p.to_tick, p.settled_seq
    FROM destination AS d
    JOIN lease AS l ON l.destination = d.name
    CROSS JOIN LATERAL (
        SELECT * FROM progress AS p
        WHERE p.destination = d.name AND p.shards = d.shards AND p.shard = l.shard ORDER BY p.progress_id DESC LIMIT 1
    ) AS p
    WHERE d.name = p_destination
$$;

-- Adds a destination that starts with new messages, or with the oldest retained one. Takes the lock of retention. Returns false and
-- changes nothing if the destination exists.
CREATE FUNCTION add_destination(name text, shards int DEFAULT 8, start_at text DEFAULT 'now') RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = @schema@, pg_temp
AS $$
DECLARE
    start_tick bigint := 0;
BEGIN
    IF start_at IS NULL OR start_at NOT IN ('now', 'oldest') THEN
        RAISE EXCEPTION 'argument "start_at" is %, not "now" or "oldest"', quote_nullable(start_at)
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM pg_advisory_xact_lock(advisory_lock_key('retention'));
    IF start_at = 'now' THEN
        SELECT t.tick INTO start_tick FROM make_tick() AS t;
    END IF;
    INSERT INTO destination (name, shards) VALUES (add_destination.name, add_destination.shards)
    ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    INSERT INTO lease (destination, shard, epoch)
    SELECT add_destination.name, s, 0 FROM generate_series(0, add_destination.shards - 1) AS s;
    INSERT INTO progress (destination, shards, shard, from_tick, to_tick, settled_seq, epoch)
    SELECT add_destination.name, add_destination.shards, s, start_tick, start_tick, 0, 0
    FROM generate_series(0, add_destination.shards - 1) AS s;
    RETURN true;
END $$;

-- Deletes a destination with its progress, parked messages and dead letters. Retention no longer waits for it.
CREATE FUNCTION remove_destination(name text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = @schema@, pg_temp
AS $$
BEGIN
    DELETE FROM destination AS d WHERE d.name = remove_destination.name;
    RETURN FOUND;
END $$;

-- Enables a destination. Relays publish to it again.
CREATE FUNCTION enable_destination(name text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = @schema@, pg_temp
AS $$
BEGIN
    UPDATE destination AS d SET enabled = true WHERE d.name = enable_destination.name;
    RETURN FOUND;
END $$;

-- Disables a destination: its relays stop, and retention keeps its messages. A physical clone cannot be distinguished from its original:
-- disable the destinations of the clone.
CREATE FUNCTION disable_destination(name text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = @schema@, pg_temp
AS $$
BEGIN
    UPDATE destination AS d SET enabled = false WHERE d.name = disable_destination.name;
    RETURN FOUND;
END $$;

-- Requests a different number of shards. Relays finish their windows, meet at one tick, and the last one changes the shards.
CREATE FUNCTION reshard_destination(name text, shards int) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = @schema@, pg_temp
AS $$
BEGIN
    IF shards IS NULL OR shards NOT BETWEEN 1 AND 256 THEN
        RAISE EXCEPTION 'argument "shards" is %, not a number from 1 to 256', coalesce(shards::text, 'null')
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    UPDATE destination AS d SET reshard_to = reshard_destination.shards, reshard_tick = NULL
        WHERE d.name = reshard_destination.name;
    RETURN FOUND;
END $$;

-- Performs the next step of a requested change, if every shard is ready for it.
CREATE FUNCTION reshard_step(p_destination text) RETURNS void
LANGUAGE plpgsql SET search_path = @schema@, pg_temp
AS $$
DECLARE
    d destination;
    epoch_max bigint;
BEGIN
    SELECT * INTO d FROM destination WHERE name = p_destination FOR UPDATE SKIP LOCKED;
    IF d.reshard_to IS NULL THEN
        RETURN;
    ELSIF d.reshard_tick IS NULL THEN
        IF NOT EXISTS (SELECT 1 FROM shard_positions(p_destination) AS s WHERE s.from_tick <> s.to_tick) THEN
            UPDATE destination SET reshard_tick = (SELECT max(s.to_tick) FROM shard_positions(p_destination) AS s)
            WHERE name = p_destination;
        END IF;
        RETURN;
    ELSIF EXISTS (SELECT 1 FROM shard_positions(p_destination) AS s WHERE s.to_tick > d.reshard_tick) THEN
        -- An owner that had not seen the request went further: that tick is the new target.
        UPDATE destination SET reshard_tick = (SELECT max(s.to_tick) FROM shard_positions(p_destination) AS s)
        WHERE name = p_destination;
        RETURN;
    ELSIF EXISTS (
        SELECT 1 FROM shard_positions(p_destination) AS s
        WHERE s.from_tick <> s.to_tick OR s.to_tick <> d.reshard_tick
    ) THEN
        RETURN;
    END IF;
    -- From here on no relay can settle. A later statement reads the positions again.
    PERFORM 1 FROM lease WHERE destination = p_destination ORDER BY shard FOR UPDATE;
    IF EXISTS (
        SELECT 1 FROM shard_positions(p_destination) AS s
        WHERE s.from_tick <> s.to_tick OR s.to_tick <> d.reshard_tick
    ) THEN
        RETURN;
    END IF;
    SELECT max(epoch) INTO epoch_max FROM lease WHERE destination = p_destination;
    DELETE FROM lease WHERE destination = p_destination;
    INSERT INTO lease (destination, shard, epoch)
    SELECT p_destination, s, epoch_max + 1 FROM generate_series(0, d.reshard_to - 1) AS s;
    INSERT INTO progress (destination, shards, shard, from_tick, to_tick, settled_seq, epoch)
    SELECT p_destination, d.reshard_to, s, d.reshard_tick, d.reshard_tick, 0, epoch_max + 1
    FROM generate_series(0, d.reshard_to - 1) AS s;
    UPDATE destination SET shards = reshard_to, reshard_to = NULL, reshard_tick = NULL WHERE name = p_destination;
END $$;

-- Releases, renews and acquires leases in one transaction: {"owner", "name", "lease_ms", "release": [[shard, epoch], …]}. Acquiring a
-- shard increments its epoch. Locks are on shards, never on messages.
CREATE FUNCTION acquire_leases(p_destination text, p_request jsonb) RETURNS jsonb
LANGUAGE plpgsql SECURITY DEFINER SET search_path = @schema@, pg_temp
AS $$
DECLARE
    d destination;
    me uuid := (p_request ->> 'owner')::uuid;
    lasts interval := make_interval(secs => (p_request ->> 'lease_ms')::int / 1000.0);
    line int;
    changed boolean;
    live int;
    fair int;
    held int;
    now_at timestamptz;
    answer jsonb;
BEGIN
    PERFORM check_database_identity();
    line := current_timeline(); -- Not before: a standby has none.
    SELECT * INTO d FROM destination WHERE name = p_destination;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'destination "%" is not known', p_destination
            USING ERRCODE = 'RV005', HINT = 'Add it with `relevo destination add`.';
    ELSIF NOT d.enabled THEN
        RAISE EXCEPTION 'destination "%" is disabled', p_destination
            USING ERRCODE = 'RV005', HINT = format('Enable it with `relevo destination enable %s`.', p_destination);
    END IF;
    -- A relay that hangs here must not block the rows forever.
    PERFORM set_config('idle_in_transaction_session_timeout', (greatest((p_request ->> 'lease_ms')::int / 2, 1))::text, true);
    -- Relays call this often, so that free shards are acquired at once. Rows are written only after a third of their time.
    now_at := clock_timestamp();
    INSERT INTO relay AS m (destination, owner, name, expires_at)
    VALUES (p_destination, me, p_request ->> 'name', clock_timestamp() + lasts)
    ON CONFLICT (destination, owner) DO UPDATE SET expires_at = excluded.expires_at
    WHERE m.expires_at < now_at + lasts * 2 / 3;
    DELETE FROM relay WHERE (destination, owner) IN (
        SELECT m.destination, m.owner FROM relay AS m
        WHERE m.destination = p_destination AND m.expires_at < now_at FOR UPDATE SKIP LOCKED);
    UPDATE lease AS l SET owner = NULL, expires_at = '-infinity'
    FROM jsonb_array_elements(p_request -> 'release') AS g
    WHERE l.destination = p_destination AND l.shard = (g ->> 0)::smallint AND l.epoch = (g ->> 1)::bigint
        AND l.owner = me;
    IF d.reshard_to IS NOT NULL THEN
        PERFORM reshard_step(p_destination);
        SELECT * INTO d FROM destination WHERE name = p_destination;
    END IF;
    now_at := clock_timestamp();
    SELECT count(*) INTO live FROM relay WHERE destination = p_destination AND expires_at >= now_at;
    fair := ceil(d.shards::numeric / greatest(live, 1));
    changed := EXISTS (
        SELECT 1 FROM lease WHERE destination = p_destination AND timeline NOT IN (0, line));
    -- A lease from another timeline is not renewed. It is acquired again, with a new epoch.
    UPDATE lease AS l SET owner = NULL, expires_at = '-infinity'
    WHERE l.destination = p_destination AND l.owner = me AND l.timeline <> line;
    UPDATE lease AS l SET expires_at = clock_timestamp() + lasts
    FROM (
        SELECT m.shard FROM lease AS m
        WHERE m.destination = p_destination AND m.owner = me AND m.expires_at < now_at + lasts * 2 / 3
        ORDER BY m.shard FOR UPDATE
    ) AS mine
    WHERE l.destination = p_destination AND l.shard = mine.shard;
    SELECT count(*) INTO held FROM lease WHERE destination = p_destination AND owner = me;
    UPDATE lease AS l SET epoch = l.epoch + 1, owner = me, expires_at = clock_timestamp() + lasts, timeline = line
    FROM (
        SELECT f.shard FROM lease AS f
        WHERE f.destination = p_destination AND (f.owner IS NULL OR f.expires_at < now_at)
        ORDER BY f.shard LIMIT greatest(fair - held, 0) FOR UPDATE SKIP LOCKED
    ) AS free
    WHERE l.destination = p_destination AND l.shard = free.shard;
    SELECT jsonb_build_object(
        'shards', d.shards,
        'fair', fair,
        'timeline', line,
        'timeline_changed', changed,
        'reshard', d.reshard_to IS NOT NULL,
        'reshard_tick', d.reshard_tick,
        'lasts_ms', (
            SELECT floor(date_part('epoch', min(l.expires_at) - clock_timestamp()) * 1000)
            FROM lease AS l WHERE l.destination = p_destination AND l.owner = me),
        'leases', coalesce((
            SELECT jsonb_agg(jsonb_build_array(l.shard, l.epoch) ORDER BY l.shard)
            FROM lease AS l WHERE l.destination = p_destination AND l.owner = me), '[]'),
        'holds', coalesce((
            SELECT jsonb_agg(jsonb_build_array(h.address, h.error) ORDER BY h.address)
            FROM address_hold AS h WHERE h.destination = p_destination), '[]')
    ) INTO answer;
    RETURN answer;
END $$;

-- Releases all leases of a relay that stops.
CREATE FUNCTION release_leases(p_destination text, p_owner uuid) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = @schema@, pg_temp
AS $$
BEGIN
    UPDATE lease SET owner = NULL, expires_at = '-infinity' WHERE destination = p_destination AND owner = p_owner;
    DELETE FROM relay WHERE destination = p_destination AND owner = p_owner;
END $$;

-- Locks the leases in [[shard, epoch, owner], …] against takeover until the transaction ends, and returns the shards that are still
-- held. FOR SHARE conflicts with a takeover in both directions.
CREATE FUNCTION lock_held_leases(p_destination text, p_leases jsonb) RETURNS smallint[]
LANGUAGE plpgsql SET search_path = @schema@, pg_temp
AS $$
DECLARE
    held smallint[];
BEGIN
    PERFORM set_config('idle_in_transaction_session_timeout', '5000', true);
    SELECT coalesce(array_agg(locked.shard), '{}') INTO held FROM (
        SELECT l.shard FROM lease AS l
        JOIN jsonb_array_elements(p_leases) AS w
            ON l.shard = (w ->> 0)::smallint AND l.epoch = (w ->> 1)::bigint AND l.owner = (w ->> 2)::uuid
        WHERE l.destination = p_destination AND l.timeline = current_timeline()
        ORDER BY l.shard FOR SHARE OF l
    ) AS locked;
    RETURN held;
END $$;
