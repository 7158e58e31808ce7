//! `cargo xtask tidy`: what a machine can check of how the project is written.

mod arrows;
mod links;
mod names;
mod sources;

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use crate::cargo;

/// Something to put right, and where.
#[derive(Debug, PartialEq, Eq)]
struct Finding {
    file: PathBuf,
    line: usize,
    problem: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file.display(), self.line, self.problem)
    }
}

/// Prints every finding; fails if there is one.
pub(crate) fn run() -> Result<()> {
    let root = cargo::root()?;
    let mut findings = Vec::new();
    for file in files(&root)? {
        findings.extend(names::check(&file));
        let is = |wanted: &str| file.extension().is_some_and(|extension| extension == wanted);
        if is("rs") || is("md") {
            let text = std::fs::read_to_string(root.join(&file))
                .with_context(|| format!("cannot read `{}`", file.display()))?;
            findings.extend(if is("rs") { sources::check(&file, &text) } else { links::check(&root, &file, &text) });
        }
    }
    if !root.join("CHANGELOG.md").exists() {
        findings.push(Finding { file: "CHANGELOG.md".into(), line: 1, problem: "is missing".to_owned() });
    }
    findings.extend(arrows::check(&root)?);
    for finding in &findings {
        eprintln!("{finding}");
    }
    match findings.len() {
        0 => Ok(()),
        number => bail!("tidy found {number} to put right"),
    }
}

/// Every file of the project, relative to its top, in order.
fn files(root: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut open = vec![root.to_owned()];
    while let Some(directory) = open.pop() {
        for entry in std::fs::read_dir(&directory).with_context(|| format!("cannot list `{}`", directory.display()))? {
            let entry = entry?;
            let name = entry.file_name();
            let kind = entry.file_type()?;
            if kind.is_dir() && name != "target" && !name.to_string_lossy().starts_with('.') {
                open.push(entry.path());
            } else if kind.is_file() {
                found.push(entry.path().strip_prefix(root)?.to_owned());
            }
        }
    }
    found.sort();
    Ok(found)
}
