//! E-mails over SMTP.

use std::time::Duration;

use async_trait::async_trait;
use lettre::transport::smtp::client::AsyncSmtpConnection;
use lettre::{AsyncSmtpTransport, Message, Tokio1Executor};
use tokio::time::timeout;

use super::classify::{Doubt, Refusal, Stage};
use super::kept::Kept;
use super::server::{self, Server};
use super::taken::Taken;
use super::{Letter, Post, PostError, Receipt};

/// A mail server.
pub struct Smtp {
    server: Server,
    kept: Kept,
    taken: Taken,
    patience: Patience,
}

/// The timeouts for a mail server.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// Until it accepts the data of a letter, or responds to a probe.
    pub deadline: Duration,
    /// For its response after the data. If it is too short, accepted letters are sent again.
    pub answer: Duration,
}

/// The reason why a letter was not accepted.
struct Untaken {
    refusal: Refusal,
    why: String,
}

/// The URL is invalid, or TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
#[error("the URL of the mail server is wrong: it begins with `smtp://`, `smtp+starttls://` or `smtps://`")]
pub struct WrongUrl(#[source] Box<dyn std::error::Error + Send + Sync>);

impl Smtp {
    /// Creates it from the URL, without connecting. `authority` is a private certificate authority, in PEM. `recipients` are those of
    /// recent e-mails, newest first.
    pub fn new(
        url: &str,
        authority: Option<&[u8]>,
        patience: Patience,
        recipients: &[String],
    ) -> Result<Self, WrongUrl> {
        let url = match url.strip_prefix("smtp+starttls://") {
            Some(server) => format!("smtp://{server}?tls=required"),
            None => url.to_owned(),
        };
        AsyncSmtpTransport::<Tokio1Executor>::from_url(&url).map_err(|error| WrongUrl(error.into()))?;
        let server = Server::of(&url, authority, patience.deadline).map_err(WrongUrl)?;
        let taken = Taken::default();
        for recipient in recipients.iter().rev().filter_map(|recipient| recipient.parse().ok()) {
            taken.note(&recipient);
        }
        Ok(Self { server, kept: Kept::default(), taken, patience })
    }

    /// Sends a message. If it is interrupted, its connection is closed, so that a late response reaches no other message.
    async fn hand_over(&self, message: &Message) -> Result<Receipt, Untaken> {
        let Patience { deadline, answer } = self.patience;
        let wanted = timeout(deadline, self.offer(message)).await;
        let mut connection = wanted.unwrap_or_else(|_| Err(Untaken::late(Stage::Recipient, deadline)))?;
        let said = timeout(answer, connection.message(&message.formatted())).await;
        let response = match said {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => return Err(self.leave(connection, Untaken::of(Stage::Content, &error)).await),
            Err(_) => return Err(Untaken::late(Stage::Content, answer)),
        };
        self.kept.put(connection);
        for recipient in message.envelope().to() {
            self.taken.note(recipient);
        }
        Ok(Receipt(response.message().collect::<Vec<_>>().join(" ")))
    }

    /// A connection to a server that waits for the data.
    async fn offer(&self, message: &Message) -> Result<AsyncSmtpConnection, Untaken> {
        let mut connection = match self.kept.take().await {
            Some(connection) => connection,
            None => self
                .server
                .connect()
                .await
                .map_err(|error| Untaken { refusal: Refusal::NO_ENTRY, why: error.to_string() })?,
        };
        match server::offer(&mut connection, message).await {
            Ok(()) => Ok(connection),
            Err((stage, error)) => Err(self.leave(connection, Untaken::of(stage, &error)).await),
        }
    }

    async fn leave(&self, connection: AsyncSmtpConnection, untaken: Untaken) -> Untaken {
        server::quit(connection).await;
        untaken
    }

    /// The reason if the server accepts no letters of this sender.
    async fn refuses_us(&self, message: &Message, doubt: Doubt) -> Option<String> {
        let envelope = message.envelope();
        let asked = envelope.to().first().zip(envelope.from());
        let instead = match (doubt, asked) {
            (Doubt::Others { by_policy }, Some((recipient, sender))) => {
                self.taken.instead_of(recipient, sender, by_policy)
            }
            _ => Vec::new(),
        };
        let deadline = self.patience.deadline;
        match timeout(deadline, self.server.takes_letters_of(envelope.from().cloned(), instead)).await {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some(late(deadline)),
        }
    }
}

impl Untaken {
    fn of(stage: Stage, error: &lettre::transport::smtp::Error) -> Self {
        Self { refusal: Refusal::of(stage, error), why: error.to_string() }
    }

    fn late(stage: Stage, deadline: Duration) -> Self {
        Self { refusal: Refusal::late(stage), why: late(deadline) }
    }
}

fn late(deadline: Duration) -> String {
    format!("no answer within {deadline:?}")
}

#[async_trait]
impl Post for Smtp {
    async fn send(&self, letter: &Letter) -> Result<Receipt, PostError> {
        let message = letter.message()?;
        let Untaken { refusal, why } = match self.hand_over(&message).await {
            Ok(receipt) => return Ok(receipt),
            Err(untaken) => untaken,
        };
        let doubt = refusal.doubt();
        if doubt != Doubt::None
            && let Some(why) = self.refuses_us(&message, doubt).await
        {
            return Err(PostError::Away(why));
        }
        Err(refusal.error(why))
    }
}
