//! The throughput of the relay, compared with a claim-and-update loop and with the same relay under load.

use std::sync::Arc;
use std::time::{Duration, Instant};

use relevo_broker_memory::{Config as BrokerConfig, FailureRule, MemoryBroker, RuleTarget};
use relevo_core::{Broker, Class, Route, Routes};
use relevo_relay::{Config, Relay};
use relevo_store_postgres::Store;
use sqlx::ConnectOptions;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use tokio_util::sync::CancellationToken;

use crate::baseline;
use crate::fill::{Bench, KEYS, number, quick_broker, run};
use crate::report::Report;

/// Number of messages of one measured drain.
const COUNT: u32 = 400_000;

/// Drains the backlog with one relay. Returns messages per second, from the first message to the last.
pub(crate) async fn drain(store: Store, broker: Arc<dyn Broker>, config: Config, count: u64) -> anyhow::Result<f64> {
    drain_with(Relay::new(Arc::new(store), broker, config)?, count).await
}

/// Like `drain`, with an existing relay.
pub(crate) async fn drain_with(relay: Relay, count: u64) -> anyhow::Result<f64> {
    let status = relay.status();
    let stop = CancellationToken::new();
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(relay.run(stop.clone()));
    while status.published() + status.parked() == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let (start, first) = (Instant::now(), status.published() + status.parked());
    while status.published() + status.parked() < count {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let rate = f64::from(u32::try_from(count - first)?) / start.elapsed().as_secs_f64();
    stop.cancel();
    while let Some(result) = tasks.join_next().await {
        result??;
    }
    Ok(rate)
}

/// Drains the whole log from its start.
async fn drained(bench: &mut Bench) -> anyhow::Result<f64> {
    bench.rewind().await?;
    drain(bench.store().await?, Arc::new(quick_broker()), Config::default(), COUNT.into()).await
}

async fn filled_bench(server: &PgConnectOptions, name: &str) -> anyhow::Result<Bench> {
    let mut bench = Bench::new(server, name).await?;
    drop(bench.store().await?);
    bench.fill(COUNT).await?;
    Ok(bench)
}

/// How often each side of a comparison is measured. The sides alternate, and the median counts.
const ROUNDS: usize = 3;

pub(crate) async fn measure(server: &PgConnectOptions, report: &mut Report) -> anyhow::Result<()> {
    let mut plain = filled_bench(server, "relay").await?;
    let (mut relay, mut loops) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        baseline::fill(&mut plain.connection, COUNT / 2).await?;
        let broker = Arc::new(quick_broker());
        loops.push(baseline::drain(&plain.options, broker, Duration::from_secs(10)).await?);
        relay.push(drained(&mut plain).await?);
    }
    let (relay, loops) = (median(relay), median(loops));
    let details = format!("relay {relay:.0}/s, claim-and-update loop {loops:.0}/s");
    report.ratio("relay into a broker that confirms at once", relay / loops, 3.0, details);
    let target = (loops >= 30_000.0).then_some(100_000.0);
    report.rate("the same, absolute", relay, target, "the target applies if the loop reaches 30000/s".to_owned());

    let (mut loaded, holder) = bench_with_held_xmin(server).await?;
    let (with, without) = alternate(&mut loaded, &mut plain).await?;
    drop(holder);
    let name = "after 50000 settled batches, xmin held throughout";
    report.ratio(name, with / without, 0.9, format!("{with:.0}/s, without {without:.0}/s"));

    let (mut with, mut without) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        with.push(with_parked_keys(&mut plain).await?);
        without.push(drained(&mut plain).await?);
    }
    let (with, without) = (median(with), median(without));
    let name = "with 10 % of the keys parked";
    report.ratio(name, with / without, 0.7, format!("{with:.0}/s, without {without:.0}/s"));
    hot_key(server, report).await
}

/// The medians of draining each of two databases, alternating.
async fn alternate(one: &mut Bench, other: &mut Bench) -> anyhow::Result<(f64, f64)> {
    let (mut first, mut second) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        first.push(drained(one).await?);
        second.push(drained(other).await?);
    }
    Ok((median(first), median(second)))
}

