//! Messages that a consumer must not treat as handled: lost deliveries, and messages of another stream or durable
//! consumer with the same name.

use std::time::Duration;

use async_nats::jetstream::consumer::PullConsumer;
use async_nats::jetstream::stream;
use futures_util::StreamExt as _;
use relevo_broker_nats::{Config, ConsumerOptions, Group, GroupConsumer, Publisher, consumer, declare_group};
use relevo_conformance::broker::harness::{
    BrokerHarness as _, ConsumerHarness as _, number, publication, publish_all, receive, stale, tags, within_timeout,
};
use relevo_core::{BrokerConsumer as _, Class, Delivery, Publication};
use relevo_testkit::NatsVersion;
use relevo_testkit::proxy::{CutProxy, Direction};

use crate::consumer_harness::{STREAM, group, start};
use crate::harness::{client, create_stream};

fn batch(numbers: std::ops::Range<u32>) -> Vec<Publication> {
    numbers.map(|number| publication(number, &format!("k-{number}"))).collect()
}

async fn acknowledge(consumer: &GroupConsumer, deliveries: &[Delivery]) {
    assert_eq!(stale(consumer, &tags(deliveries)).await.expect("acknowledged"), []);
}

/// Receives and acknowledges `count` messages. The group may be missing in the meantime.
async fn numbers(consumer: &GroupConsumer, count: usize) -> Vec<i64> {
    let mut all = Vec::new();
    let receiving = async {
        while all.len() < count {
            match consumer.receive(count - all.len()).await {
                Ok(some) => {
                    acknowledge(consumer, &some).await;
                    all.extend(some.iter().map(number));
                }
                Err(failure) => assert_eq!(failure.class(), Class::Blocked, "{}", failure.error_chain()),
            }
        }
    };
    let in_time = tokio::time::timeout(Duration::from_secs(20), receiving).await.is_ok();
    all.sort_unstable();
    assert!(in_time, "received only {all:?} of {count}");
    all
}

#[tokio::test]
async fn deliveries_lost_with_a_connection_are_read_from_the_stream() {
    for version in NatsVersion::ALL {
        let lanes = start(version).await;
        let config = Config { lanes: Some(1), ..lanes.config() };
        // Far longer than this test: the server's own redelivery, and the reader's check after a quarter of it, are too
        // late.
        let ack_wait = Duration::from_mins(5);
        let group = Group { lanes: Some(1), ack_wait, ..Group::new("billing", STREAM, ["orders"]) };
        declare_group(&config, &group).await.expect("a group");
        let broker = Publisher::open(config.clone()).await.expect("a broker");
        publish_all(&broker, &batch(0..5)).await;
        let proxy = CutProxy::start(([127, 0, 0, 1], lanes.server.port()).into()).await;
        let proxied = Config { lanes: Some(1), ..Config::new(format!("nats://{}", proxy.addr())) };
        let membership = ConsumerOptions { lease: Duration::from_mins(5), ..ConsumerOptions::default() };
        let one = consumer(&proxied, &group, membership).await.expect("a consumer");
        let deliveries = receive(&one, 5).await;
        acknowledge(&one, &deliveries[1..]).await;
        // These are sent to a connection that is closed before they are read.
        proxy.stall(Direction::ToClient);
        publish_all(&broker, &batch(5..8)).await;
        proxy.until_held(Direction::ToClient).await;
        proxy.block().await;
        proxy.flow(Direction::ToClient);
        proxy.unblock();
        // No later delivery shows the gap.
        assert_eq!(numbers(&one, 3).await, [5, 6, 7], "on {version:?}");
        // These may be sent to either connection.
        proxy.cut().await;
        publish_all(&broker, &batch(8..12)).await;
        assert_eq!(numbers(&one, 4).await, [8, 9, 10, 11], "on {version:?}");
    }
}

#[tokio::test]
async fn a_group_recreated_under_its_consumer_begins_at_its_start_policy() {
    for version in NatsVersion::ALL {
        let lanes = start(version).await;
        lanes.group("billing", "orders").await;
        publish_all(&lanes.broker().await, &batch(0..20)).await;
        let one = lanes.consumer("billing", 100).await;
        assert_eq!(numbers(&one, 20).await, (0..20).collect::<Vec<_>>());
        let stream = lanes.jetstream().await.get_stream(STREAM).await.expect("the stream");
        for lane in 0..8 {
            stream.delete_consumer(&format!("billing-{lane}")).await.expect("deleted");
        }
        lanes.group("billing", "orders").await;
        assert_eq!(numbers(&one, 20).await, (0..20).collect::<Vec<_>>(), "on {version:?}");
    }
}

#[tokio::test]
async fn a_stream_recreated_under_its_consumer_is_read_from_its_beginning() {
    for version in NatsVersion::ALL {
        let lanes = start(version).await;
        lanes.group("billing", "orders").await;
        publish_all(&lanes.broker().await, &batch(0..20)).await;
        let one = lanes.consumer("billing", 100).await;
        assert_eq!(numbers(&one, 20).await, (0..20).collect::<Vec<_>>());
        lanes.jetstream().await.delete_stream(STREAM).await.expect("deleted");
        let subjects = vec!["orders.*".to_owned()];
        create_stream(&lanes.server, stream::Config { name: STREAM.to_owned(), subjects, ..stream::Config::default() })
            .await;
        declare_group(&lanes.config(), &group("billing", "orders")).await.expect("a group");
        publish_all(&lanes.broker().await, &batch(100..110)).await;
        assert_eq!(numbers(&one, 10).await, (100..110).collect::<Vec<_>>(), "on {version:?}");
    }
}

#[tokio::test]
async fn an_acknowledgement_for_a_deleted_durable_consumer_does_not_affect_the_next() {
    for version in NatsVersion::ALL {
        let lanes = start(version).await;
        let config = Config { lanes: Some(1), ..lanes.config() };
        let group = Group { lanes: Some(1), ..Group::new("billing", STREAM, ["orders"]) };
        declare_group(&config, &group).await.expect("a group");
        publish_all(&Publisher::open(config.clone()).await.expect("a broker"), &batch(0..10)).await;
        let one = consumer(&config, &group, ConsumerOptions::default()).await.expect("a consumer");
        assert_eq!(numbers(&one, 10).await, (0..10).collect::<Vec<_>>());
        within_timeout(one.close()).await.expect("closed");
        let stream = lanes.jetstream().await.get_stream(STREAM).await.expect("the stream");
        stream.delete_consumer("billing-0").await.expect("deleted");
        declare_group(&config, &group).await.expect("recreated");
        // An earlier request, which the new consumer serves; and acknowledgements for the old one, of delivered and
        // undelivered messages.
        let recreated: PullConsumer = stream.get_consumer("billing-0").await.expect("a consumer");
        let served = recreated.fetch().max_messages(3).messages().await.expect("messages");
        assert_eq!(served.count().await, 3);
        let client = client(&lanes.server).await;
        for seq in [1, 2, 8] {
            let ack = format!("$JS.ACK.{STREAM}.billing-0.1.{seq}.{seq}.1.0");
            client.publish(ack, "+ACK".into()).await.expect("sent");
        }
        client.flush().await.expect("written");
        let floor = async || stream.consumer_info("billing-0").await.expect("a consumer").ack_floor.stream_sequence;
        // The server applies them to the new consumer.
        within_timeout(async { while floor().await != 2 {} }).await;
        let two = consumer(&config, &group, ConsumerOptions::default()).await.expect("a consumer");
        assert_eq!(numbers(&two, 10).await, (0..10).collect::<Vec<_>>(), "on {version:?}");
    }
}
