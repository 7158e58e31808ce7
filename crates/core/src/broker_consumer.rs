//! The broker port of consumers.
//!
//! A consumer belongs to a group. Every group receives every message of its subscribed addresses. Within a group, each
//! message is delivered to one consumer.
//!
//! A group's messages arrive in *lanes*: a Kafka partition, a RabbitMQ queue, a NATS filter, or a share of the keys if
//! the broker has none of these. One consumer owns a lane at a time, and all messages of a key are in one lane. Order
//! per key depends on this.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::failure::Failure;
use crate::message::Headers;
use crate::wire::{self, Received, WireError};

/// The options of a consumer in its group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsumerOptions {
    /// The display name of the consumer, which the broker's tools show.
    pub name: String,
    /// The maximum number of outstanding deliveries per lane.
    pub prefetch: usize,
    /// After this time, a consumer that stopped responding loses its lanes to others. It also limits how long a lane that
    /// moves to another consumer waits for its outstanding deliveries.
    pub lease: Duration,
}

impl Default for ConsumerOptions {
    fn default() -> Self {
        Self { name: "relevo".to_owned(), prefetch: 256, lease: Duration::from_secs(10) }
    }
}

/// The guarantees of a consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConsumerCapabilities {
    /// At any time only one consumer of the group receives a lane. A new owner also receives everything that is not
    /// acknowledged. Without it, several consumers may receive messages of one key at the same time.
    pub ordered_lanes: bool,
    /// The maximum number of outstanding deliveries per lane, from [`ConsumerOptions::prefetch`].
    pub prefetch: usize,
}

/// A part of a group's messages that a consumer can pause. The broker chooses the name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lane(Arc<str>);

impl Lane {
    /// Creates a lane with this name.
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self(name.into())
    }

    /// Its name, for logs and for [`BrokerConsumer::pause`].
    pub fn name(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lane({})", self.0)
    }
}

/// Identifies one delivery to one consumer. It is invalid for other consumers and after a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeliveryTag(u64);

impl DeliveryTag {
    /// Creates a tag. Only adapters need this.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The adapter's number.
    pub const fn number(self) -> u64 {
        self.0
    }
}

/// The received headers and payload, unchanged, even if they are not a Relevo message.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct RawMessage {
    /// Names and values in the broker's order. A value may be binary, and a name may occur twice.
    pub headers: Vec<(String, Bytes)>,
    /// The payload.
    pub payload: Bytes,
}

impl RawMessage {
    /// Creates it from text headers and a payload.
    pub fn new(headers: Headers, payload: Bytes) -> Self {
        Self { headers: headers.into_iter().map(|(name, value)| (name, value.into())).collect(), payload }
    }

    /// Parses a CloudEvents message in binary mode, including its sequence number and epoch.
    ///
    /// If a header occurs twice, the last one is used. Headers that are not text are ignored.
    pub fn decode(&self) -> Result<Received, WireError> {
        wire::receive(self.text_headers(), self.payload.clone())
    }

    /// The headers that are text. If a header occurs twice, the last one is used.
    pub fn text_headers(&self) -> Headers {
        let text = |value: &Bytes| std::str::from_utf8(value).ok().map(str::to_owned);
        self.headers.iter().filter_map(|(name, value)| Some((name.clone(), text(value)?))).collect()
    }
}

impl fmt::Debug for RawMessage {
    /// Omits the payload, because debug output ends up in logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.headers.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("RawMessage").field("headers", &names).field("payload_bytes", &self.payload.len()).finish()
    }
}

/// One delivery of a message to one consumer.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// Identifies the delivery in acknowledgements.
    pub tag: DeliveryTag,
    /// The received bytes. [`RawMessage::decode`] parses the message.
    pub raw: RawMessage,
    /// The address it was published to.
    pub address: Arc<str>,
    /// The lane it arrived in.
    pub lane: Lane,
    /// Its number at the broker, such as an offset or a stream sequence. It is set only if a redelivery has the same
    /// number.
    pub offset: Option<u64>,
    /// Whether any consumer of the group may have received it before. `false` means that this is the first delivery.
    pub redelivered: bool,
    /// The number of confirmed [`DelayedRetry::retry_later`] calls for this message in this group. It is exact and
    /// survives any restart. A delivery that ended without an acknowledgement does not count.
    pub retry_count: u32,
}

/// The outcome of one acknowledgement or delayed retry.
#[derive(Clone, Debug)]
pub enum AckOutcome {
    /// The broker recorded it. A consumer crash cannot undo it. Some brokers may lose it when they crash; they then
    /// deliver the message again.
    Acknowledged,
    /// The delivery is no longer outstanding: another consumer owns the lane, or it was acknowledged before. Nothing
    /// was changed. The message is delivered again, or another consumer has acknowledged it.
    Stale,
    /// The broker may or may not have recorded it. The caller may repeat the call.
    Failed(Failure),
}

impl AckOutcome {
    /// The same failure for every delivery of a call.
    pub fn failed(failure: impl Into<Failure>, deliveries: usize) -> Vec<Self> {
        vec![Self::Failed(failure.into()); deliveries]
    }
}

