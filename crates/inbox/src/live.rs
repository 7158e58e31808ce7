//! Handles live messages of one lane: in turn, each in its own transaction, or a batch in one transaction.

use std::slice;
use std::time::Duration;

use relevo_core::inbox::attempts::ClaimOutcome;
use relevo_core::inbox::retries::{InboxFailureAction, classes};
use relevo_core::inbox::retry_policy::is_expired;
use relevo_core::inbox::transactions::{BeginOutcome, CommitOutcome, EnterOutcome};
use relevo_core::inbox::{DedupId, Fence, Inbox, InboxMessage, InboxState, LaneLease};
use relevo_core::store::StoreError;
use relevo_core::trace::ActiveSpan;
use tokio::time::Instant;
use tracing::field::display;
use tracing::{debug, warn};

use crate::attempt::{Attempt, AttemptEnd, rejected_commit};
use crate::delivery::{DeliveryResult, PendingDelivery, StartRecord};
use crate::error::{HandlerError, Verdict};
use crate::handler::Registration;
use crate::status::add;
use crate::worker::Worker;

/// Maximum number of messages given to one worker at once.
pub(crate) const TURN_BATCH_MAX: usize = 8;
/// After this time a worker returns the messages it has not begun, so that others can take them.
const TURN_TIME_MAX: Duration = Duration::from_millis(20);

/// How a message was entered in a transaction that can be committed.
enum Entered {
    Handled(Verdict),
    /// It is a duplicate, or queued behind others.
    NotNew(EnterOutcome),
}

impl Entered {
    /// The messages to record as skipped, for the message with this id.
    fn skipped<'a>(&self, id: &'a DedupId) -> &'a [DedupId] {
        match self {
            Self::Handled(verdict) => verdict.skipped(id),
            Self::NotNew(_) => &[],
        }
    }
}

impl<I: Inbox> Worker<I> {
    /// Handles live messages of one lane: one alone, several in turn, or several in one transaction. Returns one result
    /// per message, in order. Messages without a permit at shutdown return unchanged.
    pub(crate) async fn handle_live(
        &self,
        deliveries: &mut [PendingDelivery],
        lease: Option<&LaneLease>,
    ) -> Vec<DeliveryResult> {
        let Some(_permit) = self.permit().await else {
            return deliveries.iter().map(|_| DeliveryResult::HandleAlone).collect();
        };
        deliveries.iter_mut().filter_map(|delivery| delivery.span.take()).for_each(ActiveSpan::end);
        let results = self.handle_with_permit(deliveries, lease).await;
        for delivery in deliveries.iter() {
            self.open_claims.remove_attempt(delivery.message.dedup_id);
        }
        results
    }

    async fn handle_with_permit(
        &self,
        deliveries: &mut [PendingDelivery],
        lease: Option<&LaneLease>,
    ) -> Vec<DeliveryResult> {
        if let [delivery] = deliveries {
            return vec![self.handle_one(delivery, lease).await.unwrap_or_else(DeliveryResult::Store)];
        }
        let _isolation = self.isolate(0).await;
        if self.config.batch_max == 1 {
            return self.handle_in_turn(deliveries, lease).await;
        }
        match self.handle_batch(deliveries, lease).await {
            Ok(results) => results,
            // The error concerns the whole batch, so every message is handled alone.
            Err(error) => {
                let messages = deliveries.len();
                warn!(error = &error as &dyn std::error::Error, messages, "batch not committed, will retry one by one");
                deliveries.iter_mut().map(separate).collect()
            }
        }
    }

