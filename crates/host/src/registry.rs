//! The adapters of this build.

use std::sync::Arc;

use relevo_core::adapter::{AdapterConfig, BrokerAdapter};
use relevo_core::store_adapter::StoreKind;
pub use relevo_core::store_adapter::{StoreAdapter, StoreConfig, StoreConfigError};

/// The kinds of brokers, one line per adapter.
pub const BROKERS: &[&str] = &[
    #[cfg(feature = "embedded")]
    <relevo_broker_embedded::Config as AdapterConfig>::KIND,
    #[cfg(feature = "rabbitmq")]
    <relevo_broker_rabbitmq::Config as AdapterConfig>::KIND,
    #[cfg(feature = "nats")]
    <relevo_broker_nats::Config as AdapterConfig>::KIND,
];

/// The kinds of stores, one line per adapter.
pub const STORES: &[StoreKind] = &[
    #[cfg(feature = "postgres")]
    relevo_store_postgres::STORE,
    #[cfg(feature = "sqlite")]
    relevo_store_sqlite::STORE,
];

/// Finds the adapter of a database by the scheme of its URL. It opens nothing.
pub fn store(config: &StoreConfig) -> Result<Arc<dyn StoreAdapter>, StoreConfigError> {
    let scheme = config.url.split_once(':').map(|(scheme, _)| scheme);
    let kind = STORES.iter().find(|kind| scheme.is_some_and(|scheme| kind.schemes.contains(&scheme)));
    let Some(kind) = kind else {
        let examples: Vec<_> = STORES.iter().map(|kind| format!("`{}`", kind.example_url)).collect();
        return Err(StoreConfigError::url("the database URL has an unknown scheme", examples.join(" or ")));
    };
    (kind.configure)(config)
}

/// The broker of a destination, as configured.
#[derive(Clone, Debug)]
pub struct BrokerConfig {
    /// The broker.
    pub adapter: Arc<dyn BrokerAdapter>,
    /// What to do about its topology at start-up.
    pub topology: TopologyMode,
    /// The subjects of dangerous findings that do not prevent the start.
    pub accept: Vec<String>,
}

relevo_core::text_enum! {
    /// What to do about the topology of a broker at start-up.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum TopologyMode {
        /// Nothing.
        Off = "off",
        /// Compare it. A missing or different object prevents the start.
        #[default]
        Check = "check",
        /// Create missing objects.
        Apply = "apply",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scheme_of_a_url_selects_the_store() {
        let location = |url: &str| store(&StoreConfig::from_url(url)).expect("a known scheme").location();
        assert_eq!(location("postgres://me@db/shop"), "db:5432/shop");
        assert_eq!(location("postgresql://me@db/shop"), "db:5432/shop");
        assert_eq!(location("sqlite:shop.db"), "shop.db");
    }

    #[test]
    fn an_unknown_scheme_is_reported_without_the_url() {
        for url in ["sesame", "mysql://me:sesame@db/shop", "postgres"] {
            let error = store(&StoreConfig::from_url(url)).expect_err("an unknown scheme");
            assert_eq!(error.reason, "the database URL has an unknown scheme");
            assert!(!error.to_string().contains("sesame"), "{error}");
        }
    }
}
