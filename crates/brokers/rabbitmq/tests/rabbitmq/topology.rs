//! Topology from configuration: planned, created, compared, and never changed without a request.

use std::collections::BTreeMap;
use std::time::Duration;

use lapin::ExchangeKind as Kind;
use lapin::options::{ExchangeDeleteOptions, QueueDeclareOptions};
use relevo_broker_rabbitmq::{
    Admin, Binding, Config, ConsumerOptions, Error, Exchange, ExchangeKind, GroupConsumer, Policy, Queue, QueueKind,
    Topology,
};
use relevo_conformance::broker::harness::within_timeout;
use relevo_core::broker::admin::{BrokerAdmin as _, TopologyItem, TopologyStatus};
use relevo_core::{BrokerConsumer as _, Class};
use serde_json::json;

use crate::topology_harness::TopologyHarness;

/// A topology with one item of each type.
fn topology() -> Topology {
    Topology {
        exchanges: vec![
            Exchange { kind: ExchangeKind::Fanout, ..Exchange::new("rest") },
            Exchange { alternate: Some("rest".to_owned()), ..Exchange::new("orders") },
            Exchange { kind: ExchangeKind::Headers, ..Exchange::new("by-header") },
            Exchange { kind: ExchangeKind::Direct, ..Exchange::new("direct") },
        ],
        queues: vec![
            Queue { lanes: Some(2), retry_delays: vec![Duration::from_secs(5)], ..Queue::new("billing") },
            Queue {
                max_length: Some(1_000),
                delivery_limit: Some(20),
                single_active_consumer: true,
                ..Queue::new("audit")
            },
            Queue { kind: QueueKind::Classic, retry_delays: Vec::new(), dead_letter_queue: None, ..Queue::new("old") },
        ],
        bindings: vec![
            Binding::to_queue("orders", "order.*", "billing"),
            Binding::to_queue("by-header", "", "audit"),
            Binding::to_exchange("orders", "order.#", "by-header"),
            Binding::to_queue("direct", "old", "old"),
        ],
        policies: vec![Policy {
            name: "limits".to_owned(),
            pattern: "^old$".to_owned(),
            apply_to: "queues".to_owned(),
            definition: BTreeMap::from([
                ("max-length".to_owned(), json!(10)),
                ("overflow".to_owned(), json!("reject-publish")),
            ]),
            priority: 3,
        }],
    }
}

fn states(items: &[TopologyItem]) -> Vec<&TopologyStatus> {
    let mut states: Vec<_> = items.iter().map(|item| &item.status).collect();
    states.dedup();
    states
}

fn state_of<'a>(items: &'a [TopologyItem], name: &str) -> &'a TopologyStatus {
    &items.iter().find(|item| item.name == name).unwrap_or_else(|| panic!("no {name} in {items:#?}")).status
}

