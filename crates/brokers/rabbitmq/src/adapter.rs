//! The registration of this adapter.

use std::any::Any;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use relevo_core::adapter::{AdapterConfig, BrokerAdapter, LaneMismatch, hosts};
use relevo_core::address_template::AddressTemplate;
use relevo_core::broker::sample::BrokerMonitor;
use relevo_core::host_scope::Transport;
use relevo_core::inbox::retention_check::RedeliveryWindow;
use relevo_core::replay_source::{ReplaySource, ReplaySourceError};
use relevo_core::{Broker, BrokerAdmin, BrokerConsumer, ConsumerOptions, Failure};

use crate::classify::Error;
use crate::config::Config;
use crate::consume::GroupConsumer;
use crate::examine::routes::words;
use crate::metrics::Monitor;
use crate::publish::Publisher;
use crate::topology::{Admin, Binding, BindingTarget, ExchangeKind};

/// A configured cluster or server, with one virtual host.
#[derive(Debug)]
pub struct Adapter {
    config: Config,
}

impl Adapter {
    /// The configuration.
    pub const fn config(&self) -> &Config {
        &self.config
    }
}

impl AdapterConfig for Config {
    const KIND: &'static str = "rabbitmq";
    const EXAMPLE: &'static str = "\
# With a password of your own, use `url_file` or `url_env`.
url = \"amqp://guest:guest@localhost:5672\"
# A missing exchange is created as a durable topic exchange. The routing key is the topic: bind your queues to the exchange.
exchange = \"relevo\"
";

    fn adapter(self) -> Result<Arc<dyn BrokerAdapter>, Failure> {
        Admin::new(self.clone())?;
        Ok(Arc::new(Adapter { config: self }))
    }
}

#[async_trait]
impl BrokerAdapter for Adapter {
    fn kind(&self) -> &'static str {
        Config::KIND
    }

    fn location(&self) -> String {
        hosts(&self.config.urls)
    }

    fn source(&self) -> &str {
        &self.config.source
    }

    fn is_same_broker(&self, other: &dyn BrokerAdapter) -> bool {
        let other: &dyn Any = other;
        other.downcast_ref::<Self>().is_some_and(|other| other.config == self.config)
    }

    fn confirm_timeout(&self) -> Option<Duration> {
        Some(self.config.confirm_timeout)
    }

    fn transports(&self) -> Vec<Transport> {
        self.config.transports()
    }

    fn reserved_header(&self, name: &str) -> Option<&'static str> {
        let copies = ["cc", "bcc"].contains(&name.to_ascii_lowercase().as_str());
        copies.then_some("RabbitMQ sends copies to the routing keys in it")
    }

    fn check_lanes(&self, addresses: &[String]) -> Vec<LaneMismatch> {
        let queues = self.config.topology.queues.iter().enumerate();
        queues
            .filter_map(|(index, queue)| {
                let receives = |address: &str| can_reach(&self.config, address, &queue.name);
                LaneMismatch::find(("queue", index), queue.lanes, self.config.lanes, addresses, receives)
            })
            .collect()
    }

    fn redelivery_windows(&self) -> Vec<RedeliveryWindow> {
        // A queue deletes acknowledged messages.
        Vec::new()
    }

    async fn open(&self, _publish_timeout: Duration) -> Result<Arc<dyn Broker>, Failure> {
        Ok(Arc::new(Publisher::open(self.config.clone()).await?))
    }

    async fn consume(&self, group: &str, options: ConsumerOptions) -> Result<Arc<dyn BrokerConsumer>, Failure> {
        let queue = self.config.topology.queues.iter().find(|queue| queue.name == group);
        let queue = queue.ok_or_else(|| Error::Config(format!("the topology has no queue `{group}`")))?;
        Ok(Arc::new(GroupConsumer::open(&self.config, queue, options).await?))
    }

    fn admin(&self) -> Result<Option<Box<dyn BrokerAdmin>>, Failure> {
        Ok(Some(Box::new(Admin::new(self.config.clone())?)))
    }

    /// Without the management API, which messages do not need. Policies and settings are not visible then.
    fn reduced_admin(&self, failure: &Failure) -> Option<Box<dyn BrokerAdmin>> {
        let Some(Error::ManagementUnreachable(_)) = failure.cause() else { return None };
        let mut config = self.config.clone();
        config.management_urls.clear();
        config.topology.policies.clear();
        Some(Box::new(Admin::new(config).ok()?))
    }

    fn monitor(&self) -> Result<Option<Box<dyn BrokerMonitor>>, Failure> {
        Ok(Some(Box::new(Monitor::new(self.config.clone())?)))
    }

    async fn replay_source(&self, _group: &str) -> Result<Box<dyn ReplaySource>, ReplaySourceError> {
        Err(ReplaySourceError::Unsupported(
            "RabbitMQ keeps no log: a queue deletes acknowledged messages; hint: replay from the outbox's own log, with \
             `--log outbox`"
                .to_owned(),
        ))
    }
}

/// Whether messages of an address can reach a queue, by the exchanges and bindings of the configuration.
fn can_reach(config: &Config, address: &str, queue: &str) -> bool {
    let (exchange, key) = address.split_once('/').unwrap_or((&config.exchange, address));
    let (exchange, key) = (AddressTemplate::new(exchange), AddressTemplate::new(key));
    if exchange.can_equal("") && key.can_equal(queue) {
        return true;
    }
    let bindings = &config.topology.bindings;
    let names = bindings.iter().map(|binding| binding.exchange.as_str());
    let mut open: Vec<&str> = names.filter(|name| exchange.can_equal(name)).collect();
    let mut visited = BTreeSet::new();
    while let Some(exchange) = open.pop() {
        if !visited.insert(exchange) {
            continue;
        }
        for binding in
            bindings.iter().filter(|binding| binding.exchange == exchange && can_match(config, binding, &key))
        {
            match &binding.to {
                BindingTarget::Queue(name) if name == queue => return true,
                BindingTarget::Queue(_) => {}
                BindingTarget::Exchange(name) => open.push(name),
            }
        }
    }
    false
}

/// Whether a binding can match this routing key. The kind of an exchange outside the topology is not known.
fn can_match(config: &Config, binding: &Binding, key: &AddressTemplate) -> bool {
    let exchange = config.topology.exchanges.iter().find(|exchange| exchange.name == binding.exchange);
    match exchange.map(|exchange| exchange.kind) {
        // They ignore the key, so a queue there has no lanes.
        Some(ExchangeKind::Fanout | ExchangeKind::Headers) => matches!(binding.to, BindingTarget::Exchange(_)),
        Some(ExchangeKind::Direct) => key.can_equal(&binding.key),
        Some(ExchangeKind::Topic) | None => key.can_match(&words(&binding.key)),
    }
}
