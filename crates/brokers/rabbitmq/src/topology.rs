//! What the configuration wants to be at the broker: exchanges, queues, bindings and policies, as plain data.
//!
//! Everything here is durable. [`Topology::declared`] says what becomes of it at the broker, down to each argument.

use std::collections::BTreeMap;

mod check;
mod compare;
mod declare;
mod make;
mod names;
mod queue;

pub use check::Wrong;
pub(crate) use compare::{AT_LEAST_ONCE_FLAG, Part};
pub use declare::{Declared, DeclaredBinding, DeclaredExchange, DeclaredQueue};
pub(crate) use make::Maker;
pub use names::{dead_queue, lane_key, lane_queue, retry_queue};
pub use queue::{DEFAULT_RUNGS, Queue, QueueKind};

/// What is to be at the broker.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Topology {
    /// The exchanges; made first, in this order.
    pub exchanges: Vec<Exchange>,
    /// The queues, each with its lanes, its ladder and its dead letters.
    pub queues: Vec<Queue>,
    /// What flows from which exchange.
    pub bindings: Vec<Binding>,
    /// Policies; they need the management API.
    pub policies: Vec<Policy>,
}

/// A durable exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// Its name.
    pub name: String,
    /// How it routes.
    pub kind: ExchangeKind,
    /// Where a message goes that nothing bound here wants.
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
    /// To everything that is bound.
    Fanout,
    /// By headers.
    Headers,
}

impl ExchangeKind {
    /// The broker's word for it.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Topic => "topic",
            Self::Direct => "direct",
            Self::Fanout => "fanout",
            Self::Headers => "headers",
        }
    }

    /// The kind of this word; `None` for kinds that plugins bring.
    pub fn of(word: &str) -> Option<Self> {
        [Self::Topic, Self::Direct, Self::Fanout, Self::Headers].into_iter().find(|kind| kind.word() == word)
    }
}

/// Where a binding leads.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// To a queue; to all of its lanes, if it has them.
    Queue(String),
    /// To another exchange.
    Exchange(String),
}

/// What flows from an exchange to a queue or another exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    /// The exchange it flows from.
    pub exchange: String,
    /// Where it flows to.
    pub to: Target,
    /// The routing key, or a pattern of it.
    pub key: String,
    /// For a headers exchange: the headers that a message must have.
    pub headers: BTreeMap<String, String>,
    /// For a headers exchange: one of the headers is enough.
    pub match_any: bool,
}

impl Binding {
    /// A binding of a queue by routing key.
    pub fn to_queue(exchange: impl Into<String>, key: impl Into<String>, queue: impl Into<String>) -> Self {
        let to = Target::Queue(queue.into());
        Self { exchange: exchange.into(), to, key: key.into(), headers: BTreeMap::new(), match_any: false }
    }

    /// A binding of an exchange by routing key.
    pub fn to_exchange(exchange: impl Into<String>, key: impl Into<String>, target: impl Into<String>) -> Self {
        let to = Target::Exchange(target.into());
        Self { exchange: exchange.into(), to, key: key.into(), headers: BTreeMap::new(), match_any: false }
    }
}

/// Settings that the broker applies to everything whose name matches.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// Its name.
    pub name: String,
    /// A regular expression of names.
    pub pattern: String,
    /// `queues`, `exchanges` or `all`; newer brokers know more.
    pub apply_to: String,
    /// The settings.
    pub definition: BTreeMap<String, serde_json::Value>,
    /// Of several policies that match, the one of the highest priority counts.
    pub priority: i64,
}
