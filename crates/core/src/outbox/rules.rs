//! Rules that several stores share. They have no I/O, so that a store without functions in its database can call them.

use std::collections::BTreeSet;

use uuid::Uuid;

use crate::AfterDead;
use crate::outbox::Position;
use crate::outbox::leases::Lease;
use crate::outbox::log::{ParkAction, ParkedMessage, PublishFailure, Settlement};

#[cfg(test)]
mod tests;

/// The shards that a page is read for, among those requested: the ones at the oldest position, so that shards that lag
/// behind catch up and are read together with the others again. Shards inside a window come before those that need a
/// new one.
pub fn oldest_group(shards: &[(Lease, Position)]) -> Option<(&Position, Vec<Lease>)> {
    let age = |position: &Position| {
        (position.is_exhausted(), position.from_tick(), position.to_tick(), position.settled_seq())
    };
    let oldest = shards.iter().map(|(_, position)| position).min_by_key(|position| age(position))?;
    Some((oldest, shards.iter().filter(|(_, position)| position == oldest).map(|(lease, _)| *lease).collect()))
}

/// The position at the start of a window that ends at this tick. Without a newer tick, nothing can be read.
pub fn open_window(after: &Position, to_tick: i64) -> Position {
    Position::in_window(after.from_tick(), to_tick.max(after.from_tick()), 0)
}

/// The number of shards that each relay should hold.
pub fn fair_share(shards: usize, live_relays: usize) -> usize {
    shards.div_ceil(live_relays.max(1))
}

/// The stored lease of one shard. Times are those of the store's clock, in its unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredLease {
    /// Increases with every change of owner.
    pub epoch: i64,
    /// The relay that holds or held the lease.
    pub owner: Option<Uuid>,
    /// When another relay may take it.
    pub expires_at: i64,
}

impl StoredLease {
    /// Whether any relay may take the shard.
    pub const fn is_free(&self, now: i64) -> bool {
        self.owner.is_none() || self.expires_at < now
    }
}

/// What a relay may lease.
#[derive(Clone, Copy, Debug)]
pub struct LeaseClaim {
    /// The relay's random token.
    pub owner: Uuid,
    /// Its fair share, in shards.
    pub fair_share: usize,
    /// The time of the store's clock.
    pub now: i64,
    /// When its leases expire.
    pub expires_at: i64,
    /// Its leases that expire before this time are renewed.
    pub renew_before: i64,
}

/// Renews the leases of a relay, and takes free shards up to its fair share. Returns the indexes of the changed leases.
///
/// An expired lease that no other relay took is renewed with the same epoch. The fair share does not limit renewals:
/// a relay releases by itself what exceeds it.
pub fn assign_leases<'a>(leases: impl IntoIterator<Item = &'a mut StoredLease>, claim: LeaseClaim) -> Vec<usize> {
    let mut leases: Vec<&mut StoredLease> = leases.into_iter().collect();
    let mut held = leases.iter().filter(|lease| lease.owner == Some(claim.owner)).count();
    let mut changed = Vec::new();
    for (index, lease) in leases.iter_mut().enumerate() {
        if lease.owner == Some(claim.owner) {
            if lease.expires_at >= claim.renew_before {
                continue;
            }
        } else if lease.is_free(claim.now) && held < claim.fair_share {
            lease.epoch += 1;
            lease.owner = Some(claim.owner);
            held += 1;
        } else {
            continue;
        }
        lease.expires_at = claim.expires_at;
        changed.push(index);
    }
    changed
}

/// The next step of a resharding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReshardStep {
    /// Some shards have not finished their windows.
    FinishWindows,
    /// Every shard must reach this tick.
    AdvanceTo(i64),
    /// All shards are there. Replace them by the new ones, which start at this tick.
    Replace(i64),
}

/// Chooses the next step of a resharding from the tick that shards have to reach, if it is chosen already, and the
/// positions of all shards.
pub fn reshard_step(tick: Option<i64>, positions: &[Position]) -> ReshardStep {
    if tick.is_none() && !positions.iter().all(Position::is_exhausted) {
        return ReshardStep::FinishWindows;
    }
    // An owner that did not know of the resharding may have advanced further. The other shards follow it.
    let furthest = positions.iter().map(Position::to_tick).max().unwrap_or(0);
    let tick = tick.map_or(furthest, |tick| tick.max(furthest));
    if positions.iter().all(|position| position.is_exhausted() && position.from_tick() == tick) {
        ReshardStep::Replace(tick)
    } else {
        ReshardStep::AdvanceTo(tick)
    }
}

/// What becomes of one message that a settlement parks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParkStep<'a> {
    /// It waits at the end of its key's queue.
    Queue,
    /// It is dead-lettered, and its key continues.
    DeadLetter(&'a PublishFailure),
    /// Its key is parked with this message as the first of the queue.
    ParkKey(&'a PublishFailure),
    /// It is dead-lettered, and its key is parked until an operator decides.
    ParkKeyBehindDeadLetter(&'a PublishFailure),
}

/// Chooses what becomes of a message. `is_parked` says whether its key is parked already, also by an earlier message of
/// the same settlement.
pub fn park_step(message: &ParkedMessage, is_parked: bool) -> ParkStep<'_> {
    match &message.failure {
        None => ParkStep::Queue,
        Some(failure) => match failure.action {
            ParkAction::DeadLetter(AfterDead::Continue) => ParkStep::DeadLetter(failure),
            // Even a permanently failed message waits its turn. Dead-lettered now, it would free the key when the head
            // leaves.
            _ if is_parked => ParkStep::Queue,
            ParkAction::DeadLetter(AfterDead::Hold) => ParkStep::ParkKeyBehindDeadLetter(failure),
            ParkAction::Retry { .. } | ParkAction::HoldAddress { .. } | ParkAction::Quarantine { .. } => {
                ParkStep::ParkKey(failure)
            }
        },
    }
}

/// The messages that should wait behind a head that is no longer parked. Nothing of their shards may be settled: the
/// relay reads them again.
pub fn reread<'a>(
    messages: impl IntoIterator<Item = &'a ParkedMessage>,
    is_parked: impl Fn(&ParkedMessage) -> bool,
) -> Vec<i64> {
    let mut new_heads = BTreeSet::new();
    let mut seqs = Vec::new();
    for message in messages {
        match park_step(message, false) {
            ParkStep::Queue if !new_heads.contains(&message.key) && !is_parked(message) => seqs.push(message.seq),
            ParkStep::Queue | ParkStep::DeadLetter(_) => {}
            ParkStep::ParkKey(_) | ParkStep::ParkKeyBehindDeadLetter(_) => {
                new_heads.insert(&message.key);
            }
        }
    }
    seqs
}

/// A message that is parked although its shard is not settled. No correct relay sends one.
pub fn message_of_another_shard(settlement: &Settlement) -> Option<&ParkedMessage> {
    let is_settled =
        |message: &ParkedMessage| settlement.progress.iter().any(|(lease, _)| lease.has_slot(message.slot));
    settlement.parked.iter().find(|message| !is_settled(message))
}
