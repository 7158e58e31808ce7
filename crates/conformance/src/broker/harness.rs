//! The operations that the suites need from a broker, beyond the ports.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use relevo_core::broker::OutcomeReceiver;
use relevo_core::message::{Headers, Message, MessageId};
use relevo_core::wire::Received;
use relevo_core::{
    AckOutcome, Broker, BrokerConsumer, Class, Delivery, DeliveryTag, Draft, Failure, Publication, RawMessage,
};

/// The address that most cases publish to.
pub const ADDRESS: &str = "orders";
/// The configured size limit of every publisher under test. An ordinary message has less than four kilobytes of headers.
pub const MESSAGE_BYTES_MAX: usize = 1 << 20;
/// Time limit for every expected result.
pub const TIMEOUT: Duration = Duration::from_secs(20);
/// If no delivery arrives within this time, none is expected. Only cases that check for the absence of deliveries wait
/// this long.
pub const IDLE_FOR: Duration = Duration::from_millis(300);

/// A broker for one case, with all operations that cases need.
///
/// Harness calls panic on failure, because cases test the ports, not the harness.
#[async_trait]
pub trait BrokerHarness: Send + Sync {
    /// The publisher under test.
    type Broker: Broker;

    /// Creates a new, independent publisher with the limit [`MESSAGE_BYTES_MAX`]. Addresses need no preparation.
    async fn broker(&self) -> Self::Broker;

    /// All messages stored at an address, in order, including repeated ones.
    async fn stored(&self, address: &str) -> Vec<RawMessage>;

    /// Kills the broker without warning and restarts it. Cases do not use earlier publishers and consumers again.
    async fn kill_and_restart(&mut self);

    /// Differences between brokers. They determine what a case expects, never whether it runs.
    fn guarantees(&self) -> Guarantees;
}

/// Differences between brokers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guarantees {
    /// Confirmed messages survive a crash. Otherwise all of them are lost.
    pub survives_crash: bool,
    /// The broker confirms a repeated message at the same address but does not store it again. Otherwise it stores it
    /// again.
    pub deduplicates: bool,
}

/// A broker that supports consumers.
#[async_trait]
pub trait ConsumerHarness: BrokerHarness {
    /// The consumer under test.
    type Consumer: BrokerConsumer;

    /// Creates a group that receives everything published to this address from now on. It has at least four lanes if
    /// the broker has no fixed number.
    async fn group(&self, name: &str, address: &str);

    /// Creates a consumer of a group, with at most `prefetch` outstanding deliveries per lane.
    async fn consumer(&self, group: &str, prefetch: usize) -> Self::Consumer;

    /// Kills the process of this consumer. Returns when another consumer can take its lanes.
    async fn kill(&self, consumer: Self::Consumer);

    /// Suspends the process of this consumer for longer than its lease, then resumes it. Returns when another consumer
    /// can take its lanes. The consumer still assumes that its deliveries are outstanding.
    async fn suspend_past_lease(&self, consumer: &Self::Consumer);

    /// Publishes arbitrary headers and bytes, which need not be a Relevo message.
    async fn publish_raw(&self, address: &str, headers: &Headers, payload: Bytes);

    /// Whether a confirmed acknowledgement survives a crash of the broker. Otherwise the message may be delivered
    /// again.
    fn acks_survive_crash(&self) -> bool {
        true
    }
}

/// An ordinary message of this key to [`ADDRESS`]; equal numbers give equal messages.
pub fn publication(number: u32, key: &str) -> Publication {
    publication_to(ADDRESS, number, key)
}

/// An ordinary message of this key; equal numbers give equal messages.
pub fn publication_to(address: &str, number: u32, key: &str) -> Publication {
    let mut random = [0; 10];
    random[6..].copy_from_slice(&number.to_be_bytes());
    let created_at = "2026-03-01T12:00:00.123456Z".parse().expect("a time");
    let draft = Draft::json(address, key, "OrderPlaced", format!("{{\"number\":{number}}}"));
    let message = draft.into_message(MessageId::v7(u64::from(number), random), created_at);
    Publication {
        message: Arc::new(message),
        address: address.into(),
        headers: Arc::default(),
        seq: number.into(),
        epoch: 7,
    }
}

/// The same publication with a changed message.
pub fn with_message(publication: &Publication, change: impl FnOnce(&mut Message)) -> Publication {
    let mut message = Message::clone(&publication.message);
    change(&mut message);
    Publication { message: Arc::new(message), ..publication.clone() }
}

