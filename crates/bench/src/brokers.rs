//! From PostgreSQL into real brokers, compared with their client libraries publishing the same messages from memory.

mod alone;
mod nats;
mod rabbitmq;
mod timed;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use relevo_core::{Broker, BrokerConsumer, Draft, MessageId, Publication};
use relevo_relay::Config;
use sqlx::ConnectOptions as _;
use sqlx::postgres::PgConnectOptions;

use crate::engine::{self, median};
use crate::fill::{Bench, KEYS, PAYLOAD_BYTES, run};
use crate::latency::{ROUNDS, Rounds, Stolen};
use crate::report::Report;
use crate::{latency, memory};
use alone::Client;
use timed::Timed;

/// Number of messages of one measured drain.
pub(crate) const COUNT: u32 = 150_000;
/// Number of unconfirmed messages of the client alone: one per key, because the relay has one of each key in flight.
const WINDOW: usize = KEYS as usize;
const HOT: u32 = 5_000;
const DRAINS: usize = 3;
const LATENCY_TIME: Duration = Duration::from_secs(5);

/// One of the measured brokers.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// NATS JetStream with a file-based stream.
    Nats,
    /// NATS JetStream that flushes to the disk before it acknowledges.
    NatsSynced,
    /// RabbitMQ with a quorum queue.
    RabbitMq,
}

impl Kind {
    const ALL: [Self; 3] = [Self::Nats, Self::NatsSynced, Self::RabbitMq];

    /// The kind whose variant has this name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| format!("{kind:?}") == name)
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Nats => "NATS JetStream",
            Self::NatsSynced => "NATS JetStream, sync_interval always",
            Self::RabbitMq => "RabbitMQ, quorum queue",
        }
    }

    const fn variable(self) -> &'static str {
        match self {
            Self::Nats => "RELEVO_TEST_NATS_URL",
            Self::NatsSynced => "RELEVO_BENCH_NATS_SYNCED_URL",
            Self::RabbitMq => "RELEVO_TEST_RABBITMQ_URL",
        }
    }

    fn url(self) -> anyhow::Result<String> {
        let name = self.variable();
        std::env::var(name).with_context(|| format!("`{name}` is not set; hint: run `cargo xtask bench brokers`"))
    }

    /// Creates an empty stream or queue, and deletes the one of an earlier run.
    pub(crate) async fn empty(self) -> anyhow::Result<()> {
        match self {
            Self::Nats | Self::NatsSynced => nats::empty(&self.url()?).await,
            Self::RabbitMq => rabbitmq::empty(&self.url()?).await,
        }
    }

    /// Opens our adapter.
    pub(crate) async fn open(self) -> anyhow::Result<Arc<dyn Broker>> {
        Ok(match self {
            Self::Nats | Self::NatsSynced => Arc::new(nats::open(&self.url()?).await?),
            Self::RabbitMq => Arc::new(rabbitmq::open(&self.url()?).await?),
        })
    }

    /// A consumer of all messages, with our adapter.
    pub(crate) async fn consumer(self) -> anyhow::Result<Arc<dyn BrokerConsumer>> {
        Ok(match self {
            Self::Nats | Self::NatsSynced => Arc::new(nats::consumer(&self.url()?).await?),
            Self::RabbitMq => Arc::new(rabbitmq::consumer(&self.url()?).await?),
        })
    }

    /// Connects the client library without our adapter.
    async fn client(self) -> anyhow::Result<Box<dyn Client>> {
        Ok(match self {
            Self::Nats | Self::NatsSynced => Box::new(nats::client(&self.url()?, WINDOW).await?),
            Self::RabbitMq => Box::new(rabbitmq::client(&self.url()?).await?),
        })
    }

    /// The targets for the median and the 99th percentile from COMMIT to confirm, in milliseconds.
    const fn latencies(self) -> Option<(f64, f64)> {
        match self {
            Self::Nats => Some((5.0, 12.0)),
            Self::NatsSynced => None,
            Self::RabbitMq => Some((8.0, 25.0)),
        }
    }
}

pub(crate) async fn measure(server: &PgConnectOptions, only: Option<&str>, report: &mut Report) -> anyhow::Result<()> {
    let mut bench = Bench::new(server, "brokers").await?;
    drop(bench.store().await?);
    bench.fill(COUNT).await?;
    let messages: Vec<Publication> = (0..COUNT).map(publication).collect();
    for kind in Kind::ALL.into_iter().filter(|kind| only.is_none_or(|only| kind.name().contains(only))) {
        share(kind, &mut bench, &messages, report).await?;
        hot_key(kind, server, report).await?;
        if let Some(targets) = kind.latencies() {
            latencies(kind, server, &messages, targets, report).await?;
        }
        kind.empty().await?;
        bench.rewind().await?;
        let peak = memory::peak_of_child(bench.options.to_url_lossy().as_ref(), Some(kind))?;
        report.record(&format!("{}: resident memory", kind.name()), peak, "MB", format!("draining {COUNT}"));
    }
    Ok(())
}

