//! Members of a consumer: their heartbeats, and the operator commands that they receive.

use std::time::Duration;

use jiff::Timestamp;
use uuid::Uuid;

use crate::broker_consumer::Lane;

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
