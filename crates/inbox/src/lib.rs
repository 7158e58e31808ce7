//! The consumer runtime: receives deliveries from a broker and applies the effect of each message once.
//!
//! A handler runs in the transaction that also enters the message into the inbox: a function ([`Handlers::on`]), or a
//! [`Handler`] with state. A [`CallHandler`] calls an external service outside of any transaction and commits the result
//! afterwards. [`Handlers`] maps message types to handlers. [`ConsumerRuntime::run`] receives messages until its stop
//! token is cancelled.
//!
//! By file, in the order of a message: `runtime` (the loop) → `receive` → `decode` → `lane_queues` (one queue per lane and
//! key) → `dispatch` (a batch for a worker, and its results) → `live` (one transaction) → `handle` (calls the handler) →
//! `failure` (retry or dead letter) → `settle` (acknowledgements). `attempt` handles a claimed message. `retry_worker`
//! polls the retry table. `lane_leases` acquires and releases lanes. `heartbeat`, `prune` and `lag` run beside the loop.
//!
//! ```
//! use relevo_inbox::{HandlerResult, Handlers, Incoming, Tx};
//!
//! #[derive(serde::Deserialize)]
//! struct OrderPlaced {
//!     id: String,
//! }
//!
//! async fn count(mut ledger: Tx<Vec<String>>, placed: Incoming<OrderPlaced>) -> HandlerResult<()> {
//!     ledger.push(placed.id.clone());
//!     Ok(())
//! }
//!
//! let handlers = Handlers::new().on("OrderPlaced", count);
//! ```

mod attempt;
mod breaker;
mod config;
mod dead_letter_copy;
mod decode;
mod delivery;
mod dispatch;
mod error;
mod failure;
mod handle;
mod handler;
mod heartbeat;
mod incoming;
mod lag;
mod lane_leases;
mod lane_queues;
mod live;
mod prune;
mod receive;
mod replay;
mod retry_worker;
mod runtime;
mod schema;
mod sequence;
mod settle;
mod settled_offset;
mod shutdown;
mod status;
mod tx;
mod worker;

pub use config::{Clock, Config, DeadLetterCopy, ForeignMessages, MessageOrder, RetryStorage};
pub use error::{HandlerError, HandlerResult, Verdict};
pub use handler::{CallHandler, Handler, HandlerOptions, Handlers};
pub use incoming::Incoming;
pub use replay::{ReplayEnd, ReplayError, ReplayJob, ReplayRunner, ReplayStep, to_inbox_message};
pub use runtime::{ConsumerError, ConsumerRuntime};
pub use schema::{JsonSchemas, SchemaError, Validator};
pub use status::{ConsumerStatus, RunState};
pub use tx::Tx;
