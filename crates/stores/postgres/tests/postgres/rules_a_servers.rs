//! Rules A6 to A8, and other server events: crashes, standbys, history, other databases, two-phase commit, savepoints.

use crate::sql_support::{Reader, Session, SqlTest, emit, read_at};
use relevo_core::outbox::Position;
use relevo_core::outbox::leases::{LeaseRequest, ShardLeases as _};
use relevo_core::outbox::log::WindowLimit;
use relevo_core::store::StoreError;
use relevo_store_postgres::{Config, Store};
use relevo_testkit::PgVersion;
use relevo_testkit::postgres::{Private, Server};
use sqlx::ConnectOptions as _;
use uuid::Uuid;

const NONE: [&str; 0] = [];
const LABELS: &str = "SELECT type FROM relevo.message ORDER BY seq";

/// A server on which asynchronous commits stay in memory until a session flushes them.
async fn without_durable_commits() -> SqlTest {
    let bed = SqlTest::on_private_server(&[
        ("synchronous_commit", "off"),
        ("wal_writer_delay", "10s"),
        ("wal_level", "minimal"),
        ("max_wal_senders", "0"),
        ("full_page_writes", "off"),
    ])
    .await;
    let mut session = bed.session().await;
    let walwriter: i32 = session.scalar("SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'").await;
    let stop = std::process::Command::new("sh").args(["-c", &format!("kill -STOP {walwriter}")]).status();
    assert!(stop.expect("`sh` runs").success());
    // Flushes and starts a new WAL file. The following records fit into one page, which no process needs to write.
    session.run("SET synchronous_commit = on; CREATE TABLE flushed (); SELECT pg_switch_wal()").await;
    bed
}

async fn crash(bed: &SqlTest) {
    let server = bed.server.as_ref().expect("a server of its own");
    server.kill9().await;
    server.start_again().await;
}

#[tokio::test]
async fn a6_a_message_that_was_read_survives_a_crash() {
    let bed = without_durable_commits().await;
    let mut reader = Reader::start(&bed).await;
    for label in ["m1", "m2", "m3"] {
        bed.emit("k", label).await;
    }
    assert_eq!(reader.drain().await, ["m1", "m2", "m3"]);
    bed.emit("k", "unread").await;
    crash(&bed).await;
    assert_eq!(bed.session().await.list(LABELS).await, ["m1", "m2", "m3"], "the tick's flush, and nothing after it");
    bed.run("UPDATE relevo.lease SET expires_at = '-infinity'").await;
    let mut next = Reader::start(&bed).await;
    bed.emit("k", "m4").await;
    let read = next.drain().await;
    assert_eq!(read.last().map(String::as_str), Some("m4"));
    assert!([1, 4].contains(&read.len()), "progress may be lost, and then all of it repeats: {read:?}");
}

#[tokio::test]
async fn a6_a_tick_without_a_flush_publishes_an_uncommitted_message() {
    let bed = without_durable_commits().await;
    bed.mutate("make_tick", "set_config('synchronous_commit', 'on', true)", "1").await;
    bed.mutate("settle", "set_config('synchronous_commit', 'on', true)", "1").await;
    bed.run("SET synchronous_commit = on; CREATE TABLE flushed_too (); SELECT pg_switch_wal()").await;
    let mut reader = Reader::start(&bed).await;
    bed.run("SET synchronous_commit = on; CREATE TABLE flushed_again (); SELECT pg_switch_wal()").await;
    bed.emit("k", "ghost").await;
    let xid = "SELECT max(xid::text::bigint) FROM relevo.message";
    let ghost: i64 = bed.session().await.scalar(xid).await;
    assert_eq!(reader.drain().await, ["ghost"]);
    crash(&bed).await;
    assert_eq!(bed.session().await.list(LABELS).await, NONE, "it was published, and there is no row");
    bed.emit("k", "another").await;
    assert_eq!(bed.session().await.scalar::<i64>(xid).await, ghost, "even its transaction id is issued again");
}

#[tokio::test]
async fn a7_a_relay_refuses_a_standby() {
    let bed = SqlTest::on_private_server(&[]).await;
    let standby = bed.server.as_ref().expect("a server of its own").standby().await;
    let mut writer = bed.session().await;
    writer.run(&format!("BEGIN; {}", emit("k", "open"))).await;
    bed.emit("k", "committed").await;
    let mut there = Session::new(connect(&standby, &bed).await).await;
    let written: String = bed.session().await.scalar("SELECT pg_current_wal_flush_lsn()::text").await;
    wait_until_replayed(&mut there, &written).await;

    // The naive reader's snapshot treats an open transaction as visible.
    let open: String = writer.scalar("SELECT pg_current_xact_id()::text").await;
    let sees = format!("pg_visible_in_snapshot('{open}', pg_current_snapshot())");
    assert!(there.scalar::<bool>(&format!("SELECT {sees}")).await, "on the standby");
    assert!(!bed.session().await.scalar::<bool>(&format!("SELECT {sees}")).await, "on the primary");

    assert_eq!(there.expect_error("SELECT relevo.make_tick()").await, "RV002");
    let options = standby.options().database(bed.database.name());
    let store = Store::open(Config::new(options, "main")).await.expect("a standby can be opened");
    let request = LeaseRequest {
        owner: Uuid::new_v4(),
        name: "r".to_owned(),
        duration: crate::sql_support::DEADLINE,
        held: Vec::new(),
        release: Vec::new(),
    };
    assert!(matches!(store.acquire_leases(request.clone()).await, Err(StoreError::Standby)));
    let leases = bed.store().await.acquire_leases(request).await.expect("leases of the primary").leases;
    let read = read_at(&store, &leases, &Position::at(0), 10, WindowLimit::Unlimited).await;
    assert!(matches!(read, Err(StoreError::Standby)));
}

