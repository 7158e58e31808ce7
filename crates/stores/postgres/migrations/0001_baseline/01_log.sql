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
    payload      bytea       NOT NULL
) PARTITION BY RANGE (seq);
CREATE INDEX message_seq_idx ON message (seq);
CREATE INDEX message_xid_idx ON message (xid, seq);
-- Default partition. It receives rows that have no partition yet, so `emit` works when no relay has run for months.
CREATE TABLE message_overflow PARTITION OF message DEFAULT;
CREATE TABLE message_1 PARTITION OF message FOR VALUES FROM (1) TO (1000001);

-- Ids that callers passed. A partitioned table has no unique constraint on them. Generated ids have no row here.
CREATE TABLE own_id (
    id         uuid PRIMARY KEY,
    claimed_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX own_id_claimed_at_idx ON own_id (claimed_at);

-- Messages with a later `deliver_at`. They enter the log when they are due.
CREATE TABLE scheduled (
    id           uuid PRIMARY KEY,
    no           bigint GENERATED ALWAYS AS IDENTITY,
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
CREATE INDEX scheduled_due_at_idx ON scheduled (due_at, no);

-- One element of `emit_many`.
CREATE TYPE draft AS (
    topic text, key text, type text, payload bytea, content_type text, headers jsonb, id uuid, deliver_at timestamptz,
    serialize boolean, on_repeat text
);

-- The key of an advisory lock of this schema.
CREATE FUNCTION lock_number(what text) RETURNS bigint
LANGUAGE sql STABLE SET search_path = @schema@, pg_temp
AS $$ SELECT hashtextextended('relevo/' || '@schema@' || '/' || what, 0) $$;

-- What is wrong with headers, or null.
CREATE FUNCTION headers_error(headers jsonb) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = @schema@, pg_temp
AS $$
DECLARE
    bytes bigint;
BEGIN
    IF jsonb_typeof(headers) <> 'object'
        OR EXISTS (SELECT 1 FROM jsonb_each(headers) WHERE jsonb_typeof(value) <> 'string') THEN
        RETURN 'is not an object of strings';
    END IF;
    SELECT sum(octet_length(key) + octet_length(value)) INTO bytes FROM jsonb_each_text(headers);
    IF headers ? '' THEN
        RETURN 'has an empty name';
    ELSIF bytes > 65536 THEN
        RETURN format('is %s bytes, more than 65536', bytes);
    ELSIF EXISTS (
        SELECT 1 FROM jsonb_each_text(headers)
        WHERE key ~ '[[:cntrl:]]' OR replace(value, E'\t', '') ~ '[[:cntrl:]]'
    ) THEN
        RETURN 'has a control character';
    END IF;
    RETURN NULL;
END $$;

-- Raises an error that names the invalid argument, if there is one.
CREATE FUNCTION check_draft(
    topic text, key text, type text, payload bytea, content_type text, headers jsonb, deliver_at timestamptz,
    serialize boolean, on_repeat text, place text
) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = @schema@, pg_temp
AS $$
DECLARE
    name text;
    value text;
    most int;
BEGIN
    FOR name, value, most IN
        VALUES ('topic', topic, 255), ('key', key, 512), ('type', type, 255), ('content_type', content_type, 255)
    LOOP
        IF value IS NULL THEN
            RAISE EXCEPTION 'argument "%" is null', place || name USING ERRCODE = 'null_value_not_allowed';
        ELSIF value = '' THEN
            RAISE EXCEPTION 'argument "%" is empty', place || name USING ERRCODE = 'invalid_parameter_value';
        ELSIF value ~ '[[:cntrl:]]' THEN
            RAISE EXCEPTION 'argument "%" has a control character', place || name
                USING ERRCODE = 'invalid_parameter_value';
        ELSIF octet_length(value) > most THEN
            RAISE EXCEPTION 'argument "%" is % bytes, more than %', place || name, octet_length(value), most
                USING ERRCODE = 'invalid_parameter_value';
        END IF;
    END LOOP;
    IF payload IS NULL THEN
        RAISE EXCEPTION 'argument "%" is null', place || 'payload' USING ERRCODE = 'null_value_not_allowed';
    ELSIF octet_length(payload) > 16777216 THEN
        RAISE EXCEPTION 'argument "%" is % bytes, more than 16777216', place || 'payload', octet_length(payload)
            USING ERRCODE = 'invalid_parameter_value';
    ELSIF headers_error(headers) IS NOT NULL THEN
        RAISE EXCEPTION 'argument "%" %', place || 'headers', headers_error(headers)
            USING ERRCODE = 'invalid_parameter_value';
    ELSIF NOT isfinite(deliver_at) OR deliver_at > clock_timestamp() + interval '10 years' THEN
        RAISE EXCEPTION 'argument "%" is % (at most ten years ahead)', place || 'deliver_at', deliver_at
            USING ERRCODE = 'invalid_parameter_value';
    ELSIF serialize IS NULL THEN
        RAISE EXCEPTION 'argument "%" is null', place || 'serialize' USING ERRCODE = 'null_value_not_allowed';
    ELSIF on_repeat IS NULL OR on_repeat NOT IN ('refuse', 'ignore') THEN
        RAISE EXCEPTION 'argument "%" is %, not "refuse" or "ignore"', place || 'on_repeat', quote_nullable(on_repeat)
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
END $$;

-- Records a caller's id. Returns false for a duplicate that may be ignored.
CREATE FUNCTION claim_id(wanted uuid, on_repeat text) RETURNS boolean
LANGUAGE plpgsql SET search_path = @schema@, pg_temp
AS $$
BEGIN
    INSERT INTO own_id (id) VALUES (wanted) ON CONFLICT DO NOTHING;
    IF FOUND THEN
        RETURN true;
    ELSIF on_repeat = 'ignore' THEN
        RETURN false;
    END IF;
    RAISE EXCEPTION 'message id % was emitted before', wanted
        USING ERRCODE = 'unique_violation', HINT = 'Pass on_repeat => ''ignore'' to make a repeat do nothing.';
END $$;

-- A version 7 UUID: milliseconds, then random bits. The cast accepts text without hyphens; most of it comes from a random UUID.
-- The planner inlines this function and the next one, also in `put`, which sets no search path: every name in them is qualified.
CREATE FUNCTION new_id() RETURNS uuid
LANGUAGE sql VOLATILE
AS $$
    SELECT ('0' OPERATOR(pg_catalog.||) pg_catalog.to_hex(pg_catalog.floor(
            pg_catalog.date_part('epoch', pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.*) 1000)::pg_catalog.int8)
        OPERATOR(pg_catalog.||) '7' OPERATOR(pg_catalog.||)
        pg_catalog.substr(pg_catalog.gen_random_uuid()::pg_catalog.text, 16))::pg_catalog.uuid
$$;

-- The slot of a key: the first byte of its SHA-256. It never changes, because rows store it.
CREATE FUNCTION slot_of(key text) RETURNS smallint
LANGUAGE sql STABLE
AS $$ SELECT pg_catalog.get_byte(pg_catalog.sha256(pg_catalog.convert_to(key, 'UTF8')), 0)::pg_catalog.int2 $$;

-- Inserts a checked message into the log, or into `scheduled`. `nextval` alone assigns no transaction id, and a tick in between must see
-- this transaction as open: an earlier statement assigns the id.
CREATE FUNCTION append(
    topic text, key text, type text, payload bytea, content_type text, headers jsonb, id uuid, deliver_at timestamptz
) RETURNS uuid
LANGUAGE plpgsql SET search_path = @schema@, pg_temp
AS $$
DECLARE
    xid_now xid8;
BEGIN
    id := coalesce(id, new_id());
    IF deliver_at > clock_timestamp() THEN
        INSERT INTO scheduled (id, due_at, slot, created_at, topic, key, type, content_type, headers, payload)
        VALUES (id, deliver_at, slot_of(key), clock_timestamp(), topic, key, type, content_type, headers, payload);
        RETURN id;
    END IF;
    xid_now := pg_current_xact_id();
    INSERT INTO message (seq, xid, slot, id, created_at, topic, key, type, content_type, headers, payload)
    VALUES (nextval('message_seq'), xid_now, slot_of(key), id, clock_timestamp(), topic, key, type, content_type,
        headers, payload);
    RETURN id;
END $$;

-- Checks and inserts one message. The order of the statements preserves the order of a key: the key's lock, the caller's id, the
-- transaction id, the sequence number. Each statement has a new snapshot, and a number drawn before a wait would be too old.
CREATE FUNCTION put_checked(
    topic text, key text, type text, payload bytea, content_type text, headers jsonb, id uuid, deliver_at timestamptz,
    serialize boolean, on_repeat text
) RETURNS uuid
LANGUAGE plpgsql SET search_path = @schema@, pg_temp
AS $$
BEGIN
    PERFORM check_draft(topic, key, type, payload, content_type, headers, deliver_at, serialize, on_repeat, '');
    IF serialize THEN
        PERFORM pg_advisory_xact_lock(lock_number('key/' || key));
    END IF;
    IF id IS NOT NULL AND NOT claim_id(id, on_repeat) THEN
        RETURN id;
    END IF;
    RETURN append(topic, key, type, payload, content_type, headers, id, deliver_at);
END $$;

-- The common case in as few expressions as possible, because each expression is prepared again in every transaction: short printable
-- text and no options. SET search_path would cost as much as all of them together, so every name and operator is qualified instead: a
-- caller's objects cannot replace them.
CREATE FUNCTION put(
    topic text, key text, type text, payload bytea, content_type text, headers jsonb, id uuid, deliver_at timestamptz,
    serialize boolean, on_repeat text
) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER
AS $$
DECLARE
    words pg_catalog.text := topic OPERATOR(pg_catalog.||) key OPERATOR(pg_catalog.||) type
        OPERATOR(pg_catalog.||) content_type;
    xid_now pg_catalog.xid8;
BEGIN
    IF headers IS NULL AND id IS NULL AND deliver_at IS NULL AND NOT serialize
        AND on_repeat OPERATOR(pg_catalog.=) 'refuse' AND topic OPERATOR(pg_catalog.<>) ''
        AND key OPERATOR(pg_catalog.<>) '' AND type OPERATOR(pg_catalog.<>) ''
        AND content_type OPERATOR(pg_catalog.<>) '' AND pg_catalog.octet_length(words) OPERATOR(pg_catalog.<) 256
        AND words OPERATOR(pg_catalog.!~) '[^ -~]'
        AND pg_catalog.octet_length(payload) OPERATOR(pg_catalog.<=) 16777216
    THEN
        xid_now := pg_catalog.pg_current_xact_id();
        INSERT INTO @schema@.message AS m (seq, xid, slot, id, created_at, topic, key, type, content_type, payload)
        VALUES (pg_catalog.nextval('@schema@.message_seq'), xid_now, @schema@.slot_of(key), @schema@.new_id(),
            pg_catalog.clock_timestamp(), topic, key, type, content_type, payload)
        RETURNING m.id INTO id;
        RETURN id;
    END IF;
    RETURN @schema@.put_checked(topic, key, type, payload, content_type, headers, id, deliver_at, serialize, on_repeat);
END $$;

-- Emits a message with a JSON payload in the caller's transaction and returns its id. The planner inlines this function and the next one.
CREATE FUNCTION emit(
    topic text, key text, type text, payload jsonb, headers jsonb DEFAULT NULL, id uuid DEFAULT NULL,
    deliver_at timestamptz DEFAULT NULL, serialize boolean DEFAULT false, on_repeat text DEFAULT 'refuse'
) RETURNS uuid
LANGUAGE sql VOLATILE
AS $$
    SELECT @schema@.put(topic, key, type, pg_catalog.convert_to(payload::pg_catalog.text, 'UTF8'), 'application/json',
        headers, id, deliver_at, serialize, on_repeat)
$$;

-- Emits a message whose payload is exactly these bytes.
CREATE FUNCTION emit_bytes(
    topic text, key text, type text, payload bytea, content_type text, headers jsonb DEFAULT NULL,
    id uuid DEFAULT NULL, deliver_at timestamptz DEFAULT NULL, serialize boolean DEFAULT false,
    on_repeat text DEFAULT 'refuse'
) RETURNS uuid
LANGUAGE sql VOLATILE
AS $$
    SELECT @schema@.put(topic, key, type, payload, content_type, headers, id, deliver_at, serialize, on_repeat)
$$;

-- Parses and checks one element of `emit_many`. An error names the field.
CREATE FUNCTION read_draft(item jsonb, place text) RETURNS draft
LANGUAGE plpgsql STABLE SET search_path = @schema@, pg_temp
AS $$
DECLARE
    d draft;
    field text;
BEGIN
    IF item IS NULL OR jsonb_typeof(item) <> 'object' THEN
        RAISE EXCEPTION 'argument "%" is not an object', place USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT k INTO field FROM jsonb_object_keys(item) AS k
    WHERE k NOT IN ('topic', 'key', 'type', 'payload', 'payload_base64', 'content_type', 'headers', 'id', 'deliver_at',
        'serialize', 'on_repeat') LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'argument "%.%" is not known', place, field USING ERRCODE = 'invalid_parameter_value';
    ELSIF item ? 'payload' = item ? 'payload_base64' THEN
        RAISE EXCEPTION 'argument "%" needs one of payload and payload_base64', place
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    d.topic := item ->> 'topic';
    d.key := item ->> 'key';
    d.type := item ->> 'type';
    d.content_type := coalesce(item ->> 'content_type', CASE WHEN item ? 'payload' THEN 'application/json' END);
    d.headers := CASE WHEN jsonb_typeof(item -> 'headers') <> 'null' THEN item -> 'headers' END;
    d.on_repeat := coalesce(item ->> 'on_repeat', 'refuse');
    BEGIN
        field := 'payload_base64';
        d.payload := CASE WHEN item ? 'payload' THEN convert_to((item -> 'payload')::text, 'UTF8')
            ELSE decode(item ->> 'payload_base64', 'base64') END;
        field := 'id';
        d.id := item ->> 'id';
        field := 'deliver_at';
        d.deliver_at := item ->> 'deliver_at';
        field := 'serialize';
        d.serialize := coalesce(item ->> 'serialize', 'false');
    EXCEPTION WHEN data_exception THEN
        RAISE EXCEPTION 'argument "%.%" cannot be read: %', place, field, sqlerrm
            USING ERRCODE = 'invalid_parameter_value';
    END;
    PERFORM check_draft(d.topic, d.key, d.type, d.payload, d.content_type, d.headers, d.deliver_at, d.serialize,
        d.on_repeat, place || '.');
    RETURN d;
END $$;

-- Emits an array of objects whose fields are the arguments of `emit`, or `payload_base64` and `content_type` for bytes. Returns the ids in
-- the same order. It takes locks and ids in sorted order, so that two calls cannot deadlock.
CREATE FUNCTION emit_many(messages jsonb[]) RETURNS uuid[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path = @schema@, pg_temp
AS $$
DECLARE
    drafts draft[] := '{}';
    ids uuid[] := '{}';
    repeated bigint[] := '{}';
    d draft;
    at bigint;
BEGIN
    IF messages IS NULL THEN
        RAISE EXCEPTION 'argument "messages" is null' USING ERRCODE = 'null_value_not_allowed';
    END IF;
    FOR i IN 1 .. cardinality(messages) LOOP
        drafts := drafts || read_draft(messages[i], format('messages[%s]', i));
    END LOOP;
    PERFORM pg_advisory_xact_lock(number) FROM (
        SELECT DISTINCT lock_number('key/' || m.key) AS number FROM unnest(drafts) AS m WHERE m.serialize ORDER BY 1
    ) AS locks;
    FOR at IN
        SELECT m.ordinality FROM unnest(drafts) WITH ORDINALITY AS m WHERE m.id IS NOT NULL ORDER BY m.id, m.ordinality
    LOOP
        IF NOT claim_id(drafts[at].id, drafts[at].on_repeat) THEN
            repeated := repeated || at;
        END IF;
    END LOOP;
    FOR i IN 1 .. cardinality(drafts) LOOP
        d := drafts[i];
        ids := ids || CASE WHEN i = ANY (repeated) THEN d.id ELSE
            append(d.topic, d.key, d.type, d.payload, d.content_type, d.headers, d.id, d.deliver_at) END;
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
CREATE FUNCTION enter_due(most int) RETURNS int
LANGUAGE plpgsql SECURITY DEFINER SET search_path = @schema@, pg_temp
AS $$
DECLARE
    s scheduled;
    moved int := 0;
    xid_now xid8;
BEGIN
    IF NOT pg_try_advisory_xact_lock(lock_number('enter_due')) THEN
        RETURN 0;
    END IF;
    xid_now := pg_current_xact_id();
    FOR s IN
        SELECT * FROM scheduled WHERE due_at <= clock_timestamp() ORDER BY due_at, no LIMIT most
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
