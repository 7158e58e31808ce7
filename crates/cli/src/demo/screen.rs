//! What the demo shows: a line a second, or one live line on a terminal, and what happens in between.

use std::fmt;
use std::io::{self, IsTerminal as _, Write};
use std::time::Duration;

use super::ledger::Latency;
use super::trouble::Waiting;

/// To the line's start, without wrapping lines that are too long.
const BEGIN_LIVE: &str = "\r\x1b[?7l";
/// Clears the rest of the line, and wraps again.
const END_LIVE: &str = "\x1b[K\x1b[?7h";

/// One second of the demo.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Status {
    pub(crate) since_start: Duration,
    pub(crate) per_second: f64,
    pub(crate) published: u64,
    pub(crate) waiting: Waiting,
    pub(crate) backlog: usize,
    pub(crate) latency: Latency,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:>5.0} s {:>6.0}/s  published {:<7} parked keys {:<2} dead letters {:<2} backlog {:<4} p50 {} p99 {}",
            self.since_start.as_secs_f64(),
            self.per_second,
            self.published,
            self.waiting.keys,
            self.waiting.letters,
            self.backlog,
            Millis(self.latency.p50),
            Millis(self.latency.p99),
        )
    }
}

/// A time as people compare it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Millis(pub(crate) Duration);

impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.0.as_secs_f64() * 1000.0;
        if millis < 10.0 { write!(f, "{millis:.1} ms") } else { write!(f, "{millis:.0} ms") }
    }
}

/// Where it is shown.
#[derive(Debug)]
pub(crate) struct Screen<W> {
    out: W,
    /// Whether the last line is rewritten.
    is_live: bool,
    last: Option<Status>,
}

impl Screen<io::Stdout> {
    /// The process's own output.
    pub(crate) fn stdout() -> Self {
        let out = io::stdout();
        let is_live = out.is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb");
        Self::new(out, is_live)
    }
}

impl<W: Write> Screen<W> {
    fn new(out: W, is_live: bool) -> Self {
        Self { out, is_live, last: None }
    }

    /// A line of its own.
    pub(crate) fn line(&mut self, line: impl fmt::Display) -> io::Result<()> {
        match self.last.filter(|_| self.is_live) {
            Some(status) => write!(self.out, "\r\x1b[K{line}\n{BEGIN_LIVE}{status}{END_LIVE}")?,
            None => writeln!(self.out, "{line}")?,
        }
        self.out.flush()
    }

    /// How it stands now.
    pub(crate) fn status(&mut self, status: Status) -> io::Result<()> {
        self.last = Some(status);
        if self.is_live {
            write!(self.out, "{BEGIN_LIVE}{status}{END_LIVE}")?;
        } else {
            writeln!(self.out, "{status}")?;
        }
        self.out.flush()
    }

    /// What comes now is the end of it: the live line stays as it is.
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

    const STATUS: Status = Status {
        since_start: Duration::from_secs(12),
        per_second: 203.4,
        published: 2411,
        waiting: Waiting { keys: 1, letters: 0 },
        backlog: 12,
        latency: Latency { p50: Duration::from_micros(2140), p99: Duration::from_millis(1051) },
    };
    const LINE: &str =
        "   12 s    203/s  published 2411    parked keys 1  dead letters 0  backlog 12   p50 2.1 ms p99 1051 ms";

    fn shown(is_live: bool) -> String {
        let mut screen = Screen::new(Vec::new(), is_live);
        screen.status(STATUS).unwrap();
        screen.line("order-7: parked").unwrap();
        screen.end_live().unwrap();
        String::from_utf8(screen.out).unwrap()
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
