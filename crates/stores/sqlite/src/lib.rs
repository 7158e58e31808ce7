//! A transactional outbox and inbox in a SQLite file, for one machine. It needs no server, and several processes may
//! share the file.
//!
//! A writer begins with [`begin`], so that it holds the file's only write lock from its first statement. It calls
//! [`emit()`] in that transaction, a relay reads through [`Store`], and operators use [`Operator`]. Only one transaction writes at a time, so
//! sequence numbers are in commit order. Open every connection that emits with [`connect_options`].
//!
//! The consumer side, which applies each handler's effects once, is in [`inbox`].
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! # let directory = std::env::temp_dir().join(format!("relevo-doc-{}", uuid::Uuid::new_v4()));
//! # std::fs::create_dir(&directory).unwrap();
//! # let file = directory.join("shop.db");
//! use relevo_store_sqlite::{Draft, begin, connect_options, emit, migrate};
//! use sqlx::ConnectOptions as _;
//!
//! migrate::migrate(&file).await.unwrap();
//! let mut connection = connect_options(&file).connect().await.unwrap();
//! let mut tx = begin(&mut connection).await.unwrap();
//! // … the effect, in the same transaction …
//! emit(&mut tx, Draft::json("orders", "o-1", "OrderPlaced", "{}")).await.unwrap();
//! tx.commit().await.unwrap();
//! # std::fs::remove_dir_all(directory).unwrap();
//! # });
//! ```

mod adapter;
mod classify;
mod config;
mod connection;
mod disk;
mod emit;
pub mod inbox;
pub mod migrate;
mod operator;
mod pool;
mod queries;
mod store;

pub use adapter::STORE;
pub use config::{Config, OperatorConfig, connect_options};
pub use emit::{BeginFuture, BeginImmediate, Emitter, OpenTransaction, begin, cancel, describe_error, emit};
pub use operator::Operator;
pub use operator::replay_source::OutboxReplaySource;
pub use relevo_core::outbox::admin::StartFrom;
pub use relevo_core::outbox::inspect::Backlog;
pub use relevo_core::{Draft, EmitError, OnDuplicate};
pub use store::Store;
