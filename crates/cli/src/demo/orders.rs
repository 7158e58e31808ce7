//! The sample service: orders that change their state, each change in a transaction that also emits a message.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Result;
use relevo_core::MessageId;
use relevo_store_memory::{Draft, Outbox, Transaction};
use tokio::time::{interval, sleep};
use tokio_util::sync::CancellationToken;

use super::ledger::Ledger;
use super::random::Random;
use super::trouble::Poisoner;

/// How many orders there are, `order-1` first.
pub(crate) const ORDERS: u32 = 40;
/// One transaction in so many rolls back.
pub(crate) const ROLLBACKS: u32 = 20;

/// What became of an order last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Placed,
    Paid,
    Shipped,
}

/// One row of the service's table.
#[derive(Clone, Copy, Debug)]
struct Order {
    number: u32,
    /// How often it was placed.
    round: u32,
    state: State,
}

impl Order {
    fn next(self) -> Self {
        match self.state {
            State::Placed => Self { state: State::Paid, ..self },
            State::Paid => Self { state: State::Shipped, ..self },
            State::Shipped => Self { state: State::Placed, round: self.round + 1, ..self },
        }
    }

    fn draft(self) -> Draft {
        let kind = match self.state {
            State::Placed => "OrderPlaced",
            State::Paid => "OrderPaid",
            State::Shipped => "OrderShipped",
        };
        let payload = format!(r#"{{"order":{},"round":{}}}"#, self.number, self.round);
        Draft::new("orders", key(self.number), kind, payload)
    }
}

/// An order's key.
pub(crate) fn key(number: u32) -> String {
    format!("order-{number}")
}

/// The service's table.
#[derive(Debug)]
pub(crate) struct Orders(Mutex<Vec<Option<Order>>>);

impl Default for Orders {
    fn default() -> Self {
        let order = |number| Some(Order { number, round: 0, state: State::Shipped });
        Self(Mutex::new((1..=ORDERS).map(order).collect()))
    }
}

impl Orders {
    /// Locks a row that nobody holds, as `SELECT … FOR UPDATE SKIP LOCKED` does: it is gone until it is put back.
    fn lock(&self, from: u32) -> Option<Order> {
        let mut rows = self.rows();
        let (before, after) = rows.split_at_mut(from as usize);
        after.iter_mut().chain(before).find_map(Option::take)
    }

    /// Unlocks a row, changed or as it was.
    fn unlock(&self, order: Order) {
        self.rows()[order.number as usize - 1] = Some(order);
    }

    fn rows(&self) -> MutexGuard<'_, Vec<Option<Order>>> {
        // Nothing panics while it is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One of the service's processes.
#[derive(Debug)]
pub(crate) struct Writer {
    pub(crate) outbox: Outbox,
    pub(crate) orders: Arc<Orders>,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) poisoner: Arc<Poisoner>,
    pub(crate) random: Random,
    /// From one transaction to the next.
    pub(crate) period: Duration,
    /// One transaction in so many takes its time before it ends.
    pub(crate) slow_one_in: u32,
}

impl Writer {
    /// Writes until it is told to stop; a transaction is never cut in two.
    pub(crate) async fn run(mut self, stop: CancellationToken) -> Result<()> {
        let mut ticks = interval(self.period);
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(()),
                _ = ticks.tick() => {}
            }
            // What rolled back is tried again, as an application would.
            while !self.change_an_order().await? {}
        }
    }

    /// Changes an order and emits that it did, in one transaction; says whether it committed.
    async fn change_an_order(&mut self) -> Result<bool> {
        let order = self.orders.lock(self.random.below(ORDERS)).expect("there are more orders than writers");
        let changed = order.next();
        let mut transaction = self.outbox.begin();
        let id = transaction.emit(changed.draft())?;
        if self.random.one_in(self.slow_one_in) {
            // Others begin and commit meanwhile, so that messages commit in another order than they were emitted in.
            sleep(Duration::from_millis(1 + u64::from(self.random.below(8)))).await;
        }
        if self.random.one_in(ROLLBACKS) {
            transaction.rollback();
            self.ledger.rolled_back(id);
            self.orders.unlock(order);
            return Ok(false);
        }
        self.commit(transaction, id, changed)?;
        Ok(true)
    }

    fn commit(&self, transaction: Transaction, id: MessageId, changed: Order) -> Result<()> {
        self.poisoner.may_poison(id);
        self.ledger.commits(id);
        transaction.commit()?;
        self.ledger.committed(id, changed.number);
        self.orders.unlock(changed);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_placed_paid_and_shipped_and_then_placed_anew() {
        let mut order = Order { number: 7, round: 0, state: State::Shipped };
        let kinds: Vec<_> = std::iter::repeat_with(|| {
            order = order.next();
            (order.draft().kind, order.round)
        })
        .take(4)
        .collect();
        let expected = [("OrderPlaced", 1), ("OrderPaid", 1), ("OrderShipped", 1), ("OrderPlaced", 2)];
        assert_eq!(kinds, expected.map(|(kind, round)| (kind.to_owned(), round)));
    }

    #[test]
    fn a_locked_order_is_nobody_elses() {
        let orders = Orders::default();
        let first = orders.lock(39).unwrap();
        let second = orders.lock(39).unwrap();
        assert_eq!((first.number, second.number), (40, 1));
        orders.unlock(first);
        assert_eq!(orders.lock(39).unwrap().number, 40);
    }
}
