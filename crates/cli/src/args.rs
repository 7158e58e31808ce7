//! The command line: the tree of commands, and the arguments that several of them share.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use relevo_core::MessageId;

use crate::config::Sources;

/// A transactional outbox and inbox for services that write to PostgreSQL or SQLite: it publishes every committed message to
/// your broker, in order per key, and lets consumers apply each one once.
///
/// Without a command, `relevo` runs the demo, as `relevo dev`.
#[derive(Debug, Parser)]
#[command(name = "relevo", version, long_version = crate::commands::build_facts(), after_help = EXIT_CODES)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

const EXIT_CODES: &str = "Commands of operators find their outbox in `relevo.toml`, or with `--database URL`.

Exit codes: 0 success, 1 failure, 2 wrong usage, 3 findings (check, doctor, verify, topology), 4 not found,
    5 database or broker unreachable, 130 interrupted.
Data is printed to stdout, everything else to stderr.";

/// A command.
#[derive(Debug, Subcommand)]
#[expect(clippy::large_enum_variant, reason = "there is one of them in the whole program")]
pub(crate) enum Command {
    /// Runs a demo shop with an outbox, a relay, a broker and a consumer; nothing to install.
    Dev(Dev),
    /// Runs the relays of every configured outbox: the daemon.
    Run(crate::run::Run),
    /// Checks and shows the configuration.
    #[command(subcommand)]
    Config(crate::config::Command),
    /// A command of operators.
    #[command(flatten)]
    Operator(crate::commands::Command),
}

/// How the demo runs.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:\n  relevo dev\n  relevo dev --data demo --rate 1000 --seconds 60")]
pub(crate) struct Dev {
    /// Where it keeps its data; what is there is carried on.
    #[arg(long, value_name = "DIRECTORY", default_value = DATA)]
    pub(crate) data: PathBuf,
    /// Changes of orders a second.
    #[arg(long, value_name = "N", default_value_t = RATE, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) rate: u32,
    /// The port of the page on loopback; 0 takes a free one.
    #[arg(long, value_name = "N", default_value_t = PORT)]
    pub(crate) port: u16,
    /// Stops after this number of seconds; 0 waits for Ctrl-C.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seconds: u32,
}

const DATA: &str = "relevo-data";
const RATE: u32 = 200;
const PORT: u16 = 7373;

impl Default for Dev {
    fn default() -> Self {
        Self { data: DATA.into(), rate: RATE, port: PORT, seconds: 0 }
    }
}

/// The heading of the options that select an outbox.
const OUTBOX: &str = "Outbox";

/// Which outbox. An option overrides the environment, and the environment overrides the file.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct OutboxArgs {
    /// The database: `postgres://user:password@host:port/name` or `sqlite:FILE` [env: `RELEVO_DATABASE_URL`].
    #[arg(long, value_name = "URL", help_heading = OUTBOX)]
    pub(crate) database: Option<String>,
    /// The outbox of the configuration file, if it has several.
    #[arg(long, value_name = "NAME", help_heading = OUTBOX)]
    pub(crate) outbox: Option<String>,
    #[command(flatten)]
    pub(crate) config: Sources,
    #[command(flatten)]
    pub(crate) place: SchemaArg,
}

/// The schema, and the file system of a file.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct SchemaArg {
    /// The database schema of the outbox [default: `relevo`]; PostgreSQL only.
    #[arg(long, value_name = "NAME", value_parser = schema, help_heading = OUTBOX)]
    pub(crate) schema: Option<String>,
    /// Accepts a SQLite file on a network file system; a file that two machines use will be corrupted.
    #[arg(long, help_heading = OUTBOX)]
    pub(crate) allow_network_file_system: bool,
}

/// Which destination of which outbox.
#[derive(Debug, Clone, Args)]
pub(crate) struct DestinationArgs {
    #[command(flatten)]
    pub(crate) target: OutboxArgs,
    /// The destination, if the outbox has several.
    #[arg(long, short, value_name = "NAME", value_parser = destination, help_heading = OUTBOX)]
    pub(crate) destination: Option<String>,
}

/// A confirmation on the command line.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct ConfirmArg {
    /// Confirms in advance, instead of at the prompt.
    #[arg(long)]
    pub(crate) yes: bool,
}

/// The name of a destination to be: one that a configuration can name, too.
pub(crate) fn new_destination(text: &str) -> Result<String, String> {
    if crate::config::is_name(text) {
        return Ok(text.to_owned());
    }
    Err("a destination's name has 1 to 63 ASCII letters, digits, `-` and single `_` between them".to_owned())
}

/// The name of a destination that may have been added by other means than this program.
pub(crate) fn destination(text: &str) -> Result<String, String> {
    if text.is_empty() || text.contains(char::is_control) {
        return Err("a destination's name is not empty and has no control characters".to_owned());
    }
    Ok(text.to_owned())
}

/// A message's id.
pub(crate) fn message_id(text: &str) -> Result<MessageId, String> {
    text.parse().map_err(|_| "an id is a UUID, as `5e8a1c6e-7d29-4c86-b1a9-3f0d6f2a9b10`".to_owned())
}

/// The name of a database schema.
fn schema(text: &str) -> Result<String, String> {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    if (1..=63).contains(&text.len()) && text.bytes().all(known) {
        Ok(text.to_owned())
    } else {
        Err("a schema's name has 1 to 63 ASCII letters, digits, `_` and `-`".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_commands_are_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn no_command_means_the_demo_with_its_defaults() {
        let Some(Command::Dev(dev)) = Cli::try_parse_from(["relevo", "dev"]).unwrap().command else { unreachable!() };
        let default = Dev::default();
        assert_eq!((dev.data, dev.rate, dev.port), (default.data, default.rate, default.port));
        assert_eq!(dev.seconds, default.seconds);
        assert!(Cli::try_parse_from(["relevo"]).unwrap().command.is_none());
    }

    #[test]
    fn an_invalid_schema_name_is_refused() {
        for name in ["", "a b", "a\"b", &"x".repeat(64)] {
            assert!(Cli::try_parse_from(["relevo", "migrate", "--print", "--schema", name]).is_err(), "{name}");
        }
    }
}
