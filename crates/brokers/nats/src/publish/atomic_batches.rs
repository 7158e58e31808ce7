//! Atomic batches, which the server stores completely or not at all, with one disk write.
//!
//! The client library does not support them; they are headers on ordinary messages. A server that does not know them
//! stores each message separately and acknowledges only the last. They are therefore sent only to a stream that
//! announces support.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_nats::Client;
use async_nats::header::{NATS_BATCH_COMMIT, NATS_BATCH_COMMIT_FINAL, NATS_BATCH_ID, NATS_BATCH_SEQUENCE};
use tracing::{debug, info};

use super::encode::{EncodedMessage, encode};
use super::{BatchPublisher, PublishConnection};
use crate::classify::Error;
use crate::config::{AtomicBatches, Config};
use crate::connection::jetstream;

/// How long connecting may wait for the stream's settings.
const QUERY_TIMEOUT: Duration = Duration::from_secs(1);
const QUERY_RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// The server's limit per batch.
pub(super) const MESSAGES_MAX: usize = 1_000;
/// Our limit per batch: the server buffers a batch in memory until it is complete.
const BYTES_MAX: usize = 8 << 20;
/// The error code for a stream that does not accept batches.
const BATCHES_DISABLED: u64 = 10_174;

/// Whether the stream of a connection accepts batches.
#[derive(Debug, Default)]
pub(crate) struct BatchSupport(AtomicBool);

impl BatchSupport {
    /// Requests the stream's settings with a short timeout, so that the first messages can already be batched. Returns
    /// whether the server responded.
    pub(crate) async fn query(&self, client: &Client, config: &Config) -> bool {
        let Some(stream) = config.stream.as_ref().filter(|_| config.atomic_batches != AtomicBatches::Off) else {
            return true;
        };
        if !client.is_server_compatible(2, 12, 0) {
            return true;
        }
        let context = jetstream(client, config);
        match tokio::time::timeout(QUERY_TIMEOUT, context.get_stream(stream)).await {
            Ok(Ok(stream)) => {
                self.0.store(stream.cached_info().config.allow_atomic_publish, Ordering::Relaxed);
                true
            }
            Ok(Err(error)) => {
                debug!(stream, %error, "cannot read the stream settings, publishing messages one by one");
                false
            }
            Err(_) => false,
        }
    }

    /// Repeats the request until the server responds: streams may not be ready when the server accepts connections.
    pub(crate) async fn query_until_answered(&self, client: &Client, config: &Config) {
        while !self.query(client, config).await {
            tokio::time::sleep(QUERY_RETRY_INTERVAL).await;
        }
    }

    fn disable(&self, error: &Error) {
        if self.0.swap(false, Ordering::Relaxed) {
            info!(%error, "the stream no longer accepts atomic batches, publishing messages one by one");
        }
    }
}

/// Whether a call should send batches over this connection.
pub(super) fn should_batch(connection: &PublishConnection, config: &Config) -> bool {
    connection.batch_support.0.load(Ordering::Relaxed)
        && match config.atomic_batches {
            AtomicBatches::Off => false,
            AtomicBatches::Always => true,
            AtomicBatches::Auto => connection.unconfirmed.is_slow(),
        }
}

/// Messages of a call that wait to be sent as a batch.
#[derive(Default)]
pub(super) struct BatchBuilder {
    messages: Vec<(usize, EncodedMessage)>,
    bytes: usize,
}

impl BatchBuilder {
    pub(super) fn push(&mut self, index: usize, message: EncodedMessage) {
        self.bytes += message.bytes;
        self.messages.push((index, message));
    }

    pub(super) fn is_full(&self) -> bool {
        self.messages.len() >= MESSAGES_MAX || self.bytes >= BYTES_MAX
    }
}

impl BatchPublisher<'_> {
    /// Sends the collected messages as one batch. If the server refuses the batch, they are sent one by one, so that
    /// each has its own outcome.
    pub(super) async fn send_batch(&self, batch: &mut BatchBuilder) {
        let messages = std::mem::take(batch).messages;
        if messages.len() < 2 {
            for (index, message) in messages {
                self.send_or_report(index, message).await;
            }
            return;
        }
        let indexes: Vec<usize> = messages.iter().map(|(index, _)| *index).collect();
        let error = match self.publish_atomic_batch(messages).await {
            Ok(()) => {
                self.confirms.report_all(indexes.into_iter().map(|index| (index, Ok(()))));
                return;
            }
            Err(error) => error,
        };
        if error.may_be_stored() {
            // It is unknown whether the server received the complete batch.
            self.confirms.report_all(indexes.into_iter().map(|index| (index, Err(error.for_another_message().into()))));
            return;
        }
        if matches!(error, Error::Refused { code: BATCHES_DISABLED, .. }) {
            self.connection.batch_support.disable(&error);
        }
        debug!(%error, messages = indexes.len(), "atomic batch refused, publishing its messages one by one");
        for index in indexes {
            match encode(&self.batch[index], self.config, self.bytes_max) {
                Ok(message) => self.send_or_report(index, message).await,
                Err(error) => self.confirms.report(index, Err(error.into())),
            }
        }
    }

    /// Sends a batch and waits for its single acknowledgement.
    async fn publish_atomic_batch(&self, messages: Vec<(usize, EncodedMessage)>) -> Result<(), Error> {
        let PublishConnection { client, unconfirmed, .. } = self.connection;
        let count = messages.len();
        if let Some((_, denied)) = messages.iter().find(|(_, message)| self.connection.is_denied(&message.subject)) {
            return Err(Error::PublishDenied(denied.subject.to_string()));
        }
        unconfirmed.reserve(count).await?;
        let last = messages[count - 1].1.subject.clone();
        let (token, ack) = unconfirmed.register_batch(count, &last)?;
        let batch_id = uuid::Uuid::new_v4().simple().to_string();
        for (number, (_, message)) in messages.into_iter().enumerate() {
            let EncodedMessage { subject, mut headers, payload, .. } = message;
            headers.insert(NATS_BATCH_ID, batch_id.as_str());
            headers.insert(NATS_BATCH_SEQUENCE, (number + 1).to_string());
            let written = if number + 1 == count {
                headers.insert(NATS_BATCH_COMMIT, NATS_BATCH_COMMIT_FINAL);
                let reply = self.connection.reply_subject(token);
                self.write_in_time(client.publish_with_reply_and_headers(subject, reply, headers, payload)).await
            } else {
                self.write_in_time(client.publish_with_headers(subject, headers, payload)).await
            };
            if let Err(error) = written {
                // The server discards a batch without its last message.
                unconfirmed.cancel(token);
                return Err(error);
            }
        }
        ack.await.unwrap_or(Err(Error::ConnectionLost))
    }
}
