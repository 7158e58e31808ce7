-- The log: an insert-only table of messages, and the functions that applications call to emit messages into it.

-- CACHE 1: a session that caches values would emit messages out of order.
CREATE SEQUENCE message_seq AS bigint CACHE 1;

CREATE TABLE message (
    seq          bigint      NOT NULL,
    -- The top-level transaction, as a snapshot lists it; the system column xmin would be a savepoint's.
    xid          xid8        NOT NULL,
    slot         smallint    NOT NULL,
    id           uuid        NOT NULL,
    created_at   timestamptz NOT NULL,
    topic        text        NOT NULL,
    key          text        NOT NULL,
    type         text        NOT NULL,
    content_type text        NOT NULL,
    headers      jsonb,
    payload      bytea       NOT NULL,
    -- Also the replica identity: without one, retention could not delete rows while a publication exists.
    PRIMARY KEY (seq)
) PARTITION BY RANGE (seq);
CREATE INDEX message_xid_idx ON message (xid, seq);
-- Default partition. It receives rows that have no partition yet, so `emit` works when no relay has run for months.
CREATE TABLE message_overflow PARTITION OF message DEFAULT;
CREATE TABLE message_1 PARTITION OF message FOR VALUES FROM (1) TO (1000001);

-- Ids that callers passed. A partitioned table has no unique constraint on them. Generated ids have no row here.
CREATE TABLE dedup_id (
    id         uuid PRIMARY KEY,
    claimed_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX dedup_id_claimed_at_idx ON dedup_id (claimed_at);

-- Messages with a later `deliver_at`. They enter the log when they are due.
CREATE TABLE scheduled (
    id           uuid PRIMARY KEY,
    ordinal      bigint GENERATED ALWAYS AS IDENTITY,
    due_at       timestamptz NOT NULL,
    slot         smallint    NOT NULL,
    created_at   timestamptz NOT NULL,
    topic        text        NOT NULL,
    key          text        NOT NULL,
    type         text        NOT NULL,
    content_type text        NOT NULL,
    headers      jsonb,
    payload      bytea       NOT NULL
);
CREATE INDEX scheduled_due_at_idx ON scheduled (due_at, ordinal);

-- One element of `emit_many`.
CREATE TYPE draft AS (
    topic text, key text, type text, payload bytea, content_type text, headers jsonb, id uuid, deliver_at timestamptz,
    lock_key boolean, on_duplicate text
);

-- The key of an advisory lock of this schema.
CREATE FUNCTION advisory_lock_key(p_name text) RETURNS bigint
LANGUAGE sql STABLE SET search_path = @schema@, pg_temp
AS $$ SELECT hashtextextended('relevo/' || '@schema@' || '/' || p_name, 0) $$;

-- What is wrong with headers, or null.
CREATE FUNCTION headers_error(p_headers jsonb) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = @schema@, pg_temp
AS $$
DECLARE
    bytes bigint;
BEGIN
    IF jsonb_typeof(p_headers) <> 'object'
        OR EXISTS (SELECT 1 FROM jsonb_each(p_headers) WHERE jsonb_typeof(value) <> 'string') THEN
        RETURN 'is not an object of strings';
    END IF;
    SELECT sum(octet_length(key) + octet_length(value)) INTO bytes FROM jsonb_each_text(p_headers);
    IF p_headers ? '' THEN
        RETURN 'has an empty name';
    ELSIF bytes > 65536 THEN
        RETURN format('is %s bytes, more than 65536', bytes);
    ELSIF EXISTS (
        SELECT 1 FROM jsonb_each_text(p_headers)
        WHERE key ~ '[[:cntrl:]]' OR replace(value, E'\t', '') ~ '[[:cntrl:]]'
    ) THEN
        RETURN 'has a control character';
    END IF;
    RETURN NULL;
END $$;

-- Raises an error that names the invalid argument, if there is one.
CREATE FUNCTION check_draft(
    p_topic text, p_key text, p_type text, p_payload bytea, p_content_type text, p_headers jsonb, p_deliver_at timestamptz,
    p_lock_key boolean, p_on_duplicate text, p_path text
) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = @schema@, pg_temp
AS $$
DECLARE
    name text;
    value text;
    most int;
BEGIN
    FOR name, value, most IN
        VALUES ('topic', p_topic, 255), ('key', p_key, 512), ('type', p_type, 255), ('content_type', p_content_type, 255)
    LOOP
        IF value IS NULL THEN
            RAISE EXCEPTION 'argument "%" is null', p_path || name USING ERRCODE = 'null_value_not_allowed';
        ELSIF value = '' THEN
            RAISE EXCEPTION 'argument "%" is empty', p_path || name USING ERRCODE = 'invalid_parameter_value';
        ELSIF value ~ '[[:cntrl:]]' THEN
            RAISE EXCEPTION 'argument "%" has a control character', p_path || name
                USING ERRCODE = 'invalid_parameter_value';
        ELSIF octet_length(value) > most THEN
            RAISE EXCEPTION 'argument "%" is % bytes, more than %', p_path || name, octet_length(value), most
                USING ERRCODE = 'invalid_parameter_value';
        END IF;
    END LOOP;
    IF p_payload IS NULL THEN
        RAISE EXCEPTION 'argument "%" is null', p_path || 'payload' USING ERRCODE = 'null_value_not_allowed';
    ELSIF octet_length(p_payload) > 16777216 THEN
        RAISE EXCEPTION 'argument "%" is % bytes, more than 16777216', p_path || 'payload', octet_length(p_payload)
            USING ERRCODE = 'invalid_parameter_value';
    ELSIF headers_error(p_headers) IS NOT NULL THEN
        RAISE EXCEPTION 'argument "%" %', p_path || 'headers', headers_error(p_headers)
            USING ERRCODE = 'invalid_parameter_value';
    ELSIF NOT isfinite(p_deliver_at) OR p_deliver_at > clock_timestamp() + interval '10 years' THEN
        RAISE EXCEPTION 'argument "%" is % (at most ten years ahead)', p_path || 'deliver_at', p_deliver_at
            USING ERRCODE = 'invalid_parameter_value';
    ELSIF p_lock_key IS NULL THEN
        RAISE EXCEPTION 'argument "%" is null', p_path || 'lock_key' USING ERRCODE = 'null_value_not_allowed';
    ELSIF p_on_duplicate IS NULL OR p_on_duplicate NOT IN ('error', 'ignore') THEN
        RAISE EXCEPTION 'argument "%" is %, not "error" or "ignore"', p_path || 'on_duplicate', quote_nullable(p_on_duplicate)
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
END $$;

-- Records a caller's id. Returns false for a duplicate that may be ignored.
CREATE FUNCTION claim_id(p_id uuid, p_on_duplicate text) RETURNS boolean
LANGUAGE plpgsql SET search_path = @schema@, pg_temp
AS $$
BEGIN
    INSERT INTO dedup_id (id) VALUES (p_id) ON CONFLICT DO NOTHING;
    IF FOUND THEN
        RETURN true;
    ELSIF p_on_duplicate = 'ignore' THEN
        RETURN false;
    END IF;
    RAISE EXCEPTION 'message id % was emitted before', p_id
        USING ERRCODE = 'unique_violation', HINT = 'Pass on_duplicate => ''ignore'' to make a repeat do nothing.';
END $$;

-- A version 7 UUID: milliseconds, then random bits. The cast accepts text without hyphens; most of it comes from a random UUID.
-- The planner inlines this function and the next one, also in `emit_message`, which sets no search path: every name in them is qualified.
CREATE FUNCTION new_id() RETURNS uuid
LANGUAGE sql VOLATILE
AS $$
    SELECT ('0' OPERATOR(pg_catalog.||) pg_catalog.to_hex(pg_catalog.floor(
            pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.*) 1000)::pg_catalog.int8)
        OPERATOR(pg_catalog.||) '7' OPERATOR(pg_catalog.||)
        pg_catalog.substr(pg_catalog.gen_random_uuid()::pg_catalog.text, 16))::pg_catalog.uuid
