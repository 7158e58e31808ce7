//! `relevo run` as a separate process, from a database into the embedded broker.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use relevo_broker_embedded::BrokerFile;
use relevo_core::Draft;
use relevo_core::broker::{Broker as _, OutcomeReceiver};
use relevo_core::outbox::admin::{OutboxAdmin as _, StartFrom};
use relevo_store_sqlite::{begin, connect_options, emit};
use sqlx::ConnectOptions as _;
use sqlx::postgres::PgConnectOptions;
use tokio::process::Command;
use tokio::time::{Instant, sleep};

use crate::brokers::publication;
use crate::fill::{Bench, KEYS, PAYLOAD_BYTES, SHARDS};
use crate::process::{Process, Scratch, free_port};
use crate::report::Report;

/// The variable with the path of the binary under test.
const BINARY: &str = "RELEVO_BENCH_BINARY";
const COUNT: u32 = 200_000;
const IDLE_SHARDS: u16 = 64;
const IDLE_FOR: Duration = Duration::from_secs(20);
const DEADLINE: Duration = Duration::from_mins(3);

pub(crate) async fn measure(server: &PgConnectOptions, report: &mut Report) -> anyhow::Result<()> {
    let relevo: PathBuf = std::env::var_os(BINARY)
        .context("`RELEVO_BENCH_BINARY` is not set; hint: run `cargo xtask bench daemon`")?
        .into();
    let scratch = Scratch::new()?;
    idle(server, &relevo, &scratch.0, report).await?;
    let alone = broker_alone(&scratch.0.join("alone.db")).await?;

    let mut bench = Bench::new(server, "daemon").await?;
    drop(bench.store().await?);
    bench.fill(COUNT).await?;
    let url = bench.options.to_url_lossy().to_string();
    drain(&relevo, &scratch.0.join("postgres"), &url, "PostgreSQL", alone, report).await?;

    let file = scratch.0.join("outbox.db");
    fill_sqlite(&file).await?;
    let url = format!("sqlite:{}", file.display());
    drain(&relevo, &scratch.0.join("sqlite"), &url, "SQLite", alone, report).await
}

/// Measures the start-up, and the cost of an idle daemon.
async fn idle(server: &PgConnectOptions, relevo: &Path, scratch: &Path, report: &mut Report) -> anyhow::Result<()> {
    let bench = Bench::new(server, "idle").await?;
    let config = relevo_store_postgres::OperatorConfig::new(bench.options.clone());
    let operator = relevo_store_postgres::Operator::open(config).await?;
    operator.add_destination("main", IDLE_SHARDS, StartFrom::Now).await?;
    let url = bench.options.to_url_lossy().to_string();
    let started_at = Instant::now();
    let daemon = start(relevo, &scratch.join("idle"), &url).await?;
    let details = "from the start of the process until `/readyz` returns 200".to_owned();
    report.record("daemon: start-up", started_at.elapsed().as_secs_f64() * 1000.0, "ms", details);
    // The daemon first claims the shards.
    sleep(Duration::from_secs(3)).await;
    let before = daemon.cpu_seconds()?;
    sleep(IDLE_FOR).await;
    let percent = (daemon.cpu_seconds()? - before) / IDLE_FOR.as_secs_f64() * 100.0;
    let shards = format!("{IDLE_SHARDS} shards, over {} s", IDLE_FOR.as_secs());
    report.at_most("daemon: idle CPU, of one core", percent, "%", 1.0, shards.clone());
    report.at_most("daemon: resident memory, idle", daemon.megabytes("VmRSS:")?, "MB", 20.0, shards);
    daemon.stop().await
}

/// Measures the drain of a backlog into the broker.
async fn drain(
    relevo: &Path,
    scratch: &Path,
    url: &str,
    name: &str,
    alone: f64,
    report: &mut Report,
) -> anyhow::Result<()> {
    let started_at = Instant::now();
    let daemon = start(relevo, scratch, url).await?;
    while daemon.sum("outbox_published_total").await? < f64::from(COUNT) {
        ensure!(started_at.elapsed() < DEADLINE, "{name}: {COUNT} messages did not arrive in time");
        sleep(Duration::from_millis(10)).await;
    }
    let rate = f64::from(COUNT) / started_at.elapsed().as_secs_f64();
    let details = format!("{:.2} of what the broker alone takes, {alone:.0}/s; start-up included", rate / alone);
    report.rate(&format!("daemon: {name} into the embedded broker"), rate, None, details);
    let peak = daemon.megabytes("VmHWM:")?;
    report.record(&format!("daemon: resident memory, loaded, {name}"), peak, "MB", format!("{COUNT} messages"));
    daemon.stop().await
}

/// The rate of the broker without a relay: batches of a thousand, one after the other.
async fn broker_alone(file: &Path) -> anyhow::Result<f64> {
    let broker = BrokerFile::open(relevo_broker_embedded::Config::new(file)).await?;
    let reports = OutcomeReceiver::default();
    let start = Instant::now();
    for first in (0..COUNT).step_by(1000) {
        let batch: Vec<_> = (first..first + 1000).map(publication).collect();
        broker.publish(&batch, &reports.sender(u64::from(first))).await;
        ensure!(reports.take().iter().filter(|(_, _, outcome)| outcome.is_ok()).count() == 1000, "a batch was refused");
    }
    Ok(f64::from(COUNT) / start.elapsed().as_secs_f64())
}

async fn fill_sqlite(file: &Path) -> anyhow::Result<()> {
    relevo_store_sqlite::migrate::migrate(file).await?;
    let operator = relevo_store_sqlite::Operator::open(relevo_store_sqlite::OperatorConfig::new(file)).await?;
    operator.add_destination("main", SHARDS, StartFrom::Oldest).await?;
    let mut connection = connect_options(file).disable_statement_logging().connect().await?;
    for first in (0..COUNT).step_by(1000) {
        let mut tx = begin(&mut connection).await?;
        for number in first..first + 1000 {
            let key = format!("k-{}", number % KEYS);
            emit(&mut tx, Draft::json("orders", &key, "OrderPlaced", vec![b'x'; PAYLOAD_BYTES])).await?;
        }
        tx.commit().await?;
    }
    Ok(())
}

/// Starts `relevo run`, from a database into an embedded broker.
async fn start(relevo: &Path, scratch: &Path, url: &str) -> anyhow::Result<Process> {
    std::fs::create_dir_all(scratch)?;
    let port = free_port().await?;
    let config = scratch.join("relevo.toml");
    let broker = format!("{:?}", scratch.join("broker.db").to_string_lossy());
    let text = format!(
        "[log]\nlevel = \"warn\"\n[admin]\nlisten = \"127.0.0.1:{port}\"\n[outboxes.bench]\ndatabase = {url:?}\n\
         [outboxes.bench.destinations.main]\nbroker = {{ kind = \"embedded\", path = {broker} }}\n"
    );
    std::fs::write(&config, text)?;
    Process::start(Command::new(relevo).args(["run", "-c"]).arg(&config), port, "/readyz").await.context("the daemon")
}