pub(crate) fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

/// A database with 50 000 rows of progress and 50 000 ticks. An older transaction is still open and holds back xmin.
async fn bench_with_held_xmin(server: &PgConnectOptions) -> anyhow::Result<(Bench, PgConnection)> {
    let mut bench = Bench::new(server, "held").await?;
    drop(bench.store().await?);
    let mut holder = bench.options.connect().await?;
    run(&mut holder, "BEGIN ISOLATION LEVEL REPEATABLE READ").await?;
    run(&mut holder, "SELECT relevo.emit('orders', 'held', 'Held', '{}')").await?;
    for _ in 0..50 {
        run(
            &mut bench.connection,
            "INSERT INTO relevo.tick (tick, snapshot, max_seq, late_xids, timeline) \
             SELECT n + i, snapshot, max_seq, late_xids, timeline FROM generate_series(1, 1000) AS i, \
             (SELECT max(tick) AS n FROM relevo.tick) AS m, (SELECT * FROM relevo.tick ORDER BY tick DESC LIMIT 1) AS t",
        )
        .await?;
        run(
            &mut bench.connection,
            "INSERT INTO relevo.progress (destination, shards, shard, from_tick, to_tick, settled_seq, epoch) \
             SELECT 'main', 8, i % 8, t, t, 0, 0 FROM generate_series(0, 999) AS i, \
             (SELECT max(tick) - 1000 AS t FROM relevo.tick) AS m",
        )
        .await?;
    }
    bench.fill(COUNT).await?;
    Ok((bench, holder))
}

async fn with_parked_keys(bench: &mut Bench) -> anyhow::Result<f64> {
    bench.rewind().await?;
    let broker = quick_broker();
    for key in 0..KEYS / 10 {
        broker.add_failure(FailureRule::new(RuleTarget::Key(format!("k-{key}")), Class::Transient));
    }
    let route = Route {
        policy: relevo_core::RetryPolicy { base: Duration::from_mins(1), ..relevo_core::RetryPolicy::default() },
        ..Route::catch_all()
    };
    let config = Config { routes: Routes::new(vec![route]), ..Config::default() };
    let rate = drain(bench.store().await?, Arc::new(broker), config, COUNT.into()).await?;
    let parked = number(&mut bench.connection, "SELECT count(*) FROM relevo.parked_message").await?;
    anyhow::ensure!(parked > i64::from(COUNT / 20), "only {parked} messages were parked");
    Ok(rate)
}

async fn hot_key(server: &PgConnectOptions, report: &mut Report) -> anyhow::Result<()> {
    let mut bench = Bench::new(server, "hot").await?;
    drop(bench.store().await?);
    for _ in 0..2000 {
        run(&mut bench.connection, "SELECT relevo.emit('orders', 'hot', 'OrderChanged', '{}')").await?;
    }
    let settings = BrokerConfig { keeps_messages: false, latency: Duration::from_millis(1), ..BrokerConfig::default() };
    let broker = MemoryBroker::new(settings);
    let rate = drain(bench.store().await?, Arc::new(broker), Config::default(), 2000).await?;
    report.rate("one hot key only, 1 ms confirms", rate, None, "one message of a key in flight".to_owned());
    Ok(())
}

/// Measures with ten million delivered messages that are still retained.
pub(crate) async fn measure_history(server: &PgConnectOptions, report: &mut Report) -> anyhow::Result<()> {
    let mut bench = Bench::new(server, "history").await?;
    drop(bench.store().await?);
    for _ in 0..10 {
        bench.fill(1_000_000).await?;
        drain(bench.store().await?, Arc::new(quick_broker()), Config::default(), 1_000_000).await?;
    }
    bench.fill(COUNT).await?;
    let store = bench.store().await?;
    let with = drain(store, Arc::new(quick_broker()), Config::default(), COUNT.into()).await?;
    let without = drained(&mut filled_bench(server, "relay").await?).await?;
    let name = "with 10 million delivered messages retained";
    report.ratio(name, with / without, 0.9, format!("{with:.0}/s, without {without:.0}/s"));
    Ok(())
}
