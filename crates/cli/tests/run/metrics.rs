//! The metrics of a busy daemon, compared with their reference page.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use relevo_testkit::rabbitmq::{Server, Vhost};

use crate::consumers::Fixture;
use crate::daemon::{Daemon, ask, until};
use crate::test_outbox::{BEGIN, Directory, TestOutbox};

/// The names that teams' alerts use.
const PROMISED: [&str; 9] = [
    "outbox_publish_attempts_total",
    "outbox_published_total",
    "outbox_retry_total",
    "outbox_failed_permanent_total",
    "outbox_backlog_gauge",
    "outbox_publish_latency_seconds_bucket",
    "outbox_pending_total",
    "outbox_dispatch_latency_ms_bucket",
    "mq_dlq_total",
];

/// A family: its type, and the sets of labels that its series may have.
type Family = (String, Vec<BTreeSet<String>>);

/// The families of the page, by section.
fn page() -> BTreeMap<String, BTreeMap<String, Family>> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/metrics.md");
    let text = std::fs::read_to_string(path).expect("the page exists");
    let (mut sections, mut section) = (BTreeMap::new(), String::new());
    for line in text.lines() {
        if let Some(title) = line.strip_prefix("## ") {
            title.clone_into(&mut section);
        } else if let Some(row) = line.strip_prefix("| `") {
            let cells: Vec<&str> = row.split(" | ").collect();
            let [name, kind, labels, ..] = cells[..] else { panic!("{line}") };
            let sets = labels.split("; ").map(|set| set.split(", ").map(str::to_owned).collect()).collect();
            let families: &mut BTreeMap<_, _> = sections.entry(section.clone()).or_default();
            families.insert(name.trim_end_matches('`').to_owned(), (kind.to_owned(), sets));
        }
    }
    sections
}

/// The types of all families, by the name that their series begin with.
fn types(metrics: &str) -> BTreeMap<String, String> {
    let types = metrics.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    let named = types.map(|(name, kind)| match kind {
        "counter" => (format!("{name}_total"), kind.to_owned()),
        "info" => (format!("{name}_info"), kind.to_owned()),
        _ => (name.to_owned(), kind.to_owned()),
    });
    named.collect()
}

/// The series, each by its family and the names of its labels.
fn series(metrics: &str) -> Vec<(String, BTreeSet<String>)> {
    let lines = metrics.lines().filter(|line| !line.starts_with('#'));
    let read = |line: &str| {
        let (name, rest) = line.split_once('{').expect("every series has labels");
        let (labels, _) = rest.split_once('}').expect("labels end");
        let ends = ["_bucket", "_sum", "_count"];
        let family = ends.iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
        let labels = labels.split("\",").map(|pair| pair.split_once('=').expect("a label has a value").0.to_owned());
        (family.to_owned(), labels.filter(|label| label != "le").collect())
    };
    lines.map(read).collect()
}

/// Relays to the embedded broker and to RabbitMQ, beside a consumer. One message is a dead letter.
async fn busy(shop: &TestOutbox, vhost: &Vhost) -> Daemon {
    let file = shop.directory.path().join("shop.db");
    let embedded = format!("kind = \"embedded\"\npath = \"{}\"\n", file.display());
    let rabbit = format!(
        "kind = \"rabbitmq\"\nurls = [\"{}\"]\nmanagement_url = \"{}\"\ntopology_on_start = \"apply\"\n\
         exchange = \"shop\"\n[BROKER.exchanges.shop]\n[BROKER.queues.billing]\nbind = [\"shop/orders.#\"]\n",
        vhost.amqp_url(),
        vhost.management_url()
    );
    shop
        .run(
            "SELECT relevo.inbox_heartbeat('billing', '00000000-0000-0000-0000-000000000001', 'one', 60000, now(), '[]', '[]', 100); \
             SELECT relevo.inbox_acquire_lanes('billing', '00000000-0000-0000-0000-000000000001', '{0}', 100); \
             SELECT relevo.inbox_heartbeat('billing', '00000000-0000-0000-0000-000000000001', 'one', 60000, now(), '[]', '[]', 100)",
        )
        .await;
    let daemon = Daemon::start(&shop.with_destinations(&[("main", &embedded), ("rabbit", &rabbit)], ""), &[]);
    shop.emit("orders", 40).await;
    TestOutbox::taken(&daemon, "main", 40);
    TestOutbox::taken(&daemon, "rabbit", 40);
    let dead = "INSERT INTO relevo.dead_letter (destination, id, seq, slot, created_at, topic, key, type, content_type, payload, \
                route, class, error, attempts) VALUES \
                ('main', gen_random_uuid(), 1, 0, now(), 'orders', 'k', 'T', 'c', '', 'all', 'poison', 'bad', 1)";
    shop.run(dead).await;
    let is_reported = |begins: &str, value| daemon.metric(begins) == Some(value);
    let outbox = "{service=\"relevo\",outbox=\"shop\",";
    until("the dead letter is reported", || is_reported(&format!("mq_dlq_total{outbox}destination=\"main\""), 1));
    until("the consumer is reported", || is_reported(&format!("inbox_members{outbox}"), 1));
    let nodes = format!("outbox_broker_nodes_running{outbox}destination=\"rabbit\"");
    until("the nodes are reported", || is_reported(&nodes, 1));
    let queue = "mq_dlq_total{service=\"relevo\",broker=\"rabbitmq\",queue=\"billing.dead\"}";
    until("the dead-letter queue is reported", || is_reported(queue, 0));
    daemon
}

