//! Handles messages one after the other in one worker, each in its own transaction.

use std::slice;
use std::time::Duration;

use relevo_core::inbox::{Arrival, Begun, Enter, Entered, Held, Inbox};
use relevo_core::store::StoreError;
use tokio::time::Instant;

use crate::item::{Ended, Item};
use crate::verdict::Verdict;
use crate::work::Work;
use crate::worker::is_under_way;

/// Maximum number of messages given to one worker at once.
pub(crate) const TURNS_MAX: usize = 8;
/// After this time a worker returns the messages it has not begun, so that others can take them.
const TURNS_LAST: Duration = Duration::from_millis(20);

/// State of a message whose transaction can be committed.
enum Taken {
    Handled(Verdict),
    /// It is a duplicate, or queued behind others.
    Known(Entered),
}

impl<I: Inbox + 'static> Work<I>
where
    I::Transaction: 'static,
{
    /// Handles messages in turn. The commit of one message begins the next transaction, which saves a round trip to the
    /// store. After a failure or a long run, messages that were not begun return unchanged. Returns one end per
    /// message, in order.
    pub(crate) async fn in_turn(&self, items: &mut [Item], held: Option<&Held>) -> Vec<Ended> {
        let until = Instant::now() + TURNS_LAST;
        let arrivals: Vec<Arrival> = items.iter().map(|item| item.arrival.clone()).collect();
        let enter = |at: usize| Enter { held, arrivals: slice::from_ref(&arrivals[at]) };
        let mut ended = Vec::with_capacity(items.len());
        let mut begun = Some(self.ask(self.inbox.begin(enter(0))).await);
        while let Some(open) = begun.take() {
            let at = ended.len();
            let (transaction, taken) = match self.take(&mut items[at], held, open).await {
                Ok(taken) => taken,
                Err(end) => {
                    // From now on this message is handled apart from the others.
                    items[at].shares = false;
                    ended.push(end);
                    break;
                }
            };
            let committed = if at + 1 < items.len() && Instant::now() < until {
                let next = self.ask(self.inbox.commit_and_begin(transaction, enter(at + 1))).await;
                next.map(|next| begun = Some(next))
            } else {
                self.ask(self.inbox.commit(transaction)).await
            };
            ended.push(self.committed(&mut items[at], held, &taken, committed).await);
        }
        ended.resize_with(items.len(), || Ended::Alone);
        ended
    }

    /// Handles a message in the transaction begun for it. Returns its end as the error if the transaction cannot be
    /// committed.
    async fn take(
        &self,
        item: &mut Item,
        held: Option<&Held>,
        begun: Result<Begun<I::Transaction>, StoreError>,
    ) -> Result<(I::Transaction, Taken), Ended> {
        let (mut transaction, entered) = match begun.map_err(Ended::Store)? {
            Begun::Open(transaction, entered) => (transaction, entered[0]),
            Begun::Lost => return Err(Ended::Lost),
            Begun::Busy => return Err(Ended::Busy(self.config.busy_pause)),
        };
        if is_under_way(entered) {
            self.ask(self.inbox.roll_back(transaction)).await.map_err(Ended::Store)?;
            return Err(Ended::Busy(self.config.busy_pause));
        }
        let (Entered::New, Ok(incoming)) = (entered, &mut item.incoming) else {
            return Ok((transaction, Taken::Known(entered)));
        };
        incoming.attempt = item.attempts + 1;
        match self.process(self.handler(incoming), &mut transaction, incoming).await {
            Ok(verdict) => {
                if verdict == Verdict::Skip {
                    self.ask(self.inbox.skip(&mut transaction, item.arrival.entry)).await.map_err(Ended::Store)?;
                }
                Ok((transaction, Taken::Handled(verdict)))
            }
            Err(trouble) => {
                self.give_up(transaction, &trouble).await;
                Err(self.troubled(item, held, trouble).await.unwrap_or_else(Ended::Store))
            }
        }
    }

    /// Reacts to the result of a commit. If the commit succeeded despite an error, the next attempt finds a duplicate.
    async fn committed(
        &self,
        item: &mut Item,
        held: Option<&Held>,
        taken: &Taken,
        committed: Result<(), StoreError>,
    ) -> Ended {
        match (committed, taken) {
            (Ok(()), Taken::Handled(verdict)) => {
                self.counted(*verdict);
                self.breakers.passed(&item.arrival.lane);
                Ended::Acknowledge
            }
            (Ok(()), Taken::Known(entered)) => {
                self.not_new(item, *entered);
                Ended::Acknowledge
            }
            (Err(error), taken) => {
                item.shares = false;
                match (Self::refused(error), taken) {
                    (Ok(trouble), Taken::Handled(_)) => {
                        self.troubled(item, held, trouble).await.unwrap_or_else(Ended::Store)
                    }
                    (Ok(trouble), Taken::Known(_)) => Ended::Store(StoreError::Broken(trouble.error.into())),
                    (Err(error), _) => Ended::Store(error),
                }
            }
        }
    }
}
