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
    EXECUTE format('GRANT EXECUTE ON FUNCTION emit, emit_bytes, emit_many, emit_message, cancel TO %I', role_name);
    INSERT INTO granted_role VALUES (grant_writer.role_name, 'writer') ON CONFLICT DO NOTHING;
END $$;

-- A relay may add its destination, read and settle. It settles only through functions that check its lease.
CREATE FUNCTION grant_relay(role_name text) RETURNS void
LANGUAGE plpgsql SET search_path = @schema@, pg_temp
AS $$
BEGIN
    EXECUTE format('GRANT USAGE ON SCHEMA @schema@ TO %I', role_name);
    EXECUTE format('GRANT SELECT ON ALL TABLES IN SCHEMA @schema@ TO %I', role_name);
    EXECUTE format('GRANT EXECUTE ON FUNCTION '
        'add_destination, make_tick, move_due_scheduled, acquire_leases, release_leases, settle, shard_positions, read_parked, '
        'settle_parked, maintain, backlog, redrive, discard, inbox_list_consumers TO %I', role_name);
    INSERT INTO granted_role VALUES (grant_relay.role_name, 'relay') ON CONFLICT DO NOTHING;
END $$;

-- A consumer may handle messages and its retry queues, through functions that check its lane or claim. It reads no table but `migration`.
CREATE FUNCTION grant_consumer(role_name text) RETURNS void
LANGUAGE plpgsql SET search_path = @schema@, pg_temp
AS $$
BEGIN
    EXECUTE format('GRANT USAGE ON SCHEMA @schema@ TO %I', role_name);
    EXECUTE format('GRANT SELECT ON migration TO %I', role_name);
    EXECUTE format('GRANT EXECUTE ON FUNCTION '
        'inbox_insert, inbox_insert_many, inbox_insert_one, inbox_append, inbox_mark_skipped, inbox_record_start, '
        'inbox_starts, inbox_reset_start, inbox_claim_call, inbox_complete_call, inbox_fail, '
        'inbox_claim_due_queues, inbox_complete_queued, inbox_fail_queued, inbox_release_queue, inbox_heartbeat, '
        'inbox_acquire_lanes, inbox_release_lanes, inbox_prune TO %I', role_name);
    INSERT INTO granted_role VALUES (grant_consumer.role_name, 'consumer') ON CONFLICT DO NOTHING;
END $$;

-- An operator may read everything, redrive and discard dead letters, and control consumers.
CREATE FUNCTION grant_operator(role_name text) RETURNS void
LANGUAGE plpgsql SET search_path = @schema@, pg_temp
AS $$
BEGIN
    EXECUTE format('GRANT USAGE ON SCHEMA @schema@ TO %I', role_name);
    EXECUTE format('GRANT SELECT ON ALL TABLES IN SCHEMA @schema@ TO %I', role_name);
    EXECUTE format('GRANT EXECUTE ON FUNCTION '
        'shard_positions, backlog, redrive, discard, inbox_list_consumers, inbox_show_consumer, inbox_set_control, '
        'inbox_remove_consumer, epoch_micros, inbox_dead_letter_matches, inbox_redrive, inbox_discard, '
        'inbox_create_replay, inbox_feed_replay, inbox_stop_replay, inbox_resume_replay, inbox_replay_ready, '
        'inbox_list_replays TO %I', role_name);
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
