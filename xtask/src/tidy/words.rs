//! Banned words. A newcomer would not search for them, and each has a standard word.

use std::path::Path;

use super::Finding;

/// Folders and files whose text was rewritten. Every other one still has sentences to correct.
const REWRITTEN: [&str; 46] = [
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "README.md",
    "crates/admin/",
    "crates/bench/",
    "crates/brokers/",
    "crates/cli/",
    "crates/config/",
    "crates/conformance/",
    "crates/core/src/",
    "crates/host/",
    "crates/inbox/",
    "crates/observe/",
    "crates/relay/",
    "crates/relevo/",
    "crates/sim/",
    "crates/sqlite-file/",
    "crates/stores/",
    "crates/testkit/",
    "crates/torture/",
    "docs/README.md",
    "docs/adr/",
    "docs/benchmarks.md",
    "docs/explanation/",
    "docs/how-to/",
    "docs/reference/cli.md",
    "docs/reference/failures.md",
    "docs/reference/metrics.md",
    "docs/reference/sql.md",
    "docs/reference/sqlite.md",
    "docs/runbooks/",
    "docs/tutorials/",
    "ops/",
    "systems/ticketflow/README.md",
    "systems/ticketflow/docs/",
    "systems/ticketflow/src/api/",
    "systems/ticketflow/src/config/",
    "systems/ticketflow/src/desk/",
    "systems/ticketflow/src/domain/",
    "systems/ticketflow/src/mail/",
    "systems/ticketflow/src/run/",
    "systems/ticketflow/src/worker/",
    "systems/ticketflow/tests/api/",
    "systems/ticketflow/ticketflow.example.toml",
    "xtask/",
];

/// Files below [`REWRITTEN`] that are not checked.
const EXCEPTIONS: [&str; 5] = [
    // These files still have sentences to correct.
    // These texts are part of the events that a seed's fingerprint covers.
    "crates/sim/src/inbox/members.rs",
    "crates/sim/src/inbox/world.rs",
    "crates/sim/src/outbox/operators.rs",
    "crates/sim/src/outbox/relay_host.rs",
    // This file contains the words as examples.
    "xtask/src/tidy/words.rs",
];

/// A word or a phrase, and what to write instead.
const BANNED: [(&str, &str); 29] = [
    ("told", "reported, recorded, returned"),
    ("whoever", "the actor: a consumer, an operator"),
    ("whomever", "the actor: a consumer, an operator"),
    ("nobody", "no process, no operator"),
    ("somebody", "the actor: another process, an operator"),
    ("mend", "fix, repair"),
    ("mends", "fixes, repairs"),
    ("mended", "fixed, repaired"),
    ("buried", "dead-lettered"),
    ("bury", "dead-letter"),
    ("buries", "dead-letters"),
    ("given up", "dead-lettered, cancelled"),
    ("gives up", "dead-letters, cancels"),
    ("asks for", "requests, requires"),
    ("asked for", "requested, required"),
    ("look at", "check, inspect, read"),
    ("looks at", "checks, inspects, reads"),
    ("looked at", "checked, inspected, read"),
    ("sign of life", "heartbeat"),
    ("signs of life", "heartbeats"),
    ("far side", "broker, external service"),
    ("so many", "the number"),
    ("so soon", "the interval"),
    ("so long", "the duration"),
    ("goodbye", "leaves, closes"),
    ("goes away", "becomes unreachable"),
    ("is away", "is unreachable"),
    ("was away", "was unreachable"),
    ("hardly", "the fact"),
];

pub(super) fn check(file: &Path, text: &str) -> Vec<Finding> {
    let name = file.to_string_lossy();
    let is_below = |prefixes: &[&str]| prefixes.iter().any(|prefix| name.starts_with(prefix));
    if !is_below(&REWRITTEN) || is_below(&EXCEPTIONS) {
        return Vec::new();
    }
    let lines = text.lines().enumerate();
    let found = lines.flat_map(|(number, line)| {
        banned(line).map(move |(word, instead)| Finding {
            file: file.to_owned(),
            line: number + 1,
            problem: format!("`{word}` is not a word of this project; write: {instead}"),
        })
    });
    found.collect()
}

/// Banned words of a line. Text in backquotes is a name or output of something else.
fn banned(line: &str) -> impl Iterator<Item = (&'static str, &'static str)> {
    let plain: String = line.split('`').step_by(2).collect::<Vec<_>>().join(" ");
    // Identifiers count too: `was_told` has the words `was` and `told`.
    let words: Vec<_> = plain.split(|c: char| !c.is_alphabetic()).filter(|word| !word.is_empty()).collect();
    let words = format!(" {} ", words.join(" ").to_lowercase());
    BANNED.into_iter().filter(move |(word, _)| words.contains(&format!(" {word} ")))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::check;

    #[test]
    fn a_banned_word_is_found_in_text_and_in_identifiers() {
        let file = Path::new("crates/testkit/src/proxy.rs");
        let text = "let was_told = 1;\n// It is given up.\n// `told` is a quoted name, and untold is another word.\n";
        let lines: Vec<_> = check(file, text).into_iter().map(|finding| finding.line).collect();
        assert_eq!(lines, [1, 2]);
        assert!(check(Path::new("systems/example/src/main.rs"), text).is_empty(), "not rewritten yet");
    }
}
