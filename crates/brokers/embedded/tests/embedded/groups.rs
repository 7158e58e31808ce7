//! Group status, and behaviour that the conformance suites do not cover.

use std::time::Duration;

use relevo_broker_embedded::{BrokerFile, Config, ConsumerOptions, Group, GroupStatus, LAG_COUNT_MAX};
use relevo_conformance::broker::harness::{
    number, publication, publication_to, publish_all, receive, stale, tags, within_timeout,
};
use relevo_core::{BrokerConsumer as _, Class, Publication};

use crate::directory::{Directory, stored_messages};

async fn open(directory: &Directory) -> BrokerFile {
    BrokerFile::open(Config::new(directory.path().join("broker.db"))).await.expect("the file can be opened")
}

async fn status(broker: &BrokerFile, name: &str) -> GroupStatus {
    let groups = broker.groups().await.expect("groups");
    groups.into_iter().find(|group| group.name == name).expect("the group")
}

#[tokio::test]
async fn a_group_declared_differently_is_rejected() {
    let directory = Directory::new();
    let broker = open(&directory).await;
    let group = Group::new("billing", ["orders.*"]);
    broker.declare_group(&group).await.expect("new");
    broker.declare_group(&group).await.expect("the same");
    let other = Group { lanes: 4, ..Group::new("billing", ["orders.**"]) };
    let error = broker.declare_group(&other).await.expect_err("another one");
    assert_eq!(error.class(), Class::Blocked);
    assert_eq!(
        error.to_string(),
        "group `billing` exists with different settings: patterns are [\"orders.*\"], requested [\"orders.**\"]; lanes \
         are 16, requested 4"
    );
    let error = broker.declare_group(&Group { lanes: 257, ..group }).await.expect_err("too many lanes");
    assert_eq!(error.to_string(), "group `billing` cannot be created: it needs 1 to 256 lanes");
    let error = broker.consumer("shipping", ConsumerOptions::default()).await.expect_err("no group");
    assert_eq!((error.class(), error.to_string().as_str()), (Class::Blocked, "group `shipping` does not exist"));
}

#[tokio::test]
async fn a_group_starts_with_the_oldest_stored_message() {
    let directory = Directory::new();
    let broker = open(&directory).await;
    publish_all(&broker, &[publication(1, "a")]).await;
    broker.declare_group(&Group::new("g", ["**"])).await.expect("a group");
    publish_all(&broker, &[publication(2, "a")]).await;
    let consumer = broker.consumer("g", ConsumerOptions::default()).await.expect("a consumer");
    let held = receive(&consumer, 2).await;
    assert_eq!(held.iter().map(number).collect::<Vec<_>>(), [1, 2]);
}

#[tokio::test]
async fn patterns_match_addresses_segment_by_segment() {
    let directory = Directory::new();
    let broker = open(&directory).await;
    broker.declare_group(&Group::new("g", ["*.eu.**", "invoices"])).await.expect("a group");
    let addresses = ["orders.eu", "a.b.eu.es", "orders.eu.es.mad", "invoices", "invoices.eu", "orders", "invoices.x"];
    let batch: Vec<Publication> =
        (0..).zip(addresses).map(|(number, address)| publication_to(address, number, "k")).collect();
    publish_all(&broker, &batch).await;
    let consumer = broker.consumer("g", ConsumerOptions::default()).await.expect("a consumer");
    let held = receive(&consumer, 4).await;
    assert_eq!(held.iter().map(number).collect::<Vec<_>>(), [0, 2, 3, 4]);
}

#[tokio::test]
async fn a_status_counts_waiting_outstanding_and_returned_messages() {
    let directory = Directory::new();
    let broker = open(&directory).await;
    broker.declare_group(&Group::new("g", ["orders"])).await.expect("a group");
    let batch: Vec<Publication> = (0..10).map(|number| publication(number, "k")).collect();
    publish_all(&broker, &batch).await;
    publish_all(&broker, &[publication_to("other", 10, "k")]).await;
    assert_eq!(status(&broker, "g").await.lag, 10);
    let consumer =
        broker.consumer("g", ConsumerOptions { prefetch: 6, ..ConsumerOptions::default() }).await.expect("one");
    let held = receive(&consumer, 6).await;
    assert_eq!(stale(&consumer, &[held[0].tag]).await.expect("acknowledged"), []);
    let found = status(&broker, "g").await;
    assert_eq!((found.lag, found.outstanding, found.ready, found.consumers), (4, 5, 0, 1));
    assert_eq!((found.lanes, found.patterns), (16, vec!["orders".to_owned()]));
    consumer.close().await.expect("closed");
    let found = status(&broker, "g").await;
    assert_eq!((found.lag, found.outstanding, found.ready, found.consumers), (4, 0, 5, 0));
}

