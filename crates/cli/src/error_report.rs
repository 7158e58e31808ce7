//! Errors and messages on stderr.

use std::fmt;
use std::io::{self, Write as _};

/// The separator of hints in an error's text.
const HINT: &str = "; hint: ";

/// Prints a line to stderr. An error of stderr cannot be reported anywhere.
pub(crate) fn print_stderr(line: &str) {
    writeln!(io::stderr(), "{line}").ok();
}

/// An error for people: the chain of causes in one line, without repetitions, and the hints below.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ErrorReport {
    error: String,
    hints: Vec<String>,
}

impl ErrorReport {
    pub(crate) fn of(error: &anyhow::Error) -> Self {
        let mut told = Self { error: String::new(), hints: Vec::new() };
        for cause in error.chain() {
            let text = cause.to_string();
            let mut parts = text.split(HINT);
            told.add(parts.next().unwrap_or_default().trim());
            told.hints.extend(parts.map(|hint| hint.trim().to_owned()));
        }
        told.hints.dedup();
        told
    }

    /// The chain of causes, without any advice.
    pub(crate) fn error(&self) -> &str {
        &self.error
    }

    /// The advice, where there is any.
    pub(crate) fn hint(&self) -> Option<String> {
        (!self.hints.is_empty()).then(|| self.hints.join("; "))
    }

    /// As it is told where nothing has failed.
    pub(crate) fn as_warning(&self) -> String {
        self.to_string().replacen("error: ", "warning: ", 1)
    }

    /// Some libraries repeat a cause in the sentence of what it caused.
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

/// Whether the reader of stdout went away.
pub(crate) fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
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
    fn what_a_library_repeats_is_said_once() {
        let error = anyhow!("refused").context("from the database: refused");
        assert_eq!(ErrorReport::of(&error).to_string(), "error: from the database: refused");
    }

    #[test]
    fn a_closed_pipe_is_known_and_other_errors_are_not() {
        assert!(is_closed_pipe(&io::Error::from(io::ErrorKind::BrokenPipe).into()));
        assert!(!is_closed_pipe(&anyhow!("pipe")));
    }
}
