//! `cargo xtask ci`: runs all checks.

use std::process::{Command, ExitCode, Stdio};

use anyhow::{Result, ensure};

use crate::runner::Runner;
use crate::{cargo, test, tidy};

const SEEDS: u64 = 3_000;

pub(crate) fn run(runner: &Runner) -> Result<ExitCode> {
    step("tidy");
    tidy::run()?;
    step("format");
    runner.run(&mut cargo::command(&["fmt", "--all", "--check"])?)?;
    step("clippy");
    runner.run(&mut cargo::command(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])?)?;
    step("docs");
    runner.run(cargo::command(&["doc", "--workspace", "--no-deps"])?.env("RUSTDOCFLAGS", "-D warnings"))?;
    step("tests");
    let tested = test::run(runner, &test::Options::everything())?;
    ensure!(tested == ExitCode::SUCCESS, "the tests failed");
    step("simulation");
    sim(runner, None, Some(SEEDS))?;
    step("deny");
    deny(runner)?;
    step("all checks passed");
    Ok(ExitCode::SUCCESS)
}

/// Runs the simulation. Its output names the seed that failed.
pub(crate) fn sim(runner: &Runner, seed: Option<u64>, seeds: Option<u64>) -> Result<()> {
    let mut command = cargo::command(&["run", "--quiet", "--release", "-p", "relevo-sim", "--"])?;
    for (flag, number) in [("--seed", seed), ("--seeds", seeds)] {
        if let Some(number) = number {
            command.arg(flag).arg(number.to_string());
        }
    }
    runner.run(&mut command)
}

fn deny(runner: &Runner) -> Result<()> {
    let probe = Command::new("cargo-deny").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if probe.is_err() {
        eprintln!(
            "no `cargo-deny`, so licences and bans are not checked; install it with `cargo install --locked cargo-deny`"
        );
        return Ok(());
    }
    runner.run(&mut cargo::command(&["deny", "check"])?)
}

fn step(name: &str) {
    eprintln!("==> {name}");
}
