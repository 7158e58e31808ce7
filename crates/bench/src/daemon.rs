//! `relevo run` as a service sees it: a process of its own, from a database into the embedded broker.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use relevo_broker_embedded::EmbeddedBroker;
use relevo_core::Draft;
use relevo_core::broker::{Broker as _, Reports};
use relevo_core::operate::{Operate as _, Start};
use relevo_store_sqlite::{begin, connect_options, emit};
use sqlx::ConnectOptions as _;
use sqlx::postgres::PgConnectOptions;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep};

use crate::brokers::publication;
use crate::fill::{Bench, KEYS, PAYLOAD_BYTES, SHARDS};
use crate::report::Report;

/// The binary under test.
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

/// Start-up, and what a daemon costs that has nothing to do.
async fn idle(server: &PgConnectOptions, relevo: &Path, scratch: &Path, report: &mut Report) -> anyhow::Result<()> {
    let bench = Bench::new(server, "idle").await?;
    let store = relevo_store_postgres::Store::open(relevo_store_postgres::Config::new(bench.options.clone(), "main"));
    store.await?.add_destination(IDLE_SHARDS, Start::Now).await?;
    let url = bench.options.to_url_lossy().to_string();
    let began = Instant::now();
    let daemon = Daemon::start(relevo, &scratch.join("idle"), &url).await?;
    let details = "from the start of the process to `/readyz` saying yes".to_owned();
    report.told("daemon: start-up", began.elapsed().as_secs_f64() * 1000.0, "ms", details);
    // It first takes the shards and settles down.
    sleep(Duration::from_secs(3)).await;
    let before = daemon.cpu_seconds()?;
    sleep(IDLE_FOR).await;
    let percent = (daemon.cpu_seconds()? - before) / IDLE_FOR.as_secs_f64() * 100.0;
    let shards = format!("{IDLE_SHARDS} shards, over {} s", IDLE_FOR.as_secs());
    report.at_most("daemon: idle CPU, of one core", percent, "%", 1.0, shards.clone());
    report.at_most("daemon: resident memory, idle", daemon.megabytes("VmRSS:")?, "MB", 20.0, shards);
    daemon.stop().await
}

/// From a backlog into the broker.
async fn drain(
    relevo: &Path,
    scratch: &Path,
    url: &str,
    name: &str,
    alone: f64,
    report: &mut Report,
) -> anyhow::Result<()> {
    let began = Instant::now();
    let daemon = Daemon::start(relevo, scratch, url).await?;
    while daemon.published().await? < f64::from(COUNT) {
        ensure!(began.elapsed() < DEADLINE, "{name}: {COUNT} messages do not arrive");
        sleep(Duration::from_millis(10)).await;
    }
    let rate = f64::from(COUNT) / began.elapsed().as_secs_f64();
    let details = format!("{:.2} of what the broker alone takes, {alone:.0}/s; start-up included", rate / alone);
    report.rate(&format!("daemon: {name} into the embedded broker"), rate, None, details);
    let peak = daemon.megabytes("VmHWM:")?;
    report.told(&format!("daemon: resident memory, loaded, {name}"), peak, "MB", format!("{COUNT} messages"));
    daemon.stop().await
}

/// What the broker takes without a relay: batches of a thousand, one after the other.
async fn broker_alone(file: &Path) -> anyhow::Result<f64> {
    let broker = EmbeddedBroker::open(relevo_broker_embedded::Config::new(file)).await?;
    let reports = Reports::default();
    let began = Instant::now();
    for first in (0..COUNT).step_by(1000) {
        let batch: Vec<_> = (first..first + 1000).map(publication).collect();
        broker.publish(&batch, &reports.confirms(u64::from(first))).await;
        ensure!(reports.take().iter().filter(|(_, _, outcome)| outcome.is_ok()).count() == 1000, "a batch was refused");
    }
    Ok(f64::from(COUNT) / began.elapsed().as_secs_f64())
}

