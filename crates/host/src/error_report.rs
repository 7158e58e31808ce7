//! How errors are printed and logged.

use std::fmt;

/// Separates the advice in the text of an error.
const HINT: &str = "; hint: ";

/// An error for operators: the chain of causes in one line, each once, and the advice apart.
#[derive(Debug, PartialEq, Eq)]
pub struct ErrorReport {
    error: String,
    hints: Vec<String>,
}

impl ErrorReport {
    /// Splits an error into causes and advice.
    pub fn of(error: &anyhow::Error) -> Self {
        let mut report = Self { error: String::new(), hints: Vec::new() };
        for cause in error.chain() {
            let text = cause.to_string();
            let mut parts = text.split(HINT);
            report.add(parts.next().unwrap_or_default().trim());
            report.hints.extend(parts.map(|hint| hint.trim().to_owned()));
        }
        report.hints.dedup();
        report
    }

    /// The chain of causes, without any advice.
    pub fn error(&self) -> &str {
        &self.error
    }

    /// The advice, if there is any.
    pub fn hint(&self) -> Option<String> {
        (!self.hints.is_empty()).then(|| self.hints.join("; "))
    }

    /// The same text as a warning.
    pub fn as_warning(&self) -> String {
        self.to_string().replacen("error: ", "warning: ", 1)
    }

    /// Some libraries repeat a cause in the text of its consequence.
    fn add(&mut self, text: &str) {
        if self.error.is_empty() {
            text.clone_into(&mut self.error);
        } else if !self.error.ends_with(text) {
            self.error.push_str(": ");
            self.error.push_str(text);
        }
    }
}

impl fmt::Display for ErrorReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}", self.error)?;
        self.hints.iter().try_for_each(|hint| write!(f, "\nhint: {hint}"))
    }
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn the_chain_is_one_line_and_the_hint_another() {
        let error = anyhow!("no outbox; hint: run `relevo migrate`").context("cannot open");
        assert_eq!(ErrorReport::of(&error).to_string(), "error: cannot open: no outbox\nhint: run `relevo migrate`");
    }

    #[test]
    fn a_repeated_cause_is_printed_once() {
        let error = anyhow!("refused").context("from the database: refused");
        assert_eq!(ErrorReport::of(&error).to_string(), "error: from the database: refused");
    }
}
