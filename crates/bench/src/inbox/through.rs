//! The latency from the writer's COMMIT to the handler's, through relay and broker.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use parking_lot::Mutex;
use relevo_core::{AckOutcome, BrokerConsumer, ConsumerCapabilities, Delivery, DeliveryTag, Failure, Lane, MessageId};
use relevo_inbox::MessageOrder;
use sqlx::postgres::PgConnectOptions;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{WORKERS, effect, runtime};
use crate::brokers::Kind;
use crate::fill::{Bench, run};
use crate::latency::{self, ROUNDS, Receipts, Rounds, Stolen};
use crate::report::Report;

pub(super) const KINDS: [Kind; 2] = [Kind::Nats, Kind::RabbitMq];
const RATE: u32 = 500;
const TIME: Duration = Duration::from_secs(6);

pub(super) async fn measure(kind: Kind, server: &PgConnectOptions, report: &mut Report) -> anyhow::Result<()> {
    let mut millis = Rounds::new();
    let stolen = Stolen::since_now();
    for _ in 0..ROUNDS {
        millis.push(round(kind, server).await?);
    }
    let stolen = stolen.percent();
    for (percent, max) in [(50, 20.0), (99, 80.0)] {
        let name = format!("inbox: COMMIT to effect at {RATE}/s through {}, p{percent}", kind.name());
        let spread = millis.spread(percent);
        let details = format!("{spread}; one by one in key order; {stolen:.0} % of the CPU time was stolen");
        report.at_most(&name, millis.percentile(percent), "ms", max, details);
    }
    Ok(())
}

/// Everything is in one database, like a service that consumes its own messages.
async fn round(kind: Kind, server: &PgConnectOptions) -> anyhow::Result<Vec<f64>> {
    let mut bench = Bench::new(server, "inbox_through").await?;
    run(&mut bench.connection, effect::TABLE).await?;
    kind.empty().await?;
    let receipts = Receipts::default();
    let consumer =
        TimedConsumer { inner: kind.consumer().await?, out: Mutex::default(), receipts: Arc::clone(&receipts) };
    let order = MessageOrder::ByKey { concurrency: WORKERS as usize };
    let runtime = runtime(&bench, Arc::new(consumer), order, 1).await?;
    let stop = CancellationToken::new();
    let mut tasks = JoinSet::new();
    tasks.spawn(runtime.run(stop.clone()));
    let millis = latency::at_rate(&bench, kind.open().await?, &receipts, RATE, 4, TIME).await?;
    stop.cancel();
    while let Some(result) = tasks.join_next().await {
        result??;
    }
    Ok(millis)
}

/// Records when each message is acknowledged, which is after its effect was committed.
struct TimedConsumer {
    inner: Arc<dyn BrokerConsumer>,
    out: Mutex<BTreeMap<DeliveryTag, MessageId>>,
    receipts: Receipts,
}

impl TimedConsumer {
    fn record(&self, tags: &[DeliveryTag]) {
        let now = Instant::now();
        let mut out = self.out.lock();
        let mut receipts = self.receipts.lock();
        for tag in tags {
            if let Some(id) = out.remove(tag) {
                receipts.entry(id).or_insert(now);
            }
        }
    }
}

#[async_trait]
impl BrokerConsumer for TimedConsumer {
    fn capabilities(&self) -> ConsumerCapabilities {
        self.inner.capabilities()
    }

    async fn receive(&self, limit: usize) -> Result<Vec<Delivery>, Failure> {
        let deliveries = self.inner.receive(limit).await?;
        let ids = deliveries.iter().filter_map(|delivery| Some((delivery.tag, delivery.raw.decode().ok()?.message.id)));
        self.out.lock().extend(ids);
        Ok(deliveries)
    }

    async fn acknowledge(&self, tags: &[DeliveryTag]) -> Vec<AckOutcome> {
        self.record(tags);
        self.inner.acknowledge(tags).await
    }

    async fn pause(&self, lane: &Lane) -> Result<(), Failure> {
        self.inner.pause(lane).await
    }

    async fn resume(&self, lane: &Lane) -> Result<(), Failure> {
        self.inner.resume(lane).await
    }

    async fn close(&self) -> Result<(), Failure> {
        self.inner.close().await
    }
}
