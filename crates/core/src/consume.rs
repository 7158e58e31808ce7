//! The port to the far side, from the receiver's end.
//!
//! A consumer belongs to a group. Every group gets every message of the addresses that it is subscribed to; within a
//! group each message goes to one consumer. A group's messages come in *lanes*: a Kafka partition, a RabbitMQ queue, a
//! NATS filter, or a share of the keys where the broker has none of these. One lane is one consumer's at a time, and all
//! messages of a key are in one lane: that is what order per key rests on.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::failure::Failure;
use crate::message::Headers;
use crate::wire::{self, Received, WireError};

/// What the runtime must know of a consumer before it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConsumerCapabilities {
    /// At any time one consumer of the group receives a lane, and another one only takes over with everything that is not
    /// acknowledged. Without it several consumers may receive messages of one key at the same time.
    pub ordered_lanes: bool,
}

/// What a consumer can pause alone; the broker chooses the name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lane(Arc<str>);

impl Lane {
    /// The lane of this name.
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self(name.into())
    }

    /// Its name, for people and for [`BrokerConsumer::pause`].
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

/// Names one delivery to the consumer that made it. It means nothing to any other consumer, nor after a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeliveryTag(u64);

impl DeliveryTag {
    /// A tag that an adapter made.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// What the adapter made it of.
    pub const fn number(self) -> u64 {
        self.0
    }
}

/// What arrived, exactly, whether or not it is a message of ours.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Raw {
    /// Names and values in the order in which the broker gave them; a value need not be text, a name may come twice.
    pub headers: Vec<(String, Bytes)>,
    /// The payload.
    pub payload: Bytes,
}

impl Raw {
    /// Headers that are text, and a payload.
    pub fn new(headers: Headers, payload: Bytes) -> Self {
        Self { headers: headers.into_iter().map(|(name, value)| (name, value.into())).collect(), payload }
    }

    /// Reads it as CloudEvents in binary mode: the message with its id and key, and its number and epoch in the outbox.
    ///
    /// Of a header that comes twice the last one counts; one that is no text does not count.
    pub fn decode(&self) -> Result<Received, WireError> {
        let text = |value: &Bytes| std::str::from_utf8(value).ok().map(str::to_owned);
        let headers = self.headers.iter().filter_map(|(name, value)| Some((name.clone(), text(value)?)));
        wire::receive(headers.collect(), self.payload.clone())
    }
}

impl fmt::Debug for Raw {
    /// Shows no payload: debug output ends up in logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.headers.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("Raw").field("headers", &names).field("payload_bytes", &self.payload.len()).finish()
    }
}

/// One message, handed to one consumer.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// What an acknowledgement names it by.
    pub tag: DeliveryTag,
    /// What arrived; [`Raw::decode`] reads the message.
    pub raw: Raw,
    /// Where it was published to.
    pub address: Arc<str>,
    /// Which lane it came through.
    pub lane: Lane,
    /// Its number at the broker, where a repeat of the delivery has the same one: an offset, a stream sequence.
    pub place: Option<u64>,
    /// It may have been delivered before, to any consumer of the group. `false` means that this is the first delivery.
    pub redelivered: bool,
    /// How often [`DelayedRetry::retry_later`] was confirmed for it in this group. Exact, and kept over restarts of
    /// everything. A delivery that ended without an acknowledgement does not count.
    pub retries: u32,
}

/// What became of one acknowledgement, or of one delayed retry.
#[derive(Clone, Debug)]
pub enum AckOutcome {
    /// The broker has recorded it, and keeps it over any crash of the consumer. Some brokers may lose it when they crash
    /// themselves; the message is then delivered again.
    Acknowledged,
    /// The delivery is not outstanding: its lane belongs to another consumer, or it was acknowledged before. Nothing was
    /// changed. The message is delivered again, or another consumer has acknowledged it.
    Stale,
    /// The broker may or may not have recorded it. The same call may be repeated.
    Failed(Failure),
}

impl AckOutcome {
    /// The same failure for every delivery of a call.
    pub fn failed(failure: impl Into<Failure>, deliveries: usize) -> Vec<Self> {
        vec![Self::Failed(failure.into()); deliveries]
    }
}

/// One consumer of one group, bound to it when it was made; any number may run, in any number of processes.
///
/// Methods may be called at the same time from several tasks: usually one receives and many acknowledge.
#[async_trait]
pub trait BrokerConsumer: Send + Sync {
    /// What this consumer guarantees.
    fn capabilities(&self) -> ConsumerCapabilities;

    /// Delayed retries at the broker, where it has them.
    fn delayed_retry(&self) -> Option<&dyn DelayedRetry> {
        None
    }

