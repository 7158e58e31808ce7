//! Rows of the table in docs/reference/failures.md that no other test runs: the failure, its symptom and its fix.

use std::process::{Command, Output};
use std::time::{Duration, Instant};

use relevo_testkit::nats::{Server, unique};
use relevo_testkit::postgres::Private;
use relevo_testkit::{NatsVersion, PgVersion};

use crate::daemon::{Daemon, until};
use crate::nats::{at, route};
use crate::test_outbox::TestOutbox;

const LABELS: &str = "{service=\"relevo\",outbox=\"shop\",destination=\"main\"}";

/// A lease that is short enough for a test to wait for its end.
const LEASE: Duration = Duration::from_millis(2500);
/// The interval of lease checks, with time for a busy machine.
const SOON: Duration = Duration::from_millis(17_500);
const SHORT_LEASE: [(&str, &str); 4] = [
    ("RELEVO__RELAY__LEASE_DURATION", "2500ms"),
    ("RELEVO__RELAY__ADVANCED__LEASE_MARGIN", "200ms"),
    ("RELEVO__RELAY__PUBLISH_TIMEOUT", "1s"),
    ("RELEVO__OUTBOXES__SHOP__CALL_TIMEOUT", "2s"),
];

pub(crate) fn metric(daemon: &Daemon, name: &str) -> Option<i64> {
    daemon.metric(&format!("{name}{LABELS}"))
}

fn relevo(shop: &TestOutbox, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_relevo"))
        .args(arguments)
        .env("RELEVO_DATABASE_URL", shop.database.url())
        .output()
        .expect("the binary starts")
}

