//! One attempt of a handler: validates the payload, enforces the timeout and catches panics.

use std::any::Any;
use std::time::Duration;

use relevo_core::AfterDead;
use relevo_core::inbox::Inbox;
use relevo_core::inbox::retries::Retries;
use tokio::time::{Instant, timeout};

use crate::config::Durable;
use crate::handler::{AnyCall, Form, Registered};
use crate::incoming::Incoming;
use crate::panics::caught;
use crate::stats::{While, add};
use crate::verdict::{Handled, Trouble, Verdict};
use crate::work::Work;

/// The result of an external call, and its duration until the statistics have counted it.
pub(crate) struct Answered {
    answer: Box<dyn Any + Send + Sync>,
    took: Duration,
}

impl<I: Inbox + 'static> Work<I>
where
    I::Transaction: 'static,
{
    /// The handler for this message type, if one is registered.
    pub(crate) fn handler(&self, incoming: &Incoming) -> Option<&Registered<I::Transaction>> {
        self.handlers.find(incoming.kind()).map(|registered| &**registered)
    }

    pub(crate) fn deadline(&self, registered: Option<&Registered<I::Transaction>>) -> Duration {
        registered.and_then(|registered| registered.options.deadline).unwrap_or(self.config.deadline)
    }

    pub(crate) fn retries<'a>(&'a self, registered: Option<&'a Registered<I::Transaction>>) -> &'a Retries {
        registered.and_then(|registered| registered.options.retries.as_ref()).unwrap_or(&self.config.retries)
    }

    /// Number of attempts before this delivery, computed from how often the broker delayed the message. The retry
    /// policy needs it to decide what follows the next attempt.
    pub(crate) fn attempts_before(&self, registered: Option<&Registered<I::Transaction>>, retries: u32) -> u32 {
        match self.config.durable {
            Durable::Broker => self.retries(registered).attempts_before(retries),
            Durable::Table => 0,
        }
    }

    pub(crate) fn after_dead(&self, registered: Option<&Registered<I::Transaction>>) -> AfterDead {
        registered.and_then(|registered| registered.options.after_dead).unwrap_or(self.config.after_dead)
    }

    /// Runs the handler of a message in its transaction. A message without a handler is skipped.
    pub(crate) async fn handle(
        &self,
        registered: Option<&Registered<I::Transaction>>,
        transaction: &mut I::Transaction,
        incoming: &Incoming,
    ) -> Handled {
        let Some(registered) = registered else { return Ok(Verdict::Skip) };
        self.validate(incoming)?;
        match &registered.form {
            Form::Inside(handler) => {
                let (verdict, took) = self.tried(registered, handler.handle(transaction, incoming)).await;
                self.stats.tried(took);
                verdict
            }
            Form::Call(_) => unreachable!("a call is made before its transaction"),
        }
    }

    /// Makes the external call of a message, outside of any transaction.
    pub(crate) async fn call(
        &self,
        registered: &Registered<I::Transaction>,
        handler: &dyn AnyCall<I::Transaction>,
        incoming: &Incoming,
    ) -> Result<Answered, Trouble> {
        self.validate(incoming)?;
        let (answer, took) = self.tried(registered, handler.call(incoming)).await;
        match answer {
            Ok(answer) => Ok(Answered { answer, took }),
            Err(trouble) => {
                self.stats.tried(took);
                Err(trouble)
            }
        }
    }

    /// Commits the result of a call: the second half, inside the transaction.
    pub(crate) async fn commit_answer(
        &self,
        registered: &Registered<I::Transaction>,
        handler: &dyn AnyCall<I::Transaction>,
        transaction: &mut I::Transaction,
        incoming: &Incoming,
        answered: &mut Answered,
    ) -> Handled {
        let commit = handler.commit(transaction, incoming, &*answered.answer);
        let (verdict, took) = self.tried(registered, commit).await;
        self.stats.tried(std::mem::take(&mut answered.took) + took);
        verdict
    }

    fn validate(&self, incoming: &Incoming) -> Result<(), Trouble> {
        match &self.config.validator {
            Some(validator) => validator.validate(incoming).map_err(Trouble::undecodable),
            None => Ok(()),
        }
    }

    async fn tried<T>(
        &self,
        registered: &Registered<I::Transaction>,
        handling: impl Future<Output = Result<T, Trouble>> + Send,
    ) -> (Result<T, Trouble>, Duration) {
        let _running = While::new(&self.stats.running);
        let begun = Instant::now();
        let deadline = self.deadline(Some(registered));
        let result = timeout(deadline, caught(handling)).await;
        let took = begun.elapsed();
        let result = match result {
            Ok(Err(trouble)) if trouble.backtrace.is_some() => {
                add(&self.stats.panics, 1);
                Err(trouble)
            }
            Ok(result) => result,
            Err(_) => {
                add(&self.stats.deadlines, 1);
                let error = format!("the handler did not return within {deadline:?}");
                Err(Trouble::retry(error).with_class(DEADLINE))
            }
        };
        (result, took)
    }
}

/// Error class of handlers that exceed their timeout.
pub(crate) const DEADLINE: &str = "deadline";
