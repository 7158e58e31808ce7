//! `relevo init`

use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Write as _};
use std::path::Path;

use anyhow::{Context as _, Result, anyhow};
use clap::builder::PossibleValuesParser;
use relevo_host::registry::{self, BROKERS, BrokerKind, StoreConfig};
use serde_json::Value;

use crate::config;
use crate::error_report::print_stderr;
use crate::exit::{ExitStatus, usage};

/// The database and the kind of broker.
#[derive(Debug, clap::Args)]
#[command(after_help = examples())]
pub(crate) struct Args {
    /// The kind of broker.
    #[arg(long, value_name = "KIND", value_parser = PossibleValuesParser::new(BROKERS.iter().map(|kind| kind.name)))]
    broker: String,
    /// The database: `postgres://user:password@host:port/name` or `sqlite:FILE`.
    #[arg(long, value_name = "URL")]
    database: String,
    /// Print the file instead of writing `relevo.toml`.
    #[arg(long)]
    stdout: bool,
}

fn examples() -> String {
    let lines = BROKERS.iter().map(|kind| {
        format!("\n  relevo init --broker {} --database postgres://relevo@localhost/shop --stdout", kind.name)
    });
    format!("Examples:{}", lines.collect::<String>())
}

pub(super) fn run(args: &Args) -> Result<ExitStatus> {
    let kind =
        BROKERS.iter().find(|kind| kind.name == args.broker).ok_or_else(|| usage("an unknown kind of broker"))?;
    registry::store(&StoreConfig::from_url(&args.database)).map_err(|error| usage(error.to_string()))?;
    let text = file(kind, &args.database);
    if args.stdout {
        io::stdout().write_all(text.as_bytes())?;
        return Ok(ExitStatus::Success);
    }
    write_new(Path::new(config::FILE), &text)?;
    print_stderr(&format!("`{}` was written; next: `relevo migrate`, then `relevo run`", config::FILE));
    Ok(ExitStatus::Success)
}

/// A small file that delivers.
fn file(kind: &BrokerKind, database: &str) -> String {
    let BrokerKind { name, example, .. } = kind;
    // A JSON string is a TOML string, too.
    let database = Value::from(database);
    format!(
        "\
# `relevo config check` reports every problem of this file, and `relevo config example` prints every key.

[outboxes.main]
# With a password, use `database_file` or `database_env`.
database = {database}

# Without routes, every message is published here.
[outboxes.main.destinations.main.broker]
kind = \"{name}\"
{example}"
    )
}

/// Writes a file that does not exist yet. Only its owner may read it, because a URL may contain a password.
fn write_new(path: &Path, text: &str) -> Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let shown = path.display();
    let mut file = match options.open(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            return Err(anyhow!("`{shown}` exists, and is not overwritten; hint: `--stdout` prints the file instead"));
        }
        opened => opened.with_context(|| format!("`{shown}` cannot be written"))?,
    };
    file.write_all(text.as_bytes()).with_context(|| format!("`{shown}` cannot be written"))
}
