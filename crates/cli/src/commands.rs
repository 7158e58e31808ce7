//! What people ask of an outbox and tell it: one file a command, all of them written against the core's traits.

mod backlog;
mod base64;
mod completions;
mod dead;
mod destination;
mod doctor;
mod emit;
mod list;
mod migrate;
mod moment;
mod output;
mod payload;
mod shards;
mod show;
mod table;
mod takeover;
mod verify;
mod why;

use std::sync::LazyLock;

use anyhow::Result;
use clap::Subcommand;

use crate::exit::Code;

/// One thing to do with an outbox.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Creates an outbox in a database, or brings it up to this program's version.
    Migrate(migrate::Args),
    /// Emits a message, or many, in a transaction of their own.
    Emit(emit::Args),
    /// Lists messages and shows one.
    #[command(subcommand)]
    Outbox(Outbox),
    /// Says why a key does not move: behind what, since when, and what would free it.
    Why(why::Args),
    /// Lists dead letters, sends them again or puts them aside.
    #[command(subcommand)]
    Dead(dead::Command),
    /// Shows the shards of a destination and the relays that hold them.
    Shards(shards::Args),
    /// Says how much waits for a destination.
    Backlog(backlog::Args),
    /// Lists, adds, removes and changes destinations.
    #[command(subcommand)]
    Destination(destination::Command),
    /// Compares what was committed with what was settled, and looks for contradictions.
    Verify(verify::Args),
    /// Looks at the settings and the state that the promises stand on, and says what mends them.
    Doctor(doctor::Args),
    /// Takes an outbox over as it is, after an upgrade of the server or in a copy that shall publish from now on.
    Adopt(takeover::Args),
    /// Gives an outbox that was restored from a dump this server's transaction ids.
    Rebase(takeover::Args),
    /// Prints a script that completes commands and options in a shell.
    Completions(completions::Args),
}

/// What to see of an outbox.
#[derive(Debug, Subcommand)]
pub(crate) enum Outbox {
    /// Lists messages, newest first.
    List(list::Args),
    /// Shows one message with its payload.
    Show(show::Args),
}

pub(crate) async fn run(command: Command) -> Result<Code> {
    match command {
        Command::Migrate(args) => migrate::run(&args).await,
        Command::Emit(args) => emit::run(&args).await,
        Command::Outbox(Outbox::List(args)) => list::run(&args).await,
        Command::Outbox(Outbox::Show(args)) => show::run(&args).await,
        Command::Why(args) => why::run(&args).await,
        Command::Dead(command) => dead::run(command).await,
        Command::Shards(args) => shards::run(&args).await,
        Command::Backlog(args) => backlog::run(&args).await,
        Command::Destination(command) => destination::run(command).await,
        Command::Verify(args) => verify::run(&args).await,
        Command::Doctor(args) => doctor::run(&args).await,
        Command::Adopt(args) => takeover::adopt(&args).await,
        Command::Rebase(args) => takeover::rebase(&args).await,
        Command::Completions(args) => completions::run(&args),
    }
}

/// What `--version` tells of this build; `-V` tells the version alone.
pub(crate) fn build_facts() -> &'static str {
    static FACTS: LazyLock<String> = LazyLock::new(|| {
        format!(
            "{}\ncommit   {}\nbuilt by {}\ntarget   {}\nprofile  {}\nschema   {} in PostgreSQL, {} in SQLite",
            env!("CARGO_PKG_VERSION"),
            env!("RELEVO_COMMIT"),
            env!("RELEVO_RUSTC"),
            env!("RELEVO_TARGET"),
            env!("RELEVO_PROFILE"),
            relevo_store_postgres::migrate::VERSION,
            relevo_store_sqlite::migrate::VERSION,
        )
    });
    &FACTS
}