/// Measures the relay end to end and the client alone, alternating.
async fn share(kind: Kind, bench: &mut Bench, messages: &[Publication], report: &mut Report) -> anyhow::Result<()> {
    let (mut relay, mut alone) = (Vec::new(), Vec::new());
    for _ in 0..DRAINS {
        kind.empty().await?;
        alone.push(alone::rate(&*kind.client().await?, messages, WINDOW).await?);
        kind.empty().await?;
        bench.rewind().await?;
        let store = bench.store().await?;
        relay.push(engine::drain(store, kind.open().await?, Config::default(), COUNT.into()).await?);
    }
    let (relay, alone) = (median(relay), median(alone));
    let details = format!("relay {relay:.0}/s, client alone {alone:.0}/s");
    report.ratio(&format!("{}: share of the raw client", kind.name()), relay / alone, 0.7, details);
    Ok(())
}

async fn hot_key(kind: Kind, server: &PgConnectOptions, report: &mut Report) -> anyhow::Result<()> {
    let mut bench = Bench::new(server, "brokers_hot").await?;
    drop(bench.store().await?);
    run(
        &mut bench.connection,
        &format!("SELECT count(relevo.emit('orders', 'hot', 'OrderChanged', '{{}}')) FROM generate_series(1, {HOT})"),
    )
    .await?;
    kind.empty().await?;
    let rate = engine::drain(bench.store().await?, kind.open().await?, Config::default(), HOT.into()).await?;
    report.rate(&format!("{}: one hot key only", kind.name()), rate, None, "one message in flight".to_owned());
    Ok(())
}

async fn latencies(
    kind: Kind,
    server: &PgConnectOptions,
    messages: &[Publication],
    (p50, p99): (f64, f64),
    report: &mut Report,
) -> anyhow::Result<()> {
    let [mut alone, mut publishing, mut total] = [const { Rounds::new() }; 3];
    let stolen = Stolen::since_now();
    for _ in 0..ROUNDS {
        let bench = Bench::new(server, "brokers_latency").await?;
        drop(bench.store().await?);
        kind.empty().await?;
        // The same writers load the database and the disk.
        let client = kind.client().await?;
        let (millis, written) = tokio::join!(
            alone::latencies(&*client, messages, Duration::from_millis(1), LATENCY_TIME),
            latency::write(&bench, 1000, 4, LATENCY_TIME)
        );
        written?;
        alone.push(millis?);
        let bench = Bench::new(server, "brokers_latency").await?;
        kind.empty().await?;
        let receipts = latency::Receipts::default();
        let broker = Timed::new(kind.open().await?, Arc::clone(&receipts));
        let millis = broker.millis();
        total.push(latency::at_rate(&bench, Arc::new(broker), &receipts, 1000, 4, LATENCY_TIME).await?);
        let mut millis = std::mem::take(&mut *millis.lock());
        millis.sort_by(f64::total_cmp);
        publishing.push(millis);
    }
    let stolen = stolen.percent();
    let details = |percent| {
        format!(
            "{}; {:.1} ms of it publishing; the client alone {:.1} ms; {stolen:.0} % of the CPU time was stolen",
            total.spread(percent),
            publishing.percentile(percent),
            alone.percentile(percent)
        )
    };
    let name = |part: &str| format!("{}: COMMIT to confirm at 1000/s, {part}", kind.name());
    report.at_most(&name("p50"), total.percentile(50), "ms", p50, details(50));
    report.at_most(&name("p99"), total.percentile(99), "ms", p99, details(99));
    Ok(())
}

/// The publication that a row of the outbox becomes.
pub(crate) fn publication(number: u32) -> Publication {
    let mut random = [0; 10];
    random[..4].copy_from_slice(&number.to_be_bytes());
    let draft = Draft::json("orders", &format!("k-{}", number % KEYS), "OrderPlaced", vec![b'x'; PAYLOAD_BYTES]);
    let message = draft.into_message(MessageId::v7(number.into(), random), jiff::Timestamp::UNIX_EPOCH);
    Publication {
        message: Arc::new(message),
        address: "orders".into(),
        headers: Arc::default(),
        seq: number.into(),
        epoch: 1,
    }
}
