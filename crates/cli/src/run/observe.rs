//! What the admin port tells.

use std::sync::Arc;

use relevo_admin::{Check, Observe, Report};
use tokio::time::Instant;

use super::metrics::Metrics;
use super::pulse::Pulse;
use super::seen::Seen;

/// The daemon, as its admin port sees it.
pub(crate) struct Observer {
    pub(crate) relays: Vec<Arc<Seen>>,
    pub(crate) pulse: Arc<Pulse>,
    pub(crate) metrics: Metrics,
}

impl Observe for Observer {
    fn live(&self) -> Report {
        let checks = self.pulse.take(Instant::now()).into_iter().map(|(seen, turns)| {
            let told = if turns { "turns" } else { "its loop does not turn any more" };
            check(seen, turns, told.to_owned())
        });
        Report::of(checks.collect())
    }

    fn ready(&self) -> Report {
        let checks = self.relays.iter().map(|seen| {
            let (ready, told) = seen.readiness();
            check(seen, ready, told)
        });
        Report::of(checks.collect())
    }

    fn metrics(&self) -> String {
        self.metrics.text()
    }
}

fn check(seen: &Seen, ok: bool, told: String) -> Check {
    Check { outbox: seen.outbox.clone(), destination: seen.destination.clone(), ok, seen: told }
}
