//! Tests each finding of `doctor` on a real server.

use crate::relay_support::{TestDatabase, execute, operator};
use relevo_conformance::outbox::main_calls::MainCalls as _;
use relevo_core::finding::{Finding, Severity};
use relevo_store_postgres::{Operator, Schema, migrate};
use relevo_testkit::PgVersion;
use relevo_testkit::postgres::Private;

async fn examine(store: &Operator) -> Vec<Finding> {
    store.examine().await.expect("an answer")
}

fn findings_of<'a>(findings: &'a [Finding], subject: &str) -> Vec<&'a Finding> {
    findings.iter().filter(|finding| finding.subject == subject).collect()
}

/// Returns the only finding of a subject.
fn finding_of<'a>(findings: &'a [Finding], subject: &str) -> &'a Finding {
    let found = findings_of(findings, subject);
    assert_eq!(found.len(), 1, "{subject}: {found:?}");
    found[0]
}

async fn with_server_settings(settings: &[(&str, &str)]) -> TestDatabase {
    let server = Private::start_with(PgVersion::V15, settings).await;
    let world = TestDatabase { database: server.database().await, server: Some(server) };
    migrate::migrate(&mut world.connect().await, &Schema::default()).await.expect("an empty database");
    world.run("SELECT relevo.add_destination('main', 4, 'oldest')").await;
    world
}

#[tokio::test]
async fn every_supported_version_is_examined_and_every_problem_has_a_fix() {
    for version in PgVersion::ALL {
        let world = TestDatabase::on_version(version).await;
        let findings = examine(&world.operator().await).await;
        assert_eq!(finding_of(&findings, "server version").detail, format!("PostgreSQL {}", version.major()));
        assert_eq!(finding_of(&findings, "server version").severity, Severity::Ok);
        for good in ["clock", "schema version", "identity", "grants", "partitions", "full_page_writes"] {
            assert_eq!(finding_of(&findings, good).severity, Severity::Ok, "{findings:?}");
        }
        assert!(findings.iter().all(|it| it.severity < Severity::Warning || it.fix.is_some()), "{findings:?}");
    }
}

#[tokio::test]
async fn settings_that_lose_commits_are_dangers_and_warnings() {
    let world = with_server_settings(&[
        ("fsync", "off"),
        ("full_page_writes", "off"),
        ("idle_in_transaction_session_timeout", "10min"),
    ])
    .await;
    world.run("CREATE ROLE hasty; ALTER ROLE hasty SET synchronous_commit = off").await;
    world.run(&format!("ALTER DATABASE {} SET synchronous_commit = off", world.database.name())).await;
    let findings = examine(&world.operator().await).await;
    assert_eq!(finding_of(&findings, "fsync").severity, Severity::Danger);
    assert_eq!(finding_of(&findings, "full_page_writes").severity, Severity::Danger);
    assert_eq!(finding_of(&findings, "idle_in_transaction_session_timeout").severity, Severity::Ok);
    let loose = findings_of(&findings, "synchronous_commit");
    assert!(loose.iter().all(|finding| finding.severity == Severity::Warning), "{loose:?}");
    let details: Vec<&str> = loose.iter().map(|finding| finding.detail.as_str()).collect();
    assert_eq!(details.len(), 3, "this session, the database and the role: {details:?}");
    assert!(details.iter().any(|seen| seen.contains("for role `hasty`")), "{details:?}");
    assert!(details.iter().any(|seen| seen.contains("for every role in database")), "{details:?}");
}

