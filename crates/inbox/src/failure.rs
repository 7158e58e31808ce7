//! After a failed attempt: decide what follows, record it in the store, count and log it.

use std::slice;
use std::time::Duration;

use relevo_core::inbox::retries::{InboxFailure, InboxFailureAction, RecordOutcome, classes};
use relevo_core::inbox::retry_policy::{HandlerRetryPolicy, RetryStep};
use relevo_core::inbox::transactions::{BeginOutcome, CommitOutcome, EnterOutcome};
use relevo_core::inbox::{Fence, Inbox, InboxMessage, LaneLease};
use relevo_core::store::StoreError;
use relevo_core::{AfterDead, Jitter};
use tokio::time::Instant;
use tracing::field::display;
use tracing::warn;

use crate::config::RetryStorage;
use crate::dead_letter_copy;
use crate::delivery::{DeliveryResult, PendingDelivery, UnrecordedFailure};
use crate::error::{ErrorKind, HandlerError};
use crate::handler::Registration;
use crate::incoming::Incoming;
use crate::live::is_in_progress;
use crate::status::add;
use crate::worker::Worker;

/// What follows a counted attempt that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    RetryInMemory(Duration),
    /// The broker delivers the message again after this delay.
    RetryAtBroker(Duration),
    /// The store records the failure.
    Record(InboxFailureAction),
}

impl<I: Inbox> Worker<I> {
    /// Counts and logs a failed attempt. Returns how long the lane pauses if a service that the handler needs is down;
    /// that counts no attempt.
    pub(crate) fn count_failure(
        &self,
        message: &mut InboxMessage,
        incoming: &Incoming,
        error: &HandlerError,
    ) -> Option<Duration> {
        if error.kind == ErrorKind::Unavailable {
            add(&self.status.handler_outages, 1);
            let pause = self.breakers.record_outage(&message.lane, &error.error, Instant::now(), self.jitter());
            warn!(lane = %message.lane, error = error.error, ?pause, "handler reported an outage, lane paused");
            return Some(pause);
        }
        message.attempts += 1;
        let trace_id = self.trace_id(Some(incoming)).map(display);
        warn!(message_id = %message.dedup_id.id, trace_id, attempt = message.attempts, %error, "handler failed");
        add(&self.status.handler_failures, 1);
        // The services that the handler needs were reachable.
        self.breakers.record_success(&message.lane);
        None
    }

    /// Decides what follows an attempt that failed; `attempts` includes it. Has no effects.
    pub(crate) fn decide(&self, incoming: &Incoming, error: &HandlerError, attempts: u32, jitter: Jitter) -> Decision {
        let dead_letter = Decision::Record(self.dead_letter_action(Some(incoming)));
        if error.kind != ErrorKind::Transient {
            return dead_letter;
        }
        match self.retry_policy(self.handler(incoming)).decide(attempts, jitter) {
            RetryStep::InMemory(pause) => Decision::RetryInMemory(pause),
            RetryStep::Durable(pause) if self.config.retry_storage == RetryStorage::Broker => {
                Decision::RetryAtBroker(pause)
            }
            RetryStep::Durable(after) => Decision::Record(InboxFailureAction::Retry { after }),
            RetryStep::DeadLetter => dead_letter,
        }
    }

    fn retry_policy<'a>(&'a self, registration: Option<&'a Registration<I::Transaction>>) -> &'a HandlerRetryPolicy {
        registration.and_then(|registration| registration.options.retry.as_ref()).unwrap_or(&self.config.retry)
    }

    /// Number of attempts before this delivery, computed from how often the broker delayed the message. The retry
    /// policy needs it to decide what follows the next attempt.
    pub(crate) fn attempts_after_broker_retries(
        &self,
        registration: Option<&Registration<I::Transaction>>,
        retries: u32,
    ) -> u32 {
        match self.config.retry_storage {
            RetryStorage::Broker => self.retry_policy(registration).attempts_after_broker_retries(retries),
            RetryStorage::Inbox => 0,
        }
    }

