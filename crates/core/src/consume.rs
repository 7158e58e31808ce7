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

/// What a consumer promises beyond the contract; the conformance suite holds it to every promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Consuming {
    /// A message that is retried later holds back the later ones of its key. Without it they pass.
    pub holds_key: bool,
    /// [`Delivery::count`] is exact and survives restarts of everything. Without it, it only tells the first time
    /// from a repeat.
    pub counts: bool,
    /// An answer that was settled survives a crash of the broker itself. Without it, a message that was answered shortly
    /// before such a crash may come again; a crash of the consumer loses no answer either way.
    pub keeps_answers: bool,
}

/// What a consumer can pause alone; the broker chooses the name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lane(Arc<str>);

impl Lane {
    /// The lane of this name.
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self(name.into())
    }

    /// Its name, for people and for [`Consumer::pause`].
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
pub struct Tag(u64);

impl Tag {
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
    /// What the answer names it by.
    pub tag: Tag,
    /// What arrived; [`Raw::decode`] reads the message.
    pub raw: Raw,
    /// Where it was published to.
    pub address: Arc<str>,
    /// Which lane it came through.
    pub lane: Lane,
    /// Its number at the broker, where a repeat of the delivery has the same one: an offset, a stream sequence.
    pub place: Option<u64>,
    /// How often it has been handed to a consumer of this group, this time included, whatever became of it there.
    pub count: u32,
    /// How often it has been answered with [`Answer::RetryLater`] in this group. Exact with every broker, and kept over
    /// restarts of everything: a delivery that ended without an answer raises only the count, because nobody tried it for
    /// certain.
    pub retries: u32,
}

/// What a consumer says to a delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Done: this group never gets it again.
    Acknowledge,
    /// It can never be handled: it goes to the group's dead letters at the broker, bytes and all, and its key goes on.
    Reject {
        /// Why, for people.
        reason: String,
    },
    /// Again, not before this pause is over. Its retries rise. Where [`Consuming::holds_key`] is promised, the later
    /// messages of its key wait behind it: those that are out are taken back, and their tags are lost.
    RetryLater {
        /// From now.
        after: Duration,
    },
}

/// One consumer of one group, bound to it when it was made; any number may run, in any number of processes.
///
/// Methods may be called at the same time from several tasks: usually one receives and many settle.
#[async_trait]
pub trait Consumer: Send + Sync {
    /// What this consumer promises.
    fn capabilities(&self) -> Consuming;

    /// The next deliveries, at most `limit`, at least one: it waits until there is one. Empty only when the consumer is
    /// closed.
    ///
    /// Messages of one key come in the order in which the broker took them; a repeat may come later. Of each lane at
    /// most the consumer's *prefetch* are out, handed over and not settled; a lane that has so many gives no more,
    /// others do. A message may come again at any time to any consumer of the group unless its acknowledgement was
    /// confirmed by [`settle`](Self::settle).
    ///
    /// Cancelling loses nothing: what was not returned is delivered again, at the latest when the lane changes hands,
    /// and its count may have risen.
    async fn receive(&self, limit: usize) -> Result<Vec<Delivery>, Failure>;

    /// Answers deliveries. `Ok` means that the answers are kept over any crash of the consumer, except those whose tags
    /// are returned: the lane has gone to another consumer, or the delivery was taken back or settled before. Of these
    /// nothing was changed, and the messages come again or have been settled by somebody else.
    ///
    /// What `Ok` says of a crash of the broker itself, [`Consuming::keeps_answers`] tells. After an error, or when the call is
    /// cancelled, each answer may or may not have been kept, whatever became of the others; the same call may be made
    /// again.
    async fn settle(&self, answers: &[(Tag, Answer)]) -> Result<Vec<Tag>, Failure>;

    /// Hands out nothing more of one lane until it is resumed; what is out of it stays out and can be settled. The
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
    /// settles. A lane, or all of them, is left out where the broker does not tell, as here.
    async fn lag(&self) -> Result<Vec<(Lane, u64)>, Failure> {
        Ok(Vec::new())
    }

    /// Ends orderly: what is out goes back at once, for other consumers of the group, and every waiting
    /// [`receive`](Self::receive) returns empty. Whatever is settled afterwards is lost. After an error, and for a
    /// consumer that is dropped without being closed, the same happens when the broker notices.
    async fn close(&self) -> Result<(), Failure>;
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
