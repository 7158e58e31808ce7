//! One destination: its relays, its shards, their leases, and resharding.

use std::collections::{BTreeMap, BTreeSet};

use relevo_core::outbox::Position;
use relevo_core::outbox::leases::{HeldAddress, Lease, LeaseRequest, LeaseResponse, TakenShard};
use relevo_core::outbox::log::WindowLimit;
use relevo_core::outbox::rules::{self, LeaseClaim, ReshardStep, StoredLease};
use relevo_core::slot::shard_of;
use uuid::Uuid;

use crate::dead_letters::DeadLetterRow;
use crate::settle::{HoldRow, ParkedKey, SlotKey};
use crate::state::{Micros, micros};

/// A requested resharding and its progress.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Resharding {
    pub(crate) shards: u16,
    /// The tick that every shard must reach. `None` until each shard has finished its window.
    tick: Option<i64>,
}

/// The tables of one destination.
#[derive(Debug)]
pub(crate) struct DestinationTables {
    pub(crate) enabled: bool,
    pub(crate) members: BTreeMap<Uuid, RelayMember>,
    pub(crate) shards: Vec<ShardRow>,
    pub(crate) resharding: Option<Resharding>,
    pub(crate) parked: BTreeMap<SlotKey, ParkedKey>,
    pub(crate) held_addresses: BTreeMap<String, HoldRow>,
    /// Dead letters by the sequence number of their message.
    pub(crate) dead_letters: BTreeMap<i64, DeadLetterRow>,
    /// Queue numbers are never reused, so that a late result cannot apply to another message.
    pub(crate) queue_back: i64,
    pub(crate) queue_front: i64,
}

#[derive(Clone, Debug)]
pub(crate) struct RelayMember {
    pub(crate) until: Micros,
}

#[derive(Clone, Debug)]
pub(crate) struct ShardRow {
    pub(crate) lease: StoredLease,
    /// Insert-only, oldest first: the time of the settlement and the position.
    pub(crate) progress: Vec<(Micros, Position)>,
}

impl ShardRow {
    pub(crate) fn new(epoch: i64, position: Position, now: Micros) -> Self {
        Self { lease: StoredLease { epoch, owner: None, expires_at: 0 }, progress: vec![(now, position)] }
    }

    pub(crate) fn position(&self) -> Position {
        self.progress.last().map_or(Position::at(0), |(_, position)| position.clone())
    }
}

impl DestinationTables {
    pub(crate) fn new(shards: u16, position: Position, now: Micros) -> Self {
        Self {
            enabled: true,
            members: BTreeMap::new(),
            shards: vec![ShardRow::new(0, position, now); usize::from(shards)],
            resharding: None,
            parked: BTreeMap::new(),
            held_addresses: BTreeMap::new(),
            dead_letters: BTreeMap::new(),
            queue_back: 0,
            queue_front: 0,
        }
    }

    /// The number of shards. There are never more shards than slots.
    pub(crate) fn shard_count(&self) -> u16 {
        u16::try_from(self.shards.len()).unwrap_or(u16::MAX)
    }

    pub(crate) fn acquire_leases(&mut self, request: &LeaseRequest, now: Micros) -> LeaseResponse {
        let until = now.saturating_add(micros(request.duration));
        self.members.retain(|_, member| member.until >= now);
        self.members.insert(request.owner, RelayMember { until });
        self.free_shards(&request.release);
        self.reshard_step(now);

        let fair_share = rules::fair_share(self.shards.len(), self.members.len());
        let claim = LeaseClaim { owner: request.owner, fair_share, now, expires_at: until, renew_before: Micros::MAX };
        rules::assign_leases(self.shards.iter_mut().map(|shard| &mut shard.lease), claim);
        let holds = self.held_addresses.iter();
        let holds = holds.map(|(address, hold)| HeldAddress { address: address.clone(), error: hold.error.clone() });
        LeaseResponse {
            leases: self.leases_of(request.owner),
            taken: Vec::new(),
            duration: request.duration,
            fair_share,
            window_limit: self.window_limit(),
            held_addresses: holds.collect(),
            timeline_changed: false,
        }
    }

    fn leases_of(&self, owner: Uuid) -> Vec<Lease> {
        let shards = self.shard_count();
        let leased = (0..shards).zip(&self.shards).filter(|(_, row)| row.lease.owner == Some(owner));
        leased.map(|(shard, row)| Lease { shard, shard_count: shards, epoch: row.lease.epoch, owner }).collect()
    }

    /// Whether the lease still owns the shard. An expired lease does, as long as no other relay has taken the shard.
    pub(crate) fn is_held(&self, lease: &Lease) -> bool {
        lease.shard_count == self.shard_count()
            && self
                .shards
                .get(usize::from(lease.shard))
                .is_some_and(|row| row.lease.epoch == lease.epoch && row.lease.owner == Some(lease.owner))
    }

    /// The shards whose lease is still valid.
    pub(crate) fn held_shards(&self, leases: &[Lease]) -> BTreeSet<u16> {
        leases.iter().filter(|lease| self.is_held(lease)).map(|lease| lease.shard).collect()
    }

    fn free_shards(&mut self, leases: &[Lease]) {
        for lease in leases {
            if self.is_held(lease) {
                self.shards[usize::from(lease.shard)].lease.owner = None;
            }
        }
    }

    pub(crate) fn release_leases(&mut self, owner: Uuid) {
        self.free_shards(&self.leases_of(owner));
        self.members.remove(&owner);
    }

    pub(crate) fn taken_shards(&self, leases: &[Lease]) -> Vec<TakenShard> {
        let shards = self.shard_count();
        let known = leases.iter().filter(|lease| lease.shard_count == shards && lease.shard < shards);
        known
            .map(|lease| TakenShard {
                lease: *lease,
                position: self.shards[usize::from(lease.shard)].position(),
                parked_keys: self
                    .parked
                    .keys()
                    .filter(|key| shard_of(key.slot, shards) == lease.shard)
                    .map(|key| key.name.clone())
                    .collect(),
            })
            .collect()
    }

    pub(crate) fn request_resharding(&mut self, shards: u16) {
        self.resharding = Some(Resharding { shards, tick: None });
    }

    pub(crate) fn window_limit(&self) -> WindowLimit {
        match self.resharding {
            None => WindowLimit::Unlimited,
            Some(Resharding { tick: None, .. }) => WindowLimit::CurrentWindow,
            Some(Resharding { tick: Some(tick), .. }) => WindowLimit::UntilTick(tick),
        }
    }

    pub(crate) fn resharding_tick(&self) -> Option<i64> {
        self.resharding.and_then(|resharding| resharding.tick)
    }

    /// Performs one step of the resharding. Every lease request calls it.
    fn reshard_step(&mut self, now: Micros) {
        let Some(Resharding { shards, tick }) = self.resharding else { return };
        let positions: Vec<Position> = self.shards.iter().map(ShardRow::position).collect();
        match rules::reshard_step(tick, &positions) {
            ReshardStep::FinishWindows => {}
            ReshardStep::AdvanceTo(tick) => self.resharding = Some(Resharding { shards, tick: Some(tick) }),
            ReshardStep::Replace(tick) => {
                let epoch = self.shards.iter().map(|shard| shard.lease.epoch).max().unwrap_or(0) + 1;
                self.shards = vec![ShardRow::new(epoch, Position::at(tick), now); usize::from(shards)];
                self.resharding = None;
            }
        }
    }
}
