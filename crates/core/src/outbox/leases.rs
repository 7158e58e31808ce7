//! Called by the relay: which shards it may read and settle.

use std::time::Duration;

use async_trait::async_trait;
use bytestring::ByteString;
use uuid::Uuid;

use crate::outbox::Position;
use crate::outbox::log::WindowLimit;
use crate::slot::shard_of;
use crate::store::StoreError;

/// The right to read and settle one shard of one destination, until it expires or another relay takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lease {
    /// The shard.
    pub shard: u16,
    /// The number of shards. Resharding changes it and revokes every lease.
    pub shard_count: u16,
    /// Increases with every change of owner.
    pub epoch: i64,
    /// Random for each owner, because two owners may hold equal epochs after a failover.
    pub owner: Uuid,
}

impl Lease {
    /// Whether messages of this slot belong to the shard.
    pub fn has_slot(&self, slot: u16) -> bool {
        shard_of(slot, self.shard_count) == self.shard
    }
}

/// A relay's request to acquire and renew leases.
#[derive(Clone, Debug)]
pub struct LeaseRequest {
    /// The relay's random token.
    pub owner: Uuid,
    /// The relay's name, for operators.
    pub name: String,
    /// The lease duration from now.
    pub duration: Duration,
    /// The leases that the relay knows it holds. The reply has the state of every other lease of this owner.
    pub held: Vec<Lease>,
    /// Shards to release, because their work is finished.
    pub release: Vec<Lease>,
}

/// The leases of a relay.
#[derive(Clone, Debug, Default)]
pub struct LeaseResponse {
    /// Every lease of this owner, renewed.
    pub leases: Vec<Lease>,
    /// The state of the leases that the request does not name as held.
    pub taken: Vec<TakenShard>,
    /// The duration of all leases, counted from the request.
    pub duration: Duration,
    /// The fair share of this relay, in shards. It should release more than that.
    pub fair_share: usize,
    /// How far windows may extend.
    pub window_limit: WindowLimit,
    /// Addresses that reject every message at the moment.
    pub held_addresses: Vec<HeldAddress>,
    /// The database moved to another timeline, so a message published earlier may have no row.
    pub timeline_changed: bool,
}

/// An address that rejects every message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldAddress {
    /// The address.
    pub address: String,
    /// The error text.
    pub error: String,
}

/// The state of a newly leased shard.
#[derive(Clone, Debug)]
pub struct TakenShard {
    /// Its lease.
    pub lease: Lease,
    /// Its progress.
    pub position: Position,
    /// Its parked keys.
    pub parked_keys: Vec<ByteString>,
}

/// Shard leases of one outbox and one destination.
#[async_trait]
pub trait ShardLeases: Send + Sync {
    /// Releases the given leases, renews those of this owner, and acquires free or expired shards up to its fair share.
    /// The epoch of every acquired shard increases. Each shard changes completely or not at all.
    ///
    /// The state of a taken shard is read after its lease was acquired, so that it includes everything a former owner
    /// settled. After an error, also after [`StoreError::Busy`], shards may have been acquired; the next call reports
    /// them as taken.
    async fn acquire_leases(&self, request: LeaseRequest) -> Result<LeaseResponse, StoreError>;

    /// Frees every lease of this owner, including those it does not know of because a reply was lost. Removes the owner
    /// from the list of relays.
    async fn release_leases(&self, owner: Uuid) -> Result<(), StoreError>;
}
