//! Outages of the database and of the broker.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use relevo_testkit::proxy::CutProxy;

use crate::daemon::{Daemon, until};
use crate::test_outbox::{BEGIN, TestOutbox};

/// A proxy before the outbox's database, and a configuration file that uses it.
async fn behind_proxy(shop: &TestOutbox) -> (CutProxy, std::path::PathBuf) {
    let options = shop.database.options();
    let upstream: SocketAddr = format!("{}:{}", options.get_host(), options.get_port()).parse().expect("an address");
    let proxy = CutProxy::start(upstream).await;
    let url = shop.database.url().replace(&upstream.to_string(), &proxy.addr().to_string());
    let outbox = shop.outbox(
        "shop",
        &url,
        "start = \"oldest\"\n[outboxes.shop.destinations.main.relay]\noutage_backoff_max = \"200ms\"",
    );
    let file = shop.directory.write("relevo.toml", &format!("{BEGIN}{outbox}"));
    (proxy, file)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_is_unreachable_at_startup_is_retried() {
    let shop = TestOutbox::new().await;
    shop.emit("orders", 10).await;
    let (proxy, file) = behind_proxy(&shop).await;
    proxy.block().await;
    let mut daemon = Daemon::start(&file, &[]);
    daemon.nth_line("database unreachable, will retry", 3);
    let (status, body) = daemon.get("/readyz");
    assert!(status == 503 && body.contains("waiting for the database: "), "{status} {body}");
    let json: serde_json::Value = serde_json::from_str(&body).expect("JSON");
    assert_eq!((&json["checks"][0]["outbox"], &json["checks"][0]["ok"]), (&"shop".into(), &false.into()), "{body}");
    assert_eq!(daemon.get("/livez").0, 200, "a waiting process is alive");
    let (status, body) = daemon.get("/startupz");
    assert!(
        status == 200 && body.contains("waiting for the database"),
        "a waiting process has started: {status} {body}"
    );
    proxy.unblock();
    TestOutbox::delivered(&daemon, "shop", 10);
    daemon.ready();
    assert!(daemon.metric("outbox_database_outages_total{") >= Some(3));
    daemon.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_database_is_retried_and_scrapes_do_not_wait_for_it() {
    let shop = TestOutbox::new().await;
    let (proxy, file) = behind_proxy(&shop).await;
    let mut daemon = Daemon::start(&file, &[]);
    shop.emit("orders", 10).await;
    TestOutbox::delivered(&daemon, "shop", 10);
    until("the backlog is known", || daemon.metric("outbox_backlog_gauge{") == Some(0));
    let found = daemon.metric("outbox_database_outages_total{");
    proxy.block().await;
    until("it is not ready", || daemon.get("/readyz").0 == 503);
    until("the outage is counted", || daemon.metric("outbox_database_outages_total{") > found);
    until("the age of the sample is reported", || daemon.value("outbox_sample_age_seconds{") > Some(2.0));
    assert_eq!(daemon.metric("outbox_backlog_gauge{"), Some(0), "it was known less than a minute ago");
    assert_eq!(daemon.get("/livez").0, 200);
    proxy.unblock();
    daemon.ready();
    shop.emit("orders", 10).await;
    TestOutbox::delivered(&daemon, "shop", 20);
    // A database that takes calls and never answers is the worst case for a scrape.
    proxy.freeze();
    let scrape = |_| {
        let begun = Instant::now();
        assert_eq!(daemon.get("/metrics").0, 200);
        begun.elapsed()
    };
    // A scrape that waits for the database would always take long.
    let took: Vec<Duration> = (0..3).map(scrape).collect();
    assert!(took.iter().any(|took| took.as_secs() < 2), "{took:?}");
    proxy.thaw();
    daemon.stop();
    assert_eq!(shop.arrived("shop").await.len(), 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_that_a_retry_cannot_fix_ends_the_process() {
    let shop = TestOutbox::new().await;
    let mut daemon = shop.start("");
    daemon.ready();
    let off = "SELECT relevo.disable_destination('main')";
    shop.run(off).await;
    assert_eq!(daemon.end(), Some(1), "{}", daemon.log());
    until("the log has the reason", || {
        daemon.log().contains("error: outbox `shop`, destination `main`: the store refuses to serve this relay")
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_cannot_be_opened_is_one_clear_error() {
    let shop = TestOutbox::new().await;
    let text = std::fs::read_to_string(shop.config("")).unwrap();
    let text = text.replace("shop.db", "no/such/directory/shop.db");
    let mut daemon = Daemon::start(&shop.directory.write("relevo.toml", &text), &[]);
    assert_eq!(daemon.end(), Some(1));
    until("the log has the hint", || daemon.log().contains("hint: its directory must exist"));
    assert!(
        daemon.log().contains("no/such/directory/shop.db`: the broker's file cannot be opened"),
        "{}",
        daemon.log()
    );
    let line = daemon.line("a component failed: stopping");
    assert_eq!(line["hint"], "its directory must exist, and this user may write there");
    assert!(!line["error"].as_str().unwrap().contains("hint"), "{line}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_is_locked_later_is_reported_as_unreachable_and_retried() {
    let shop = TestOutbox::new().await;
    let mut daemon = shop.start("[relay]\npublish_timeout = \"2s\"\n");
    shop.emit("orders", 1).await;
    TestOutbox::delivered(&daemon, "shop", 1);
    let lock = shop.lock_broker().await;
    shop.emit("orders", 5).await;
    let line = daemon.line("broker unreachable, publishing paused");
    assert_eq!(line["level"], "WARN");
    assert!(line["error"].as_str().unwrap().contains("the broker's file is locked by another process"), "{line}");
    until("the probe reports the outage", || daemon.get("/readyz").1.contains(", the broker is unreachable"));
    drop(lock);
    TestOutbox::delivered(&daemon, "shop", 6);
    daemon.stop();
    assert_eq!(shop.arrived("shop").await.len(), 6);
}

#[tokio::test(flavor = "multi_thread")]
async fn destinations_that_share_a_new_broker_do_not_lock_each_other_out() {
    let shop = TestOutbox::new().await;
    let text = std::fs::read_to_string(shop.config("")).unwrap();
    let section = text.split_once("[outboxes.shop.destinations.main]").unwrap().1;
    let second = |name: &str| format!("[outboxes.shop.destinations.{name}]{}", section.replace("main", name));
    let text = format!("{text}{}{}", second("second"), second("third").replace("/shop.db", "/./shop.db"));
    let mut daemon = Daemon::start(&shop.directory.write("relevo.toml", &text), &[]);
    daemon.ready();
    shop.emit("orders", 10).await;
    for destination in ["main", "second", "third"] {
        let name = format!("outbox_published_total{{service=\"relevo\",outbox=\"shop\",destination=\"{destination}\"");
        until("all arrived", || daemon.metric(&name) == Some(10));
    }
    daemon.stop();
    assert!(!daemon.log().contains("\"WARN\""), "{}", daemon.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_is_locked_at_startup_is_retried() {
    let shop = TestOutbox::new().await;
    let lock = shop.lock_broker().await;
    let mut daemon = shop.start("");
    let line = daemon.line("broker unreachable, will retry");
    assert_eq!((&line["span"]["outbox"], &line["span"]["destination"]), (&"shop".into(), &"main".into()));
    assert!(daemon.get("/readyz").1.contains("waiting for the broker: "));
    drop(lock);
    daemon.ready();
    daemon.stop();
}

/// Whether the last sample of the outbox is recent.
fn is_sampled(daemon: &Daemon) -> bool {
    daemon.value("outbox_sample_age_seconds{").is_some_and(|age| age < 2.0)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_that_starts_while_its_broker_is_unreachable_reports_its_backlog() {
    let shop = TestOutbox::new().await;
    let mut daemon = shop.start("");
    shop.emit("orders", 3).await;
    TestOutbox::delivered(&daemon, "shop", 3);
    daemon.stop();
    let lock = shop.lock_broker().await;
    shop.emit("orders", 7).await;
    let mut daemon = shop.start("");
    daemon.line("broker unreachable, will retry");
    for (name, value) in [("outbox_backlog_gauge", 7), ("outbox_pending_total", 7), ("mq_dlq_total", 0)] {
        until(&format!("`{name}` is reported"), || daemon.metric(&format!("{name}{{")) == Some(value));
    }
    until("the oldest grows older", || daemon.value("outbox_oldest_pending_age_seconds{") > Some(2.0));
    until("it was just sampled", || is_sampled(&daemon));
    let (status, body) = daemon.get("/readyz");
    assert!(status == 503 && body.contains("waiting for the broker: "), "{status} {body}");
    assert_eq!(daemon.metric("outbox_broker_up{"), Some(0));
    drop(lock);
    TestOutbox::delivered(&daemon, "shop", 7);
    until("no message waits", || daemon.metric("outbox_backlog_gauge{") == Some(0));
    daemon.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_destination_that_is_not_added_yet_is_no_outbox_that_cannot_be_sampled() {
    let shop = TestOutbox::new().await;
    let lock = shop.lock_broker().await;
    let mut daemon = shop.start("");
    daemon.line("broker unreachable, will retry");
    until("the outage lasts three seconds", || daemon.metric("outbox_broker_down_seconds{") >= Some(3));
    assert_eq!(daemon.metric("outbox_backlog_gauge{"), None, "a destination that does not exist has no backlog");
    until("it was just sampled", || is_sampled(&daemon));
    assert!(!daemon.log().contains("cannot be sampled"), "{}", daemon.log());
    drop(lock);
    daemon.ready();
    until("the backlog is known", || daemon.metric("outbox_backlog_gauge{") == Some(0));
    daemon.stop();
}
