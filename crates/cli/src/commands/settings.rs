//! `relevo settings`

use std::io;
use std::time::Duration;

use anyhow::Result;
use clap::Subcommand;
use relevo_core::outbox::admin::OutboxSettings;
use serde_json::json;

use crate::args::OutboxArgs;
use crate::connect::ANSWER_TIMEOUT;
use crate::error_report::print_stderr;
use crate::exit::{ExitStatus, usage};
use crate::output::table;
use crate::output::time::{duration, short};
use crate::output::{self, OutputArgs};

/// What to do with the settings.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Prints how long an outbox keeps messages, ids and dead letters.
    #[command(after_help = "Example:\n  relevo settings get -o json")]
    Get {
        #[command(flatten)]
        target: OutboxArgs,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Changes how long an outbox keeps messages, ids and dead letters.
    #[command(after_help = "Example:\n  relevo settings set --retention 3d")]
    Set {
        #[command(flatten)]
        target: OutboxArgs,
        #[command(flatten)]
        change: Change,
    },
}

/// New values. A setting that is not named stays.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = true)]
pub(crate) struct Change {
    /// How long settled messages are kept, as `7d`.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    retention: Option<Duration>,
    /// How long ids that callers chose are kept, so that a repeat is detected.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    id_retention: Option<Duration>,
    /// How long redriven and discarded dead letters are kept.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    dead_letter_retention: Option<Duration>,
}

pub(super) async fn run(command: &Command) -> Result<ExitStatus> {
    match command {
        Command::Get { target, output } => print(target.locate()?.outbox().await?.settings().await?, *output)?,
        Command::Set { target, change } => {
            let place = target.locate()?;
            let outbox = place.open(ANSWER_TIMEOUT).await?;
            let old = outbox.settings().await?;
            let new = OutboxSettings {
                retention: change.retention.unwrap_or(old.retention),
                id_retention: change.id_retention.unwrap_or(old.id_retention),
                dead_letter_retention: change.dead_letter_retention.unwrap_or(old.dead_letter_retention),
            };
            if [new.retention, new.id_retention, new.dead_letter_retention].contains(&Duration::ZERO) {
                return Err(usage("a retention is longer than zero; hint: `7d`"));
            }
            outbox.set_settings(&new).await?;
            print_stderr(&format!("settings of the outbox at {}: {}", place.location(), described(&new)));
        }
    }
    Ok(ExitStatus::Success)
}

fn named(settings: &OutboxSettings) -> [(&'static str, Duration); 3] {
    [
        ("retention", settings.retention),
        ("id_retention", settings.id_retention),
        ("dead_letter_retention", settings.dead_letter_retention),
    ]
}

fn described(settings: &OutboxSettings) -> String {
    named(settings).map(|(name, value)| format!("{name} {}", short(value))).join(", ")
}

fn print(settings: OutboxSettings, output: OutputArgs) -> Result<()> {
    if output.is_json() {
        let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        return output::line(&json!({
            "retention_ms": millis(settings.retention),
            "id_retention_ms": millis(settings.id_retention),
            "dead_letter_retention_ms": millis(settings.dead_letter_retention),
        }));
    }
    table::pairs(&mut io::stdout().lock(), &named(&settings).map(|(name, value)| (name, short(value))))?;
    Ok(())
}
