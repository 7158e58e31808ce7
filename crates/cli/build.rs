//! Tells the program what it was built from. Whatever cannot be found out is `unknown`, and never fails a build.

use std::env;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    let mut facts = vec![
        ("RELEVO_RUSTC", rustc()),
        ("RELEVO_TARGET", env::var("TARGET").ok()),
        ("RELEVO_PROFILE", env::var("PROFILE").ok()),
    ];
    let git = repository();
    facts.push(("RELEVO_COMMIT", env::var("RELEVO_BUILD_COMMIT").ok().or_else(|| commit(git.as_deref()?))));
    let facts =
        facts.into_iter().map(|(name, fact)| format!("rustc-env={name}={}", fact.as_deref().unwrap_or("unknown")));
    let files = git.iter().flat_map(|git| watched(git)).map(|file| format!("rerun-if-changed={}", file.display()));
    let fixed = ["rerun-if-changed=build.rs", "rerun-if-env-changed=RELEVO_BUILD_COMMIT"].map(str::to_owned);
    let mut out = std::io::stdout().lock();
    for line in fixed.into_iter().chain(files).chain(facts) {
        writeln!(out, "cargo:{line}").expect("cargo reads what is written");
    }
}

fn rustc() -> Option<String> {
    let output = Command::new(env::var_os("RUSTC")?).arg("--version").output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

/// The repository's own folder, if this is built inside one.
fn repository() -> Option<PathBuf> {
    let here = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR")?);
    here.ancestors().map(|folder| folder.join(".git")).find(|git| git.is_dir())
}

/// Read from the files themselves: `git` need not be there.
fn commit(git: &Path) -> Option<String> {
    let head = fs::read_to_string(git.join("HEAD")).ok()?;
    let Some(reference) = head.trim().strip_prefix("ref: ") else { return Some(head.trim().to_owned()) };
    if let Ok(hash) = fs::read_to_string(git.join(reference)) {
        return Some(hash.trim().to_owned());
    }
    let packed = fs::read_to_string(git.join("packed-refs")).ok()?;
    let line = packed.lines().find(|line| line.ends_with(&format!(" {reference}")))?;
    Some(line.split(' ').next()?.to_owned())
}

/// What changes with the commit.
fn watched(git: &Path) -> Vec<PathBuf> {
    let head = git.join("HEAD");
    let reference = fs::read_to_string(&head).ok();
    let reference = reference.and_then(|head| Some(git.join(head.trim().strip_prefix("ref: ")?)));
    [Some(head), reference].into_iter().flatten().filter(|file| file.exists()).collect()
}