/// The page and an exposition have the same families, with the same types and labels, and each of them a series.
fn compare(page: &BTreeMap<String, Family>, metrics: &str) {
    let types = types(metrics);
    for (name, (kind, _)) in page {
        assert_eq!(types.get(name), Some(kind), "`{name}` has another type on the page, or is not exposed:\n{metrics}");
    }
    let series = series(metrics);
    for (name, labels) in &series {
        let (_, sets) = page.get(name).unwrap_or_else(|| panic!("`{name}` is exposed and is not on the page"));
        assert!(sets.contains(labels), "`{name}` has the labels {labels:?}, the page has {sets:?}");
    }
    let exposed: BTreeSet<&str> = series.iter().map(|(name, _)| name.as_str()).collect();
    let known: BTreeSet<&str> = page.keys().map(String::as_str).collect();
    assert_eq!(exposed, known, "every family has a series:\n{metrics}");
    let helped = metrics.lines().filter(|line| line.starts_with("# HELP ")).count();
    assert_eq!((helped, types.len()), (page.len(), page.len()), "every family has a help text");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_lists_exactly_the_metrics_of_a_busy_daemon() {
    let (shop, vhost) = (TestOutbox::new().await, Server::shared().vhost().await);
    let mut daemon = busy(&shop, &vhost).await;
    let (_, metrics) = daemon.get("/metrics");
    let mut page = page();
    page.remove("Consumers").expect("a section about consumers");
    let page: BTreeMap<String, Family> = page.into_values().flatten().collect();
    compare(&page, &metrics);
    for name in PROMISED {
        assert!(metrics.contains(&format!("\n{name}{{service=\"relevo\",")), "`{name}` is missing:\n{metrics}");
    }
    daemon.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_lists_exactly_the_metrics_of_a_consumer() {
    let fixture = Fixture::start().await;
    let mut process = fixture.process("one", &["--admin", "127.0.0.1:0", "--service", "shop"]);
    let admin = process.value_after("admin ").parse().expect("an address");
    fixture.emit(1..=24).await;
    fixture.has_effects(&(1..=24).collect::<Vec<_>>()).await;
    until("the lag is reported", || ask(admin, "/metrics", "").1.contains("\ninbox_lag_messages{"));
    compare(&page()["Consumers"], &ask(admin, "/metrics", "").1);
}

#[tokio::test(flavor = "multi_thread")]
async fn latencies_are_counted_once_a_message() {
    let shop = TestOutbox::new().await;
    let mut daemon = shop.start("");
    shop.emit("orders", 40).await;
    TestOutbox::delivered(&daemon, "shop", 40);
    let labels = "{service=\"relevo\",outbox=\"shop\",destination=\"main\"";
    for name in ["outbox_publish_latency_seconds", "outbox_dispatch_latency_ms"] {
        assert_eq!(daemon.metric(&format!("{name}_count{labels}}}")), Some(40), "{name}");
        assert_eq!(inf(&daemon, name), Some(40), "{name}");
    }
    assert_eq!(daemon.metric(&format!("outbox_lease_changes_total{labels}}}")), Some(8), "each shard was taken once");
    daemon.stop();
}

/// The last bucket, wherever its label is.
fn inf(daemon: &Daemon, name: &str) -> Option<i64> {
    let (_, metrics) = daemon.get("/metrics");
    let begins = format!("{name}_bucket{{");
    let line = metrics.lines().find(|line| line.starts_with(&begins) && line.contains("le=\"+Inf\""))?;
    line.rsplit(' ').next()?.parse().ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scrape_of_twenty_destinations_takes_less_than_fifty_milliseconds() {
    const LIMIT: Duration = Duration::from_millis(50);
    let directory = Directory::new();
    let file = directory.path().join("outbox.db");
    relevo_store_sqlite::migrate::migrate(&file).await.expect("a new file");
    let mut text = format!("{BEGIN}[outboxes.shop]\ndatabase = \"sqlite:{}\"\n", file.display());
    for number in 0..20 {
        let section = format!("outboxes.shop.destinations.d{number}");
        let broker = format!("kind = \"embedded\"\npath = \"{}\"", directory.path().join("broker.db").display());
        writeln!(text, "[{section}]\ncreate = true\n[{section}.broker]\n{broker}").expect("a text");
    }
    let mut daemon = Daemon::start(&directory.write("relevo.toml", &text), &[]);
    daemon.ready();
    let everything = "outbox_oldest_pending_age_seconds{";
    until("all are sampled", || {
        let (_, metrics) = daemon.get("/metrics");
        metrics.lines().filter(|line| line.starts_with(everything)).count() == 20
    });
    let mut times: Vec<Duration> = (0..21)
        .map(|_| {
            let began = Instant::now();
            assert_eq!(daemon.get("/metrics").0, 200);
            began.elapsed()
        })
        .collect();
    times.sort_unstable();
    // A slow machine can delay some scrapes, so only the fastest one counts.
    assert!(times[0] < LIMIT, "{times:?}");
    daemon.stop();
}
