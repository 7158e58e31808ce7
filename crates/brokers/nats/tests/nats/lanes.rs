//! Cases beyond the consumer suite: faults of servers and connections, lanes that move, and ignored settings.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use async_nats::jetstream::stream;
use futures_util::future::join_all;
use relevo_broker_nats::{Config, ConsumerOptions, Group, GroupConsumer, Publisher, consumer, declare_group};
use relevo_conformance::broker::harness::{
    BrokerHarness as _, ConsumerHarness as _, assert_idle, key, number, publication, publish_all, receive, stale, tags,
    within_timeout,
};
use relevo_core::{BrokerConsumer as _, Class, Delivery, DeliveryTag, Publication};
use relevo_testkit::NatsVersion;
use relevo_testkit::proxy::CutProxy;
use tokio::time::Instant;

use crate::consumer_harness::{Lanes, STREAM, group, start};
use crate::harness::create_stream;

fn batch(numbers: std::ops::Range<u32>, keys: u32) -> Vec<Publication> {
    numbers.map(|number| publication(number, &format!("k-{}", number % keys))).collect()
}

fn with_lease(lease: Duration) -> ConsumerOptions {
    ConsumerOptions { lease, prefetch: 20, ..ConsumerOptions::default() }
}

async fn acknowledge(consumer: &GroupConsumer, deliveries: &[Delivery]) -> Vec<DeliveryTag> {
    // The server may be down, so the call may be repeated. Acknowledgements recorded the first time are then reported
    // as stale.
    loop {
        if let Ok(lost) = stale(consumer, &tags(deliveries)).await {
            return lost;
        }
    }
}

/// All received messages, from any consumer.
#[derive(Default)]
struct History {
    first_deliveries: BTreeSet<i64>,
    order: BTreeMap<String, Vec<i64>>,
    settled: BTreeMap<i64, usize>,
}

impl History {
    fn record(&mut self, deliveries: &[Delivery]) {
        for delivery in deliveries {
            if self.first_deliveries.insert(number(delivery)) {
                self.order.entry(key(delivery)).or_default().push(number(delivery));
            }
        }
    }

    fn settle(&mut self, deliveries: &[Delivery], lost: &[DeliveryTag]) {
        for delivery in deliveries.iter().filter(|delivery| !lost.contains(&delivery.tag)) {
            *self.settled.entry(number(delivery)).or_default() += 1;
        }
    }

    fn assert_in_order(&self) {
        for (key, numbers) in &self.order {
            assert!(numbers.is_sorted(), "{key}: {numbers:?}");
        }
    }
}

/// Receives and acknowledges until every message up to `end` was received.
async fn drain(consumer: &GroupConsumer, history: &mut History, end: usize) {
    let deadline = Instant::now() + Duration::from_mins(1);
    while history.first_deliveries.len() < end {
        assert!(Instant::now() < deadline, "received only {} of {end}", history.first_deliveries.len());
        // An error means that the server is down; later deliveries show whether it had an effect.
        if let Ok(some) = within_timeout(consumer.receive(50)).await {
            history.record(&some);
            let lost = acknowledge(consumer, &some).await;
            history.settle(&some, &lost);
        }
    }
}

async fn members_join_and_leave(version: NatsVersion) {
    let lanes = start(version).await;
    let config = Config { lanes: Some(4), ..lanes.config() };
    let group = Group { lanes: Some(4), max_ack_pending: 40, ..group("billing", "orders") };
    declare_group(&config, &group).await.expect("a group");
    let broker = Publisher::open(config.clone()).await.expect("a broker");
    let mut history = History::default();
    let mut steady = consumer(&config, &group, with_lease(Duration::from_secs(1))).await.expect("a consumer");
    let mut total = 0;
    for round in 0..8_u32 {
        publish_all(&broker, &batch(total..total + 50, 10)).await;
        total += 50;
        let guest = consumer(&config, &group, with_lease(Duration::from_secs(1))).await.expect("a consumer");
        for _ in 0..3 {
            for member in [&steady, &guest] {
                let Ok(some) = tokio::time::timeout(Duration::from_millis(200), member.receive(9)).await else {
                    continue;
                };
                let some = some.expect("deliveries");
                history.record(&some);
                // The rest stays outstanding, and is lost with the member.
                let some = &some[..=some.len() / 2];
                let lost = acknowledge(member, some).await;
                history.settle(some, &lost);
            }
        }
        match round % 4 {
            0 => within_timeout(guest.close()).await.expect("closed"),
            1 => drop(guest),
            // The guest stays, and the other one ends.
            2 => drop(std::mem::replace(&mut steady, guest)),
            _ => within_timeout(std::mem::replace(&mut steady, guest).close()).await.expect("closed"),
        }
    }
    // Outstanding messages of the last member are redelivered to its successor; those of dead members when their leases
    // end.
    within_timeout(steady.close()).await.expect("closed");
    let successor = consumer(&config, &group, with_lease(Duration::from_secs(1))).await.expect("a consumer");
    while history.settled.len() < total as usize {
        let some = within_timeout(successor.receive(50)).await.expect("deliveries");
        history.record(&some);
        let lost = acknowledge(&successor, &some).await;
        history.settle(&some, &lost);
    }
    assert_idle(&successor).await;
    history.assert_in_order();
    assert!(history.settled.values().all(|times| *times == 1), "something was settled twice: {:?}", history.settled);
}

