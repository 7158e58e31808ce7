//! What the admin port tells.

use std::sync::Arc;

use relevo_admin::{Check, Observe, Part, Report};
use relevo_observe::Exposition;
use relevo_observe::relay::Observed as _;
use tokio::time::Instant;

use super::pulse::Pulse;
use super::seen::{For, Phase, Seen};

/// The daemon, as its admin port sees it.
pub(crate) struct Observer {
    pub(crate) relays: Vec<Arc<Seen>>,
    pub(crate) pulse: Arc<Pulse>,
    pub(crate) metrics: Exposition,
    /// An outage makes it unready.
    pub(crate) ready_needs_broker: bool,
}

impl Observe for Observer {
    fn live(&self) -> Report {
        let checks = self.pulse.take(Instant::now()).into_iter().map(|(seen, turns)| {
            let told = if turns { "turns" } else { "its loop does not turn any more" };
            check(seen, turns, told.to_owned())
        });
        Report::of(checks.collect())
    }

    /// A key that is stuck, or a message that is dead, is not what this is about: nobody would be helped by a relay less.
    fn ready(&self) -> Report {
        let checks = self.relays.iter().map(|seen| {
            let (ready, told) = seen.readiness();
            check(seen, ready && !self.lacks_broker(seen), told)
        });
        let parts = self.relays.iter().flat_map(|seen| [database(seen), schema(seen), self.broker(seen)]);
        Report::of(checks.collect()).with(parts.collect())
    }

    /// Whoever waits for a database or a broker has started: to start it anew would mend nothing.
    fn started(&self) -> Report {
        let checks = self.relays.iter().map(|seen| match seen.phase() {
            Phase::Starting => check(seen, false, "starting".to_owned()),
            Phase::Waiting(_, what) => check(seen, true, what),
            Phase::Running | Phase::Ended => check(seen, true, "has started".to_owned()),
        });
        Report::of(checks.collect())
    }

    fn metrics(&self) -> String {
        self.metrics.text()
    }
}

impl Observer {
    fn lacks_broker(&self, seen: &Seen) -> bool {
        self.ready_needs_broker && seen.is_broker_up() == Some(false)
    }

    /// Before a relay runs it needs its broker; after that an outage is waited for, unless the configuration says otherwise.
    fn broker(&self, seen: &Seen) -> Part {
        let needed = self.ready_needs_broker || seen.phase() != Phase::Running;
        let away = seen.broker_away_for().filter(|time| !time.is_zero()).unwrap_or_default();
        let (ok, told) = match (seen.phase(), seen.is_broker_up()) {
            (Phase::Waiting(For::Broker, what), _) => (false, what),
            (_, Some(true)) => (true, "was there when last tried".to_owned()),
            (_, Some(false)) => (false, format!("away for {} s, is waited for", away.as_secs())),
            (_, None) => (false, "was not tried yet".to_owned()),
        };
        part(seen, "broker", ok, needed, told)
    }
}

fn database(seen: &Seen) -> Part {
    let (ok, told) = match (seen.phase(), seen.relay()) {
        (Phase::Waiting(For::Database, what), _) => (false, what),
        (Phase::Running, Some(status)) if status.is_database_down() => (false, "away, will begin again".to_owned()),
        (Phase::Running, Some(status)) if status.is_started() => {
            (true, format!("answers, {} shards are held", status.leases()))
        }
        (Phase::Ended, _) => (false, "the relay has ended".to_owned()),
        _ => (false, "was not asked yet".to_owned()),
    };
    part(seen, "database", ok, true, told)
}

/// A schema that does not fit ends the process, which says why.
fn schema(seen: &Seen) -> Part {
    let fits = seen.relay().is_some();
    let told = if fits { "is one that this program knows, with this destination" } else { "was not looked at yet" };
    part(seen, "schema", fits, true, told.to_owned())
}

fn check(seen: &Seen, ok: bool, told: String) -> Check {
    Check::of_relay(&seen.named.outbox, &seen.named.destination, ok, told)
}

fn part(seen: &Seen, part: &'static str, ok: bool, needed: bool, told: String) -> Part {
    let (outbox, destination) = (seen.named.outbox.clone(), seen.named.destination.clone());
    Part { outbox, destination, part, ok, needed, seen: told }
}
