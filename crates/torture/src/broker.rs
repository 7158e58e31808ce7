//! The broker that the relays publish to: its faults, and the messages that it holds at the end.

mod embedded;
mod nats;
mod rabbitmq;

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};
use serde::Deserialize;
use tokio::time::sleep;

use crate::consumers::Group;
use crate::faults::ServerFault;
use crate::ledger::Feed;
use crate::oracle::StoredMessage;
use relevo_core::random::SplitMix64;

/// The kind of broker that the relays publish to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BrokerKind {
    /// The embedded broker, in a SQLite file that all relays share.
    Embedded,
    /// A private RabbitMQ server with a quorum queue.
    RabbitMq,
    /// A private NATS server with a file-based JetStream stream.
    Nats,
}

impl BrokerKind {
    /// The display name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Embedded => "the embedded broker",
            Self::RabbitMq => "RabbitMQ",
            Self::Nats => "NATS JetStream",
        }
    }
}

/// The broker of a run.
pub(crate) enum Broker {
    Embedded(embedded::Embedded),
    RabbitMq(rabbitmq::RabbitMq),
    Nats(nats::Nats),
}

impl Broker {
    /// Starts the broker with these groups, and with a queue or stream that stores all messages.
    pub(crate) async fn start(broker: BrokerKind, directory: &Path, groups: &[Group]) -> Result<Self> {
        let broker = match broker {
            BrokerKind::Embedded => Self::Embedded(embedded::Embedded::start(directory).await?),
            BrokerKind::RabbitMq => Self::RabbitMq(rabbitmq::RabbitMq::start().await?),
            BrokerKind::Nats => Self::Nats(nats::Nats::start().await?),
        };
        for group in groups {
            broker.feed(*group)?.declare().await?;
        }
        if let Self::RabbitMq(broker) = &broker {
            // A quorum queue that is killed shortly after its creation may come back empty. That is a loss of the
            // server itself, which this test does not check. A clean restart avoids it.
            broker.server.stop().await;
            broker.server.start_again().await;
        }
        Ok(broker)
    }

    /// The source of a group's messages, for its members: through the proxy, if there is one.
    pub(crate) fn spec(&self, group: Group) -> String {
        match self {
            Self::Embedded(broker) => broker.spec(),
            Self::RabbitMq(broker) => rabbitmq::spec(&broker.url(), group),
            Self::Nats(broker) => nats::spec(&broker.url()),
        }
    }

    /// The group as the oracle sees it, without the proxy.
    fn feed(&self, group: Group) -> Result<Feed> {
        let spec = match self {
            Self::Embedded(broker) => broker.spec(),
            Self::RabbitMq(broker) => rabbitmq::spec(&broker.server.amqp_url(), group),
            Self::Nats(broker) => nats::spec(&broker.server.url()),
        };
        Feed::new(&spec, group.name, group.lanes(), group.ordered)
    }

    /// The number of messages that the groups have not settled.
    pub(crate) async fn queued(&self, groups: &[Group]) -> Result<u64> {
        let mut queued = 0;
        for group in groups {
            queued += self.feed(*group)?.unsettled().await?;
        }
        Ok(queued)
    }

    /// The destination section of a relay's configuration.
    pub(crate) fn config(&self, destination: &str) -> String {
        match self {
            Self::Embedded(broker) => broker.config(destination),
            Self::RabbitMq(broker) => broker.config(destination),
            Self::Nats(broker) => broker.config(destination),
        }
    }

    /// Injects a fault, and returns when the broker is back. Returns `false` if this broker has no such fault.
    pub(crate) async fn fault(&self, fault: ServerFault, past: Duration, random: &mut SplitMix64) -> bool {
        match (self, fault) {
            // This broker is a library inside the relays: faults of the relays cover it.
            (Self::Embedded(_), _) => return false,
            (Self::RabbitMq(broker), ServerFault::Kill) => {
                broker.server.kill9().await;
                pause(random).await;
                broker.server.start_again().await;
            }
            (Self::Nats(broker), ServerFault::Kill) => {
                broker.server.kill9().await;
                pause(random).await;
                broker.server.start_again().await;
            }
            (Self::RabbitMq(broker), ServerFault::Suspend) => {
                broker.server.pause().await;
                sleep(past).await;
                broker.server.resume().await;
            }
            (Self::Nats(broker), ServerFault::Suspend) => {
                broker.server.pause().await;
                sleep(past).await;
                broker.server.resume().await;
            }
            (Self::RabbitMq(broker), ServerFault::Disconnect) => broker.proxy.cut().await,
            (Self::Nats(broker), ServerFault::Disconnect) => broker.proxy.cut().await,
        }
        true
    }

    /// The stored messages. Messages of one key are in the order in which the broker accepted them.
    pub(crate) async fn stored_messages(&self) -> Result<Vec<StoredMessage>> {
        match self {
            Self::Embedded(broker) => broker.stored_messages().await,
            Self::RabbitMq(broker) => broker.stored_messages().await,
            Self::Nats(broker) => broker.stored_messages().await,
        }
    }
}

async fn pause(random: &mut SplitMix64) {
    sleep(Duration::from_millis(random.below(500).into())).await;
}

/// The payload that producers write.
#[derive(Deserialize)]
struct Payload {
    token: String,
}

/// Reads the payload and the key header, as any consumer does.
fn stored_message(key: Option<String>, payload: &[u8]) -> Result<StoredMessage> {
    let Some(key) = key else { bail!("a message without its key arrived") };
    let Payload { token } = serde_json::from_slice(payload)?;
    Ok(StoredMessage { key, token })
}
