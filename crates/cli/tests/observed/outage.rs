//! A broker stops, and an alert arrives; it comes back, and the alert is over.

use relevo_testkit::NatsVersion;
use relevo_testkit::nats::{Private, Settings, unique};
use relevo_testkit::prometheus::Alertmanager;
use serde_json::Value;

use crate::daemon::Daemon;
use crate::watch::{Haste, json, wait_for, watch};
use crate::world::World;

/// The alert of this name that Alertmanager has, if there is one.
fn alert(alertmanager: &Alertmanager, name: &str) -> Option<Value> {
    let alerts = json(&alertmanager.alerts());
    alerts.as_array().expect("a list").iter().find(|alert| alert["labels"]["alertname"] == name).cloned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_broker_is_told_at_alertmanager_and_its_return_too() {
    let (world, stream) = (World::new().await, unique("shop"));
    let broker = Private::start(NatsVersion::V2_15, Settings::new()).await;
    let section = format!(
        "kind = \"nats\"\nurls = [\"{}\"]\nstream = \"{stream}\"\ntopology = \"apply\"\n[BROKER.streams.one]\n\
         name = \"{stream}\"\nsubjects = [\"{stream}.>\"]\n",
        broker.url()
    );
    let route = format!("[[outboxes.shop.destinations.main.routes]]\naddress = \"{stream}.{{topic}}\"\n");
    let mut daemon = Daemon::start(&world.carried_to(&[("main", &section)], &route), &[]);
    world.emit_numbers("orders", 1..=50).await;
    World::taken(&daemon, "main", 50);

    let alertmanager = Alertmanager::start();
    let prometheus = watch(&[daemon.admin()], Haste(60), Some(&alertmanager.address()));
    let seen = || format!("{}\n{}\n{}", alertmanager.alerts(), prometheus.rules(), daemon.get("/metrics").1);
    wait_for(
        "the broker is there",
        || json(&prometheus.query("broker_up == 1"))["data"]["result"].get(0).cloned(),
        seen,
    );
    assert_eq!(alert(&alertmanager, "RelevoBrokerAway"), None, "{}", seen());

    broker.stop().await;
    // An outage shows when something is to be sent.
    world.emit_numbers("orders", 51..=60).await;
    let fired = wait_for("the alert arrives", || alert(&alertmanager, "RelevoBrokerAway"), seen);
    let labels = &fired["labels"];
    for (label, value) in
        [("service", "relevo"), ("outbox", "shop"), ("destination", "main"), ("broker", "nats"), ("severity", "page")]
    {
        assert_eq!(labels[label], value, "{fired}");
    }
    assert_eq!(labels.as_object().map(serde_json::Map::len), Some(6), "no label besides: {fired}");
    let told = &fired["annotations"];
    assert_eq!(told["runbook_url"], "docs/runbooks/RelevoBrokerAway.md", "{fired}");
    assert_eq!(told["summary"], "The broker of main is unreachable", "{fired}");
    assert!(told["description"].as_str().is_some_and(|text| text.contains("main (nats)")), "{fired}");

    let metric = |name: &str| daemon.value(&format!("{name}{{"));
    assert_eq!(metric("broker_up"), Some(0.0), "{}", seen());
    wait_for("the backlog is told", || (metric("outbox_backlog_gauge") == Some(10.0)).then_some(()), seen);
    let age = wait_for("the age is told", || metric("outbox_oldest_pending_age_seconds"), seen);
    wait_for("the age grows", || (metric("outbox_oldest_pending_age_seconds") > Some(age)).then_some(()), seen);
    world.emit_numbers("orders", 61..=65).await;
    wait_for("the backlog grows", || (metric("outbox_backlog_gauge") == Some(15.0)).then_some(()), seen);

    broker.start_again().await;
    World::taken(&daemon, "main", 65);
    for never in ["outbox_retry_total", "outbox_failed_permanent_total"] {
        assert_eq!(metric(never), Some(0.0), "an outage counts against no message: {never}");
    }
    let is_over = || alert(&alertmanager, "RelevoBrokerAway").is_none().then_some(());
    wait_for("the alert is over", is_over, seen);
    daemon.stop();
}
