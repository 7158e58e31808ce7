//! Delivery and shutdown.

use std::time::{Duration, Instant};

use relevo_core::Draft;
use sqlx::ConnectOptions as _;

use crate::daemon::{DEADLINE, Daemon, until};
use crate::failure::run_command;
use crate::test_outbox::{BEGIN, Directory, TestOutbox};

#[tokio::test(flavor = "multi_thread")]
async fn committed_messages_arrive_and_rolled_back_messages_do_not() {
    let shop = TestOutbox::new().await;
    shop.emit("orders", 200).await;
    let rolled_back = "BEGIN; SELECT relevo.emit('ghosts', 'k', 'T', '{}'); ROLLBACK";
    shop.run(rolled_back).await;
    let mut daemon = shop.start("");
    TestOutbox::delivered(&daemon, "shop", 200);
    shop.emit("invoices", 100).await;
    TestOutbox::delivered(&daemon, "shop", 300);
    daemon.stop();
    let arrived = shop.arrived("shop").await;
    let of = |topic: &str| arrived.iter().filter(|address| *address == topic).count();
    assert_eq!((arrived.len(), of("orders"), of("invoices")), (300, 200, 100));
}

#[tokio::test(flavor = "multi_thread")]
async fn one_process_relays_two_outboxes_and_two_destinations() {
    let (shop, billing) = (TestOutbox::new().await, TestOutbox::new().await);
    let second = "[outboxes.shop.destinations.audit]\ncreate = true\nstart = \"oldest\"\n\
                  broker = { kind = \"embedded\", path = \"PATH\" }\n"
        .replace("PATH", shop.directory.path().join("audit.db").to_str().unwrap());
    let text = format!(
        "{BEGIN}{}{second}{}",
        shop.outbox("shop", &shop.database.url(), "start = \"oldest\""),
        shop.outbox("billing", &billing.database.url(), "start = \"oldest\"\nshards = 2")
    );
    let mut daemon = Daemon::start(&shop.directory.write("relevo.toml", &text), &[]);
    shop.emit("orders", 20).await;
    billing.emit("invoices", 30).await;
    TestOutbox::delivered(&daemon, "billing", 30);
    until("both destinations have all", || {
        ["audit", "main"].iter().all(|destination| {
            let labels = format!("{{service=\"relevo\",outbox=\"shop\",destination=\"{destination}\"}}");
            daemon.metric(&format!("outbox_published_total{labels}")) == Some(20)
        })
    });
    daemon.stop();
    assert_eq!(shop.arrived("shop").await.len(), 20);
    assert_eq!(shop.arrived("audit").await.len(), 20);
    assert_eq!(shop.arrived("billing").await, vec!["invoices"; 30]);
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_releases_the_leases_at_once() {
    let shop = TestOutbox::new().await;
    // With long leases, only a release frees them in time.
    let long = "[relay]\nlease_duration = \"10m\"\n";
    let mut first = shop.start(long);
    until("the first relay holds all shards", || first.metric("outbox_leases{") == Some(8));
    let mut second = Daemon::start(&shop.config(long), &[]);
    second.ready();
    let admin = first.admin();
    first.stop();
    assert!(std::net::TcpStream::connect(admin).is_err(), "the admin port is closed");
    let begun = Instant::now();
    until("the other relay holds them all", || second.metric("outbox_leases{") == Some(8));
    assert!(begun.elapsed() < Duration::from_secs(20));
    assert!(second.metric("outbox_lease_changes_total{") >= Some(8));
    second.signal("INT");
    assert_eq!(second.end(), Some(0), "SIGINT also stops it in order: {}", second.log());
    let free = "SELECT count(*) FROM relevo.lease WHERE expires_at > clock_timestamp()";
    assert_eq!(shop.number(free).await, 0);
}

/// Another process locks the broker's file, so that a message stays in flight during the whole grace period.
#[tokio::test(flavor = "multi_thread")]
async fn a_second_signal_ends_it_at_once_with_130() {
    let shop = TestOutbox::new().await;
    let slow = "[relay]\nlease_duration = \"2m\"\npublish_timeout = \"1m\"\nshutdown_grace = \"100s\"\n";
    let mut daemon = shop.start(slow);
    daemon.ready();
    let lock = shop.lock_broker().await;
    shop.emit("orders", 1).await;
    until("a message is in flight", || daemon.metric("outbox_in_flight_messages{") == Some(1));
    daemon.signal("TERM");
    daemon.line("shutting down: finishing messages in flight");
    daemon.signal("TERM");
    assert_eq!(daemon.end(), Some(130), "{}", daemon.log());
    drop(lock);
}

/// A service account in production has only the grants of the relay, from its first start on.
#[tokio::test(flavor = "multi_thread")]
async fn the_relay_s_grants_are_enough() {
    let shop = TestOutbox::new().await;
    let role = format!("relay_of_{}", shop.database.name());
    shop.run(&format!("CREATE ROLE {role} LOGIN")).await;
    shop.run(&format!("SELECT relevo.grant_relay('{role}')")).await;
    let url = shop.database.url().replace("postgres@", &format!("{role}@"));
    let text = format!("{BEGIN}{}", shop.outbox("shop", &url, "")).replace("create = true\n", "");
    let mut daemon = Daemon::start(&shop.directory.write("relevo.toml", &text), &[]);
    daemon.ready();
    shop.emit("orders", 10).await;
    TestOutbox::delivered(&daemon, "shop", 10);
    until("the backlog is sampled", || daemon.metric("outbox_backlog_gauge{") == Some(0));
    let status = run_command(&shop, &["status", "--database", &url]);
    assert!(status.contains("main"), "{status}");
    daemon.stop();
    shop.run(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
}

/// A SQLite file as the outbox, and the broker in another.
#[tokio::test(flavor = "multi_thread")]
async fn an_outbox_in_a_sqlite_file_is_relayed_too() {
    use relevo_store_sqlite as sqlite;
    let shop = TestOutbox::new().await;
    let file = shop.directory.path().join("outbox.db");
    sqlite::migrate::migrate(&file).await.unwrap();
    let url = format!("sqlite:{}", file.display());
    let text = format!("{BEGIN}{}", shop.outbox("shop", &url, "start = \"oldest\""));
    let mut daemon = Daemon::start(&shop.directory.write("relevo.toml", &text), &[]);
    daemon.ready();
    let mut connection = sqlite::connect_options(&file).connect().await.unwrap();
    let mut transaction = sqlite::begin(&mut connection).await.unwrap();
    for number in 0..25 {
        let draft = Draft::json("orders", &format!("key-{}", number % 3), "Happened", "{}");
        sqlite::emit(&mut transaction, draft).await.unwrap();
    }
    transaction.commit().await.unwrap();
    TestOutbox::delivered(&daemon, "shop", 25);
    daemon.stop();
    assert_eq!(shop.arrived("shop").await, vec!["orders"; 25]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_destination_is_added_only_with_create() {
    let shop = TestOutbox::new().await;
    let text = std::fs::read_to_string(shop.config("")).unwrap().replace("create = true", "create = false");
    let mut daemon = Daemon::start(&shop.directory.write("strict.toml", &text), &[]);
    assert_eq!(daemon.end(), Some(1));
    until("the log has the hint", || {
        daemon.log().contains("hint: add it with `relevo destination add main`, or set `create = true`")
    });
    assert_eq!(shop.number("SELECT count(*) FROM relevo.destination").await, 0);
}

#[test]
fn all_problems_of_a_wrong_configuration_are_logged_and_nothing_starts() {
    let directory = Directory::new();
    let file = directory.write("relevo.toml", "[relay]\nlease_duraton = 1\n[outboxes.shop]\n");
    let mut daemon = Daemon::start(&file, &[]);
    assert_eq!(daemon.end(), Some(2));
    until("the log has the last line", || daemon.log().contains("error: the configuration has 3 problems"));
    let log = daemon.log();
    assert!(
        log.contains(&format!(
            "error: unknown key `lease_duraton` in `relay` at {}:2\nhint: did you mean `lease_duration`?",
            file.display()
        )),
        "{log}"
    );
    assert!(log.contains("has no `database`") && log.contains("has no destination"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_follows_the_configured_format_and_level() {
    let shop = TestOutbox::new().await;
    let variables = [("RELEVO__LOG__FORMAT", "text"), ("RELEVO_LOG", "warn,relevo_relay=info")];
    let mut daemon = Daemon::start(&shop.config(""), &variables);
    // At this level it logs nothing at startup, and its port is unknown. Its leases show that it runs.
    let held = "SELECT count(*) FROM relevo.lease WHERE owner IS NOT NULL";
    let end = Instant::now() + DEADLINE;
    while shop.number(held).await < 8 {
        assert!(Instant::now() < end, "{}", daemon.log());
    }
    daemon.stop();
    let last = " INFO relay{outbox=shop destination=main}: relevo_relay::relay: relay stopped";
    until("the last line is text", || daemon.log().contains(last));
    assert!(!daemon.log().contains(": started"), "{}", daemon.log());
}
