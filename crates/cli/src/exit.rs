//! Exit statuses. They are documented, and scripts rely on them.

use std::fmt;
use std::process::ExitCode;

use relevo_core::store::StoreError;
use relevo_host::ConfigurationError;

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum ExitStatus {
    /// The command succeeded.
    Success = 0,
    /// The command failed. The error has the cause.
    Failure = 1,
    /// The arguments or the configuration are wrong.
    Usage = 2,
    /// The command succeeded and found a problem.
    Findings = 3,
    /// The named thing does not exist.
    NotFound = 4,
    /// The database or the broker is unreachable.
    Unreachable = 5,
    /// Interrupted before the end.
    Interrupted = relevo_host::EXIT_INTERRUPTED,
}

impl From<ExitStatus> for ExitCode {
    fn from(code: ExitStatus) -> Self {
        Self::from(code as u8)
    }
}

impl ExitStatus {
    /// The code of an error: the first one in its chain.
    pub(crate) fn of(error: &anyhow::Error) -> Self {
        error.chain().find_map(of_cause).unwrap_or(Self::Failure)
    }
}

fn of_cause(cause: &(dyn std::error::Error + 'static)) -> Option<ExitStatus> {
    if let Some(CommandError { code, .. }) = cause.downcast_ref() {
        return Some(*code);
    }
    if cause.is::<ConfigurationError>() {
        return Some(ExitStatus::Usage);
    }
    match cause.downcast_ref() {
        Some(StoreError::Unavailable(_) | StoreError::Busy { .. }) => return Some(ExitStatus::Unreachable),
        Some(
            StoreError::Standby
            | StoreError::SchemaMismatch { .. }
            | StoreError::WrongDatabase { .. }
            | StoreError::Refused { .. }
            | StoreError::Unexpected(_),
        ) => return Some(ExitStatus::Failure),
        None => {}
    }
    match cause.downcast_ref() {
        Some(sqlx::Error::Io(_) | sqlx::Error::Tls(_) | sqlx::Error::PoolTimedOut) => Some(ExitStatus::Unreachable),
        _ => None,
    }
}

/// An error that knows its code.
#[derive(Debug)]
struct CommandError {
    code: ExitStatus,
    text: String,
}

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for CommandError {}

/// Wrong arguments, found after parsing.
pub(crate) fn usage(text: impl Into<String>) -> anyhow::Error {
    CommandError { code: ExitStatus::Usage, text: text.into() }.into()
}

/// The named thing does not exist.
pub(crate) fn not_found(text: impl Into<String>) -> anyhow::Error {
    CommandError { code: ExitStatus::NotFound, text: text.into() }.into()
}

/// An unknown name. The hint lists the known ones, or how to add the first one.
pub(crate) fn not_found_among(kind: &str, name: &str, known: &[String], add: &str) -> anyhow::Error {
    let hint = if known.is_empty() {
        add.to_owned()
    } else {
        format!("there {} `{}`", if known.len() == 1 { "is" } else { "are" }, known.join("`, `"))
    };
    not_found(format!("{kind} `{name}` is not known; hint: {hint}"))
}

/// The database or the broker is unreachable.
pub(crate) fn unreachable_server(text: impl Into<String>) -> anyhow::Error {
    CommandError { code: ExitStatus::Unreachable, text: text.into() }.into()
}

/// Interrupted before the end.
pub(crate) fn interrupted(text: impl Into<String>) -> anyhow::Error {
    CommandError { code: ExitStatus::Interrupted, text: text.into() }.into()
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn an_error_has_the_code_of_its_cause() {
        let unavailable = StoreError::Unavailable(Box::from("connection refused"));
        for (error, code) in [
            (anyhow!("anything"), ExitStatus::Failure),
            (usage("no").context("here"), ExitStatus::Usage),
            (not_found("no").context("here"), ExitStatus::NotFound),
            (anyhow::Error::from(unavailable).context("cannot open"), ExitStatus::Unreachable),
            (sqlx::Error::Io(std::io::ErrorKind::ConnectionRefused.into()).into(), ExitStatus::Unreachable),
            (StoreError::Refused { reason: "disabled".to_owned() }.into(), ExitStatus::Failure),
        ] {
            assert_eq!(ExitStatus::of(&error), code, "{error:#}");
        }
    }
}
