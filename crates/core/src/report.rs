//! Findings as they are gathered: what is wrong one by one, what is right in one line a subject.

use std::collections::BTreeMap;

use crate::operate::{Finding, Severity};

/// More names than that are counted, not listed.
const LISTED_MAX: usize = 8;

/// Findings as they are gathered.
#[derive(Debug, Default)]
pub struct Report {
    findings: Vec<Finding>,
    good: BTreeMap<&'static str, Vec<String>>,
}

impl Report {
    /// Something that is not as it should be, with what mends it.
    pub fn told(&mut self, severity: Severity, subject: &str, seen: String, fix: String) {
        self.findings.push(Finding { severity, subject: subject.to_owned(), seen, fix: Some(fix) });
    }

    /// One thing that is as it should be.
    pub fn good(&mut self, subject: &'static str, what: String) {
        let known = self.good.entry(subject).or_default();
        if !known.contains(&what) {
            known.push(what);
        }
    }

    /// Everything, the worst first.
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

/// A list that stays readable.
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
