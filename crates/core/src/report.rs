//! Collects findings. Each problem is one finding; passed checks are joined into one finding per subject.

use std::collections::BTreeMap;

use crate::operate::{Finding, Severity};

/// The maximum number of names in a list. Further names are only counted.
const LISTED_MAX: usize = 8;

/// Collects the findings of an examination.
#[derive(Debug, Default)]
pub struct Report {
    findings: Vec<Finding>,
    good: BTreeMap<&'static str, Vec<String>>,
}

impl Report {
    /// Adds a problem and the action that fixes it.
    pub fn told(&mut self, severity: Severity, subject: &str, seen: String, fix: String) {
        self.findings.push(Finding { severity, subject: subject.to_owned(), seen, fix: Some(fix) });
    }

    /// Adds a passed check. Repeats are ignored.
    pub fn good(&mut self, subject: &'static str, what: String) {
        let known = self.good.entry(subject).or_default();
        if !known.contains(&what) {
            known.push(what);
        }
    }

    /// Returns all findings, the most severe first.
    pub fn findings(self) -> Vec<Finding> {
        let good = self.good.into_iter().map(|(subject, what)| Finding {
            severity: Severity::Good,
            subject: subject.to_owned(),
            seen: some_of(&what),
            fix: None,
        });
        let mut all: Vec<Finding> = self.findings.into_iter().chain(good).collect();
        all.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        all.dedup();
        all
    }
}

/// Joins names with commas and replaces the rest of a long list by its count.
pub fn some_of(names: &[String]) -> String {
    let listed = names[..names.len().min(LISTED_MAX)].join(", ");
    match names.len().saturating_sub(LISTED_MAX) {
        0 => listed,
        more => format!("{listed} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_comes_first_and_what_is_good_in_one_line() {
        let mut report = Report::default();
        for number in 0..10 {
            report.good("durable", format!("`{number}`"));
            report.good("durable", "`0`".to_owned());
        }
        report.told(Severity::Note, "version", "old".to_owned(), "upgrade".to_owned());
        report.told(Severity::Danger, "durable", "`x` is not".to_owned(), "mend it".to_owned());
        let findings = report.findings();
        let seen: Vec<_> = findings.iter().map(|finding| (finding.severity, finding.seen.as_str())).collect();
        let good = "`0`, `1`, `2`, `3`, `4`, `5`, `6`, `7` and 2 more";
        assert_eq!(seen, [(Severity::Danger, "`x` is not"), (Severity::Note, "old"), (Severity::Good, good)]);
    }
}