$$;

-- The slot of a key: the first byte of its SHA-256. It never changes, because rows store it.
CREATE FUNCTION slot_of(p_key text) RETURNS smallint
LANGUAGE sql STABLE
AS $$ SELECT pg_catalog.get_byte(pg_catalog.sha256(pg_catalog.convert_to(p_key, 'UTF8')), 0)::pg_catalog.int2 $$;

-- Inserts a checked message into the log, or into `scheduled`. `nextval` alone assigns no transaction id, and a tick in between must see
-- this transaction as open: an earlier statement assigns the id.
CREATE FUNCTION insert_message(
    p_topic text, p_key text, p_type text, p_payload bytea, p_content_type text, p_headers jsonb, p_id uuid,
        p_deliver_at timestamptz
) RETURNS uuid
LANGUAGE plpgsql SET search_path = @schema@, pg_temp
AS $$
DECLARE
    xid_now xid8;
BEGIN
    p_id := coalesce(p_id, new_id());
    IF p_deliver_at > clock_timestamp() THEN
        INSERT INTO scheduled (id, due_at, slot, created_at, topic, key, type, content_type, headers, payload)
        VALUES (p_id, p_deliver_at, slot_of(p_key), clock_timestamp(), p_topic, p_key, p_type, p_content_type, p_headers,
            p_payload);
        RETURN p_id;
    END IF;
    xid_now := pg_current_xact_id();
    INSERT INTO message (seq, xid, slot, id, created_at, topic, key, type, content_type, headers, payload)
    VALUES (nextval('message_seq'), xid_now, slot_of(p_key), p_id, clock_timestamp(), p_topic, p_key, p_type, p_content_type,
        p_headers, p_payload);
    RETURN p_id;
