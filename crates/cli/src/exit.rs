//! What the program's end says to whoever started it. The numbers are documented, and scripts rely on them.

use std::fmt;
use std::process::ExitCode;

use relevo_core::store::StoreError;

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    /// Done.
    Done = 0,
    /// Failed; nothing more is known about why than the error says.
    Failed = 1,
    /// What was typed makes no sense.
    Usage = 2,
    /// The command worked, and found something that a person should look at.
    Found = 3,
    /// What was asked for is not there.
    NotFound = 4,
    /// The database or the broker cannot be reached.
    Away = 5,
    /// Interrupted before the end.
    Interrupted = 130,
}

impl From<Code> for ExitCode {
    fn from(code: Code) -> Self {
        Self::from(code as u8)
    }
}

impl Code {
    /// The code of an error: what its chain says first.
    pub(crate) fn of(error: &anyhow::Error) -> Self {
        error.chain().find_map(of_cause).unwrap_or(Self::Failed)
    }
}

fn of_cause(cause: &(dyn std::error::Error + 'static)) -> Option<Code> {
    if let Some(Coded { code, .. }) = cause.downcast_ref() {
        return Some(*code);
    }
    match cause.downcast_ref() {
        Some(StoreError::Unavailable(_) | StoreError::Busy { .. }) => return Some(Code::Away),
        Some(
            StoreError::Standby
            | StoreError::SchemaMismatch { .. }
            | StoreError::WrongDatabase { .. }
            | StoreError::Refused { .. }
            | StoreError::Unexpected(_),
        ) => return Some(Code::Failed),
        None => {}
    }
    match cause.downcast_ref() {
        Some(sqlx::Error::Io(_) | sqlx::Error::Tls(_) | sqlx::Error::PoolTimedOut) => Some(Code::Away),
        _ => None,
    }
}

/// An error that knows its code.
#[derive(Debug)]
struct Coded {
    code: Code,
    text: String,
}

impl fmt::Display for Coded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Coded {}

/// What was typed makes no sense, which only the database or a file could tell.
pub(crate) fn usage(text: impl Into<String>) -> anyhow::Error {
    Coded { code: Code::Usage, text: text.into() }.into()
}

/// What was asked for is not there.
pub(crate) fn not_found(text: impl Into<String>) -> anyhow::Error {
    Coded { code: Code::NotFound, text: text.into() }.into()
}

/// The database or the broker cannot be reached.
pub(crate) fn away(text: impl Into<String>) -> anyhow::Error {
    Coded { code: Code::Away, text: text.into() }.into()
}

/// Interrupted before the end.
pub(crate) fn interrupted(text: impl Into<String>) -> anyhow::Error {
    Coded { code: Code::Interrupted, text: text.into() }.into()
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn an_error_has_the_code_of_its_cause() {
        let gone = StoreError::Unavailable(Box::from("connection refused"));
        for (error, code) in [
            (anyhow!("anything"), Code::Failed),
            (usage("no").context("here"), Code::Usage),
            (not_found("no").context("here"), Code::NotFound),
            (anyhow::Error::from(gone).context("cannot open"), Code::Away),
            (sqlx::Error::Io(std::io::ErrorKind::ConnectionRefused.into()).into(), Code::Away),
            (StoreError::Refused { reason: "switched off".to_owned() }.into(), Code::Failed),
        ] {
            assert_eq!(Code::of(&error), code, "{error:#}");
        }
    }
}
