//! The source of a ledger's messages: a group at one of the brokers.

mod embedded;
mod nats;
mod rabbitmq;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use relevo_core::{Broker, BrokerConsumer};

/// The RabbitMQ exchange for all messages, unless the feed names another one.
pub const EXCHANGE: &str = "ledger";

/// The kind of broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The embedded broker in this file.
    Embedded(PathBuf),
    /// RabbitMQ.
    RabbitMq {
        /// The server and the virtual host.
        url: String,
        /// The queue, which is also the group.
        queue: String,
        /// The exchange that the queue is bound to, with all routing keys.
        exchange: String,
        /// The delays of its retry queues.
        retry: Vec<Duration>,
    },
    /// NATS JetStream.
    Nats {
        /// The server.
        url: String,
        /// The stream, which stores all subjects that start with its name.
        stream: String,
    },
}

/// A group at a broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Feed {
    /// The kind of broker, and its location.
    pub kind: Kind,
    /// The name of the group, if the broker names groups separately from queues.
    pub group: String,
    /// Number of lanes that publishers hash keys into. The embedded broker always has lanes, by default four.
    pub lanes: Option<u16>,
    /// Whether the broker keeps the order of a key when it redelivers messages.
    pub ordered: bool,
    /// After this time without a heartbeat, other members take over the lanes of a member.
    pub lease: Duration,
    /// Maximum number of unsettled messages of a lane.
    pub prefetch: u16,
}

impl Feed {
    /// Parses `embedded:PATH`, `amqp://…#QUEUE` or `nats://…#STREAM`. A queue may be followed by `?exchange=NAME` and
    /// `&retry_ms=200,1000`.
    pub fn new(spec: &str, group: &str, lanes: Option<u16>, ordered: bool) -> Result<Self> {
        Ok(Self {
            kind: spec.parse()?,
            group: group.to_owned(),
            lanes,
            ordered,
            lease: Duration::from_secs(2),
            prefetch: 64,
        })
    }

    /// Creates missing objects: stream or exchange, queues, group.
    pub async fn declare(&self) -> Result<()> {
        match &self.kind {
            Kind::Embedded(path) => embedded::declare(self, path).await,
            Kind::RabbitMq { .. } => rabbitmq::declare(self).await,
            Kind::Nats { .. } => nats::declare(self).await,
        }
    }

    /// The address to publish to so that this group receives the messages.
    pub fn address(&self) -> String {
        match &self.kind {
            Kind::Embedded(_) | Kind::RabbitMq { .. } => "orders".to_owned(),
            Kind::Nats { stream, .. } => format!("{stream}.orders"),
        }
    }

    /// A publisher of the adapter.
    pub async fn publisher(&self) -> Result<Arc<dyn Broker>> {
        Ok(match &self.kind {
            Kind::Embedded(path) => embedded::publisher(path).await?,
            Kind::RabbitMq { .. } => rabbitmq::publisher(self).await?,
            Kind::Nats { .. } => nats::publisher(self).await?,
        })
    }

    /// A member of the group.
    pub async fn consumer(&self, name: &str) -> Result<Arc<dyn BrokerConsumer>> {
        Ok(match &self.kind {
            Kind::Embedded(path) => embedded::consumer(self, path, name).await?,
            Kind::RabbitMq { .. } => rabbitmq::consumer(self, name).await?,
            Kind::Nats { .. } => nats::consumer(self, name).await?,
        })
    }

    /// The number of messages that the group has not settled. RabbitMQ does not count unacknowledged messages until
    /// their consumer disconnects.
    pub async fn unsettled(&self) -> Result<u64> {
        match &self.kind {
            Kind::Embedded(path) => embedded::unsettled(self, path).await,
            Kind::RabbitMq { .. } => rabbitmq::unsettled(self).await,
            Kind::Nats { .. } => nats::unsettled(self).await,
        }
    }
}

impl std::str::FromStr for Kind {
    type Err = anyhow::Error;

    fn from_str(spec: &str) -> Result<Self> {
        if let Some(path) = spec.strip_prefix("embedded:") {
            return Ok(Self::Embedded(path.into()));
        }
        let named = |part: &str| {
            let parts = spec.rsplit_once('#');
            parts.with_context(|| format!("`{spec}` does not name its {part}; hint: `…#NAME`"))
        };
        if spec.starts_with("nats://") {
            let (url, stream) = named("stream")?;
            return Ok(Self::Nats { url: url.to_owned(), stream: stream.to_owned() });
        }
        if !spec.starts_with("amqp://") {
            bail!("unknown broker `{spec}`; hint: `embedded:PATH`, `amqp://…#QUEUE` or `nats://…#STREAM`");
        }
        let (url, rest) = named("queue")?;
        let (queue, parameters) = rest.split_once('?').unwrap_or((rest, ""));
        let (mut exchange, mut retry) = (EXCHANGE.to_owned(), Vec::new());
        for parameter in parameters.split('&').filter(|parameter| !parameter.is_empty()) {
            match parameter.split_once('=') {
                Some(("exchange", name)) => name.clone_into(&mut exchange),
                Some(("retry_ms", delays)) => {
                    let delay = |text: &str| text.parse().map(Duration::from_millis);
                    retry = delays.split(',').map(delay).collect::<Result<_, _>>().context("a delay is a number")?;
                }
                _ => bail!("unknown queue parameter `{parameter}`; hint: `exchange=NAME` or `retry_ms=200,1000`"),
            }
        }
        Ok(Self::RabbitMq { url: url.to_owned(), queue: queue.to_owned(), exchange, retry })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spec_names_the_broker() {
        assert_eq!("embedded:/tmp/b.db".parse::<Kind>().unwrap(), Kind::Embedded("/tmp/b.db".into()));
        let nats = Kind::Nats { url: "nats://h:1".to_owned(), stream: "S".to_owned() };
        assert_eq!("nats://h:1#S".parse::<Kind>().unwrap(), nats);
        let rabbitmq = Kind::RabbitMq {
            url: "amqp://h/v?heartbeat=2".to_owned(),
            queue: "q".to_owned(),
            exchange: "x".to_owned(),
            retry: vec![Duration::from_millis(200), Duration::from_secs(1)],
        };
        assert_eq!("amqp://h/v?heartbeat=2#q?exchange=x&retry_ms=200,1000".parse::<Kind>().unwrap(), rabbitmq);
        for wrong in ["kafka://h#q", "amqp://h", "nats://h", "amqp://h#q?x=1", "amqp://h#q?retry_ms=soon"] {
            assert!(wrong.parse::<Kind>().is_err(), "{wrong}");
        }
    }
}
