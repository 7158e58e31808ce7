//! Ctrl-C and the signals of service managers. The first stops the process cleanly, the second at once.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// The exit code after two signals, as shells define it: 128 and the number of SIGINT.
const INTERRUPTED: i32 = 130;

/// Receives SIGINT and SIGTERM from its creation on.
#[derive(Debug)]
pub(crate) struct Interrupts {
    interrupt: Signal,
    terminate: Signal,
}

impl Interrupts {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    /// Cancels `stop` at the first signal. Exits the process at the second one, without waiting for anything.
    pub(crate) async fn watch(mut self, stop: CancellationToken) {
        self.next().await;
        stop.cancel();
        self.next().await;
        std::process::exit(INTERRUPTED);
    }

    async fn next(&mut self) {
        tokio::select! {
            biased;
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
