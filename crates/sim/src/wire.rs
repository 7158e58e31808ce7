//! The network: what was put on it goes its way, whatever becomes of the sender.

use std::sync::{Arc, Mutex};

use tokio::task::JoinSet;

use crate::history::lock;

/// Everything under way. Cheap to clone; what is under way ends with the last clone.
#[derive(Clone, Debug, Default)]
pub struct Wire(Arc<Mutex<JoinSet<()>>>);

impl Wire {
    /// Carries something to its end.
    pub fn carry(&self, journey: impl Future<Output = ()> + Send + 'static) {
        let mut journeys = lock(&self.0);
        while journeys.try_join_next().is_some() {}
        journeys.spawn(journey);
    }
}
