//! Rows of the table in docs/reference/failures.md that are about a destination that takes nothing.

use std::time::Duration;

use crate::daemon::{Daemon, until};
use crate::failure::said;
use crate::test_outbox::{BEGIN, TestOutbox};

const DAY: f64 = 86_400.0;

/// A relay of `main`, beside a destination `audit` whose relay is another's.
fn beside(world: &TestOutbox) -> Daemon {
    said(world, &["destination", "add", "audit"]);
    let often =
        "start = \"oldest\"\n[outboxes.shop.destinations.main.relay.advanced]\nmaintenance_interval = \"100ms\"\n";
    let outbox = world.outbox("shop", &world.database.url(), often);
    Daemon::start(&world.directory.write("main.toml", &format!("{BEGIN}{outbox}")), &[])
}

/// The relay of `audit`.
fn audit(world: &TestOutbox) -> Daemon {
    let outbox =
        world.outbox("shop", &world.database.url(), "").replace(".main", ".audit").replace("shop.db", "audit.db");
    Daemon::start(&world.directory.write("audit.toml", &format!("{BEGIN}{outbox}")), &[])
}

/// Everything up to now was a hundred days ago, and messages go into the next partition.
///
/// The relay attaches the next partition first: a number that jumps into it during the attachment is refused.
async fn a_hundred_days_pass(world: &TestOutbox) {
    let attached = async {
        while world.number("SELECT count(*) FROM relevo.message_partition").await < 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), attached).await.expect("maintenance attaches a partition");
    world
        .run(
            "SELECT setval('relevo.message_seq', (SELECT end_seq + 100 FROM relevo.message_partition, relevo.message_seq \
             WHERE last_value >= first_seq AND last_value < end_seq))",
        )
        .await;
    for (table, column) in [("message", "created_at"), ("progress", "settled_at"), ("tick", "created_at")] {
        world.run(&format!("UPDATE relevo.{table} SET {column} = {column} - interval '100 days'")).await;
    }
}

/// For how long a destination has kept messages beyond their retention, in days.
fn held_back(daemon: &Daemon, destination: &str) -> Option<f64> {
    let labels = format!("{{service=\"relevo\",outbox=\"shop\",destination=\"{destination}\"}}");
    Some(daemon.value(&format!("outbox_retention_overdue_seconds{labels}"))? / DAY)
}

/// What `relevo status` says of a destination.
fn status(world: &TestOutbox, destination: &str) -> String {
    let text = said(world, &["status"]);
    let row = text.lines().find(|line| line.starts_with(destination));
    row.unwrap_or_else(|| panic!("{text}")).to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_destination_that_nobody_carries_to_holds_retention_back_and_catches_up() {
    let world = TestOutbox::new().await;
    let mut main = beside(&world);
    let mut first = audit(&world);
    world.emit("orders", 5).await;
    TestOutbox::taken(&main, "main", 5);
    TestOutbox::taken(&first, "audit", 5);
    until("they are settled", || first.metric("outbox_backlog_gauge{") == Some(0));
    said(&world, &["destination", "disable", "audit"]);
    assert_eq!(first.end(), Some(1), "{}", first.log());
    until("it says why", || first.log().contains("switched off"));
    world.emit("orders", 10).await;
    TestOutbox::taken(&main, "main", 15);
    until("nothing is overdue", || held_back(&main, "audit") == Some(0.0));
    a_hundred_days_pass(&world).await;
    world.emit("orders", 1).await;
    TestOutbox::taken(&main, "main", 16);
    until("it is seen by who carries to the other", || held_back(&main, "audit") > Some(90.0));
    assert_eq!(held_back(&main, "main"), Some(0.0));
    let row = status(&world, "audit");
    assert!(row.contains("disabled") && row.contains("0, 0 of 8 shards  11 "), "{row}");

    // Switched on, nobody runs its relay.
    said(&world, &["destination", "enable", "audit"]);
    let row = status(&world, "audit");
    assert!(!row.contains("disabled") && row.contains("0, 0 of 8 shards  11 "), "{row}");
    assert!(held_back(&main, "audit") > Some(90.0));
    let mut second = audit(&world);
    TestOutbox::taken(&second, "audit", 11);
    until("nothing is overdue any more", || held_back(&main, "audit") == Some(0.0));
    second.stop();
    main.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_destination_that_stays_away_fills_the_disk_or_loses_as_the_setting_says() {
    let world = TestOutbox::new().await;
    let mut main = beside(&world);
    world.emit("orders", 30).await;
    TestOutbox::taken(&main, "main", 30);
    a_hundred_days_pass(&world).await;
    world.run("UPDATE relevo.settings SET undelivered_rows_max = 10").await;
    world.emit("orders", 1).await;
    TestOutbox::taken(&main, "main", 31);
    until("it is seen", || held_back(&main, "audit") > Some(90.0));
    until("it is told", || main.log().contains("rows are kept"));
    assert_eq!(world.number("SELECT count(*) FROM relevo.message").await, 31, "everything is kept");

    world.run("UPDATE relevo.settings SET overflow_policy = 'drop'").await;
    until("it is told", || main.log().contains("30 rows from "));
    assert_eq!(world.number("SELECT rows FROM relevo.data_loss").await, 30);
    until("nothing is overdue", || held_back(&main, "audit") == Some(0.0));
    let mut audit = audit(&world);
    TestOutbox::taken(&audit, "audit", 1);
    audit.stop();
    main.stop();
}
