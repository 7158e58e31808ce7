//! The schema: applied once, by the first process, in any schema name, and checked before use.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::relay_support::{
    BackgroundWriters, MAIN, RunningRelay, TestDatabase, config, execute, expect_error, store, wait_until,
};
use crate::sql_support::DEADLINE;
use relevo_broker_memory::{Config as BrokerConfig, MemoryBroker};
use relevo_conformance::outbox::main_calls::MainCalls as _;
use relevo_core::inbox::InboxRetention;
use relevo_core::outbox::admin::OutboxAdmin as _;
use relevo_core::outbox::maintenance::Maintenance as _;
use relevo_core::store::StoreError;
use relevo_store_postgres::inbox::{self, Inbox};
use relevo_store_postgres::migrate::{
    BASELINE, Migration, OLDEST_SUPPORTED, VERSION, apply, between, migrate, sql_between, sql_script,
};
use relevo_store_postgres::{Config, Draft, Emitter, Operator, OperatorConfig, Schema, StartFrom, Store};
use relevo_testkit::PgVersion;
use relevo_testkit::postgres::{Database, Server};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, Row as _};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

async fn database() -> Database {
    Server::shared(PgVersion::V15).database().await
}

fn all() -> Vec<i32> {
    (1..=VERSION).collect()
}

#[tokio::test]
async fn every_postgres_version_applies_each_migration_once() {
    for version in PgVersion::ALL {
        let database = Server::shared(version).database().await;
        let mut connection = database.connect().await;
        assert_eq!(migrate(&mut connection, &Schema::default()).await.expect("an empty database"), all());
        let again = migrate(&mut connection, &Schema::default()).await.expect("a migrated database");
        assert!(again.is_empty(), "PostgreSQL {}: {again:?}", version.major());
    }
}

#[tokio::test]
async fn concurrent_migrations_apply_each_version_once() {
    let database = database().await;
    let mut tasks = JoinSet::new();
    for _ in 0..6 {
        let mut connection = database.connect().await;
        tasks.spawn(
            async move { migrate(&mut connection, &Schema::default()).await.expect("no other session has a lock") },
        );
    }
    let mut applied = Vec::new();
    while let Some(now) = tasks.join_next().await {
        applied.extend(now.expect("it does not panic"));
    }
    assert_eq!(applied, all(), "one of them did it all, the others found nothing to do");
}

#[tokio::test]
async fn a_failure_in_the_middle_changes_nothing() {
    let database = database().await;
    let mut connection = database.connect().await;
    execute(&mut connection, "CREATE SCHEMA relevo; CREATE TABLE relevo.tick (n int)").await.expect("a table");
    assert!(migrate(&mut connection, &Schema::default()).await.is_err(), "its table belongs to another session");
    let rows = execute(&mut connection, "SELECT count(*) FROM pg_class WHERE relnamespace = 'relevo'::regnamespace");
    assert_eq!(rows.await.expect("a count")[0].try_get::<i64, _>(0).expect("a count"), 1);
    execute(&mut connection, "DROP TABLE relevo.tick").await.expect("it was ours");
    assert_eq!(migrate(&mut connection, &Schema::default()).await.expect("nothing is in the way"), all());
}

