//! Replaces the routes of a running relay.

use relevo_core::Routes;
use tokio::sync::watch;

/// Replaces the routes of one relay. Cheap to clone. After the relay has ended, it has no effect.
#[derive(Clone, Debug)]
pub struct RoutesHandle(watch::Sender<Routes>);

impl RoutesHandle {
    pub(crate) fn new(routes: Routes) -> (Self, watch::Receiver<Routes>) {
        let (sender, receiver) = watch::channel(routes);
        (Self(sender), receiver)
    }

    /// Makes the relay use these routes from its next step. A message that already has an address keeps it and is
    /// published before later messages of its key. A parked message uses the new routes at its next attempt.
    pub fn replace(&self, routes: Routes) {
        self.0.send_replace(routes);
    }

    /// The current routes.
    pub fn current(&self) -> Routes {
        self.0.borrow().clone()
    }
}
