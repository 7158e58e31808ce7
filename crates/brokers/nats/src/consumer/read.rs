//! Reading a lane's messages from its durable consumer, in the order of the stream whatever gets lost on the way.
//!
//! The server counts what it delivers. A gap in that count means that something was delivered to nobody: to a connection
//! that was cut, or to the consumer that had the lane before. The server would bring it again after `ack_wait`, behind
//! what is newer; so it is read from the stream instead before anything newer is taken.

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

/// A request for messages is renewed so often; an abandoned one stands at most so long.
const EXPIRES: Duration = Duration::from_secs(10);
/// The server gives a sign of life so often; after two without, the request is made again.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// How many messages one request asks for at most.
const PULL_MAX: usize = 500;
/// How many are read again at once.
const READS: usize = 32;
/// How many that came together are taken together.
const CHUNK: usize = 256;

/// Why a reader stops.
enum End {
    /// The lane is not this consumer's any more.
    Gone,
    /// A person must mend it.
    Fault(Error),
    /// It is tried again.
    Trouble(Error),
}

impl From<Error> for End {
    fn from(error: Error) -> Self {
        if error.class() == Class::Blocked { Self::Fault(error) } else { Self::Trouble(error) }
    }
}

/// Reads a lane until it is lost or the consumer ends.
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
            // The library ended its stream: a new one is asked for.
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
                // What was delivered to nobody, and nothing came behind it that would show the gap.
                () = sleep_until(Instant::now() + idle) => self.catch_up_with_server().await?,
            }
        }
    }

    /// What the record says is open, when the lane came from somebody else. Ascending, so that nothing is handed out
    /// before what it may have to wait for is known.
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
            let content = self.content(message.subject, Some(&message.headers), message.payload);
            self.held(|held| held.window.take(seq, content, None)).await?;
        }
        self.shared.changed.notify_waiters();
        Ok(())
    }

    /// Everything that the server believes to have delivered.
    async fn catch_up_with_server(&self) -> Result<(), End> {
        let delivered = self.delivered().await?;
        self.catch_up(delivered).await
    }

    /// The last message that the server has delivered, if the durable consumer is still the one that was taken: what is
    /// known of the lane would swallow the messages of another one.
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

    /// Everything of the lane up to this sequence that was not seen. Nobody else adds to what was seen, so the lane need
    /// not stand still meanwhile.
    async fn catch_up(&self, until: u64) -> Result<(), End> {
        let mut seen = self.held(|held| held.window.seen()).await?;
        while seen < until {
            let Some(message) = self.next(seen + 1).await?.filter(|message| message.sequence <= until) else {
                return Ok(());
            };
            seen = message.sequence;
            let content = self.content(message.subject, Some(&message.headers), message.payload);
            self.held(|held| held.window.take(seen, content, None)).await?;
            self.shared.changed.notify_waiters();
        }
        Ok(())
    }

    /// The first message of the lane at this sequence or behind it.
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
                // The library asks again by itself.
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

    /// Takes messages behind which there is no gap.
    async fn take(&self, messages: Vec<(u64, async_nats::Message)>) -> Result<(), End> {
        if messages.is_empty() {
            return Ok(());
        }
        let mut done = Vec::new();
        let mut slot = self.cell.held.lock().await;
        let held = self.mine(&mut slot)?;
        for (seq, message) in messages {
            let content = self.content(message.subject, message.headers.as_ref(), message.payload);
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

    fn content(&self, subject: Subject, headers: Option<&HeaderMap>, payload: Bytes) -> Content {
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
