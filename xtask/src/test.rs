//! `cargo xtask test`.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{ExitCode, Stdio};

use anyhow::{Context as _, Result};
use clap::{Args, ValueEnum};

use crate::runner::Runner;
use crate::tally::Tally;
use crate::{cargo, install, services};

/// The packages whose tests need no server.
const QUICK: [&str; 9] = [
    "relevo-core",
    "relevo-store-memory",
    "relevo-store-sqlite",
    "relevo-broker-memory",
    "relevo-broker-embedded",
    "relevo-relay",
    "relevo-admin",
    "relevo-sim",
    "xtask",
];

#[derive(Args)]
pub(crate) struct Ask {
    /// Which tests to run.
    #[arg(long, value_enum, default_value_t)]
    profile: Profile,
    /// Handed to `cargo test` as they are; a `-p` among them replaces `--workspace`.
    #[arg(last = true)]
    arguments: Vec<String>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum Profile {
    /// All of them, against real servers; none may be skipped.
    #[default]
    Full,
    /// Those of the packages that need no server.
    Quick,
}

impl Ask {
    /// What the whole check runs.
    pub(crate) fn everything() -> Self {
        Self { profile: Profile::Full, arguments: Vec::new() }
    }
}

/// Prints, as its last line, how many passed, failed and were skipped.
pub(crate) fn run(runner: &Runner, ask: &Ask) -> Result<ExitCode> {
    let environment = match ask.profile {
        Profile::Full => Some(services::for_one_run(runner, &install::all(runner)?)?),
        Profile::Quick => None,
    };
    let variables = environment.iter().flat_map(|environment| environment.variables.clone());
    let mut command = cargo::command(&["test", "--no-fail-fast"])?;
    command.args(packages(ask)).args(&ask.arguments).envs(variables).stdout(Stdio::piped());

    let mut tally = Tally::default();
    let succeeded = runner.with(&mut command, |child| {
        let mut output = BufReader::new(child.stdout.take().context("the output was piped")?);
        let mut line = Vec::new();
        // Not `lines()`: a test may print what is no UTF-8.
        while output.read_until(b'\n', &mut line)? > 0 {
            std::io::stdout().write_all(&line)?;
            tally.read(&String::from_utf8_lossy(&line));
            line.clear();
        }
        Ok(())
    })?;
    drop(environment);
    Ok(conclude(ask.profile, succeeded, tally))
}

fn packages(ask: &Ask) -> Vec<&str> {
    let chosen = ask.arguments.iter().any(|argument| argument.starts_with("-p") || argument.starts_with("--package"));
    match ask.profile {
        _ if chosen => Vec::new(),
        Profile::Full => vec!["--workspace"],
        Profile::Quick => QUICK.iter().flat_map(|package| ["-p", *package]).collect(),
    }
}

fn conclude(profile: Profile, succeeded: bool, mut tally: Tally) -> ExitCode {
    if !succeeded && tally.failed == 0 {
        eprintln!("error: something did not build, or a test program ended without a result; counted as one failure");
        tally.failed = 1;
    }
    let nothing = tally.passed + tally.failed == 0;
    if nothing {
        eprintln!("error: no test ran");
    }
    let skipped = profile == Profile::Full && tally.skipped > 0;
    if skipped {
        eprintln!("error: tests were skipped; the full profile runs all of them");
    }
    println!("{tally}");
    if succeeded && tally.failed == 0 && !nothing && !skipped { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
