//! The findings of an examination. Each problem is one finding; passed checks are joined into one finding per subject.

use std::collections::BTreeMap;

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The check passed.
    Ok,
    /// Information.
    Note,
    /// Will become a problem.
    Warning,
    /// Violates a guarantee.
    Danger,
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Its severity.
    pub severity: Severity,
    /// The checked subject, as a short stable name such as `synchronous_commit`.
    pub subject: String,
    /// The observed value.
    pub detail: String,
    /// The action that fixes it.
    pub fix: Option<String>,
}

/// The maximum number of names in a list. Further names are only counted.
const LISTED_MAX: usize = 8;

/// Collects the findings of an examination.
#[derive(Debug, Default)]
pub struct Findings {
    problems: Vec<Finding>,
    passed: BTreeMap<&'static str, Vec<String>>,
}

impl Findings {
    /// Adds a problem and the action that fixes it.
    pub fn problem(&mut self, severity: Severity, subject: &str, detail: String, fix: String) {
        self.problems.push(Finding { severity, subject: subject.to_owned(), detail, fix: Some(fix) });
    }

    /// Adds a check: passed if `ok`, otherwise a problem and the action that fixes it.
    pub fn check(
        &mut self,
        ok: bool,
        severity: Severity,
        subject: &'static str,
        passed: String,
        problem: impl FnOnce() -> (String, String),
    ) {
        if ok {
            return self.passed(subject, passed);
        }
        let (detail, fix) = problem();
        self.problem(severity, subject, detail, fix);
    }

    /// Adds a passed check. Repeats are ignored.
    pub fn passed(&mut self, subject: &'static str, detail: String) {
        let known = self.passed.entry(subject).or_default();
        if !known.contains(&detail) {
            known.push(detail);
        }
    }

    /// Returns all findings, the most severe first.
    pub fn into_sorted(self) -> Vec<Finding> {
        let good = self.passed.into_iter().map(|(subject, details)| Finding {
            severity: Severity::Ok,
            subject: subject.to_owned(),
            detail: join_limited(&details),
            fix: None,
        });
        let mut all: Vec<Finding> = self.problems.into_iter().chain(good).collect();
        all.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        all.dedup();
        all
    }
}

/// Joins names with commas and replaces the rest of a long list by its count.
pub fn join_limited(names: &[String]) -> String {
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
    fn problems_come_first_and_passed_checks_share_a_line() {
        let mut report = Findings::default();
        for number in 0..10 {
            report.passed("durable", format!("`{number}`"));
            report.passed("durable", "`0`".to_owned());
        }
        report.problem(Severity::Note, "version", "old".to_owned(), "upgrade".to_owned());
        report.problem(Severity::Danger, "durable", "`x` is not".to_owned(), "make it durable".to_owned());
        let findings = report.into_sorted();
        let shown: Vec<_> = findings.iter().map(|finding| (finding.severity, finding.detail.as_str())).collect();
        let good = "`0`, `1`, `2`, `3`, `4`, `5`, `6`, `7` and 2 more";
        assert_eq!(shown, [(Severity::Danger, "`x` is not"), (Severity::Note, "old"), (Severity::Ok, good)]);
    }
}
