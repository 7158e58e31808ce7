//! A transactional outbox and inbox: publishes every message that a database transaction commits, in order per key, and
//! lets each consumer apply it once.
//!
//! A service depends on this crate. It has the parts of Relevo under one name and a feature for each adapter, in the order
//! in which a message passes them.
//!
//! ```no_run
//! # async fn serve(url: &str, stop: tokio_util::sync::CancellationToken) -> Result<(), Box<dyn std::error::Error>> {
//! use std::sync::Arc;
//!
//! use relevo::brokers::embedded::{self, BrokerFile};
//! use relevo::relay::{Config, Relay};
//! use relevo::stores::postgres::{self, Store};
//!
//! let store = Store::open(postgres::Config::new(url.parse()?, "main")).await?;
//! let broker = BrokerFile::open(embedded::Config::new("broker.db")).await?;
//! Relay::new(Arc::new(store), Arc::new(broker), Config::default())?.run(stop).await?;
//! # Ok(())
//! # }
//! ```

#[doc(no_inline)]
pub use relevo_core as core;

/// Stores: the outbox in the transaction of the application, and the inbox in the transaction of the handler.
pub mod stores {
    #[cfg(feature = "postgres")]
    #[doc(no_inline)]
    pub use relevo_store_postgres as postgres;
    #[cfg(feature = "sqlite")]
    #[doc(no_inline)]
    pub use relevo_store_sqlite as sqlite;
}

#[doc(no_inline)]
pub use relevo_relay as relay;

/// Brokers: messages are published to them and received from them.
pub mod brokers {
    #[cfg(feature = "embedded")]
    #[doc(no_inline)]
    pub use relevo_broker_embedded as embedded;
    #[cfg(feature = "nats")]
    #[doc(no_inline)]
    pub use relevo_broker_nats as nats;
    #[cfg(feature = "rabbitmq")]
    #[doc(no_inline)]
    pub use relevo_broker_rabbitmq as rabbitmq;
}

#[doc(no_inline)]
pub use relevo_host as host;
/// The registry of adapters.
#[doc(no_inline)]
pub use relevo_host::registry;

#[doc(no_inline)]
pub use relevo_inbox as inbox;

#[doc(no_inline)]
pub use relevo_admin as admin;
#[doc(no_inline)]
pub use relevo_observe as observe;
