//! `cargo xtask tidy`: checks the project's writing rules as far as a program can.

mod adapters;
mod arrows;
mod links;
mod named;
mod names;
mod sources;
mod words;

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use crate::cargo;

/// A problem and its location.
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

/// Prints all findings. Fails if there are any.
pub(crate) fn run() -> Result<()> {
    let root = cargo::root()?;
    let (mut findings, mut pages, mut known) = (Vec::new(), Vec::new(), BTreeSet::new());
    for file in files(&root)? {
        findings.extend(names::check(&file));
        let extension = file.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
        if !["rs", "md", "sql", "toml", "yml", "json"].contains(&extension) {
            continue;
        }
        let text =
            std::fs::read_to_string(root.join(&file)).with_context(|| format!("cannot read `{}`", file.display()))?;
        findings.extend(words::check(&file, &text));
        match extension {
            "md" => {
                pages.push((file, text));
                continue;
            }
            "rs" => {
                findings.extend(sources::check(&file, &text));
                findings.extend(adapters::check(&file, &text));
            }
            _ => {}
        }
        known.extend(named::names(&text));
    }
    findings.extend(links::check(&root, &pages));
    for (file, text) in &pages {
        findings.extend(named::check(file, text, &known));
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
        number => bail!("tidy found {number} problems"),
    }
}

/// All files of the project, sorted, relative to its root directory.
fn files(root: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut open = vec![root.to_owned()];
    while let Some(directory) = open.pop() {
        for entry in std::fs::read_dir(&directory).with_context(|| format!("cannot list `{}`", directory.display()))? {
            let entry = entry?;
            let name = entry.file_name();
            let kind = entry.file_type()?;
            if kind.is_dir() && name != "target" && !name.to_string_lossy().starts_with('.') {
                open.push(entry.path());
            } else if kind.is_file() {
                files.push(entry.path().strip_prefix(root)?.to_owned());
            }
        }
    }
    files.sort();
    Ok(files)
}