/// Publishes a batch and returns the failure class of each message, `None` if confirmed. Each must have exactly one
/// outcome.
pub async fn publish(broker: &impl Broker, batch: &[Publication]) -> Vec<Option<Class>> {
    let reports = OutcomeReceiver::default();
    within_timeout(broker.publish(batch, &reports.sender(1))).await;
    let mut outcomes: Vec<Option<Option<Class>>> = vec![None; batch.len()];
    for (number, index, outcome) in reports.take() {
        assert_eq!(number, 1, "an outcome of another batch");
        let earlier = outcomes[index].replace(outcome.err().map(|failure| failure.class()));
        assert_eq!(earlier, None, "message {index} has two outcomes");
    }
    outcomes.into_iter().map(|outcome| outcome.expect("a message without an outcome")).collect()
}

/// Publishes messages that must all be confirmed.
pub async fn publish_all(broker: &impl Broker, batch: &[Publication]) {
    let outcomes = publish(broker, batch).await;
    assert!(outcomes.iter().all(Option::is_none), "not everything was confirmed: {outcomes:?}");
}

/// Panics after a time limit instead of hanging.
pub async fn within_timeout<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(TIMEOUT, future).await.expect("the call returns in time")
}

/// Decodes a message that must come from Relevo.
pub fn decode(raw: &RawMessage) -> Received {
    raw.decode().expect("a message of Relevo")
}

/// The outbox sequence numbers of these messages, in order.
pub fn numbers<'a>(raws: impl IntoIterator<Item = &'a RawMessage>) -> Vec<i64> {
    raws.into_iter().map(|raw| decode(raw).seq.expect("a sequence number")).collect()
}

/// The outbox sequence number of a delivery.
pub fn number(delivery: &Delivery) -> i64 {
    decode(&delivery.raw).seq.expect("a sequence number")
}

/// The key of a delivery.
pub fn key(delivery: &Delivery) -> String {
    decode(&delivery.raw).message.key.to_string()
}

/// Receives exactly `count` deliveries.
pub async fn receive(consumer: &impl BrokerConsumer, count: usize) -> Vec<Delivery> {
    let mut all = Vec::new();
    while all.len() < count {
        let some = within_timeout(consumer.receive(count - all.len())).await.expect("deliveries");
        assert!(!some.is_empty(), "the consumer was closed");
        all.extend(some);
    }
    assert_eq!(all.len(), count, "more deliveries than requested");
    all
}

/// Checks that no delivery arrives.
pub async fn assert_idle(consumer: &impl BrokerConsumer) {
    let received = tokio::time::timeout(IDLE_FOR, consumer.receive(100)).await;
    if let Ok(received) = received {
        panic!("received {:?}", received.map(|deliveries| deliveries.iter().map(number).collect::<Vec<_>>()));
    }
}

/// Acknowledges deliveries that must all be outstanding.
pub async fn acknowledge(consumer: &impl BrokerConsumer, deliveries: &[Delivery]) {
    assert_eq!(stale(consumer, &tags(deliveries)).await.expect("acknowledged"), []);
}

/// Acknowledges deliveries; returns the stale tags or the first failure.
pub async fn stale(consumer: &impl BrokerConsumer, tags: &[DeliveryTag]) -> Result<Vec<DeliveryTag>, Failure> {
    stale_of(tags.iter().copied(), within_timeout(consumer.acknowledge(tags)).await)
}

/// Returns the tags whose outcome is stale, or the first failure.
pub fn stale_of(
    tags: impl ExactSizeIterator<Item = DeliveryTag>,
    outcomes: Vec<AckOutcome>,
) -> Result<Vec<DeliveryTag>, Failure> {
    assert_eq!(tags.len(), outcomes.len(), "one outcome per delivery");
    let mut stale = Vec::new();
    for (tag, outcome) in tags.zip(outcomes) {
        match outcome {
            AckOutcome::Acknowledged => {}
            AckOutcome::Stale => stale.push(tag),
            AckOutcome::Failed(failure) => return Err(failure),
        }
    }
    Ok(stale)
}

/// The tags of these deliveries.
pub fn tags(deliveries: &[Delivery]) -> Vec<DeliveryTag> {
    deliveries.iter().map(|delivery| delivery.tag).collect()
}
