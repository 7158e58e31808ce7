//! E-mails: recipients, content and delivery.
//!
//! An e-mail depends on its event only, so that a repeat has the same bytes and the same Message-ID.

mod bytes;
mod classify;
mod folder;
mod html;
mod kept;
mod letter;
mod server;
mod smtp;
mod taken;
mod words;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use async_trait::async_trait;

pub use folder::{FILES_MAX, Folder};
pub use letter::{Letter, Sender, WrongSender};
pub use smtp::{Patience, Smtp, WrongUrl};

/// A transport for e-mails.
#[async_trait]
pub trait Post: Send + Sync {
    /// Sends a letter. When it returns, the server has accepted the letter. If a response was lost, the letter may have arrived twice,
    /// with the same Message-ID.
    async fn send(&self, letter: &Letter) -> Result<Receipt, PostError>;
}

/// The response of the server that accepted a letter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt(pub String);

/// The reason why a letter was not accepted.
#[derive(Debug, thiserror::Error)]
pub enum PostError {
    /// The server is unreachable, or accepts no letters of this sender. The failure is not about this letter.
    #[error("the mail server is unreachable: {0}")]
    Away(String),
    /// A temporary rejection, such as greylisting or a full mailbox.
    #[error("the mail server rejected it temporarily: {0}")]
    Later(String),
    /// The server accepts other letters and did not respond to this one. It may have been accepted, so attempts are limited.
    #[error("the mail server did not answer for it: {0}")]
    Unanswered(String),
    /// It was rejected for a reason that may apply to all letters: retried like a temporary rejection, then dead-lettered.
    #[error("the mail server refuses it, perhaps not for what it is: {0}")]
    Doubted(String),
    /// A permanent rejection.
    #[error("the mail server refuses it: {0}")]
    Refused(String),
}

/// The maximum time for one letter.
pub fn longest(config: &crate::config::Mail, patience: Patience) -> Duration {
    use crate::config::Mail;
    match config {
        Mail::Folder(_) => patience.deadline,
        // A server that does not accept a letter is probed: it may accept others.
        Mail::Smtp { .. } => patience.deadline * 2 + patience.answer,
    }
}

/// Opens the configured transport. `recipients` are those of recent e-mails, newest first.
pub async fn open(
    config: &crate::config::Mail,
    patience: Patience,
    recipients: &[String],
) -> anyhow::Result<Arc<dyn Post>> {
    use crate::config::Mail;
    Ok(match config {
        Mail::Folder(path) => Arc::new(Folder::open(path).await?),
        Mail::Smtp { url, ca_file } => {
            let authority = match ca_file {
                Some(file) => {
                    Some(tokio::fs::read(file).await.with_context(|| format!("`{}` cannot be read", file.display()))?)
                }
                None => None,
            };
            Arc::new(Smtp::new(url.expose(), authority.as_deref(), patience, recipients)?)
        }
    })
}
