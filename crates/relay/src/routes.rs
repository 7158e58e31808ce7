//! Replaces the routes of a running relay.

use relevo_core::Routes;
use tokio::sync::watch;

/// Replaces the routes of one relay. Cheap to clone. After the relay has ended, it has no effect.
#[derive(Clone, Debug)]
pub struct RoutesHandle(watch::Sender<Routes>);

impl RoutesHandle {
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

/// The relay's receiving end of [`RoutesHandle`].
#[derive(Debug)]
pub(crate) struct RoutesReceiver {
    handle: RoutesHandle,
    routes: watch::Receiver<Routes>,
}

impl RoutesReceiver {
    pub(crate) fn new(routes: Routes) -> Self {
        let (sender, receiver) = watch::channel(routes);
        Self { handle: RoutesHandle(sender), routes: receiver }
    }

    pub(crate) fn handle(&self) -> RoutesHandle {
        self.handle.clone()
    }

    /// The new routes, if they were replaced since the last call.
    pub(crate) fn take_replaced(&mut self) -> Option<Routes> {
        self.routes.has_changed().unwrap_or(false).then(|| self.routes.borrow_and_update().clone())
    }
}
