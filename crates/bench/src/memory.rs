//! The memory of a relay while it drains a large backlog, measured in a separate process.

use std::process::Command;
use std::sync::Arc;

use anyhow::Context as _;
use relevo_relay::Config;
use relevo_store_postgres::{Config as StoreConfig, Store};
use sqlx::ConnectOptions;
use sqlx::postgres::PgConnectOptions;

use crate::brokers::{self, Kind};
use crate::engine;
use crate::fill::{Bench, quick_broker};
use crate::report::Report;

const COUNT: u32 = 1_000_000;
const CHILD: &str = "RELEVO_BENCH_DRAIN_URL";
const INTO: &str = "RELEVO_BENCH_DRAIN_INTO";

pub(crate) async fn measure(server: &PgConnectOptions, report: &mut Report) -> anyhow::Result<()> {
    let mut bench = Bench::new(server, "memory").await?;
    drop(bench.store().await?);
    bench.fill(COUNT).await?;
    let peak = peak_of_child(bench.options.to_url_lossy().as_ref(), None)?;
    report.at_most("resident memory draining 1 million", peak, "MB", 50.0, "peak of the process".to_owned());
    Ok(())
}

/// Drains a backlog in a separate process, into memory or into a real broker. Returns its peak memory, in megabytes.
pub(crate) fn peak_of_child(url: &str, into: Option<Kind>) -> anyhow::Result<f64> {
    let mut child = Command::new(std::env::current_exe()?);
    child.env(CHILD, url);
    if let Some(kind) = into {
        child.env(INTO, format!("{kind:?}"));
    }
    let output = child.output()?;
    anyhow::ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?.trim().parse()?)
}

/// The database URL that a parent process passes to this one to drain.
pub(crate) fn child_of() -> Option<String> {
    std::env::var(CHILD).ok()
}

pub(crate) fn drain_as_child(url: &str) -> anyhow::Result<()> {
    let options: PgConnectOptions = url.parse()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let store = Store::open(StoreConfig::new(options, "main")).await?;
        match Kind::named(&std::env::var(INTO).unwrap_or_default()) {
            Some(kind) => {
                let broker = kind.open().await?;
                engine::drain(store, broker, Config::default(), brokers::COUNT.into()).await
            }
            None => engine::drain(store, Arc::new(quick_broker()), Config::default(), COUNT.into()).await,
        }
    })?;
    let status = std::fs::read_to_string("/proc/self/status").context("the system has no `/proc`")?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).context("no peak in `/proc/self/status`")?;
    let kilobytes: f64 = line.split_whitespace().nth(1).context("no number")?.parse()?;
    println!("{}", kilobytes / 1024.0);
    Ok(())
}