/// A version that does not exist yet: a new column, a replaced function, and a new one that a consumer may call.
const SECOND: Migration = Migration {
    version: VERSION + 1,
    name: "second",
    files: &["ALTER TABLE parked_key ADD COLUMN note text;
        CREATE FUNCTION inbox_second() RETURNS int LANGUAGE sql AS 'SELECT 2';
        DO $$
        BEGIN
            EXECUTE replace(pg_get_functiondef('settle'::regproc), 'BEGIN', E'BEGIN -- second\\n');
            EXECUTE replace(pg_get_functiondef('grant_consumer'::regproc), 'inbox_prune TO', 'inbox_prune, inbox_second TO');
        END $$;"],
    compatible_from: 1,
};

/// A version on which no older program runs.
const THIRD: Migration = Migration { version: VERSION + 2, name: "third", files: &[], compatible_from: VERSION + 2 };

/// Other sessions queue behind a session that waits for an exclusive lock. One handler's transaction would block all of
/// them.
#[tokio::test]
async fn sessions_continue_while_a_migration_waits_for_a_table() {
    let database = database().await;
    let mut connection = database.connect().await;
    migrate(&mut connection, &Schema::default()).await.expect("an empty database");
    let (mut handler, mut other) = (database.connect().await, database.connect().await);
    execute(&mut handler, "BEGIN; SELECT count(*) FROM relevo.inbox_retry_message").await.expect("a transaction");
    let waits = Migration { files: &["ALTER TABLE inbox_retry_message ADD COLUMN later text;"], ..SECOND };
    let mut tasks = JoinSet::new();
    tasks.spawn(async move { apply(&mut connection, &Schema::default(), &[BASELINE, waits]).await });
    wait_until("the table is waited for", async || {
        let waits =
            "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'relevo.inbox_retry_message'::regclass";
        execute(&mut other, waits).await.expect("a count")[0].try_get::<i64, _>(0).expect("a count") > 0
    })
    .await;
    execute(&mut other, "SET lock_timeout = '30s'; SELECT count(*) FROM relevo.inbox_retry_message")
        .await
        .expect("its turn");
    assert!(tasks.try_join_next().is_none(), "the handler still has the table");
    execute(&mut handler, "COMMIT").await.expect("it ends");
    let applied = tasks.join_next().await.expect("one task").expect("it does not panic");
    assert_eq!(applied.expect("no other session has a lock"), [SECOND.version]);
}

/// Two outboxes in one database, one with a name that needs quotes.
#[tokio::test]
async fn another_schema_name_works_end_to_end() {
    let database = database().await;
    let mut connection = database.connect().await;
    let mut relays = Vec::new();
    let schemas = [Schema::default(), Schema::new("Mein-Outbox_2")];
    for schema in &schemas {
        migrate(&mut connection, schema).await.expect("an empty schema");
        let store = Store::open(Config { schema: schema.clone(), ..Config::new(database.options(), MAIN) });
        let store = Arc::new(store.await.expect("a migrated schema"));
        let operator = OperatorConfig { schema: schema.clone(), ..OperatorConfig::new(database.options()) };
        let operator = Operator::open(operator).await.expect("a migrated schema");
        assert!(operator.add_destination(MAIN, 4, StartFrom::Oldest).await.expect("a new destination"));
        let broker = MemoryBroker::new(BrokerConfig::default());
        relays.push((RunningRelay::start(Arc::clone(&store), &broker, config()), store, operator, broker));
    }
    let mut expected = Vec::new();
    for schema in &schemas {
        let mut tx = connection.begin().await.expect("a transaction");
        let outbox = Emitter::new(schema);
        let mut ids = Vec::new();
        for n in 0..20 {
            let draft = Draft { lock_key: true, ..Draft::json("orders", "k", "Counted", n.to_string()) };
            ids.push(outbox.emit(&mut tx, draft).await.expect("a good message"));
        }
        tx.commit().await.expect("it commits");
        expected.push(ids);
    }
    for ((relay, store, operator, broker), ids) in relays.into_iter().zip(expected) {
        wait_until("everything arrives", async || broker.received() >= 20).await;
        wait_until("everything is settled", async || operator.backlog().await.expect("a backlog").pending == 0).await;
        store.maintain(DEADLINE).await.expect("upkeep");
        relay.stop().await;
        let received: Vec<_> = broker.received_messages().iter().map(|receipt| receipt.id).collect();
        assert_eq!(received, ids);
    }
}

/// Lists every function, table, column, index and constraint with its definition and privileges.
const CATALOGUE: &str = "
    SELECT concat_ws(' ', 'function', p.oid::regprocedure, p.prosecdef, p.provolatile, p.proconfig, p.proacl,
        pg_get_function_result(p.oid), md5(p.prosrc)) COLLATE \"C\" AS line
    FROM pg_proc AS p WHERE p.pronamespace = 'relevo'::regnamespace
    UNION ALL
    SELECT concat_ws(' ', 'relation', c.relname, c.relkind, c.relacl, pg_get_indexdef(i.indexrelid),
        pg_get_expr(c.relpartbound, c.oid), CASE c.relkind WHEN 'v' THEN md5(pg_get_viewdef(c.oid)) END)
    FROM pg_class AS c LEFT JOIN pg_index AS i ON i.indexrelid = c.oid WHERE c.relnamespace = 'relevo'::regnamespace
    UNION ALL
    SELECT concat_ws(' ', 'column', a.attrelid::regclass, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,
        a.attidentity, pg_get_expr(d.adbin, d.adrelid))
    FROM pg_attribute AS a JOIN pg_class AS c ON c.oid = a.attrelid
    LEFT JOIN pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    WHERE c.relnamespace = 'relevo'::regnamespace AND a.attnum > 0 AND c.relkind NOT IN ('i', 'I')
    UNION ALL
    SELECT concat_ws(' ', 'constraint', o.conname, pg_get_constraintdef(o.oid))
    FROM pg_constraint AS o WHERE o.connamespace = 'relevo'::regnamespace
    UNION ALL
    SELECT concat_ws(' ', 'version', m.version, m.name) FROM relevo.migration AS m
    ORDER BY 1";

#[tokio::test]
async fn the_sql_script_creates_the_same_schema() {
    for version in PgVersion::ALL {
        let (migrated, scripted) = (Server::shared(version).database().await, Server::shared(version).database().await);
        migrate(&mut migrated.connect().await, &Schema::default()).await.expect("an empty database");
        let text = sql_script(&Schema::default());
        sqlx::raw_sql(AssertSqlSafe(text)).execute(&mut scripted.connect().await).await.expect("an empty database");
        let mut catalogues = Vec::new();
        for database in [&migrated, &scripted] {
            let rows = execute(&mut database.connect().await, CATALOGUE).await.expect("a catalogue");
            catalogues.push(rows.iter().map(|row| row.try_get(0).expect("a line")).collect::<Vec<String>>());
        }
        assert!(catalogues[0].len() > 200, "{} lines", catalogues[0].len());
        assert_eq!(catalogues[0], catalogues[1], "PostgreSQL {}", version.major());
        let again = migrate(&mut scripted.connect().await, &Schema::default()).await.expect("a migrated database");
        assert!(again.is_empty(), "what the DBA ran counts");
    }
}

async fn catalogue(database: &Database) -> Vec<String> {
    let rows = execute(&mut database.connect().await, CATALOGUE).await.expect("a catalogue");
    rows.iter().map(|row| row.try_get(0).expect("a line")).collect()
}

/// Another tool runs each script in one of its transactions, and then records it in a table of the default search path.
#[tokio::test]
async fn scripts_for_another_tool_upgrade_step_by_step_and_leave_the_search_path() {
    for version in PgVersion::ALL {
        let (migrated, scripted) = (Server::shared(version).database().await, Server::shared(version).database().await);
        let list = [BASELINE, SECOND];
        apply(&mut migrated.connect().await, &Schema::default(), &list).await.expect("an empty database");
        let mut tool = scripted.connect().await;
        execute(&mut tool, "CREATE TABLE tool_history (file text)").await.expect("a table");
        for to in [1, 2] {
            let script = between(&Schema::default(), &list, to - 1, to);
            let script = format!("BEGIN;\n{script}\nINSERT INTO tool_history VALUES ('V{to}'); COMMIT");
            sqlx::raw_sql(AssertSqlSafe(script)).execute(&mut tool).await.expect("the version before");
        }
        assert_eq!(catalogue(&migrated).await, catalogue(&scripted).await, "PostgreSQL {}", version.major());
        let rows =
            execute(&mut tool, "SELECT file FROM public.tool_history ORDER BY 1").await.expect("the tool's table");
        assert_eq!(rows.len(), 2);
    }
}

#[tokio::test]
async fn a_script_for_another_version_changes_nothing() {
    let database = database().await;
    let mut connection = database.connect().await;
    migrate(&mut connection, &Schema::default()).await.expect("an empty database");
    let before = catalogue(&database).await;
    let script = format!("BEGIN;\n{}\nCOMMIT", sql_between(&Schema::default(), 0, VERSION));
    let (_, message) = expect_error(&mut connection, &script).await;
    assert_eq!(message, format!("schema `relevo` is at version {VERSION}, this script upgrades version 0"));
    assert_eq!(catalogue(&database).await, before);
}

#[tokio::test]
async fn a_schema_mismatch_names_the_command_that_fixes_it() {
    let database = database().await;
    let open = async || match Store::open(Config::new(database.options(), MAIN)).await {
        Err(StoreError::SchemaMismatch { reason }) => reason,
        other => panic!("not refused: {:?}", other.map(|_| ())),
    };
    let what = open().await;
    assert!(what.contains("holds no outbox") && what.contains("`relevo migrate`"), "{what}");
    let mut connection = database.connect().await;
    migrate(&mut connection, &Schema::default()).await.expect("an empty database");
    let newer = format!("INSERT INTO relevo.migration (version, name) VALUES ({}, 'later')", VERSION + 1);
    execute(&mut connection, &newer).await.expect("a newer version");
    let what = open().await;
    assert!(what.contains("newer than this program") && what.contains("upgrade the program"), "{what}");
    let older = format!(
        "DELETE FROM relevo.migration; INSERT INTO relevo.migration VALUES ({}, 'older')",
        OLDEST_SUPPORTED - 1
    );
    execute(&mut connection, &older).await.expect("an older version");
    let what = open().await;
    let (old, needed) = (format!("version {}", OLDEST_SUPPORTED - 1), format!("needs {OLDEST_SUPPORTED}"));
    assert!(what.contains(&old) && what.contains(&needed) && what.contains("`relevo migrate`"), "{what}");
}

#[tokio::test]
async fn a_program_runs_on_a_newer_version_only_if_that_is_compatible() {
    let database = database().await;
    let mut connection = database.connect().await;
    let applied = apply(&mut connection, &Schema::default(), &[BASELINE, SECOND]).await;
    assert_eq!(applied.expect("an empty database"), [BASELINE.version, SECOND.version]);
    Store::open(Config::new(database.options(), MAIN)).await.expect("a compatible version");
    let applied = apply(&mut connection, &Schema::default(), &[BASELINE, SECOND, THIRD]).await;
    assert_eq!(applied.expect("an older version"), [THIRD.version]);
    let opened = Store::open(Config::new(database.options(), MAIN)).await.map(|_| ());
    let Err(StoreError::SchemaMismatch { reason }) = opened else { panic!("{opened:?}") };
    assert!(reason.contains("version 3") && reason.contains("upgrade the program"), "{reason}");
}

/// The snapshot of the schema. A change of the SQL changes the snapshot in the same commit.
#[tokio::test]
async fn the_catalogue_is_the_recorded_one() {
    let database = database().await;
    let mut connection = database.connect().await;
    migrate(&mut connection, &Schema::default()).await.expect("an empty database");
    let rows = execute(&mut connection, CATALOGUE).await.expect("a catalogue");
    let lines: Vec<&str> = rows.iter().map(|row| row.try_get::<&str, _>(0).expect("a line").trim_end()).collect();
    insta::assert_snapshot!("catalogue", lines.join("\n"));
}

/// A rolling restart: the schema is migrated while writers, relays and consumers with restricted roles run. Relays are
/// then replaced one by one. No operator repeats a grant.
#[tokio::test]
async fn a_schema_is_migrated_under_running_relays_and_consumers() {
    let world = TestDatabase::on_private_server().await;
    world.run("CREATE ROLE carrier LOGIN; CREATE ROLE \"odd one\" LOGIN; CREATE ROLE dropped").await;
    world
        .run("SELECT relevo.grant_relay('carrier'), relevo.grant_consumer('odd one'), relevo.grant_writer('dropped')")
        .await;
    world.run("DROP OWNED BY dropped; DROP ROLE dropped").await;
    let relay = async || store(world.database.options().username("carrier"), MAIN).await;
    let broker = MemoryBroker::new(BrokerConfig::default());
    let first = RunningRelay::start(relay().await, &broker, config());
    let second = RunningRelay::start(relay().await, &broker, config());
    let options = world.database.options().username("odd one");
    let inbox =
        Inbox::open(&inbox::Config::new(options.clone()), "before", InboxRetention::default()).await.expect("a grant");
    let (stop, walks) = (CancellationToken::new(), Arc::new(AtomicUsize::new(0)));
    let mut consumer = JoinSet::new();
    consumer.spawn({
        let (stop, walks) = (stop.clone(), Arc::clone(&walks));
        async move {
            while !stop.is_cancelled() {
                let name = format!("walk {}", walks.fetch_add(1, Ordering::SeqCst));
                crate::every_inbox_call::call_every_inbox_function(
                    &inbox.for_consumer(&name, InboxRetention::default()),
                )
                .await;
            }
        }
    });
    let traffic = BackgroundWriters::start(&world, 3);
    wait_until("messages flow", async || broker.received() >= 200 && walks.load(Ordering::SeqCst) > 1).await;
    let applied = apply(&mut world.connect().await, &Schema::default(), &[BASELINE, SECOND]).await;
    assert_eq!(applied.expect("an older version"), [SECOND.version]);
    let third = RunningRelay::start(relay().await, &broker, config());
    first.stop().await;
    let (received, walked) = (broker.received(), walks.load(Ordering::SeqCst));
    wait_until("messages flow past the migration", async || {
        broker.received() >= received + 200 && walks.load(Ordering::SeqCst) > walked + 1
    })
    .await;
    second.stop().await;
    let ledger = traffic.stop_after(&broker, broker.received() + 200).await;
    world.wait_until_drained().await;
    third.stop().await;
    assert_eq!(ledger.assert_received(&broker), 0);
    stop.cancel();
    consumer.join_next().await.expect("one task").expect("no call fails");
    let mut session = options.connect().await.expect("a role that may log in");
    execute(&mut session, "SELECT relevo.inbox_second()").await.expect("the migration granted it");
    let roles = world.texts("SELECT role_name || ' ' || kind FROM relevo.granted_role ORDER BY 1").await;
    assert_eq!(roles, ["carrier relay", "odd one consumer"], "a dropped role is forgotten");
}

#[tokio::test]
async fn a_missing_schema_is_distinguished_from_an_outage() {
    let database = database().await;
    let mut connection = database.connect().await;
    migrate(&mut connection, &Schema::default()).await.expect("an empty database");
    let store = Store::open(Config::new(database.options(), MAIN)).await.expect("a migrated database");
    execute(&mut connection, "DROP SCHEMA relevo CASCADE").await.expect("it is ours");
    let answer = store.maintain(DEADLINE).await;
    let Err(StoreError::SchemaMismatch { reason }) = answer else { panic!("{answer:?}") };
    assert!(reason.contains("`relevo migrate`"), "{reason}");
    let (code, _) = expect_error(&mut connection, "SELECT relevo.emit('t', 'k', 'T', '{}')").await;
    assert_eq!(code, "3F000");
}
