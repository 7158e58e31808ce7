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
use relevo_core::{Class, Raw};
use tokio::time::{Instant, sleep, sleep_until};

use super::count::{Count, Gap};
use super::lane::{Cell, Held, durable_ns};
use super::window::{Arrival, Content, Word};
use super::{Shared, declare, lock};
use crate::classify::{Error, Source, api};
use crate::headers::decode_headers;
use crate::lanes::{found, next_message};
use crate::link;

/// The lifetime of a pull request, after which it is renewed. An abandoned request expires by then.
const EXPIRES: Duration = Duration::from_secs(10);
/// The heartbeat interval of the server. After two missed heartbeats the request is sent again.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// The maximum number of messages per pull request.
const PULL_MAX: usize = 500;
/// The number of concurrent reads from the stream.
const READS: usize = 32;
/// The maximum number of received messages that are processed together.
const CHUNK: usize = 256;

/// Why a reader stops.
enum End {
    /// This consumer no longer owns the lane.
    Gone,
    /// An operator must fix it.
    Fault(Error),
    /// The reader retries.
    Trouble(Error),
}

impl From<Error> for End {
    fn from(error: Error) -> Self {
        if error.class() == Class::Blocked { Self::Fault(error) } else { Self::Trouble(error) }
    }
}

/// Reads a lane until it is lost or the consumer is closed.
pub(super) async fn read(shared: Arc<Shared>, number: u16, epoch: u64) {
    let cell = &shared.cells[usize::from(number)];
    let mut reader = Reader { shared: &shared, cell, epoch };
    let mut backoff = link::Backoff::default();
    loop {
        let began = Instant::now();
        match reader.session().await {
            Err(End::Gone) => return,
            Err(End::Fault(error)) => {
                *lock(&shared.fault) = Some(error);
                shared.changed.notify_waiters();
            }
            Err(End::Trouble(error)) => {
                tracing::warn!(group = shared.group.name, lane = number, %error, "reading failed, will try again");
            }
            // The library ended its message stream: request a new one.
            Ok(()) => {}
        }
        sleep(backoff.after(began.elapsed())).await;
    }
}

struct Reader<'a> {
    shared: &'a Shared,
    cell: &'a Cell,
    epoch: u64,
}

