//! E-mails: call, then commit. The mail server is called outside of any transaction. The transaction that inserts the event into the
//! inbox records that the letter was accepted.
//!
//! If a worker dies in between, the letter is sent again: at least once. A repeat has the same Message-ID, by which the receiver may
//! recognise it.

use std::sync::Arc;

use async_trait::async_trait;
use relevo::inbox::{CallHandler, HandlerError, HandlerResult, Incoming, Verdict};
use tracing::info;

use super::books::{Books, of_database};
use super::heart::Pulse;
use crate::domain::Event;
use crate::domain::event::CORRELATION_ID;
use crate::mail::{Letter, Post, PostError, Sender};

/// Sends an e-mail about an event.
pub(super) struct Notify {
    post: Arc<dyn Post>,
    sender: Sender,
    pulse: Pulse,
}

impl Notify {
    pub(super) fn new(post: Arc<dyn Post>, sender: Sender, pulse: Pulse) -> Self {
        Self { post, sender, pulse }
    }
}

#[async_trait]
impl<T: Books> CallHandler<T> for Notify {
    type Answer = Option<Letter>;

    async fn call(&self, incoming: &Incoming) -> HandlerResult<Option<Letter>> {
        let event: Event = incoming.json()?;
        let correlation_id = incoming.header(CORRELATION_ID).unwrap_or_default();
        let Some(letter) = self.sender.letter(&event, incoming.idempotency_id(), correlation_id) else {
            return Ok(None);
        };
        match self.post.send(&letter).await {
            Ok(receipt) => {
                info!(event_id = %event.event_id, message_id = letter.message_id, receipt = receipt.0, "an e-mail was sent");
                Ok(Some(letter))
            }
            Err(error) => Err(trouble(error).into()),
        }
    }

    async fn commit(&self, books: &mut T, _incoming: &Incoming, letter: &Option<Letter>) -> HandlerResult {
        if let Some(letter) = letter {
            books.sent(letter).await.map_err(of_database)?;
        }
        self.pulse.beat();
        Ok(if letter.is_some() { Verdict::Done } else { Verdict::Skip })
    }
}

/// The handler error for a letter that was not accepted.
fn trouble(error: PostError) -> HandlerError {
    match error {
        PostError::Away(_) => HandlerError::unavailable(error), // opens the breaker, counts nothing
        PostError::Later(_) => HandlerError::transient(error).with_class("greylisted"),
        PostError::Unanswered(_) => HandlerError::transient(error).with_class("unanswered"),
        PostError::Doubted(_) => HandlerError::transient(error).with_class("refused"),
        PostError::Refused(_) => HandlerError::permanent(error).with_class("refused"), // dead-lettered, for an operator
    }
}
