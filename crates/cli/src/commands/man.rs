//! `relevo man`

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::CommandFactory as _;

use crate::args::Cli;
use crate::exit::ExitStatus;

/// Where the pages are written.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  relevo man /usr/local/share/man/man1\n  man relevo-message-list")]
pub(crate) struct Args {
    /// The directory; it is created if it does not exist.
    #[arg(value_name = "DIRECTORY")]
    directory: PathBuf,
}

pub(super) fn run(args: &Args) -> Result<ExitStatus> {
    write(&args.directory)?;
    Ok(ExitStatus::Success)
}

fn write(directory: &Path) -> Result<()> {
    let context = || format!("cannot write manual pages to `{}`", directory.display());
    std::fs::create_dir_all(directory).with_context(context)?;
    // Without the pages of `help`, which say nothing that `--help` does not.
    let command = Cli::command().disable_help_subcommand(true);
    clap_mangen::generate_to(command, directory).with_context(context)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The page names of a command and of everything below it.
    fn pages(command: &clap::Command, name: &str, found: &mut Vec<String>) {
        found.push(format!("{name}.1"));
        for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
            pages(sub, &format!("{name}-{}", sub.get_name()), found);
        }
    }

    #[test]
    fn every_command_has_a_manual_page() {
        let directory = std::env::temp_dir().join(format!("relevo-man-{}", std::process::id()));
        write(&directory).unwrap();
        let mut expected = Vec::new();
        pages(&Cli::command(), "relevo", &mut expected);
        assert!(expected.len() > 40, "{}", expected.len());
        for page in &expected {
            let text = std::fs::read_to_string(directory.join(page)).unwrap_or_else(|error| panic!("{page}: {error}"));
            assert!(text.contains(".SH NAME") && text.contains(".SH SYNOPSIS"), "{page}");
        }
        assert_eq!(std::fs::read_dir(&directory).unwrap().count(), expected.len());
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
