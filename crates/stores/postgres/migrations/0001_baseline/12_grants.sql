-- What each kind of role may do. A migration grants again what is recorded here, so that roles keep working with new functions.

CREATE TABLE granted_role (
    role_name text NOT NULL,
    kind      text NOT NULL CHECK (kind IN ('writer', 'relay', 'consumer', 'operator')),
    PRIMARY KEY (role_name, kind)
);

-- A writer may emit, and cancel scheduled messages.
CREATE FUNCTION grant_writer(role_name text) RETURNS void
LANGUAGE plpgsql SET search_path = @schema@, pg_temp
AS $$
BEGIN
    EXECUTE format('GRANT USAGE ON SCHEMA @schema@ TO %I', role_name);
    EXECUTE format('GRANT EXECUTE ON FUNCTION emit, emit_bytes, emit_many, put, cancel TO %I', role_name);
    INSERT INTO granted_role VALUES (grant_writer.role_name, 'writer') ON CONFLICT DO NOTHING;
END $$;

-- A relay may read and settle. It changes tables only through functions that check its lease.
CREATE FUNCTION grant_relay(role_name text) RETURNS void
LANGUAGE plpgsql SET search_path = @schema@, pg_temp
AS $$
BEGIN
    EXECUTE format('GRANT USAGE ON SCHEMA @schema@ TO %I', role_name);
    EXECUTE format('GRANT SELECT ON ALL TABLES IN SCHEMA @schema@ TO %I', role_name);
    EXECUTE format('GRANT EXECUTE ON FUNCTION make_tick, enter_due, take_leases, leave, settle, standing, due_runs, '
        'advance, maintain, backlog, mark_dead TO %I', role_name);
    INSERT INTO granted_role VALUES (grant_relay.role_name, 'relay') ON CONFLICT DO NOTHING;
END $$;

-- A consumer may handle messages and its retry queues, through functions that check its lane or claim. It reads no table but `migration`.
CREATE FUNCTION grant_consumer(role_name text) RETURNS void
LANGUAGE plpgsql SET search_path = @schema@, pg_temp
AS $$
BEGIN
    EXECUTE format('GRANT USAGE ON SCHEMA @schema@ TO %I', role_name);
    EXECUTE format('GRANT SELECT ON migration TO %I', role_name);
    EXECUTE format('GRANT EXECUTE ON FUNCTION inbox_begin, inbox_enter, inbox_enter_one, inbox_append, inbox_skip, inbox_start, '
        'inbox_started, inbox_ended, inbox_claim, inbox_begin_claimed, inbox_set_back, inbox_due, inbox_begin_due, '
        'inbox_set_back_due, inbox_release, inbox_beat, inbox_take, inbox_give_back, inbox_prune TO %I', role_name);
    INSERT INTO granted_role VALUES (grant_consumer.role_name, 'consumer') ON CONFLICT DO NOTHING;
END $$;

-- An operator may read everything, redrive and discard dead letters, and control consumers.
CREATE FUNCTION grant_operator(role_name text) RETURNS void
LANGUAGE plpgsql SET search_path = @schema@, pg_temp
AS $$
BEGIN
    EXECUTE format('GRANT USAGE ON SCHEMA @schema@ TO %I', role_name);
    EXECUTE format('GRANT SELECT ON ALL TABLES IN SCHEMA @schema@ TO %I', role_name);
    EXECUTE format('GRANT EXECUTE ON FUNCTION backlog, mark_dead, inbox_consumers, inbox_show, inbox_order, '
        'inbox_forget, inbox_micros, inbox_means, inbox_mark_dead, inbox_begin_replay, inbox_feed_portion, '
        'inbox_stop_replay, inbox_resume_replay, inbox_ready, inbox_replays TO %I', role_name);
    INSERT INTO granted_role VALUES (grant_operator.role_name, 'operator') ON CONFLICT DO NOTHING;
END $$;

-- Grants every recorded role its rights again. A role that was dropped is removed from the list.
CREATE FUNCTION regrant_roles() RETURNS void
LANGUAGE plpgsql SET search_path = @schema@, pg_temp
AS $$
DECLARE
    g granted_role;
BEGIN
    DELETE FROM granted_role AS d WHERE NOT EXISTS (SELECT 1 FROM pg_roles AS r WHERE r.rolname = d.role_name);
    FOR g IN SELECT * FROM granted_role ORDER BY role_name, kind LOOP
        EXECUTE format('SELECT %I($1)', 'grant_' || g.kind) USING g.role_name;
    END LOOP;
END $$;
