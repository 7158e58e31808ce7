//! Members of a consumer: their heartbeats, and the operator commands that they receive.

use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use uuid::Uuid;

use super::LaneLease;
use crate::broker_consumer::Lane;
use crate::store::StoreError;

/// The heartbeat of a member.
#[derive(Clone, Debug)]
pub struct Heartbeat {
    /// A random token, new for each process.
    pub owner: Uuid,
    /// The member's name, for operators.
    pub name: String,
    /// How long the member counts as alive from now.
    pub ttl: Duration,
    /// The lanes that it owns. Everything up to the number is settled at the broker.
    pub settled_offsets: Vec<(Lane, Option<u64>)>,
    /// When it last received a message.
    pub last_message_at: Option<Timestamp>,
    /// Lanes whose breaker is open, with the reason.
    pub breakers: Vec<(Lane, String)>,
}

/// Operator commands for a member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeartbeatReply {
    /// An operator paused the whole consumer.
    pub paused: bool,
    /// Lanes that an operator paused.
    pub paused_lanes: Vec<Lane>,
    /// Lanes whose breaker an operator forced open (`true`) or closed (`false`).
    pub breaker_overrides: Vec<(Lane, bool)>,
    /// Another member counted this one as dead, and may have taken its lanes.
    pub expired: bool,
}

/// Members, their lanes, and pruning.
#[async_trait]
pub trait InboxMembers: Send + Sync {
    /// Records a heartbeat and returns the operator commands for the member.
    async fn heartbeat(&self, heartbeat: &Heartbeat) -> Result<HeartbeatReply, StoreError>;

    /// Acquires lanes for a living member. It gets lanes that it already owns, free lanes, and lanes whose owner is dead
    /// and has no open transaction. The epoch of a lane increases with every change of owner. Lanes of other members
    /// are not returned.
    async fn acquire_lanes(&self, owner: Uuid, lanes: &[Lane]) -> Result<Vec<LaneLease>, StoreError>;

    /// Frees lanes of a living member, because the broker has assigned them to another one. Does not change lanes of
    /// other owners. May wait for open transactions that hold the lanes.
    async fn release_lanes(&self, owner: Uuid, lanes: &[Lane]) -> Result<(), StoreError>;

    /// Frees the lanes of a member and deletes the member.
    async fn leave(&self, owner: Uuid) -> Result<(), StoreError>;

    /// Deletes expired rows, at most `limit` of each kind: done or skipped messages, and discarded or redriven dead
    /// letters. Returns whether more are left.
    async fn prune(&self, limit: usize) -> Result<bool, StoreError>;
}
