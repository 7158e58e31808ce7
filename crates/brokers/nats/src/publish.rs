//! One call of `publish`.

mod absent;
mod acks;
pub(crate) mod answer;
mod atomic;
mod encode;
mod keep;
mod pace;
mod room;
mod session;

use std::sync::Arc;

use async_nats::PublishError;
use relevo_core::{Confirms, Publication};

pub(crate) use acks::IN_FLIGHT_MAX;
pub(crate) use keep::keep;
pub(crate) use session::{Session, State};

use self::acks::Flight;
use self::atomic::Gathered;
use self::encode::{Encoded, encode};
use crate::classify::Error;
use crate::config::Config;

/// Sends a batch over this connection and waits until every message has an outcome.
pub(crate) async fn publish(session: &Session, config: &Config, batch: &[Publication], confirms: &Confirms) {
    let flight = Flight::new(confirms);
    let bytes_max = bytes_max(session, config);
    let call = Call { session, config, batch, confirms, flight: &flight, bytes_max };
    if batch.len() > 1 && atomic::is_wanted(session, config) {
        call.together().await;
    } else {
        call.one_by_one().await;
    }
    flight.landed().await;
}

/// The largest message that the server and the configuration allow.
pub(crate) fn bytes_max(session: &Session, config: &Config) -> usize {
    session.client.max_payload().min(config.message_bytes_max)
}

/// A call in progress. Cancelling it removes its pending messages.
struct Call<'a> {
    session: &'a Session,
    config: &'a Config,
    batch: &'a [Publication],
    confirms: &'a Confirms,
    flight: &'a Arc<Flight>,
    bytes_max: usize,
}

impl Call<'_> {
    async fn one_by_one(&self) {
        for (index, publication) in self.batch.iter().enumerate() {
            match encode(publication, self.config, self.bytes_max) {
                Ok(message) => self.send_or_report(index, message).await,
                Err(error) => self.confirms.report(index, Err(error.into())),
            }
        }
    }

    /// Sends the batch in as few atomic batches as possible, one after the other.
    async fn together(&self) {
        let mut gathered = Gathered::default();
        for (index, publication) in self.batch.iter().enumerate() {
            match encode(publication, self.config, self.bytes_max) {
                Ok(message) => gathered.push(index, message),
                Err(error) => self.confirms.report(index, Err(error.into())),
            }
            if gathered.is_full() {
                self.send_together(&mut gathered).await;
            }
        }
        self.send_together(&mut gathered).await;
    }

    async fn send_or_report(&self, index: usize, message: Encoded) {
        if let Err(error) = self.send(index, message).await {
            self.confirms.report(index, Err(error.into()));
        }
    }

    /// Sends one message. After an error the message was not sent, and the caller must report it.
    async fn send(&self, index: usize, message: Encoded) -> Result<(), Error> {
        let Session { client, acks, .. } = self.session;
        if self.session.is_denied(&message.subject) {
            return Err(Error::NotPermitted(message.subject.into_string()));
        }
        acks.room(1).await?;
        let token = acks.expect(self.flight, index, &message.subject)?;
        let reply = self.session.reply(token);
        let Encoded { subject, headers, payload, .. } = message;
        let sending = client.publish_with_reply_and_headers(subject, reply, headers, payload);
        match self.written(sending).await {
            // A message that already has an outcome was reported.
            Err(error) if acks.forget(token) => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Passes a message to the library, which waits while the server accepts no data.
    async fn written(&self, sending: impl Future<Output = Result<(), PublishError>>) -> Result<(), Error> {
        let sent = tokio::select! {
            biased; // Usually there is capacity, and no other branch needs a poll.
            sent = sending => sent,
            () = self.session.acks.lost() => return Err(Error::Disconnected),
            () = tokio::time::sleep(self.config.ack_deadline) => return Err(Error::Stalled(self.config.ack_deadline)),
        };
        sent.map_err(|_| Error::Disconnected)
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.session.acks.abandon(self.flight);
    }
}