#[tokio::test]
async fn sessions_that_hold_xmin_are_named() {
    let world = with_server_settings(&[("max_prepared_transactions", "4"), ("wal_level", "logical")]).await;
    let store = world.operator().await;
    let none = examine(&store).await;
    for subject in ["held xmin", "prepared transactions", "replication slots"] {
        assert_eq!(finding_of(&none, subject).severity, Severity::Ok, "{subject}");
    }
    // The slot comes first, because its creation waits for all open transactions.
    world.run("SELECT pg_create_logical_replication_slot('forgotten', 'pgoutput')").await;
    let mut holder = world.connect().await;
    let hold = "SET application_name = 'report'; BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1";
    execute(&mut holder, hold).await.expect("a transaction");
    let mut writer = world.connect().await;
    let write = "SET application_name = 'import'; BEGIN; SELECT relevo.emit('orders', 'k', 'T', '{}')";
    execute(&mut writer, write).await.expect("a transaction");
    world.run("BEGIN; SELECT relevo.emit('orders', 'k', 'T', '{}'); PREPARE TRANSACTION 'it''s lost'").await;
    // A transaction is reported when it is older than a second.
    crate::relay_support::wait_until("the session is details", async || {
        let findings = examine(&store).await;
        let details = |seen: &str| findings_of(&findings, "held xmin").iter().any(|it| it.detail.contains(seen));
        // The second session has written and has no snapshot.
        details("`report`, idle in transaction") && details("`import`, idle in transaction")
    })
    .await;
    let findings = examine(&store).await;
    let session = findings_of(&findings, "held xmin")[0];
    assert!(session.fix.as_deref().is_some_and(|fix| fix.contains("pg_terminate_backend(")), "{session:?}");
    let prepared = finding_of(&findings, "prepared transactions");
    assert_eq!(prepared.severity, Severity::Note);
    assert!(prepared.detail.starts_with("`it's lost` of `postgres`"), "{prepared:?}");
    assert!(prepared.fix.as_deref().is_some_and(|fix| fix.contains("ROLLBACK PREPARED 'it''s lost'")), "{prepared:?}");
    let slot = finding_of(&findings, "replication slots");
    assert_eq!(slot.severity, Severity::Warning);
    assert!(slot.detail.starts_with("logical slot `forgotten` is without a reader; it holds xmin"), "{slot:?}");
    assert!(slot.fix.as_deref().is_some_and(|fix| fix.contains("pg_drop_replication_slot('forgotten')")), "{slot:?}");
}

#[tokio::test]
async fn missing_grants_and_hidden_sessions_are_reported() {
    let world = with_server_settings(&[]).await;
    world.run("CREATE ROLE carrier LOGIN; CREATE ROLE reader LOGIN; SELECT relevo.grant_relay('carrier')").await;
    world
        .run("GRANT USAGE ON SCHEMA relevo TO reader; GRANT SELECT ON relevo.migration, relevo.destination TO reader")
        .await;
    let carrier = operator(world.database.options().username("carrier")).await;
    let findings = examine(&carrier).await;
    assert_eq!(finding_of(&findings, "grants").severity, Severity::Ok, "{findings:?}");
    assert_eq!(finding_of(&findings, "pg_monitor").severity, Severity::Note);
    world.run("GRANT pg_monitor TO carrier").await;
    assert!(findings_of(&examine(&carrier).await, "pg_monitor").is_empty());

    let reader = operator(world.database.options().username("reader")).await;
    let findings = examine(&reader).await;
    let grants = finding_of(&findings, "grants");
    assert_eq!(grants.severity, Severity::Warning);
    assert!(
        grants.detail.contains("execute acquire_leases") && grants.detail.contains("select on message"),
        "{grants:?}"
    );
    assert_eq!(grants.fix.as_deref(), Some("`SELECT \"relevo\".grant_relay('reader')`, as the owner"));
    let retention = finding_of(&findings, "retention");
    assert_eq!(retention.severity, Severity::Note);
    assert!(retention.detail.starts_with("missing privilege: permission denied"), "{retention:?}");
}

#[tokio::test]
async fn lagging_destinations_are_reported_with_the_one_that_delays_retention() {
    let world = TestDatabase::new().await;
    let store = world.operator().await;
    let free = finding_of(&examine(&store).await, "destinations").clone();
    assert_eq!((free.severity, &*free.detail), (Severity::Warning, "`main`: 8 of 8 shards have no relay"));
    world.run("UPDATE relevo.lease SET owner = gen_random_uuid(), expires_at = now() + interval '1 hour'").await;
    assert_eq!(finding_of(&examine(&store).await, "destinations").severity, Severity::Ok);
    world.run("SELECT relevo.disable_destination('main')").await;
    let off = finding_of(&examine(&store).await, "destinations").clone();
    assert!(off.severity == Severity::Warning && off.detail.starts_with("`main` is disabled"), "{off:?}");
    world.run("SELECT relevo.enable_destination('main')").await;

    assert_eq!(finding_of(&examine(&store).await, "retention").detail, "`main` has taken everything that is kept");
    world.emit(&["a", "b"]).await;
    world.run("SELECT relevo.add_destination('audit', 1, 'now')").await;
    world.run("UPDATE relevo.message SET created_at = created_at - interval '5 days'").await;
    let findings = examine(&store).await;
    let [main, audit] = findings_of(&findings, "retention")[..] else { panic!("one each: {findings:?}") };
    assert_eq!(main.severity, Severity::Note);
    assert!(
        main.detail.starts_with("`main` is behind by 2 rows; the oldest it may not have taken is 5 days old"),
        "{main:?}"
    );
    assert!(main.detail.ends_with("retention waits for this destination"), "{main:?}");
    assert_eq!(audit.severity, Severity::Ok);
    world.run("UPDATE relevo.message SET created_at = created_at - interval '5 days'").await;
    assert_eq!(findings_of(&examine(&store).await, "retention")[0].severity, Severity::Warning);
    world.run("UPDATE relevo.settings SET undelivered_rows_max = 1, overflow_policy = 'drop'").await;
    assert_eq!(findings_of(&examine(&store).await, "retention")[0].severity, Severity::Danger);
    world.run("INSERT INTO relevo.data_loss (first_seq, end_seq, rows) VALUES (1, 3, 2)").await;
    let loss = finding_of(&examine(&store).await, "losses").clone();
    assert!(loss.severity == Severity::Danger && loss.detail.starts_with("2 rows were dropped"), "{loss:?}");
}

