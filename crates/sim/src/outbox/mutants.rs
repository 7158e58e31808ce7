//! Relays that are broken on purpose, through their ports, to prove that the oracles detect the fault.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use relevo_core::broker::OutcomeReceiver;
use relevo_core::outbox::RelayStore;
use relevo_core::outbox::leases::{Lease, LeaseRequest, LeaseResponse, ShardLeases};
use relevo_core::outbox::log::{OutboxReader, Page, PageRequest, ReadShard, SettleResult, Settlement};
use relevo_core::outbox::maintenance::{Maintenance, MaintenanceReport};
use relevo_core::outbox::parked::{ParkedBatch, ParkedReader, ParkedResult, ParkedSettlement};
use relevo_core::store::StoreError;
use relevo_core::{Broker, Capabilities, Class, Failure, OutcomeSender, Publication};
use uuid::Uuid;

relevo_core::text_enum! {
    /// One fault of a relay.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Mutant {
        /// Applies a sequence floor to the next window, so that late commits below it are lost.
        CarryFloor = "carry-floor",
        /// Settles sent messages before they are confirmed.
        SettleBeforeConfirm = "settle-before-confirm",
        /// Settles under the current lease, even if another relay owns it.
        IgnoreEpoch = "ignore-epoch",
        /// Does not know which keys are parked.
        OvertakeParked = "overtake-parked",
        /// Counts an outage as an attempt.
        CountOutages = "count-outages",
        /// Sends several messages of a key at once to a broker that does not guarantee order in flight.
        ReorderKey = "reorder-key",
    }
}

impl Mutant {
    /// The promise that the mutant breaks.
    pub const fn breaks(self) -> &'static str {
        match self {
            Self::CarryFloor | Self::SettleBeforeConfirm => "P1",
            Self::IgnoreEpoch => "P8",
            Self::OvertakeParked | Self::ReorderKey => "P3",
            Self::CountOutages => "P5",
        }
    }
}

/// A store with the fault of a mutant.
pub struct MutantStore {
    inner: Arc<dyn RelayStore>,
    mutant: Mutant,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The current window of each lease, the floor below it, and the highest number read in it.
    floors: BTreeMap<Lease, (i64, i64, i64)>,
    current: BTreeMap<u16, Lease>,
}

impl MutantStore {
    /// Wraps a store with a fault.
    pub fn new(inner: Arc<dyn RelayStore>, mutant: Mutant) -> Self {
        Self { inner, mutant, state: Mutex::default() }
    }

    fn current(&self, lease: Lease) -> Lease {
        let state = self.state.lock();
        let current = state.current.get(&lease.shard).filter(|current| current.shard_count == lease.shard_count);
        current.copied().unwrap_or(lease)
    }

    fn drop_below_floor(&self, page: &mut Page) {
        let mut state = self.state.lock();
        for ReadShard { lease, start, .. } in &page.shards {
            let window = start.from_tick();
            let (known, floor, high) = state.floors.entry(*lease).or_insert((window, 0, 0));
            if *known != window {
                (*known, *floor) = (window, *high);
            }
        }
        page.entries.retain(|entry| {
            let in_shard = |lease: &Lease| lease.has_slot(entry.slot);
            let read = page.shards.iter().find(|read| in_shard(&read.lease));
            let Some((_, floor, high)) = read.and_then(|read| state.floors.get_mut(&read.lease)) else { return true };
            *high = entry.seq.max(*high);
            entry.seq > *floor
        });
    }
}

#[async_trait]
impl ShardLeases for MutantStore {
    async fn acquire_leases(&self, request: LeaseRequest) -> Result<LeaseResponse, StoreError> {
        let mut response = self.inner.acquire_leases(request).await?;
        if self.mutant == Mutant::OvertakeParked {
            for shard in &mut response.taken {
                shard.parked_keys.clear();
            }
        }
        self.state.lock().current.extend(response.leases.iter().map(|lease| (lease.shard, *lease)));
        Ok(response)
    }

    async fn release_leases(&self, owner: Uuid) -> Result<(), StoreError> {
        self.inner.release_leases(owner).await
    }
}

#[async_trait]
impl OutboxReader for MutantStore {
    async fn read(&self, read: PageRequest<'_>) -> Result<Page, StoreError> {
        let mut page = self.inner.read(read).await?;
        if self.mutant == Mutant::CarryFloor {
            self.drop_below_floor(&mut page);
        }
        Ok(page)
    }

