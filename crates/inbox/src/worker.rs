//! Handles live messages: enter, handle and commit, or record the failure.

use std::slice;
use std::time::Duration;

use relevo_core::AfterDead;
use relevo_core::inbox::attempts::{CallClaim, ClaimOutcome};
use relevo_core::inbox::retries::{ClaimedQueue, InboxFailureAction, RecordOutcome};
use relevo_core::inbox::retry_policy::{RetryStep, is_expired};
use relevo_core::inbox::transactions::{BeginOutcome, Enter, EnterOutcome};
use relevo_core::inbox::{DedupId, Inbox, InboxMessage, InboxState, LaneLease};
use relevo_core::store::StoreError;
use relevo_core::trace::ActiveSpan;
use tokio::time::{Instant, sleep};
use tracing::field::display;
use tracing::{debug, warn};

use crate::attempt::CallResult;
use crate::config::RetryStorage;
use crate::delivery::{DeliveryResult, PendingDelivery, StartRecord, UnrecordedFailure};
use crate::error::{ErrorKind, HandlerError, HandlerResult, Verdict};
use crate::handler::{DynCall, HandlerKind, Registration};
use crate::incoming::Incoming;
use crate::stats::add;
use crate::work::Worker;

/// How often the commit of a call result may fail before the message counts as failed.
const COMMIT_RETRIES_MAX: u32 = 5;

/// Everything needed to commit the result of a call.
pub(crate) struct WriteDown<'a, T> {
    pub(crate) registered: &'a Registration<T>,
    pub(crate) handler: &'a dyn DynCall<T>,
    pub(crate) incoming: &'a Incoming,
    pub(crate) entry: DedupId,
    pub(crate) fence: Fence<'a>,
    /// When the claim expires.
    pub(crate) until: Instant,
}

/// The claim that prevents other workers from making the same call.
#[derive(Clone, Copy)]
pub(crate) enum Fence<'a> {
    /// Claim of a live message.
    Call { arrival: &'a InboxMessage, held: Option<&'a LaneLease>, claim: CallClaim },
    /// Claim of a retry queue, with the number of its first message.
    Queue { due: &'a ClaimedQueue, number: i64 },
}

/// Outcome of committing the result of a call.
pub(crate) enum Written {
    Done,
    Trouble(HandlerError),
    /// The claim expired or belongs to another worker.
    Lost,
}

