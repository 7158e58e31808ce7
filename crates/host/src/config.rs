//! What a [`Host`](crate::Host) runs. A program reads it from its own configuration.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use relevo_admin::Token;
use relevo_core::Route;
use relevo_core::broker::admin::ExamineContext;
use relevo_core::outbox::admin::StartFrom;
use relevo_core::store_adapter::StoreAdapter;
use relevo_inbox::ConsumerStatus;

use crate::registry::BrokerConfig;

/// What a [`Host`](crate::Host) runs.
#[derive(Debug)]
pub struct HostConfig {
    /// The label `service` of every metric.
    pub service: String,
    /// The version of the program.
    pub version: &'static str,
    /// The name of this process among the owners of leases. See [`instance_name`](crate::instance_name).
    pub name: String,
    /// Health, metrics and status. `None` opens no port.
    pub admin: Option<AdminConfig>,
    /// Where spans are exported. `None` exports none.
    pub traces: Option<relevo_observe::traces::Config>,
    /// The outboxes, with one relay for each destination.
    pub outboxes: Vec<OutboxConfig>,
    /// Consumers whose health and metrics this process serves. A program runs them as [components](crate::Host::spawn).
    pub consumers: Vec<Arc<ConsumerStatus>>,
}

/// How health, metrics and status are served.
#[derive(Debug)]
pub struct AdminConfig {
    /// The address.
    pub listen: SocketAddr,
    /// Required for everything but the result of a probe.
    pub token: Option<Token>,
    /// How often databases and brokers are sampled.
    pub sample_interval: Duration,
    /// Whether an unreachable broker makes a relay unready.
    pub ready_requires_broker: bool,
}

/// An outbox.
#[derive(Clone, Debug)]
pub struct OutboxConfig {
    /// Its name in logs and metrics.
    pub name: String,
    /// Its database.
    pub store: Arc<dyn StoreAdapter>,
    /// Where its messages are published.
    pub destinations: Vec<DestinationConfig>,
}

/// A destination of an outbox, with its relay.
#[derive(Clone, Debug)]
pub struct DestinationConfig {
    /// Its name in the outbox.
    pub name: String,
    /// Whether it is added if the outbox does not have it.
    pub create: bool,
    /// The number of shards of a new destination.
    pub shards: u16,
    /// The position at which a new destination starts.
    pub start: StartFrom,
    /// Its broker.
    pub broker: BrokerConfig,
    /// Its relay. The host sets the name and the tracer.
    pub relay: relevo_relay::Config,
}

impl DestinationConfig {
    /// What the settings of the broker are compared with.
    pub fn examine_context(&self) -> ExamineContext {
        ExamineContext {
            addresses: self.relay.routes.iter().map(Route::address_template).collect(),
            resend_window: self.relay.resend_window(),
        }
    }
}
