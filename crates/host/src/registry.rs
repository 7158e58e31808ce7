//! The adapters of this build.

use std::sync::Arc;

use relevo_core::adapter::{AdapterConfig, BrokerAdapter};

/// The kinds of brokers, one line per adapter.
pub const BROKERS: &[&str] = &[
    #[cfg(feature = "embedded")]
    <relevo_broker_embedded::Config as AdapterConfig>::KIND,
    #[cfg(feature = "rabbitmq")]
    <relevo_broker_rabbitmq::Config as AdapterConfig>::KIND,
    #[cfg(feature = "nats")]
    <relevo_broker_nats::Config as AdapterConfig>::KIND,
];

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