    async fn settle(&self, mut settlement: Settlement) -> Result<SettleResult, StoreError> {
        if self.mutant == Mutant::IgnoreEpoch {
            for (lease, _) in &mut settlement.progress {
                *lease = self.current(*lease);
            }
        }
        let only_behind = !settlement.parked.is_empty() && settlement.parked.iter().all(|park| park.failure.is_none());
        if self.mutant == Mutant::OvertakeParked && only_behind {
            // Pretends that their head is no longer parked. They are read again, and the relay does not know that they
            // must wait.
            let reread = settlement.parked.iter().map(|park| park.seq).collect();
            return Ok(SettleResult { lost_shards: Vec::new(), reread });
        }
        self.inner.settle(settlement).await
    }
}

#[async_trait]
impl ParkedReader for MutantStore {
    async fn read_parked(
        &self,
        leases: &[Lease],
        keys: usize,
        messages: usize,
    ) -> Result<Vec<ParkedBatch>, StoreError> {
        self.inner.read_parked(leases, keys, messages).await
    }

    async fn settle_parked(&self, mut settlements: Vec<ParkedSettlement>) -> Result<Vec<ParkedResult>, StoreError> {
        if self.mutant == Mutant::IgnoreEpoch {
            for settlement in &mut settlements {
                settlement.lease = self.current(settlement.lease);
            }
        }
        self.inner.settle_parked(settlements).await
    }
}

#[async_trait]
impl Maintenance for MutantStore {
    async fn maintain(&self, budget: Duration) -> Result<MaintenanceReport, StoreError> {
        self.inner.maintain(budget).await
    }
}

/// A broker connection that may contain the fault of a mutant.
pub struct MutantBroker<B> {
    inner: B,
    mutant: Option<Mutant>,
}

impl<B: Broker> MutantBroker<B> {
    /// Wraps a connection. Without a mutant, it behaves normally.
    pub const fn new(inner: B, mutant: Option<Mutant>) -> Self {
        Self { inner, mutant }
    }
}

#[async_trait]
impl<B: Broker> Broker for MutantBroker<B> {
    fn capabilities(&self) -> Capabilities {
        let honest = self.inner.capabilities();
        Capabilities { ordered_in_flight: honest.ordered_in_flight || self.mutant == Some(Mutant::ReorderKey) }
    }

    fn is_unreachable(&self) -> bool {
        self.inner.is_unreachable()
    }

    async fn publish(&self, batch: &[Publication], confirms: &OutcomeSender) {
        match self.mutant {
            Some(Mutant::SettleBeforeConfirm) => {
                confirms.report_all((0..batch.len()).map(|index| (index, Ok(()))));
                self.inner.publish(batch, &OutcomeReceiver::default().sender(0)).await;
            }
            Some(Mutant::CountOutages) => {
                let reports = OutcomeReceiver::default();
                self.inner.publish(batch, &reports.sender(0)).await;
                confirms.report_all(reports.take().into_iter().map(|(_, index, outcome)| match outcome {
                    Err(failure) if failure.class() == Class::Outage => {
                        (index, Err(Failure::new(Class::Transient, "an outage")))
                    }
                    outcome => (index, outcome),
                }));
            }
            Some(Mutant::ReorderKey) => {
                // Each message on its own, the last one first, so that nothing keeps the order of a key.
                let calls = batch.chunks(1).enumerate().rev().map(|(index, publication)| async move {
                    let reports = OutcomeReceiver::default();
                    self.inner.publish(publication, &reports.sender(0)).await;
                    confirms.report_all(reports.take().into_iter().map(|(_, _, outcome)| (index, outcome)));
                });
                join_all(calls).await;
            }
            Some(Mutant::CarryFloor | Mutant::IgnoreEpoch | Mutant::OvertakeParked) | None => {
                self.inner.publish(batch, confirms).await;
            }
        }
    }
}

/// Waits for all futures concurrently.
async fn join_all<F: Future<Output = ()> + Send>(futures: impl Iterator<Item = F>) {
    let mut open: Vec<_> = futures.map(Box::pin).collect();
    std::future::poll_fn(|context| {
        open.retain_mut(|future| future.as_mut().poll(context).is_pending());
        if open.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
}
