//! Checks that the tests and settings that documents name still exist. In a table whose last column is [`RUN_BY`], each
//! row must name at least one test.

use std::collections::BTreeSet;
use std::path::Path;

use super::Finding;

const RUN_BY: &str = "Run by";

/// A name with fewer words may come from elsewhere, so it is not checked.
const WORDS_MIN: usize = 5;

/// Reports names in code spans of a document that do not occur in the source.
pub(super) fn check(file: &Path, text: &str, known: &BTreeSet<String>) -> Vec<Finding> {
    let missing = |(line, text): (usize, &str)| {
        let spans = text.split('`').skip(1).step_by(2).filter(|span| has_words(span, WORDS_MIN));
        // The metrics format appends `_total` to the name of a counter.
        let unknown = spans.filter(|span| !known.contains(*span) && !known.contains(span.trim_end_matches("_total")));
        let finding = |span: &str| Finding {
            file: file.to_owned(),
            line: line + 1,
            problem: format!("names `{span}`, which no source has"),
        };
        unknown.map(finding).collect::<Vec<_>>()
    };
    text.lines().enumerate().flat_map(missing).chain(not_run(file, text, known)).collect()
}

/// Reports rows of a "Run by" table that name no existing test.
fn not_run(file: &Path, text: &str, known: &BTreeSet<String>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut in_table = false;
    for (line, text) in text.lines().enumerate() {
        let last = text.strip_prefix('|').and_then(|row| row.trim_end().strip_suffix('|')?.rsplit('|').next());
        let Some(cell) = last.map(str::trim) else {
            in_table = false;
            continue;
        };
        let is_rule = !cell.is_empty() && cell.bytes().all(|byte| byte == b'-');
        if cell == RUN_BY || is_rule || !in_table {
            in_table |= cell == RUN_BY;
            continue;
        }
        let names = cell.split(", ").map(|name| name.trim_matches('`'));
        findings.extend(names.filter(|name| !known.contains(&test(name))).map(|name| Finding {
            file: file.to_owned(),
            line: line + 1,
            problem: format!("names `{name}`, which is no test"),
        }));
    }
    findings
}

/// The form in which the set of known names lists a test.
fn test(name: &str) -> String {
    format!("test {name}")
}

/// The long names in a source file, and its tests.
pub(super) fn names(text: &str) -> impl Iterator<Item = String> {
    let after = text.lines().skip(1).zip(text.lines());
    let tests = after.filter(|(_, before)| ["#[test]", "#[tokio::test"].iter().any(|it| before.trim().starts_with(it)));
    let tests = tests.filter_map(|(line, _)| line.split_once("fn ")?.1.split('(').next().map(test));
    let words = text.split(|char: char| !char.is_ascii_alphanumeric() && char != '_');
    // One word fewer, because the metrics format may append a suffix.
    words.filter(|word| has_words(word, WORDS_MIN - 1)).map(str::to_owned).chain(tests)
}

fn has_words(word: &str, least: usize) -> bool {
    let is_part = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    word.split('_').count() >= least && word.split('_').all(is_part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_test_is_found() {
        let source = "async fn a_relay_that_is_killed_is_replaced() {}\n";
        let known: BTreeSet<String> = names(source).collect();
        let page =
            "| row | `a_relay_that_is_killed_is_replaced`, `short_name` |\n| row | `a_relay_that_was_once_there` |\n";
        let findings = check(Path::new("page.md"), page, &known);
        let problems: Vec<_> = findings.iter().map(|finding| (finding.line, finding.problem.as_str())).collect();
        assert_eq!(problems, [(2, "names `a_relay_that_was_once_there`, which no source has")]);
    }

    #[test]
    fn a_row_that_no_test_runs_is_found() {
        let source = "#[tokio::test(flavor = \"multi_thread\")]\nasync fn a_test_of_ours_that_runs_it() {}\n\
                      fn a_function_that_is_no_test() {}\n";
        let known: BTreeSet<String> = names(source).collect();
        let page = "| What | Run by |\n|---|---|\n| one | `a_test_of_ours_that_runs_it` |\n| two | no test |\n\
                    | three | `a_test_of_ours_that_runs_it`, `a_function_that_is_no_test` |\n\n| What | Else |\n|---|---|\n| four | no test |\n";
        let findings = check(Path::new("page.md"), page, &known);
        let problems: Vec<_> = findings.iter().map(|finding| (finding.line, finding.problem.as_str())).collect();
        let no_test = "names `a_function_that_is_no_test`, which is no test";
        assert_eq!(problems, [(4, "names `no test`, which is no test"), (5, no_test)]);
    }
}
