//! One attempt of a handler: validates the payload, enforces the timeout and catches panics.

use std::any::Any;
use std::time::Duration;

use relevo_core::AfterDead;
use relevo_core::inbox::Inbox;
use relevo_core::inbox::retry_policy::HandlerRetryPolicy;
use tokio::time::{Instant, timeout};

use crate::config::RetryStorage;
use crate::error::{HandlerError, HandlerResult, Verdict};
use crate::handler::{DynCall, HandlerKind, Registration};
use crate::incoming::Incoming;
use crate::panics::catch_panic;
use crate::stats::{GaugeGuard, add};
use crate::work::Worker;

/// The result of an external call, and its duration until the statistics have counted it.
pub(crate) struct CallResult {
    value: Box<dyn Any + Send + Sync>,
    duration: Duration,
}

impl<I: Inbox + 'static> Worker<I>
where
    I::Transaction: 'static,
{
    /// The handler for this message type, if one is registered.
    pub(crate) fn handler(&self, incoming: &Incoming) -> Option<&Registration<I::Transaction>> {
        self.handlers.find(incoming.kind()).map(|registered| &**registered)
    }

    pub(crate) fn handler_timeout(&self, registered: Option<&Registration<I::Transaction>>) -> Duration {
        registered.and_then(|registered| registered.options.timeout).unwrap_or(self.config.handler_timeout)
    }

    pub(crate) fn retry_policy<'a>(
        &'a self,
        registered: Option<&'a Registration<I::Transaction>>,
    ) -> &'a HandlerRetryPolicy {
        registered.and_then(|registered| registered.options.retry.as_ref()).unwrap_or(&self.config.retry)
    }

    /// Number of attempts before this delivery, computed from how often the broker delayed the message. The retry
    /// policy needs it to decide what follows the next attempt.
    pub(crate) fn attempts_after_broker_retries(
        &self,
        registered: Option<&Registration<I::Transaction>>,
        retries: u32,
    ) -> u32 {
        match self.config.retry_storage {
            RetryStorage::Broker => self.retry_policy(registered).attempts_after_broker_retries(retries),
            RetryStorage::Inbox => 0,
        }
    }

    pub(crate) fn after_dead(&self, registered: Option<&Registration<I::Transaction>>) -> AfterDead {
        registered.and_then(|registered| registered.options.after_dead).unwrap_or(self.config.after_dead)
    }

    /// Runs the handler of a message in its transaction. A message without a handler is skipped.
    pub(crate) async fn handle(
        &self,
        registered: Option<&Registration<I::Transaction>>,
        transaction: &mut I::Transaction,
        incoming: &Incoming,
    ) -> HandlerResult {
        let Some(registered) = registered else { return Ok(Verdict::Skip) };
        self.validate(incoming)?;
        match &registered.kind {
            HandlerKind::InTransaction(handler) => {
                let (verdict, took) = self.supervise(registered, handler.handle(transaction, incoming)).await;
                self.status.observe_duration(took);
                verdict
            }
            HandlerKind::Call(_) => unreachable!("a call is made before its transaction"),
        }
    }

    /// Makes the external call of a message, outside of any transaction.
    pub(crate) async fn call(
        &self,
        registered: &Registration<I::Transaction>,
        handler: &dyn DynCall<I::Transaction>,
        incoming: &Incoming,
    ) -> Result<CallResult, HandlerError> {
        self.validate(incoming)?;
        let (answer, took) = self.supervise(registered, handler.call(incoming)).await;
        match answer {
            Ok(answer) => Ok(CallResult { value: answer, duration: took }),
            Err(trouble) => {
                self.status.observe_duration(took);
                Err(trouble)
            }
        }
    }

    /// Commits the result of a call: the second half, inside the transaction.
    pub(crate) async fn commit_call_result(
        &self,
        registered: &Registration<I::Transaction>,
        handler: &dyn DynCall<I::Transaction>,
        transaction: &mut I::Transaction,
        incoming: &Incoming,
        answered: &mut CallResult,
    ) -> HandlerResult {
        let commit = handler.commit(transaction, incoming, &*answered.value);
        let (verdict, took) = self.supervise(registered, commit).await;
        self.status.observe_duration(std::mem::take(&mut answered.duration) + took);
        verdict
    }

    fn validate(&self, incoming: &Incoming) -> Result<(), HandlerError> {
        match &self.config.validator {
            Some(validator) => validator.validate(incoming).map_err(HandlerError::undecodable),
            None => Ok(()),
        }
    }

    async fn supervise<T>(
        &self,
        registered: &Registration<I::Transaction>,
        handling: impl Future<Output = Result<T, HandlerError>> + Send,
    ) -> (Result<T, HandlerError>, Duration) {
        let _running = GaugeGuard::new(&self.status.handlers_running);
        let begun = Instant::now();
        let deadline = self.handler_timeout(Some(registered));
        let result = timeout(deadline, catch_panic(handling)).await;
        let took = begun.elapsed();
        let result = match result {
            Ok(Err(trouble)) if trouble.backtrace.is_some() => {
                add(&self.status.handler_panics, 1);
                Err(trouble)
            }
            Ok(result) => result,
            Err(_) => {
                add(&self.status.handler_timeouts, 1);
                let error = format!("the handler did not return within {deadline:?}");
                Err(HandlerError::transient(error).with_class(TIMEOUT))
            }
        };
        (result, took)
    }
}

/// Error class of handlers that exceed their timeout.
pub(crate) const TIMEOUT: &str = "deadline";
