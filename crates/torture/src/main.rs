//! Runs the torture test for a chosen time.

use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Parser;
use relevo_torture::{BrokerKind, Plan, StoreKind, ledger_beside, torture};

/// Kills and stops relays, consumers, their database and their broker while messages flow, then reports what happened
/// to the messages.
#[derive(Debug, Parser)]
struct Arguments {
    /// The binary under test.
    #[arg(long)]
    relevo: PathBuf,
    /// Runs consumers too, and injects faults into them.
    #[arg(long)]
    consumers: bool,
    /// Breaks the consumers on purpose, to test the oracle: one loses its inbox, the other acknowledges before
    /// it commits.
    #[arg(long, requires = "consumers")]
    broken_consumers: bool,
    /// How long producers write in total, in seconds.
    #[arg(long, default_value_t = 30)]
    seconds: u64,
    /// Seed of the random faults. The same seed makes the same plan.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only this store: `postgres` or `sqlite`.
    #[arg(long)]
    store: Option<String>,
    /// The broker: `embedded`, `rabbitmq` or `nats`. The two servers need PostgreSQL as the store.
    #[arg(long, default_value = "embedded")]
    broker: String,
    /// Minimum number of committed messages. If set, producers write without pauses.
    #[arg(long, default_value_t = 0)]
    messages: u64,
    /// Minimum number of faults to inject.
    #[arg(long, default_value_t = 0)]
    faults: u32,
}

#[tokio::main]
async fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let broker = match arguments.broker.as_str() {
        "embedded" => BrokerKind::Embedded,
        "rabbitmq" => BrokerKind::RabbitMq,
        "nats" => BrokerKind::Nats,
        other => bail!("unknown broker `{other}`; hint: `embedded`, `rabbitmq` or `nats`"),
    };
    let stores = match arguments.store.as_deref() {
        None if broker != BrokerKind::Embedded => vec![StoreKind::Postgres],
        None => vec![StoreKind::Postgres, StoreKind::Sqlite],
        Some("postgres") => vec![StoreKind::Postgres],
        Some("sqlite") => vec![StoreKind::Sqlite],
        Some(other) => bail!("unknown store `{other}`; hint: `postgres` or `sqlite`"),
    };
    let ledger = if arguments.consumers { Some(ledger_beside(&std::env::current_exe()?)?) } else { None };
    let seconds = arguments.seconds.div_ceil(stores.len() as u64);
    let Arguments { seed, messages, faults, broken_consumers, .. } = arguments;
    let mut failed_runs = 0;
    for store in stores {
        let (relevo, ledger) = (arguments.relevo.clone(), ledger.clone());
        let write_for = Duration::from_secs(seconds);
        let plan = Plan { relevo, ledger, store, broker, seed, write_for, messages, faults, broken_consumers };
        let report = torture(&plan).await?;
        write!(std::io::stdout(), "{report}")?;
        failed_runs += u32::from(!report.is_sound());
    }
    if failed_runs > 0 {
        bail!("a promise was broken; hint: `cargo xtask torture --seed {}` makes the same plan again", arguments.seed);
    }
    Ok(())
}
