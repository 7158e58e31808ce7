//! Rows of the table of failures in docs/guides/operate.md that no other test runs: what fails, what is seen, what mends it.

use std::process::{Command, Output};

use relevo_testkit::NatsVersion;
use relevo_testkit::nats::{Server, unique};

use crate::daemon::{Daemon, until};
use crate::nats::{at, route};
use crate::world::World;

const LABELS: &str = "{service=\"relevo\",outbox=\"shop\",destination=\"main\"}";

/// A lease that is short enough for a test to wait for its end.
const SHORT_LEASE: [(&str, &str); 4] = [
    ("RELEVO__RELAY__LEASE_MS", "2500"),
    ("RELEVO__RELAY__LEASE_MARGIN_MS", "200"),
    ("RELEVO__RELAY__PUBLISH_DEADLINE_MS", "1000"),
    ("RELEVO__OUTBOXES__SHOP__CALL_DEADLINE_MS", "2000"),
];

fn metric(daemon: &Daemon, name: &str) -> Option<i64> {
    daemon.metric(&format!("{name}{LABELS}"))
}

/// A metric that is a number with a fraction.
fn seconds(daemon: &Daemon, name: &str) -> Option<f64> {
    let (_, body) = daemon.get("/metrics");
    let line = body.lines().find(|line| line.starts_with(&format!("{name}{{")))?.to_owned();
    line.rsplit(' ').next()?.parse().ok()
}

fn relevo(world: &World, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_relevo"))
        .args(arguments)
        .env("RELEVO_DATABASE_URL", world.database.url())
        .output()
        .expect("the binary starts")
}

fn said(world: &World, arguments: &[&str]) -> String {
    let output = relevo(world, arguments);
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{arguments:?}: {out}{err}");
    format!("{out}{err}")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_relay_is_replaced_by_another_within_its_lease() {
    let world = World::new().await;
    let config = world.config("");
    let start = |name| Daemon::start(&config, &[&SHORT_LEASE[..], &[("RELEVO__NAME", name)]].concat());
    let (first, mut second) = (start("first"), start("second"));
    until("both have a share", || {
        metric(&first, "outbox_leases") == Some(4) && metric(&second, "outbox_leases") == Some(4)
    });
    drop(first);
    until("the other has everything", || metric(&second, "outbox_leases") == Some(8));
    assert!(metric(&second, "outbox_lease_changes_total") >= Some(8));
    world.emit("orders", 50).await;
    World::delivered(&second, "shop", 50);
    second.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_stood_still_past_its_lease_says_so_and_goes_on() {
    let world = World::new().await;
    let mut daemon = Daemon::start(&world.config(""), &SHORT_LEASE);
    until("it has its shards", || metric(&daemon, "outbox_leases") == Some(8));
    daemon.signal("STOP");
    let mut connection = world.database.connect().await;
    loop {
        let row = sqlx::raw_sql("SELECT count(*) FROM relevo.lease WHERE until > clock_timestamp()");
        let row = row.fetch_one(&mut connection).await.expect("leases");
        if sqlx::Row::try_get::<i64, _>(&row, 0).expect("a count") == 0 {
            break;
        }
        tokio::time::sleep(crate::daemon::POLL).await;
    }
    world.run("UPDATE relevo.lease SET epoch = epoch + 1, owner = gen_random_uuid()").await;
    daemon.signal("CONT");
    world.emit("orders", 20).await;
    World::delivered(&daemon, "shop", 20);
    assert!(metric(&daemon, "outbox_lease_changes_total") > Some(8), "it took them anew");
    daemon.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_can_never_pass_is_dead_until_it_is_redriven() {
    let world = World::new().await;
    let (server, stream) = (Server::shared(NatsVersion::V2_15), unique("shop"));
    let address = server.url().trim_start_matches("nats://").to_owned();
    let config = |more| world.carried_to(&[("main", &at(&address, &stream, more))], &route(&stream));
    let small = config("topology = \"apply\"\nmessage_bytes_max = 2000");
    let mut daemon = Daemon::start(&small, &[]);
    world.run("SELECT relevo.emit('orders', 'big', 'Happened', to_jsonb(repeat('x', 5000)))").await;
    world
        .run("SELECT relevo.emit('orders', 'big', 'Happened', '1'), relevo.emit('orders', 'small', 'Happened', '2')")
        .await;
    World::delivered(&daemon, "shop", 1);
    until("it is seen", || {
        metric(&daemon, "mq_dlq_total") == Some(1) && metric(&daemon, "outbox_parked_keys") == Some(1)
    });
    assert_eq!(metric(&daemon, "outbox_failed_permanent_total"), Some(1));
    assert_eq!(metric(&daemon, "outbox_pending_total"), Some(1), "what waits behind it");
    let why = said(&world, &["why", "big"]);
    assert!(why.contains("was given up") && why.contains("more than the 2000 that are allowed"), "{why}");
    daemon.stop();
    let mut daemon = Daemon::start(&config("topology = \"apply\""), &[]);
    said(&world, &["dead", "redrive", "--all", "--yes", "--reason", "the limit was raised"]);
    World::delivered(&daemon, "shop", 2);
    until("nothing is left", || {
        metric(&daemon, "mq_dlq_total") == Some(0) && metric(&daemon, "outbox_pending_total") == Some(0)
    });
    daemon.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_is_left_open_is_seen_and_holds_nothing_back() {
    let world = World::new().await;
    let mut daemon = world.start("");
    let mut open = world.database.connect().await;
    sqlx::raw_sql("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT relevo.emit('orders', 'late', 'Happened', '1')")
        .execute(&mut open)
        .await
        .expect("a good statement");
    world.emit("orders", 30).await;
    World::delivered(&daemon, "shop", 30);
    until("it is seen", || seconds(&daemon, "outbox_database_xmin_held_seconds") > Some(0.5));
    assert!(seconds(&daemon, "outbox_database_xmin_age_transactions") > Some(0.0));
    sqlx::raw_sql("COMMIT").execute(&mut open).await.expect("a commit");
    World::delivered(&daemon, "shop", 31);
    daemon.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_destination_that_is_switched_off_is_told_and_catches_up() {
    let world = World::new().await;
    let mut daemon = world.start("");
    world.emit("orders", 5).await;
    World::delivered(&daemon, "shop", 5);
    said(&world, &["destination", "switch", "main", "off"]);
    assert_eq!(daemon.end(), Some(1), "{}", daemon.log());
    assert!(daemon.log().contains("switched off"), "{}", daemon.log());
    world.emit("orders", 5).await;
    let why = said(&world, &["status", "--over", "10ms"]);
    assert!(why.contains("switched off"), "{why}");
    said(&world, &["destination", "switch", "main", "on"]);
    let mut daemon = world.start("");
    World::delivered(&daemon, "shop", 5);
    daemon.stop();
}
