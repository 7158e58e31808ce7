//! The leased shards of a relay: acquiring, renewing and releasing them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use relevo_core::outbox::leases::{Lease, LeaseRequest, LeaseResponse};
use relevo_core::outbox::log::WindowLimit;
use relevo_core::outbox::{Position, RelayStore};
use relevo_core::slot::shard_of;
use relevo_core::store::StoreError;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};
use uuid::Uuid;

use crate::relay::{Pending, Relay};
use crate::status::add;
use crate::store_calls::StoreReply;

/// How often leases are released while the store is busy. Then they expire.
const RELEASE_ATTEMPTS_MAX: u32 = 5;
/// The pause between these attempts, if the store requests none.
const RELEASE_PAUSE: Duration = Duration::from_millis(200);

/// A shard leased by this relay.
#[derive(Clone, Debug)]
pub(crate) struct LeasedShard {
    pub(crate) lease: Lease,
    /// Where the next page starts.
    pub(crate) read_to: Position,
    /// The position in the store.
    pub(crate) settled_to: Position,
    /// Whether to release it as soon as none of its messages is in flight.
    pub(crate) releasing: bool,
}

/// The leased shards.
#[derive(Debug)]
pub(crate) struct Leases {
    pub(crate) owner: Uuid,
    pub(crate) shards: BTreeMap<u16, LeasedShard>,
    /// The relay publishes nothing after this time.
    pub(crate) valid_until: Instant,
    pub(crate) window_limit: WindowLimit,
}

impl Leases {
    pub(crate) const fn new(owner: Uuid, now: Instant) -> Self {
        Self { owner, shards: BTreeMap::new(), valid_until: now, window_limit: WindowLimit::Unlimited }
    }

    pub(crate) fn reset(&mut self) {
        self.shards.clear();
        self.window_limit = WindowLimit::Unlimited;
    }

    /// The shards that are not to be released.
    pub(crate) fn kept_shards(&self) -> impl Iterator<Item = &LeasedShard> {
        self.shards.values().filter(|shard| !shard.releasing)
    }

    /// The lease of a slot's shard, if this relay has it.
    pub(crate) fn of_slot(&self, slot: u16) -> Option<Lease> {
        let shard_count = self.shards.values().next()?.lease.shard_count;
        self.shards.get(&shard_of(slot, shard_count)).map(|shard| shard.lease)
    }

    fn insert(&mut self, lease: Lease, position: Position) {
        let shard = LeasedShard { lease, read_to: position.clone(), settled_to: position, releasing: false };
        self.shards.insert(lease.shard, shard);
    }

    /// Marks shards above the fair share for release, and keeps marked ones that it allows again. Returns the number of
    /// newly marked shards.
    fn balance(&mut self, fair_share: usize) -> usize {
        let excess = self.shards.len().saturating_sub(fair_share);
        let releasing = self.shards.values().filter(|shard| shard.releasing).count();
        let more = excess.saturating_sub(releasing);
        for shard in self.shards.values_mut().rev().filter(|shard| !shard.releasing).take(more) {
            shard.releasing = true;
        }
        for shard in self.shards.values_mut().filter(|shard| shard.releasing).take(releasing.saturating_sub(excess)) {
            shard.releasing = false;
        }
        more
    }
}

impl Relay {
    /// The shards to release that have no message in flight.
    fn releasable_leases(&self) -> impl Iterator<Item = Lease> {
        let releasing = self.leases.shards.values().filter(|shard| shard.releasing).map(|shard| shard.lease);
        releasing.filter(|lease| self.is_idle(lease.shard))
    }

    pub(crate) fn can_release(&self) -> bool {
        self.releasable_leases().next().is_some()
    }

    fn is_idle(&self, shard: u16) -> bool {
        // A page that is being read would be published after the shard was released.
        !self.pages.holds_shard(shard)
            && !self.parked.batches.holds_shard(shard)
            && !self.reader.shards.contains(&shard)
    }

