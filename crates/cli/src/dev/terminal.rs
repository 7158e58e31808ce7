//! The output of the demo: events, and one status line per second, or one live line if it is a terminal.

use std::fmt;
use std::io::{self, IsTerminal as _, Write};
use std::time::Duration;

use super::state::DemoSample;

/// Moves the cursor to the start of the line, and disables the wrapping of long lines.
const BEGIN_LIVE: &str = "\r\x1b[?7l";
/// Clears the rest of the line, and enables wrapping again.
const END_LIVE: &str = "\x1b[K\x1b[?7h";

/// The status line.
#[derive(Clone, Copy, Debug)]
struct Status {
    since_start: Duration,
    sample: DemoSample,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DemoSample { rates, latency, depths, counts, parked_keys } = self.sample;
        write!(
            f,
            "{:>5.0} s {:>6.0}/s  applied {:<8} backlog {:<5} parked keys {parked_keys:<2} dead letters {:<2} p50 {} p99 {}",
            self.since_start.as_secs_f64(),
            rates.applied,
            counts.applied,
            depths.pending + depths.lag,
            depths.dead,
            Millis(latency.p50_ms),
            Millis(latency.p99_ms),
        )
    }
}

/// A duration in milliseconds, rounded.
#[derive(Clone, Copy, Debug)]
struct Millis(f64);

impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.0;
        if millis < 10.0 { write!(f, "{millis:.1} ms") } else { write!(f, "{millis:.0} ms") }
    }
}

/// The output.
#[derive(Debug)]
pub(crate) struct Terminal<W> {
    out: W,
    /// Whether the last line is rewritten.
    is_live: bool,
    last: Option<Status>,
}

impl Terminal<io::Stdout> {
    /// The standard output of the process.
    pub(crate) fn stdout() -> Self {
        let out = io::stdout();
        let is_live = out.is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb");
        Self::new(out, is_live)
    }
}

impl<W: Write> Terminal<W> {
    fn new(out: W, is_live: bool) -> Self {
        Self { out, is_live, last: None }
    }

    /// Prints a line. A live status line stays below it.
    pub(crate) fn line(&mut self, line: impl fmt::Display) -> io::Result<()> {
        match self.last.filter(|_| self.is_live) {
            Some(status) => write!(self.out, "\r\x1b[K{line}\n{BEGIN_LIVE}{status}{END_LIVE}")?,
            None => writeln!(self.out, "{line}")?,
        }
        self.out.flush()
    }

    /// Prints the status.
    pub(crate) fn status(&mut self, since_start: Duration, sample: &DemoSample) -> io::Result<()> {
        let status = Status { since_start, sample: *sample };
        self.last = Some(status);
        if self.is_live {
            write!(self.out, "{BEGIN_LIVE}{status}{END_LIVE}")?;
        } else {
            writeln!(self.out, "{status}")?;
        }
        self.out.flush()
    }

    /// Ends the live line. Later lines are printed below it.
    pub(crate) fn end_live(&mut self) -> io::Result<()> {
        if self.last.take().is_some() && self.is_live {
            writeln!(self.out)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dev::state::{Counts, Latency, QueueDepths, Rates};

    const SAMPLE: DemoSample = DemoSample {
        rates: Rates { committed: 200.0, sent: 205.0, published: 203.0, applied: 203.4 },
        latency: Latency { p50_ms: 2.14, p99_ms: 1051.0 },
        depths: QueueDepths { pending: 9, parked: 4, dead: 0, lag: 3 },
        counts: Counts {
            committed: 2500,
            rolled_back: 120,
            sent: 2430,
            published: 2420,
            applied: 2411,
            duplicates: 20,
        },
        parked_keys: 1,
    };
    const LINE: &str =
        "   12 s    203/s  applied 2411     backlog 12    parked keys 1  dead letters 0  p50 2.1 ms p99 1051 ms";

    fn shown(is_live: bool) -> String {
        let mut terminal = Terminal::new(Vec::new(), is_live);
        terminal.status(Duration::from_secs(12), &SAMPLE).unwrap();
        terminal.line("order-7: parked").unwrap();
        terminal.end_live().unwrap();
        String::from_utf8(terminal.out).unwrap()
    }

    #[test]
    fn a_file_gets_plain_lines() {
        assert_eq!(shown(false), format!("{LINE}\norder-7: parked\n"));
    }

    #[test]
    fn a_terminal_gets_a_live_line_below_the_others() {
        let live = format!("{BEGIN_LIVE}{LINE}{END_LIVE}");
        assert_eq!(shown(true), format!("{live}\r\x1b[Korder-7: parked\n{live}\n"));
    }
}
