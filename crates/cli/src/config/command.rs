//! `relevo config check` and `relevo config print`.

use std::io::{self, Write as _};

use anyhow::Result;
use clap::{Args, Subcommand};

use super::{Sources, print, reference, told, warn};
use crate::error_report::print_stderr;
use crate::exit::ExitStatus;

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
    /// One JSON object on stdout instead of sentences on stderr.
    #[arg(long)]
    json: bool,
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
    pub(crate) fn run(&self) -> Result<ExitStatus> {
        match self {
            Self::Check(check) => return check.run(),
            Self::Example => io::stdout().write_all(reference::example().as_bytes())?,
            Self::Reference => io::stdout().write_all(reference::page().as_bytes())?,
            Self::Print(args) => {
                let loaded = told(args.sources.load())?;
                warn(&loaded.warnings);
                let mut out = io::stdout().lock();
                if args.json {
                    writeln!(out, "{}", print::json(&loaded))?;
                } else {
                    print::lines(&loaded, out)?;
                }
            }
        }
        Ok(ExitStatus::Success)
    }
}

impl Check {
    fn run(&self) -> Result<ExitStatus> {
        let result = self.sources.load();
        if self.json {
            let code = if result.is_ok() { ExitStatus::Success } else { ExitStatus::Usage };
            writeln!(io::stdout(), "{}", print::verdict(&self.sources, &result))?;
            return Ok(code);
        }
        let loaded = told(result)?;
        warn(&loaded.warnings);
        let (outboxes, destinations) = loaded.config.counts();
        let outboxes = count(outboxes, "outbox", "outboxes");
        let destinations = count(destinations, "destination", "destinations");
        print_stderr(&format!("`{}` is good: {outboxes}, {destinations}", loaded.file));
        Ok(ExitStatus::Success)
    }
}

fn count(number: usize, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}