async fn fill_sqlite(file: &Path) -> anyhow::Result<()> {
    relevo_store_sqlite::migrate::migrate(file).await?;
    let store = relevo_store_sqlite::Store::open(relevo_store_sqlite::Config::new(file, "main")).await?;
    store.add_destination(SHARDS, Start::Oldest).await?;
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

/// A running `relevo run`.
struct Daemon {
    child: Child,
    port: u16,
}

impl Daemon {
    /// Starts it and waits until it is ready.
    async fn start(relevo: &Path, scratch: &Path, url: &str) -> anyhow::Result<Self> {
        std::fs::create_dir_all(scratch)?;
        let port = TcpListener::bind(("127.0.0.1", 0)).await?.local_addr()?.port();
        let config = scratch.join("relevo.toml");
        let broker = format!("{:?}", scratch.join("broker.db").to_string_lossy());
        let text = format!(
            "[log]\nlevel = \"warn\"\n[admin]\nlisten = \"127.0.0.1:{port}\"\n[outboxes.bench]\ndatabase = {url:?}\n\
             [outboxes.bench.destinations.main]\nbroker = {{ kind = \"embedded\", path = {broker} }}\n"
        );
        std::fs::write(&config, text)?;
        let child = Command::new(relevo)
            .args(["run", "-c"])
            .arg(&config)
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .context("the daemon cannot be started")?;
        let mut daemon = Self { child, port };
        let began = Instant::now();
        while !daemon.get("/readyz").await.is_ok_and(|answer| answer.starts_with("HTTP/1.1 200")) {
            if let Some(status) = daemon.child.try_wait()? {
                bail!("the daemon ended with {status}");
            }
            ensure!(began.elapsed() < DEADLINE, "the daemon does not get ready");
            sleep(Duration::from_millis(2)).await;
        }
        Ok(daemon)
    }

    /// How many messages it has published.
    async fn published(&self) -> anyhow::Result<f64> {
        let metrics = self.get("/metrics").await?;
        let lines = metrics.lines().filter(|line| line.starts_with("outbox_published_total{"));
        lines.map(|line| Ok(line.rsplit(' ').next().unwrap_or_default().parse::<f64>()?)).sum()
    }

    async fn get(&self, path: &str) -> anyhow::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).await?;
        let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok(answer)
    }

    /// User and system time so far.
    fn cpu_seconds(&self) -> anyhow::Result<f64> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.id()?))?;
        // The name, in brackets, may hold anything; the times are the 12th and 13th field after it.
        let (_, fields) = stat.rsplit_once(')').context("`/proc` has another form")?;
        let fields: Vec<&str> = fields.split_whitespace().collect();
        let ticks: f64 = fields[11].parse::<f64>()? + fields[12].parse::<f64>()?;
        Ok(ticks / 100.0)
    }

    /// A line of its status.
    fn megabytes(&self, name: &str) -> anyhow::Result<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.id()?))?;
        let line = status.lines().find(|line| line.starts_with(name)).context("no such line in `/proc`")?;
        Ok(line.split_whitespace().nth(1).context("no number")?.parse::<f64>()? / 1024.0)
    }

    fn id(&self) -> anyhow::Result<u32> {
        self.child.id().context("the daemon is gone")
    }

    async fn stop(mut self) -> anyhow::Result<()> {
        let pid = i32::try_from(self.id()?)?;
        let pid = rustix::process::Pid::from_raw(pid).context("a process has a number")?;
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
        let status = tokio::time::timeout(DEADLINE, self.child.wait()).await??;
        ensure!(status.success(), "the daemon left with {status}");
        Ok(())
    }
}

/// A directory of the run's own.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> anyhow::Result<Self> {
        let path = std::env::temp_dir().join(format!("relevo-bench-{}", std::process::id()));
        std::fs::create_dir_all(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}