async fn connect(server: &Private, bed: &SqlTest) -> sqlx::PgConnection {
    server.options().database(bed.database.name()).connect().await.expect("a standby takes readers")
}

async fn wait_until_replayed(session: &mut Session, lsn: &str) {
    let deadline = tokio::time::Instant::now() + crate::sql_support::DEADLINE;
    while !session.scalar::<bool>(&format!("SELECT pg_last_wal_replay_lsn() >= '{lsn}'")).await {
        assert!(tokio::time::Instant::now() < deadline, "the standby does not follow");
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}

/// Returns the number of pages of messages and their indexes that sessions have read. PostgreSQL counts them when
/// sessions end.
async fn pages_touched(bed: &SqlTest) -> i64 {
    let others = "SELECT NOT EXISTS (SELECT 1 FROM pg_stat_activity WHERE datname = current_database()
        AND pid <> pg_backend_pid() AND backend_type = 'client backend')";
    bed.wait_until("every session has ended", others).await;
    bed.session()
        .await
        .scalar(
            "SELECT sum(heap_blks_hit + heap_blks_read + idx_blks_hit + idx_blks_read)::bigint
            FROM pg_statio_user_tables WHERE schemaname = 'relevo' AND relname LIKE 'message%'",
        )
        .await
}

#[tokio::test]
async fn a8_a_late_transaction_is_found_without_scanning_the_history() {
    let bed = SqlTest::on_shared_server(8).await;
    bed.run("ALTER TABLE relevo.message_1 SET (autovacuum_enabled = off)").await;
    let mut long = bed.session().await;
    long.run(&format!("BEGIN; {}", emit("k", "long"))).await;
    let mut loading = bed.session().await;
    loading
        .run_slow(
            "INSERT INTO relevo.message (seq, xid, slot, id, created_at, topic, key, type, content_type, payload)
            SELECT nextval('relevo.message_seq'), pg_current_xact_id(), 0, relevo.new_id(), clock_timestamp(), 't',
                'k', 'old', 'application/json', '{}' FROM generate_series(1, 200000)",
        )
        .await;
    loading.run_slow("VACUUM ANALYZE relevo.message").await;
    drop(loading);
    let mut reader = Reader::start(&bed).await;
    let tick: i64 = bed.session().await.scalar("SELECT tick FROM relevo.make_tick()").await;
    reader.settle(Position::at(tick)).await;
    reader.leave().await;
    let xid: String = long.scalar("SELECT pg_current_xact_id()::text").await;
    long.run("COMMIT").await;
    drop(long);

    let before = pages_touched(&bed).await;
    let mut reader = Reader::start(&bed).await;
    assert_eq!(reader.next(1000).await, ["long"]);
    drop(reader);
    let ours = pages_touched(&bed).await - before;

    let mut naive = bed.session().await;
    naive
        .run(
            "SET plan_cache_mode = force_generic_plan;
            PREPARE page(xid8[], bigint) AS SELECT type FROM relevo.message
            WHERE xid = ANY ($1) AND seq > $2 ORDER BY seq LIMIT 1000",
        )
        .await;
    assert_eq!(naive.list(&format!("EXECUTE page('{{{xid}}}', 0)")).await, ["long"]);
    drop(naive);
    let theirs = pages_touched(&bed).await - before - ours;
    assert!(ours <= 40, "{ours} pages for one message");
    assert!(theirs >= 1000, "{theirs} pages: the naive plan no longer walks the history, so that this shows nothing");
}

