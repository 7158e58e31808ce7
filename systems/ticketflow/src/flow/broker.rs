//! The broker, embedded or RabbitMQ: the rest of the program does not know which.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use parking_lot::{Mutex, MutexGuard};
use relevo::brokers::embedded::{self, BrokerFile};
use relevo::brokers::rabbitmq::{self, Admin, Monitor, Publisher};
use relevo::core::broker::admin::{BrokerAdmin, TopologyItem, TopologyStatus};
use relevo::core::broker::sample::{BrokerMonitor as _, BrokerSample};
use relevo::core::{self, Class};
use tokio::time::sleep;
use tracing::{error, info, warn};

use super::topology::{groups, topology};
use crate::config;

/// The longest pause between two looks for a broker that is away.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// A broker. Cheap to clone: clones share its connections.
#[derive(Clone)]
pub enum Broker {
    /// A file, shared by the processes of one machine.
    Embedded(BrokerFile),
    /// A server; one that is away is waited for.
    RabbitMq {
        /// To publish to.
        broker: Publisher,
        /// To make and look at what is there.
        admin: Arc<Admin>,
        /// Samples its metrics.
        monitor: Arc<Monitor>,
        /// Why it cannot be used though it is there, as long as a person has not mended that.
        refusal: Arc<Mutex<Option<String>>>,
        /// Who we are there.
        config: Arc<rabbitmq::Config>,
    },
}

impl Broker {
    /// Opens what the configuration names.
    pub async fn open(config: &config::Broker) -> Result<Self> {
        match config {
            config::Broker::Embedded(path) => open_embedded(path).await,
            config::Broker::RabbitMq { url, management_url, ladder } => {
                let config = rabbitmq::Config {
                    source: "/ticketflow".to_owned(),
                    management_urls: management_url.iter().map(|url| url.expose().to_owned()).collect(),
                    topology: topology(ladder),
                    ..rabbitmq::Config::new(url.expose())
                };
                let admin = Arc::new(Admin::new(config.clone())?);
                let monitor = Arc::new(Monitor::new(config.clone())?);
                let broker = Publisher::open(config.clone()).await?;
                Ok(Self::RabbitMq { broker, admin, monitor, refusal: Arc::default(), config: Arc::new(config) })
            }
        }
    }

    /// What kind of broker, as metrics name it.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Embedded(_) => "embedded",
            Self::RabbitMq { .. } => "rabbitmq",
        }
    }

    /// To publish to.
    pub fn publisher(&self) -> Arc<dyn core::Broker> {
        match self {
            Self::Embedded(broker) => Arc::new(broker.clone()),
            Self::RabbitMq { broker, .. } => Arc::new(broker.clone()),
        }
    }

    /// A consumer of one of the queues, with this name for people.
    pub async fn consumer(&self, queue: &str, name: &str) -> Result<Arc<dyn core::BrokerConsumer>> {
        Ok(match self {
            Self::Embedded(broker) => {
                let membership =
                    embedded::ConsumerOptions { name: name.to_owned(), ..embedded::ConsumerOptions::default() };
                Arc::new(broker.consumer(queue, membership).await?)
            }
            Self::RabbitMq { config, .. } => {
                let wanted = config.topology.queues.iter().find(|wanted| wanted.name == queue);
                let queue = wanted.context("no such queue")?;
                let membership =
                    rabbitmq::ConsumerOptions { name: name.to_owned(), ..rabbitmq::ConsumerOptions::default() };
                Arc::new(rabbitmq::GroupConsumer::open(config, queue, membership).await?)
            }
        })
    }

    /// Makes what is missing there, as soon as the broker is there. One that refuses us, or has something that differs, is told of
    /// by [`refusal`](Self::refusal) and tried again: a person mends it there, while tickets are taken here.
    pub async fn prepare(&self) -> Result<()> {
        let Self::RabbitMq { config, refusal, .. } = self else { return Ok(()) };
        // Messages do not need the management API, so nobody waits for it.
        let admin = Admin::new(rabbitmq::Config { management_urls: Vec::new(), ..config.as_ref().clone() })?;
        let mut pause = Duration::from_millis(100);
        loop {
            match admin.apply().await.map(|pieces| different(&pieces)) {
                Ok(None) => {
                    refuses(refusal, None);
                    return Ok(());
                }
                Ok(Some(why)) => refuses(refusal, Some(why)),
                Err(failure) if failure.class() == Class::Blocked => refuses(refusal, Some(failure.error_chain())),
                Err(failure) => warn!(error = failure.error_chain(), "the broker is away, will try again"),
            }
            sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// Why it cannot be used though it is there; `None` as far as nobody knows of a reason.
    pub fn refusal(&self) -> Option<String> {
        match self {
            Self::Embedded(_) => None,
            Self::RabbitMq { refusal, .. } => held(refusal).clone(),
        }
    }

    /// What is there of what should be; with `make`, makes what is missing.
    pub async fn examine(&self, make: bool) -> Result<Vec<TopologyItem>> {
        let Self::RabbitMq { admin, .. } = self else { return Ok(Vec::new()) };
        let looked = if make { admin.apply().await } else { admin.plan().await };
        looked.map_err(|failure| anyhow::anyhow!(failure.error_chain()))
    }

    /// Whether its connection stands and can be used; a file is always there.
    pub fn is_up(&self) -> bool {
        match self {
            Self::Embedded(_) => true,
            Self::RabbitMq { broker, .. } => broker.is_connected() && self.refusal().is_none(),
        }
    }

    /// How it is doing, as far as it tells.
    pub async fn vitals(&self) -> Option<BrokerSample> {
        match self {
            Self::Embedded(_) => None,
            Self::RabbitMq { monitor, .. } => monitor.sample().await.ok(),
        }
    }

    /// Gives its connections back.
    pub async fn close(&self) {
        match self {
            Self::Embedded(broker) => broker.close().await,
            Self::RabbitMq { broker, .. } => broker.close().await,
        }
    }
}

async fn open_embedded(path: &Path) -> Result<Broker> {
    let opened = BrokerFile::open(embedded::Config::new(path)).await;
    let broker = opened.with_context(|| format!("the broker's `{}` cannot be opened", path.display()))?;
    for group in groups() {
        broker.declare_group(&group).await?;
    }
    Ok(Broker::Embedded(broker))
}

/// What differs, if anything does. Nothing is made then, so that nobody's setting is lost.
fn different(pieces: &[TopologyItem]) -> Option<String> {
    for piece in pieces {
        if let TopologyStatus::Different(how) = &piece.status {
            let how: Vec<_> = how.iter().map(ToString::to_string).collect();
            return Some(format!("{} is there and differs: {}", piece.name, how.join("; ")));
        }
    }
    let made = pieces.iter().filter(|piece| piece.status == TopologyStatus::Created).count();
    if made > 0 {
        info!(made, "exchange and queues are there now");
    }
    None
}

/// Keeps why the broker refuses us, and says each reason once: it is tried often, and a person needs to be told one time.
fn refuses(refusal: &Mutex<Option<String>>, why: Option<String>) {
    let mut held = held(refusal);
    if let Some(why) = why.as_ref().filter(|why| held.as_ref() != Some(why)) {
        error!(error = why, "the broker refuses us: events wait in the database until somebody mends it");
    }
    *held = why;
}

fn held(refusal: &Mutex<Option<String>>) -> MutexGuard<'_, Option<String>> {
    // Nothing panics while it is held.
    refusal.lock()
}
