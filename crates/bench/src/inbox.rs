//! The consumer runtime: handled messages per second, compared with the same effect alone, and the latency from COMMIT
//! to the effect.

mod effect;
mod feed;
mod through;

use std::sync::Arc;
use std::time::{Duration, Instant};

use relevo_core::BrokerConsumer;
use relevo_core::inbox::InboxRetention;
use relevo_inbox::{Config, ConsumerRuntime, Handlers, MessageOrder};
use relevo_store_postgres::inbox::{self, Inbox};
use sqlx::postgres::PgConnectOptions;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::engine::median;
use crate::fill::{Bench, run};
use crate::latency::Stolen;
use crate::report::Report;
use crate::turns::Turns;
use feed::Feed;

/// Number of parallel handlers, and of clients for the effect alone.
const WORKERS: u32 = 8;
const LANES: u16 = 8;
/// Number of messages of one measured run.
const COUNT: u32 = 8_000;
const ROUNDS: usize = 11;
/// Maximum number of messages in one transaction.
const BATCH: usize = 100;
const CONSUMER: &str = "bench";

pub(crate) async fn measure(server: &PgConnectOptions, only: Option<&str>, report: &mut Report) -> anyhow::Result<()> {
    let selected = |part: &str| only.is_none_or(|only| part.contains(only));
    if selected("handled") {
        handled(server, report).await?;
    }
    for kind in through::KINDS {
        if selected(kind.name()) {
            through::measure(kind, server, report).await?;
        }
    }
    Ok(())
}

/// Messages per second, in short rounds that alternate with the same effect alone. Variations of the disk affect both.
async fn handled(server: &PgConnectOptions, report: &mut Report) -> anyhow::Result<()> {
    let mut bench = Bench::new(server, "inbox").await?;
    let concurrency = WORKERS as usize;
    let (by_key, unordered) = (MessageOrder::ByKey { concurrency }, MessageOrder::None { concurrency });
    let (mut in_order, mut in_any, mut batched) = (Turns::default(), Turns::default(), Vec::new());
    let stolen = Stolen::since_now();
    for _ in 0..ROUNDS {
        let before = alone(&mut bench).await?;
        let one_by_one = handling(&mut bench, by_key, 1).await?;
        let between = alone(&mut bench).await?;
        let other = handling(&mut bench, unordered, 1).await?;
        let after = alone(&mut bench).await?;
        in_order.push(one_by_one, f64::midpoint(before, between));
        in_any.push(other, f64::midpoint(between, after));
        batched.push(handling(&mut bench, by_key, BATCH).await?);
    }
    let stolen = stolen.percent();
    for (name, turns) in
        [("inbox: handled one by one against the same insert", in_order), ("inbox: the same without order", in_any)]
    {
        report.ratio(name, turns.ratio(), 0.6, format!("{turns}; {stolen:.0} % of the CPU time was stolen"));
    }
    let details = format!("at most {BATCH} in a transaction");
    report.rate("inbox: handled in batches", median(batched), Some(5_000.0), details);
    Ok(())
}

/// Rows per second without Relevo, each in its own transaction.
async fn alone(bench: &mut Bench) -> anyhow::Result<f64> {
    empty_tables(bench).await?;
    effect::rate(&bench.options, WORKERS, COUNT).await
}

/// Messages per second through the runtime.
async fn handling(bench: &mut Bench, order: MessageOrder, batch_max: usize) -> anyhow::Result<f64> {
    empty_tables(bench).await?;
    rate(bench, order, batch_max).await
}

/// Empties the inbox and the table of effects.
async fn empty_tables(bench: &mut Bench) -> anyhow::Result<()> {
    run(&mut bench.connection, "TRUNCATE relevo.inbox").await?;
    run(&mut bench.connection, effect::TABLE).await?;
    run(&mut bench.connection, "CHECKPOINT").await
}

/// The rate of the runtime, from its first message to its last.
async fn rate(bench: &Bench, order: MessageOrder, batch_max: usize) -> anyhow::Result<f64> {
    let feed = Arc::new(Feed::new(COUNT, LANES));
    let runtime = runtime(bench, feed, order, batch_max).await?;
    let status = runtime.status();
    let stop = CancellationToken::new();
    let mut tasks = JoinSet::new();
    tasks.spawn(runtime.run(stop.clone()));
    while status.done() == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let (start, first) = (Instant::now(), status.done());
    while status.done() < u64::from(COUNT) {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let rate = f64::from(u32::try_from(u64::from(COUNT) - first)?) / start.elapsed().as_secs_f64();
    stop.cancel();
    while let Some(result) = tasks.join_next().await {
        result??;
    }
    Ok(rate)
}

/// A consumer that writes one row per message.
async fn runtime(
    bench: &Bench,
    consumer: Arc<dyn BrokerConsumer>,
    order: MessageOrder,
    batch_max: usize,
) -> anyhow::Result<ConsumerRuntime<Inbox>> {
    let config = Config { order, batch_max, ..Config::default() };
    let links = inbox::Config { handler_connections_max: WORKERS, ..inbox::Config::new(bench.options.clone()) };
    let inbox = Inbox::open(&links, CONSUMER, InboxRetention::default()).await?;
    Ok(ConsumerRuntime::new(Arc::new(inbox), consumer, Handlers::new().on_raw("OrderPlaced", effect::write), config))
}