    async fn handle_one(
        &self,
        delivery: &mut PendingDelivery,
        lease: Option<&LaneLease>,
    ) -> Result<DeliveryResult, StoreError> {
        if delivery.unrecorded_failure.is_some() {
            return self.record_failure(delivery, lease).await;
        }
        // The last attempt may not have recorded its end because the database was unreachable.
        self.end_start(delivery).await?;
        let incoming = match &mut delivery.incoming {
            Ok(incoming) => incoming,
            Err(reason) => {
                let error = HandlerError::undecodable(reason.as_str());
                return self.dead_letter(delivery, lease, error).await;
            }
        };
        incoming.attempt = delivery.message.attempts + 1;
        let published_at = incoming.message.created_at;
        let is_ours = incoming.source.is_some();
        if is_ours && is_expired(published_at, self.config.clock.now(), self.inbox.retention().done) {
            let error =
                format!("published at {published_at}, older than the inbox retention; it may have been handled before");
            let error = HandlerError::permanent(error).with_class(classes::EXPIRED);
            return self.dead_letter(delivery, lease, error).await;
        }
        if let Some(registration) = self.handler(incoming)
            && !registration.is_in_transaction()
        {
            return self.handle_call(delivery, lease, registration).await;
        }
        let starts = if delivery.redelivered {
            let former = delivery.start_record.replace(StartRecord::Counted);
            self.open_claims.add_attempt(delivery.message.dedup_id, None);
            let starts = self.store_call(self.inbox.record_start(&delivery.message)).await;
            if let Err(StoreError::Busy { .. }) = &starts {
                // Nothing was counted, so there is no start to take back.
                delivery.start_record = former;
                if former.is_none() {
                    self.open_claims.remove_attempt(delivery.message.dedup_id);
                }
            }
            starts?
        } else {
            0
        };
        if starts > self.config.starts_max {
            return self.dead_letter_in_turn(delivery, lease, Self::crash_error(starts)).await;
        }
        let _isolation = self.isolate(starts).await;
        let mut results = self.handle_in_turn(slice::from_mut(delivery), lease).await;
        Ok(results.pop().expect("one result for one message"))
    }

    /// Claims the message for its external call and attempts it.
    async fn handle_call(
        &self,
        delivery: &mut PendingDelivery,
        lease: Option<&LaneLease>,
        registration: &Registration<I::Transaction>,
    ) -> Result<DeliveryResult, StoreError> {
        let timeout = self.handler_timeout(registration);
        // Time for the call, for committing its result, and a margin for slow responses.
        let ttl = timeout * 2 + self.config.claim_margin;
        let claimed_at = Instant::now();
        let claim = match self.store_call(self.inbox.claim_call(&delivery.message, lease, ttl)).await? {
            ClaimOutcome::Claimed(claim) => claim,
            ClaimOutcome::Duplicate(state) if is_in_progress(EnterOutcome::Duplicate(state)) => {
                return Ok(DeliveryResult::Busy(self.config.busy_delay));
            }
            ClaimOutcome::Duplicate(state) => {
                self.count_not_new(delivery, EnterOutcome::Duplicate(state));
                return Ok(DeliveryResult::Acknowledge);
            }
            ClaimOutcome::QueuedBehind => {
                self.count_not_new(delivery, EnterOutcome::QueuedBehind);
                return Ok(DeliveryResult::Acknowledge);
            }
            ClaimOutcome::Busy(rest) => return Ok(DeliveryResult::Busy(rest.max(self.config.busy_delay))),
            ClaimOutcome::Fenced => return Ok(DeliveryResult::Fenced),
        };
        delivery.start_record = Some(StartRecord::Claimed(claim));
        self.open_claims.add_attempt(delivery.message.dedup_id, Some(claim));
        if claim.unfinished_starts > self.config.starts_max {
            return self.dead_letter(delivery, lease, Self::crash_error(claim.unfinished_starts)).await;
        }
        let _isolation = self.isolate(claim.unfinished_starts).await;
        if claimed_at.elapsed() + timeout > ttl {
            // Waiting to run alone used up the time for the call. The retry queue keeps counting its starts. Here a
            // message that crashes its process would be tried for ever, because other handlers always run beside it.
            let error = HandlerError::transient("other handlers did not end in time").with_class(classes::BUSY);
            let action = InboxFailureAction::Postpone { after: self.config.busy_delay };
            return self.fail(delivery, lease, action, error).await;
        }
        let Ok(incoming) = &delivery.incoming else { unreachable!("an undecodable message has no handler") };
        let (message, fence) = (&delivery.message, Fence::Call { lane: lease, claim });
        match self.attempt(Attempt { message, incoming, fence, until: claimed_at + ttl }).await? {
            AttemptEnd::Committed => {
                self.breakers.record_success(&delivery.message.lane);
                Ok(DeliveryResult::Acknowledge)
            }
            AttemptEnd::Failed(error) => self.on_failure(delivery, lease, error).await,
            AttemptEnd::Fenced if lease.is_some() => Ok(DeliveryResult::Fenced),
            AttemptEnd::Fenced => {
                add(&self.status.fenced, 1);
                Ok(DeliveryResult::Busy(self.config.busy_delay))
            }
            AttemptEnd::Busy => Ok(DeliveryResult::Busy(self.config.busy_delay)),
        }
    }