/// One consumer of one group. Any number of consumers may run, in any number of processes.
///
/// Methods may be called concurrently: usually one task receives and many acknowledge.
#[async_trait]
pub trait BrokerConsumer: Send + Sync {
    /// The guarantees of this consumer.
    fn capabilities(&self) -> ConsumerCapabilities;

    /// Delayed retries at the broker, if it supports them.
    fn delayed_retry(&self) -> Option<&dyn DelayedRetry> {
        None
    }

    /// Receives at least one and at most `limit` deliveries. Waits until there is one. Returns an empty list only after
    /// the consumer is closed.
    ///
    /// Messages of one key arrive in the order in which the broker accepted them; a redelivery may come later. Each
    /// lane has at most *prefetch* unacknowledged deliveries. A lane at this limit delivers nothing more, while other
    /// lanes continue.
    ///
    /// A message may be delivered again at any time, to any consumer of the group, until
    /// [`acknowledge`](Self::acknowledge) confirmed it.
    ///
    /// Cancelling loses nothing. Messages that were not returned are delivered again, at the latest when the lane
    /// changes its owner, and may be marked as redelivered.
    async fn receive(&self, limit: usize) -> Result<Vec<Delivery>, Failure>;

    /// Acknowledges deliveries, so that the group does not receive them again. Returns one outcome per tag, in the
    /// given order. The outcomes are independent of each other.
    ///
    /// When the call is cancelled, each acknowledgement may or may not have been recorded.
    async fn acknowledge(&self, tags: &[DeliveryTag]) -> Vec<AckOutcome>;

    /// Stops deliveries from one lane until it is resumed. Outstanding deliveries can still be acknowledged, and other
    /// lanes continue. The pause applies to this consumer only and ends when the lane moves to another one. An unknown
    /// lane is ignored.
    async fn pause(&self, lane: &Lane) -> Result<(), Failure>;

    /// Ends a pause. Does nothing if the lane is not paused.
    async fn resume(&self, lane: &Lane) -> Result<(), Failure>;

    /// The number of messages per lane that wait to be delivered to the group, for monitoring. A lane without waiting
    /// messages is reported with 0. Outstanding deliveries and delayed retries are not counted.
    ///
    /// Reports the lanes of this consumer, and others if the broker knows them. If several members report the same
    /// lane, the highest number is the most accurate. The number may lag behind and may stop at 10 000 per lane. The
    /// call changes nothing and blocks neither receiving nor acknowledging. Lanes that the broker does not report are
    /// omitted; the default reports none.
    async fn lag(&self) -> Result<Vec<(Lane, u64)>, Failure> {
        Ok(Vec::new())
    }

    /// Closes the consumer. Outstanding deliveries return to the group at once, and every waiting
    /// [`receive`](Self::receive) returns an empty list. Later acknowledgements are stale. After an error, or if the
    /// consumer is dropped without this call, the same happens once the broker notices.
    async fn close(&self) -> Result<(), Failure>;
}

/// Delayed retries at the broker, for consumers without a retry table.
///
/// A waiting message does not block its key: later messages of the key overtake it.
#[async_trait]
pub trait DelayedRetry: Send + Sync {
    /// Delivers each message again after its delay, and counts it in [`Delivery::retry_count`]. Returns one outcome per
    /// delivery, in the given order. [`Acknowledged`](AckOutcome::Acknowledged) means that the message waits and its
    /// delivery has ended.
    ///
    /// After a failure, or when the call is cancelled, the message may be delivered twice.
    async fn retry_later(&self, retries: &[(DeliveryTag, Duration)]) -> Vec<AckOutcome>;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::Publication;
    use crate::draft::Draft;
    use crate::message::MessageId;

    fn raw() -> RawMessage {
        let draft = Draft::json("orders", "o-1", "OrderPlaced", "{}");
        let message = draft.into_message(MessageId::v7(0, [1; 10]), jiff::Timestamp::UNIX_EPOCH);
        let publication = Publication {
            message: Arc::new(message),
            address: "orders".into(),
            headers: Arc::default(),
            seq: 7,
            epoch: 3,
        };
        RawMessage::new(wire::headers(&publication, "/outbox"), publication.message.payload.clone())
    }

    #[test]
    fn a_sent_message_is_decoded() {
        let received = raw().decode().expect("the headers are complete");
        assert_eq!((&*received.message.key, received.seq, received.epoch), ("o-1", Some(7), Some(3)));
    }

    #[test]
    fn a_binary_header_does_not_prevent_decoding() {
        let mut raw = raw();
        raw.headers.push(("x-binary".to_owned(), Bytes::from_static(&[0xff, 0xfe])));
        let received = raw.decode().expect("the other headers are text");
        assert!(!received.message.headers.contains_key("x-binary"));
        assert_eq!(raw.headers.last().map(|(_, value)| value.len()), Some(2));
    }

    #[test]
    fn an_undecodable_message_keeps_its_bytes() {
        let raw = RawMessage { headers: Vec::new(), payload: Bytes::from_static(&[0, 0xff]) };
        assert_eq!(raw.decode(), Err(WireError::Missing("ce-specversion")));
        assert_eq!(&*raw.payload, [0, 0xff]);
    }

    #[test]
    fn debug_output_shows_no_payload() {
        let raw = RawMessage { headers: vec![("x-a".to_owned(), "secret".into())], payload: "secret".into() };
        assert!(!format!("{raw:?}").contains("secret"));
    }
}