#[tokio::test]
async fn joining_and_leaving_members_settle_each_message_once_in_order() {
    members_join_and_leave(NatsVersion::V2_15).await;
}

#[tokio::test]
async fn joining_and_leaving_members_work_on_an_old_server() {
    members_join_and_leave(NatsVersion::V2_9).await;
}

async fn assert_survives(version: NatsVersion, inject_fault: impl AsyncFn(&Lanes)) {
    let lanes = start(version).await;
    lanes.group("billing", "orders").await;
    let broker = lanes.broker().await;
    publish_all(&broker, &batch(0..200, 10)).await;
    let consumer = consumer(&lanes.config(), &group("billing", "orders"), with_lease(Duration::from_secs(3))).await;
    let consumer = consumer.expect("a consumer");
    let mut history = History::default();
    let held = receive(&consumer, 40).await;
    history.record(&held);
    history.settle(&held[..20], &acknowledge(&consumer, &held[..20]).await);
    inject_fault(&lanes).await;
    history.settle(&held[20..], &acknowledge(&consumer, &held[20..]).await);
    let broker = lanes.broker().await;
    let deadline = Instant::now() + Duration::from_secs(20);
    // Publish the same ids until they are confirmed: the stream detects duplicates.
    loop {
        let outcomes = relevo_conformance::broker::harness::publish(&broker, &batch(200..400, 10)).await;
        if outcomes.iter().all(Option::is_none) {
            break;
        }
        assert!(Instant::now() < deadline, "{outcomes:?}");
    }
    drain(&consumer, &mut history, 400).await;
    history.assert_in_order();
}

#[tokio::test]
async fn a_killed_and_restarted_server_loses_nothing() {
    for version in NatsVersion::ALL {
        assert_survives(version, async |lanes| {
            lanes.server.kill9().await;
            lanes.server.start_again().await;
        })
        .await;
    }
}

#[tokio::test]
async fn a_suspended_server_loses_nothing() {
    for version in NatsVersion::ALL {
        assert_survives(version, async |lanes| {
            lanes.server.pause().await;
            tokio::time::sleep(Duration::from_secs(6)).await;
            lanes.server.resume().await;
        })
        .await;
    }
}

#[tokio::test]
async fn a_connection_cut_during_settlement_settles_all_or_nothing() {
    for version in NatsVersion::ALL {
        let lanes = start(version).await;
        lanes.group("billing", "orders").await;
        publish_all(&lanes.broker().await, &batch(0..300, 10)).await;
        let proxy = CutProxy::start(([127, 0, 0, 1], lanes.server.port()).into()).await;
        let config =
            Config { confirm_timeout: Duration::from_millis(500), ..Config::new(format!("nats://{}", proxy.addr())) };
        let one =
            consumer(&config, &group("billing", "orders"), with_lease(Duration::from_secs(30))).await.expect("one");
        let mut history = History::default();
        while history.settled.len() < 300 {
            let Ok(some) = within_timeout(one.receive(20)).await else { continue };
            history.record(&some);
            let tags: Vec<_> = some.iter().map(|delivery| delivery.tag).collect();
            let (settled, ()) = tokio::join!(stale(&one, &tags), proxy.cut());
            match settled {
                Ok(lost) => history.settle(&some, &lost),
                // Each acknowledgement was recorded or not. If not, it can be repeated, or the message is redelivered.
                Err(failure) => {
                    assert_eq!(failure.class(), Class::Unknown);
                    acknowledge(&one, &some).await;
                    history.settle(&some, &[]);
                }
            }
        }
        history.assert_in_order();
        assert!(history.settled.values().all(|times| *times == 1), "{:?}", history.settled);
        within_timeout(one.close()).await.expect("closed");
        let next = lanes.consumer("billing", 100).await;
        assert_idle(&next).await;
    }
}