    pub(crate) fn lease_call(&mut self, now: Instant) -> Pending<StoreReply> {
        let renew_interval = self.config.advanced.lease_renew_interval.min(self.config.lease_duration / 3);
        self.store_calls.schedule.lease = now + renew_interval;
        let released: Vec<Lease> = self.releasable_leases().collect();
        let request = LeaseRequest {
            owner: self.leases.owner,
            name: self.config.name.clone(),
            // Shorter by the renewal interval, which other relays need to notice, so that a dead relay is replaced
            // within the lease.
            duration: self.config.lease_duration.saturating_sub(renew_interval),
            held: self.leases.shards.values().map(|shard| shard.lease).collect(),
            release: released.clone(),
        };
        let store = Arc::clone(&self.store);
        Box::pin(async move {
            let result = store.acquire_leases(request).await;
            StoreReply::Leases { requested_at: now, released, result }
        })
    }

    pub(crate) fn apply_leases(&mut self, requested_at: Instant, released: &[Lease], response: LeaseResponse) {
        self.database_recovered();
        self.status.set_leased();
        add(&self.status.counters.lease_changes, released.len() + response.taken.len());
        for lease in released {
            self.leases.shards.remove(&lease.shard);
        }
        let lost = self.leases.shards.values().filter(|shard| !response.leases.contains(&shard.lease)).count();
        if lost > 0 {
            // These leases were resharded, or expired and taken, so nothing of them can be settled. Other messages in
            // flight are sent again.
            self.status.count_lost_leases(lost);
            warn!(relay = %self.config.name, lost, "leases lost, unsettled messages will be read again");
            self.discard_unsettled();
            return;
        }
        if response.timeline_changed {
            warn!(
                relay = %self.config.name,
                "PostgreSQL timeline changed (failover or restore): published messages may be missing from the outbox"
            );
        }
        self.leases.valid_until = requested_at + response.duration.saturating_sub(self.config.advanced.lease_margin);
        self.leases.window_limit = response.window_limit;
        self.parked.held.replace_stored(response.held_addresses);
        if response.window_limit != WindowLimit::Unlimited {
            // Resharding waits for every relay. Check again soon, and let empty windows be settled.
            let schedule = &mut self.store_calls.schedule;
            schedule.lease = schedule.lease.min(requested_at + self.config.advanced.parked_poll_interval);
            schedule.settle = requested_at;
        }
        for shard in response.taken {
            for key in &shard.parked_keys {
                self.parked.keys.insert(key);
            }
            self.leases.insert(shard.lease, shard.position);
            self.reader.next_at = requested_at;
        }
        // Other relays hold all shards, so there is nothing to send here.
        self.reader.caught_up |= self.leases.shards.is_empty();
        let shards = self.leases.balance(response.fair_share);
        if shards > 0 {
            info!(relay = %self.config.name, shards, "releasing shards for another relay");
        }
    }

    pub(crate) fn release_call(&self) -> Pending<StoreReply> {
        release_leases(Arc::clone(&self.store), self.leases.owner, Duration::ZERO)
    }

    /// After a pause, releases the leases that the former owner may still hold. Leases are then acquired by a new owner.
    pub(crate) fn release_after(&mut self, pause: Duration) -> Pending<StoreReply> {
        let former = std::mem::replace(&mut self.leases.owner, self.random.uuid());
        release_leases(Arc::clone(&self.store), former, pause)
    }
}

fn release_leases(store: Arc<dyn RelayStore>, owner: Uuid, pause: Duration) -> Pending<StoreReply> {
    Box::pin(async move {
        sleep(pause).await;
        let mut result = store.release_leases(owner).await;
        for _ in 1..RELEASE_ATTEMPTS_MAX {
            let Err(StoreError::Busy { retry_after, .. }) = &result else { break };
            sleep(retry_after.unwrap_or(RELEASE_PAUSE)).await;
            result = store.release_leases(owner).await;
        }
        if let Err(error) = result {
            warn!(error = &error as &dyn std::error::Error, "leases could not be released, they will expire");
        }
        StoreReply::Released
    })
}