    /// How a message of this handler is dead-lettered.
    pub(crate) fn dead_letter_action(&self, incoming: Option<&Incoming>) -> InboxFailureAction {
        let registration = incoming.and_then(|incoming| self.handler(incoming));
        let after_dead = registration.and_then(|registration| registration.options.after_dead);
        InboxFailureAction::DeadLetter(match after_dead.unwrap_or(self.config.after_dead) {
            AfterDead::Hold if self.config.order.is_by_key() => AfterDead::Hold,
            // Without order no message waits behind it, so its queue is not held.
            AfterDead::Hold | AfterDead::Continue => AfterDead::Continue,
        })
    }

    /// The error of a message whose handling crashed the process too often.
    pub(crate) fn crash_error(starts: u32) -> HandlerError {
        let error = format!("handling started {} times and never ended", starts - 1);
        HandlerError::permanent(error).with_class(classes::CRASH)
    }

    /// Reacts to a failed attempt of a live message.
    pub(crate) async fn on_failure(
        &self,
        delivery: &mut PendingDelivery,
        lease: Option<&LaneLease>,
        error: HandlerError,
    ) -> Result<DeliveryResult, StoreError> {
        let Ok(incoming) = &delivery.incoming else { unreachable!("an undecodable message has no handler") };
        if let Some(pause) = self.count_failure(&mut delivery.message, incoming, &error) {
            self.end_start(delivery).await?;
            return Ok(DeliveryResult::Unavailable(pause));
        }
        match self.decide(incoming, &error, delivery.message.attempts, self.jitter()) {
            Decision::RetryInMemory(pause) => {
                self.end_start(delivery).await?;
                let action = InboxFailureAction::Retry { after: pause };
                Ok(DeliveryResult::RetryIn(pause, error.into_failure(action, delivery.message.attempts)))
            }
            Decision::RetryAtBroker(pause) => {
                add(&self.status.retried_later, 1);
                self.end_start(delivery).await?;
                Ok(DeliveryResult::RetryLater(pause))
            }
            Decision::Record(action) => {
                if let InboxFailureAction::Retry { .. } = action {
                    add(&self.status.retried_later, 1);
                }
                self.fail(delivery, lease, action, error).await
            }
        }
    }

    /// Dead-letters a live message that no handler may see. If others of its key wait, it is queued behind them and
    /// dead-lettered in its turn: a redriven dead letter goes before all waiting messages.
    pub(crate) async fn dead_letter_in_turn(
        &self,
        delivery: &mut PendingDelivery,
        lease: Option<&LaneLease>,
        error: HandlerError,
    ) -> Result<DeliveryResult, StoreError> {
        let (messages, fence) = (slice::from_ref(&delivery.message), Fence::Live { lane: lease });
        let (transaction, entered) = match self.begin(messages, fence).await? {
            BeginOutcome::Open(transaction, entered) => (transaction, entered[0]),
            BeginOutcome::Fenced => return Ok(DeliveryResult::Fenced),
            BeginOutcome::Busy => return Ok(DeliveryResult::Busy(self.config.busy_delay)),
        };
        if entered == EnterOutcome::QueuedBehind {
            return Ok(match self.commit(transaction, &[]).await? {
                CommitOutcome::Committed => {
                    self.count_not_new(delivery, entered);
                    DeliveryResult::Acknowledge
                }
                outcome => self.not_committed(outcome),
            });
        }
        self.store_call(self.inbox.rollback(transaction)).await?;
        self.dead_letter(delivery, lease, error).await
    }

    pub(crate) async fn dead_letter(
        &self,
        delivery: &mut PendingDelivery,
        lease: Option<&LaneLease>,
        error: HandlerError,
    ) -> Result<DeliveryResult, StoreError> {
        let action = match &delivery.incoming {
            Ok(incoming) => self.dead_letter_action(Some(incoming)),
            // Its key is unknown, so it must not hold a key.
            Err(_) => InboxFailureAction::DeadLetter(AfterDead::Continue),
        };
        self.fail(delivery, lease, action, error).await
    }

    /// Records a failure of a live message.
    pub(crate) async fn fail(
        &self,
        delivery: &mut PendingDelivery,
        lease: Option<&LaneLease>,
        action: InboxFailureAction,
        error: HandlerError,
    ) -> Result<DeliveryResult, StoreError> {
        let failure = error.into_failure(action, delivery.message.attempts);
        delivery.unrecorded_failure = Some(UnrecordedFailure { failure, claim: delivery.claim() });
        self.record_failure(delivery, lease).await
    }