impl Reader<'_> {
    async fn session(&mut self) -> Result<(), End> {
        self.read_again().await?;
        self.catch_up_with_server().await?;
        let consumer: PullConsumer = self.shared.stream.get_consumer(&self.cell.durable).await.map_err(asking)?;
        let messages = consumer
            .stream()
            .max_messages_per_batch(self.shared.group.max_ack_pending.min(PULL_MAX))
            .expires(EXPIRES)
            .heartbeat(HEARTBEAT)
            .messages()
            .await
            .map_err(asking)?;
        let mut chunks = messages.ready_chunks(CHUNK);
        let mut count = Count::default();
        let idle = (self.shared.group.ack_wait / 4).max(HEARTBEAT);
        loop {
            tokio::select! {
                chunk = chunks.next() => match chunk {
                    Some(chunk) => self.accept(chunk, &mut count).await?,
                    None => return Ok(()),
                },
                // A delivery may have been lost without a later one that would show the gap.
                () = sleep_until(Instant::now() + idle) => self.catch_up_with_server().await?,
            }
        }
    }

    /// Reads the unacknowledged messages of the record, after the lane was claimed from another consumer. It reads in
    /// ascending order, so that no message is delivered before an earlier one is known.
    async fn read_again(&self) -> Result<(), End> {
        let unread = self.held(|held| held.window.unread()).await?;
        let asked = |seq| async move {
            Ok::<_, Error>((seq, found(self.shared.stream.raw_message_builder().sequence(seq).send().await)?))
        };
        let mut read = stream::iter(unread).map(asked).buffered(READS);
        while let Some((seq, message)) = read.try_next().await? {
            let Some(message) = message else {
                tracing::warn!(group = self.shared.group.name, seq, "the stream's limits removed an open message");
                self.held(|held| held.window.vanish(seq)).await?;
                continue;
            };
            let content = self.content(&message.subject, Some(&message.headers), message.payload);
            self.held(|held| held.window.take(seq, content, None)).await?;
        }
        self.shared.changed.notify_waiters();
        Ok(())
    }

    /// Reads all messages that the server has delivered, by its own count.
    async fn catch_up_with_server(&self) -> Result<(), End> {
        let delivered = self.delivered().await?;
        self.catch_up(delivered).await
    }

    /// The last message that the server has delivered. Fails if the durable consumer was recreated: with the old state
    /// of the lane, messages of the new one would be skipped.
    async fn delivered(&self) -> Result<u64, End> {
        let info = match self.shared.stream.consumer_info(&self.cell.durable).await {
            Ok(info) => info,
            Err(error) if declare::is_missing(&error) => {
                return Err(End::Fault(Error::NoGroup(self.shared.group.name.clone())));
            }
            Err(error) => return Err(asking(error).into()),
        };
        let mut slot = self.cell.held.lock().await;
        if self.mine(&mut slot)?.is_of(durable_ns(&info)) {
            return Ok(info.delivered.stream_sequence);
        }
        tracing::warn!(group = self.shared.group.name, lane = %self.cell.lane, "the durable consumer was made again");
        self.shared.lose(self.cell, &mut slot);
        self.shared.attend_now.notify_one();
        Err(End::Gone)
    }

    /// Reads all messages of the lane up to this sequence that were not seen. Only this task adds seen messages, so the
    /// lane need not stay locked.
    async fn catch_up(&self, until: u64) -> Result<(), End> {
        let mut seen = self.held(|held| held.window.seen()).await?;
        while seen < until {
            let Some(message) = self.next(seen + 1).await?.filter(|message| message.sequence <= until) else {
                return Ok(());
            };
            seen = message.sequence;
            let content = self.content(&message.subject, Some(&message.headers), message.payload);
            self.held(|held| held.window.take(seen, content, None)).await?;
            self.shared.changed.notify_waiters();
        }
        Ok(())
    }

    /// The first message of the lane at or after this sequence.
    async fn next(&self, from: u64) -> Result<Option<StreamMessage>, Error> {
        let any = [">".to_owned()];
        let filters = if self.cell.filters.is_empty() { &any[..] } else { &self.cell.filters };
        let asked = filters.iter().map(|filter| next_message(&self.shared.stream, filter, from));
        let found = try_join_all(asked).await?;
        Ok(found.into_iter().flatten().min_by_key(|message| message.sequence))
    }

    async fn accept(&self, chunk: Vec<Result<Message, pull::MessagesError>>, count: &mut Count) -> Result<(), End> {
        let mut together = Vec::new();
        for message in chunk {
            let message = match message {
                Ok(message) => message,
                // The library sends the request again.
                Err(error) if error.kind() == MessagesErrorKind::MissingHeartbeat => continue,
                Err(error) if error.kind() == MessagesErrorKind::ConsumerDeleted => {
                    return Err(End::Fault(Error::NoGroup(self.shared.group.name.clone())));
                }
                Err(error) => return Err(asking(error).into()),
            };
            let (seq, gap) = match message.info() {
                Ok(info) => (info.stream_sequence, count.arrived(info.consumer_sequence, info.delivered <= 1)),
                Err(error) => return Err(api("reading a delivery", error).into()),
            };
            if gap != Gap::None {
                self.take(std::mem::take(&mut together)).await?;
                let delivered = self.delivered().await?;
                let before = seq.saturating_sub(1);
                self.catch_up(if gap == Gap::Before { before } else { before.max(delivered) }).await?;
            }
            together.push((seq, message.message));
        }
        self.take(together).await
    }

    /// Accepts messages that have no gap before them.
    async fn take(&self, messages: Vec<(u64, async_nats::Message)>) -> Result<(), End> {
        if messages.is_empty() {
            return Ok(());
        }
        let mut done = Vec::new();
        let mut slot = self.cell.held.lock().await;
        let held = self.mine(&mut slot)?;
        for (seq, message) in messages {
            let content = self.content(&message.subject, message.headers.as_ref(), message.payload);
            if held.window.take(seq, content, message.reply.clone()) == Arrival::Done {
                done.push(Word { seq, reply: message.reply });
            }
        }
        drop(slot);
        self.shared.changed.notify_waiters();
        self.shared.say(self.cell, done).await;
        Ok(())
    }

    async fn held<T>(&self, job: impl FnOnce(&mut Held) -> T) -> Result<T, End> {
        let mut slot = self.cell.held.lock().await;
        Ok(job(self.mine(&mut slot)?))
    }

    fn mine<'s>(&self, slot: &'s mut Option<Held>) -> Result<&'s mut Held, End> {
        slot.as_mut().filter(|held| held.epoch == self.epoch).ok_or(End::Gone)
    }

    fn content(&self, subject: &Subject, headers: Option<&HeaderMap>, payload: Bytes) -> Content {
        let headers = headers.map(decode_headers).unwrap_or_default();
        let address = match self.shared.group.lanes {
            Some(_) => subject.rsplit_once('.').map_or(subject.as_str(), |(address, _)| address),
            None => subject.as_str(),
        };
        let address = address.into();
        Content { raw: Raw::new(headers, payload), address }
    }
}

fn asking(error: impl Into<Source>) -> Error {
    api("asking for messages", error)
}