    /// The next deliveries, at most `limit`, at least one: it waits until there is one. Empty only when the consumer is
    /// closed.
    ///
    /// Messages of one key come in the order in which the broker took them; a repeat may come later. Of each lane at
    /// most the consumer's *prefetch* are out, handed over and not acknowledged; a lane that has so many gives no more,
    /// others do. A message may come again at any time to any consumer of the group unless its acknowledgement was
    /// confirmed by [`acknowledge`](Self::acknowledge).
    ///
    /// Cancelling loses nothing: what was not returned is delivered again, at the latest when the lane changes hands,
    /// and may be marked as redelivered.
    async fn receive(&self, limit: usize) -> Result<Vec<Delivery>, Failure>;

    /// Acknowledges deliveries: this group does not get them again. One outcome per tag, in the order given; the failure
    /// of one says nothing about the others.
    ///
    /// When the call is cancelled, each acknowledgement may or may not have been recorded.
    async fn acknowledge(&self, tags: &[DeliveryTag]) -> Vec<AckOutcome>;

    /// Hands out nothing more of one lane until it is resumed; what is out of it stays out and can be acknowledged. The
    /// others flow. The pause is this consumer's own and ends when the lane leaves it; an unknown lane is ignored.
    async fn pause(&self, lane: &Lane) -> Result<(), Failure>;

    /// Ends a pause; without one nothing happens.
    async fn resume(&self, lane: &Lane) -> Result<(), Failure>;

    /// How many messages of each lane wait to be handed out to the group, for whoever watches: a lane of which nothing waits
    /// is told with 0. What is out is not counted, nor is what waits for the end of its own pause.
    ///
    /// Lanes that this consumer has are told, others where the broker knows: of a lane that several members tell, the
    /// highest number is the nearest. It may be behind what happens by as long as messages are on their way, and
    /// it may stop counting at 10 000 a lane. Nothing is changed, and nothing waits for it: neither who receives nor who
    /// acknowledges. A lane, or all of them, is left out where the broker does not tell, as here.
    async fn lag(&self) -> Result<Vec<(Lane, u64)>, Failure> {
        Ok(Vec::new())
    }

    /// Ends orderly: what is out goes back at once, for other consumers of the group, and every waiting
    /// [`receive`](Self::receive) returns empty. Whatever is acknowledged afterwards is stale. After an error, and for a
    /// consumer that is dropped without being closed, the same happens when the broker notices.
    async fn close(&self) -> Result<(), Failure>;
}

/// Delayed retries at the broker, for consumers that keep no retry table.
///
/// A message that waits does not hold back its key: later messages of the key pass it.
#[async_trait]
pub trait DelayedRetry: Send + Sync {
    /// Delivers each message again after its delay, and counts it in [`Delivery::retries`]. One outcome per delivery, in
    /// the order given: [`Acknowledged`](AckOutcome::Acknowledged) means that the message waits and its delivery is over.
    ///
    /// After a failure, or when the call is cancelled, the message may be delivered twice.
    async fn retry_later(&self, retries: &[(DeliveryTag, Duration)]) -> Vec<AckOutcome>;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::Publication;
    use crate::message::{Message, MessageId};

    fn raw() -> Raw {
        let message = Message {
            id: MessageId::v7(0, [1; 10]),
            kind: "OrderPlaced".into(),
            key: "o-1".into(),
            topic: "orders".into(),
            payload: Bytes::from_static(b"{}"),
            content_type: "application/json".into(),
            headers: Headers::new(),
            created_at: jiff::Timestamp::UNIX_EPOCH,
        };
        let publication = Publication {
            message: Arc::new(message),
            address: "orders".into(),
            headers: Arc::default(),
            seq: 7,
            epoch: 3,
        };
        Raw::new(wire::headers(&publication, "/outbox"), publication.message.payload.clone())
    }

    #[test]
    fn what_was_sent_is_decoded() {
        let received = raw().decode().expect("it was sent by us");
        assert_eq!((&*received.message.key, received.seq, received.epoch), ("o-1", Some(7), Some(3)));
    }

    #[test]
    fn a_header_that_is_no_text_does_not_hide_the_message() {
        let mut raw = raw();
        raw.headers.push(("x-binary".to_owned(), Bytes::from_static(&[0xff, 0xfe])));
        let received = raw.decode().expect("the rest is text");
        assert!(!received.message.headers.contains_key("x-binary"));
        assert_eq!(raw.headers.last().map(|(_, value)| value.len()), Some(2));
    }

    #[test]
    fn what_cannot_be_decoded_keeps_its_bytes() {
        let raw = Raw { headers: Vec::new(), payload: Bytes::from_static(&[0, 0xff]) };
        assert_eq!(raw.decode(), Err(WireError::Missing("ce-specversion")));
        assert_eq!(&*raw.payload, [0, 0xff]);
    }

    #[test]
    fn debug_output_shows_no_payload() {
        let raw = Raw { headers: vec![("x-a".to_owned(), "secret".into())], payload: "secret".into() };
        assert!(!format!("{raw:?}").contains("secret"));
    }
}
