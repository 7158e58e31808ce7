//! The cost of observability: a relay that is scraped every second, and one that exports spans of 1 % of the messages.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use axum::Router;
use relevo_admin::Server;
use relevo_core::trace::CommonAttributes;
use relevo_observe::traces::{self, Exporter, Ratio};
use relevo_observe::{ProcessMonitor, RelayLabels, RelayMonitor};
use relevo_relay::{Config, Relay};
use sqlx::postgres::PgConnectOptions;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::engine::drain_with;
use crate::fill::{Bench, quick_broker};
use crate::latency::Stolen;
use crate::report::Report;
use crate::turns::Turns;

/// Large enough for a few scrapes.
const COUNT: u32 = 800_000;
const ROUNDS: usize = 5;
const EVERY: Duration = Duration::from_secs(1);
/// One message in a hundred.
const SAMPLE: Ratio = Ratio::per_million(10_000);

pub(crate) async fn measure(server: &PgConnectOptions, report: &mut Report) -> anyhow::Result<()> {
    let mut bench = Bench::new(server, "observe").await?;
    drop(bench.store().await?);
    bench.fill(COUNT).await?;
    let (mut scraped, mut traced) = (Turns::default(), Turns::default());
    let (mut looks, mut spans) = (0, 0);
    let stolen = Stolen::since_now();
    for _ in 0..ROUNDS {
        let before = round(&mut bench, Observation::None).await?.rate;
        let scraped_round = round(&mut bench, Observation::Scraped).await?;
        let between = round(&mut bench, Observation::None).await?.rate;
        let other = round(&mut bench, Observation::Traced).await?;
        let after = round(&mut bench, Observation::None).await?.rate;
        scraped.push(scraped_round.rate, f64::midpoint(before, between));
        traced.push(other.rate, f64::midpoint(between, after));
        looks += scraped_round.scrapes;
        spans += other.spans;
    }
    let stolen = format!("{:.0} % of the CPU time was stolen", stolen.percent());
    let name = "observe: relay with metrics, sampled and scraped every second";
    report.ratio(name, scraped.ratio(), 0.97, format!("{scraped}; {looks} scrapes; {stolen}"));
    let name = "observe: the same with traces of 1 %";
    report.ratio(name, traced.ratio(), 0.93, format!("{traced}; {spans} spans were exported; {stolen}"));
    Ok(())
}

/// How a relay is observed while it works.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Observation {
    None,
    Scraped,
    Traced,
}

#[derive(Default)]
struct Round {
    rate: f64,
    scrapes: u64,
    spans: u64,
}

async fn round(bench: &mut Bench, observation: Observation) -> anyhow::Result<Round> {
    bench.rewind().await?;
    let (stop, mut beside) = (CancellationToken::new(), JoinSet::new());
    let mut config = Config::default();
    let exporter = if observation == Observation::Traced { Some(exporter(&stop, &mut beside).await?) } else { None };
    let mut counts = None;
    if let Some(exporter) = exporter {
        config.tracer = exporter.traces(CommonAttributes { system: "memory".to_owned(), attributes: Vec::new() });
        counts = Some(exporter.counts());
        let stop = stop.clone();
        beside.spawn(async move {
            exporter.run(stop).await;
            Ok(0)
        });
    }
    let relay = Relay::new(Arc::new(bench.store().await?), Arc::new(quick_broker()), config)?;
    if observation != Observation::None {
        let [outbox, destination, broker, location] = ["bench", "main", "memory", "memory"].map(str::to_owned);
        let monitor = RelayMonitor::new(RelayLabels { outbox, database: String::new(), destination, broker, location });
        monitor.attach(&relay);
        observe(bench, &Arc::new(monitor), &stop, &mut beside).await?;
    }
    let rate = drain_with(relay, COUNT.into()).await?;
    stop.cancel();
    let mut scrapes = 0;
    while let Some(result) = beside.join_next().await {
        scrapes += result??;
    }
    Ok(Round { rate, scrapes, spans: counts.map_or(0, |counts| counts.exported()) })
}

type Beside = JoinSet<anyhow::Result<u64>>;

/// Starts the metrics server, a task that samples the store and a task that scrapes the server.
async fn observe(
    bench: &Bench,
    relay: &Arc<RelayMonitor>,
    stop: &CancellationToken,
    beside: &mut Beside,
) -> anyhow::Result<()> {
    let server = Server::bind(([127, 0, 0, 1], 0).into()).await?;
    let address = server.address();
    let process = ProcessMonitor::new("bench", "0").relays(vec![Arc::clone(relay)]);
    let serving = server.run(Arc::new(process), None, stop.clone());
    beside.spawn(async move {
        serving.await?;
        Ok(0)
    });
    let (store, sampled, until) = (bench.operator().await?, Arc::clone(relay), stop.clone());
    beside.spawn(async move {
        while until.run_until_cancelled(tokio::time::sleep(EVERY)).await.is_some() {
            sampled.sample(&store).await;
        }
        Ok(0)
    });
    let until = stop.clone();
    beside.spawn(async move {
        let mut scrapes = 0;
        while until.run_until_cancelled(tokio::time::sleep(EVERY)).await.is_some() {
            let mut stream = TcpStream::connect(address).await?;
            stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: bench\r\nconnection: close\r\n\r\n").await?;
            let mut response = String::new();
            stream.read_to_string(&mut response).await?;
            anyhow::ensure!(response.contains("outbox_published_total"), "a scrape returned no metrics: {response}");
            scrapes += 1;
        }
        Ok(scrapes)
    });
    Ok(())
}

/// An exporter with a collector that accepts everything.
async fn exporter(stop: &CancellationToken, beside: &mut Beside) -> anyhow::Result<Exporter> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let endpoint = format!("http://{}", listener.local_addr()?);
    let until = stop.clone();
    beside.spawn(async move {
        let app = Router::new().fallback(async || "");
        // The last spans arrive after `stop` is cancelled.
        let serving = axum::serve(listener, app).into_future();
        tokio::select! {
            served = serving => served.context("the collector failed")?,
            () = async { until.cancelled().await; tokio::time::sleep(EVERY).await } => {}
        }
        Ok(0)
    });
    Ok(Exporter::new(traces::Config { sample: SAMPLE, ..traces::Config::new(endpoint, "bench") })?)
}
