//! Carries every message that a database transaction commits to where it must go, in order, and lets every receiver apply it
//! once.
//!
//! This is what a service depends on: the parts of Relevo under one name, with one feature an adapter. The path of a message
//! leads through them from the top to the bottom.
//!
//! ```no_run
//! # async fn serve(url: &str, stop: tokio_util::sync::CancellationToken) -> Result<(), Box<dyn std::error::Error>> {
//! use std::sync::Arc;
//!
//! use relevo::brokers::embedded::{self, EmbeddedBroker};
//! use relevo::relay::{Config, Relay};
//! use relevo::stores::postgres::{self, Store};
//!
//! let store = Store::open(postgres::Config::new(url.parse()?, "main")).await?;
//! let broker = EmbeddedBroker::open(embedded::Config::new("broker.db")).await?;
//! Relay::new(Arc::new(store), Arc::new(broker), Config::default())?.run(stop).await?;
//! # Ok(())
//! # }
//! ```

#[doc(no_inline)]
pub use relevo_core as core;

/// Where messages are written, in the transaction of what they tell; and the inbox, in the transaction of their effect.
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

/// What messages are carried to, and received from.
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
pub use relevo_inbox as inbox;

#[doc(no_inline)]
pub use relevo_admin as admin;
#[doc(no_inline)]
pub use relevo_observe as observe;
