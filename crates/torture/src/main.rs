//! Runs the torture test for a chosen time.

use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Parser;
use relevo_torture::{Far, Plan, Victim, ledger_beside, torture};

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
    /// Breaks the consumers on purpose, to test the oracle: one forgets what it handled, the other acknowledges before
    /// it commits.
    #[arg(long, requires = "consumers")]
    careless: bool,
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
    let far = match arguments.broker.as_str() {
        "embedded" => Far::Embedded,
        "rabbitmq" => Far::RabbitMq,
        "nats" => Far::Nats,
        other => bail!("broker `{other}` is not known; hint: `embedded`, `rabbitmq` or `nats`"),
    };
    let victims = match arguments.store.as_deref() {
        None if far != Far::Embedded => vec![Victim::Postgres],
        None => vec![Victim::Postgres, Victim::Sqlite],
        Some("postgres") => vec![Victim::Postgres],
        Some("sqlite") => vec![Victim::Sqlite],
        Some(other) => bail!("store `{other}` is not known; hint: `postgres` or `sqlite`"),
    };
    let ledger = if arguments.consumers { Some(ledger_beside(&std::env::current_exe()?)?) } else { None };
    let seconds = arguments.seconds.div_ceil(victims.len() as u64);
    let Arguments { seed, messages, faults, careless, .. } = arguments;
    let mut broken = 0;
    for victim in victims {
        let (relevo, ledger) = (arguments.relevo.clone(), ledger.clone());
        let write_for = Duration::from_secs(seconds);
        let plan = Plan { relevo, ledger, victim, far, seed, write_for, messages, faults, careless };
        let report = torture(&plan).await?;
        write!(std::io::stdout(), "{report}")?;
        broken += u32::from(!report.is_sound());
    }
    if broken > 0 {
        bail!("a promise was broken; hint: `cargo xtask torture --seed {}` makes the same plan again", arguments.seed);
    }
    Ok(())
}