END $$;

-- Checks and inserts one message. The order of the statements preserves the order of a key: the key's lock, the caller's id, the
-- transaction id, the sequence number. Each statement has a new snapshot, and a number drawn before a wait would be too old.
CREATE FUNCTION emit_message_checked(
    p_topic text, p_key text, p_type text, p_payload bytea, p_content_type text, p_headers jsonb, p_id uuid,
        p_deliver_at timestamptz,
    p_lock_key boolean, p_on_duplicate text
) RETURNS uuid
LANGUAGE plpgsql SET search_path = @schema@, pg_temp
AS $$
BEGIN
    PERFORM check_draft(p_topic, p_key, p_type, p_payload, p_content_type, p_headers, p_deliver_at, p_lock_key, p_on_duplicate, '');
    IF p_lock_key THEN
        PERFORM pg_advisory_xact_lock(advisory_lock_key('key/' || p_key));
    END IF;
    IF p_id IS NOT NULL AND NOT claim_id(p_id, p_on_duplicate) THEN
        RETURN p_id;
    END IF;
    RETURN insert_message(p_topic, p_key, p_type, p_payload, p_content_type, p_headers, p_id, p_deliver_at);
END $$;

-- The common case in as few expressions as possible, because each expression is prepared again in every transaction: short printable
-- text and no options. SET search_path would cost as much as all of them together, so every name and operator is qualified instead: a
-- caller's objects cannot replace them.
CREATE FUNCTION emit_message(
    p_topic text, p_key text, p_type text, p_payload bytea, p_content_type text, p_headers jsonb, p_id uuid,
        p_deliver_at timestamptz,
    p_lock_key boolean, p_on_duplicate text
) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER
AS $$
DECLARE
    words pg_catalog.text := p_topic OPERATOR(pg_catalog.||) p_key OPERATOR(pg_catalog.||) p_type
        OPERATOR(pg_catalog.||) p_content_type;
    xid_now pg_catalog.xid8;
