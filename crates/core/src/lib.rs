//! The vocabulary of Relevo: envelope, routes, retry policy, failure classes, and the ports that its parts share.
//!
//! This crate does no I/O and reads no clock. Time, jitter and identifiers come in as values, and decisions go out as
//! values. The ports ([`store`], [`operate`], [`broker`], [`consume`], [`inbox`], [`administer`]) are traits that the
//! engines call and the adapters implement.

pub mod administer;
pub mod broker;
pub mod consume;
pub mod delivery;
pub mod draft;
pub mod failure;
pub mod headers;
pub mod histogram;
pub mod inbox;
pub mod limits;
pub mod message;
pub mod operate;
pub mod random;
pub mod report;
pub mod retry;
pub mod route;
pub mod sample;
pub mod slot;
pub mod store;
pub mod template;
pub mod trace;
pub mod wire;

pub use administer::Administer;
pub use broker::{Broker, Capabilities, Confirms, Publication};
pub use consume::{AckOutcome, BrokerConsumer, ConsumerCapabilities, DelayedRetry, Delivery, DeliveryTag, Lane, Raw};
pub use draft::{Draft, OnRepeat};
pub use failure::{Class, Failure, Outcome, Scope};
pub use headers::HeaderRules;
pub use limits::Limits;
pub use message::{Message, MessageId, TraceContext};
pub use retry::{Jitter, Next, Policy};
pub use route::{AfterDead, Route, Routes};
pub use trace::Traces;
