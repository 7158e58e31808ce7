//! Reads a lane's messages from its durable consumer, in stream order even if deliveries are lost.
//!
//! The server numbers its deliveries. A gap in the numbers means that a delivery was lost: it went to a closed
//! connection, or to the previous owner of the lane. The server would redeliver it after `ack_wait`, after newer
//! messages. The reader therefore reads it from the stream before it accepts anything newer.

use std::sync::Arc;
use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::Subject;
use async_nats::jetstream::Message;
use async_nats::jetstream::consumer::PullConsumer;
use async_nats::jetstream::consumer::pull::{self, MessagesErrorKind};
use async_nats::jetstream::message::StreamMessage;
use bytes::Bytes;
use futures_util::future::try_join_all;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use relevo_core::{Class, RawMessage};
use tokio::time::{Instant, sleep, sleep_until};

use super::ConsumerInner;
use super::lane_messages::{Arrival, MessageContent, ServerAck};
use super::lane_store::{next_message, none_if_missing};
use super::lanes::{LaneSlot, OwnedLane, durable_ns};
use crate::classify::{Error, Source, api_error};
use crate::connection;
use crate::headers::decode_headers;
use crate::topology::apply::is_consumer_not_found;

/// The lifetime of a pull request, after which it is renewed. An abandoned request expires by then.
const PULL_EXPIRES: Duration = Duration::from_secs(10);
/// The heartbeat interval of the server. After two missed heartbeats the request is sent again.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// The maximum number of messages per pull request.
const PULL_MAX: usize = 500;
/// The number of concurrent reads from the stream.
const PARALLEL_READS: usize = 32;
/// After a session of this length, the next delay is the shortest one again.
const STABLE_AFTER: Duration = Duration::from_secs(10);
/// The maximum number of received messages that are processed at once.
const CHUNK: usize = 256;

/// Why a reader stops.
enum ReaderExit {
    /// This consumer no longer owns the lane.
    LaneLost,
    /// An operator must fix it.
    Fatal(Error),
    /// The reader retries.
    Retry(Error),
}

impl From<Error> for ReaderExit {
    fn from(error: Error) -> Self {
        if error.class() == Class::Blocked { Self::Fatal(error) } else { Self::Retry(error) }
    }
}

/// Reads a lane until it is lost or the consumer is closed.
pub(super) async fn read_lane(inner: Arc<ConsumerInner>, number: u16, epoch: u64) {
    let slot = &inner.lane_slots[usize::from(number)];
    let mut reader = Reader { consumer: &inner, lane: slot, epoch };
    let mut backoff = connection::backoff();
    loop {
        let began = Instant::now();
        match reader.read_session().await {
            Err(ReaderExit::LaneLost) => return,
            Err(ReaderExit::Fatal(error)) => {
                *inner.fatal_error.lock() = Some(error);
                inner.changed.notify_waiters();
            }
            Err(ReaderExit::Retry(error)) => {
                tracing::warn!(group = inner.group.name, lane = number, %error, "reading a lane failed, will retry");
            }
            // The library ended its message stream: request a new one.
            Ok(()) => {}
        }
        if began.elapsed() >= STABLE_AFTER {
            backoff.reset();
        }
        sleep(backoff.next(connection::jitter())).await;
    }
}

struct Reader<'a> {
    consumer: &'a ConsumerInner,
    lane: &'a LaneSlot,
    epoch: u64,
}

