//! The vocabulary of Relevo: envelope, routes, retry policy, failure classes, and the ports that its parts share.
//!
//! This crate does no I/O and reads no clock. It takes time, jitter and identifiers as values and returns decisions as
//! values. The ports ([`outbox`], [`dead_letters`], [`broker`], [`broker_consumer`], [`inbox`]) are traits that the
//! engines call and the adapters implement.

pub mod adapter;
pub mod address_template;
pub mod broker;
pub mod broker_consumer;
pub mod dead_letters;
pub mod draft;
pub mod failure;
pub mod finding;
pub mod header_rules;
pub mod histogram;
pub mod host_scope;
pub mod inbox;
pub mod message;
pub mod outbox;
pub mod random;
pub mod replay_source;
pub mod retry;
pub mod route;
pub mod slot;
pub mod store;
pub mod store_adapter;
pub mod text_enum;
pub mod trace;
pub mod wire;

pub use adapter::{AdapterConfig, BrokerAdapter};
pub use broker::admin::BrokerAdmin;
pub use broker::{Broker, Capabilities, OutcomeSender, Publication};
pub use broker_consumer::{
    AckOutcome, BrokerConsumer, ConsumerCapabilities, ConsumerOptions, DelayedRetry, Delivery, DeliveryTag, Lane,
    RawMessage,
};
pub use draft::{Draft, DraftError, OnDuplicate};
pub use failure::{Class, Failure, Outcome};
pub use header_rules::HeaderRules;
pub use message::{Message, MessageId, TraceContext};
pub use outbox::transaction::{EmitError, StoreTransaction};
pub use retry::{Jitter, Next, RetryPolicy};
pub use route::{AfterDead, Route, Routes};
pub use store_adapter::{StoreAdapter, StoreConfig};
pub use trace::Tracer;
