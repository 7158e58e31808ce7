//! How much memory a relay takes while it drains a large backlog: measured in a process of its own.

use std::process::Command;
use std::sync::Arc;

use anyhow::Context as _;
use relevo_relay::Config;
use relevo_store_postgres::{Config as StoreConfig, Store};
use sqlx::ConnectOptions;
use sqlx::postgres::PgConnectOptions;

use crate::engine;
use crate::fill::{Bench, quick_broker};
use crate::report::Report;

const COUNT: u32 = 1_000_000;
const CHILD: &str = "RELEVO_BENCH_DRAIN_URL";

pub(crate) async fn measure(server: &PgConnectOptions, report: &mut Report) -> anyhow::Result<()> {
    let mut bench = Bench::new(server, "memory").await?;
    drop(bench.store().await?);
    bench.fill(COUNT).await?;
    let url = bench.options.to_url_lossy().to_string();
    let output = Command::new(std::env::current_exe()?).env(CHILD, url).output()?;
    anyhow::ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let peak: f64 = String::from_utf8(output.stdout)?.trim().parse()?;
    report.at_most("resident memory draining 1 million", peak, "MB", 50.0, "peak of the process".to_owned());
    Ok(())
}

/// The URL that a parent process asks this one to drain.
pub(crate) fn child_of() -> Option<String> {
    std::env::var(CHILD).ok()
}

pub(crate) fn drain_as_child(url: &str) -> anyhow::Result<()> {
    let options: PgConnectOptions = url.parse()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let store = Store::open(StoreConfig::new(options, "main")).await?;
        let broker = quick_broker();
        engine::drain(store, Arc::new(broker), Config::default(), COUNT.into()).await
    })?;
    let status = std::fs::read_to_string("/proc/self/status").context("the system has no `/proc`")?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).context("no peak in `/proc/self/status`")?;
    let kilobytes: f64 = line.split_whitespace().nth(1).context("no number")?.parse()?;
    println!("{}", kilobytes / 1024.0);
    Ok(())
}
