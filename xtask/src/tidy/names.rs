//! File names.

use std::path::Path;

use super::Finding;

const FORBIDDEN: [&str; 5] = ["utils.rs", "common.rs", "helpers.rs", "types.rs", "mod.rs"];

pub(super) fn check(file: &Path) -> Option<Finding> {
    let name = file.file_name()?.to_str()?;
    let problem = if FORBIDDEN.contains(&name) {
        "name the job; and `foo.rs` beside `foo/`, not `foo/mod.rs`"
    } else if file.parent() == Some(Path::new("docs/adr")) && !is_record(name) {
        "a decision's file is named `NNNN-slug.md`"
    } else {
        return None;
    };
    Some(Finding { file: file.to_owned(), line: 1, problem: problem.to_owned() })
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
    fn decisions_are_numbered() {
        assert!(check(Path::new("docs/adr/0001-commit-order.md")).is_none());
        assert!(check(Path::new("docs/adr/1-commit-order.md")).is_some());
        assert!(check(Path::new("docs/adr/0001_order.md")).is_some());
        assert!(check(Path::new("docs/guides/start.md")).is_none());
    }
}
