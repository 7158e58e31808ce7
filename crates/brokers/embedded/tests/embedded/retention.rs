//! Retention: which messages stay stored, and for how long.

use std::time::Duration;

use relevo_broker_embedded::{BrokerFile, Config, ConsumerOptions, Group};
use relevo_conformance::broker::harness::{ADDRESS, numbers, publication, publish, publish_all, receive, stale};
use relevo_core::{BrokerConsumer as _, Class, Delivery, DeliveryTag, Publication};

use crate::directory::{Directory, stored_messages};

/// A configuration that keeps nothing longer than needed.
fn config(directory: &Directory) -> Config {
    Config { retention: Duration::ZERO, ..Config::new(directory.path().join("broker.db")) }
}

async fn open(config: Config) -> BrokerFile {
    BrokerFile::open(config).await.expect("the file can be opened")
}

fn batch(range: std::ops::Range<u32>) -> Vec<Publication> {
    range.map(|number| publication(number, &format!("k-{}", number % 5))).collect()
}

fn tags<'a>(deliveries: impl IntoIterator<Item = &'a Delivery>) -> Vec<DeliveryTag> {
    deliveries.into_iter().map(|delivery| delivery.tag).collect()
}

async fn stored_numbers(directory: &Directory) -> Vec<i64> {
    numbers(stored_messages(&directory.path().join("broker.db"), "**").await.iter())
}

#[tokio::test]
async fn messages_acknowledged_by_every_group_are_pruned() {
    let directory = Directory::new();
    let broker = open(config(&directory)).await;
    for group in ["one", "other"] {
        broker.declare_group(&Group::new(group, [ADDRESS])).await.expect("a group");
    }
    publish_all(&broker, &batch(0..10)).await;
    let one = broker.consumer("one", ConsumerOptions::default()).await.expect("a consumer");
    let held = receive(&one, 10).await;
    stale(&one, &tags(&held)).await.expect("acknowledged");
    assert_eq!(broker.prune().await.expect("pruned").messages, 0, "the other group has received nothing");
    let other = broker.consumer("other", ConsumerOptions::default()).await.expect("a consumer");
    let held = receive(&other, 10).await;
    // Acknowledge every second one, so that the remaining messages have gaps.
    let mut held: Vec<Delivery> = held;
    held.sort_by_key(|delivery| delivery.offset);
    stale(&other, &tags(held.iter().step_by(2))).await.expect("acknowledged");
    assert_eq!(broker.prune().await.expect("pruned").messages, 5);
    assert_eq!(stored_numbers(&directory).await, [1, 3, 5, 7, 9]);
    stale(&other, &tags(held.iter().skip(1).step_by(2))).await.expect("acknowledged");
    broker.prune().await.expect("pruned");
    assert_eq!(stored_numbers(&directory).await, Vec::<i64>::new());
    // A new group works with an empty log.
    broker.declare_group(&Group::new("third", [ADDRESS])).await.expect("a group");
    publish_all(&broker, &batch(10..11)).await;
    let third = broker.consumer("third", ConsumerOptions::default()).await.expect("a consumer");
    assert_eq!(receive(&third, 1).await.len(), 1);
}

/// Creates and deletes a group, so that no group needs later messages.
async fn create_and_delete_group(broker: &BrokerFile) {
    broker.declare_group(&Group::new("deleted", ["**"])).await.expect("a group");
    broker.delete_group("deleted").await.expect("removed");
}

#[tokio::test]
async fn recent_messages_stay_and_deduplicate_repeats() {
    let directory = Directory::new();
    let broker = open(Config { retention: Duration::from_hours(1), ..config(&directory) }).await;
    create_and_delete_group(&broker).await;
    publish_all(&broker, &batch(0..3)).await;
    assert_eq!(broker.prune().await.expect("pruned").messages, 0);
    publish_all(&broker, &batch(0..3)).await;
    assert_eq!(stored_numbers(&directory).await, [0, 1, 2]);
    broker.close().await;
    // After deletion, a duplicate is stored again: delivery is at least once.
    let broker = open(config(&directory)).await;
    assert_eq!(broker.prune().await.expect("pruned").messages, 3);
    publish_all(&broker, &batch(0..3)).await;
    assert_eq!(stored_numbers(&directory).await, [0, 1, 2]);
}

#[tokio::test]
async fn publishing_prunes_automatically() {
    let directory = Directory::new();
    let broker = open(Config { messages_max: 500, ..config(&directory) }).await;
    create_and_delete_group(&broker).await;
    for start in (0..10_000).step_by(100) {
        publish_all(&broker, &batch(start..start + 100)).await;
    }
    assert!(stored_numbers(&directory).await.len() <= 500);
}

#[tokio::test]
async fn a_full_broker_is_throttled_until_consumers_acknowledge() {
    let directory = Directory::new();
    let broker = open(Config { messages_max: 10, ..config(&directory) }).await;
    broker.declare_group(&Group::new("g", ["**"])).await.expect("a group");
    publish_all(&broker, &batch(0..10)).await;
    let class = Class::Throttled(Duration::from_secs(1));
    assert_eq!(publish(&broker, &batch(10..12)).await, [Some(class), Some(class)]);
    assert_eq!(stored_numbers(&directory).await, (0..10).collect::<Vec<_>>());
    let consumer = broker.consumer("g", ConsumerOptions::default()).await.expect("a consumer");
    let held = receive(&consumer, 10).await;
    stale(&consumer, &tags(&held[..2])).await.expect("acknowledged");
    publish_all(&broker, &batch(10..12)).await;
    assert_eq!(stored_numbers(&directory).await.len(), 10);
    // The lag of one group keeps the broker full. An operator can delete the group.
    assert_eq!(publish(&broker, &batch(12..13)).await, [Some(class)]);
    broker.delete_group("g").await.expect("removed");
    publish_all(&broker, &batch(12..13)).await;
}

#[tokio::test]
async fn a_limit_of_bytes_counts_headers_and_payload() {
    let directory = Directory::new();
    let broker = open(Config { bytes_max: 20_000, ..config(&directory) }).await;
    broker.declare_group(&Group::new("g", ["**"])).await.expect("a group");
    let mut number = 0;
    while publish(&broker, &batch(number..number + 1)).await == [None] {
        number += 1;
    }
    assert!((20..100).contains(&number), "{number} messages of a few hundred bytes fit");
    // A duplicate takes no space, and is confirmed if the batch fits.
    assert_eq!(stored_numbers(&directory).await.len(), number as usize);
}

#[tokio::test]
async fn messages_published_before_the_first_group_are_kept() {
    let directory = Directory::new();
    let broker = open(Config { retention: Duration::ZERO, ..config(&directory) }).await;
    publish_all(&broker, &batch(0..5)).await;
    assert_eq!(broker.prune().await.expect("pruned").messages, 0);
    broker.declare_group(&Group::new("g", ["**"])).await.expect("a group");
    let consumer = broker.consumer("g", ConsumerOptions::default()).await.expect("a consumer");
    let held = receive(&consumer, 5).await;
    stale(&consumer, &tags(&held)).await.expect("acknowledged");
    consumer.close().await.expect("closed");
    assert_eq!(broker.prune().await.expect("pruned").messages, 5);
}
