//! One destination: its relays, its shards and their leases.

use std::collections::{BTreeMap, BTreeSet};

use relevo_core::slot::shard_of;
use relevo_core::store::{Ask, Hold, Lease, Leased, Position, Standing};
use uuid::Uuid;

use crate::dead::Letter;
use crate::parking::{Header, HeldAddress, Key};
use crate::regroup::Regroup;
use crate::state::{Micros, micros};

/// The tables of one destination.
#[derive(Debug)]
pub(crate) struct Destination {
    pub(crate) on: bool,
    pub(crate) members: BTreeMap<Uuid, Member>,
    pub(crate) shards: Vec<Shard>,
    pub(crate) regroup: Option<Regroup>,
    pub(crate) parked: BTreeMap<Key, Header>,
    pub(crate) holds: BTreeMap<String, HeldAddress>,
    /// Dead letters by the sequence number of their message.
    pub(crate) dead: BTreeMap<i64, Letter>,
    /// Queue numbers are never reused, so that a late result cannot apply to another message.
    pub(crate) queue_back: i64,
    pub(crate) queue_front: i64,
}

#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) until: Micros,
}

#[derive(Clone, Debug)]
pub(crate) struct Shard {
    pub(crate) epoch: i64,
    pub(crate) owner: Option<Uuid>,
    until: Micros,
    /// Insert-only, oldest first: the time of the settlement and the position.
    pub(crate) progress: Vec<(Micros, Position)>,
}

impl Shard {
    pub(crate) fn new(epoch: i64, position: Position, now: Micros) -> Self {
        Self { epoch, owner: None, until: 0, progress: vec![(now, position)] }
    }

    pub(crate) fn position(&self) -> Position {
        self.progress.last().map_or(Position::at(0), |(_, position)| *position)
    }
}

impl Destination {
    pub(crate) fn new(shards: u16, position: Position, now: Micros) -> Self {
        Self {
            on: true,
            members: BTreeMap::new(),
            shards: vec![Shard::new(0, position, now); usize::from(shards)],
            regroup: None,
            parked: BTreeMap::new(),
            holds: BTreeMap::new(),
            dead: BTreeMap::new(),
            queue_back: 0,
            queue_front: 0,
        }
    }

    /// The number of shards. There are never more shards than slots.
    pub(crate) fn count(&self) -> u16 {
        u16::try_from(self.shards.len()).unwrap_or(u16::MAX)
    }

    pub(crate) fn lease(&mut self, ask: &Ask, now: Micros) -> Leased {
        let until = now.saturating_add(micros(ask.lease));
        self.members.retain(|_, member| member.until > now);
        self.members.insert(ask.owner, Member { until });
        self.free(&ask.give_back);
        self.regroup_step(now);

        let fair = self.shards.len().div_ceil(self.members.len());
        let mut held = 0;
        for shard in self.shards.iter_mut().filter(|shard| shard.owner == Some(ask.owner)) {
            shard.until = until;
            held += 1;
        }
        for shard in &mut self.shards {
            if held < fair && (shard.owner.is_none() || shard.until <= now) {
                *shard = Shard { epoch: shard.epoch + 1, owner: Some(ask.owner), until, ..shard.clone() };
                held += 1;
            }
        }
        let holds = self.holds.iter();
        let holds = holds.map(|(address, held)| Hold { address: address.clone(), error: held.error.clone() });
        Leased {
            leases: self.leases_of(ask.owner),
            lasts: ask.lease,
            fair,
            ceiling: self.ceiling(),
            holds: holds.collect(),
            timeline_changed: false,
        }
    }

    fn leases_of(&self, owner: Uuid) -> Vec<Lease> {
        let shards = self.count();
        let held = (0..shards).zip(&self.shards).filter(|(_, row)| row.owner == Some(owner));
        held.map(|(shard, row)| Lease { shard, shards, epoch: row.epoch, owner }).collect()
    }

    /// Whether the lease still owns the shard. An expired lease does, as long as no other relay has taken the shard.
    pub(crate) fn is_held(&self, lease: &Lease) -> bool {
        lease.shards == self.count()
            && self
                .shards
                .get(usize::from(lease.shard))
                .is_some_and(|row| row.epoch == lease.epoch && row.owner == Some(lease.owner))
    }

    /// The shards whose lease is still valid.
    pub(crate) fn held_shards(&self, leases: &[Lease]) -> BTreeSet<u16> {
        leases.iter().filter(|lease| self.is_held(lease)).map(|lease| lease.shard).collect()
    }

    fn free(&mut self, leases: &[Lease]) {
        for lease in leases {
            if self.is_held(lease) {
                self.shards[usize::from(lease.shard)].owner = None;
            }
        }
    }

    pub(crate) fn leave(&mut self, owner: Uuid) {
        self.free(&self.leases_of(owner));
        self.members.remove(&owner);
    }

    pub(crate) fn standing(&self, leases: &[Lease]) -> Vec<Standing> {
        let shards = self.count();
        let known = leases.iter().filter(|lease| lease.shards == shards && lease.shard < shards);
        known
            .map(|lease| Standing {
                shard: lease.shard,
                position: self.shards[usize::from(lease.shard)].position(),
                parked: self
                    .parked
                    .keys()
                    .filter(|key| shard_of(key.slot, shards) == lease.shard)
                    .map(|key| key.name.clone())
                    .collect(),
            })
            .collect()
    }
}
