//! What commands print: tables for people, JSON for programs.

mod json;
pub(crate) mod payload;
pub(crate) mod table;
pub(crate) mod time;

use clap::{Args, ValueEnum};

pub(crate) use self::json::{add_content, add_payload, base64, is_json, line, listed, shard, timestamp};

/// How a command prints its result.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct OutputArgs {
    /// The format of the output.
    #[arg(long = "output", short = 'o', value_name = "FORMAT", value_enum, default_value = "table")]
    format: OutputFormat,
}

/// A format of output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum OutputFormat {
    /// Text for people.
    Table,
    /// JSON for programs: one object per line.
    Json,
}

impl OutputArgs {
    /// Whether a program reads the output.
    pub(crate) fn is_json(self) -> bool {
        self.format == OutputFormat::Json
    }
}
