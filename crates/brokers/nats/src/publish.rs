//! One call of `publish`.

pub(crate) mod answer;
mod atomic_batches;
mod connection_task;
mod encode;
mod in_flight_window;
mod keep;
mod pace;
mod subject_failures;
mod unconfirmed;

use std::sync::Arc;

use async_nats::PublishError;
use relevo_core::{OutcomeSender, Publication};

pub(crate) use connection_task::{BrokerConnection, PublishConnection};
pub(crate) use keep::maintain;
pub(crate) use unconfirmed::IN_FLIGHT_MAX;

use self::atomic_batches::BatchBuilder;
use self::encode::{EncodedMessage, encode};
use self::unconfirmed::PublishCall;
use crate::classify::Error;
use crate::config::Config;

/// Sends a batch over this connection and waits until every message has an outcome.
pub(crate) async fn publish(
    session: &PublishConnection,
    config: &Config,
    batch: &[Publication],
    confirms: &OutcomeSender,
) {
    let flight = PublishCall::new(confirms);
    let bytes_max = bytes_max(session, config);
    let call = BatchPublisher { connection: session, config, batch, confirms, call: &flight, bytes_max };
    if batch.len() > 1 && atomic_batches::should_batch(session, config) {
        call.publish_batched().await;
    } else {
        call.publish_single().await;
    }
    flight.finished().await;
}

/// The largest message that the server and the configuration allow.
pub(crate) fn bytes_max(session: &PublishConnection, config: &Config) -> usize {
    session.client.max_payload().min(config.message_bytes_max)
}

/// A call in progress. Cancelling it removes its pending messages.
struct BatchPublisher<'a> {
    connection: &'a PublishConnection,
    config: &'a Config,
    batch: &'a [Publication],
    confirms: &'a OutcomeSender,
    call: &'a Arc<PublishCall>,
    bytes_max: usize,
}

impl BatchPublisher<'_> {
    async fn publish_single(&self) {
        for (index, publication) in self.batch.iter().enumerate() {
            match encode(publication, self.config, self.bytes_max) {
                Ok(message) => self.send_or_report(index, message).await,
                Err(error) => self.confirms.report(index, Err(error.into())),
            }
        }
    }

    /// Sends the batch in as few atomic batches as possible, one after the other.
    async fn publish_batched(&self) {
        let mut gathered = BatchBuilder::default();
        for (index, publication) in self.batch.iter().enumerate() {
            match encode(publication, self.config, self.bytes_max) {
                Ok(message) => gathered.push(index, message),
                Err(error) => self.confirms.report(index, Err(error.into())),
            }
            if gathered.is_full() {
                self.send_batch(&mut gathered).await;
            }
        }
        self.send_batch(&mut gathered).await;
    }

    async fn send_or_report(&self, index: usize, message: EncodedMessage) {
        if let Err(error) = self.send(index, message).await {
            self.confirms.report(index, Err(error.into()));
        }
    }

    /// Sends one message. After an error the message was not sent, and the caller must report it.
    async fn send(&self, index: usize, message: EncodedMessage) -> Result<(), Error> {
        let PublishConnection { client, unconfirmed: acks, .. } = self.connection;
        if self.connection.is_denied(&message.subject) {
            return Err(Error::PublishDenied(message.subject.into_string()));
        }
        acks.reserve(1).await?;
        let token = acks.register(self.call, index, &message.subject)?;
        let reply = self.connection.reply_subject(token);
        let EncodedMessage { subject, headers, payload, .. } = message;
        let sending = client.publish_with_reply_and_headers(subject, reply, headers, payload);
        match self.write_in_time(sending).await {
            // A message that already has an outcome was reported.
            Err(error) if acks.cancel(token) => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Passes a message to the library, which waits while the server accepts no data.
    async fn write_in_time(&self, sending: impl Future<Output = Result<(), PublishError>>) -> Result<(), Error> {
        let sent = tokio::select! {
            biased; // Usually there is capacity, and no other branch needs a poll.
            sent = sending => sent,
            () = self.connection.unconfirmed.wait_until_lost() => return Err(Error::Disconnected),
            () = tokio::time::sleep(self.config.confirm_timeout) => return Err(Error::SendTimeout(self.config.confirm_timeout)),
        };
        sent.map_err(|_| Error::Disconnected)
    }
}

impl Drop for BatchPublisher<'_> {
    fn drop(&mut self) {
        self.connection.unconfirmed.abandon(self.call);
    }
}