/// Runs a command that must succeed, and returns its output.
pub(crate) fn run_command(shop: &TestOutbox, arguments: &[&str]) -> String {
    let output = relevo(shop, arguments);
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{arguments:?}: {out}{err}");
    format!("{out}{err}")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_relay_is_replaced_by_another_within_its_lease() {
    let shop = TestOutbox::new().await;
    let config = shop.config("");
    let start = |name| Daemon::start(&config, &[&SHORT_LEASE[..], &[("RELEVO__NAME", name)]].concat());
    let (first, mut second) = (start("first"), start("second"));
    until("both relays hold shards", || {
        metric(&first, "outbox_leases") == Some(4) && metric(&second, "outbox_leases") == Some(4)
    });
    let changes = metric(&second, "outbox_lease_changes_total");
    let lock = shop.lock_broker().await;
    shop.emit("orders", 50).await;
    until("a message is in flight", || metric(&first, "outbox_in_flight_messages") > Some(0));
    drop(first);
    let killed = Instant::now();
    let longer = format!("expires_at > clock_timestamp() + interval '{} milliseconds'", LEASE.as_millis());
    let leases = shop.number(&format!("SELECT count(*) FROM relevo.lease WHERE {longer}")).await;
    assert_eq!(leases, 0, "no lease lasts longer");
    until("the other relay holds all shards", || metric(&second, "outbox_leases") == Some(8));
    assert!(killed.elapsed() < LEASE + SOON, "{:?}", killed.elapsed());
    assert!(metric(&second, "outbox_lease_changes_total") >= changes.map(|changes| changes + 4));
    drop(lock);
    TestOutbox::delivered(&second, "shop", 50);
    second.stop();
    assert_eq!(shop.arrived("shop").await.len(), 50, "messages in flight keep their ids");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_was_suspended_past_its_lease_reports_it_and_continues() {
    let shop = TestOutbox::new().await;
    let mut daemon = Daemon::start(&shop.config(""), &SHORT_LEASE);
    until("the relay holds its shards", || metric(&daemon, "outbox_leases") == Some(8));
    daemon.signal("STOP");
    let mut connection = shop.database.connect().await;
    loop {
        let row = sqlx::raw_sql("SELECT count(*) FROM relevo.lease WHERE expires_at > clock_timestamp()");
        let row = row.fetch_one(&mut connection).await.expect("leases");
        if sqlx::Row::try_get::<i64, _>(&row, 0).expect("a count") == 0 {
            break;
        }
        tokio::time::sleep(crate::daemon::POLL).await;
    }
    shop.run("UPDATE relevo.lease SET epoch = epoch + 1, owner = gen_random_uuid()").await;
    daemon.signal("CONT");
    shop.emit("orders", 20).await;
    TestOutbox::delivered(&daemon, "shop", 20);
    until("the relay holds its shards again", || metric(&daemon, "outbox_leases") == Some(8));
    assert!(metric(&daemon, "outbox_lease_changes_total") >= Some(16), "taken, and taken anew");
    // If it was suspended during a call, that call times out.
    let (lost, outages) =
        (metric(&daemon, "outbox_leases_lost_total"), metric(&daemon, "outbox_database_outages_total"));
    assert!(lost == Some(8) || outages >= Some(1), "{lost:?} {outages:?}:\n{}", daemon.log());
    daemon.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_can_never_pass_is_dead_until_it_is_redriven() {
    let shop = TestOutbox::new().await;
    let (server, stream) = (Server::shared(NatsVersion::V2_15), unique("shop"));
    let address = server.url().trim_start_matches("nats://").to_owned();
    let config = |more| shop.with_destinations(&[("main", &at(&address, &stream, more))], &route(&stream));
    let small = config("topology_on_start = \"apply\"\nmessage_size_max = \"2000B\"");
    let mut daemon = Daemon::start(&small, &[]);
    shop.run("SELECT relevo.emit('orders', 'big', 'Happened', to_jsonb(repeat('x', 5000)))").await;
    shop.run("SELECT relevo.emit('orders', 'big', 'Happened', '1'), relevo.emit('orders', 'small', 'Happened', '2')")
        .await;
    TestOutbox::delivered(&daemon, "shop", 1);
    until("it is seen", || {
        metric(&daemon, "mq_dlq_total") == Some(1) && metric(&daemon, "outbox_parked_keys") == Some(1)
    });
    assert_eq!(metric(&daemon, "outbox_failed_permanent_total"), Some(1));
    assert_eq!(metric(&daemon, "outbox_pending_total"), Some(1), "what waits behind it");
    let why = run_command(&shop, &["why", "big"]);
    assert!(why.contains("is a dead letter") && why.contains("the limit is 2000"), "{why}");
    daemon.stop();
    let mut daemon = Daemon::start(&config("topology_on_start = \"apply\""), &[]);
    run_command(&shop, &["dead-letter", "redrive", "-d", "main", "--all", "--yes", "--reason", "the limit was raised"]);
    TestOutbox::delivered(&daemon, "shop", 2);
    until("nothing is left", || {
        metric(&daemon, "mq_dlq_total") == Some(0) && metric(&daemon, "outbox_pending_total") == Some(0)
    });
    daemon.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_is_left_open_is_seen_and_holds_nothing_back() {
    // On a shared server, transactions of other tests would count too.
    let server = Private::start(PgVersion::V15).await;
    let shop = TestOutbox::of(server.database().await).await;
    let mut daemon = shop.start("");
    let held = |seconds: &dyn Fn(f64) -> bool| daemon.value("outbox_database_xmin_held_seconds{").is_some_and(seconds);
    for (so_far, level) in [(0, "READ COMMITTED"), (31, "REPEATABLE READ")] {
        let mut open = shop.database.connect().await;
        let begin = format!("BEGIN ISOLATION LEVEL {level}; SELECT relevo.emit('orders', 'late', 'Happened', '1')");
        sqlx::raw_sql(sqlx::AssertSqlSafe(begin)).execute(&mut open).await.expect("a good statement");
        shop.emit("orders", 30).await;
        TestOutbox::delivered(&daemon, "shop", so_far + 30);
        until("it is seen", || held(&|seconds| seconds > 0.5));
        assert!(daemon.metric("outbox_database_xmin_age_transactions{") > Some(0), "{level}");
        sqlx::raw_sql("COMMIT").execute(&mut open).await.expect("a commit");
        TestOutbox::delivered(&daemon, "shop", so_far + 31);
        until("it is over", || held(&|seconds| seconds < 0.5));
    }
    daemon.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_sample_is_logged_and_delivery_continues() {
    let shop = TestOutbox::new().await;
    let mut daemon = shop.start("");
    shop.emit("orders", 10).await;
    TestOutbox::delivered(&daemon, "shop", 10);
    let age = || daemon.value(&format!("outbox_sample_age_seconds{LABELS}"));
    let xmin = || metric(&daemon, "outbox_database_xmin_age_transactions");
    until("it is sampled", || xmin().is_some() && age() < Some(2.0));
    // Only the sampler reads this table.
    shop.run("ALTER TABLE relevo.inbox_dead_letter RENAME TO hidden").await;
    let warned = daemon.line("cannot be sampled: the last sample is exported for a minute");
    assert_eq!(warned["level"], "WARN");
    assert_eq!(warned["what"], "outbox `shop`");
    assert!(warned["error"].as_str().is_some_and(|error| error.contains("inbox_dead_letter")), "{warned}");
    assert!(xmin().is_some(), "the last sample is still exported");
    shop.emit("orders", 10).await;
    TestOutbox::delivered(&daemon, "shop", 20);
    until("the age grows", || age() > Some(3.0));
    assert!(xmin().is_some(), "for less than a minute the last sample is exported");
    shop.run("ALTER TABLE relevo.hidden RENAME TO inbox_dead_letter").await;
    assert_eq!(daemon.line("can be sampled again")["level"], "INFO");
    until("it is sampled", || xmin().is_some() && age() < Some(2.0));
    // Other samples that were late log this message too.
    let log = daemon.log();
    let warnings =
        log.lines().filter(|line| line.contains("cannot be sampled: ") && line.contains("inbox_dead_letter"));
    assert_eq!(warnings.count(), 1, "the failure is logged once:\n{log}");
    daemon.stop();
}
