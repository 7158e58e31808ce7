//! Runs Cargo from a program that Cargo itself runs.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::runner::Runner;

/// The root directory of the workspace.
pub(crate) fn root() -> Result<PathBuf> {
    let own = std::env::var_os("CARGO_MANIFEST_DIR").context("not run by Cargo: use `cargo xtask`")?;
    let root = PathBuf::from(own).parent().context("xtask lies in a workspace")?.to_owned();
    Ok(root)
}

/// A Cargo command in the root directory of the workspace.
pub(crate) fn command(arguments: &[&str]) -> Result<Command> {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    command.args(arguments).current_dir(root()?);
    // Cargo sets variables that describe this package. If the child inherited them, build scripts that watch them would
    // run again.
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") || name == "CARGO_BIN_NAME" {
            command.env_remove(&*name);
        }
    }
    Ok(command)
}

/// Builds a program in release mode and returns its path.
pub(crate) fn release(runner: &Runner, package: &str, program: &str) -> Result<PathBuf> {
    runner.run(&mut command(&["build", "--release", "-p", package])?)?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or(root()?.join("target"), PathBuf::from);
    Ok(std::path::absolute(target)?.join("release").join(program))
}
