//! Every setting that breaks a guarantee: created on a real server, detected, fixed, and reported as good.

use lapin::ExchangeKind as Kind;
use lapin::options::{ExchangeBindOptions, ExchangeDeclareOptions, QueueDeclareOptions};
use lapin::types::FieldTable;
use relevo_broker_rabbitmq::{Binding, Config, Exchange, Queue, Topology};
use relevo_core::administer::Administer as _;
use relevo_core::operate::Severity::{Danger, Note, Warning};
use serde_json::{Value, json};

use crate::stage::Stage;

/// The arguments of a safe quorum queue with these changes; `null` removes one.
fn safe_but(changes: &Value) -> Value {
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

/// A stage with a dead-letter queue.
async fn stage() -> Stage {
    let stage = Stage::new().await;
    stage.queue("q.dead", json!({ "x-queue-type": "quorum" })).await;
    stage
}

/// Fixes the queue `q`, and asserts that it then passes this check.
async fn mended(stage: &Stage, subject: &str) {
    stage.delete_queue("q").await;
    stage.queue("q", safe_but(&json!({}))).await;
    stage.examine(&["q"]).await.good(subject, "q");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topology_as_relevo_makes_it_is_good_all_over() {
    let stage = Stage::new().await;
    let topology = Topology {
        exchanges: vec![Exchange::new("orders")],
        queues: vec![Queue { lanes: Some(3), max_length: Some(100), ..Queue::new("billing") }],
        bindings: vec![Binding::to_queue("orders", "order.#", "billing")],
        ..Topology::default()
    };
    stage.admin(topology.clone()).apply().await.expect("made");
    let config = Config { lanes: Some(3), exchange: "orders".to_owned(), topology, ..stage.config() };
    let findings = stage.examine_with(config, &["order.paid", "orders/order.{type}"]).await;
    findings.all_good();
    findings.good("route-unbound", "order.paid");
    findings.good("queue-durable", "billing.0");
    findings.good("message-ttl", "billing.0.retry.900000");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_does_not_stay_is_a_danger() {
    let stage = stage().await;
    let options = QueueDeclareOptions { exclusive: true, ..Default::default() };
    stage.queue_with("q", options, json!({})).await;
    stage.examine(&["q"]).await.has(Danger, "queue-durable", "q");
    mended(&stage, "queue-durable").await;

    stage.delete_queue("q").await;
    stage.queue_with("q", QueueDeclareOptions::default(), json!({})).await;
    stage.examine(&["q"]).await.has(Danger, "queue-durable", "q");
    mended(&stage, "queue-durable").await;

    stage.delete_queue("q").await;
    let options = QueueDeclareOptions { durable: true, auto_delete: true, ..Default::default() };
    stage.queue_with("q", options, json!({})).await;
    stage.examine(&["q"]).await.has(Danger, "queue-auto-delete", "q");
    mended(&stage, "queue-auto-delete").await;

    stage.delete_queue("q").await;
    stage.queue("q", safe_but(&json!({ "x-expires": 60_000 }))).await;
    stage.examine(&["q"]).await.has(Danger, "queue-auto-delete", "q");
    mended(&stage, "queue-auto-delete").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mirrored_queue_is_a_danger_and_a_classic_one_a_warning() {
    let stage = stage().await;
    stage.queue("q", json!({})).await;
    let findings = stage.examine(&["q"]).await;
    findings.has(Warning, "queue-classic", "q");
    findings.good("queue-mirrored", "q");
    stage.policy("q", "queues", json!({ "ha-mode": "all" })).await;
    stage.examine(&["q"]).await.has(Danger, "queue-mirrored", "q");
    mended(&stage, "queue-classic").await;
    mended(&stage, "queue-mirrored").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_that_drops_is_a_danger_whoever_set_the_limit() {
    let stage = stage().await;
    let dropping = json!({ "x-max-length": 10, "x-overflow": null, "x-dead-letter-strategy": null });
    stage.queue("q", safe_but(&dropping)).await;
    stage.examine(&["q"]).await.has(Danger, "overflow-drops", "q");
    mended(&stage, "overflow-drops").await;
    // Refusing new messages is as good as no limit.
    stage.policy("q", "queues", json!({ "max-length-bytes": 1_000 })).await;
    stage.examine(&["q"]).await.good("overflow-drops", "q");
    // Set only by a policy.
    stage.queue("r", json!({ "x-queue-type": "quorum" })).await;
    stage.policy("r", "queues", json!({ "max-length-bytes": 1_000 })).await;
    stage.examine(&["r"]).await.has(Danger, "overflow-drops", "r");
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_that_grow_old_are_a_danger_or_a_warning() {
    let stage = stage().await;
    stage.queue("q", json!({ "x-queue-type": "quorum", "x-message-ttl": 1_000 })).await;
    stage.examine(&["q"]).await.has(Danger, "message-ttl", "q");
    stage.delete_queue("q").await;
    stage.queue("q", safe_but(&json!({ "x-message-ttl": 1_000 }))).await;
    stage.examine(&["q"]).await.has(Warning, "message-ttl", "q");
    mended(&stage, "message-ttl").await;
    stage.policy("q", "queues", json!({ "message-ttl": 1_000 })).await;
    stage.examine(&["q"]).await.has(Warning, "message-ttl", "q");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delivery_limit_without_dead_letters_is_a_danger() {
    let stage = stage().await;
    stage.queue("q", json!({ "x-queue-type": "quorum", "x-delivery-limit": 3 })).await;
    stage.examine(&["q"]).await.has(Danger, "delivery-limit-drops", "q");
    stage.delete_queue("q").await;
    // From 4.0 on this means no limit; this server drops a message at its first return.
    stage.queue("q", json!({ "x-queue-type": "quorum", "x-delivery-limit": -1 })).await;
    stage.examine(&["q"]).await.has(Danger, "delivery-limit-drops", "q");
    stage.delete_queue("q").await;
    stage.queue("q", safe_but(&json!({ "x-delivery-limit": 3 }))).await;
    stage.examine(&["q"]).await.good("delivery-limit-drops", "q");
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_that_are_missing_or_may_be_lost_are_told() {
    let stage = stage().await;
    stage.queue("q", json!({ "x-queue-type": "quorum" })).await;
    stage.examine(&["q"]).await.has(Warning, "dead-letter-missing", "q");
    mended(&stage, "dead-letter-missing").await;
    mended(&stage, "dead-letter-at-most-once").await;
    // Each of these makes the broker dead-letter at most once, the second one silently.
    for changes in [json!({ "x-dead-letter-strategy": null }), json!({ "x-overflow": null })] {
        stage.delete_queue("q").await;
        stage.queue("q", safe_but(&changes)).await;
        stage.examine(&["q"]).await.has(Warning, "dead-letter-at-most-once", "q");
    }
    mended(&stage, "dead-letter-at-most-once").await;
    // No queue receives the dead letters. It is worse if the broker itself drops messages.
    stage.delete_queue("q").await;
    stage.queue("q", safe_but(&json!({ "x-dead-letter-routing-key": "nobody" }))).await;
    stage.examine(&["q"]).await.has(Warning, "dead-letter-missing", "q");
    stage.delete_queue("q").await;
    stage.queue("q", safe_but(&json!({ "x-dead-letter-routing-key": "nobody", "x-delivery-limit": 3 }))).await;
    stage.examine(&["q"]).await.has(Danger, "dead-letter-missing", "q");
    // The dead-letter queue is checked too.
    stage.delete_queue("q").await;
    stage.queue_with("brief", QueueDeclareOptions::default(), json!({})).await;
    stage.queue("q", safe_but(&json!({ "x-dead-letter-routing-key": "brief" }))).await;
    stage.examine(&["q"]).await.has(Danger, "queue-durable", "brief");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_route_to_nobody_is_a_danger() {
    let stage = stage().await;
    let here = stage.examine(&["orders/order.{type}"]).await;
    here.has(Danger, "exchange-missing", "orders");
    stage.exchange("orders", Kind::Topic, json!({})).await;
    let findings = stage.examine(&["orders/order.{type}", "nobody"]).await;
    findings.good("exchange-missing", "orders");
    findings.has(Danger, "route-unbound", "orders/order.{type}");
    findings.has(Danger, "route-unbound", "nobody");
    stage.queue("q", safe_but(&json!({}))).await;
    stage.bind("orders", "invoice.*", "q").await;
    stage.examine(&["orders/order.{type}"]).await.has(Danger, "route-unbound", "orders/order.{type}");
    stage.bind("orders", "order.paid", "q").await;
    stage.examine(&["orders/order.{type}"]).await.good("route-unbound", "orders/order.{type}");
    // No binding matches the key; then the alternate exchange does.
    stage.examine(&["orders/refund"]).await.has(Danger, "route-unbound", "orders/refund");
    stage.exchange("rest", Kind::Fanout, json!({})).await;
    stage.policy("orders", "exchanges", json!({ "alternate-exchange": "rest" })).await;
    stage.bind("rest", "", "q").await;
    stage.examine(&["orders/refund"]).await.good("route-unbound", "orders/refund");
    // Through another exchange, by headers.
    stage.exchange("front", Kind::Fanout, json!({})).await;
    stage.exchange("by-header", Kind::Headers, json!({})).await;
    let options = ExchangeBindOptions::default();
    let bind =
        stage.channel.exchange_bind("by-header".into(), "front".into(), "".into(), options, FieldTable::default());
    bind.await.expect("a binding");
    stage.examine(&["front/"]).await.has(Danger, "route-unbound", "front/");
    stage.bind("by-header", "", "q").await;
    stage.examine(&["front/"]).await.good("route-unbound", "front/");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_lane_needs_a_queue() {
    let stage = stage().await;
    stage.queue("q.0", safe_but(&json!({}))).await;
    let config = Config { lanes: Some(2), ..stage.config() };
    let findings = stage.examine_with(config.clone(), &["q"]).await;
    findings.has(Danger, "route-unbound", "q");
    findings.has(Danger, "route-unbound", "q.1");
    stage.queue("q.1", safe_but(&json!({}))).await;
    stage.examine_with(config, &["q"]).await.good("route-unbound", "q");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exchange_that_does_not_stay_or_takes_nothing_is_a_danger() {
    let stage = stage().await;
    stage.queue("q", safe_but(&json!({}))).await;
    let brief = ExchangeDeclareOptions::default();
    let inner = ExchangeDeclareOptions { durable: true, internal: true, ..Default::default() };
    for (name, options) in [("brief", brief), ("inner", inner)] {
        let declare = stage.channel.exchange_declare(name.into(), Kind::Fanout, options, FieldTable::default());
        declare.await.expect("an exchange");
        stage.bind(name, "", "q").await;
    }
    stage.exchange("lasting", Kind::Fanout, json!({})).await;
    let findings = stage.examine(&["brief/", "inner/", "lasting/"]).await;
    findings.has(Danger, "exchange-durable", "brief");
    findings.has(Danger, "exchange-internal", "inner");
    findings.good("exchange-durable", "lasting");
    findings.good("exchange-internal", "lasting");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exchange_in_between_that_does_not_stay_is_a_danger() {
    let stage = stage().await;
    stage.queue("q", safe_but(&json!({ "x-dead-letter-exchange": "dying", "x-dead-letter-routing-key": null }))).await;
    for name in ["between", "rest", "dying"] {
        let options = ExchangeDeclareOptions::default();
        let declare = stage.channel.exchange_declare(name.into(), Kind::Fanout, options, FieldTable::default());
        declare.await.expect("an exchange");
    }
    stage.exchange("front", Kind::Topic, json!({ "alternate-exchange": "rest" })).await;
    let options = ExchangeBindOptions::default();
    let bind =
        stage.channel.exchange_bind("between".into(), "front".into(), "a".into(), options, FieldTable::default());
    bind.await.expect("a binding");
    stage.bind("between", "", "q").await;
    stage.bind("rest", "", "q").await;
    stage.bind("dying", "", "q.dead").await;
    let findings = stage.examine(&["front/a", "front/b"]).await;
    for name in ["between", "rest", "dying"] {
        findings.has(Danger, "exchange-durable", name);
    }
    findings.good("exchange-durable", "front");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_could_not_be_looked_at_is_told() {
    let stage = stage().await;
    let findings = stage.examine_with(Config { management_url: None, ..stage.config() }, &["q"]).await;
    findings.has(Note, "management", "management_url");
    let findings = stage.examine(&["{topic}/x"]).await;
    findings.has(Note, "route-unbound", "{topic}/x");
    let topology = Topology { queues: vec![Queue::new("later")], ..Topology::default() };
    let config = Config { topology, ..stage.config() };
    stage.examine_with(config.clone(), &[]).await.has(Warning, "queue-missing", "later");
    stage.admin(config.topology.clone()).apply().await.expect("made");
    stage.examine_with(config, &[]).await.all_good();
}
