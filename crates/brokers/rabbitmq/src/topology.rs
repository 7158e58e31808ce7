//! The configured topology: exchanges, queues, bindings and policies, as plain data.
//!
//! Everything here is durable. [`Topology::declarations`] returns the declarations with all arguments.

use std::collections::BTreeMap;
use std::time::Duration;

use relevo_config::{DurationText, SizeText};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::classify::Error;
use crate::config::NAME_BYTES_MAX;

use section::dead_letter_queue;

mod apply;
mod compare;
mod declarations;
mod section;
mod validate;

pub use apply::Admin;
pub(crate) use apply::{TopologyConnection, field_table};
pub(crate) use compare::{AT_LEAST_ONCE_FLAG, TopologyPart};
pub use declarations::{BindingDeclaration, Declarations, ExchangeDeclaration, QueueDeclaration};
pub use declarations::{dead_letter_queue_name, lane_queue_name, lane_routing_key, retry_queue_name};

/// The configured topology.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Topology {
    /// The exchanges, created first and in this order.
    pub exchanges: Vec<Exchange>,
    /// The queues, each with its lanes, its retry queues and its dead-letter queue.
    pub queues: Vec<Queue>,
    /// The bindings.
    pub bindings: Vec<Binding>,
    /// The policies, which need the management API.
    pub policies: Vec<Policy>,
}

/// A durable exchange.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Exchange {
    /// The name. The default is the name of the table.
    #[schemars(extend("examples" = ["shop"]))]
    pub name: String,
    /// How it routes.
    pub kind: ExchangeKind,
    /// The alternate exchange, for messages without a matching binding.
    #[schemars(extend("examples" = ["unrouted"]))]
    pub alternate: Option<String>,
}

impl Exchange {
    /// A topic exchange.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }
}

relevo_core::text_enum! {
    /// How an exchange routes.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "lowercase")]
    pub enum ExchangeKind {
        /// By patterns of the routing key's words.
        #[default]
        Topic = "topic",
        /// By the whole routing key.
        Direct = "direct",
        /// To every binding.
        Fanout = "fanout",
        /// By headers.
        Headers = "headers",
    }
}

/// The default retry delays.
pub const DEFAULT_RETRY_DELAYS: [Duration; 3] =
    [Duration::from_mins(1), Duration::from_mins(5), Duration::from_mins(15)];

/// A durable queue with its lanes, its retry queues and its dead-letter queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Queue {
    /// The name. The default is the name of the table.
    #[schemars(extend("examples" = ["billing"]))]
    pub name: String,
    /// The queue type.
    pub kind: QueueKind,
    /// The number of lanes: queues `name.0`, `name.1`, … instead of one. Each has a single active consumer, and is
    /// bound with the lane as the last word of the routing key.
    #[schemars(extend("examples" = [8]))]
    pub lanes: Option<u16>,
    /// One consumer at a time is active, and the others are on standby. Otherwise all consumers receive at once, and
    /// only unordered consumers start. Lanes are always ordered.
    pub single_active_consumer: bool,
    /// The retry delays, with one queue for each. Empty means no retry queues.
    #[serde(with = "DurationText")]
    #[schemars(with = "Vec<DurationText>")]
    pub retry_delays: Vec<Duration>,
    /// The name of the dead-letter queue, `name.dead` by default; `false` for no dead-letter queue.
    #[serde(with = "dead_letter_queue")]
    #[schemars(with = "serde_json::Value", extend("examples" = ["billing.dlq"]))]
    pub dead_letter_queue: Option<String>,
    /// The maximum number of messages. Above it new messages are refused.
    #[schemars(extend("examples" = [1_000_000]))]
    pub max_length: Option<u64>,
    /// The maximum size in bytes. Above it new messages are refused.
    #[serde(with = "SizeText")]
    #[schemars(extend("examples" = ["1GiB"]))]
    pub max_length_bytes: Option<u64>,
    /// The maximum number of returns without an acknowledgement. Above it the message is dead-lettered, or lost without
    /// a dead-letter queue.
    #[schemars(extend("examples" = [20]))]
    pub delivery_limit: Option<u32>,
    /// The initial number of replicas of a quorum queue.
    #[schemars(extend("examples" = [3]))]
    pub quorum_initial_group_size: Option<u32>,
}

relevo_core::text_enum! {
    /// The queue type.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "lowercase")]
    pub enum QueueKind {
        /// Replicated by consensus. A confirm means that a majority of its nodes has written the message.
        #[default]
        Quorum = "quorum",
        /// On one node; it cannot dead-letter at least once.
        Classic = "classic",
    }
}

