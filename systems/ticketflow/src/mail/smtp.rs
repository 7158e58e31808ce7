//! E-mails over SMTP.

use std::time::Duration;

use async_trait::async_trait;
use lettre::{AsyncSmtpTransport, Message, Tokio1Executor};
use tokio::time::timeout;

use super::classify::{Failure, is_policy};
use super::kept::Kept;
use super::server::Server;
use super::taken::Taken;
use super::{Letter, Post, PostError, Receipt};

/// A mail server.
pub struct Smtp {
    server: Server,
    kept: Kept,
    taken: Taken,
    deadline: Duration,
}

/// Why a letter was not taken.
struct Untaken {
    failure: Failure,
    by_policy: bool,
    why: String,
}

/// The URL names no mail server.
#[derive(Debug, thiserror::Error)]
#[error("the URL of the mail server is wrong: it begins with `smtp://`, `smtp+starttls://` or `smtps://`")]
pub struct WrongUrl(#[source] Box<dyn std::error::Error + Send + Sync>);

impl Smtp {
    /// A server by its URL; nothing is connected yet. No letter takes longer than the deadline, nor does the question behind one
    /// that was not taken, whether the server takes any. `recipients` had e-mails lately, the newest first.
    pub fn new(url: &str, deadline: Duration, recipients: &[String]) -> Result<Self, WrongUrl> {
        let url = match url.strip_prefix("smtp+starttls://") {
            Some(server) => format!("smtp://{server}?tls=required"),
            None => url.to_owned(),
        };
        AsyncSmtpTransport::<Tokio1Executor>::from_url(&url).map_err(|error| WrongUrl(error.into()))?;
        let server = Server::of(&url, deadline).map_err(WrongUrl)?;
        let taken = Taken::default();
        for recipient in recipients.iter().rev().filter_map(|recipient| recipient.parse().ok()) {
            taken.note(&recipient);
        }
        Ok(Self { server, kept: Kept::default(), taken, deadline })
    }

    /// Sends a message. Whatever ends it early ends its connection: a late answer finds nobody.
    async fn hand_over(&self, message: &Message) -> Result<Receipt, Untaken> {
        let mut connection = match self.kept.take().await {
            Some(connection) => connection,
            None => self.server.connect().await.map_err(|error| Untaken {
                failure: Failure::NoEntry,
                by_policy: false,
                why: error.to_string(),
            })?,
        };
        let response = connection.send(message.envelope(), &message.formatted()).await;
        let response = response.map_err(|error| Untaken {
            failure: Failure::of(&error),
            by_policy: is_policy(&error),
            why: error.to_string(),
        })?;
        self.kept.put(connection);
        for recipient in message.envelope().to() {
            self.taken.note(recipient);
        }
        Ok(Receipt(response.message().collect::<Vec<_>>().join(" ")))
    }

    /// Why the server takes no letters of ours at all, if it does not.
    async fn refuses_us(&self, message: &Message, by_policy: bool) -> Option<String> {
        let sender = message.envelope().from();
        let recipient = message.envelope().to().first().filter(|_| by_policy);
        let instead = recipient.zip(sender).map(|(recipient, sender)| self.taken.instead_of(recipient, sender));
        let instead = instead.unwrap_or_default();
        match timeout(self.deadline, self.server.takes_letters_of(sender.cloned(), instead)).await {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some(self.late()),
        }
    }

    fn late(&self) -> String {
        format!("no answer within {:?}", self.deadline)
    }
}

#[async_trait]
impl Post for Smtp {
    async fn send(&self, letter: &Letter) -> Result<Receipt, PostError> {
        let message = letter.message()?;
        let Untaken { failure, by_policy, why } = match timeout(self.deadline, self.hand_over(&message)).await {
            Ok(Ok(receipt)) => return Ok(receipt),
            Ok(Err(untaken)) => untaken,
            Err(_) => Untaken { failure: Failure::Unanswered, by_policy: false, why: self.late() },
        };
        if failure.may_be_about_us()
            && let Some(why) = self.refuses_us(&message, by_policy).await
        {
            return Err(PostError::Away(why));
        }
        Err(failure.told(why))
    }
}
