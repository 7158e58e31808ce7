//! The consumer runtime: receives deliveries from a broker and applies the effect of each message once.
//!
//! An [`Handler`] handler runs *inside* the transaction that also enters the message into the inbox. A [`CallHandler`] handler
//! *calls* an external service outside of any transaction and commits the result afterwards. [`Handlers`] maps message
//! types to handlers. [`ConsumerRuntime::run`] receives messages until its stop token is cancelled.
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
mod breaker;
mod config;
mod dead_letter_copy;
mod decode;
mod delivery;
mod durations;
mod error;
mod handler;
mod heartbeat;
mod incoming;
mod lag;
mod lane_leases;
mod lane_queues;
mod panics;
mod phase;
mod prune;
mod replay;
mod retry_worker;
mod runtime;
mod schema;
mod sequence;
mod settle;
mod settled_offset;
mod shutdown;
mod spans;
mod stats;
mod turns;
mod unended;
mod work;
mod worker;

pub use config::{Clock, Config, DeadLetterCopy, ForeignMessages, MessageOrder, RetryStorage};
pub use durations::{BOUNDS, Histogram};
pub use error::{HandlerError, HandlerResult, Verdict};
pub use handler::{CallHandler, Handler, HandlerOptions, Handlers, Registration, Typed, TypedCall, TypedInside, typed};
pub use incoming::Incoming;
pub use phase::RunState;
pub use replay::{ReplayEnd, ReplayError, ReplayJob, ReplayRunner, ReplayStep, to_inbox_message};
pub use runtime::{ConsumerError, ConsumerRuntime};
pub use schema::{JsonSchemas, SchemaError, Validator};
pub use stats::ConsumerStatus;
