//! The progress of a long command on stderr: one changing line on a terminal, a line now and then elsewhere.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

use tokio::time::Instant;

use crate::error_report::print_stderr;

/// The interval on a terminal, and elsewhere.
const TERMINAL_INTERVAL: Duration = Duration::from_millis(500);
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// The progress line of one command.
pub(crate) struct Progress {
    is_terminal: bool,
    last: Instant,
    is_line_open: bool,
}

impl Progress {
    pub(crate) fn new() -> Self {
        Self { is_terminal: io::stderr().is_terminal(), last: Instant::now(), is_line_open: false }
    }

    /// Prints the line if its interval has passed.
    pub(crate) fn report(&mut self, line: impl FnOnce() -> String) {
        let interval = if self.is_terminal { TERMINAL_INTERVAL } else { LOG_INTERVAL };
        if self.last.elapsed() < interval {
            return;
        }
        self.last = Instant::now();
        if self.is_terminal {
            // An error of stderr cannot be reported anywhere.
            write!(io::stderr(), "\r\x1b[K{}", line()).ok();
            self.is_line_open = true;
        } else {
            print_stderr(&line());
        }
    }

    /// Removes the line from the terminal, before other output.
    pub(crate) fn clear(&mut self) {
        if std::mem::take(&mut self.is_line_open) {
            write!(io::stderr(), "\r\x1b[K").ok();
        }
    }
}
