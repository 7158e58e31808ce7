//! What the suites need of a broker beyond the ports.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use relevo_core::broker::Reports;
use relevo_core::message::{Headers, Message, MessageId};
use relevo_core::wire::Received;
use relevo_core::{AckOutcome, Broker, BrokerConsumer, Class, Delivery, DeliveryTag, Failure, Publication, Raw};

/// The address that most cases publish to.
pub const ADDRESS: &str = "orders";
/// What comes at all comes within this time.
pub const SOON: Duration = Duration::from_secs(20);
/// What has not come within this time is not coming. Nothing waits for it to pass unless something else holds it back.
pub const QUIET: Duration = Duration::from_millis(300);

/// A broker of its own for one case, and everything that a case does to it.
///
/// A call that fails panics: cases look at what the ports answer, not at the harness.
#[async_trait]
pub trait BrokerHarness: Send + Sync {
    /// What is published to.
    type Broker: Broker;

    /// A new publisher, independent of every other. Addresses need not be prepared.
    async fn broker(&self) -> Self::Broker;

    /// Everything that an address holds, repeats included, in order.
    async fn kept(&self, address: &str) -> Vec<Raw>;

    /// Kills the broker without warning and starts it again. Publishers and consumers from before are not used again.
    async fn crash(&mut self);

    /// What differs from broker to broker; it chooses what a case expects, never whether it runs.
    fn promises(&self) -> Promises;
}

/// What differs from broker to broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promises {
    /// What was confirmed is there after a crash. Otherwise all of it is gone.
    pub survives_crash: bool,
    /// A repeat of a message at the same address is confirmed and not stored again. Otherwise it is stored again.
    pub recognises_repeats: bool,
}

/// A broker that can be consumed from.
#[async_trait]
pub trait ConsumerHarness: BrokerHarness {
    /// What is consumed with.
    type Consumer: BrokerConsumer;

    /// Makes a group, of at least four lanes where the broker has none of its own, that gets everything published from
    /// now on to this address.
    async fn group(&self, name: &str, address: &str);

    /// A new consumer of a group, with at most `prefetch` deliveries of one lane out.
    async fn consumer(&self, group: &str, prefetch: usize) -> Self::Consumer;

    /// The process of this consumer dies without a word. Returns when its lanes are free to be taken.
    async fn kill(&self, consumer: Self::Consumer);

    /// The process of this consumer stops for longer than its lease and then goes on. Returns when its lanes are free to
    /// be taken; whatever it had out, it still believes to have.
    async fn freeze(&self, consumer: &Self::Consumer);

    /// Publishes anything at all, which need not be a message of ours.
    async fn publish_raw(&self, address: &str, headers: &Headers, payload: Bytes);

    /// An acknowledgement that was confirmed survives a crash of the broker itself. Otherwise the message may be delivered
    /// again.
    fn acks_survive_crash(&self) -> bool {
        true
    }
}

/// An ordinary message of this key to [`ADDRESS`]; equal numbers make equal messages.
pub fn publication(number: u32, key: &str) -> Publication {
    to(ADDRESS, number, key)
}

/// An ordinary message of this key; equal numbers make equal messages.
pub fn to(address: &str, number: u32, key: &str) -> Publication {
    let mut random = [0; 10];
    random[6..].copy_from_slice(&number.to_be_bytes());
    let message = Message {
        id: MessageId::v7(u64::from(number), random),
        kind: "OrderPlaced".into(),
        key: key.into(),
        topic: address.into(),
        payload: Bytes::from(format!("{{\"number\":{number}}}")),
        content_type: "application/json".into(),
        headers: Headers::new(),
        created_at: "2026-03-01T12:00:00.123456Z".parse().expect("a time"),
    };
    Publication {
        message: Arc::new(message),
        address: address.into(),
        headers: Arc::default(),
        seq: number.into(),
        epoch: 7,
    }
}

/// The same publication with another message.
pub fn with(publication: &Publication, change: impl FnOnce(&mut Message)) -> Publication {
    let mut message = Message::clone(&publication.message);
    change(&mut message);
    Publication { message: Arc::new(message), ..publication.clone() }
}

/// Publishes a batch; each message's class of failure, or `None` for confirmed. Each has exactly one outcome.
pub async fn publish(broker: &impl Broker, batch: &[Publication]) -> Vec<Option<Class>> {
    let reports = Reports::default();
    soon(broker.publish(batch, &reports.confirms(1))).await;
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

/// Fails loudly instead of hanging.
pub async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, future).await.expect("an answer in time")
}

/// Reads what must be a message of ours.
pub fn decoded(raw: &Raw) -> Received {
    raw.decode().expect("a message of ours")
}

/// The numbers in the outbox of what an address holds, in order.
pub fn numbers<'a>(raws: impl IntoIterator<Item = &'a Raw>) -> Vec<i64> {
    raws.into_iter().map(|raw| decoded(raw).seq.expect("a number")).collect()
}

/// A delivery's number in the outbox.
pub fn number(delivery: &Delivery) -> i64 {
    decoded(&delivery.raw).seq.expect("a number")
}

/// A delivery's key.
pub fn key(delivery: &Delivery) -> String {
    decoded(&delivery.raw).message.key.to_string()
}

/// Receives until there are `wanted` deliveries, and not one more.
pub async fn receive(consumer: &impl BrokerConsumer, wanted: usize) -> Vec<Delivery> {
    let mut all = Vec::new();
    while all.len() < wanted {
        let some = soon(consumer.receive(wanted - all.len())).await.expect("deliveries");
        assert!(!some.is_empty(), "the consumer was closed");
        all.extend(some);
    }
    assert_eq!(all.len(), wanted, "more than was asked for");
    all
}

/// Nothing is there to be received.
pub async fn nothing(consumer: &impl BrokerConsumer) {
    let received = tokio::time::timeout(QUIET, consumer.receive(100)).await;
    if let Ok(received) = received {
        panic!("received {:?}", received.map(|deliveries| deliveries.iter().map(number).collect::<Vec<_>>()));
    }
}

/// Acknowledges deliveries that must all be outstanding.
pub async fn acknowledge(consumer: &impl BrokerConsumer, deliveries: &[Delivery]) {
    assert_eq!(stale(consumer, &tags(deliveries)).await.expect("acknowledged"), []);
}

/// Acknowledges; the tags that were stale, or the first failure.
pub async fn stale(consumer: &impl BrokerConsumer, tags: &[DeliveryTag]) -> Result<Vec<DeliveryTag>, Failure> {
    stale_of(tags.iter().copied(), soon(consumer.acknowledge(tags)).await)
}

/// The tags whose outcome is stale, or the first failure.
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
