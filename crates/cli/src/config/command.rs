//! `relevo config check` and `relevo config print`.

use std::io::{self, Write as _};

use anyhow::Result;
use clap::{Args, Subcommand};

use super::{Sources, print, reference, told};
use crate::report::say;

/// What to do with the configuration.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Reads file and variables as `relevo run` would, and says all that is wrong.
    Check(Check),
    /// Shows every key with its value and where that came from; no secret is shown.
    Print(Print),
    /// Writes a file with every key, its defaults commented out.
    Example,
    /// Writes the reference page, in Markdown.
    Reference,
}

/// Which configuration.
#[derive(Debug, Args)]
pub(crate) struct Check {
    #[command(flatten)]
    sources: Sources,
}

/// Which configuration, and how.
#[derive(Debug, Args)]
pub(crate) struct Print {
    #[command(flatten)]
    sources: Sources,
    /// One JSON object instead of lines for people.
    #[arg(long)]
    json: bool,
}

impl Command {
    /// Does it.
    pub(crate) fn run(&self) -> Result<()> {
        match self {
            Self::Check(check) => {
                let loaded = told(check.sources.load())?;
                let outboxes = loaded.config.outboxes.len();
                let relays: usize = loaded.config.outboxes.iter().map(|outbox| outbox.destinations.len()).sum();
                say(&format!("`{}` is good: {outboxes} outboxes, {relays} destinations", loaded.file));
            }
            Self::Example => io::stdout().write_all(reference::example().as_bytes())?,
            Self::Reference => io::stdout().write_all(reference::page().as_bytes())?,
            Self::Print(args) => {
                let loaded = told(args.sources.load())?;
                let mut out = io::stdout().lock();
                if args.json {
                    writeln!(out, "{:#}", print::json(&loaded))?;
                } else {
                    print::lines(&loaded, out)?;
                }
            }
        }
        Ok(())
    }
}