#[tokio::test]
async fn a_lag_is_exact_up_to_a_limit() {
    let directory = Directory::new();
    let broker = open(&directory).await;
    broker.declare_group(&Group::new("g", ["**"])).await.expect("a group");
    let bound = u32::try_from(LAG_COUNT_MAX).expect("small");
    let batch: Vec<Publication> = (0..bound).map(|number| publication(number, &format!("k-{}", number % 50))).collect();
    publish_all(&broker, &batch).await;
    assert_eq!(status(&broker, "g").await.lag, LAG_COUNT_MAX);
    let more: Vec<Publication> = (bound..bound + 10).map(|number| publication(number, "k")).collect();
    publish_all(&broker, &more).await;
    assert_eq!(status(&broker, "g").await.lag, LAG_COUNT_MAX + 1, "a lower bound");
}

#[tokio::test]
async fn deleting_a_group_deletes_its_rows() {
    let directory = Directory::new();
    let broker = open(&directory).await;
    broker.declare_group(&Group::new("g", ["**"])).await.expect("a group");
    publish_all(&broker, &[publication(1, "k")]).await;
    let consumer = broker.consumer("g", ConsumerOptions::default()).await.expect("a consumer");
    let held = receive(&consumer, 1).await;
    assert!(broker.delete_group("g").await.expect("removed"));
    assert!(!broker.delete_group("g").await.expect("nothing to remove"));
    let lost = stale(&consumer, &[held[0].tag]).await.expect("an answer");
    assert_eq!(lost, [held[0].tag]);
    assert_eq!(broker.groups().await.expect("groups"), []);
}

#[tokio::test]
async fn consumers_of_the_same_broker_are_woken_without_polling() {
    let directory = Directory::new();
    let config = Config { poll_interval: Duration::from_hours(1), ..Config::new(directory.path().join("broker.db")) };
    let broker = BrokerFile::open(config).await.expect("the file can be opened");
    broker.declare_group(&Group::new("g", ["**"])).await.expect("a group");
    let consumer = broker.consumer("g", ConsumerOptions::default()).await.expect("a consumer");
    for round in 0..20 {
        let batch = [publication(round, "k")];
        let (held, ()) = tokio::join!(within_timeout(consumer.receive(1)), publish_all(&broker, &batch));
        assert_eq!(number(&held.expect("a delivery")[0]), i64::from(round));
    }
}

#[tokio::test]
async fn a_consumer_keeps_its_lanes_during_long_processing() {
    let directory = Directory::new();
    let broker = open(&directory).await;
    broker.declare_group(&Group::new("g", ["**"])).await.expect("a group");
    publish_all(&broker, &[publication(1, "k")]).await;
    // Three heartbeats per lease: a machine that stalls for half a lease does not lose it.
    let lease = Duration::from_secs(5);
    let membership = ConsumerOptions { lease, ..ConsumerOptions::default() };
    let consumer = broker.consumer("g", membership.clone()).await.expect("a consumer");
    let held = receive(&consumer, 1).await;
    let other = broker.consumer("g", membership).await.expect("a consumer");
    // Several leases pass without a call to the first consumer. The other consumer gets only free lanes.
    assert!(tokio::time::timeout(2 * lease + lease / 5, other.receive(1)).await.is_err());
    assert_eq!(stale(&consumer, &[held[0].tag]).await.expect("settled"), []);
}

#[tokio::test]
async fn a_new_file_can_be_opened_concurrently() {
    let directory = Directory::new();
    let brokers = futures_util::future::join_all((0..12).map(|_| open(&directory))).await;
    for (number, broker) in (0..).zip(&brokers) {
        publish_all(broker, &[publication(number, "k")]).await;
    }
    assert_eq!(stored_messages(&directory.path().join("broker.db"), "**").await.len(), 12);
}

#[tokio::test]
async fn a_cancelled_acknowledgement_is_recorded_or_not() {
    let directory = Directory::new();
    let broker = open(&directory).await;
    broker.declare_group(&Group::new("g", ["**"])).await.expect("a group");
    let consumer = broker.consumer("g", ConsumerOptions::default()).await.expect("a consumer");
    let mut expected = 0;
    // Cancel at every await point: the acknowledgement is in the file, or the delivery is still outstanding.
    for polls in 0..16 {
        let batch: Vec<Publication> = (expected..expected + 3).map(|number| publication(number, "k")).collect();
        publish_all(&broker, &batch).await;
        let held = tags(&receive(&consumer, 3).await);
        {
            let mut call = std::pin::pin!(consumer.acknowledge(&held[..1]));
            let mut polled = 0;
            within_timeout(std::future::poll_fn(|context| {
                polled += 1;
                if polled > polls { std::task::Poll::Ready(()) } else { call.as_mut().poll(context).map(drop) }
            }))
            .await;
        }
        let stale = stale(&consumer, &held).await.expect("acknowledged");
        assert!(stale.is_empty() || stale == held[..1], "{stale:?}");
        let status = status(&broker, "g").await;
        assert_eq!((status.lag, status.outstanding, status.ready), (0, 0, 0));
        expected += 3;
    }
}
