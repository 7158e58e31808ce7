//! What the demo's writers, operator and far side tell as it happens.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use relevo_core::MessageId;
use tokio::time::Instant;

use super::promises::Record;

/// Everything that was told. It keeps all of it, so that the promises can be checked at the end.
#[derive(Debug, Default)]
pub(crate) struct Ledger(Mutex<Told>);

#[derive(Debug, Default)]
struct Told {
    record: Record,
    /// When messages committed that are still under way, dead letters among them.
    under_way: HashMap<MessageId, Instant>,
    /// From commit to receipt, of every message.
    latencies: Vec<Duration>,
    /// How many of them were looked at before.
    looked: usize,
    redriven: u64,
}

/// The middle and the slowest of some latencies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Latency {
    pub(crate) p50: Duration,
    pub(crate) p99: Duration,
}

/// What the demo did as a whole.
#[derive(Debug)]
pub(crate) struct Sums {
    pub(crate) record: Record,
    pub(crate) latency: Latency,
    pub(crate) redriven: u64,
}

impl Ledger {
    /// A transaction is about to commit: it may be received before its writer hears of it.
    pub(crate) fn commits(&self, id: MessageId) {
        self.told().under_way.insert(id, Instant::now());
    }

    /// A transaction has committed; told while its order is still locked, so that commit order is known.
    pub(crate) fn committed(&self, id: MessageId, order: u32) {
        self.told().record.committed.push((id, order));
    }

    /// A transaction has rolled back.
    pub(crate) fn rolled_back(&self, id: MessageId) {
        self.told().record.rolled_back.insert(id);
    }

    /// The far side has it.
    pub(crate) fn received(&self, id: MessageId) {
        let mut told = self.told();
        told.record.received.push(id);
        if let Some(committed) = told.under_way.remove(&id) {
            told.latencies.push(committed.elapsed());
        }
    }

    /// A dead letter was given up.
    pub(crate) fn discarded(&self, id: MessageId) {
        let mut told = self.told();
        told.record.discarded.insert(id);
        told.under_way.remove(&id);
    }

    /// Dead letters go out again.
    pub(crate) fn redriven(&self, letters: u64) {
        self.told().redriven += letters;
    }

    /// Messages that committed and are neither received nor discarded.
    pub(crate) fn backlog(&self) -> usize {
        self.told().under_way.len()
    }

    /// How many messages were received since the last look, and how long they took.
    pub(crate) fn look(&self) -> (usize, Latency) {
        let mut told = self.told();
        let mut fresh = told.latencies[told.looked..].to_vec();
        told.looked = told.latencies.len();
        drop(told);
        (fresh.len(), Latency::of(&mut fresh))
    }

    /// How many different messages were received.
    pub(crate) fn receipts(&self) -> usize {
        self.told().latencies.len()
    }

    /// Takes everything out.
    pub(crate) fn close(&self) -> Sums {
        let mut told = std::mem::take(&mut *self.told());
        Sums { record: told.record, latency: Latency::of(&mut told.latencies), redriven: told.redriven }
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        // Nothing panics while it is held.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Latency {
    fn of(latencies: &mut [Duration]) -> Self {
        latencies.sort_unstable();
        let at = |percent: usize| {
            let rank = (latencies.len() * percent).div_ceil(100);
            latencies.get(rank.saturating_sub(1)).copied().unwrap_or_default()
        };
        Self { p50: at(50), p99: at(99) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_nearest_rank() {
        let mut latencies: Vec<_> = (1..=200).rev().map(Duration::from_millis).collect();
        let expected = Latency { p50: Duration::from_millis(100), p99: Duration::from_millis(198) };
        assert_eq!(Latency::of(&mut latencies), expected);
        assert_eq!(Latency::of(&mut []), Latency::default());
    }

    #[tokio::test]
    async fn a_message_is_under_way_until_it_is_received_or_discarded() {
        let ledger = Ledger::default();
        let ids = [1, 2].map(|number| MessageId::v7(number, [0; 10]));
        for id in ids {
            ledger.commits(id);
            ledger.committed(id, 1);
        }
        ledger.received(ids[0]);
        ledger.received(ids[0]);
        assert_eq!((ledger.backlog(), ledger.receipts()), (1, 1));
        ledger.discarded(ids[1]);
        assert_eq!(ledger.backlog(), 0);
        assert_eq!(ledger.close().record.received.len(), 2);
    }
}
