//! Two grants: a writer may only emit, and a relay may read and settle. No role can run code as the owner.

use std::time::Duration;

use crate::relay_support::{
    MAIN, RunningRelay, TestDatabase, config, execute, expect_error, operator, store, wait_until,
};
use crate::sql_support::DEADLINE;
use relevo_broker_memory::{Config, FailureRule, MemoryBroker, RuleTarget};
use relevo_conformance::outbox::main_calls::MainCalls as _;
use relevo_core::Class;
use relevo_core::dead_letters::{DeadLetterFilter, MarkAction};
use relevo_core::outbox::maintenance::Maintenance as _;
use relevo_store_postgres::{Schema, migrate};
use relevo_testkit::PgVersion;
use relevo_testkit::postgres::Private;
use sqlx::ConnectOptions as _;
use sqlx::postgres::PgConnection;

/// On a private server, because roles belong to the whole server.
async fn database_with_roles(version: PgVersion) -> TestDatabase {
    let server = Private::start(version).await;
    let world = TestDatabase { database: server.database().await, server: Some(server) };
    world.run("CREATE ROLE writer LOGIN; CREATE ROLE carrier LOGIN; CREATE ROLE stranger LOGIN").await;
    migrate::migrate(&mut world.connect().await, &Schema::default()).await.expect("an empty database");
    world.run(&format!("SELECT relevo.add_destination('{MAIN}', 8, 'oldest')")).await;
    world.run("SELECT relevo.grant_writer('writer'), relevo.grant_relay('carrier')").await;
    world
}

async fn session(world: &TestDatabase, role: &str) -> PgConnection {
    world.database.options().username(role).connect().await.expect("a role that may log in")
}

/// Returns the functions of the schema that a role may call.
pub(crate) async fn may_call(world: &TestDatabase, role: &str) -> Vec<String> {
    let sql = format!(
        "SELECT DISTINCT proname::text FROM pg_proc WHERE pronamespace = 'relevo'::regnamespace \
         AND has_function_privilege('{role}', oid, 'execute') ORDER BY 1"
    );
    world.texts(&sql).await
}

/// Returns the privileges of a role on tables, views and sequences of the schema, except those listed.
pub(crate) async fn rights(world: &TestDatabase, role: &str, apart_from: &str) -> Vec<String> {
    let sql = format!(
        "SELECT c.relname || ' ' || r FROM pg_class AS c, unnest('{{SELECT,INSERT,UPDATE,DELETE,TRUNCATE,REFERENCES,TRIGGER}}'::text[]) AS r \
         WHERE c.relnamespace = 'relevo'::regnamespace AND c.relkind IN ('r', 'p', 'v') AND has_table_privilege('{role}', c.oid, r) \
         AND r <> '{apart_from}' \
         UNION ALL SELECT c.relname || ' ' || r FROM pg_class AS c, unnest('{{USAGE,UPDATE,SELECT}}'::text[]) AS r \
         WHERE c.relnamespace = 'relevo'::regnamespace AND c.relkind = 'S' AND has_sequence_privilege('{role}', c.oid, r) \
         AND r <> '{apart_from}'"
    );
    world.texts(&sql).await
}

pub(crate) async fn refuse(connection: &mut PgConnection, statements: &[&str]) {
    for sql in statements {
        let (code, message) = expect_error(connection, sql).await;
        assert_eq!(code, "42501", "{sql}: {message}");
    }
}