BEGIN
    IF p_headers IS NULL AND p_id IS NULL AND p_deliver_at IS NULL AND NOT p_lock_key
        AND p_on_duplicate OPERATOR(pg_catalog.=) 'error' AND p_topic OPERATOR(pg_catalog.<>) ''
        AND p_key OPERATOR(pg_catalog.<>) '' AND p_type OPERATOR(pg_catalog.<>) ''
        AND p_content_type OPERATOR(pg_catalog.<>) '' AND pg_catalog.octet_length(words) OPERATOR(pg_catalog.<) 256
        AND words OPERATOR(pg_catalog.!~) '[^ -~]'
        AND pg_catalog.octet_length(p_payload) OPERATOR(pg_catalog.<=) 16777216
    THEN
        xid_now := pg_catalog.pg_current_xact_id();
        INSERT INTO @schema@.message AS m (seq, xid, slot, id, created_at, topic, key, type, content_type, payload)
        VALUES (pg_catalog.nextval('@schema@.message_seq'), xid_now, @schema@.slot_of(p_key), @schema@.new_id(),
            pg_catalog.clock_timestamp(), p_topic, p_key, p_type, p_content_type, p_payload)
        RETURNING m.id INTO p_id;
        RETURN p_id;
    END IF;
    RETURN @schema@.emit_message_checked(p_topic, p_key, p_type, p_payload, p_content_type, p_headers, p_id, p_deliver_at,
        p_lock_key, p_on_duplicate);
END $$;

-- Emits a message with a JSON payload in the caller's transaction and returns its id. The planner inlines this function and the next one.
CREATE FUNCTION emit(
    topic text, key text, type text, payload jsonb, headers jsonb DEFAULT NULL, id uuid DEFAULT NULL,
    deliver_at timestamptz DEFAULT NULL, lock_key boolean DEFAULT false, on_duplicate text DEFAULT 'error'
) RETURNS uuid
LANGUAGE sql VOLATILE
AS $$
    SELECT @schema@.emit_message(topic, key, type, pg_catalog.convert_to(payload::pg_catalog.text, 'UTF8'), 'application/json',
        headers, id, deliver_at, lock_key, on_duplicate)
$$;

-- Emits a message whose payload is exactly these bytes.
CREATE FUNCTION emit_bytes(
    topic text, key text, type text, payload bytea, content_type text, headers jsonb DEFAULT NULL,
    id uuid DEFAULT NULL, deliver_at timestamptz DEFAULT NULL, lock_key boolean DEFAULT false,
    on_duplicate text DEFAULT 'error'
) RETURNS uuid
LANGUAGE sql VOLATILE
AS $$
    SELECT @schema@.emit_message(topic, key, type, payload, content_type, headers, id, deliver_at, lock_key, on_duplicate)
$$;

-- Parses and checks one element of `emit_many`. An error names the field.
CREATE FUNCTION parse_draft(p_item jsonb, p_path text) RETURNS draft
LANGUAGE plpgsql STABLE SET search_path = @schema@, pg_temp
AS $$
DECLARE
    d draft;
    field text;
BEGIN
    IF p_item IS NULL OR jsonb_typeof(p_item) <> 'object' THEN
        RAISE EXCEPTION 'argument "%" is not an object', p_path USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT k INTO field FROM jsonb_object_keys(p_item) AS k
    WHERE k NOT IN ('topic', 'key', 'type', 'payload', 'payload_base64', 'content_type', 'headers', 'id', 'deliver_at',
        'lock_key', 'on_duplicate') LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'argument "%.%" is not known', p_path, field USING ERRCODE = 'invalid_parameter_value';
    ELSIF p_item ? 'payload' = p_item ? 'payload_base64' THEN
        RAISE EXCEPTION 'argument "%" needs one of payload and payload_base64', p_path
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    d.topic := p_item ->> 'topic';
    d.key := p_item ->> 'key';
    d.type := p_item ->> 'type';
    d.content_type := coalesce(p_item ->> 'content_type', CASE WHEN p_item ? 'payload' THEN 'application/json' END);
    d.headers := CASE WHEN jsonb_typeof(p_item -> 'headers') <> 'null' THEN p_item -> 'headers' END;
    d.on_duplicate := coalesce(p_item ->> 'on_duplicate', 'error');
    BEGIN
        field := 'payload_base64';
        d.payload := CASE WHEN p_item ? 'payload' THEN convert_to((p_item -> 'payload')::text, 'UTF8')
            ELSE decode(p_item ->> 'payload_base64', 'base64') END;
        field := 'id';
        d.id := p_item ->> 'id';
        field := 'deliver_at';
        d.deliver_at := p_item ->> 'deliver_at';
        field := 'lock_key';
        d.lock_key := coalesce(p_item ->> 'lock_key', 'false');
    EXCEPTION WHEN data_exception THEN
        RAISE EXCEPTION 'argument "%.%" cannot be read: %', p_path, field, sqlerrm
            USING ERRCODE = 'invalid_parameter_value';
    END;
    PERFORM check_draft(d.topic, d.key, d.type, d.payload, d.content_type, d.headers, d.deliver_at, d.lock_key,
        d.on_duplicate, p_path || '.');
    RETURN d;