    /// Handles several first deliveries in one transaction. If anything fails, it is rolled back and each message is
    /// handled alone.
    async fn handle_batch(
        &self,
        deliveries: &mut [PendingDelivery],
        lease: Option<&LaneLease>,
    ) -> Result<Vec<DeliveryResult>, StoreError> {
        let messages: Vec<InboxMessage> = deliveries.iter().map(|delivery| delivery.message.clone()).collect();
        let (mut transaction, entered) = match self.begin(&messages, Fence::Live { lane: lease }).await? {
            BeginOutcome::Open(transaction, entered) => (transaction, entered),
            BeginOutcome::Fenced => return Ok(deliveries.iter().map(|_| DeliveryResult::Fenced).collect()),
            BeginOutcome::Busy => return Ok(deliveries.iter_mut().map(separate).collect()),
        };
        if entered.iter().copied().any(is_in_progress) {
            self.store_call(self.inbox.rollback(transaction)).await?;
            return Ok(deliveries.iter_mut().map(separate).collect());
        }
        let (mut verdicts, mut skipped) = (Vec::with_capacity(deliveries.len()), Vec::new());
        for (delivery, entered) in deliveries.iter().zip(&entered) {
            let (EnterOutcome::New, Ok(incoming)) = (entered, &delivery.incoming) else { continue };
            let message_id = delivery.message.dedup_id;
            match self.handle(transaction, incoming).await {
                Ok((returned, verdict)) => {
                    transaction = returned;
                    skipped.extend_from_slice(verdict.skipped(&message_id));
                    verdicts.push(verdict);
                }
                Err((transaction, error)) => {
                    let trace_id = self.trace_id(Some(incoming)).map(display);
                    debug!(message_id = %message_id.id, trace_id, %error, "batch rolled back, will retry one by one");
                    add(&self.status.batches_rolled_back, 1);
                    self.abort(transaction, &error).await;
                    return Ok(deliveries.iter_mut().map(separate).collect());
                }
            }
        }
        match self.commit(transaction, &skipped).await? {
            CommitOutcome::Committed => add(&self.status.batches, 1),
            CommitOutcome::Fenced => return Ok(deliveries.iter().map(|_| DeliveryResult::Fenced).collect()),
            CommitOutcome::Stale => return Ok(deliveries.iter_mut().map(separate).collect()),
            CommitOutcome::Rejected { error, .. } => return Err(StoreError::Unexpected(error)),
        }
        for verdict in verdicts {
            self.count_verdict(verdict);
        }
        for (delivery, entered) in deliveries.iter_mut().zip(entered) {
            self.count_not_new(delivery, entered);
        }
        Ok(deliveries.iter().map(|_| DeliveryResult::Acknowledge).collect())
    }

    /// Handles messages in turn. The commit of one message begins the next transaction, which saves a round trip to the
    /// store. After a failure or a long run, messages that were not begun return unchanged. Returns one result per
    /// message, in order.
    async fn handle_in_turn(
        &self,
        deliveries: &mut [PendingDelivery],
        lease: Option<&LaneLease>,
    ) -> Vec<DeliveryResult> {
        let until = Instant::now() + TURN_TIME_MAX;
        let messages: Vec<InboxMessage> = deliveries.iter().map(|delivery| delivery.message.clone()).collect();
        let fence = Fence::Live { lane: lease };
        let mut results = Vec::with_capacity(deliveries.len());
        let mut next = Some(self.begin(&messages[..1], fence).await);
        while let Some(begun) = next.take() {
            let at = results.len();
            let (transaction, entered) = match self.handle_begun(&mut deliveries[at], lease, begun).await {
                Ok(entered) => entered,
                Err(result) => {
                    // From now on this message is handled apart from the others.
                    deliveries[at].can_batch = false;
                    results.push(result);
                    break;
                }
            };
            let skipped = entered.skipped(&messages[at].dedup_id);
            let committed = if at + 1 < deliveries.len() && Instant::now() < until {
                let committed = self.commit_and_begin(transaction, skipped, &messages[at + 1..at + 2], fence).await;
                committed.map(|(outcome, begun)| {
                    next = begun;
                    outcome
                })
            } else {
                self.commit(transaction, skipped).await
            };
            results.push(self.apply_commit(&mut deliveries[at], lease, &entered, committed).await);
        }
        results.resize_with(deliveries.len(), || DeliveryResult::HandleAlone);
        results
    }

