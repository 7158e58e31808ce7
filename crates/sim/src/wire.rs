//! The network: what was put on it goes its way, whatever becomes of the sender.

use std::sync::{Arc, Mutex};

use tokio::task::JoinSet;

use crate::history::lock;

/// Everything under way. Cheap to clone; what is under way ends with the last clone.
#[derive(Clone, Debug, Default)]
pub struct Wire(Arc<Mutex<Journeys>>);

#[derive(Debug, Default)]
struct Journeys {
    open: JoinSet<()>,
    panicked: bool,
}

impl Wire {
    /// Carries something to its end.
    pub fn carry(&self, journey: impl Future<Output = ()> + Send + 'static) {
        let mut journeys = lock(&self.0);
        journeys.clear();
        journeys.open.spawn(journey);
    }

    /// Whether a server panicked over something that was carried to it.
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
