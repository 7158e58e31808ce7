//! The signals of service managers and terminals.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// The exit status after an interrupt, as shells define it: 128 and the number of SIGINT.
pub const EXIT_INTERRUPTED: u8 = 130;

/// What a signal requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessSignal {
    /// SIGTERM or SIGINT: stop.
    Stop,
    /// SIGHUP: reload the configuration.
    Reload,
}

/// Receives the signals of this process from its creation on.
#[derive(Debug)]
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Option<Signal>,
}

impl Signals {
    /// Receives SIGINT, SIGTERM and SIGHUP.
    pub fn new() -> io::Result<Self> {
        Ok(Self { hang_up: Some(signal(SignalKind::hangup())?), ..Self::interrupts()? })
    }

    /// Receives SIGINT and SIGTERM. SIGHUP ends the process, for commands at a terminal.
    pub fn interrupts() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hang_up: None,
        })
    }

    /// Waits for the next signal. Signals of one kind that arrive together count once.
    pub async fn next(&mut self) -> ProcessSignal {
        let Self { interrupt, terminate, hang_up } = self;
        let hang_up = async {
            match hang_up {
                Some(signal) => signal.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            _ = interrupt.recv() => ProcessSignal::Stop,
            _ = terminate.recv() => ProcessSignal::Stop,
            _ = hang_up => ProcessSignal::Reload,
        }
    }

    /// Cancels `stop` at the first signal to stop. Exits the process at the second one, without waiting for anything.
    pub async fn cancel_on_stop(mut self, stop: CancellationToken) {
        self.stopped().await;
        stop.cancel();
        self.stopped().await;
        std::process::exit(EXIT_INTERRUPTED.into());
    }

    async fn stopped(&mut self) {
        while self.next().await != ProcessSignal::Stop {}
    }
}
