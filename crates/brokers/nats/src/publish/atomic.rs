//! Atomic batches, which the server stores completely or not at all, with one disk write.
//!
//! The client library does not support them; they are headers on ordinary messages. A server that does not know them
//! stores each message separately and acknowledges only the last. They are therefore sent only to a stream that
//! announces support.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_nats::header::HeaderName;
use async_nats::{Client, jetstream};
use tracing::{debug, info};

use super::encode::{Encoded, encode};
use super::{Call, Session};
use crate::classify::Error;
use crate::config::{Atomic, Config};

/// How long connecting may wait for the stream's settings.
const ASK_FOR: Duration = Duration::from_secs(1);
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(5);

/// The server's limit per batch.
pub(super) const MESSAGES_MAX: usize = 1_000;
/// Our limit per batch: the server buffers a batch in memory until it is complete.
const BYTES_MAX: usize = 8 << 20;

const BATCH_ID: HeaderName = HeaderName::from_static("Nats-Batch-Id");
const BATCH_SEQUENCE: HeaderName = HeaderName::from_static("Nats-Batch-Sequence");
const BATCH_COMMIT: HeaderName = HeaderName::from_static("Nats-Batch-Commit");

/// Whether the stream of a connection accepts batches.
#[derive(Debug, Default)]
pub(crate) struct Ability(AtomicBool);

impl Ability {
    /// Requests the stream's settings with a short timeout, so that the first messages can already be batched. Returns
    /// whether the server responded.
    pub(crate) async fn ask(&self, client: &Client, config: &Config) -> bool {
        let Some(stream) = config.stream.as_ref().filter(|_| config.atomic != Atomic::Off) else { return true };
        if !client.is_server_compatible(2, 12, 0) {
            return true;
        }
        let context = jetstream::new(client.clone());
        match tokio::time::timeout(ASK_FOR, context.get_stream(stream)).await {
            Ok(Ok(stream)) => {
                self.0.store(stream.cached_info().config.allow_atomic_publish, Ordering::Relaxed);
                true
            }
            Ok(Err(error)) => {
                debug!(stream, %error, "the stream's settings cannot be read, so messages go one by one");
                false
            }
            Err(_) => false,
        }
    }

    /// Repeats the request until the server responds: streams may not be ready when the server accepts connections.
    pub(crate) async fn learn(&self, client: &Client, config: &Config) {
        while !self.ask(client, config).await {
            tokio::time::sleep(ASK_AGAIN_AFTER).await;
        }
    }

    fn lose(&self, why: &Error) {
        if self.0.swap(false, Ordering::Relaxed) {
            info!(%why, "the stream takes no atomic batches any more, so messages go one by one");
        }
    }
}

/// Whether a call should send batches over this connection.
pub(super) fn is_wanted(session: &Session, config: &Config) -> bool {
    session.ability.0.load(Ordering::Relaxed)
        && match config.atomic {
            Atomic::Off => false,
            Atomic::Always => true,
            Atomic::Auto => session.acks.is_slow(),
        }
}

/// Messages of a call that wait to be sent as a batch.
#[derive(Default)]
pub(super) struct Gathered {
    messages: Vec<(usize, Encoded)>,
    bytes: usize,
}

impl Gathered {
    pub(super) fn push(&mut self, index: usize, message: Encoded) {
        self.bytes += message.bytes;
        self.messages.push((index, message));
    }

    pub(super) fn is_full(&self) -> bool {
        self.messages.len() >= MESSAGES_MAX || self.bytes >= BYTES_MAX
    }
}

impl Call<'_> {
    /// Sends the collected messages as one batch. If the server refuses the batch, they are sent one by one, so that
    /// each has its own outcome.
    pub(super) async fn send_together(&self, gathered: &mut Gathered) {
        let gathered = std::mem::take(gathered);
        let messages = gathered.messages;
        if messages.len() < 2 {
            for (index, message) in messages {
                self.send_or_report(index, message).await;
            }
            return;
        }
        let indexes: Vec<usize> = messages.iter().map(|(index, _)| *index).collect();
        let error = match self.commit(messages).await {
            Ok(()) => {
                self.confirms.report_all(indexes.into_iter().map(|index| (index, Ok(()))));
                return;
            }
            Err(error) => error,
        };
        if error.is_uncertain() {
            // It is unknown whether the server received the complete batch.
            self.confirms.report_all(indexes.into_iter().map(|index| (index, Err(error.again().into()))));
            return;
        }
        if matches!(error, Error::Refused { code: DISABLED, .. }) {
            self.session.ability.lose(&error);
        }
        debug!(%error, messages = indexes.len(), "a batch was refused whole, its messages go one by one");
        for index in indexes {
            match encode(&self.batch[index], self.config, self.bytes_max) {
                Ok(message) => self.send_or_report(index, message).await,
                Err(error) => self.confirms.report(index, Err(error.into())),
            }
        }
    }

    /// Sends a batch and waits for its single acknowledgement.
    async fn commit(&self, messages: Vec<(usize, Encoded)>) -> Result<(), Error> {
        let Session { client, acks, .. } = self.session;
        let count = messages.len();
        if let Some((_, denied)) = messages.iter().find(|(_, message)| self.session.is_denied(&message.subject)) {
            return Err(Error::NotPermitted(denied.subject.to_string()));
        }
        acks.room(count).await?;
        let last = messages[count - 1].1.subject.clone();
        let (token, answer) = acks.expect_batch(count, &last)?;
        let batch_id = uuid::Uuid::new_v4().simple().to_string();
        for (number, (_, message)) in messages.into_iter().enumerate() {
            let Encoded { subject, mut headers, payload, .. } = message;
            headers.insert(BATCH_ID, batch_id.as_str());
            headers.insert(BATCH_SEQUENCE, (number + 1).to_string());
            let written = if number + 1 == count {
                headers.insert(BATCH_COMMIT, "1");
                let reply = self.session.reply(token);
                self.written(client.publish_with_reply_and_headers(subject, reply, headers, payload)).await
            } else {
                self.written(client.publish_with_headers(subject, headers, payload)).await
            };
            if let Err(error) = written {
                // The server discards a batch without its last message.
                acks.forget(token);
                return Err(error);
            }
        }
        answer.await.unwrap_or(Err(Error::Lost))
    }
}

/// `JetStream`'s error code for a stream that does not accept batches.
const DISABLED: u64 = 10_174;
