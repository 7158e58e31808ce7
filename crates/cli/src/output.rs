//! What commands print: tables for people, JSON for programs.

mod json;
pub(crate) mod payload;
mod progress;
pub(crate) mod table;
pub(crate) mod time;

use clap::{Args, ValueEnum};

pub(crate) use self::json::{add_content, add_payload, base64, is_json, line, listed, shard, timestamp};
pub(crate) use self::progress::Progress;

/// How a command prints its result.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct OutputArgs {
    /// The format of the output: text for people, or one JSON object per line.
    #[arg(long = "output", short = 'o', value_name = "FORMAT", value_enum, default_value = "table")]
    format: OutputFormat,
}

/// A format of output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum OutputFormat {
    // Comments instead of docs, so that the help has one line for both.
    // Text for people.
    Table,
    // One JSON object per line, for programs.
    Json,
}

impl OutputArgs {
    /// Whether a program reads the output.
    pub(crate) fn is_json(self) -> bool {
        self.format == OutputFormat::Json
    }
}

/// A number of things, as `1 message` or `2 messages`.
pub(crate) fn count(number: u64, thing: &str) -> String {
    format!("{number} {thing}{}", if number == 1 { "" } else { "s" })
}
