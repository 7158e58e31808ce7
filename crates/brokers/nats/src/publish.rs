//! Publishes messages to JetStream streams.

mod atomic_batches;
mod call;
mod connection_task;
mod encode;
mod in_flight_window;
mod subject_failures;
mod unconfirmed;

use std::sync::Arc;

use async_nats::PublishError;
use async_trait::async_trait;
use parking_lot::Mutex;
use relevo_core::{Broker, Capabilities, OutcomeSender, Publication};
use tokio::sync::watch;
use tokio::task::JoinSet;

pub(crate) use self::unconfirmed::IN_FLIGHT_MAX;

use self::atomic_batches::BatchBuilder;
use self::call::PublishCall;
use self::connection_task::{BrokerConnection, PublishConnection, maintain};
use self::encode::{EncodedMessage, encode};
use crate::classify::Error;
use crate::config::Config;
use crate::connection;

/// Publishes to NATS `JetStream` streams. Cheap to clone; dropping the last clone closes the connection.
#[derive(Clone, Debug)]
pub struct Publisher {
    config: Arc<Config>,
    connection: watch::Receiver<BrokerConnection>,
    tasks: Arc<Mutex<JoinSet<()>>>,
}

impl Publisher {
    /// Validates the configuration and starts to connect. An unreachable server is not an error: the publisher keeps
    /// trying, and publishing reports an outage until it connects.
    pub async fn open(config: Config) -> Result<Self, Error> {
        config.validate()?;
        let servers = connection::servers(&config)?;
        let (sender, connection) = watch::channel(BrokerConnection::Down(Arc::new(Error::Connecting)));
        let mut tasks = JoinSet::new();
        tasks.spawn(maintain(config.clone(), servers, sender));
        let mut publisher = Self { config: Arc::new(config), connection, tasks: Arc::new(Mutex::new(tasks)) };
        publisher.wait_for_first_attempt().await;
        Ok(publisher)
    }

    /// Closes the connection. Messages in flight have an unknown outcome; later calls report an outage.
    pub async fn close(&self) {
        let mut tasks = std::mem::take(&mut *self.tasks.lock());
        tasks.shutdown().await;
        if let BrokerConnection::Up(connection) = &*self.connection.borrow() {
            connection.unconfirmed.connection_lost();
        }
    }

    /// Waits for the first attempt, so that the caller can publish at once if the server is reachable.
    async fn wait_for_first_attempt(&mut self) {
        // Ignore a timeout or a failure here: `publish` reports it.
        tokio::time::timeout(self.config.connect_timeout, self.connection.changed()).await.ok();
    }
}

#[async_trait]
impl Broker for Publisher {
    fn capabilities(&self) -> Capabilities {
        // The server stores messages of one connection in order, but a refused message does not stop later ones.
        Capabilities { ordered_in_flight: false }
    }

    fn is_unreachable(&self) -> bool {
        matches!(&*self.connection.borrow(), BrokerConnection::Down(reason) if !matches!(**reason, Error::Connecting))
    }

    async fn close(&self) {
        Self::close(self).await;
    }

    async fn publish(&self, batch: &[Publication], confirms: &OutcomeSender) {
        let connection = self.connection.borrow().clone();
        match connection {
            BrokerConnection::Up(connection) => publish_over(&connection, &self.config, batch, confirms).await,
            BrokerConnection::Down(reason) => {
                confirms
                    .report_all((0..batch.len()).map(|index| (index, Err(Error::Shared(Arc::clone(&reason)).into()))));
            }
        }
    }
}

/// Sends a batch over this connection and waits until every message has an outcome.
async fn publish_over(
    connection: &PublishConnection,
    config: &Config,
    batch: &[Publication],
    confirms: &OutcomeSender,
) {
    let call = PublishCall::new(confirms);
    let bytes_max = bytes_max(connection, config);
    let publisher = BatchPublisher { connection, config, batch, confirms, call: &call, bytes_max };
    if batch.len() > 1 && atomic_batches::should_batch(connection, config) {
        publisher.publish_batched().await;
    } else {
        publisher.publish_single().await;
    }
    call.finished().await;
}

/// The largest message that the server and the configuration allow.
fn bytes_max(connection: &PublishConnection, config: &Config) -> usize {
    connection.client.max_payload().min(config.message_size_max)
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
        let mut builder = BatchBuilder::default();
        for (index, publication) in self.batch.iter().enumerate() {
            match encode(publication, self.config, self.bytes_max) {
                Ok(message) => builder.push(index, message),
                Err(error) => self.confirms.report(index, Err(error.into())),
            }
            if builder.is_full() {
                self.send_batch(&mut builder).await;
            }
        }
        self.send_batch(&mut builder).await;
    }

    async fn send_or_report(&self, index: usize, message: EncodedMessage) {
        if let Err(error) = self.send(index, message).await {
            self.confirms.report(index, Err(error.into()));
        }
    }

    /// Sends one message. After an error the message was not sent, and the caller must report it.
    async fn send(&self, index: usize, message: EncodedMessage) -> Result<(), Error> {
        let PublishConnection { client, unconfirmed, .. } = self.connection;
        if self.connection.is_denied(&message.subject) {
            return Err(Error::PublishDenied(message.subject.into_string()));
        }
        unconfirmed.reserve(1).await?;
        let token = unconfirmed.register(self.call, index, &message.subject)?;
        let reply = self.connection.reply_subject(token);
        let EncodedMessage { subject, headers, payload, .. } = message;
        let sending = client.publish_with_reply_and_headers(subject, reply, headers, payload);
        match self.write_in_time(sending).await {
            // A message that already has an outcome was reported.
            Err(error) if unconfirmed.cancel(token) => Err(error),
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