#[tokio::test]
async fn missing_destinations_overflow_rows_and_dead_letters_are_reported() {
    let world = TestDatabase::new().await;
    world.run("SELECT setval('relevo.message_seq', 5000000)").await;
    world.emit(&["a"]).await;
    let store = world.operator().await;
    let overflow = finding_of(&examine(&store).await, "partitions").clone();
    assert!(overflow.severity == Severity::Warning && overflow.detail.contains("overflow"), "{overflow:?}");
    world
        .run(
            "INSERT INTO relevo.address_hold (destination, address, class, error, next_at) VALUES ('main', 'wall', 'blocked', 'no', now()); \
             INSERT INTO relevo.dead_letter (destination, id, seq, slot, created_at, topic, key, type, content_type, payload, \
             route, class, error, attempts) SELECT 'main', id, seq, slot, created_at, topic, key, type, content_type, payload, \
             'r', 'poison', 'no', 3 FROM relevo.message",
        )
        .await;
    let findings = examine(&store).await;
    assert_eq!(finding_of(&findings, "held addresses").detail, "`main`: deliveries to `wall` (no) are on hold");
    assert_eq!(finding_of(&findings, "dead letters").severity, Severity::Note);
    world.run("SELECT relevo.reshard_destination('main', 16)").await;
    assert!(
        findings_of(&examine(&store).await, "destinations").iter().any(|it| it.detail == "`main` is being resharded")
    );
    world.run("SELECT relevo.remove_destination('main')").await;
    let none = finding_of(&examine(&store).await, "destinations").clone();
    assert!(none.severity == Severity::Warning && none.detail.starts_with("there is none"), "{none:?}");
}

#[tokio::test]
async fn a_copy_a_standby_and_another_schema_version_are_reported() {
    let world = TestDatabase::on_private_server().await;
    let standby = world.private_server().standby().await;
    let options = world.database.options().port(standby.port());
    crate::relay_support::wait_until("the standby has caught up", async || {
        use sqlx::ConnectOptions as _;
        let Ok(mut connection) = options.clone().connect().await else { return false };
        execute(&mut connection, "SELECT 1 FROM relevo.lease").await.is_ok_and(|rows| !rows.is_empty())
    })
    .await;
    let findings = examine(&operator(options).await).await;
    assert_eq!(finding_of(&findings, "standby").severity, Severity::Danger);

    let store = world.operator().await;
    world.run("UPDATE relevo.database_identity SET database_oid = 1").await;
    let copy = finding_of(&examine(&store).await, "identity").clone();
    assert!(copy.severity == Severity::Danger && copy.fix.is_some_and(|fix| fix.contains("`relevo outbox adopt`")));
    let newest = migrate::VERSION;
    world.run(&format!("UPDATE relevo.migration SET version = 0 WHERE version = {newest}")).await;
    let old = finding_of(&examine(&store).await, "schema version").clone();
    assert_eq!((old.severity, old.fix.as_deref()), (Severity::Note, Some("`relevo migrate`")));
    world.run(&format!("INSERT INTO relevo.migration (version, name) VALUES ({}, 'later')", newest + 1)).await;
    assert_eq!(finding_of(&examine(&store).await, "schema version").severity, Severity::Note);
}
