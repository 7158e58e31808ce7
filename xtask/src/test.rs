//! `cargo xtask test`.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::{Args, ValueEnum};

use crate::runner::Runner;
use crate::tally::Tally;
use crate::{cargo, install, services};

/// The packages whose tests need no server.
const QUICK: [&str; 11] = [
    "relevo-core",
    "relevo-sqlite-file",
    "relevo-store-memory",
    "relevo-store-sqlite",
    "relevo-broker-memory",
    "relevo-broker-embedded",
    "relevo-relay",
    "relevo-inbox",
    "relevo-admin",
    "relevo-sim",
    "xtask",
];

/// No test is silent for as long: what is has stopped for ever, and is ended, so that the others' results are told.
const SILENCE_MAX: Duration = Duration::from_mins(10);

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
    let installed = match ask.profile {
        Profile::Full => Some(install::all(runner)?),
        Profile::Quick => None,
    };
    let mut tally = Tally::default();
    // By itself, because a compiler may be silent for as long as it likes. Examples in documents cannot be built alone.
    let only_documents = ask.arguments.iter().any(|argument| argument == "--doc");
    let mut succeeded = only_documents || runner.succeeds(&mut tests(ask, &["--no-run"])?)?;
    if succeeded {
        let servers = installed.map(|installed| services::for_one_run(runner, &installed)).transpose()?;
        let mut command = tests(ask, &[])?;
        command.envs(servers.iter().flat_map(|servers| servers.variables.clone())).stdout(Stdio::piped());
        succeeded = runner.with(&mut command, |child| follow(runner, child, SILENCE_MAX, &mut tally))?;
    }
    Ok(conclude(ask.profile, succeeded, tally))
}

fn tests(ask: &Ask, flags: &[&str]) -> Result<Command> {
    let mut command = cargo::command(&["test", "--no-fail-fast"])?;
    // Before what was handed over: that may go on to the test programs.
    command.args(flags).args(packages(ask)).args(&ask.arguments);
    Ok(command)
}

/// Passes on what the tests print, and counts their results; ends them when they are silent for too long.
fn follow(runner: &Runner, child: &mut Child, silence_max: Duration, tally: &mut Tally) -> Result<()> {
    let mut output = BufReader::new(child.stdout.take().context("the output was piped")?);
    let (heard, silence) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            loop {
                match silence.recv_timeout(silence_max) {
                    Ok(()) => {}
                    Err(RecvTimeoutError::Timeout) => {
                        eprintln!("error: no test has said anything for {silence_max:?}; those that run are ended");
                        runner.end_what_runs();
                    }
                    Err(RecvTimeoutError::Disconnected) => return,
                }
            }
        });
        let mut line = Vec::new();
        // Not `lines()`: a test may print what is no UTF-8.
        while output.read_until(b'\n', &mut line)? > 0 {
            std::io::stdout().write_all(&line)?;
            tally.read(&String::from_utf8_lossy(&line));
            line.clear();
            heard.send(()).context("the watch ends with its sender")?;
        }
        drop(heard);
        Ok(())
    })
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

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::time::Duration;

    use super::follow;
    use crate::runner::Runner;
    use crate::tally::Tally;

    #[test]
    fn tests_that_stop_for_ever_are_ended_and_what_came_before_counts() {
        let runner = Runner::new().unwrap();
        let mut command = Command::new("sh");
        command
            .args(["-c", "echo 'test result: ok. 3 passed; 0 failed; 0 ignored'; sleep 1000"])
            .stdout(Stdio::piped());
        let mut tally = Tally::default();
        let succeeded =
            runner.with(&mut command, |child| follow(&runner, child, Duration::from_secs(3), &mut tally)).unwrap();
        assert!(!succeeded);
        assert_eq!(tally.passed, 3);
    }
}
