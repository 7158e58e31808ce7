//! What the process is told by signals.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// What a signal asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// SIGTERM, SIGINT: end.
    Stop,
    /// SIGHUP: read the configuration anew.
    Reload,
}

/// The signals of this process, from the moment that this is made.
#[derive(Debug)]
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
}

impl Signals {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    /// The next one. Signals of one kind that come together count once.
    pub(crate) async fn next(&mut self) -> Asked {
        tokio::select! {
            biased;
            _ = self.interrupt.recv() => Asked::Stop,
            _ = self.terminate.recv() => Asked::Stop,
            _ = self.hang_up.recv() => Asked::Reload,
        }
    }
}
