//! Pages name tests and settings: each of them must still be there.

use std::collections::BTreeSet;
use std::path::Path;

use super::Finding;

/// A name of fewer words may be a word of another world.
const WORDS_MIN: usize = 5;

/// Names in code spans of a page that no source has.
pub(super) fn check(file: &Path, text: &str, known: &BTreeSet<String>) -> Vec<Finding> {
    let missing = |(line, text): (usize, &str)| {
        let spans = text.split('`').skip(1).step_by(2).filter(|span| has_words(span, WORDS_MIN));
        // The format of metrics adds the end of a counter's name.
        let unknown = spans.filter(|span| !known.contains(*span) && !known.contains(span.trim_end_matches("_total")));
        let told = |span: &str| Finding {
            file: file.to_owned(),
            line: line + 1,
            problem: format!("names `{span}`, which no source has"),
        };
        unknown.map(told).collect::<Vec<_>>()
    };
    text.lines().enumerate().flat_map(missing).collect()
}

/// The long names of a source.
pub(super) fn names(text: &str) -> impl Iterator<Item = String> {
    let words = text.split(|char: char| !char.is_ascii_alphanumeric() && char != '_');
    // One less, because of the ends that are added.
    words.filter(|word| has_words(word, WORDS_MIN - 1)).map(str::to_owned)
}

fn has_words(word: &str, least: usize) -> bool {
    let is_part = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    word.split('_').count() >= least && word.split('_').all(is_part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_that_is_gone_is_found() {
        let source = "async fn a_relay_that_is_killed_is_replaced() {}\n";
        let known: BTreeSet<String> = names(source).collect();
        let page =
            "| row | `a_relay_that_is_killed_is_replaced`, `short_name` |\n| row | `a_relay_that_was_once_there` |\n";
        let found = check(Path::new("page.md"), page, &known);
        let told: Vec<_> = found.iter().map(|finding| (finding.line, finding.problem.as_str())).collect();
        assert_eq!(told, [(2, "names `a_relay_that_was_once_there`, which no source has")]);
    }
}
