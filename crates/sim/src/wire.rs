//! The network. A message on the network arrives even if its sender dies.

use std::sync::{Arc, Mutex};

use tokio::task::JoinSet;

use crate::history::lock;

/// All transfers in progress. Cheap to clone. Dropping the last clone ends them.
#[derive(Clone, Debug, Default)]
pub struct Wire(Arc<Mutex<Journeys>>);

#[derive(Debug, Default)]
struct Journeys {
    open: JoinSet<()>,
    panicked: bool,
}

impl Wire {
    /// Runs a transfer to its end.
    pub fn carry(&self, journey: impl Future<Output = ()> + Send + 'static) {
        let mut journeys = lock(&self.0);
        journeys.clear();
        journeys.open.spawn(journey);
    }

    /// Whether a server panicked while it handled a transfer.
    pub fn has_panicked(&self) -> bool {
        let mut journeys = lock(&self.0);
        journeys.clear();
        journeys.panicked
    }
}

impl Journeys {
    fn clear(&mut self) {
        while let Some(ended) = self.open.try_join_next() {
            self.panicked |= ended.is_err_and(|error| error.is_panic());
        }
    }
}
