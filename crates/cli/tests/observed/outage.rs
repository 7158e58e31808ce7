//! An alert fires when a broker stops, and is resolved when it starts again.

use relevo_testkit::NatsVersion;
use relevo_testkit::nats::{Private, Settings, unique};
use relevo_testkit::prometheus::Alertmanager;
use serde_json::Value;

use crate::daemon::Daemon;
use crate::prometheus::{FastClock, json, start, wait_for};
use crate::test_outbox::TestOutbox;

/// The alert of this name in Alertmanager, if it is firing.
fn alert(alertmanager: &Alertmanager, name: &str) -> Option<Value> {
    let alerts = json(&alertmanager.alerts());
    alerts.as_array().expect("a list").iter().find(|alert| alert["labels"]["alertname"] == name).cloned()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_alert_fires_when_a_broker_stops_and_is_resolved_when_it_returns() {
    let (shop, stream) = (TestOutbox::new().await, unique("shop"));
    let broker = Private::start(NatsVersion::V2_15, Settings::new()).await;
    let section = format!(
        "kind = \"nats\"\nurls = [\"{}\"]\nstream = \"{stream}\"\ntopology_on_start = \"apply\"\n[BROKER.streams.one]\n\
         name = \"{stream}\"\nsubjects = [\"{stream}.>\"]\n",
        broker.url()
    );
    let route = format!("[[outboxes.shop.destinations.main.routes]]\naddress = \"{stream}.{{topic}}\"\n");
    let mut daemon = Daemon::start(&shop.with_destinations(&[("main", &section)], &route), &[]);
    shop.emit_numbers("orders", 1..=50).await;
    TestOutbox::taken(&daemon, "main", 50);

    let alertmanager = Alertmanager::start();
    let prometheus = start(&[daemon.admin()], FastClock(60), Some(&alertmanager.address()));
    let state = || format!("{}\n{}\n{}", alertmanager.alerts(), prometheus.rules(), daemon.get("/metrics").1);
    wait_for(
        "the broker is reachable",
        || json(&prometheus.query("outbox_broker_up == 1"))["data"]["result"].get(0).cloned(),
        state,
    );
    assert_eq!(alert(&alertmanager, "RelevoBrokerDown"), None, "{}", state());

    broker.stop().await;
    shop.emit_numbers("orders", 51..=60).await;
    let fired = wait_for("the alert arrives", || alert(&alertmanager, "RelevoBrokerDown"), state);
    let labels = &fired["labels"];
    for (label, value) in
        [("service", "relevo"), ("outbox", "shop"), ("destination", "main"), ("broker", "nats"), ("severity", "page")]
    {
        assert_eq!(labels[label], value, "{fired}");
    }
    assert_eq!(labels.as_object().map(serde_json::Map::len), Some(6), "no label besides: {fired}");
    let annotations = &fired["annotations"];
    assert_eq!(annotations["runbook_url"], "docs/runbooks/RelevoBrokerDown.md", "{fired}");
    assert_eq!(annotations["summary"], "The broker of main is unreachable", "{fired}");
    assert!(annotations["description"].as_str().is_some_and(|text| text.contains("main (nats)")), "{fired}");

    let metric = |name: &str| daemon.value(&format!("{name}{{"));
    assert_eq!(metric("outbox_broker_up"), Some(0.0), "{}", state());
    wait_for("the backlog is sampled", || (metric("outbox_backlog_gauge") == Some(10.0)).then_some(()), state);
    let age = wait_for("the age is sampled", || metric("outbox_oldest_pending_age_seconds"), state);
    wait_for("the age grows", || (metric("outbox_oldest_pending_age_seconds") > Some(age)).then_some(()), state);
    shop.emit_numbers("orders", 61..=65).await;
    wait_for("the backlog grows", || (metric("outbox_backlog_gauge") == Some(15.0)).then_some(()), state);

    broker.start_again().await;
    TestOutbox::taken(&daemon, "main", 65);
    for name in ["outbox_retry_total", "outbox_failed_permanent_total"] {
        assert_eq!(metric(name), Some(0.0), "an outage counts no attempt: {name}");
    }
    let resolved = || alert(&alertmanager, "RelevoBrokerDown").is_none().then_some(());
    wait_for("the alert is resolved", resolved, state);
    daemon.stop();
}