    /// Records the failure of a live message in the store. If the store call fails, the failure stays in the delivery.
    pub(crate) async fn record_failure(
        &self,
        delivery: &mut PendingDelivery,
        lease: Option<&LaneLease>,
    ) -> Result<DeliveryResult, StoreError> {
        let UnrecordedFailure { failure, claim } =
            delivery.unrecorded_failure.clone().expect("the caller has set the failure");
        let fence = match claim {
            Some(claim) => Fence::Call { lane: lease, claim },
            None => Fence::Live { lane: lease },
        };
        match self.record(&delivery.message, fence, &failure).await? {
            RecordOutcome::Recorded => {
                self.failure_recorded(&delivery.message, delivery.incoming.as_ref().ok(), &failure).await;
                Ok(DeliveryResult::Acknowledge)
            }
            RecordOutcome::Duplicate(state) if is_in_progress(EnterOutcome::Duplicate(state)) => {
                Ok(DeliveryResult::Busy(self.config.busy_delay))
            }
            RecordOutcome::Duplicate(state) => {
                self.count_not_new(delivery, EnterOutcome::Duplicate(state));
                Ok(DeliveryResult::Acknowledge)
            }
            RecordOutcome::Busy => Ok(DeliveryResult::Busy(self.config.busy_delay)),
            RecordOutcome::Fenced => {
                if claim.is_some() {
                    // Another worker may have claimed the message, and its decision counts. If that worker died, the
                    // store would reject this decision for ever. The attempt behind this decision is therefore not
                    // counted.
                    delivery.unrecorded_failure = None;
                    delivery.message.attempts = delivery.message.attempts.saturating_sub(1);
                }
                if lease.is_some() {
                    return Ok(DeliveryResult::Fenced);
                }
                add(&self.status.fenced, 1);
                Ok(DeliveryResult::Busy(self.config.busy_delay))
            }
        }
    }

    /// Records a failure. Contention is an outcome, not an error: it concerns this message only.
    pub(crate) async fn record(
        &self,
        message: &InboxMessage,
        fence: Fence<'_>,
        failure: &InboxFailure,
    ) -> Result<RecordOutcome, StoreError> {
        match self.store_call(self.inbox.record_failure(message, fence, failure)).await {
            Err(StoreError::Busy { .. }) => Ok(RecordOutcome::Busy),
            outcome => outcome,
        }
    }

    /// After the store recorded a failure: counts it, logs it and publishes a copy of a dead letter if configured.
    pub(crate) async fn failure_recorded(
        &self,
        message: &InboxMessage,
        incoming: Option<&Incoming>,
        failure: &InboxFailure,
    ) {
        let InboxFailure { action, attempts, class, error, .. } = failure;
        let (message_id, trace_id) = (message.dedup_id.id, self.trace_id(incoming).map(display));
        if let InboxFailureAction::Retry { after } | InboxFailureAction::Postpone { after } = action {
            warn!(%message_id, trace_id, attempts, error, ?after, "message waits for a retry");
            return;
        }
        tracing::error!(%message_id, trace_id, attempts, class, error, "message dead-lettered");
        add(&self.status.dead_lettered, 1);
        match *class {
            classes::UNDECODABLE => add(&self.status.undecodable, 1),
            classes::CRASH => add(&self.status.crashed, 1),
            classes::EXPIRED => add(&self.status.expired, 1),
            _ => {}
        }
        let id = self.random_id();
        dead_letter_copy::publish(&self.config, &self.status, id, message, incoming, failure).await;
    }

    /// Records that an attempt of a live message ended without a crash.
    pub(crate) async fn end_start(&self, delivery: &mut PendingDelivery) -> Result<(), StoreError> {
        if delivery.start_record.is_some() {
            self.store_call(self.inbox.end_attempt(delivery.message.dedup_id, delivery.claim())).await?;
            delivery.start_record = None;
        }
        Ok(())
    }
}
