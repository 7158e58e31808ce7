//! `relevo completions`

use std::io::{self, Write as _};

use anyhow::Result;
use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::args::Cli;
use crate::exit::ExitStatus;

/// For which shell.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  relevo completions bash")]
pub(crate) struct Args {
    /// The shell that shall complete.
    #[arg(value_enum)]
    shell: Shell,
}

pub(super) fn run(args: &Args) -> Result<ExitStatus> {
    // Written to memory first: the generator panics where stdout is closed.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "relevo", &mut script);
    io::stdout().write_all(&script)?;
    Ok(ExitStatus::Success)
}
