//! The configured topology: exchanges, queues, bindings and policies, as plain data.
//!
//! Everything here is durable. [`Topology::declarations`] returns the declarations with all arguments.

use std::collections::BTreeMap;

mod apply;
mod compare;
mod declarations;
mod names;
mod queue;
mod validate;

pub(crate) use apply::TopologyConnection;
pub(crate) use compare::{AT_LEAST_ONCE_FLAG, TopologyPart};
pub use declarations::{BindingDeclaration, Declarations, ExchangeDeclaration, QueueDeclaration};
pub use names::{dead_letter_queue_name, lane_queue_name, lane_routing_key, retry_queue_name};
pub use queue::{DEFAULT_RETRY_DELAYS, Queue, QueueKind};
pub use validate::Wrong;

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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// The name.
    pub name: String,
    /// How it routes.
    pub kind: ExchangeKind,
    /// The alternate exchange, for messages without a matching binding.
    pub alternate: Option<String>,
}

impl Exchange {
    /// A topic exchange.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), kind: ExchangeKind::Topic, alternate: None }
    }
}

/// How an exchange routes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExchangeKind {
    /// By patterns of the routing key's words.
    #[default]
    Topic,
    /// By the whole routing key.
    Direct,
    /// To every binding.
    Fanout,
    /// By headers.
    Headers,
}

impl ExchangeKind {
    /// The name in AMQP.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Topic => "topic",
            Self::Direct => "direct",
            Self::Fanout => "fanout",
            Self::Headers => "headers",
        }
    }

    /// Parses the name; `None` for exchange types of plugins.
    pub fn parse(word: &str) -> Option<Self> {
        [Self::Topic, Self::Direct, Self::Fanout, Self::Headers].into_iter().find(|kind| kind.as_str() == word)
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
    /// For a headers exchange: the headers that a message must have.
    pub headers: BTreeMap<String, String>,
    /// For a headers exchange: whether one matching header is enough.
    pub match_any: bool,
}

impl Binding {
    /// A binding of a queue by routing key.
    pub fn to_queue(exchange: impl Into<String>, key: impl Into<String>, queue: impl Into<String>) -> Self {
        let to = BindingTarget::Queue(queue.into());
        Self { exchange: exchange.into(), to, key: key.into(), headers: BTreeMap::new(), match_any: false }
    }

    /// A binding of an exchange by routing key.
    pub fn to_exchange(exchange: impl Into<String>, key: impl Into<String>, target: impl Into<String>) -> Self {
        let to = BindingTarget::Exchange(target.into());
        Self { exchange: exchange.into(), to, key: key.into(), headers: BTreeMap::new(), match_any: false }
    }
}

/// Settings that the broker applies to all objects whose name matches.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// The name.
    pub name: String,
    /// A regular expression for names.
    pub pattern: String,
    /// `queues`, `exchanges` or `all`; newer brokers support more values.
    pub apply_to: String,
    /// The settings.
    pub definition: BTreeMap<String, serde_json::Value>,
    /// If several policies match, the one with the highest priority applies.
    pub priority: i64,
}
