//! `cargo xtask test`.

mod memory;
mod program;
mod report;
mod schedule;

use std::process::{Command, ExitCode};

use anyhow::Result;
use clap::{Args, ValueEnum};

use crate::runner::Runner;
use crate::{cargo, install, scratch, services};
use program::Program;
use report::Report;

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

#[derive(Args)]
pub(crate) struct Options {
    /// Which tests to run.
    #[arg(long, value_enum, default_value_t)]
    profile: Profile,
    /// Number of test programs that run at the same time.
    #[arg(long, default_value_t = schedule::jobs())]
    jobs: usize,
    /// Number of slow tests in the report at the end.
    #[arg(long, default_value_t = 20)]
    slowest: usize,
    /// Arguments of `cargo test`: a `-p` replaces `--workspace`, names after it are filters.
    #[arg(last = true)]
    arguments: Vec<String>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
enum Profile {
    /// All tests, against real servers. A skipped test is an error.
    #[default]
    Full,
    /// The tests of packages that need no server.
    Quick,
}

impl Options {
    /// The options that `cargo xtask ci` uses.
    pub(crate) fn everything() -> Self {
        Self { profile: Profile::Full, jobs: schedule::jobs(), slowest: 20, arguments: Vec::new() }
    }

    /// Splits the arguments into those that select what to build and those for each test program.
    fn split(&self) -> (Vec<&str>, Vec<&str>) {
        let mut build = Vec::new();
        let mut arguments = self.arguments.iter().map(String::as_str);
        while let Some(argument) = arguments.next() {
            match argument {
                "--" => break,
                "-p" | "--package" | "--test" | "--bin" | "--example" | "--features" => {
                    build.push(argument);
                    build.extend(arguments.next());
                }
                _ if argument.starts_with('-') => build.push(argument),
                filter => {
                    return (build, std::iter::once(filter).chain(arguments.filter(|next| *next != "--")).collect());
                }
            }
        }
        (build, arguments.collect())
    }
}

/// Builds the tests, starts the servers, and runs the test programs in parallel. The last line of the output is
/// `N passed, N failed, N skipped`.
pub(crate) fn run(runner: &Runner, options: &Options) -> Result<ExitCode> {
    let installed = match options.profile {
        Profile::Full => Some(install::all(runner)?),
        Profile::Quick => None,
    };
    let (selection, passed_on) = options.split();
    let selection: Vec<_> = packages(options.profile, &selection).into_iter().chain(selection).collect();
    let mut report = Report::default();
    let Some(mut programs) = program::build(runner, &selection)? else {
        report.build_failed();
        return Ok(conclude(options, &report));
    };
    if runs_documentation(&selection) {
        programs.push(Program::documentation(&selection)?);
    }
    let directory = memory::directory();
    if let Some(directory) = &directory {
        eprintln!("temporary files: `{}`", directory.display());
        scratch::set_parent(directory.clone());
    }
    let servers = installed.map(|installed| services::for_one_run(runner, &installed)).transpose()?;
    let variables: Vec<_> = servers.iter().flat_map(|servers| servers.variables.clone()).collect();
    let commands =
        programs.into_iter().map(|program| program.command(&passed_on, &variables, directory.as_deref())).collect();
    schedule::run(runner, options.jobs, commands, &mut report)?;
    Ok(conclude(options, &report))
}

fn packages<'a>(profile: Profile, selection: &[&str]) -> Vec<&'a str> {
    let chosen = selection.iter().any(|argument| argument.starts_with("-p") || argument.starts_with("--package"));
    match profile {
        _ if chosen => Vec::new(),
        Profile::Full => vec!["--workspace"],
        Profile::Quick => QUICK.iter().flat_map(|package| ["-p", *package]).collect(),
    }
}

/// Documentation examples run unless the selection names other targets.
fn runs_documentation(selection: &[&str]) -> bool {
    let targets = ["--test", "--tests", "--bin", "--bins", "--lib", "--example", "--examples", "--all-targets"];
    !selection.iter().any(|argument| targets.contains(argument))
}

fn conclude(options: &Options, report: &Report) -> ExitCode {
    report.print_times(options.slowest);
    let skipped = options.profile == Profile::Full && report.tally.skipped > 0;
    if skipped {
        eprintln!("error: tests were skipped; the full profile runs all of them");
    }
    let succeeded = report.succeeded() && !skipped;
    println!("{}", report.tally);
    if succeeded { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Cargo's command line for these tests.
fn cargo_test(flags: &[&str], selection: &[&str]) -> Result<Command> {
    let mut command = cargo::command(&["test", "--no-fail-fast"])?;
    command.args(flags).args(selection);
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::{Options, Profile};

    fn split(arguments: &[&str]) -> (Vec<String>, Vec<String>) {
        let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        let options = Options { profile: Profile::Full, jobs: 1, slowest: 0, arguments };
        let (build, passed_on) = options.split();
        let owned = |words: Vec<&str>| words.into_iter().map(str::to_owned).collect();
        (owned(build), owned(passed_on))
    }

    #[test]
    fn cargo_gets_the_selection_and_test_programs_get_the_filters() {
        let (build, passed_on) = split(&["-p", "relevo-core", "--test", "rules", "leases", "--", "--exact"]);
        assert_eq!(build, ["-p", "relevo-core", "--test", "rules"]);
        assert_eq!(passed_on, ["leases", "--exact"]);
        assert_eq!(split(&["--", "--nocapture"]), (vec![], vec!["--nocapture".to_owned()]));
    }
}
