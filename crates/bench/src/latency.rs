//! The latency from the return of COMMIT to the receipt at the broker.

mod rounds;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use relevo_core::{Broker, MessageId};
use relevo_relay::{Config, Relay};
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions, Row as _};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::fill::{Bench, PAYLOAD_BYTES, quick_broker};
use crate::report::Report;
pub(crate) use rounds::{ROUNDS, Rounds, Stolen};

/// The time when each message was received or confirmed.
pub(crate) type Receipts = Arc<Mutex<BTreeMap<MessageId, Instant>>>;

pub(crate) async fn measure(server: &PgConnectOptions, report: &mut Report) -> anyhow::Result<()> {
    let mut fast = Rounds::new();
    let stolen = Stolen::since_now();
    for _ in 0..ROUNDS {
        fast.push(to_memory(server, 1000, 4, Duration::from_secs(5)).await?);
    }
    let stolen = stolen.percent();
    let details = |percent| format!("{}; {stolen:.0} % of the CPU time was stolen", fast.spread(percent));
    report.at_most("latency at 1000/s, p50", fast.percentile(50), "ms", 4.0, details(50));
    report.at_most("latency at 1000/s, p99", fast.percentile(99), "ms", 10.0, details(99));
    let slow = to_memory(server, 1, 1, Duration::from_secs(40)).await?;
    let details = format!("{} messages", slow.len());
    let mut once = Rounds::new();
    once.push(slow);
    report.at_most("latency at 1/s, p99", once.percentile(99), "ms", 60.0, details);
    Ok(())
}

/// Latencies to a broker that receives at once.
async fn to_memory(server: &PgConnectOptions, rate: u32, clients: u32, time: Duration) -> anyhow::Result<Vec<f64>> {
    let bench = Bench::new(server, "latency").await?;
    let receipts: Receipts = Arc::default();
    let recorded = Arc::clone(&receipts);
    let broker = quick_broker();
    broker.on_receipt(move |publication| {
        let now = Instant::now();
        recorded.lock().entry(publication.message.id).or_insert(now);
    });
    at_rate(&bench, Arc::new(broker), &receipts, rate, clients, time).await
}

/// Emits at a steady rate with some clients. Returns the latencies up to `receipts`, in milliseconds, sorted.
pub(crate) async fn at_rate(
    bench: &Bench,
    broker: Arc<dyn Broker>,
    receipts: &Receipts,
    rate: u32,
    clients: u32,
    time: Duration,
) -> anyhow::Result<Vec<f64>> {
    let relay = Relay::new(Arc::new(bench.store().await?), broker, Config::default())?;
    let stop = CancellationToken::new();
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(relay.run(stop.clone()));
    let sent = write(bench, rate, clients, time).await?;
    tokio::time::sleep(Duration::from_millis(500)).await;
    stop.cancel();
    while let Some(result) = tasks.join_next().await {
        result??;
    }
    let receipts = receipts.lock();
    // The first second is the warm-up of both sides.
    let mut millis = Vec::with_capacity(sent.len());
    let warm = sent.first().map(|(_, at)| *at + Duration::from_secs(1));
    for (id, at) in sent.iter().filter(|(_, at)| Some(*at) > warm) {
        let received = receipts.get(id).ok_or_else(|| anyhow::anyhow!("message {id} was not received"))?;
        millis.push(received.saturating_duration_since(*at).as_secs_f64() * 1000.0);
    }
    millis.sort_by(f64::total_cmp);
    Ok(millis)
}

/// Emits at a steady rate with some clients. Returns each message with the time of its COMMIT.
pub(crate) async fn write(
    bench: &Bench,
    rate: u32,
    clients: u32,
    time: Duration,
) -> anyhow::Result<Vec<(MessageId, Instant)>> {
    let mut writers = tokio::task::JoinSet::new();
    for client in 0..clients {
        let mut connection = bench.options.connect().await?;
        writers.spawn(async move {
            let payload = vec![b'x'; PAYLOAD_BYTES];
            let period = Duration::from_secs(1) * clients / rate;
            let mut ticker = tokio::time::interval_at(tokio::time::Instant::now() + period * client / clients, period);
            let start = Instant::now();
            let mut sent = Vec::new();
            while start.elapsed() < time {
                ticker.tick().await;
                let key = format!("k-{}", sent.len() % 250 * 4 + client as usize);
                let row = sqlx::query("SELECT relevo.emit_bytes('orders', $1, 'OrderPlaced', $2, 'text/plain')")
                    .bind(key)
                    .bind(&payload[..])
                    .fetch_one(&mut connection)
                    .await?;
                // The statement is its own transaction: its response is the response of COMMIT.
                sent.push((MessageId::from_uuid(row.try_get::<Uuid, _>(0)?), Instant::now()));
            }
            anyhow::Ok(sent)
        });
    }
    let mut sent = Vec::new();
    while let Some(result) = writers.join_next().await {
        sent.extend(result??);
    }
    Ok(sent)
}