impl Queue {
    /// An ordered quorum queue without lanes, with the default retry delays and a dead-letter queue.
    pub fn new(name: impl Into<String>) -> Self {
        let name = name.into();
        Self { dead_letter_queue: Some(dead_letter_queue_name(&name)), name, ..Self::default() }
    }

    /// Whether one consumer at a time is active.
    pub fn is_ordered(&self) -> bool {
        self.single_active_consumer || self.lanes.is_some()
    }

    /// Rejects a queue that cannot be consumed: the topology refuses it, or a name derived from it is too long.
    pub(crate) fn validate(&self) -> Result<(), Error> {
        Topology { queues: vec![self.clone()], ..Topology::default() }.validate()?;
        if self.members_key().len() > NAME_BYTES_MAX {
            return Err(Error::Config(format!("the name of the queue `{}` is too long", self.name)));
        }
        Ok(())
    }

    /// The routing key of the announcements between its consumers.
    pub(crate) fn members_key(&self) -> String {
        format!("relevo.{}", self.name)
    }

    /// The consumed queues: the queue itself or its lanes.
    pub fn consumed_queues(&self) -> Vec<String> {
        match self.lanes {
            None => vec![self.name.clone()],
            Some(lanes) => (0..lanes).map(|lane| lane_queue_name(&self.name, lane)).collect(),
        }
    }
}

/// The destination of a binding.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BindingTarget {
    /// A queue, or all of its lanes.
    Queue(String),
    /// Another exchange.
    Exchange(String),
}

/// A binding of a queue or an exchange to an exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    /// The source exchange.
    pub exchange: String,
    /// The destination.
    pub to: BindingTarget,
    /// The routing key, or a pattern.
    pub key: String,
}

impl Binding {
    /// A binding of a queue by routing key.
    pub fn to_queue(exchange: impl Into<String>, key: impl Into<String>, queue: impl Into<String>) -> Self {
        let to = BindingTarget::Queue(queue.into());
        Self { exchange: exchange.into(), to, key: key.into() }
    }

    /// A binding of an exchange by routing key.
    pub fn to_exchange(exchange: impl Into<String>, key: impl Into<String>, target: impl Into<String>) -> Self {
        let to = BindingTarget::Exchange(target.into());
        Self { exchange: exchange.into(), to, key: key.into() }
    }
}

/// Settings that the broker applies to all objects whose name matches.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Policy {
    /// The name. The default is the name of the table.
    #[schemars(extend("examples" = ["limits"]))]
    pub name: String,
    /// A regular expression for names.
    #[schemars(extend("examples" = ["^shop[.]"], "x-required" = true))]
    pub pattern: String,
    /// `queues`, `exchanges` or `all`; newer brokers support more values.
    pub apply_to: String,
    /// The settings, such as `{ max-length = 1000000, overflow = "reject-publish" }`.
    pub definition: BTreeMap<String, serde_json::Value>,
    /// If several policies match, the one with the highest priority applies.
    pub priority: i64,
}

impl Default for Queue {
    /// Without a name.
    fn default() -> Self {
        Self {
            name: String::new(),
            kind: QueueKind::Quorum,
            lanes: None,
            single_active_consumer: true,
            retry_delays: DEFAULT_RETRY_DELAYS.to_vec(),
            dead_letter_queue: Some(String::new()),
            max_length: None,
            max_length_bytes: None,
            delivery_limit: None,
            quorum_initial_group_size: None,
        }
    }
}

impl Default for Policy {
    /// Without a name and a pattern.
    fn default() -> Self {
        Self {
            name: String::new(),
            pattern: String::new(),
            apply_to: "queues".to_owned(),
            definition: BTreeMap::new(),
            priority: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_ordered_unless_single_active_consumer_is_off() {
        assert!(Queue::new("billing").is_ordered());
        let unordered = Queue { single_active_consumer: false, ..Queue::new("billing") };
        assert!(!unordered.is_ordered());
        assert!(Queue { lanes: Some(2), ..unordered }.is_ordered(), "a lane has a single active consumer");
    }

    #[test]
    fn a_queue_that_cannot_be_consumed_is_rejected() {
        let bare = |name: String| Queue { retry_delays: vec![], dead_letter_queue: None, ..Queue::new(name) };
        for queue in [
            Queue::new(""),
            Queue { lanes: Some(0), ..Queue::new("a") },
            Queue { retry_delays: vec![Duration::ZERO], ..Queue::new("a") },
            Queue::new("a".repeat(250)),
            Queue { lanes: Some(2), ..bare("a".repeat(249)) },
            bare("a".repeat(249)),
        ] {
            assert!(queue.validate().is_err(), "{queue:?}");
        }
        assert!(bare("a".repeat(248)).validate().is_ok());
    }
}