impl Reader<'_> {
    async fn read_session(&mut self) -> Result<(), ReaderExit> {
        let mut connected = self.consumer.connected.clone();
        connected.mark_unchanged();
        self.reload_unacknowledged().await?;
        self.catch_up_with_server().await?;
        let consumer: PullConsumer =
            self.consumer.stream.get_consumer(&self.lane.durable).await.map_err(request_error)?;
        let messages = consumer
            .stream()
            .max_messages_per_batch(self.consumer.group.max_ack_pending.min(PULL_MAX))
            .expires(PULL_EXPIRES)
            .heartbeat(HEARTBEAT)
            .messages()
            .await
            .map_err(request_error)?;
        let mut chunks = messages.ready_chunks(CHUNK);
        let mut counter = DeliveryCounter::default();
        let idle = (self.consumer.group.ack_wait / 4).max(HEARTBEAT);
        loop {
            tokio::select! {
                chunk = chunks.next() => match chunk {
                    Some(chunk) => self.accept(chunk, &mut counter).await?,
                    None => return Ok(()),
                },
                // Deliveries to the lost connection may be missing, without a later one that would show the gap. The
                // connection is subscribed again before this request, so nothing is lost after it.
                Ok(()) = connected.changed() => self.catch_up_with_server().await?,
                // A delivery may be lost in other ways, for example between the servers of a cluster.
                () = sleep_until(Instant::now() + idle) => self.catch_up_with_server().await?,
            }
        }
    }

    /// Reads the unacknowledged messages of the record, after the lane was claimed from another consumer. It reads in
    /// ascending order, so that no message is delivered before an earlier one is known.
    async fn reload_unacknowledged(&self) -> Result<(), ReaderExit> {
        let unread = self.with_owned_lane(|lane| lane.messages.unread()).await?;
        let read = |seq| async move {
            Ok::<_, Error>((
                seq,
                none_if_missing(self.consumer.stream.raw_message_builder().sequence(seq).send().await)?,
            ))
        };
        let mut messages = stream::iter(unread).map(read).buffered(PARALLEL_READS);
        while let Some((seq, message)) = messages.try_next().await? {
            let Some(message) = message else {
                tracing::warn!(
                    group = self.consumer.group.name,
                    seq,
                    "the limits of the stream deleted an unacknowledged message"
                );
                self.with_owned_lane(|lane| lane.messages.drop_missing(seq)).await?;
                continue;
            };
            let content = self.content(&message.subject, Some(&message.headers), message.payload);
            self.with_owned_lane(|lane| lane.messages.insert(seq, content, None)).await?;
        }
        self.consumer.changed.notify_waiters();
        Ok(())
    }

    /// Reads all messages that the server has delivered, by its own count.
    async fn catch_up_with_server(&self) -> Result<(), ReaderExit> {
        let delivered = self.last_delivered().await?;
        self.catch_up(delivered).await
    }

    /// The last message that the server has delivered. Fails if the durable consumer was recreated: with the old state
    /// of the lane, messages of the new one would be skipped.
    async fn last_delivered(&self) -> Result<u64, ReaderExit> {
        let info = match self.consumer.stream.consumer_info(&self.lane.durable).await {
            Ok(info) => info,
            Err(error) if is_consumer_not_found(&error) => {
                return Err(ReaderExit::Fatal(Error::GroupNotFound(self.consumer.group.name.clone())));
            }
            Err(error) => return Err(request_error(error).into()),
        };
        let mut owned = self.lane.owned.lock().await;
        if self.owned_lane(&mut owned)?.belongs_to(durable_ns(&info)) {
            return Ok(info.delivered.stream_sequence);
        }
        tracing::warn!(group = self.consumer.group.name, lane = %self.lane.lane, "the durable consumer was recreated");
        self.consumer.drop_lane(self.lane, &mut owned);
        self.consumer.rebalance_now.notify_one();
        Err(ReaderExit::LaneLost)
    }

    /// Reads all messages of the lane up to this sequence that were not seen. Only this task adds seen messages, so the
    /// lane need not stay locked.
    async fn catch_up(&self, until: u64) -> Result<(), ReaderExit> {
        let mut seen = self.with_owned_lane(|lane| lane.messages.seen_to()).await?;
        while seen < until {
            let Some(message) = self.next_message(seen + 1).await?.filter(|message| message.sequence <= until) else {
                return Ok(());
            };
            seen = message.sequence;
            let content = self.content(&message.subject, Some(&message.headers), message.payload);
            self.with_owned_lane(|lane| lane.messages.insert(seen, content, None)).await?;
            self.consumer.changed.notify_waiters();
        }
        Ok(())
    }

    /// The first message of the lane at or after this sequence.
    async fn next_message(&self, from: u64) -> Result<Option<StreamMessage>, Error> {
        let any = [">".to_owned()];
        let filters = if self.lane.filters.is_empty() { &any[..] } else { &self.lane.filters };
        let requests = filters.iter().map(|filter| next_message(&self.consumer.stream, filter, from));
        let messages = try_join_all(requests).await?;
        Ok(messages.into_iter().flatten().min_by_key(|message| message.sequence))
    }

    async fn accept(
        &self,
        chunk: Vec<Result<Message, pull::MessagesError>>,
        counter: &mut DeliveryCounter,
    ) -> Result<(), ReaderExit> {
        let mut contiguous = Vec::new();
        for message in chunk {
            let message = match message {
                Ok(message) => message,
                // The library sends the request again.
                Err(error) if error.kind() == MessagesErrorKind::MissingHeartbeat => continue,
                Err(error) if error.kind() == MessagesErrorKind::ConsumerDeleted => {
                    return Err(ReaderExit::Fatal(Error::GroupNotFound(self.consumer.group.name.clone())));
                }
                Err(error) => return Err(request_error(error).into()),
            };
            let (seq, gap) = match message.info() {
                Ok(info) => (info.stream_sequence, counter.record(info.consumer_sequence, info.delivered <= 1)),
                Err(error) => return Err(api_error("parse a delivery", error).into()),
            };
            if gap != Gap::None {
                self.insert_messages(std::mem::take(&mut contiguous)).await?;
                let delivered = self.last_delivered().await?;
                let before = seq.saturating_sub(1);
                self.catch_up(if gap == Gap::Before { before } else { before.max(delivered) }).await?;
            }
            contiguous.push((seq, message.message));
        }
        self.insert_messages(contiguous).await
    }

    /// Accepts messages that have no gap before them.
    async fn insert_messages(&self, messages: Vec<(u64, async_nats::Message)>) -> Result<(), ReaderExit> {
        if messages.is_empty() {
            return Ok(());
        }
        let mut acknowledged = Vec::new();
        let mut owned = self.lane.owned.lock().await;
        let lane = self.owned_lane(&mut owned)?;
        for (seq, message) in messages {
            let content = self.content(&message.subject, message.headers.as_ref(), message.payload);
            if lane.messages.insert(seq, content, message.reply.clone()) == Arrival::Acknowledged {
                acknowledged.push(ServerAck { seq, reply: message.reply });
            }
        }
        drop(owned);
        self.consumer.changed.notify_waiters();
        self.consumer.ack_at_server(self.lane, acknowledged).await;
        Ok(())
    }

    async fn with_owned_lane<T>(&self, job: impl FnOnce(&mut OwnedLane) -> T) -> Result<T, ReaderExit> {
        let mut owned = self.lane.owned.lock().await;
        Ok(job(self.owned_lane(&mut owned)?))
    }

    fn owned_lane<'s>(&self, owned: &'s mut Option<OwnedLane>) -> Result<&'s mut OwnedLane, ReaderExit> {
        owned.as_mut().filter(|lane| lane.epoch == self.epoch).ok_or(ReaderExit::LaneLost)
    }

    fn content(&self, subject: &Subject, headers: Option<&HeaderMap>, payload: Bytes) -> MessageContent {
        let headers = headers.map(decode_headers).unwrap_or_default();
        let address = match self.consumer.group.lanes {
            Some(_) => subject.rsplit_once('.').map_or(subject.as_str(), |(address, _)| address),
            None => subject.as_str(),
        };
        let address = address.into();
        MessageContent { raw: RawMessage::new(headers, payload), address }
    }
}

fn request_error(error: impl Into<Source>) -> Error {
    api_error("request messages", error)
}

/// The number of the last delivery, if every first delivery up to it was seen.
#[derive(Debug, Default)]
pub(super) struct DeliveryCounter(Option<u64>);

/// What must be read from the stream before a delivery is accepted.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Gap {
    /// Nothing.
    None,
    /// All messages before it: the server makes first deliveries in stream order.
    Before,
    /// All messages that the server has ever delivered: a redelivery does not show which messages came before it.
    Delivered,
}

impl DeliveryCounter {
    /// Records a delivery. A reported gap must be closed now, or this counter discarded.
    pub(super) fn record(&mut self, number: u64, is_first: bool) -> Gap {
        match self.0.replace(number) {
            Some(last) if last + 1 == number => Gap::None,
            _ if is_first => Gap::Before,
            _ => Gap::Delivered,
        }
    }
}

#[cfg(test)]
mod tests;
