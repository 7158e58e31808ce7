//! One try of a handler: checked, within its deadline, its panics caught.

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

/// What a far side answered, and how long that took, until somebody has counted it.
pub(crate) struct Answered {
    answer: Box<dyn Any + Send + Sync>,
    took: Duration,
}

impl<I: Inbox + 'static> Work<I>
where
    I::Transaction: 'static,
{
    /// The handler of this message, if it has one.
    pub(crate) fn handler(&self, incoming: &Incoming) -> Option<&Registered<I::Transaction>> {
        self.handlers.find(incoming.kind()).map(|registered| &**registered)
    }

    pub(crate) fn deadline(&self, registered: Option<&Registered<I::Transaction>>) -> Duration {
        registered.and_then(|registered| registered.options.deadline).unwrap_or(self.config.deadline)
    }

    pub(crate) fn retries<'a>(&'a self, registered: Option<&'a Registered<I::Transaction>>) -> &'a Retries {
        registered.and_then(|registered| registered.options.retries.as_ref()).unwrap_or(&self.config.retries)
    }

    /// The attempts behind a message that waited so often at the broker, by the policy that decides what follows the next.
    pub(crate) fn attempts_before(&self, registered: Option<&Registered<I::Transaction>>, retries: u32) -> u32 {
        match self.config.durable {
            Durable::Broker => self.retries(registered).attempts_before(retries),
            Durable::Table => 0,
        }
    }

    pub(crate) fn after_dead(&self, registered: Option<&Registered<I::Transaction>>) -> AfterDead {
        registered.and_then(|registered| registered.options.after_dead).unwrap_or(self.config.after_dead)
    }

    /// The handler of a message in its transaction. A message that nobody wants is skipped.
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

    /// The call of a message, outside of any transaction.
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

    /// The second half of a call, in the transaction.
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

/// The word for handlers that do not return.
pub(crate) const DEADLINE: &str = "deadline";
