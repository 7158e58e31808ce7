//! Text that must not occur in a Rust file.

use std::path::Path;

use super::Finding;

const LINES_MAX: usize = 600;
// Written in two halves so that the check does not find itself.
const SPAWN: &str = concat!("tokio::", "spawn(");

/// How a statement begins.
const STATEMENTS: [&str; 5] = ["\"SELECT ", "\"INSERT ", "\"UPDATE ", "\"DELETE ", "\"WITH "];

/// Files and folders of a store that send SQL: queries, and three files that users and operators read with the SQL in them.
const WITH_SQL: [&str; 6] =
    ["queries.rs", "queries/", "emit.rs", "migrate.rs", "operator/examine.rs", "operator/examine/"];

pub(super) fn check(file: &Path, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let without_sql = is_without_sql(file);
    let mut find = |line: usize, problem: String| {
        findings.push(Finding { file: file.to_owned(), line, problem });
    };
    let length = text.lines().count();
    if length > LINES_MAX {
        find(LINES_MAX + 1, format!("{length} lines: split it before {LINES_MAX}"));
    }
    let mut in_tests = file.components().any(|part| part.as_os_str() == "tests");
    for (index, line) in text.lines().enumerate() {
        let code = line.trim_start();
        in_tests |= code.starts_with("#[cfg(test)]");
        if code.starts_with("#[allow(") || code.starts_with("#![allow(") {
            find(index + 1, "write `#[expect(.., reason = \"..\")]`".to_owned());
        }
        if code.starts_with("#[ignore") {
            find(index + 1, "assert today's behaviour and explain why it is wrong; no test is ignored".to_owned());
        }
        if without_sql && !in_tests && STATEMENTS.iter().any(|statement| code.contains(statement)) {
            find(index + 1, "statements of a store are built and decoded in `queries/`".to_owned());
        }
        if !in_tests && !code.starts_with("//") && code.contains(SPAWN) {
            find(index + 1, "every task has an owner: use a `JoinSet` or a `TaskTracker`".to_owned());
        }
    }
    findings
}

/// Whether this file of a store must contain no SQL.
fn is_without_sql(file: &Path) -> bool {
    ["crates/stores/postgres/src", "crates/stores/sqlite/src"].iter().any(|source| {
        let Ok(rest) = file.strip_prefix(source) else { return false };
        let rest = rest.to_string_lossy();
        !WITH_SQL
            .iter()
            .any(|allowed| if allowed.ends_with('/') { rest.starts_with(allowed) } else { rest == *allowed })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(file: &str, text: &str) -> Vec<usize> {
        check(Path::new(file), text).into_iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn attributes_that_hide_something_are_found() {
        assert_eq!(lines("src/a.rs", "fn a() {}\n    #[allow(dead_code)]\n#[ignore = \"slow\"]\n"), [2, 3]);
        assert_eq!(lines("src/a.rs", "// #[allow(x)] is banned\n"), [0; 0]);
    }

    #[test]
    fn a_task_without_owner_is_found_outside_of_tests() {
        let text = format!("fn a() {{ {SPAWN}b()); }}\n#[cfg(test)]\nmod tests {{ {SPAWN}b()); }}\n");
        assert_eq!(lines("src/a.rs", &text), [1]);
        assert_eq!(lines("crates/x/tests/a.rs", &text), [0; 0]);
    }

    #[test]
    fn sql_is_found_outside_of_queries() {
        let text = "let sql = \"SELECT 1\";\n#[cfg(test)]\nlet sql = \"SELECT 2\";\n";
        assert_eq!(lines("crates/stores/sqlite/src/store.rs", text), [1]);
        assert_eq!(lines("crates/stores/sqlite/src/queries/read.rs", text), [0; 0]);
        assert_eq!(lines("crates/stores/postgres/src/operator/examine/server.rs", text), [0; 0]);
        assert_eq!(lines("crates/cli/src/main.rs", text), [0; 0]);
    }

    #[test]
    fn a_long_file_is_found() {
        assert_eq!(lines("src/a.rs", &"\n".repeat(LINES_MAX)), [0; 0]);
        assert_eq!(lines("src/a.rs", &"\n".repeat(LINES_MAX + 1)), [LINES_MAX + 1]);
    }
}
