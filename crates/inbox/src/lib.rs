//! The consumer runtime: receives deliveries from a broker and applies the effect of each message once.
//!
//! An [`Inside`] handler runs *inside* the transaction that also enters the message into the inbox. A [`Call`] handler
//! *calls* an external service outside of any transaction and commits the result afterwards. [`Handlers`] maps message
//! types to handlers. [`Runtime::run`] receives messages until its stop token is cancelled.
//!
//! ```
//! use async_trait::async_trait;
//! use relevo_inbox::{Handled, Incoming, Inside, Verdict};
//!
//! struct Count;
//!
//! #[async_trait]
//! impl Inside<Vec<String>> for Count {
//!     async fn handle(&self, ledger: &mut Vec<String>, incoming: &Incoming) -> Handled {
//!         let order: serde_json::Value = incoming.json()?;
//!         ledger.push(order["id"].to_string());
//!         Ok(Verdict::Done)
//!     }
//! }
//!
//! let handlers = relevo_inbox::Handlers::new().inside("OrderPlaced", Count);
//! assert!(handlers.find("OrderPlaced").is_some() && handlers.find("OrderShipped").is_none());
//! ```

mod attempt;
mod beat;
mod breaker;
mod chores;
mod config;
mod copy;
mod decode;
mod due;
mod durations;
mod handler;
mod incoming;
mod item;
mod lag;
mod lanes;
mod marks;
mod panics;
mod phase;
mod prune;
mod replay;
mod runtime;
mod sequence;
mod settle;
mod shutdown;
mod spans;
mod stats;
mod turns;
mod unended;
mod validate;
mod verdict;
mod work;
mod worker;

pub use config::{Clock, Config, DeadLetterTo, Durable, Foreign, Order};
pub use durations::{BOUNDS, Histogram};
pub use handler::{Call, Handlers, Inside, Options, Registered, Typed, TypedCall, TypedInside, typed};
pub use incoming::Incoming;
pub use phase::Phase;
pub use replay::{FeedEnd, FeedError, FeedStep, Feeder, Feeding, arrival};
pub use runtime::{Runtime, RuntimeError};
pub use stats::Stats;
pub use validate::{JsonSchemas, SchemaError, Validator};
pub use verdict::{Handled, Trouble, Verdict};
