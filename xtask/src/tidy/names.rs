//! File names.

use std::path::Path;

use super::Finding;

const FORBIDDEN: [&str; 5] = ["utils.rs", "common.rs", "helpers.rs", "types.rs", "mod.rs"];

/// The files of every broker adapter. A reader who knows one adapter finds the same thing in another at once.
const BROKER_FILES: [&str; 18] = [
    "lib.rs",
    "adapter.rs",
    "config.rs",
    "address.rs",
    "connection.rs",
    "publish.rs",
    "headers.rs",
    "consume.rs",
    "settle.rs",
    "topology.rs",
    "management.rs",
    "server_state.rs",
    "examine.rs",
    "metrics.rs",
    "replay.rs",
    "retention.rs",
    "migrations.rs",
    "classify.rs",
];

/// The files of every store.
const STORE_FILES: [&str; 16] = [
    "lib.rs",
    "adapter.rs",
    "config.rs",
    "classify.rs",
    "migrate.rs",
    "connection.rs",
    "pool.rs",
    "emit.rs",
    "store.rs",
    "inbox.rs",
    "operator.rs",
    "queries.rs",
    "literal.rs",
    "binary_copy.rs",
    "tick.rs",
    "disk.rs",
];

pub(super) fn check(file: &Path) -> Option<Finding> {
    let name = file.file_name()?.to_str()?;
    let problem = if FORBIDDEN.contains(&name) {
        "name the job; and `foo.rs` beside `foo/`, not `foo/mod.rs`"
    } else if file.parent() == Some(Path::new("docs/adr")) && !is_record(name) {
        "a decision's file is named `NNNN-slug.md`"
    } else if !is_adapter_file(file, name) {
        "adapters have the same files: use one of the list in `xtask/src/tidy/names.rs`, or a folder of it"
    } else {
        return None;
    };
    Some(Finding { file: file.to_owned(), line: 1, problem: problem.to_owned() })
}

/// Whether a file in the `src` folder of a broker or store has one of their names. The memory crates are for tests.
fn is_adapter_file(file: &Path, name: &str) -> bool {
    let Some(folder) = file.parent().and_then(Path::to_str) else { return true };
    match folder.strip_prefix("crates/").and_then(|folder| folder.strip_suffix("/src")) {
        Some("brokers/memory" | "stores/memory") => true,
        Some(adapter) if adapter.starts_with("brokers/") => BROKER_FILES.contains(&name),
        Some(adapter) if adapter.starts_with("stores/") => STORE_FILES.contains(&name),
        _ => true,
    }
}

fn is_record(name: &str) -> bool {
    let Some((number, slug)) = name.strip_suffix(".md").and_then(|stem| stem.split_once('-')) else {
        return false;
    };
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    number.len() == 4 && number.chars().all(|c| c.is_ascii_digit()) && !slug.is_empty() && slug.chars().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_meaningless_name_is_found() {
        assert!(check(Path::new("crates/core/src/utils.rs")).is_some());
        assert!(check(Path::new("crates/core/src/retry/mod.rs")).is_some());
        assert!(check(Path::new("crates/core/src/retry.rs")).is_none());
    }

    #[test]
    fn adapters_have_the_same_files() {
        assert!(check(Path::new("crates/brokers/nats/src/publish.rs")).is_none());
        assert!(check(Path::new("crates/brokers/nats/src/publish/encode.rs")).is_none());
        assert!(check(Path::new("crates/brokers/nats/src/broker.rs")).is_some());
        assert!(check(Path::new("crates/stores/sqlite/src/vitals.rs")).is_some());
        assert!(check(Path::new("crates/stores/memory/src/log.rs")).is_none());
    }

    #[test]
    fn decisions_are_numbered() {
        assert!(check(Path::new("docs/adr/0001-commit-order.md")).is_none());
        assert!(check(Path::new("docs/adr/1-commit-order.md")).is_some());
        assert!(check(Path::new("docs/adr/0001_order.md")).is_some());
        assert!(check(Path::new("docs/how-to/start.md")).is_none());
    }
}
