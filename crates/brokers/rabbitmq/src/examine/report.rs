//! Findings as they are gathered: what is wrong one by one, what is right in one line a subject.

use std::collections::BTreeMap;

use relevo_core::operate::{Finding, Severity};

/// More names than that are counted, not listed.
const LISTED_MAX: usize = 8;

/// Findings as they are gathered.
#[derive(Debug, Default)]
pub(super) struct Report {
    findings: Vec<Finding>,
    good: BTreeMap<&'static str, Vec<String>>,
}

impl Report {
    /// Something that is not as it should be, with what mends it.
    pub(super) fn told(&mut self, severity: Severity, subject: &str, seen: String, fix: String) {
        self.findings.push(Finding { severity, subject: subject.to_owned(), seen, fix: Some(fix) });
    }

    /// One thing that is as it should be.
    pub(super) fn good(&mut self, subject: &'static str, what: String) {
        let known = self.good.entry(subject).or_default();
        if !known.contains(&what) {
            known.push(what);
        }
    }

    /// Everything, the worst first.
    pub(super) fn findings(self) -> Vec<Finding> {
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
pub(super) fn some_of(names: &[String]) -> String {
    let listed = names[..names.len().min(LISTED_MAX)].join(", ");
    match names.len().saturating_sub(LISTED_MAX) {
        0 => listed,
        more => format!("{listed} and {more} more"),
    }
}