#[tokio::test]
async fn a_full_lane_continues_at_its_next_owner_at_once() {
    for version in NatsVersion::ALL {
        let lanes = start(version).await;
        let config = Config { lanes: Some(1), ..lanes.config() };
        // The dead consumer had the maximum number of messages, and the server waits five minutes for each
        // acknowledgement.
        let group = Group {
            lanes: Some(1),
            max_ack_pending: 20,
            ack_wait: Duration::from_mins(5),
            ..Group::new("billing", STREAM, ["orders"])
        };
        declare_group(&config, &group).await.expect("a group");
        let broker = Publisher::open(config.clone()).await.expect("a broker");
        publish_all(&broker, &batch(0..200, 10)).await;
        let first = consumer(&config, &group, with_lease(Duration::from_secs(1))).await.expect("a consumer");
        let mut history = History::default();
        history.record(&receive(&first, 15).await);
        drop(first);
        let second = consumer(&config, &group, with_lease(Duration::from_secs(1))).await.expect("a consumer");
        within_timeout(drain(&second, &mut history, 200)).await;
        history.assert_in_order();
    }
}

#[tokio::test]
async fn a_message_in_long_processing_is_not_redelivered() {
    // Three progress signals in this time: one that is late by half of it is still in time.
    const ACK_WAIT: Duration = Duration::from_secs(6);
    join_all(NatsVersion::ALL.map(async |version| {
        let lanes = start(version).await;
        let group = Group { ack_wait: ACK_WAIT, ..group("billing", "orders") };
        declare_group(&lanes.config(), &group).await.expect("a group");
        publish_all(&lanes.broker().await, &batch(0..4, 1)).await;
        let one = consumer(&lanes.config(), &group, with_lease(Duration::from_mins(1))).await.expect("a consumer");
        let held = receive(&one, 4).await;
        tokio::time::sleep(ACK_WAIT + Duration::from_secs(2)).await;
        assert_idle(&one).await;
        let stream = lanes.jetstream().await.get_stream(STREAM).await.expect("the stream");
        for lane in 0..8 {
            let info = stream.consumer_info(format!("billing-{lane}")).await.expect("a consumer");
            assert_eq!(info.num_redelivered, 0, "lane {lane}");
        }
        assert_eq!(acknowledge(&one, &held).await, []);
    }))
    .await;
}

#[tokio::test]
async fn settings_ignored_by_an_old_server_are_noticed() {
    for version in NatsVersion::ALL {
        let lanes = start(version).await;
        let two = Group { subjects: vec!["orders".to_owned(), "other".to_owned()], ..group("billing", "orders") };
        let declared = declare_group(&lanes.config(), &two).await;
        let stream = lanes.jetstream().await.get_stream(STREAM).await.expect("the stream");
        let created = stream.consumer_info("billing-0").await;
        if version == NatsVersion::V2_9 {
            let error = declared.expect_err("it knows one filter only");
            assert_eq!(error.class(), Class::Blocked);
            let text = error.to_string();
            assert!(text.contains("`subjects` is all, wanted orders.0, other.0"), "{text}");
            assert!(created.is_err(), "the created consumer is deleted again");
        } else {
            declared.expect("a group");
            created.expect("a consumer");
        }
    }
}

#[tokio::test]
async fn a_missing_or_different_group_is_rejected_and_a_deleted_group_reported() {
    let lanes = start(NatsVersion::V2_15).await;
    let wanted = group("billing", "orders");
    let open = async |group: &Group| consumer(&lanes.config(), group, ConsumerOptions::default()).await;
    assert_eq!(open(&wanted).await.expect_err("it was never declared").class(), Class::Blocked);
    declare_group(&lanes.config(), &wanted).await.expect("a group");
    declare_group(&lanes.config(), &wanted).await.expect("the same");
    let other = Group { max_ack_pending: 999, ..wanted.clone() };
    for refused in [open(&other).await.map(drop), declare_group(&lanes.config(), &other).await] {
        let error = refused.expect_err("it is another one");
        assert_eq!(error.class(), Class::Blocked);
        assert!(error.to_string().ends_with("`max_ack_pending` is 1000, wanted 999"), "{error}");
    }
    let too_many = ConsumerOptions { prefetch: 1_001, ..ConsumerOptions::default() };
    let refused = consumer(&lanes.config(), &wanted, too_many).await.expect_err("more than `max_ack_pending`");
    assert_eq!(refused.class(), Class::Blocked);

    let one = open(&wanted).await.expect("a consumer");
    let stream = lanes.jetstream().await.get_stream(STREAM).await.expect("the stream");
    for lane in 0..8 {
        stream.delete_consumer(&format!("billing-{lane}")).await.expect("deleted");
    }
    let failure = within_timeout(one.receive(1)).await.expect_err("no group to receive from");
    assert_eq!(failure.class(), Class::Blocked);
}

