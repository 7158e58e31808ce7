//! Errors and messages on stderr.

use std::io::{self, Write as _};

pub(crate) use relevo_host::ErrorReport;

/// Prints a line to stderr. An error of stderr cannot be reported anywhere.
pub(crate) fn print_stderr(line: &str) {
    writeln!(io::stderr(), "{line}").ok();
}

/// Whether the reader of stdout closed it.
pub(crate) fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn a_closed_pipe_is_known_and_other_errors_are_not() {
        assert!(is_closed_pipe(&io::Error::from(io::ErrorKind::BrokenPipe).into()));
        assert!(!is_closed_pipe(&anyhow!("pipe")));
    }
}
