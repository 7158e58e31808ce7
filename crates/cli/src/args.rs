//! What can be typed.

use clap::{Args, Parser, Subcommand, ValueEnum};
use relevo_store_postgres::Schema;

/// As many shards as the schema admits.
const SHARDS_MAX: i64 = 256;

/// Carries what a database transaction commits to where it must go, in order.
///
/// Without a command it shows itself: the same as `relevo dev`.
#[derive(Debug, Parser)]
#[command(name = "relevo", version, after_help = EXIT_CODES)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

const EXIT_CODES: &str = "Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted twice.\n\
    Data goes to stdout, everything else to stderr.";

/// One thing to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Shows an outbox, a relay and a broker at work, all in memory; nothing to install.
    Dev(Dev),
    /// Checks and shows the configuration of `relevo run`.
    #[command(subcommand)]
    Config(crate::config::Command),
    /// Creates an outbox in a database, or brings it up to this program's version.
    Migrate(Migrate),
    /// Adds, removes and changes destinations.
    #[command(subcommand)]
    Destination(Destination),
    /// Takes an outbox over as it is, after an upgrade of the server or in a copy that shall publish from now on.
    Adopt(Takeover),
    /// Gives an outbox that was restored from a dump this server's transaction ids.
    Rebase(Takeover),
    /// Says how much waits for a destination.
    Backlog(Backlog),
}

/// How the demo runs.
#[derive(Debug, Clone, Args)]
pub(crate) struct Dev {
    /// Messages a second; the limit is the demo's, not the relay's.
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) rate: u32,
    /// Ends by itself after so many seconds; 0 waits for Ctrl-C.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seconds: u32,
}

impl Default for Dev {
    fn default() -> Self {
        Self { rate: 200, seconds: 0 }
    }
}

/// Which outbox.
#[derive(Debug, Clone, Args)]
pub(crate) struct Target {
    /// The database, as `postgres://user:password@host:port/name` [env: `RELEVO_DATABASE_URL`].
    #[arg(long, value_name = "URL")]
    pub(crate) database: Option<String>,
    #[command(flatten)]
    pub(crate) place: Place,
}

/// Where in the database.
#[derive(Debug, Clone, Args)]
pub(crate) struct Place {
    /// The database schema that holds the outbox.
    #[arg(long, value_name = "NAME", default_value = "relevo", value_parser = schema)]
    pub(crate) schema: Schema,
}

/// What to migrate.
#[derive(Debug, Args)]
pub(crate) struct Migrate {
    #[command(flatten)]
    pub(crate) target: Target,
    /// Only prints the script, for a DBA to read and run; needs no database.
    #[arg(long)]
    pub(crate) print: bool,
}

/// What to do with a destination.
#[derive(Debug, Subcommand)]
pub(crate) enum Destination {
    /// Adds a destination with progress of its own; one that exists stays as it is.
    Add {
        #[command(flatten)]
        target: Target,
        #[arg(value_parser = destination)]
        name: String,
        /// Into how many slices the outbox is cut for its relays.
        #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=SHARDS_MAX))]
        shards: u16,
        /// Which message is its first.
        #[arg(long, value_enum, default_value_t = Start::Now)]
        start: Start,
    },
    /// Forgets a destination, with all that waits for it; retention no longer waits for it either.
    Remove {
        #[command(flatten)]
        target: Target,
        #[arg(value_parser = destination)]
        name: String,
        #[command(flatten)]
        sure: Sure,
    },
    /// Switches a destination on or off; relays of one that is off do not run.
    Switch {
        #[command(flatten)]
        target: Target,
        #[arg(value_parser = destination)]
        name: String,
        #[arg(value_enum)]
        to: Switch,
    },
    /// Asks for another number of shards; the relays carry it out when all of them have met at one tick.
    Regroup {
        #[command(flatten)]
        target: Target,
        #[arg(value_parser = destination)]
        name: String,
        #[arg(value_parser = clap::value_parser!(u16).range(1..=SHARDS_MAX))]
        shards: u16,
    },
}

/// Where a new destination starts.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Start {
    /// The first that commits from now on.
    Now,
    /// The oldest that is retained.
    Oldest,
}

/// Which way a switch is turned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Switch {
    /// Relays may run.
    On,
    /// No relay runs.
    Off,
}

/// Which outbox is taken over.
#[derive(Debug, Args)]
pub(crate) struct Takeover {
    #[command(flatten)]
    pub(crate) target: Target,
    #[command(flatten)]
    pub(crate) sure: Sure,
}

/// An answer given beforehand.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Sure {
    /// Does not ask.
    #[arg(long)]
    pub(crate) yes: bool,
}

/// Whose backlog.
#[derive(Debug, Args)]
pub(crate) struct Backlog {
    #[command(flatten)]
    pub(crate) target: Target,
    #[arg(value_parser = destination)]
    pub(crate) name: String,
    /// One JSON object instead of lines for people.
    #[arg(long)]
    pub(crate) json: bool,
}

fn destination(text: &str) -> Result<String, String> {
    if text.is_empty() || text.contains(char::is_control) {
        return Err("a destination's name is not empty and has no control characters".to_owned());
    }
    Ok(text.to_owned())
}

/// [`Schema::new`] panics where this says what is wrong.
fn schema(text: &str) -> Result<Schema, String> {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    if (1..=63).contains(&text.len()) && text.bytes().all(known) {
        Ok(Schema::new(text))
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
        assert_eq!((dev.rate, dev.seconds), (default.rate, default.seconds));
        assert!(Cli::try_parse_from(["relevo"]).unwrap().command.is_none());
    }

    #[test]
    fn a_schema_that_would_panic_is_refused() {
        for name in ["", "a b", "a\"b", &"x".repeat(64)] {
            assert!(Cli::try_parse_from(["relevo", "migrate", "--print", "--schema", name]).is_err(), "{name}");
        }
    }
}