END $$;

-- Emits a JSON array of objects whose fields are the arguments of `emit`, or `payload_base64` and `content_type` for bytes. Returns the ids
-- in the same order. It takes locks and ids in sorted order, so that two calls cannot deadlock.
CREATE FUNCTION emit_many(messages jsonb) RETURNS uuid[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = @schema@, pg_temp
AS $$
DECLARE
    drafts draft[] := '{}';
    ids uuid[] := '{}';
    duplicates bigint[] := '{}';
    d draft;
    at bigint;
BEGIN
    IF messages IS NULL THEN
        RAISE EXCEPTION 'argument "messages" is null' USING ERRCODE = 'null_value_not_allowed';
    ELSIF jsonb_typeof(messages) <> 'array' THEN
        RAISE EXCEPTION 'argument "messages" is not an array' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    drafts := ARRAY(
        SELECT parse_draft(m.item, format('messages[%s]', m.place))
        FROM jsonb_array_elements(messages) WITH ORDINALITY AS m (item, place) ORDER BY m.place);
    PERFORM pg_advisory_xact_lock(number) FROM (
        SELECT DISTINCT advisory_lock_key('key/' || m.key) AS number FROM unnest(drafts) AS m WHERE m.lock_key ORDER BY 1
    ) AS locks;
    FOR at IN
        SELECT m.ordinality FROM unnest(drafts) WITH ORDINALITY AS m WHERE m.id IS NOT NULL ORDER BY m.id, m.ordinality
    LOOP
        IF NOT claim_id(drafts[at].id, drafts[at].on_duplicate) THEN
            duplicates := duplicates || at;
        END IF;
    END LOOP;
    FOR i IN 1 .. cardinality(drafts) LOOP
        d := drafts[i];
        ids := ids || CASE WHEN i = ANY (duplicates) THEN d.id ELSE
            insert_message(d.topic, d.key, d.type, d.payload, d.content_type, d.headers, d.id, d.deliver_at) END;
    END LOOP;
    RETURN ids;
END $$;

-- Deletes a scheduled message that is not due yet. Returns false if it does not exist any more.
CREATE FUNCTION cancel(id uuid) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = @schema@, pg_temp
AS $$
BEGIN
    DELETE FROM scheduled AS s WHERE s.id = cancel.id;
    RETURN FOUND;
END $$;

-- Moves due messages into the log, ordered by due time. One caller at a time, so that two callers cannot swap messages of a key. Never
-- called in a transaction that makes a tick.
CREATE FUNCTION move_due_scheduled(p_limit int) RETURNS int
LANGUAGE plpgsql SECURITY DEFINER SET search_path = @schema@, pg_temp
AS $$
DECLARE
    s scheduled;
    moved int := 0;
    xid_now xid8;
    -- A variable, which an index can be searched for. The function could return another time for each row.
    now_at timestamptz := clock_timestamp();
BEGIN
    IF NOT pg_try_advisory_xact_lock(advisory_lock_key('enter_due')) THEN
        RETURN 0;
    END IF;
    xid_now := pg_current_xact_id();
    FOR s IN
        SELECT * FROM scheduled WHERE due_at <= now_at ORDER BY due_at, ordinal LIMIT p_limit
        FOR UPDATE SKIP LOCKED
    LOOP
        DELETE FROM scheduled WHERE id = s.id;
        INSERT INTO message (seq, xid, slot, id, created_at, topic, key, type, content_type, headers, payload)
        VALUES (nextval('message_seq'), xid_now, s.slot, s.id, clock_timestamp(), s.topic, s.key, s.type,
            s.content_type, s.headers, s.payload);
        moved := moved + 1;
    END LOOP;
    RETURN moved;
END $$;
