//! Ctrl-C, and what service managers send: once is a request, twice an order.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Interrupted twice, as shells count it: 128 and the number of SIGINT.
const INTERRUPTED: i32 = 130;

/// SIGINT and SIGTERM of this process, from the moment that this is made.
#[derive(Debug)]
pub(crate) struct Interrupts {
    interrupt: Signal,
    terminate: Signal,
}

impl Interrupts {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    /// Cancels `stop` at the first, and exits at the second, whatever the rest of the process is busy with.
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
