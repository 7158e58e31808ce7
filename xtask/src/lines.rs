//! `cargo xtask lines`: lines of Rust and SQL per crate, without tests and test support.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::cargo;

/// Crates that only tests and benchmarks use, and folders that users do not install.
const NOT_COUNTED: [&str; 8] = [
    "crates/bench/",
    "crates/brokers/memory/",
    "crates/conformance/",
    "crates/sim/",
    "crates/stores/memory/",
    "crates/testkit/",
    "crates/torture/",
    "systems/",
];

/// Prints the lines per crate at a revision.
pub(crate) fn run(revision: &str) -> Result<()> {
    let root = cargo::root()?;
    let mut crates: BTreeMap<String, [usize; 2]> = BTreeMap::new();
    for path in git(&root, &["ls-tree", "-r", "--name-only", revision])?.lines() {
        let is_counted = !path.contains("/tests") && !NOT_COUNTED.iter().any(|folder| path.starts_with(folder));
        let language = ["rs", "sql"].iter().position(|ending| path.rsplit('.').next() == Some(ending));
        let folder = path.split_once("/src/").or_else(|| path.split_once("/migrations/"));
        if let (true, Some(language), Some((folder, _))) = (is_counted, language, folder) {
            let text = git(&root, &["show", &format!("{revision}:{path}")])?;
            crates.entry(folder.to_owned()).or_default()[language] += without_tests(&text);
        }
    }
    println!("{:<28}{:>8}{:>8}", "crate", "Rust", "SQL");
    let total = crates.values().fold([0, 0], |[rust, sql], count| [rust + count[0], sql + count[1]]);
    for (name, [rust, sql]) in crates.into_iter().chain([("total".to_owned(), total)]) {
        println!("{name:<28}{rust:>8}{sql:>8}");
    }
    Ok(())
}

/// The number of lines without the items marked `#[cfg(test)]`.
fn without_tests(text: &str) -> usize {
    let (mut count, mut lines) = (0, text.lines());
    while let Some(line) = lines.next() {
        if line != "#[cfg(test)]" {
            count += 1;
        } else if lines.next().is_some_and(|item| item.ends_with('{')) {
            lines.by_ref().find(|line| *line == "}");
        }
    }
    count
}

fn git(root: &Path, arguments: &[&str]) -> Result<String> {
    let output = Command::new("git").current_dir(root).args(arguments).output().context("cannot run `git`")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(String::from_utf8(output.stdout)?)
}