impl<I: Inbox + 'static> Worker<I>
where
    I::Transaction: 'static,
{
    /// Handles live messages of one lane: one alone, several in turn, or several in one transaction. Returns one end
    /// per message, in order. Messages without a permit at shutdown return unchanged.
    pub(crate) async fn handle_live(
        &self,
        items: &mut [PendingDelivery],
        held: Option<&LaneLease>,
    ) -> Vec<DeliveryResult> {
        let Some(_seat) = self.permit().await else {
            return items.iter().map(|_| DeliveryResult::HandleAlone).collect();
        };
        items.iter_mut().filter_map(|item| item.span.take()).for_each(ActiveSpan::end);
        let ended = self.handle_with_permit(items, held).await;
        for item in items.iter() {
            self.open_claims.remove_attempt(item.message.dedup_id);
        }
        ended
    }

    async fn handle_with_permit(&self, items: &mut [PendingDelivery], held: Option<&LaneLease>) -> Vec<DeliveryResult> {
        if let [item] = items {
            return vec![self.handle_one(item, held).await.unwrap_or_else(DeliveryResult::Store)];
        }
        if self.config.batch_max == 1 {
            let _company = self.isolate(0).await;
            return self.handle_in_turn(items, held).await;
        }
        match self.handle_batch(items, held).await {
            Ok(ended) => ended,
            // The error concerns the whole batch, so every message is handled alone.
            Err(error) => {
                warn!(error = &error as &dyn std::error::Error, messages = items.len(), "a batch was not committed");
                items.iter_mut().map(separate).collect()
            }
        }
    }

    async fn handle_one(
        &self,
        item: &mut PendingDelivery,
        held: Option<&LaneLease>,
    ) -> Result<DeliveryResult, StoreError> {
        if item.unrecorded_failure.is_some() {
            return self.record_failure(item, held).await;
        }
        // The last attempt may not have recorded its end because the database was unreachable.
        self.end_start(item).await?;
        let incoming = match &mut item.incoming {
            Ok(incoming) => incoming,
            Err(why) => {
                let trouble = HandlerError::undecodable(why.as_str());
                // Its key is unknown, so it must not hold a key.
                return self.dead_letter(item, held, trouble, AfterDead::Continue).await;
            }
        };
        incoming.attempt = item.attempts + 1;
        let incoming = incoming.clone();
        let registered = self.handler(&incoming);
        let after_dead = self.after_dead(registered);
        let is_ours = incoming.source.is_some();
        let kept = self.config.keeping.done;
        if is_ours && is_expired(incoming.message.created_at, self.config.clock.now(), kept) {
            let error =
                format!("it entered the log at {}, longer ago than the inbox remembers", incoming.message.created_at);
            return self
                .dead_letter(item, held, HandlerError::permanent(error).with_class(HandlerError::EXPIRED), after_dead)
                .await;
        }
        if let Some(registered) = registered
            && let HandlerKind::Call(handler) = &registered.kind
        {
            return self.call_then_commit(item, held, registered, &**handler).await;
        }
        let started = if item.redelivered {
            item.start_record = Some(StartRecord::Counted);
            self.open_claims.add_attempt(item.message.dedup_id, None);
            self.store_call(self.inbox.record_start(&item.message)).await?
        } else {
            0
        };
        if started > self.config.starts_max {
            return self.dead_letter_in_turn(item, held, Self::crash_error(started), after_dead).await;
        }
        let _company = self.isolate(started).await;
        let mut ended = self.handle_in_turn(slice::from_mut(item), held).await;
        Ok(ended.pop().expect("one end for one message"))
    }

    async fn call_then_commit(
        &self,
        item: &mut PendingDelivery,
        held: Option<&LaneLease>,
        registered: &Registration<I::Transaction>,
        handler: &dyn DynCall<I::Transaction>,
    ) -> Result<DeliveryResult, StoreError> {
        let Ok(incoming) = item.incoming.clone() else { unreachable!("it was read before") };
        let deadline = self.handler_timeout(Some(registered));
        // Time for the call, for committing its result, and a margin for slow responses.
        let lasts = deadline * 2 + self.config.claim_margin;
        let begun = Instant::now();
        let claim = match self.store_call(self.inbox.claim_call(&item.message, held, lasts)).await? {
            ClaimOutcome::Claimed(claim) => claim,
            ClaimOutcome::Duplicate(state) if is_in_progress(EnterOutcome::Duplicate(state)) => {
                return Ok(DeliveryResult::Busy(self.config.busy_delay));
            }
            ClaimOutcome::Duplicate(state) => {
                self.count_not_new(item, EnterOutcome::Duplicate(state));
                return Ok(DeliveryResult::Acknowledge);
            }
            ClaimOutcome::QueuedBehind => {
                self.count_not_new(item, EnterOutcome::QueuedBehind);
                return Ok(DeliveryResult::Acknowledge);
            }
            ClaimOutcome::Busy(rest) => return Ok(DeliveryResult::Busy(rest.max(self.config.busy_delay))),
            ClaimOutcome::Fenced => return Ok(DeliveryResult::Fenced),
        };
        item.start_record = Some(StartRecord::Claimed(claim));
        self.open_claims.add_attempt(item.message.dedup_id, Some(claim));
        if claim.unfinished_starts > self.config.starts_max {
            let after_dead = self.after_dead(Some(registered));
            return self.dead_letter(item, held, Self::crash_error(claim.unfinished_starts), after_dead).await;
        }
        let _company = self.isolate(claim.unfinished_starts).await;
        if begun.elapsed() + deadline > lasts {
            // Waiting to run alone used up the time for the call. The retry queue keeps counting its starts. Here a
            // message that crashes its process would be tried for ever, because other handlers always run beside it.
            let trouble = HandlerError::transient("others were waited for").with_class("busy");
            Self::decide(item, InboxFailureAction::Postpone { after: self.config.busy_delay }, trouble);
            return self.record_failure(item, held).await;
        }
        match self.process_call(registered, handler, &incoming).await {
            Ok(answered) => {
                let (entry, until) = (item.message.dedup_id, begun + lasts);
                let fence = Fence::Call { arrival: &item.message, held, claim };
                let job = WriteDown { registered, handler, incoming: &incoming, entry, fence, until };
                match self.record_call_result(job, answered).await? {
                    Written::Done => {
                        self.breakers.record_success(&item.message.lane);
                        Ok(DeliveryResult::Acknowledge)
                    }
                    Written::Trouble(trouble) => self.on_failure(item, held, trouble).await,
                    Written::Lost if held.is_some() => Ok(DeliveryResult::Fenced),
                    Written::Lost => {
                        add(&self.status.fenced, 1);
                        Ok(DeliveryResult::Busy(self.config.busy_delay))
                    }
                }
            }
            Err(trouble) => self.on_failure(item, held, trouble).await,
        }
    }

    /// Commits the result of a call. A transient failure is retried with the same result while the claim lasts, because
    /// a new attempt would repeat the external call.
    pub(crate) async fn record_call_result(
        &self,
        WriteDown { registered, handler, incoming, entry, fence, until }: WriteDown<'_, I::Transaction>,
        mut answered: CallResult,
    ) -> Result<Written, StoreError> {
        let mut failures = 0;
        loop {
            let Some(mut transaction) = self.begin_claimed(fence, until).await? else { return Ok(Written::Lost) };
            let handled = self.process_commit(registered, handler, &mut transaction, incoming, &mut answered).await;
            let failed = match self.end_transaction(transaction, entry, handled).await {
                Ok(Ok(())) => return Ok(Written::Done),
                Ok(Err(trouble)) => Ok(trouble),
                Err(error) => Err(error),
            };
            let Some(pause) = self.commit_retry_delay(&failed, failures, until) else {
                return failed.map(Written::Trouble);
            };
            failures += 1;
            sleep(pause).await;
        }
    }

    /// Begins the transaction for the result of a call; `None` if the lane or the claim belongs to another worker. The
    /// call was already made, so a busy or unreachable database is retried while the claim lasts.
    async fn begin_claimed(&self, fence: Fence<'_>, until: Instant) -> Result<Option<I::Transaction>, StoreError> {
        let mut failures = 0;
        loop {
            let begun = match fence {
                Fence::Call { arrival, held, claim } => {
                    self.store_call(self.inbox.begin_claimed(arrival, held, claim)).await
                }
                Fence::Queue { due, number } => self.store_call(self.inbox.begin_due(due, number)).await,
            };
            let pause = match begun {
                Ok(BeginOutcome::Open(transaction, _)) => return Ok(Some(transaction)),
                Ok(BeginOutcome::Fenced) => return Ok(None),
                Ok(BeginOutcome::Busy) => self.config.busy_delay,
                Err(error) if error.is_retryable() && Instant::now() < until => self.config.outage(failures),
                Err(error) => return Err(error),
            };
            failures += 1;
            if Instant::now() + pause > until {
                return Ok(None);
            }
            sleep(pause).await;
        }
    }

    /// Handles several first deliveries in one transaction. If anything fails, it is rolled back and each message is
    /// handled alone.
    async fn handle_batch(
        &self,
        items: &mut [PendingDelivery],
        held: Option<&LaneLease>,
    ) -> Result<Vec<DeliveryResult>, StoreError> {
        let _company = self.isolate(0).await;
        let arrivals: Vec<_> = items.iter().map(|item| item.message.clone()).collect();
        let (mut transaction, entered) =
            match self.store_call(self.inbox.begin(Enter { held, arrivals: &arrivals })).await? {
                BeginOutcome::Open(transaction, entered) => (transaction, entered),
                BeginOutcome::Fenced => return Ok(items.iter().map(|_| DeliveryResult::Fenced).collect()),
                BeginOutcome::Busy => return Ok(items.iter_mut().map(separate).collect()),
            };
        if entered.iter().copied().any(is_in_progress) {
            self.store_call(self.inbox.rollback(transaction)).await?;
            return Ok(items.iter_mut().map(separate).collect());
        }
        let mut verdicts = Vec::with_capacity(items.len());
        for (item, entered) in items.iter().zip(&entered) {
            let (EnterOutcome::New, Ok(incoming)) = (entered, &item.incoming) else { continue };
            let handled = self.process(self.handler(incoming), &mut transaction, incoming).await;
            match handled {
                Ok(Verdict::Skip) => {
                    self.store_call(self.inbox.skip(&mut transaction, item.message.dedup_id)).await?;
                    verdicts.push(Verdict::Skip);
                }
                Ok(Verdict::Done) => verdicts.push(Verdict::Done),
                Err(trouble) => {
                    let trace_id = self.trace_id(Some(incoming)).map(display);
                    debug!(message_id = %item.message.dedup_id.id, trace_id, error = %trouble, "a batch is undone, each will be handled alone");
                    add(&self.status.batches_rolled_back, 1);
                    self.abort(transaction, &trouble).await;
                    return Ok(items.iter_mut().map(separate).collect());
                }
            }
        }
        self.store_call(self.inbox.commit(transaction)).await?;
        add(&self.status.batches, 1);
        for verdict in verdicts {
            self.count_verdict(verdict);
        }
        for (item, entered) in items.iter_mut().zip(entered) {
            self.count_not_new(item, entered);
        }
        Ok(items.iter().map(|_| DeliveryResult::Acknowledge).collect())
    }

    /// Commits a successful attempt or rolls it back. The inner error comes from the handler, or from the database at
    /// commit.
    pub(crate) async fn end_transaction(
        &self,
        transaction: I::Transaction,
        entry: DedupId,
        handled: HandlerResult,
    ) -> Result<Result<(), HandlerError>, StoreError> {
        match handled {
            Ok(verdict) => self.commit(transaction, entry, verdict).await,
            Err(trouble) => {
                self.abort(transaction, &trouble).await;
                Ok(Err(trouble))
            }
        }
    }

    /// The pause before the result of a call is committed again; `None` if a retry cannot help or the claim would
    /// expire.
    fn commit_retry_delay(
        &self,
        failed: &Result<HandlerError, StoreError>,
        failures: u32,
        until: Instant,
    ) -> Option<Duration> {
        let (may_pass, error) = match failed {
            Ok(trouble) => {
                (trouble.kind != ErrorKind::Permanent && failures < COMMIT_RETRIES_MAX, trouble.error.clone())
            }
            Err(error) => (error.is_retryable(), error.to_string()),
        };
        let pause = self.config.outage(failures);
        if !may_pass || Instant::now() + pause >= until {
            return None;
        }
        warn!(error, ?pause, "what the far side answered was not written down, will try again");
        Some(pause)
    }

    /// Decides what follows a failed attempt.
    pub(crate) async fn on_failure(
        &self,
        item: &mut PendingDelivery,
        held: Option<&LaneLease>,
        trouble: HandlerError,
    ) -> Result<DeliveryResult, StoreError> {
        let Ok(incoming) = &item.incoming else { unreachable!("only what was read is handled") };
        let registered = self.handler(incoming);
        let after_dead = self.after_dead(registered);
        match trouble.kind {
            ErrorKind::Unavailable => {
                let pause = self.handler_outage(&item.message, &trouble);
                self.end_start(item).await?;
                Ok(DeliveryResult::Unavailable(pause))
            }
            ErrorKind::Permanent => {
                item.attempts += 1;
                self.log_failure(item, &trouble);
                self.dead_letter(item, held, trouble, after_dead).await
            }
            ErrorKind::Transient => {
                item.attempts += 1;
                self.log_failure(item, &trouble);
                match self.retry_policy(registered).decide(item.attempts, self.jitter()) {
                    RetryStep::InMemory(pause) => {
                        add(&self.status.retried_in_memory, 1);
                        self.end_start(item).await?;
                        Ok(DeliveryResult::RetryIn(pause))
                    }
                    RetryStep::Durable(after) if self.config.retry_storage == RetryStorage::Broker => {
                        add(&self.status.retried_later, 1);
                        self.end_start(item).await?;
                        Ok(DeliveryResult::RetryLater(after))
                    }
                    RetryStep::Durable(after) => {
                        add(&self.status.retried_later, 1);
                        Self::decide(item, InboxFailureAction::Retry { after }, trouble);
                        self.record_failure(item, held).await
                    }
                    RetryStep::DeadLetter => self.dead_letter(item, held, trouble, after_dead).await,
                }
            }
        }
    }

    /// Dead-letters a message that no handler may see. If others of its key wait, it is queued behind them and
    /// dead-lettered in its turn: a redriven dead letter goes before all waiting messages.
    async fn dead_letter_in_turn(
        &self,
        item: &mut PendingDelivery,
        held: Option<&LaneLease>,
        trouble: HandlerError,
        after_dead: AfterDead,
    ) -> Result<DeliveryResult, StoreError> {
        let arrivals = slice::from_ref(&item.message);
        let (transaction, entered) = match self.store_call(self.inbox.begin(Enter { held, arrivals })).await? {
            BeginOutcome::Open(transaction, entered) => (transaction, entered[0]),
            BeginOutcome::Fenced => return Ok(DeliveryResult::Fenced),
            BeginOutcome::Busy => return Ok(DeliveryResult::Busy(self.config.busy_delay)),
        };
        if entered == EnterOutcome::QueuedBehind {
            self.store_call(self.inbox.commit(transaction)).await?;
            self.count_not_new(item, entered);
            return Ok(DeliveryResult::Acknowledge);
        }
        self.store_call(self.inbox.rollback(transaction)).await?;
        self.dead_letter(item, held, trouble, after_dead).await
    }

    async fn dead_letter(
        &self,
        item: &mut PendingDelivery,
        held: Option<&LaneLease>,
        trouble: HandlerError,
        after_dead: AfterDead,
    ) -> Result<DeliveryResult, StoreError> {
        let stop = self.dead_letter_action(after_dead);
        Self::decide(item, stop, trouble);
        self.record_failure(item, held).await
    }

    fn decide(item: &mut PendingDelivery, stop: InboxFailureAction, trouble: HandlerError) {
        let setback = trouble.into_failure(stop, item.attempts);
        item.unrecorded_failure = Some(UnrecordedFailure { failure: setback, claim: item.claim() });
    }

    /// Stores the decision about a message.
    pub(crate) async fn record_failure(
        &self,
        item: &mut PendingDelivery,
        held: Option<&LaneLease>,
    ) -> Result<DeliveryResult, StoreError> {
        let decided = item.unrecorded_failure.clone().expect("it was decided before it is kept");
        let kept = self.store_call(self.inbox.set_back(&item.message, held, decided.claim, &decided.failure)).await?;
        match kept {
            RecordOutcome::Recorded => {
                self.failure_recorded(&item.message, item.incoming.as_ref().ok(), &decided.failure).await;
                Ok(DeliveryResult::Acknowledge)
            }
            RecordOutcome::Duplicate(state) if is_in_progress(EnterOutcome::Duplicate(state)) => {
                Ok(DeliveryResult::Busy(self.config.busy_delay))
            }
            RecordOutcome::Duplicate(state) => {
                self.count_not_new(item, EnterOutcome::Duplicate(state));
                Ok(DeliveryResult::Acknowledge)
            }
            RecordOutcome::Busy => Ok(DeliveryResult::Busy(self.config.busy_delay)),
            RecordOutcome::Fenced => {
                if decided.claim.is_some() {
                    // Another worker may have claimed the message, and its decision counts. If that worker died, the
                    // store would reject this decision for ever. The attempt behind this decision is therefore not
                    // counted.
                    item.unrecorded_failure = None;
                    item.attempts = item.attempts.saturating_sub(1);
                }
                if held.is_some() {
                    return Ok(DeliveryResult::Fenced);
                }
                add(&self.status.fenced, 1);
                Ok(DeliveryResult::Busy(self.config.busy_delay))
            }
        }
    }

    /// Records that an attempt ended without a crash.
    async fn end_start(&self, item: &mut PendingDelivery) -> Result<(), StoreError> {
        if item.start_record.is_some() {
            self.store_call(self.inbox.end_attempt(item.message.dedup_id, item.claim())).await?;
            item.start_record = None;
        }
        Ok(())
    }
}

/// Whether another worker may be handling the message. If that worker dies, only the broker's copy remains, so the
/// message is not acknowledged.
pub(crate) const fn is_in_progress(entered: EnterOutcome) -> bool {
    matches!(entered, EnterOutcome::Duplicate(InboxState::Started | InboxState::Calling))
}

/// Excludes the message from batches from now on.
fn separate(item: &mut PendingDelivery) -> DeliveryResult {
    item.can_batch = false;
    DeliveryResult::HandleAlone
}
