//! The network. A message on the network arrives even if its sender dies.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::task::JoinSet;

/// All transfers in progress. Cheap to clone. Dropping the last clone aborts them.
#[derive(Clone, Debug, Default)]
pub struct Network(Arc<Mutex<Tasks>>);

#[derive(Debug, Default)]
struct Tasks {
    running: JoinSet<()>,
    panicked: bool,
}

impl Network {
    /// Runs a transfer to its end.
    pub fn spawn(&self, transfer: impl Future<Output = ()> + Send + 'static) {
        let mut journeys = self.0.lock();
        journeys.reap();
        journeys.running.spawn(transfer);
    }

    /// Whether a server panicked while it handled a transfer.
    pub fn has_panicked(&self) -> bool {
        let mut journeys = self.0.lock();
        journeys.reap();
        journeys.panicked
    }
}

impl Tasks {
    fn reap(&mut self) {
        while let Some(ended) = self.running.try_join_next() {
            self.panicked |= ended.is_err_and(|error| error.is_panic());
        }
    }
}
