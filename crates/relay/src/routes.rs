//! Exchanging the routes of a relay that runs.

use relevo_core::Routes;
use tokio::sync::watch;

/// Exchanges the routes of one relay. Cheap to clone; outlives the relay, and then does nothing.
#[derive(Clone, Debug)]
pub struct RoutesHandle(watch::Sender<Routes>);

impl RoutesHandle {
    pub(crate) fn new(routes: Routes) -> (Self, watch::Receiver<Routes>) {
        let (sender, receiver) = watch::channel(routes);
        (Self(sender), receiver)
    }

    /// From its next step on the relay addresses messages by these routes. What has an address already keeps it, and
    /// goes out before later messages of its key; a parked message takes the new routes when it is tried again.
    pub fn exchange(&self, routes: Routes) {
        self.0.send_replace(routes);
    }

    /// The routes that were set last.
    pub fn current(&self) -> Routes {
        self.0.borrow().clone()
    }
}
