//! Handles messages one after the other in one worker, each in its own transaction.

use std::slice;
use std::time::Duration;

use relevo_core::inbox::transactions::{BeginOutcome, Enter, EnterOutcome};
use relevo_core::inbox::{Inbox, InboxMessage, LaneLease};
use relevo_core::store::StoreError;
use tokio::time::Instant;

use crate::delivery::{DeliveryResult, PendingDelivery};
use crate::error::Verdict;
use crate::work::Worker;
use crate::worker::is_in_progress;

/// Maximum number of messages given to one worker at once.
pub(crate) const TURN_BATCH_MAX: usize = 8;
/// After this time a worker returns the messages it has not begun, so that others can take them.
const TURN_TIME_MAX: Duration = Duration::from_millis(20);

/// State of a message whose transaction can be committed.
enum Taken {
    Handled(Verdict),
    /// It is a duplicate, or queued behind others.
    Known(EnterOutcome),
}

impl<I: Inbox + 'static> Worker<I>
where
    I::Transaction: 'static,
{
    /// Handles messages in turn. The commit of one message begins the next transaction, which saves a round trip to the
    /// store. After a failure or a long run, messages that were not begun return unchanged. Returns one end per
    /// message, in order.
    pub(crate) async fn handle_in_turn(
        &self,
        items: &mut [PendingDelivery],
        held: Option<&LaneLease>,
    ) -> Vec<DeliveryResult> {
        let until = Instant::now() + TURN_TIME_MAX;
        let arrivals: Vec<InboxMessage> = items.iter().map(|item| item.message.clone()).collect();
        let enter = |at: usize| Enter { held, arrivals: slice::from_ref(&arrivals[at]) };
        let mut ended = Vec::with_capacity(items.len());
        let mut begun = Some(self.store_call(self.inbox.begin(enter(0))).await);
        while let Some(open) = begun.take() {
            let at = ended.len();
            let (transaction, taken) = match self.handle_begun(&mut items[at], held, open).await {
                Ok(taken) => taken,
                Err(end) => {
                    // From now on this message is handled apart from the others.
                    items[at].can_batch = false;
                    ended.push(end);
                    break;
                }
            };
            let committed = if at + 1 < items.len() && Instant::now() < until {
                let next = self.store_call(self.inbox.commit_and_begin(transaction, enter(at + 1))).await;
                next.map(|next| begun = Some(next))
            } else {
                self.store_call(self.inbox.commit(transaction)).await
            };
            ended.push(self.apply_commit(&mut items[at], held, &taken, committed).await);
        }
        ended.resize_with(items.len(), || DeliveryResult::HandleAlone);
        ended
    }

    /// Handles a message in the transaction begun for it. Returns its end as the error if the transaction cannot be
    /// committed.
    async fn handle_begun(
        &self,
        item: &mut PendingDelivery,
        held: Option<&LaneLease>,
        begun: Result<BeginOutcome<I::Transaction>, StoreError>,
    ) -> Result<(I::Transaction, Taken), DeliveryResult> {
        let (mut transaction, entered) = match begun.map_err(DeliveryResult::Store)? {
            BeginOutcome::Open(transaction, entered) => (transaction, entered[0]),
            BeginOutcome::Fenced => return Err(DeliveryResult::Fenced),
            BeginOutcome::Busy => return Err(DeliveryResult::Busy(self.config.busy_delay)),
        };
        if is_in_progress(entered) {
            self.store_call(self.inbox.rollback(transaction)).await.map_err(DeliveryResult::Store)?;
            return Err(DeliveryResult::Busy(self.config.busy_delay));
        }
        let (EnterOutcome::New, Ok(incoming)) = (entered, &mut item.incoming) else {
            return Ok((transaction, Taken::Known(entered)));
        };
        incoming.attempt = item.attempts + 1;
        match self.process(self.handler(incoming), &mut transaction, incoming).await {
            Ok(verdict) => {
                if verdict == Verdict::Skip {
                    self.store_call(self.inbox.skip(&mut transaction, item.message.dedup_id))
                        .await
                        .map_err(DeliveryResult::Store)?;
                }
                Ok((transaction, Taken::Handled(verdict)))
            }
            Err(trouble) => {
                self.abort(transaction, &trouble).await;
                Err(self.on_failure(item, held, trouble).await.unwrap_or_else(DeliveryResult::Store))
            }
        }
    }

    /// Reacts to the result of a commit. If the commit succeeded despite an error, the next attempt finds a duplicate.
    async fn apply_commit(
        &self,
        item: &mut PendingDelivery,
        held: Option<&LaneLease>,
        taken: &Taken,
        committed: Result<(), StoreError>,
    ) -> DeliveryResult {
        match (committed, taken) {
            (Ok(()), Taken::Handled(verdict)) => {
                self.count_verdict(*verdict);
                self.breakers.record_success(&item.message.lane);
                DeliveryResult::Acknowledge
            }
            (Ok(()), Taken::Known(entered)) => {
                self.count_not_new(item, *entered);
                DeliveryResult::Acknowledge
            }
            (Err(error), taken) => {
                item.can_batch = false;
                match (Self::commit_error(error), taken) {
                    (Ok(trouble), Taken::Handled(_)) => {
                        self.on_failure(item, held, trouble).await.unwrap_or_else(DeliveryResult::Store)
                    }
                    (Ok(trouble), Taken::Known(_)) => {
                        DeliveryResult::Store(StoreError::Unexpected(trouble.error.into()))
                    }
                    (Err(error), _) => DeliveryResult::Store(error),
                }
            }
        }
    }
}
