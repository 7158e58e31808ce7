//! The far side: the broker that the relays carry messages to, what is done to it, and what it keeps in the end.

mod embedded;
mod nats;
mod rabbitmq;

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};
use serde::Deserialize;
use tokio::time::sleep;

use crate::consumers::Group;
use crate::harms::Blow;
use crate::ledger::Feed;
use crate::oracle::Arrival;
use relevo_core::random::SplitMix64;

/// Which broker the relays carry messages to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Far {
    /// In a SQLite file that all relays share.
    Embedded,
    /// A RabbitMQ server of the run's own, with a quorum queue.
    RabbitMq,
    /// A NATS server of the run's own, with a JetStream stream in files.
    Nats,
}

impl Far {
    /// What people call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Embedded => "the embedded broker",
            Self::RabbitMq => "RabbitMQ",
            Self::Nats => "NATS JetStream",
        }
    }
}

/// The broker on stage.
pub(crate) enum Broker {
    Embedded(embedded::Embedded),
    RabbitMq(rabbitmq::RabbitMq),
    Nats(nats::Nats),
}

impl Broker {
    /// Starts it, with whatever keeps everything that arrives, and with these groups.
    pub(crate) async fn start(far: Far, directory: &Path, groups: &[Group]) -> Result<Self> {
        let broker = match far {
            Far::Embedded => Self::Embedded(embedded::Embedded::start(directory).await?),
            Far::RabbitMq => Self::RabbitMq(rabbitmq::RabbitMq::start().await?),
            Far::Nats => Self::Nats(nats::Nats::start().await?),
        };
        for group in groups {
            broker.feed(*group)?.declare().await?;
        }
        if let Self::RabbitMq(broker) = &broker {
            // A quorum queue that is killed in its first moments may come back empty: the server's own loss, and not what is
            // looked for here. An orderly restart makes it old enough.
            broker.server.stop().await;
            broker.server.start_again().await;
        }
        Ok(broker)
    }

    /// Where a group's messages are, for its members: through the proxy, if there is one.
    pub(crate) fn spec(&self, group: Group) -> String {
        match self {
            Self::Embedded(broker) => broker.spec(),
            Self::RabbitMq(broker) => rabbitmq::spec(&broker.url(), group),
            Self::Nats(broker) => nats::spec(&broker.url()),
        }
    }

    /// A group as the judge sees it.
    fn feed(&self, group: Group) -> Result<Feed> {
        let spec = match self {
            Self::Embedded(broker) => broker.spec(),
            Self::RabbitMq(broker) => rabbitmq::spec(&broker.server.amqp_url(), group),
            Self::Nats(broker) => nats::spec(&broker.server.url()),
        };
        Feed::new(&spec, group.name, group.lanes(), group.ordered)
    }

    /// How many messages the groups have not settled.
    pub(crate) async fn queued(&self, groups: &[Group]) -> Result<u64> {
        let mut queued = 0;
        for group in groups {
            queued += self.feed(*group)?.left().await?;
        }
        Ok(queued)
    }

    /// The destination's part of a relay's configuration.
    pub(crate) fn config(&self, destination: &str) -> String {
        match self {
            Self::Embedded(broker) => broker.config(destination),
            Self::RabbitMq(broker) => broker.config(destination),
            Self::Nats(broker) => broker.config(destination),
        }
    }

    /// Does it; returns when the broker is back. Says whether there was anything to be done it to.
    pub(crate) async fn blow(&self, blow: Blow, past: Duration, random: &mut SplitMix64) -> bool {
        match (self, blow) {
            // A library within the relays: whatever is done to them is done to it.
            (Self::Embedded(_), _) => return false,
            (Self::RabbitMq(broker), Blow::Kill) => {
                broker.server.kill9().await;
                pause(random).await;
                broker.server.start_again().await;
            }
            (Self::Nats(broker), Blow::Kill) => {
                broker.server.kill9().await;
                pause(random).await;
                broker.server.start_again().await;
            }
            (Self::RabbitMq(broker), Blow::Freeze) => {
                broker.server.pause().await;
                sleep(past).await;
                broker.server.resume().await;
            }
            (Self::Nats(broker), Blow::Freeze) => {
                broker.server.pause().await;
                sleep(past).await;
                broker.server.resume().await;
            }
            (Self::RabbitMq(broker), Blow::Cut) => broker.proxy.cut().await,
            (Self::Nats(broker), Blow::Cut) => broker.proxy.cut().await,
        }
        true
    }

    /// What it keeps, in the order in which each key's messages were taken.
    pub(crate) async fn arrivals(&self) -> Result<Vec<Arrival>> {
        match self {
            Self::Embedded(broker) => broker.arrivals().await,
            Self::RabbitMq(broker) => broker.arrivals().await,
            Self::Nats(broker) => broker.arrivals().await,
        }
    }
}

async fn pause(random: &mut SplitMix64) {
    sleep(Duration::from_millis(random.below(500).into())).await;
}

/// What producers write.
#[derive(Deserialize)]
struct Payload {
    token: String,
}

/// From the payload and the key's header, as any receiver reads them.
fn arrival(key: Option<String>, payload: &[u8]) -> Result<Arrival> {
    let Some(key) = key else { bail!("a message without its key arrived") };
    let Payload { token } = serde_json::from_slice(payload)?;
    Ok(Arrival { key, token })
}
