//! Rows of the table in docs/reference/failures.md that are about a destination without a relay.

use std::time::Duration;

use crate::daemon::{Daemon, until};
use crate::failure::run_command;
use crate::test_outbox::{BEGIN, TestOutbox};

const DAY: f64 = 86_400.0;

/// A relay of `main`, beside a destination `audit` with its own relay.
fn beside(shop: &TestOutbox) -> Daemon {
    run_command(shop, &["destination", "add", "audit"]);
    let often =
        "start = \"oldest\"\n[outboxes.shop.destinations.main.relay.advanced]\nmaintenance_interval = \"100ms\"\n";
    let outbox = shop.outbox("shop", &shop.database.url(), often);
    Daemon::start(&shop.directory.write("main.toml", &format!("{BEGIN}{outbox}")), &[])
}

/// The relay of `audit`.
fn audit(shop: &TestOutbox) -> Daemon {
    let outbox =
        shop.outbox("shop", &shop.database.url(), "").replace(".main", ".audit").replace("shop.db", "audit.db");
    Daemon::start(&shop.directory.write("audit.toml", &format!("{BEGIN}{outbox}")), &[])
}

/// Makes all rows a hundred days older. Later messages go into the next partition.
///
/// The relay attaches the next partition first: a number that jumps into it during the attachment is refused.
async fn a_hundred_days_pass(shop: &TestOutbox) {
    let attached = async {
        while shop.number("SELECT count(*) FROM relevo.message_partition").await < 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), attached).await.expect("maintenance attaches a partition");
    shop.run(
        "SELECT setval('relevo.message_seq', (SELECT end_seq + 100 FROM relevo.message_partition, relevo.message_seq \
             WHERE last_value >= first_seq AND last_value < end_seq))",
    )
    .await;
    for (table, column) in [("message", "created_at"), ("progress", "settled_at"), ("tick", "created_at")] {
        shop.run(&format!("UPDATE relevo.{table} SET {column} = {column} - interval '100 days'")).await;
    }
}

/// For how long a destination has held messages beyond their retention, in days.
fn held_back(daemon: &Daemon, destination: &str) -> Option<f64> {
    let labels = format!("{{service=\"relevo\",outbox=\"shop\",destination=\"{destination}\"}}");
    Some(daemon.value(&format!("outbox_retention_overdue_seconds{labels}"))? / DAY)
}

/// The row of a destination in the output of `relevo status`.
fn status(shop: &TestOutbox, destination: &str) -> String {
    let text = run_command(shop, &["status"]);
    let row = text.lines().find(|line| line.starts_with(destination));
    row.unwrap_or_else(|| panic!("{text}")).to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_destination_without_a_relay_holds_retention_back_and_catches_up() {
    let shop = TestOutbox::new().await;
    let mut main = beside(&shop);
    let mut first = audit(&shop);
    shop.emit("orders", 5).await;
    TestOutbox::taken(&main, "main", 5);
    TestOutbox::taken(&first, "audit", 5);
    until("they are settled", || first.metric("outbox_backlog_gauge{") == Some(0));
    run_command(&shop, &["destination", "disable", "audit"]);
    assert_eq!(first.end(), Some(1), "{}", first.log());
    until("the log has the reason", || first.log().contains("hint: Enable it with `relevo destination enable audit`"));
    shop.emit("orders", 10).await;
    TestOutbox::taken(&main, "main", 15);
    until("nothing is overdue", || held_back(&main, "audit") == Some(0.0));
    a_hundred_days_pass(&shop).await;
    shop.emit("orders", 1).await;
    TestOutbox::taken(&main, "main", 16);
    until("the relay of the other destination reports it", || held_back(&main, "audit") > Some(90.0));
    assert_eq!(held_back(&main, "main"), Some(0.0));
    let row = status(&shop, "audit");
    assert!(row.contains("disabled") && row.contains("0, 0 of 8 shards  11 "), "{row}");

    // It is enabled, but no process runs its relay.
    run_command(&shop, &["destination", "enable", "audit"]);
    let row = status(&shop, "audit");
    assert!(!row.contains("disabled") && row.contains("0, 0 of 8 shards  11 "), "{row}");
    assert!(held_back(&main, "audit") > Some(90.0));
    let mut second = audit(&shop);
    TestOutbox::taken(&second, "audit", 11);
    until("nothing is overdue any more", || held_back(&main, "audit") == Some(0.0));
    second.stop();
    main.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_destination_without_a_relay_fills_the_disk_or_loses_messages_by_the_overflow_policy() {
    let shop = TestOutbox::new().await;
    let mut main = beside(&shop);
    shop.emit("orders", 30).await;
    TestOutbox::taken(&main, "main", 30);
    a_hundred_days_pass(&shop).await;
    shop.run("UPDATE relevo.settings SET undelivered_rows_max = 10").await;
    shop.emit("orders", 1).await;
    TestOutbox::taken(&main, "main", 31);
    until("the overdue retention is reported", || held_back(&main, "audit") > Some(90.0));
    until("the overflow is logged", || main.log().contains("rows are kept"));
    assert_eq!(shop.number("SELECT count(*) FROM relevo.message").await, 31, "no row is deleted");

    shop.run("UPDATE relevo.settings SET overflow_policy = 'drop'").await;
    until("the loss is logged", || main.log().contains("30 rows from "));
    assert_eq!(shop.number("SELECT rows FROM relevo.data_loss").await, 30);
    until("nothing is overdue", || held_back(&main, "audit") == Some(0.0));
    let mut audit = audit(&shop);
    TestOutbox::taken(&audit, "audit", 1);
    audit.stop();
    main.stop();
}