#[tokio::test]
async fn a_writer_may_emit_and_nothing_else() {
    for version in PgVersion::ALL {
        let world = database_with_roles(version).await;
        assert_eq!(may_call(&world, "writer").await, ["cancel", "emit", "emit_bytes", "emit_many", "emit_message"]);
        assert!(rights(&world, "writer", "").await.is_empty());
        let mut writer = session(&world, "writer").await;
        for sql in [
            "SELECT relevo.emit('orders', 'k', 'T', '{}')",
            "SELECT relevo.emit('orders', 'k', 'T', '{}', headers => '{\"a\": \"b\"}', id => gen_random_uuid(), lock_key => true)",
            "SELECT relevo.emit_bytes('orders', 'k', 'T', '\\x00ff', 'application/octet-stream')",
            "SELECT relevo.emit_many('[{\"topic\": \"orders\", \"key\": \"k\", \"type\": \"T\", \"payload\": 1}]')",
            "SELECT relevo.cancel(relevo.emit('orders', 'k', 'T', '{}', deliver_at => now() + interval '1 day'))",
        ] {
            execute(&mut writer, sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
        }
        refuse(
            &mut writer,
            &[
                "SELECT * FROM relevo.message",
                "SELECT * FROM relevo.outbox",
                "INSERT INTO relevo.message SELECT * FROM relevo.message",
                "DELETE FROM relevo.scheduled",
                "SELECT nextval('relevo.message_seq')",
                "SELECT relevo.make_tick()",
                "SELECT relevo.settle('main', '{}')",
                "SELECT relevo.insert_message('t', 'k', 'T', '', 'c', NULL, NULL, NULL)",
                "SELECT relevo.acquire_leases('main', '{}')",
                "SELECT relevo.add_destination('mine')",
                "SELECT relevo.rebase()",
                "SELECT relevo.grant_relay('writer')",
                "CREATE TABLE relevo.mine (n int)",
            ],
        )
        .await;
        assert_eq!(world.number("SELECT count(*) FROM relevo.message").await, 4);
    }
}

#[tokio::test]
async fn a_relay_may_read_and_settle_and_nothing_else() {
    for version in PgVersion::ALL {
        let world = database_with_roles(version).await;
        let may = "acquire_leases add_destination backlog discard inbox_list_consumers maintain make_tick \
                   move_due_scheduled read_parked redrive release_leases settle settle_parked shard_positions";
        assert_eq!(may_call(&world, "carrier").await, may.split(' ').collect::<Vec<_>>());
        assert!(rights(&world, "carrier", "SELECT").await.is_empty());

        let broker = MemoryBroker::new(Config::default());
        let ids = world.emit(&["a", "b", "a", "c"]).await;
        broker.add_failure(FailureRule::new(RuleTarget::Id(ids[0]), Class::Transient).times(1));
        broker.add_failure(FailureRule::new(RuleTarget::Id(ids[1]), Class::Poison).times(1));
        world
            .run("SELECT relevo.emit('orders', 'd', 'T', '{}', deliver_at => clock_timestamp() + interval '0.2 s')")
            .await;
        let store = store(world.database.options().username("carrier"), MAIN).await;
        let relay = RunningRelay::start(store.clone(), &broker, config());
        let operator = operator(world.database.options().username("carrier")).await;
        let dead = DeadLetterFilter::of_destination(MAIN);
        wait_until("one is dead", async || operator.dead_letters(&dead).await.expect("letters").len() == 1).await;
        assert_eq!(operator.mark(MarkAction::Redrive, dead).await.expect("a mark"), 1);
        wait_until("everything arrives", async || broker.received() == 5).await;
        wait_until("everything is settled", async || {
            let backlog = operator.backlog().await.expect("a backlog");
            (backlog.pending, backlog.parked, backlog.dead) == (0, 0, 0)
        })
        .await;
        relay.stop().await;
        assert_eq!(operator.sample_destination().await.expect("a sample").oldest_pending, Duration::ZERO);
        assert!(operator.sample_outbox().await.expect("a sample").horizon.is_some());
        world.run("SELECT setval('relevo.message_seq', 3000000)").await;
        wait_until("partitions are prepared", async || {
            store.maintain(DEADLINE).await.expect("upkeep").partitions_created > 0
        })
        .await;

        let mut carrier = session(&world, "carrier").await;
        refuse(
            &mut carrier,
            &[
                "SELECT relevo.emit('orders', 'k', 'T', '{}')",
                "SELECT relevo.emit_message('orders', 'k', 'T', '', 'c', NULL, NULL, NULL, false, 'error')",
                "SELECT relevo.cancel(gen_random_uuid())",
                "UPDATE relevo.lease SET owner = NULL",
                "INSERT INTO relevo.progress DEFAULT VALUES",
                "DELETE FROM relevo.message",
                "TRUNCATE relevo.message",
                "UPDATE relevo.settings SET retention = '0'",
                "SELECT nextval('relevo.message_seq')",
                "SELECT relevo.adopt()",
                "SELECT relevo.remove_destination('main')",
                "SELECT relevo.grant_writer('carrier')",
            ],
        )
        .await;
    }
}

#[tokio::test]
async fn a_role_without_a_grant_can_do_nothing() {
    let world = database_with_roles(PgVersion::V15).await;
    assert!(may_call(&world, "stranger").await.is_empty());
    assert!(rights(&world, "stranger", "").await.is_empty());
    let mut stranger = session(&world, "stranger").await;
    refuse(&mut stranger, &["SELECT relevo.emit('orders', 'k', 'T', '{}')", "SELECT * FROM relevo.message"]).await;
}

/// Functions and operators that a search path finds before the server's own. They record which role ran them.
const TRAPS: &str = "
    CREATE SCHEMA evil;
    CREATE TABLE evil.caught (who text);
    CREATE FUNCTION evil.spring() RETURNS void LANGUAGE sql AS 'INSERT INTO evil.caught VALUES (current_user)';
    CREATE FUNCTION evil.slot_of(text) RETURNS smallint LANGUAGE sql AS 'SELECT evil.spring(); SELECT 1::smallint';
    CREATE FUNCTION evil.new_id() RETURNS uuid LANGUAGE sql AS 'SELECT evil.spring(); SELECT gen_random_uuid()';
    CREATE FUNCTION evil.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS 'SELECT evil.spring(); SELECT now()';
    CREATE FUNCTION evil.octet_length(text) RETURNS int LANGUAGE sql AS 'SELECT evil.spring(); SELECT 1';
    CREATE FUNCTION evil.octet_length(bytea) RETURNS int LANGUAGE sql AS 'SELECT evil.spring(); SELECT 1';
    CREATE FUNCTION evil.jsonb_typeof(jsonb) RETURNS text LANGUAGE sql AS 'SELECT evil.spring(); SELECT ''object''::text';
    CREATE FUNCTION evil.convert_to(text, name) RETURNS bytea LANGUAGE sql
        AS 'SELECT evil.spring(); SELECT pg_catalog.convert_to($1, $2)';
    CREATE FUNCTION evil.concat_texts(text, text) RETURNS text LANGUAGE sql AS 'SELECT evil.spring(); SELECT $1';
    CREATE FUNCTION evil.equal_texts(text, text) RETURNS boolean LANGUAGE sql AS 'SELECT evil.spring(); SELECT true';
    CREATE OPERATOR evil.|| (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.concat_texts);
    CREATE OPERATOR evil.<> (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.equal_texts);
    CREATE OPERATOR evil.= (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.equal_texts);
    CREATE TEMP TABLE message (n int);
    CREATE TEMP TABLE dedup_id (n int);
    SET search_path = evil, pg_temp, pg_catalog";

#[tokio::test]
async fn a_malicious_search_path_affects_only_its_own_session() {
    for version in PgVersion::ALL {
        let world = database_with_roles(version).await;
        let database = world.database.name();
        world.run(&format!("GRANT CREATE ON DATABASE {database} TO writer, carrier")).await;
        let mut writer = session(&world, "writer").await;
        execute(&mut writer, TRAPS).await.expect("a schema of its own");
        for sql in [
            "SELECT relevo.emit('orders', 'k', 'T', '{}')",
            "SELECT relevo.emit('orders', 'k', 'T', '{}', headers => '{\"a\": \"b\"}', id => gen_random_uuid(), lock_key => true)",
            "SELECT relevo.emit_bytes('orders', 'k', 'T', '\\x00', 'c', deliver_at => now() + interval '1 day')",
            "SELECT relevo.emit_many('[{\"topic\": \"orders\", \"key\": \"k\", \"type\": \"T\", \"payload\": 1}]')",
            "SELECT relevo.cancel(gen_random_uuid())",
        ] {
            execute(&mut writer, sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
        }
        execute(&mut writer, "SELECT slot_of('k')").await.expect("the trap works");
        let caught = world.texts("SELECT DISTINCT who FROM evil.caught").await;
        assert_eq!(caught, ["writer"], "PostgreSQL {}", version.major());
        assert_eq!(world.number("SELECT count(*) FROM relevo.message").await, 3);
        let slots =
            "SELECT count(DISTINCT slot) FROM (SELECT slot FROM relevo.message UNION SELECT relevo.slot_of('k')) AS s";
        assert_eq!(world.number(slots).await, 1, "and nothing of it is believed");
    }
}
