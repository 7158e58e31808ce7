//! The port between the configuration and a broker adapter: everything that a program does with a configured broker.
//!
//! A program reads a broker's section into the adapter's configuration, calls [`AdapterConfig::adapter`], and from then
//! on knows only [`BrokerAdapter`].

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::broker::Broker;
use crate::broker::admin::BrokerAdmin;
use crate::broker::sample::BrokerMonitor;
use crate::broker_consumer::{BrokerConsumer, ConsumerOptions};
use crate::failure::Failure;
use crate::host_scope::Transport;
use crate::inbox::retention_check::RedeliveryWindow;
use crate::replay_source::{ReplaySource, ReplaySourceError};

/// The configuration of one kind of broker.
pub trait AdapterConfig: Sized {
    /// The name of the kind in configurations and metrics.
    const KIND: &'static str;
    /// The keys of a small section that delivers, in TOML with comments, for a server or a file of this machine.
    const EXAMPLE: &'static str;

    /// Validates all settings, including the topology. It sends no request to the broker.
    fn adapter(self) -> Result<Arc<dyn BrokerAdapter>, Failure>;
}

/// A configured broker. Nothing is open yet. Debug output shows no secret.
#[async_trait]
pub trait BrokerAdapter: Any + fmt::Debug + Send + Sync {
    /// The [`AdapterConfig::KIND`] of its configuration.
    fn kind(&self) -> &'static str;

    /// The hosts or the file, without credentials.
    fn location(&self) -> String;

    /// The `ce-source` of published messages.
    fn source(&self) -> &str;

    /// Whether both are the same broker with the same settings, so that one open broker serves both.
    fn is_same_broker(&self, other: &dyn BrokerAdapter) -> bool;

    /// How long a publish call waits for a confirmation at most. It must be shorter than the relay's publish timeout.
    fn confirm_timeout(&self) -> Option<Duration> {
        None
    }

    /// The configured connections to servers, whose encryption is checked before anything connects.
    fn transports(&self) -> Vec<Transport> {
        Vec::new()
    }

    /// The address of a message without a configured route, with the placeholders of a route.
    fn default_address(&self) -> Option<String> {
        None
    }

    /// Why a header of this name cannot be published. `None` if it can.
    fn reserved_header(&self, name: &str) -> Option<&'static str>;

    /// The topology objects with other lanes than the messages that they would receive. `addresses` are those of the
    /// routes, as [`Route::address_template`](crate::Route::address_template) returns them.
    fn check_lanes(&self, addresses: &[String]) -> Vec<LaneMismatch>;

    /// How long handled messages can be delivered again, for every part of the broker that retains them.
    fn redelivery_windows(&self) -> Vec<RedeliveryWindow>;

    /// Opens the broker for publishing. Each publish call ends after `publish_timeout` at the latest.
    ///
    /// An unreachable server is not an error: the broker connects when the server is up.
    async fn open(&self, publish_timeout: Duration) -> Result<Arc<dyn Broker>, Failure>;

    /// Opens a consumer of this group.
    async fn consume(&self, group: &str, options: ConsumerOptions) -> Result<Arc<dyn BrokerConsumer>, Failure>;

    /// Operator access. `None` if the broker has no topology and no settings of its own.
    fn admin(&self) -> Result<Option<Box<dyn BrokerAdmin>>, Failure>;

    /// Operator access without a part of the broker that publishing does not need, if only that part is unreachable.
    /// `failure` is the failure of a call of [`admin`](Self::admin).
    fn reduced_admin(&self, _failure: &Failure) -> Option<Box<dyn BrokerAdmin>> {
        None
    }

    /// The monitor. `None` if there is nothing to sample.
    fn monitor(&self) -> Result<Option<Box<dyn BrokerMonitor>>, Failure>;

    /// The retained messages of this group.
    async fn replay_source(&self, group: &str) -> Result<Box<dyn ReplaySource>, ReplaySourceError>;
}

/// A topology object whose lanes differ from those of the messages that it would receive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneMismatch {
    /// The kind of the object: `queue` or `group`.
    pub object: &'static str,
    /// The index of the object among those of its kind.
    pub index: usize,
    /// Its lanes.
    pub lanes: Option<u16>,
    /// The lanes of published messages.
    pub published_lanes: Option<u16>,
}

impl LaneMismatch {
    /// Compares the lanes of an object with those of published messages. The lane is the last word of an address, so an
    /// object with another number reads the wrong messages, or none.
    ///
    /// `receives` tells whether the object can receive messages of an address. An object without lanes may receive all
    /// messages with lanes, if its pattern has room for the last word.
    pub fn find(
        object: (&'static str, usize),
        lanes: Option<u16>,
        published_lanes: Option<u16>,
        addresses: &[String],
        receives: impl Fn(&str) -> bool,
    ) -> Option<Self> {
        let receives_plain = || addresses.iter().any(|address| receives(address));
        let receives_lane = || addresses.iter().any(|address| receives(&format!("{address}.0")));
        let differs = match lanes {
            _ if lanes == published_lanes => false,
            Some(_) => receives_plain() || receives_lane(),
            None => addresses.iter().any(|address| receives(address) && !receives(&format!("{address}.0"))),
        };
        let (object, index) = object;
        differs.then_some(Self { object, index, lanes, published_lanes })
    }
}

/// The hosts of these URLs, sorted and without credentials, for [`BrokerAdapter::location`].
pub fn hosts(urls: &[String]) -> String {
    let mut hosts: Vec<&str> = urls.iter().map(|url| url.rsplit_once('@').map_or(&**url, |(_, host)| host)).collect();
    hosts.sort_unstable();
    hosts.join(",")
}
