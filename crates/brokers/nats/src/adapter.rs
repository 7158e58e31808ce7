//! The registration of this adapter.

use std::any::Any;
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
use crate::consume::consumer;
use crate::metrics::Monitor;
use crate::publish::Publisher;
use crate::replay::ReplayLog;
use crate::topology::apply::Admin;
use crate::topology::validate::pattern_words;
use crate::topology::{Group, Retention, Stream};

/// A configured cluster or server.
#[derive(Debug)]
pub struct Adapter {
    config: Config,
}

impl Adapter {
    /// The configuration.
    pub const fn config(&self) -> &Config {
        &self.config
    }

    fn group(&self, name: &str) -> Option<&Group> {
        self.config.topology.groups.iter().find(|group| group.name == name)
    }
}

impl AdapterConfig for Config {
    const KIND: &'static str = "nats";
    const EXAMPLE: &'static str = "\
url = \"nats://localhost:4222\"
# A missing stream is created for the subjects `RELEVO.>`. A message is published to `RELEVO.` and its topic.
stream = \"RELEVO\"
";

    fn adapter(self) -> Result<Arc<dyn BrokerAdapter>, Failure> {
        self.validate()?;
        self.topology.validate()?;
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

    fn default_address(&self) -> Option<String> {
        let stream = self.config.topology.implied_stream(self.config.stream.as_deref()?)?;
        Some(format!("{}.{{topic}}", stream.name))
    }

    fn reserved_header(&self, name: &str) -> Option<&'static str> {
        name.to_ascii_lowercase().starts_with("nats-").then_some("the server takes it for an instruction")
    }

    fn check_lanes(&self, addresses: &[String]) -> Vec<LaneMismatch> {
        let Config { topology, stream: expected, lanes, .. } = &self.config;
        let groups = topology.groups.iter().enumerate();
        let published_to = groups.filter(|(_, group)| expected.as_ref().is_none_or(|stream| *stream == group.stream));
        published_to
            .filter_map(|(index, group)| {
                let stream = topology.streams.iter().find(|stream| stream.name == group.stream);
                let receives = |address: &str| receives(group, stream, address);
                LaneMismatch::find(("group", index), group.lanes, *lanes, addresses, receives)
            })
            .collect()
    }

    fn redelivery_windows(&self) -> Vec<RedeliveryWindow> {
        // A stream with another retention deletes acknowledged messages.
        let streams = self.config.topology.streams.iter().filter(|stream| stream.retention == Retention::Limits);
        let window = |stream: &Stream| RedeliveryWindow {
            source: format!("stream `{}`", stream.name),
            duration: stream.max_age,
        };
        streams.map(window).collect()
    }

    async fn open(&self, _publish_timeout: Duration) -> Result<Arc<dyn Broker>, Failure> {
        Ok(Arc::new(Publisher::open(self.config.clone()).await?))
    }

    async fn consume(&self, group: &str, options: ConsumerOptions) -> Result<Arc<dyn BrokerConsumer>, Failure> {
        let found = self.group(group);
        let found = found.ok_or_else(|| Error::Config(format!("the topology has no group `{group}`")))?;
        Ok(Arc::new(consumer(&self.config, found, options).await?))
    }

    fn admin(&self) -> Result<Option<Box<dyn BrokerAdmin>>, Failure> {
        Ok(Some(Box::new(Admin::new(self.config.clone())?)))
    }

    fn monitor(&self) -> Result<Option<Box<dyn BrokerMonitor>>, Failure> {
        Ok(Some(Box::new(Monitor::new(self.config.clone())?)))
    }

    async fn replay_source(&self, group: &str) -> Result<Box<dyn ReplaySource>, ReplaySourceError> {
        let Some(found) = self.group(group) else {
            let names: Vec<String> = self.config.topology.groups.iter().map(|group| group.name.clone()).collect();
            return Err(ReplaySourceError::group_not_found(group, &names));
        };
        Ok(Box::new(ReplayLog::open(&self.config, found).await?))
    }
}

/// Whether a group receives messages of this address. The subjects of a stream outside the topology are not known.
fn receives(group: &Group, stream: Option<&Stream>, address: &str) -> bool {
    let subjects = match (group.subjects.as_slice(), stream) {
        ([], None) => return true,
        ([], Some(stream)) => &stream.subjects,
        _ => &group.subjects,
    };
    let template = AddressTemplate::new(address);
    subjects.iter().any(|subject| template.can_match(&pattern_words(subject)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::Topology;

    #[test]
    fn a_stream_is_counted_if_messages_outlive_their_acknowledgement() {
        let week = Duration::from_hours(7 * 24);
        let streams = vec![
            Stream { max_age: Some(week), ..Stream::new("ORDERS", ["orders.>"]) },
            Stream::new("EVENTS", ["events.>"]),
            Stream { retention: Retention::WorkQueue, max_age: Some(week), ..Stream::new("WORK", ["work.>"]) },
            Stream { retention: Retention::Interest, ..Stream::new("NEWS", ["news.>"]) },
        ];
        let config = Config { topology: Topology { streams, groups: Vec::new() }, ..Config::new("nats://localhost") };
        let windows = Adapter { config }.redelivery_windows();
        let found: Vec<_> = windows.iter().map(|window| (window.source.as_str(), window.duration)).collect();
        assert_eq!(found, [("stream `ORDERS`", Some(week)), ("stream `EVENTS`", None)]);
    }
}