fn differences_of(state: &TopologyStatus) -> Vec<String> {
    match state {
        TopologyStatus::Different(differences) => differences.iter().map(ToString::to_string).collect(),
        other => panic!("it does not differ: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_items_are_created_once() {
    let harness = TopologyHarness::new().await;
    let admin = harness.admin(topology());
    let plan = admin.plan().await.expect("a plan");
    // The feature flag belongs to the broker, and is enabled.
    assert_eq!(states(&plan), [&TopologyStatus::Unchanged, &TopologyStatus::Missing], "{plan:#?}");
    assert_eq!(state_of(&plan, "feature flag `stream_queue`"), &TopologyStatus::Unchanged);
    let made = admin.apply().await.expect("created");
    assert_eq!(states(&made), [&TopologyStatus::Unchanged, &TopologyStatus::Created], "{made:#?}");
    assert_eq!(made.len(), plan.len());
    for items in [admin.plan().await.expect("a plan"), admin.apply().await.expect("nothing to make")] {
        assert_eq!(states(&items), [&TopologyStatus::Unchanged], "{items:#?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn item_names_describe_each_item() {
    let harness = TopologyHarness::new().await;
    let plan = harness.admin(topology()).plan().await.expect("a plan");
    for name in [
        "policy `limits`",
        "exchange `orders`",
        "queue `billing.dead`",
        "queue `billing.1`",
        "queue `billing.1.retry.5000`",
        "binding of queue `billing.1` to `orders` by `order.*.1`",
        "binding of queue `audit` to `by-header` by ``",
        "binding of exchange `by-header` to `orders` by `order.#`",
    ] {
        assert_eq!(state_of(&plan, name), &TopologyStatus::Missing);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn differences_are_reported_and_nothing_is_changed() {
    let harness = TopologyHarness::new().await;
    harness.queue("audit", json!({ "x-queue-type": "classic", "x-max-length": 7 })).await;
    harness.exchange("orders", Kind::Direct, json!({})).await;
    let admin = harness.admin(topology());
    for items in [admin.plan().await.expect("a plan"), admin.apply().await.expect("the differences")] {
        let queue = differences_of(state_of(&items, "queue `audit`"));
        let expected = [
            "`x-queue-type` is classic, wanted quorum",
            "`x-dead-letter-exchange` is not set, wanted \"\"",
            "`x-dead-letter-routing-key` is not set, wanted audit.dead",
            "`x-dead-letter-strategy` is not set, wanted at-least-once",
            "`x-delivery-limit` is not set, wanted 20",
            "`x-max-length` is 7, wanted 1000",
            "`x-overflow` is not set, wanted reject-publish",
            "`x-single-active-consumer` is not set, wanted true",
        ];
        assert_eq!(queue, expected);
        let exchange = differences_of(state_of(&items, "exchange `orders`"));
        assert_eq!(exchange, ["`type` is direct, wanted topic", "`alternate-exchange` is not set, wanted rest"]);
        // One item differs, so nothing is created.
        assert_eq!(state_of(&items, "exchange `rest`"), &TopologyStatus::Missing);
        assert_eq!(state_of(&items, "policy `limits`"), &TopologyStatus::Missing);
    }
    // After an operator has fixed it, the rest is created.
    harness.delete_queue("audit").await;
    harness.channel.exchange_delete("orders".into(), ExchangeDeleteOptions::default()).await.expect("deleted");
    let made = admin.apply().await.expect("created");
    assert_eq!(states(&made), [&TopologyStatus::Unchanged, &TopologyStatus::Created], "{made:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_changed_by_hand_is_reported_and_kept() {
    let harness = TopologyHarness::new().await;
    let mut topology = topology();
    harness.admin(topology.clone()).apply().await.expect("created");
    topology.policies[0].priority = 4;
    topology.policies[0].definition.insert("max-length".to_owned(), json!(11));
    let admin = harness.admin(topology);
    for items in [admin.apply().await.expect("the differences"), admin.plan().await.expect("a plan")] {
        let policy = differences_of(state_of(&items, "policy `limits`"));
        assert_eq!(policy, ["`priority` is 3, wanted 4", "`max-length` is 10, wanted 11"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_applies_are_safe() {
    let harness = TopologyHarness::new().await;
    let (one, other) = (harness.admin(topology()), harness.admin(topology()));
    let (one, other) = tokio::join!(one.apply(), other.apply());
    for items in [one.expect("created"), other.expect("created")] {
        let there = |item: &TopologyItem| matches!(item.status, TopologyStatus::Created | TopologyStatus::Unchanged);
        assert!(items.iter().all(there), "{items:#?}");
    }
    let plan = harness.admin(topology()).plan().await.expect("a plan");
    assert_eq!(states(&plan), [&TopologyStatus::Unchanged], "{plan:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_management_api_missing_items_are_created_and_others_declared() {
    let harness = TopologyHarness::new().await;
    let topology = Topology { policies: Vec::new(), ..topology() };
    let config = Config { management_urls: Vec::new(), topology: topology.clone(), ..harness.config() };
    let admin = Admin::new(config.clone()).expect("without policies the management API is not needed");
    let plan = admin.plan().await.expect("a plan");
    assert_eq!(state_of(&plan, "queue `billing.0`"), &TopologyStatus::Missing);
    let binding = "binding of queue `old` to `direct` by `old`";
    assert_eq!(
        state_of(&plan, &format!("{binding} (not visible without the management API)")),
        &TopologyStatus::Unknown
    );
    let made = admin.apply().await.expect("created");
    let hidden = "feature flag `stream_queue` (not visible without the management API)";
    assert_eq!(state_of(&made, hidden), &TopologyStatus::Unknown);
    assert_eq!(
        (state_of(&made, "queue `billing.0`"), state_of(&made, binding)),
        (&TopologyStatus::Created, &TopologyStatus::Unchanged)
    );
    // Existing items that cannot be compared are not reported as matching.
    let plan = admin.plan().await.expect("a plan");
    assert_eq!(states(&plan), [&TopologyStatus::Unknown], "{plan:#?}");
    state_of(&plan, "queue `billing.0` (exists; its settings are not visible without the management API)");
    // Nothing visible is missing; a deleted binding is created again anyway.
    harness.unbind("direct", "old", "old").await;
    let declared = admin.apply().await.expect("created");
    assert_eq!(
        states(&declared),
        [&TopologyStatus::Unknown, &TopologyStatus::Unchanged],
        "only the flag is not known: {declared:#?}"
    );
    // The management API shows that everything exists, including the bindings.
    let plan = harness.admin(topology).plan().await.expect("a plan");
    assert_eq!(states(&plan), [&TopologyStatus::Unchanged], "{plan:#?}");
}

/// A setting by its AMQP name, and a change to another value.
type Change = (&'static str, fn(&mut Topology));

/// The state `same` after `apply` without the management API depends on this.
#[tokio::test(flavor = "multi_thread")]
async fn a_redeclaration_is_compared_by_the_broker_for_each_setting() {
    let harness = TopologyHarness::new().await;
    let topology = Topology { policies: Vec::new(), ..topology() };
    let config = Config { management_urls: Vec::new(), topology, ..harness.config() };
    Admin::new(config.clone()).expect("a valid topology").apply().await.expect("created");
    harness.delete_queue("old").await;
    let others: [Change; 7] = [
        ("x-max-length", |topology| topology.queues[1].max_length = Some(5)),
        ("x-delivery-limit", |topology| topology.queues[1].delivery_limit = Some(5)),
        ("x-single-active-consumer", |topology| topology.queues[1].single_active_consumer = false),
        ("x-dead-letter-exchange", |topology| topology.queues[1].dead_letter_queue = None),
        ("x-quorum-initial-group-size", |topology| topology.queues[1].quorum_initial_group_size = Some(1)),
        ("alternate-exchange", |topology| topology.exchanges[1].alternate = None),
        ("type", |topology| topology.exchanges[3].kind = ExchangeKind::Topic),
    ];
    for (setting, change) in others {
        let mut other = config.clone();
        change(&mut other.topology);
        let admin = Admin::new(other).expect("a valid topology");
        let applied = admin.apply().await.expect("a comparison");
        let differences: Vec<String> = applied
            .iter()
            .filter(|item| matches!(item.status, TopologyStatus::Different(_)))
            .flat_map(|item| differences_of(&item.status))
            .collect();
        assert!(differences.iter().any(|difference| difference.contains(setting)), "{setting}: {applied:#?}");
        let plan = admin.plan().await.expect("a plan");
        assert_eq!(
            state_of(&plan, "queue `old`"),
            &TopologyStatus::Missing,
            "something differs, so nothing is created"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exclusive_queue_of_another_connection_is_no_outage() {
    let harness = TopologyHarness::new().await;
    let options = QueueDeclareOptions { exclusive: true, ..QueueDeclareOptions::default() };
    harness.queue_with("audit", options, json!({})).await;
    let topology = Topology { queues: vec![Queue::new("audit")], ..Topology::default() };
    let seen = harness.admin(topology.clone()).plan().await.expect("a plan");
    assert!(
        differences_of(state_of(&seen, "queue `audit`")).contains(&"`exclusive` is true, wanted false".to_owned()),
        "{seen:#?}"
    );
    // Over AMQP the server reports it with a separate code.
    let without = Config { management_urls: Vec::new(), topology, ..harness.config() };
    let refused = Admin::new(without).expect("a configuration").plan().await.expect_err("it is locked");
    assert_eq!(refused.class(), Class::Blocked, "{}", refused.error_chain());
    assert!(
        refused.error_chain().contains("`audit`") || refused.error_chain().contains("'audit'"),
        "{}",
        refused.error_chain()
    );
    let queue = Queue::new("audit");
    let consumer =
        GroupConsumer::open(&harness.config(), &queue, ConsumerOptions::default()).await.expect("a consumer");
    let failure = within_timeout(consumer.receive(1)).await.expect_err("it is locked");
    assert_eq!(failure.class(), Class::Blocked, "{}", failure.error_chain());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_impossible_topology_is_rejected_before_connecting() {
    let harness = TopologyHarness::new().await;
    let without = Config { management_urls: Vec::new(), topology: topology(), ..harness.config() };
    let long = Config {
        topology: Topology { queues: vec![Queue::new("q".repeat(255))], ..Topology::default() },
        ..harness.config()
    };
    let other_scheme = Config { management_urls: vec!["ftp://localhost".to_owned()], ..harness.config() };
    for config in [without, long, other_scheme] {
        assert!(matches!(Admin::new(config), Err(Error::Config(_))));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusing_and_an_unreachable_management_api_are_distinguished() {
    let harness = TopologyHarness::new().await;
    let with =
        |url: String| Admin::new(Config { management_urls: vec![url], ..harness.config() }).expect("a configuration");
    let url = harness.vhost.management_url().to_owned();
    let refused = with(url.replace("guest:guest", "guest:wrong")).plan().await.expect_err("a wrong password");
    assert_eq!(refused.class(), Class::Blocked);
    assert!(refused.error_chain().contains("wrong user or password"), "{}", refused.error_chain());
    let unreachable = with("http://guest:guest@127.0.0.1:1".to_owned()).plan().await.expect_err("no server");
    assert_eq!(unreachable.class(), Class::Outage);
}