#[tokio::test]
async fn a8_a_page_of_some_shards_costs_a_page_and_not_the_window() {
    let bed = SqlTest::on_shared_server(8).await;
    bed.run("ALTER TABLE relevo.message_1 SET (autovacuum_enabled = off)").await;
    let mut large = bed.session().await;
    large
        .run_slow(
            "BEGIN; INSERT INTO relevo.message (seq, xid, slot, id, created_at, topic, key, type, content_type, payload)
            SELECT nextval('relevo.message_seq'), pg_current_xact_id(), n % 256, relevo.new_id(),
                clock_timestamp(), 't', 'k', 'm', 'application/json', '{}' FROM generate_series(1, 200000) AS n",
        )
        .await;
    let open: i64 = bed.session().await.scalar("SELECT tick FROM relevo.make_tick()").await;
    for statement in ["COMMIT", "VACUUM ANALYZE relevo.message", "SELECT relevo.make_tick()"] {
        large.run_slow(statement).await;
    }
    drop(large);
    let leases = Reader::start(&bed).await.leases;

    // First all messages are above the tick, then all are late.
    for after in [Position::at(0), Position::at(open)] {
        let before = pages_touched(&bed).await;
        let store = bed.store().await;
        let page = read_at(&store, &leases[..2], &after, 500, WindowLimit::Unlimited).await.expect("a page");
        assert_eq!(page.entries.len(), 500);
        drop(store);
        let ours = pages_touched(&bed).await - before;
        assert!(ours <= 200, "{ours} pages for 500 messages after {after:?}");
    }

    let before = pages_touched(&bed).await;
    let plain = "SELECT type FROM relevo.message WHERE seq > 0 AND seq <= 200000
        AND pg_visible_in_snapshot(xid, '9000000000:9000000000:') AND NOT pg_visible_in_snapshot(xid, '3:3:')
        AND slot % 8 IN (0, 1) ORDER BY seq LIMIT 500";
    assert_eq!(bed.session().await.list(plain).await.len(), 500);
    let theirs = pages_touched(&bed).await - before;
    assert!(theirs >= 1000, "{theirs} pages: the plain filter no longer scans the window, so that this shows nothing");
}

#[tokio::test]
async fn a_transaction_in_another_database_does_not_freeze_reading() {
    let bed = SqlTest::on_shared_server(8).await;
    let elsewhere = Server::shared(PgVersion::V15).database().await;
    let mut other = Session::new(elsewhere.connect().await).await;
    other.run("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT pg_current_xact_id()").await;
    let mut reader = Reader::start(&bed).await;
    bed.emit("k", "m1").await;
    let frozen = "SELECT type FROM relevo.message WHERE xid < pg_snapshot_xmin(pg_current_snapshot())";
    assert_eq!(bed.session().await.list(frozen).await, NONE, "below the oldest open transaction there is nothing");
    assert_eq!(reader.drain().await, ["m1"]);
    bed.emit("k", "m2").await;
    assert_eq!(reader.drain().await, ["m2"]);
    other.run("COMMIT").await;
    assert_eq!(reader.drain().await, NONE);
}

#[tokio::test]
async fn a_prepared_transaction_is_read_after_it_is_committed() {
    let bed = SqlTest::on_shared_server(8).await;
    let mut reader = Reader::start(&bed).await;
    let mut writer = bed.session().await;
    let name = Uuid::new_v4();
    writer.run(&format!("BEGIN; {}; PREPARE TRANSACTION '{name}'", emit("k", "prepared"))).await;
    drop(writer);
    bed.emit("k", "next").await;
    // A cursor over the numbers skips it.
    let mut naive = bed.session().await;
    let cursor: i64 = naive.scalar("SELECT max(seq) FROM relevo.message").await;
    let read = [reader.drain().await, reader.drain().await];
    naive.run(&format!("COMMIT PREPARED '{name}'")).await;
    assert_eq!(read, [vec!["next".to_owned()], Vec::new()], "not before");
    assert_eq!(naive.list(&format!("SELECT type FROM relevo.message WHERE seq > {cursor}")).await, NONE);
    assert_eq!(reader.drain().await, ["prepared"]);

    let mut writer = bed.session().await;
    writer.run(&format!("BEGIN; {}; PREPARE TRANSACTION '{name}'", emit("k", "undone"))).await;
    let read = reader.drain().await;
    writer.run(&format!("ROLLBACK PREPARED '{name}'")).await;
    assert_eq!(read, NONE);
    assert_eq!(reader.drain().await, NONE);
}

#[tokio::test]
async fn a_savepoint_s_messages_belong_to_the_whole_transaction() {
    let bed = SqlTest::on_shared_server(8).await;
    let mut reader = Reader::start(&bed).await;
    let mut writer = bed.session().await;
    writer.run(&format!("BEGIN; {}; SAVEPOINT a; {}", emit("k", "outer"), emit("k", "inner"))).await;
    writer.run(&format!("SAVEPOINT b; {}; ROLLBACK TO b", emit("k", "undone"))).await;
    bed.emit("k", "other").await;
    let mut naive = bed.session().await;
    let before: String = naive.scalar("SELECT pg_current_snapshot()::text").await;
    assert_eq!(reader.drain().await, ["other"]);
    writer.run("COMMIT").await;
    // The system column contains the savepoint's own transaction id, which no snapshot lists.
    let by = |xid: &str| {
        format!("SELECT type FROM relevo.message WHERE NOT pg_visible_in_snapshot({xid}, '{before}') ORDER BY seq")
    };
    assert_eq!(naive.list(&by("xmin::text::xid8")).await, ["outer"], "the inner one is lost");
    assert_eq!(naive.list(&by("xid")).await, ["outer", "inner"]);
    assert_eq!(reader.drain().await, ["outer", "inner"]);
}
