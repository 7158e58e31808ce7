//! Runs the torture for as long as one likes.

use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Parser;
use relevo_torture::{Plan, Victim, torture};

/// Kills and stops relays and their database while messages flow, and says what became of the messages.
#[derive(Debug, Parser)]
struct Arguments {
    /// The binary under test.
    #[arg(long)]
    relevo: PathBuf,
    /// How long producers write, in all.
    #[arg(long, default_value_t = 30)]
    seconds: u64,
    /// Chooses what happens when; the same seed makes the same plan.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only this store: `postgres` or `sqlite`.
    #[arg(long)]
    store: Option<String>,
}

#[tokio::main]
async fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let victims = match arguments.store.as_deref() {
        None => vec![Victim::Postgres, Victim::Sqlite],
        Some("postgres") => vec![Victim::Postgres],
        Some("sqlite") => vec![Victim::Sqlite],
        Some(other) => bail!("store `{other}` is not known; hint: `postgres` or `sqlite`"),
    };
    let seconds = arguments.seconds.div_ceil(victims.len() as u64);
    let mut broken = 0;
    for victim in victims {
        let (relevo, write_for) = (arguments.relevo.clone(), Duration::from_secs(seconds));
        let report = torture(&Plan { relevo, victim, seed: arguments.seed, write_for }).await?;
        write!(std::io::stdout(), "{report}")?;
        broken += u32::from(!report.judgement.is_sound());
    }
    if broken > 0 {
        bail!("a promise was broken; hint: `cargo xtask torture --seed {}` makes the same plan again", arguments.seed);
    }
    Ok(())
}
