//! Every setting that breaks a guarantee: created on a real server, detected, fixed, and reported as good.

use lapin::ExchangeKind as Kind;
use lapin::options::{ExchangeBindOptions, ExchangeDeclareOptions, QueueDeclareOptions};
use lapin::types::FieldTable;
use relevo_broker_rabbitmq::{Binding, Config, Exchange, Queue, Topology};
use relevo_core::broker::admin::BrokerAdmin as _;
use relevo_core::finding::Severity::{Danger, Note, Warning};
use serde_json::{Value, json};

use crate::topology_harness::TopologyHarness;

/// The arguments of a safe quorum queue with these changes; `null` removes one.
fn safe_arguments_with(changes: &Value) -> Value {
    let mut arguments = json!({
        "x-queue-type": "quorum",
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "q.dead",
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
    });
    let all = arguments.as_object_mut().expect("a map");
    all.extend(changes.as_object().expect("a map").clone());
    all.retain(|_, value| !value.is_null());
    arguments
}

/// A harness with a dead-letter queue.
async fn examine_harness() -> TopologyHarness {
    let harness = TopologyHarness::new().await;
    harness.queue("q.dead", json!({ "x-queue-type": "quorum" })).await;
    harness
}

/// Fixes the queue `q`, and asserts that it then passes this check.
async fn assert_fixed(harness: &TopologyHarness, subject: &str) {
    harness.delete_queue("q").await;
    harness.queue("q", safe_arguments_with(&json!({}))).await;
    harness.examine(&["q"]).await.assert_passed(subject, "q");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topology_created_by_relevo_passes_every_check() {
    let harness = TopologyHarness::new().await;
    let topology = Topology {
        exchanges: vec![Exchange::new("orders")],
        queues: vec![Queue { lanes: Some(3), max_length: Some(100), ..Queue::new("billing") }],
        bindings: vec![Binding::to_queue("orders", "order.#", "billing")],
        ..Topology::default()
    };
    harness.admin(topology.clone()).apply().await.expect("created");
    let config = Config { lanes: Some(3), exchange: "orders".to_owned(), topology, ..harness.config() };
    let findings = harness.examine_with(config, &["order.paid", "orders/order.{type}"]).await;
    findings.assert_all_passed();
    findings.assert_passed("route-unbound", "order.paid");
    findings.assert_passed("queue-durable", "billing.0");
    findings.assert_passed("message-ttl", "billing.0.retry.900000");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_is_not_durable_is_a_danger() {
    let harness = examine_harness().await;
    let options = QueueDeclareOptions { exclusive: true, ..Default::default() };
    harness.queue_with("q", options, json!({})).await;
    harness.examine(&["q"]).await.assert_has(Danger, "queue-durable", "q");
    assert_fixed(&harness, "queue-durable").await;

    harness.delete_queue("q").await;
    harness.queue_with("q", QueueDeclareOptions::default(), json!({})).await;
    harness.examine(&["q"]).await.assert_has(Danger, "queue-durable", "q");
    assert_fixed(&harness, "queue-durable").await;

    harness.delete_queue("q").await;
    let options = QueueDeclareOptions { durable: true, auto_delete: true, ..Default::default() };
    harness.queue_with("q", options, json!({})).await;
    harness.examine(&["q"]).await.assert_has(Danger, "queue-auto-delete", "q");
    assert_fixed(&harness, "queue-auto-delete").await;

    harness.delete_queue("q").await;
    harness.queue("q", safe_arguments_with(&json!({ "x-expires": 60_000 }))).await;
    harness.examine(&["q"]).await.assert_has(Danger, "queue-auto-delete", "q");
    assert_fixed(&harness, "queue-auto-delete").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mirrored_queue_is_a_danger_and_a_classic_one_a_warning() {
    let harness = examine_harness().await;
    harness.queue("q", json!({})).await;
    let findings = harness.examine(&["q"]).await;
    findings.assert_has(Warning, "queue-classic", "q");
    findings.assert_passed("queue-mirrored", "q");
    harness.policy("q", "queues", json!({ "ha-mode": "all" })).await;
    harness.examine(&["q"]).await.assert_has(Danger, "queue-mirrored", "q");
    assert_fixed(&harness, "queue-classic").await;
    assert_fixed(&harness, "queue-mirrored").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_that_drops_messages_is_a_danger() {
    let harness = examine_harness().await;
    let dropping = json!({ "x-max-length": 10, "x-overflow": null, "x-dead-letter-strategy": null });
    harness.queue("q", safe_arguments_with(&dropping)).await;
    harness.examine(&["q"]).await.assert_has(Danger, "overflow-drops", "q");
    assert_fixed(&harness, "overflow-drops").await;
    // Refusing new messages is as good as no limit.
    harness.policy("q", "queues", json!({ "max-length-bytes": 1_000 })).await;
    harness.examine(&["q"]).await.assert_passed("overflow-drops", "q");
    // Set only by a policy.
    harness.queue("r", json!({ "x-queue-type": "quorum" })).await;
    harness.policy("r", "queues", json!({ "max-length-bytes": 1_000 })).await;
    harness.examine(&["r"]).await.assert_has(Danger, "overflow-drops", "r");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ordered_queue_without_a_single_active_consumer_is_a_danger() {
    let harness = examine_harness().await;
    let ordered = Queue { retry_delays: Vec::new(), ..Queue::new("q") };
    let topology = Topology { queues: vec![ordered], ..Topology::default() };
    let config = Config { topology, ..harness.config() };
    harness.queue("q", safe_arguments_with(&json!({}))).await;
    harness.examine_with(config.clone(), &["q"]).await.assert_has(Danger, "queue-unordered", "q");
    harness.delete_queue("q").await;
    harness.admin(config.topology.clone()).apply().await.expect("created");
    harness.examine_with(config, &["q"]).await.assert_passed("queue-unordered", "q");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_ttl_is_a_danger_or_a_warning() {
    let harness = examine_harness().await;
    harness.queue("q", json!({ "x-queue-type": "quorum", "x-message-ttl": 1_000 })).await;
    harness.examine(&["q"]).await.assert_has(Danger, "message-ttl", "q");
    harness.delete_queue("q").await;
    harness.queue("q", safe_arguments_with(&json!({ "x-message-ttl": 1_000 }))).await;
    harness.examine(&["q"]).await.assert_has(Warning, "message-ttl", "q");
    assert_fixed(&harness, "message-ttl").await;
    harness.policy("q", "queues", json!({ "message-ttl": 1_000 })).await;
    harness.examine(&["q"]).await.assert_has(Warning, "message-ttl", "q");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delivery_limit_without_dead_letters_is_a_danger() {
    let harness = examine_harness().await;
    harness.queue("q", json!({ "x-queue-type": "quorum", "x-delivery-limit": 3 })).await;
    harness.examine(&["q"]).await.assert_has(Danger, "delivery-limit-drops", "q");
    harness.delete_queue("q").await;
    // From 4.0 on this means no limit; this server drops a message at its first return.
    harness.queue("q", json!({ "x-queue-type": "quorum", "x-delivery-limit": -1 })).await;
    harness.examine(&["q"]).await.assert_has(Danger, "delivery-limit-drops", "q");
    harness.delete_queue("q").await;
    harness.queue("q", safe_arguments_with(&json!({ "x-delivery-limit": 3 }))).await;
    harness.examine(&["q"]).await.assert_passed("delivery-limit-drops", "q");
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_or_lossy_dead_lettering_is_reported() {
    let harness = examine_harness().await;
    harness.queue("q", json!({ "x-queue-type": "quorum" })).await;
    harness.examine(&["q"]).await.assert_has(Warning, "dead-letter-missing", "q");
    assert_fixed(&harness, "dead-letter-missing").await;
    assert_fixed(&harness, "dead-letter-at-most-once").await;
    // Each of these makes the broker dead-letter at most once, the second one silently.
    for changes in [json!({ "x-dead-letter-strategy": null }), json!({ "x-overflow": null })] {
        harness.delete_queue("q").await;
        harness.queue("q", safe_arguments_with(&changes)).await;
        harness.examine(&["q"]).await.assert_has(Warning, "dead-letter-at-most-once", "q");
    }
    assert_fixed(&harness, "dead-letter-at-most-once").await;
    // No queue receives the dead letters. It is worse if the broker itself drops messages.
    harness.delete_queue("q").await;
    harness.queue("q", safe_arguments_with(&json!({ "x-dead-letter-routing-key": "unbound" }))).await;
    harness.examine(&["q"]).await.assert_has(Warning, "dead-letter-missing", "q");
    harness.delete_queue("q").await;
    harness
        .queue("q", safe_arguments_with(&json!({ "x-dead-letter-routing-key": "unbound", "x-delivery-limit": 3 })))
        .await;
    harness.examine(&["q"]).await.assert_has(Danger, "dead-letter-missing", "q");
    // The dead-letter queue is checked too.
    harness.delete_queue("q").await;
    harness.queue_with("brief", QueueDeclareOptions::default(), json!({})).await;
    harness.queue("q", safe_arguments_with(&json!({ "x-dead-letter-routing-key": "brief" }))).await;
    harness.examine(&["q"]).await.assert_has(Danger, "queue-durable", "brief");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_route_without_a_queue_is_a_danger() {
    let harness = examine_harness().await;
    let findings = harness.examine(&["orders/order.{type}"]).await;
    findings.assert_has(Danger, "exchange-missing", "orders");
    harness.exchange("orders", Kind::Topic, json!({})).await;
    let findings = harness.examine(&["orders/order.{type}", "unbound"]).await;
    findings.assert_passed("exchange-missing", "orders");
    findings.assert_has(Danger, "route-unbound", "orders/order.{type}");
    findings.assert_has(Danger, "route-unbound", "unbound");
    harness.queue("q", safe_arguments_with(&json!({}))).await;
    harness.bind("orders", "invoice.*", "q").await;
    harness.examine(&["orders/order.{type}"]).await.assert_has(Danger, "route-unbound", "orders/order.{type}");
    harness.bind("orders", "order.paid", "q").await;
    harness.examine(&["orders/order.{type}"]).await.assert_passed("route-unbound", "orders/order.{type}");
    // No binding matches the key; then the alternate exchange does.
    harness.examine(&["orders/refund"]).await.assert_has(Danger, "route-unbound", "orders/refund");
    harness.exchange("rest", Kind::Fanout, json!({})).await;
    harness.policy("orders", "exchanges", json!({ "alternate-exchange": "rest" })).await;
    harness.bind("rest", "", "q").await;
    harness.examine(&["orders/refund"]).await.assert_passed("route-unbound", "orders/refund");
    // Through another exchange, by headers.
    harness.exchange("front", Kind::Fanout, json!({})).await;
    harness.exchange("by-header", Kind::Headers, json!({})).await;
    let options = ExchangeBindOptions::default();
    let bind =
        harness.channel.exchange_bind("by-header".into(), "front".into(), "".into(), options, FieldTable::default());
    bind.await.expect("a binding");
    harness.examine(&["front/"]).await.assert_has(Danger, "route-unbound", "front/");
    harness.bind("by-header", "", "q").await;
    harness.examine(&["front/"]).await.assert_passed("route-unbound", "front/");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_lane_needs_a_queue() {
    let harness = examine_harness().await;
    harness.queue("q.0", safe_arguments_with(&json!({}))).await;
    let config = Config { lanes: Some(2), ..harness.config() };
    let findings = harness.examine_with(config.clone(), &["q"]).await;
    findings.assert_has(Danger, "route-unbound", "q");
    findings.assert_has(Danger, "route-unbound", "q.1");
    harness.queue("q.1", safe_arguments_with(&json!({}))).await;
    harness.examine_with(config, &["q"]).await.assert_passed("route-unbound", "q");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exchange_that_is_not_durable_or_internal_is_a_danger() {
    let harness = examine_harness().await;
    harness.queue("q", safe_arguments_with(&json!({}))).await;
    let brief = ExchangeDeclareOptions::default();
    let inner = ExchangeDeclareOptions { durable: true, internal: true, ..Default::default() };
    for (name, options) in [("brief", brief), ("inner", inner)] {
        let declare = harness.channel.exchange_declare(name.into(), Kind::Fanout, options, FieldTable::default());
        declare.await.expect("an exchange");
        harness.bind(name, "", "q").await;
    }
    harness.exchange("lasting", Kind::Fanout, json!({})).await;
    let findings = harness.examine(&["brief/", "inner/", "lasting/"]).await;
    findings.assert_has(Danger, "exchange-durable", "brief");
    findings.assert_has(Danger, "exchange-internal", "inner");
    findings.assert_passed("exchange-durable", "lasting");
    findings.assert_passed("exchange-internal", "lasting");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_intermediate_exchange_that_is_not_durable_is_a_danger() {
    let harness = examine_harness().await;
    harness
        .queue(
            "q",
            safe_arguments_with(&json!({ "x-dead-letter-exchange": "dying", "x-dead-letter-routing-key": null })),
        )
        .await;
    for name in ["between", "rest", "dying"] {
        let options = ExchangeDeclareOptions::default();
        let declare = harness.channel.exchange_declare(name.into(), Kind::Fanout, options, FieldTable::default());
        declare.await.expect("an exchange");
    }
    harness.exchange("front", Kind::Topic, json!({ "alternate-exchange": "rest" })).await;
    let options = ExchangeBindOptions::default();
    let bind =
        harness.channel.exchange_bind("between".into(), "front".into(), "a".into(), options, FieldTable::default());
    bind.await.expect("a binding");
    harness.bind("between", "", "q").await;
    harness.bind("rest", "", "q").await;
    harness.bind("dying", "", "q.dead").await;
    let findings = harness.examine(&["front/a", "front/b"]).await;
    for name in ["between", "rest", "dying"] {
        findings.assert_has(Danger, "exchange-durable", name);
    }
    findings.assert_passed("exchange-durable", "front");
}

#[tokio::test(flavor = "multi_thread")]
async fn unexamined_objects_are_reported() {
    let harness = examine_harness().await;
    let findings = harness.examine_with(Config { management_urls: Vec::new(), ..harness.config() }, &["q"]).await;
    findings.assert_has(Note, "management", "management_url");
    let findings = harness.examine(&["{topic}/x"]).await;
    findings.assert_has(Note, "route-unbound", "{topic}/x");
    let topology = Topology { queues: vec![Queue::new("later")], ..Topology::default() };
    let config = Config { topology, ..harness.config() };
    harness.examine_with(config.clone(), &[]).await.assert_has(Warning, "queue-missing", "later");
    harness.admin(config.topology.clone()).apply().await.expect("created");
    harness.examine_with(config, &[]).await.assert_all_passed();
}
