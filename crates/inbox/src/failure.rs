//! After a failed attempt: decide what follows, record it in the store, count and log it.

use std::slice;
use std::time::Duration;

use relevo_core::AfterDead;
use relevo_core::inbox::retries::{InboxFailure, InboxFailureAction, RecordOutcome, classes};
use relevo_core::inbox::retry_policy::{HandlerRetryPolicy, RetryStep};
use relevo_core::inbox::transactions::{BeginOutcome, Enter, EnterOutcome};
use relevo_core::inbox::{Inbox, InboxMessage, LaneLease};
use relevo_core::store::StoreError;
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

/// What follows a failed attempt.
pub(crate) enum Decision {
    /// A service that the handler needs is down. The lane pauses, and no attempt was counted.
    PauseLane(Duration),
    RetryInMemory(Duration),
    /// A durable retry, in a retry queue or at the broker.
    RetryLater(Duration),
    DeadLetter,
}

impl<I: Inbox + 'static> Worker<I>
where
    I::Transaction: 'static,
{
    /// Decides what follows a failed attempt. Counts the attempt unless a service was down, and logs the failure.
    pub(crate) fn decide(
        &self,
        message: &InboxMessage,
        incoming: &Incoming,
        error: &HandlerError,
        attempts: &mut u32,
    ) -> Decision {
        if error.kind == ErrorKind::Unavailable {
            add(&self.status.handler_outages, 1);
            let pause = self.breakers.record_outage(&message.lane, &error.error, Instant::now(), self.jitter());
            warn!(lane = %message.lane, error = error.error, ?pause, "handler reported an outage, lane paused");
            return Decision::PauseLane(pause);
        }
        *attempts += 1;
        let trace_id = self.trace_id(Some(incoming)).map(display);
        warn!(message_id = %message.dedup_id.id, trace_id, attempt = *attempts, %error, "handler failed");
        add(&self.status.handler_failures, 1);
        // The services that the handler needs were reachable.
        self.breakers.record_success(&message.lane);
        match error.kind {
            ErrorKind::Permanent | ErrorKind::Unavailable => Decision::DeadLetter,
            ErrorKind::Transient => match self.retry_policy(self.handler(incoming)).decide(*attempts, self.jitter()) {
                RetryStep::InMemory(pause) => Decision::RetryInMemory(pause),
                RetryStep::Durable(pause) => Decision::RetryLater(pause),
                RetryStep::DeadLetter => Decision::DeadLetter,
            },
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
        match after_dead.unwrap_or(self.config.after_dead) {
            AfterDead::Hold if self.config.order.is_by_key() => InboxFailureAction::DeadHold,
            // Without order no message waits behind it, so its queue is not held.
            AfterDead::Hold | AfterDead::Continue => InboxFailureAction::DeadContinue,
        }
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
        match self.decide(&delivery.message, incoming, &error, &mut delivery.attempts) {
            Decision::PauseLane(pause) => {
                self.end_start(delivery).await?;
                Ok(DeliveryResult::Unavailable(pause))
            }
            Decision::RetryInMemory(pause) => {
                add(&self.status.retried_in_memory, 1);
                self.end_start(delivery).await?;
                Ok(DeliveryResult::RetryIn(pause))
            }
            Decision::RetryLater(pause) => {
                add(&self.status.retried_later, 1);
                if self.config.retry_storage == RetryStorage::Broker {
                    self.end_start(delivery).await?;
                    return Ok(DeliveryResult::RetryLater(pause));
                }
                self.fail(delivery, lease, InboxFailureAction::Retry { after: pause }, error).await
            }
            Decision::DeadLetter => self.dead_letter(delivery, lease, error).await,
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
        let enter = Enter { held: lease, arrivals: slice::from_ref(&delivery.message) };
        let (transaction, entered) = match self.store_call(self.inbox.begin(enter)).await? {
            BeginOutcome::Open(transaction, entered) => (transaction, entered[0]),
            BeginOutcome::Fenced => return Ok(DeliveryResult::Fenced),
            BeginOutcome::Busy => return Ok(DeliveryResult::Busy(self.config.busy_delay)),
        };
        if entered == EnterOutcome::QueuedBehind {
            self.store_call(self.inbox.commit(transaction)).await?;
            self.count_not_new(delivery, entered);
            return Ok(DeliveryResult::Acknowledge);
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
            Err(_) => InboxFailureAction::DeadContinue,
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
        let failure = error.into_failure(action, delivery.attempts);
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
        match self.store_call(self.inbox.set_back(&delivery.message, lease, claim, &failure)).await? {
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
                    delivery.attempts = delivery.attempts.saturating_sub(1);
                }
                if lease.is_some() {
                    return Ok(DeliveryResult::Fenced);
                }
                add(&self.status.fenced, 1);
                Ok(DeliveryResult::Busy(self.config.busy_delay))
            }
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
