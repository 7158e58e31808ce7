//! E-mails: who gets one, what it says, and how it is sent.
//!
//! An e-mail is made of an event alone, so that a repeat is the same to the last byte, under the same Message-ID.

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

/// Whatever carries an e-mail on its way.
#[async_trait]
pub trait Post: Send + Sync {
    /// Hands a letter over; when it returns, the other side has it and answers for it. A letter whose answer was lost may be
    /// there twice, under the same Message-ID.
    async fn send(&self, letter: &Letter) -> Result<Receipt, PostError>;
}

/// What the other side said when it took a letter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt(pub String);

/// Why a letter was not taken.
#[derive(Debug, thiserror::Error)]
pub enum PostError {
    /// Nobody is there, or nobody who takes letters of ours: it says nothing about this one.
    #[error("the mail server is away: {0}")]
    Away(String),
    /// It may be tried again: greylisting, a full mailbox.
    #[error("the mail server asks for patience: {0}")]
    Later(String),
    /// There was no answer to this one, from a server that takes others. It may have been taken all the same, so that trying for
    /// ever would be sending for ever.
    #[error("the mail server did not answer for it: {0}")]
    Unanswered(String),
    /// It was refused for a reason that may be one for all: tried as often as one that asks for patience, and then given up.
    #[error("the mail server refuses it, perhaps not for what it is: {0}")]
    Doubted(String),
    /// It will never be taken.
    #[error("the mail server refuses it: {0}")]
    Refused(String),
}

/// The longest that one letter can take.
pub fn longest(config: &crate::config::Mail, patience: Patience) -> Duration {
    use crate::config::Mail;
    match config {
        Mail::Folder(_) => patience.deadline,
        // One that does not take a letter is asked whether it takes any.
        Mail::Smtp { .. } => patience.deadline * 2 + patience.answer,
    }
}

/// Opens what the configuration names. `recipients` had e-mails lately, the newest first.
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
