-- What each kind of role may do.

-- A writer may emit, and cancel scheduled messages.
CREATE FUNCTION grant_writer(role_name text) RETURNS void
LANGUAGE plpgsql SET search_path = @schema@, pg_temp
AS $$
BEGIN
    EXECUTE format('GRANT USAGE ON SCHEMA @schema@ TO %I', role_name);
    EXECUTE format('GRANT EXECUTE ON FUNCTION emit, emit_bytes, emit_many, put, cancel TO %I', role_name);
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
END $$;

-- An operator may read everything, redrive and discard dead letters, and control consumers.
CREATE FUNCTION grant_operator(role_name text) RETURNS void
LANGUAGE plpgsql SET search_path = @schema@, pg_temp
AS $$
BEGIN
    EXECUTE format('GRANT USAGE ON SCHEMA @schema@ TO %I', role_name);
    EXECUTE format('GRANT SELECT ON ALL TABLES IN SCHEMA @schema@ TO %I', role_name);
    EXECUTE format('GRANT EXECUTE ON FUNCTION backlog, mark_dead, inbox_consumers, inbox_show, inbox_order, '
        'inbox_forget, inbox_micros, inbox_means, inbox_mark_dead, inbox_begin_replay, inbox_feed, inbox_feed_portion, '
        'inbox_stop_replay, inbox_resume_replay, inbox_ready, inbox_replays TO %I', role_name);
END $$;
