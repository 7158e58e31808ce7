//! What people ask of an outbox and tell it: one file a command, all of them written against the core's traits.

mod backlog;
mod completions;
mod consumers;
mod dead;
mod destination;
mod doctor;
mod emit;
mod list;
mod migrate;
mod replay;
mod shards;
mod show;
mod status;
mod takeover;
mod top;
mod topology;
mod trace;
mod verify;
mod why;

use std::sync::LazyLock;

use anyhow::Result;
use clap::Subcommand;
use relevo_host::registry::STORES;

use crate::exit::ExitStatus;

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
    /// Explains why a key waits: the cause, since when, and the next step.
    Why(why::Args),
    /// Lists dead letters, sends them again or puts them aside.
    #[command(subcommand)]
    Dead(dead::Command),
    /// Lists consumers, pauses them, and deals with what they gave up.
    #[command(subcommand)]
    Consumers(consumers::Command),
    /// Follows a message: where it stands at each destination, and what each consumer did with it.
    Trace(trace::Args),
    /// Has messages of a log handled again on purpose, by one consumer.
    #[command(subcommand)]
    Replay(replay::Command),
    /// Shows the shards of a destination and the relays that hold them.
    Shards(shards::Args),
    /// Shows at once what waits, how old it is, how fast it moves, and what needs a person.
    Status(status::Args),
    /// The same, again and again, until Ctrl-C.
    Top(top::Args),
    /// Says how much waits for a destination.
    Backlog(backlog::Args),
    /// Lists, adds, removes and changes destinations.
    #[command(subcommand)]
    Destination(destination::Command),
    /// Compares what was committed with what was settled, and looks for contradictions.
    Verify(verify::Args),
    /// Looks at the settings and the state that the promises stand on, and says what mends them.
    Doctor(doctor::Args),
    /// Compares exchanges, queues and streams with the configuration, and makes what is missing.
    #[command(subcommand)]
    Topology(topology::Command),
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

pub(crate) async fn run(command: Command) -> Result<ExitStatus> {
    match command {
        Command::Migrate(args) => migrate::run(&args).await,
        Command::Emit(args) => emit::run(&args).await,
        Command::Outbox(Outbox::List(args)) => list::run(&args).await,
        Command::Outbox(Outbox::Show(args)) => show::run(&args).await,
        Command::Why(args) => why::run(&args).await,
        Command::Dead(command) => dead::run(command).await,
        Command::Consumers(command) => consumers::run(command).await,
        Command::Trace(args) => trace::run(&args).await,
        Command::Replay(command) => replay::run(command).await,
        Command::Shards(args) => shards::run(&args).await,
        Command::Status(args) => status::run(&args).await,
        Command::Top(args) => top::run(&args).await,
        Command::Backlog(args) => backlog::run(&args).await,
        Command::Destination(command) => destination::run(command).await,
        Command::Verify(args) => verify::run(&args).await,
        Command::Doctor(args) => doctor::run(&args).await,
        Command::Topology(command) => topology::run(command).await,
        Command::Adopt(args) => takeover::adopt(&args).await,
        Command::Rebase(args) => takeover::rebase(&args).await,
        Command::Completions(args) => completions::run(&args),
    }
}

/// What `--version` tells of this build; `-V` tells the version alone.
pub(crate) fn build_facts() -> &'static str {
    static FACTS: LazyLock<String> = LazyLock::new(|| {
        format!(
            "{}\ncommit   {}\nbuilt by {}\ntarget   {}\nprofile  {}\nschema   {}",
            env!("CARGO_PKG_VERSION"),
            env!("RELEVO_COMMIT"),
            env!("RELEVO_RUSTC"),
            env!("RELEVO_TARGET"),
            env!("RELEVO_PROFILE"),
            STORES
                .iter()
                .map(|kind| format!("{} in {}", kind.schema_version, kind.name))
                .collect::<Vec<_>>()
                .join(", "),
        )
    });
    &FACTS
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use crate::args::Cli;

    const PAGE: &str = include_str!("../../../docs/reference/cli.md");

    /// The part of the page under a heading, up to the next one.
    fn section(heading: &str) -> Option<&'static str> {
        let start = PAGE.find(&format!("{heading}\n"))? + heading.len();
        let rest = &PAGE[start..];
        Some(rest.find("\n#").map_or(rest, |end| &rest[..end]))
    }

    /// Every command that does something, with the words that call it.
    fn leaves(command: &clap::Command, words: &str, found: &mut Vec<(String, clap::Command)>) {
        for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
            let words = format!("{words} {}", sub.get_name());
            if sub.has_subcommands() {
                leaves(sub, &words, found);
            } else {
                found.push((words, sub.clone()));
            }
        }
    }

    #[test]
    fn the_reference_has_every_command_and_every_option() {
        let common = section("## Common options").expect("the options that commands share");
        let mut commands = Vec::new();
        leaves(&Cli::command(), "relevo", &mut commands);
        assert!(commands.len() > 20, "{}", commands.len());
        let mut missing = Vec::new();
        for (words, command) in &commands {
            let Some(own) = section(&format!("### `{words}`")) else {
                missing.push(words.clone());
                continue;
            };
            for long in command.get_arguments().filter_map(clap::Arg::get_long).filter(|long| *long != "help") {
                let is_told =
                    |text: &str| text.contains(&format!("`--{long}`")) || text.contains(&format!("`--{long} "));
                if !is_told(own) && !is_told(common) {
                    missing.push(format!("{words} --{long}"));
                }
            }
        }
        assert!(missing.is_empty(), "docs/reference/cli.md says nothing of: {missing:#?}");
    }

    #[test]
    fn the_reference_names_no_command_that_is_not_there() {
        let mut commands = Vec::new();
        leaves(&Cli::command(), "relevo", &mut commands);
        let headings = PAGE.lines().filter_map(|line| line.strip_prefix("### `")?.strip_suffix('`'));
        let unknown: Vec<&str> = headings
            .filter(|heading| *heading != "relevo --version" && !commands.iter().any(|(words, _)| words == heading))
            .collect();
        assert!(unknown.is_empty(), "{unknown:?}");
    }
}
