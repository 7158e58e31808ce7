//! The commands of operators, one file per noun. They know ports of the core only.

mod cancel;
mod check;
mod completions;
mod consumer;
mod dead_letter;
mod destination;
mod doctor;
mod emit;
mod grant;
mod init;
mod man;
mod message;
mod migrate;
mod outbox;
mod replay;
mod settings;
mod status;
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

/// A command of operators. The help lists them in this order.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Writes a small `relevo.toml` that delivers.
    Init(init::Args),
    /// Creates an outbox in a database, or upgrades it to this version.
    Migrate(migrate::Args),
    /// Emits one message, or many from JSON lines.
    Emit(emit::Args),
    /// Cancels a scheduled message that is not due yet.
    Cancel(cancel::Args),
    /// Grants a database role the rights of a writer, a relay, a consumer or an operator.
    Grant(grant::Args),
    /// Prints or changes how long an outbox keeps messages, ids and dead letters.
    #[command(subcommand)]
    Settings(settings::Command),
    /// Lists, shows and follows messages.
    #[command(subcommand)]
    Message(message::Command),
    /// Lists, shows, redrives and discards dead letters of destinations and consumers.
    #[command(subcommand, visible_alias = "dead")]
    DeadLetter(dead_letter::Command),
    /// Explains why a key waits, and what to do.
    Why(why::Args),
    /// Follows a message through destinations and consumers.
    Trace(trace::Args),
    /// Lists, shows, adds, changes and removes destinations.
    #[command(subcommand)]
    Destination(destination::Command),
    /// Lists, shows, pauses and removes consumers.
    #[command(subcommand)]
    Consumer(consumer::Command),
    /// Sends messages of a log to one consumer again.
    #[command(subcommand)]
    Replay(replay::Command),
    /// Shows backlog, age, rates, and everything that needs an operator.
    Status(status::Args),
    /// Shows the status continuously, until Ctrl-C.
    Top(top::Args),
    /// Compares committed with settled messages, and reports inconsistencies.
    Verify(verify::Args),
    /// Checks configuration, databases, brokers and topology before a deployment.
    Check(check::Args),
    /// Checks the database and broker settings that delivery guarantees depend on, and prints a fix for each problem.
    Doctor(doctor::Args),
    /// Compares exchanges, queues and streams with the configuration, and creates missing ones.
    #[command(subcommand)]
    Topology(topology::Command),
    /// Adopts or rebases an outbox that was copied or restored.
    #[command(subcommand)]
    Outbox(outbox::Command),
    /// Prints a script that completes commands and options in a shell.
    Completions(completions::Args),
    /// Writes a manual page for each command.
    Man(man::Args),
}

pub(crate) async fn run(command: Command) -> Result<ExitStatus> {
    match command {
        Command::Init(args) => init::run(&args),
        Command::Migrate(args) => migrate::run(&args).await,
        Command::Emit(args) => emit::run(&args).await,
        Command::Cancel(args) => cancel::run(&args).await,
        Command::Grant(args) => grant::run(&args).await,
        Command::Settings(command) => settings::run(&command).await,
        Command::Message(command) => message::run(command).await,
        Command::DeadLetter(command) => dead_letter::run(command).await,
        Command::Why(args) => why::run(&args).await,
        Command::Trace(args) => trace::run(&args).await,
        Command::Destination(command) => destination::run(command).await,
        Command::Consumer(command) => consumer::run(command).await,
        Command::Replay(command) => replay::run(command).await,
        Command::Status(args) => status::run(&args).await,
        Command::Top(args) => top::run(&args).await,
        Command::Verify(args) => verify::run(&args).await,
        Command::Check(args) => check::run(&args).await,
        Command::Doctor(args) => doctor::run(&args).await,
        Command::Topology(command) => topology::run(command).await,
        Command::Outbox(command) => outbox::run(command).await,
        Command::Completions(args) => completions::run(&args),
        Command::Man(args) => man::run(&args),
    }
}

/// The text of `--version`. `-V` prints the version only.
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
                let is_listed =
                    |text: &str| text.contains(&format!("`--{long}`")) || text.contains(&format!("`--{long} "));
                if !is_listed(own) && !is_listed(common) {
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