#[tokio::test]
async fn a_recreated_group_begins_at_its_start_policy() {
    let lanes = start(NatsVersion::V2_15).await;
    lanes.group("billing", "orders").await;
    publish_all(&lanes.broker().await, &batch(0..5, 1)).await;
    let one = lanes.consumer("billing", 10).await;
    acknowledge(&one, &receive(&one, 5).await).await;
    within_timeout(one.close()).await.expect("closed");
    let stream = lanes.jetstream().await.get_stream(STREAM).await.expect("the stream");
    for lane in 0..8 {
        stream.delete_consumer(&format!("billing-{lane}")).await.expect("deleted");
    }
    lanes.group("billing", "orders").await;
    let two = lanes.consumer("billing", 10).await;
    let numbers: Vec<_> = receive(&two, 5).await.iter().map(number).collect();
    assert_eq!(numbers, [0, 1, 2, 3, 4]);
}

#[tokio::test]
async fn a_message_delivered_before_its_lane_record_was_deleted_is_redelivered() {
    for version in NatsVersion::ALL {
        let lanes = start(version).await;
        let config = Config { lanes: Some(1), ..lanes.config() };
        let group = Group { lanes: Some(1), ..Group::new("billing", STREAM, ["orders"]) };
        declare_group(&config, &group).await.expect("a group");
        let broker = Publisher::open(config.clone()).await.expect("a broker");
        publish_all(&broker, &batch(0..3, 1)).await;
        let one = consumer(&config, &group, ConsumerOptions::default()).await.expect("a consumer");
        let held = receive(&one, 3).await;
        assert!(held.iter().all(|delivery| !delivery.redelivered));
        within_timeout(one.close()).await.expect("closed");
        let bucket = lanes.jetstream().await.get_stream("KV_relevo-lanes").await.expect("the bucket");
        bucket.purge().await.expect("purged");
        publish_all(&broker, &batch(3..4, 1)).await;
        let two = consumer(&config, &group, ConsumerOptions::default()).await.expect("a consumer");
        let again: Vec<_> = receive(&two, 4).await.iter().map(|one| (number(one), one.redelivered)).collect();
        assert_eq!(again, [(0, true), (1, true), (2, true), (3, false)], "on {version:?}");
    }
}

#[tokio::test]
async fn a_work_queue_is_empty_when_everything_is_acknowledged() {
    for version in NatsVersion::ALL {
        let lanes = start(version).await;
        let config = stream::Config {
            name: "work".to_owned(),
            subjects: vec!["work".to_owned()],
            retention: stream::RetentionPolicy::WorkQueue,
            ..stream::Config::default()
        };
        create_stream(&lanes.server, config).await;
        let config = Config::new(lanes.server.url());
        let group = Group::new("workers", "work", ["work"]);
        declare_group(&config, &group).await.expect("a group");
        let broker = Publisher::open(config.clone()).await.expect("a broker");
        let to_work = |number: u32| Publication { address: "work".into(), ..publication(number, "k") };
        publish_all(&broker, &(0..10).map(to_work).collect::<Vec<_>>()).await;
        let one = consumer(&config, &group, ConsumerOptions::default()).await.expect("a consumer");
        let held = receive(&one, 10).await;
        assert!(held.iter().all(|delivery| &*delivery.address == "work"));
        acknowledge(&one, &held).await;
        let mut stream = lanes.jetstream().await.get_stream("work").await.expect("the stream");
        let deadline = Instant::now() + Duration::from_secs(10);
        while stream.info().await.expect("info").state.messages > 0 {
            assert!(Instant::now() < deadline, "the server got no acknowledgement");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}
