//! `relevo destination`

use std::io;

use anyhow::{Result, ensure};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Subcommand, ValueEnum};
use relevo_core::outbox::admin::{DestinationChange, StartFrom};
use serde_json::json;

use super::backlog::Waits;
use crate::args::{ConfirmArg, DestinationArgs, OutboxArgs};
use crate::database::{ANSWER_DEADLINE, REWRITE_DEADLINE};
use crate::error_report::print_stderr;
use crate::exit::ExitStatus;
use crate::outbox::{self, Opened, Place};
use crate::output::table::Table;
use crate::output::{self, OutputArgs};
use crate::prompt::confirm;

/// As many shards as the schema admits.
const SHARDS_MAX: i64 = 256;

/// What to do with destinations.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Lists the destinations.
    List {
        #[command(flatten)]
        target: OutboxArgs,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Adds a destination with progress of its own; one that exists stays as it is.
    Add {
        #[command(flatten)]
        target: OutboxArgs,
        #[arg(value_parser = crate::args::new_destination)]
        name: String,
        /// Into how many slices the outbox is cut for its relays.
        #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=SHARDS_MAX))]
        shards: u16,
        /// Which message is its first.
        #[arg(long, value_parser = start_parser(), default_value = StartFrom::Now.as_str())]
        start: StartFrom,
    },
    /// Forgets a destination, with all that waits for it; retention no longer waits for it either.
    Remove {
        #[command(flatten)]
        target: OutboxArgs,
        #[arg(value_parser = crate::args::destination)]
        name: String,
        #[command(flatten)]
        yes: ConfirmArg,
    },
    /// Switches a destination on or off; relays of one that is off do not run.
    Switch {
        #[command(flatten)]
        target: OutboxArgs,
        #[arg(value_parser = crate::args::destination)]
        name: String,
        #[arg(value_enum)]
        to: Switch,
    },
    /// Asks for another number of shards; the relays carry it out when all of them have met at one tick.
    Regroup {
        #[command(flatten)]
        target: OutboxArgs,
        #[arg(value_parser = crate::args::destination)]
        name: String,
        #[arg(value_parser = clap::value_parser!(u16).range(1..=SHARDS_MAX))]
        shards: u16,
    },
}

/// Which way a switch is turned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Switch {
    /// Relays may run.
    On,
    /// No relay runs.
    Off,
}

pub(super) async fn run(command: Command) -> Result<ExitStatus> {
    match command {
        Command::List { target, output } => list(&target, output).await?,
        Command::Add { target, name, shards, start } => add(&target, &name, shards, start).await?,
        Command::Remove { target, name, yes } => remove(target, name, yes).await?,
        Command::Switch { target, name, to } => {
            let Opened { outbox, .. } = outbox::open(&named(target, &name)).await?;
            outbox.update_destination(&name, DestinationChange::Enabled(to == Switch::On)).await?;
            print_stderr(&match to {
                Switch::On => format!("destination `{name}` is on"),
                Switch::Off => format!("destination `{name}` is off: its relays stop, and retention waits for it"),
            });
        }
        Command::Regroup { target, name, shards } => {
            let Opened { outbox, .. } = outbox::open(&named(target, &name)).await?;
            outbox.update_destination(&name, DestinationChange::Shards(shards)).await?;
            print_stderr(&format!(
                "destination `{name}` will have {shards} shards as soon as its relays have met at one tick"
            ));
        }
    }
    Ok(ExitStatus::Success)
}

fn named(target: OutboxArgs, name: &str) -> DestinationArgs {
    DestinationArgs { target, destination: Some(name.to_owned()) }
}

async fn list(target: &OutboxArgs, output: OutputArgs) -> Result<()> {
    let destinations = Place::of(target)?.glance().await?.destinations().await?;
    if output.is_json() {
        for it in &destinations {
            let regrouping_to = it.resharding_to;
            output::line(
                &json!({ "name": it.name, "shards": it.shards, "regrouping_to": regrouping_to, "on": it.enabled }),
            )?;
        }
        return Ok(());
    }
    if destinations.is_empty() {
        print_stderr("there is no destination yet; `relevo destination add NAME` adds one");
        return Ok(());
    }
    let rows = destinations.iter().map(|it| {
        let regrouping = it.resharding_to.map_or_else(String::new, |shards| format!("to {shards} shards"));
        let on = if it.enabled { "on" } else { "off" };
        vec![it.name.clone(), it.shards.to_string(), on.to_owned(), regrouping]
    });
    let mut table = Table::new(&["NAME", "SHARDS", "SWITCH", "REGROUPING"]);
    table.write(&mut io::stdout().lock(), &rows.collect::<Vec<_>>())?;
    Ok(())
}

async fn add(target: &OutboxArgs, name: &str, shards: u16, start: StartFrom) -> Result<()> {
    let outbox = Place::of(target)?.open(ANSWER_DEADLINE).await?;
    print_stderr(&if outbox.add_destination(name, shards, start).await? {
        format!("destination `{name}` is added, with {shards} shards; it starts with {}", first_message(start))
    } else {
        format!("destination `{name}` exists, nothing was changed")
    });
    Ok(())
}

/// Parses a start. The help explains each.
fn start_parser() -> impl TypedValueParser<Value = StartFrom> {
    let explained = StartFrom::ALL.map(|start| PossibleValue::new(start.as_str()).help(first_message(start)));
    PossibleValuesParser::new(explained).try_map(|name| StartFrom::parse(&name).ok_or("an unknown start"))
}

const fn first_message(start: StartFrom) -> &'static str {
    match start {
        StartFrom::Now => "the first message that commits from now on",
        StartFrom::Oldest => "the oldest retained message",
    }
}

async fn remove(target: OutboxArgs, name: String, yes: ConfirmArg) -> Result<()> {
    let Opened { outbox, shown, .. } = outbox::open_within(&named(target, &name), REWRITE_DEADLINE).await?;
    if !yes.yes {
        let waits = Waits(outbox.sample_destination(&name).await?.backlog);
        let question =
            format!("remove destination `{name}` at {shown}? {waits} would never reach it, dead letters are deleted");
        confirm(yes, &question)?;
    }
    ensure!(outbox.remove_destination(&name).await?, "destination `{name}` was removed by somebody else");
    print_stderr(&format!("destination `{name}` is removed"));
    Ok(())
}
