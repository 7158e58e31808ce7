//! The benchmarks. Results are ratios within one run, because machines are noisy.

#![expect(clippy::print_stdout, reason = "the table is this program's output")]

mod baseline;
mod brokers;
mod daemon;
mod emit;
mod engine;
mod fill;
mod inbox;
mod latency;
mod memory;
mod observe;
mod process;
mod report;
mod tickets;
mod turns;

use anyhow::{Context as _, bail};
use clap::Parser;
use sqlx::postgres::PgConnectOptions;

use crate::report::Report;

const SUITES: [&str; 6] = ["engine", "daemon", "observe", "brokers", "inbox", "tickets"];

/// The benchmarks of Relevo.
#[derive(Parser)]
#[command(name = "relevo-bench")]
struct Args {
    /// The suite to run: `engine`, `daemon`, `brokers`, `inbox`, `observe`, `tickets`, or `all`.
    #[arg(default_value = "all")]
    suite: String,
    /// Run only benchmarks whose name contains this text.
    #[arg(long)]
    only: Option<String>,
    /// Also measure with ten million delivered messages retained (takes long).
    #[arg(long)]
    history: bool,
    /// The file to which the results are written as JSON.
    #[arg(long, default_value = "bench-results/bench.json")]
    json: std::path::PathBuf,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    if args.suite != "all" && !SUITES.contains(&args.suite.as_str()) {
        bail!("unknown suite `{}`; hint: use one of `{}`, or no suite for all", args.suite, SUITES.join("`, `"));
    }
    if let Some(url) = memory::child_of() {
        return memory::drain_as_child(&url);
    }
    let url = std::env::var("RELEVO_TEST_POSTGRES_URL")
        .context("`RELEVO_TEST_POSTGRES_URL` is not set; hint: run `cargo xtask bench`")?;
    let options: PgConnectOptions = url.parse()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let mut report = Report::default();
    let suite = |name: &str| args.suite == "all" || args.suite == name;
    let engine = |name: &str| suite("engine") && args.only.as_ref().is_none_or(|only| name.contains(only.as_str()));
    runtime.block_on(async {
        if engine("emit") {
            emit::measure(&options, &mut report).await?;
        }
        if engine("relay") {
            engine::measure(&options, &mut report).await?;
        }
        if engine("latency") {
            latency::measure(&options, &mut report).await?;
        }
        if engine("memory") {
            memory::measure(&options, &mut report).await?;
        }
        if suite("daemon") && args.only.is_none() {
            daemon::measure(&options, &mut report).await?;
        }
        if suite("observe") && args.only.is_none() {
            observe::measure(&options, &mut report).await?;
        }
        if suite("brokers") {
            brokers::measure(&options, args.only.as_deref(), &mut report).await?;
        }
        if suite("inbox") {
            inbox::measure(&options, args.only.as_deref(), &mut report).await?;
        }
        if suite("tickets") && args.only.is_none() {
            tickets::measure(&options, &mut report).await?;
        }
        if args.history {
            engine::measure_history(&options, &mut report).await?;
        }
        anyhow::Ok(())
    })?;
    println!("{report}");
    report.save(&args.json)?;
    println!("results written to {}", args.json.display());
    if report.missed() > 0 {
        bail!("{} targets missed", report.missed());
    }
    Ok(())
}
