//! `relevo destination`

mod show;

use std::io;

use anyhow::{Result, ensure};
use clap::Subcommand;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use relevo_core::outbox::admin::{DestinationChange, StartFrom};
use relevo_core::outbox::inspect::Backlog;
use serde_json::json;

use crate::args::{ConfirmArg, DestinationArgs, OutboxArgs};
use crate::connect::{self, ANSWER_TIMEOUT, OpenOutbox, REWRITE_TIMEOUT};
use crate::error_report::print_stderr;
use crate::exit::ExitStatus;
use crate::output::table::Table;
use crate::output::{self, OutputArgs, count};
use crate::prompt::confirm;

/// The maximum of the schema.
const SHARDS_MAX: i64 = 256;

/// What to do with destinations.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Lists the destinations.
    #[command(after_help = "Example: relevo destination list -o json")]
    List {
        #[command(flatten)]
        target: OutboxArgs,
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Shows destinations: state, backlog, and shards with their owners and leases.
    #[command(after_help = "Example: relevo destination show main")]
    Show(show::Args),
    /// Adds a destination with its own progress. An existing one is not changed.
    #[command(after_help = "Example: relevo destination add main --shards 16")]
    Add {
        #[arg(value_parser = crate::args::new_destination)]
        name: String,
        /// The number of shards; each is published by one relay at a time.
        #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=SHARDS_MAX))]
        shards: u16,
        /// Its first message.
        #[arg(long, value_parser = start_parser(), default_value = StartFrom::Oldest.as_str())]
        start: StartFrom,
        #[command(flatten)]
        target: OutboxArgs,
    },
    /// Removes a destination with its waiting messages and dead letters.
    #[command(after_help = "Example: relevo destination remove audit")]
    Remove {
        #[arg(value_parser = crate::args::destination)]
        name: String,
        #[command(flatten)]
        yes: ConfirmArg,
        #[command(flatten)]
        target: OutboxArgs,
    },
    /// Enables a destination. Relays may run.
    #[command(after_help = "Example: relevo destination enable main")]
    Enable(NameArgs),
    /// Disables a destination. Its relays stop, and retention waits for it.
    #[command(after_help = "Example: relevo destination disable main")]
    Disable(NameArgs),
    /// Requests another number of shards. The relays reshard the destination.
    #[command(after_help = "Example: relevo destination reshard main 16")]
    Reshard {
        #[arg(value_parser = crate::args::destination)]
        name: String,
        #[arg(value_parser = clap::value_parser!(u16).range(1..=SHARDS_MAX))]
        shards: u16,
        #[command(flatten)]
        target: OutboxArgs,
    },
}

/// Which destination.
#[derive(Debug, clap::Args)]
pub(crate) struct NameArgs {
    #[arg(value_parser = crate::args::destination)]
    name: String,
    #[command(flatten)]
    target: OutboxArgs,
}

pub(super) async fn run(command: Command) -> Result<ExitStatus> {
    match command {
        Command::List { target, output } => list(&target, output).await?,
        Command::Show(args) => return show::run(&args).await,
        Command::Add { target, name, shards, start } => add(&target, &name, shards, start).await?,
        Command::Remove { target, name, yes } => remove(target, name, yes).await?,
        Command::Enable(NameArgs { name, target }) => {
            change(target, &name, DestinationChange::Enabled(true)).await?;
            print_stderr(&format!("destination `{name}` is enabled"));
        }
        Command::Disable(NameArgs { name, target }) => {
            change(target, &name, DestinationChange::Enabled(false)).await?;
            print_stderr(&format!("destination `{name}` is disabled: its relays stop, and retention waits for it"));
        }
        Command::Reshard { target, name, shards } => {
            change(target, &name, DestinationChange::Shards(shards)).await?;
            let shards = count(shards.into(), "shard");
            print_stderr(&format!("destination `{name}` will have {shards} when all its relays reach the same tick"));
        }
    }
    Ok(ExitStatus::Success)
}

fn named(target: OutboxArgs, name: &str) -> DestinationArgs {
    DestinationArgs { target, destination: Some(name.to_owned()) }
}

async fn change(target: OutboxArgs, name: &str, change: DestinationChange) -> Result<()> {
    let OpenOutbox { outbox, .. } = connect::open(&named(target, name)).await?;
    outbox.update_destination(name, change).await?;
    Ok(())
}

async fn list(target: &OutboxArgs, output: OutputArgs) -> Result<()> {
    let destinations = target.locate()?.outbox().await?.destinations().await?;
    if output.is_json() {
        for it in &destinations {
            output::line(&json!({
                "name": it.name, "shards": it.shards, "target_shards": it.resharding_to, "enabled": it.enabled,
            }))?;
        }
        return Ok(());
    }
    if destinations.is_empty() {
        print_stderr(
            "there is no destination yet; `relevo run` adds those of its configuration, and `relevo destination add NAME` adds one",
        );
        return Ok(());
    }
    let rows = destinations.iter().map(|it| {
        let target = it.resharding_to.map_or_else(|| "-".to_owned(), |shards| shards.to_string());
        vec![it.name.clone(), it.shards.to_string(), show::state(it).to_owned(), target]
    });
    let mut table = Table::new(&["NAME", "SHARDS", "STATE", "TARGET SHARDS"]);
    table.write(&mut io::stdout().lock(), &rows.collect::<Vec<_>>())?;
    Ok(())
}

async fn add(target: &OutboxArgs, name: &str, shards: u16, start: StartFrom) -> Result<()> {
    let outbox = target.locate()?.open(ANSWER_TIMEOUT).await?;
    print_stderr(&if outbox.add_destination(name, shards, start).await? {
        let shards = count(shards.into(), "shard");
        format!("destination `{name}` is added with {shards}; it starts with {}", first_message(start))
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
    let OpenOutbox { outbox, shown, .. } = connect::open_within(&named(target, &name), REWRITE_TIMEOUT).await?;
    if !yes.yes {
        let Backlog { pending, exact, parked, .. } = outbox.sample_destination(&name).await?.backlog;
        let about = if exact { "" } else { "about " };
        confirm(
            yes,
            &format!(
                "remove destination `{name}` at {shown}? {about}{pending} pending and {parked} parked messages are not \
                 published to it, and its dead letters are deleted"
            ),
        )?;
    }
    ensure!(outbox.remove_destination(&name).await?, "destination `{name}` was removed meanwhile");
    print_stderr(&format!("destination `{name}` is removed"));
    Ok(())
}