    /// Handles a message in the transaction begun for it. Returns its result as the error if the transaction cannot be
    /// committed.
    async fn handle_begun(
        &self,
        delivery: &mut PendingDelivery,
        lease: Option<&LaneLease>,
        begun: Result<BeginOutcome<I::Transaction>, StoreError>,
    ) -> Result<(I::Transaction, Entered), DeliveryResult> {
        let (transaction, entered) = match begun.map_err(DeliveryResult::Store)? {
            BeginOutcome::Open(transaction, entered) => (transaction, entered[0]),
            BeginOutcome::Fenced => return Err(DeliveryResult::Fenced),
            BeginOutcome::Busy => return Err(DeliveryResult::Busy(self.config.busy_delay)),
        };
        if is_in_progress(entered) {
            self.store_call(self.inbox.rollback(transaction)).await.map_err(DeliveryResult::Store)?;
            return Err(DeliveryResult::Busy(self.config.busy_delay));
        }
        let (EnterOutcome::New, Ok(incoming)) = (entered, &mut delivery.incoming) else {
            return Ok((transaction, Entered::NotNew(entered)));
        };
        incoming.attempt = delivery.message.attempts + 1;
        match self.handle(transaction, incoming).await {
            Ok((transaction, verdict)) => Ok((transaction, Entered::Handled(verdict))),
            Err((transaction, error)) => {
                self.abort(transaction, &error).await;
                Err(self.on_failure(delivery, lease, error).await.unwrap_or_else(DeliveryResult::Store))
            }
        }
    }

    /// Reacts to the result of a commit. If the commit succeeded despite an error, the next attempt finds a duplicate.
    async fn apply_commit(
        &self,
        delivery: &mut PendingDelivery,
        lease: Option<&LaneLease>,
        entered: &Entered,
        committed: Result<CommitOutcome, StoreError>,
    ) -> DeliveryResult {
        let outcome = match committed {
            Ok(CommitOutcome::Committed) => {
                match entered {
                    Entered::Handled(verdict) => {
                        self.count_verdict(*verdict);
                        self.breakers.record_success(&delivery.message.lane);
                    }
                    Entered::NotNew(entered) => self.count_not_new(delivery, *entered),
                }
                return DeliveryResult::Acknowledge;
            }
            Ok(outcome) => outcome,
            Err(error) => {
                delivery.can_batch = false;
                return DeliveryResult::Store(error);
            }
        };
        delivery.can_batch = false;
        match (outcome, entered) {
            (CommitOutcome::Rejected { permanent, error }, Entered::Handled(_)) => {
                let error = rejected_commit(permanent, error);
                self.on_failure(delivery, lease, error).await.unwrap_or_else(DeliveryResult::Store)
            }
            (outcome, _) => self.not_committed(outcome),
        }
    }

    /// The result of a message whose transaction was not committed, unless the handler's work was rejected.
    pub(crate) fn not_committed(&self, outcome: CommitOutcome) -> DeliveryResult {
        match outcome {
            CommitOutcome::Fenced => DeliveryResult::Fenced,
            CommitOutcome::Rejected { error, .. } => DeliveryResult::Store(StoreError::Unexpected(error)),
            CommitOutcome::Stale | CommitOutcome::Committed => DeliveryResult::Busy(self.config.busy_delay),
        }
    }

    /// Counts a message that was entered, but not as a new one.
    pub(crate) fn count_not_new(&self, delivery: &mut PendingDelivery, entered: EnterOutcome) {
        match entered {
            EnterOutcome::New => {}
            EnterOutcome::Duplicate(_) => {
                add(&self.status.duplicates, 1);
                if std::mem::take(&mut delivery.out_of_order) {
                    add(&self.status.sequence_repeats, 1);
                }
            }
            EnterOutcome::QueuedBehind => add(&self.status.queued_behind, 1),
        }
    }
}

/// Whether another worker may be handling the message. If that worker dies, only the broker's copy remains, so the
/// message is not acknowledged.
pub(crate) const fn is_in_progress(entered: EnterOutcome) -> bool {
    matches!(entered, EnterOutcome::Duplicate(InboxState::Started | InboxState::Calling))
}

/// Excludes the message from batches from now on.
fn separate(delivery: &mut PendingDelivery) -> DeliveryResult {
    delivery.can_batch = false;
    DeliveryResult::HandleAlone
}
