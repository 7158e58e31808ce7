//! The consumer runtime: handled messages a second beside the same effect alone, and from COMMIT to the effect.

mod effect;
mod feed;
mod through;

use std::sync::Arc;
use std::time::{Duration, Instant};

use relevo_core::Consumer;
use relevo_inbox::{Config, Handlers, Order, Runtime};
use relevo_store_postgres::inbox::{self, Inbox};
use sqlx::postgres::PgConnectOptions;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::engine::median;
use crate::fill::{Bench, run};
use crate::report::Report;
use effect::Effect;
use feed::Feed;

/// Handlers at once, and clients of the effect alone.
const WORKERS: u32 = 8;
const LANES: u16 = 8;
/// Messages of one measured run.
const COUNT: u32 = 20_000;
const ROUNDS: usize = 5;
/// Messages that share a transaction at most.
const BATCH: usize = 100;
const CONSUMER: &str = "bench";

pub(crate) async fn measure(server: &PgConnectOptions, only: Option<&str>, report: &mut Report) -> anyhow::Result<()> {
    let wanted = |part: &str| only.is_none_or(|only| part.contains(only));
    if wanted("handled") {
        handled(server, report).await?;
    }
    for kind in through::KINDS {
        if wanted(kind.name()) {
            through::measure(kind, server, report).await?;
        }
    }
    Ok(())
}

/// Messages a second, in turns with the same effect alone.
async fn handled(server: &PgConnectOptions, report: &mut Report) -> anyhow::Result<()> {
    let mut bench = Bench::new(server, "inbox").await?;
    let [mut alone, mut bare, mut ordered, mut unordered, mut batched] = [const { Vec::new() }; 5];
    let concurrency = WORKERS as usize;
    for _ in 0..ROUNDS {
        fresh(&mut bench).await?;
        alone.push(effect::rate(&bench.options, WORKERS, COUNT, effect::Transacted::Yes).await?);
        fresh(&mut bench).await?;
        bare.push(effect::rate(&bench.options, WORKERS, COUNT, effect::Transacted::No).await?);
        fresh(&mut bench).await?;
        ordered.push(rate(&bench, Order::ByKey { concurrency }, 1).await?);
        fresh(&mut bench).await?;
        unordered.push(rate(&bench, Order::None { concurrency }, 1).await?);
        fresh(&mut bench).await?;
        batched.push(rate(&bench, Order::ByKey { concurrency }, BATCH).await?);
    }
    let [alone, bare, ordered, unordered, batched] = [alone, bare, ordered, unordered, batched].map(median);
    let beside =
        |rate: f64| format!("{rate:.0}/s; the same insert in a transaction {alone:.0}/s, by itself {bare:.0}/s");
    report.ratio("inbox: handled one by one against the same insert", ordered / alone, 0.6, beside(ordered));
    report.ratio("inbox: the same without order", unordered / alone, 0.6, beside(unordered));
    let told = format!("at most {BATCH} in a transaction");
    report.rate("inbox: handled in batches", batched, Some(5_000.0), told);
    Ok(())
}

/// Nothing was handled, nothing is there.
async fn fresh(bench: &mut Bench) -> anyhow::Result<()> {
    run(&mut bench.connection, "TRUNCATE relevo.inbox").await?;
    run(&mut bench.connection, effect::TABLE).await?;
    run(&mut bench.connection, "CHECKPOINT").await
}

/// The runtime, from its first to its last message.
async fn rate(bench: &Bench, order: Order, batch_max: usize) -> anyhow::Result<f64> {
    let feed = Arc::new(Feed::new(COUNT, LANES));
    let runtime = runtime(bench, feed, order, batch_max).await?;
    let stats = runtime.stats();
    let stop = CancellationToken::new();
    let mut tasks = JoinSet::new();
    tasks.spawn(runtime.run(stop.clone()));
    while stats.done() == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let (began, first) = (Instant::now(), stats.done());
    while stats.done() < u64::from(COUNT) {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let rate = f64::from(u32::try_from(u64::from(COUNT) - first)?) / began.elapsed().as_secs_f64();
    stop.cancel();
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(rate)
}

/// A consumer whose every message is a row.
async fn runtime(
    bench: &Bench,
    consumer: Arc<dyn Consumer>,
    order: Order,
    batch_max: usize,
) -> anyhow::Result<Runtime<Inbox>> {
    let config = Config { order, batch_max, ..Config::new(CONSUMER) };
    let links = inbox::Config { handlers_max: WORKERS, ..inbox::Config::new(bench.options.clone()) };
    let inbox = Inbox::open(&links, CONSUMER, config.keeping).await?;
    Ok(Runtime::new(Arc::new(inbox), consumer, Handlers::new().inside("OrderPlaced", Effect), config))
}
