//! One call of `publish`.

mod acks;
mod answer;
mod encode;
mod keep;
mod session;

use std::sync::Arc;
use std::time::Duration;

use async_nats::PublishError;
use relevo_core::{Confirms, Publication};

pub(crate) use acks::IN_FLIGHT_MAX;
pub(crate) use keep::keep;
pub(crate) use session::{Session, State};

use self::acks::Flight;
use self::encode::{Encoded, encode};
use crate::classify::Error;
use crate::config::Config;

/// Sends a batch over this connection and waits until every message has its outcome.
pub(crate) async fn publish(session: &Session, config: &Config, batch: &[Publication], confirms: &Confirms) {
    let flight = Flight::new(confirms);
    let call = Call { session, flight: &flight, patience: config.ack_deadline };
    let bytes_max = bytes_max(session, config);
    for (index, publication) in batch.iter().enumerate() {
        let sent = match encode(publication, config, bytes_max) {
            Ok(encoded) => call.send(index, encoded).await,
            Err(error) => Err(error),
        };
        if let Err(error) = sent {
            confirms.report(index, Err(error.into()));
        }
    }
    flight.landed().await;
}

/// The largest message that server and configuration allow.
pub(crate) fn bytes_max(session: &Session, config: &Config) -> usize {
    session.client.max_payload().min(config.message_bytes_max)
}

/// A call in progress; given up in the middle, it leaves nothing behind that waits.
struct Call<'a> {
    session: &'a Session,
    flight: &'a Arc<Flight>,
    /// How long the connection may take nothing.
    patience: Duration,
}

impl Call<'_> {
    /// Sends one message. An error means that it was not sent, and nothing else reports it.
    async fn send(&self, index: usize, message: Encoded) -> Result<(), Error> {
        let Session { client, acks, .. } = self.session;
        if self.session.is_denied(&message.subject) {
            return Err(Error::NotPermitted(message.subject.into_string()));
        }
        acks.room().await?;
        let token = acks.expect(self.flight, index, &message.subject)?;
        let reply = self.session.reply(token);
        let sending = client.publish_with_reply_and_headers(message.subject, reply, message.headers, message.payload);
        match self.written(sending).await {
            // Whatever has its outcome already was reported.
            Err(error) if acks.forget(token) => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Hands a message to the library, which waits where the server takes nothing any more.
    async fn written(&self, sending: impl Future<Output = Result<(), PublishError>>) -> Result<(), Error> {
        let sent = tokio::select! {
            biased; // Mostly there is room, and nothing else need be looked at.
            sent = sending => sent,
            () = self.session.acks.lost() => return Err(Error::Disconnected),
            () = tokio::time::sleep(self.patience) => return Err(Error::Stalled(self.patience)),
        };
        sent.map_err(|_| Error::Disconnected)
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.session.acks.abandon(self.flight);
    }
}
