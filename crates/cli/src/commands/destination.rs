//! `relevo destination`

use std::io;

use anyhow::{Result, ensure};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Subcommand, ValueEnum};
use relevo_core::outbox::admin::{DestinationChange, StartFrom};
use serde_json::json;

use super::backlog::Waits;
use super::output::{self, Format};
use super::table::Table;
use crate::args::{Sure, Target};
use crate::ask::confirm;
use crate::database::{ANSWER_DEADLINE, REWRITE_DEADLINE};
use crate::exit::Code;
use crate::outbox::{self, Opened, Place, Which};
use crate::report::say;

/// As many shards as the schema admits.
const SHARDS_MAX: i64 = 256;

/// What to do with destinations.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Lists the destinations.
    List {
        #[command(flatten)]
        target: Target,
        #[command(flatten)]
        format: Format,
    },
    /// Adds a destination with progress of its own; one that exists stays as it is.
    Add {
        #[command(flatten)]
        target: Target,
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
        target: Target,
        #[arg(value_parser = crate::args::destination)]
        name: String,
        #[command(flatten)]
        sure: Sure,
    },
    /// Switches a destination on or off; relays of one that is off do not run.
    Switch {
        #[command(flatten)]
        target: Target,
        #[arg(value_parser = crate::args::destination)]
        name: String,
        #[arg(value_enum)]
        to: Switch,
    },
    /// Asks for another number of shards; the relays carry it out when all of them have met at one tick.
    Regroup {
        #[command(flatten)]
        target: Target,
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

pub(super) async fn run(command: Command) -> Result<Code> {
    match command {
        Command::List { target, format } => list(&target, format).await?,
        Command::Add { target, name, shards, start } => add(&target, &name, shards, start).await?,
        Command::Remove { target, name, sure } => remove(target, name, sure).await?,
        Command::Switch { target, name, to } => {
            let Opened { outbox, .. } = outbox::open(&named(target, &name)).await?;
            outbox.update_destination(&name, DestinationChange::Enabled(to == Switch::On)).await?;
            say(&match to {
                Switch::On => format!("destination `{name}` is on"),
                Switch::Off => format!("destination `{name}` is off: its relays stop, and retention waits for it"),
            });
        }
        Command::Regroup { target, name, shards } => {
            let Opened { outbox, .. } = outbox::open(&named(target, &name)).await?;
            outbox.update_destination(&name, DestinationChange::Shards(shards)).await?;
            say(&format!("destination `{name}` will have {shards} shards as soon as its relays have met at one tick"));
        }
    }
    Ok(Code::Done)
}

fn named(target: Target, name: &str) -> Which {
    Which { target, destination: Some(name.to_owned()) }
}

async fn list(target: &Target, format: Format) -> Result<()> {
    let destinations = Place::of(target)?.glance().await?.destinations().await?;
    if format.json {
        for it in &destinations {
            let regrouping_to = it.resharding_to;
            output::line(
                &json!({ "name": it.name, "shards": it.shards, "regrouping_to": regrouping_to, "on": it.enabled }),
            )?;
        }
        return Ok(());
    }
    if destinations.is_empty() {
        say("there is no destination yet; `relevo destination add NAME` adds one");
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

async fn add(target: &Target, name: &str, shards: u16, start: StartFrom) -> Result<()> {
    let outbox = Place::of(target)?.open(ANSWER_DEADLINE).await?;
    say(&if outbox.add_destination(name, shards, start).await? {
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

async fn remove(target: Target, name: String, sure: Sure) -> Result<()> {
    let Opened { outbox, shown, .. } = outbox::open_within(&named(target, &name), REWRITE_DEADLINE).await?;
    if !sure.yes {
        let waits = Waits(outbox.sample_destination(&name).await?.backlog);
        let question =
            format!("remove destination `{name}` at {shown}? {waits} would never reach it, dead letters are deleted");
        confirm(sure, &question)?;
    }
    ensure!(outbox.remove_destination(&name).await?, "destination `{name}` was removed by somebody else");
    say(&format!("destination `{name}` is removed"));
    Ok(())
}
