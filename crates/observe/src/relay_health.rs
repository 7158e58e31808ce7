//! The health of a relay, in words.

use relevo_admin::{DependencyCheck, HealthCheck};
use tokio::time::Instant;

use crate::relay_monitor::{Dependency, RelayMonitor, RelayPhase};

/// Whether its loop makes progress, however long it waits for database or broker.
pub(crate) fn liveness(relay: &RelayMonitor) -> HealthCheck {
    let progresses = relay.is_progressing(Instant::now());
    let stuck = || format!("stuck: no progress for {} s", relay.stall_timeout().as_secs());
    check(relay, progresses, if progresses { "running".to_owned() } else { stuck() })
}

/// Whether it does its work. A parked key, a dead letter or an unreachable broker do not make a relay unready: a restart
/// would not help.
pub(crate) fn readiness(relay: &RelayMonitor, requires_broker: bool) -> HealthCheck {
    let (ready, detail) = match (relay.phase(), relay.status()) {
        (RelayPhase::WaitingFor(_, reason), _) => (false, reason),
        (RelayPhase::Stopped, _) => (false, "stopped".to_owned()),
        (RelayPhase::Running, Some(status)) if status.is_database_down() => {
            (false, "the database is unreachable, retrying".to_owned())
        }
        (RelayPhase::Running, Some(status)) if status.is_started() => {
            let broker = if status.is_broker_down() { ", the broker is unreachable, retrying" } else { "" };
            (true, format!("leases {} shards{broker}", status.leases()))
        }
        (RelayPhase::Starting | RelayPhase::Running, _) => (false, "starting".to_owned()),
    };
    let lacks_broker = requires_broker && relay.is_broker_up() == Some(false);
    check(relay, ready && !lacks_broker, detail)
}

/// Whether it has started. A relay that waits for a database or a broker has: a restart would not help.
pub(crate) fn startup(relay: &RelayMonitor) -> HealthCheck {
    match relay.phase() {
        RelayPhase::Starting => check(relay, false, "starting".to_owned()),
        RelayPhase::WaitingFor(_, reason) => check(relay, true, reason),
        RelayPhase::Running | RelayPhase::Stopped => check(relay, true, "started".to_owned()),
    }
}

/// Its database, schema and broker.
pub(crate) fn dependencies(relay: &RelayMonitor, requires_broker: bool) -> [DependencyCheck; 3] {
    [database(relay), schema(relay), broker(relay, requires_broker)]
}

fn database(relay: &RelayMonitor) -> DependencyCheck {
    let (ok, detail) = match (relay.phase(), relay.status()) {
        (RelayPhase::WaitingFor(Dependency::Database, reason), _) => (false, reason),
        (RelayPhase::Stopped, _) => (false, "the relay has stopped".to_owned()),
        (RelayPhase::Running, Some(status)) if status.is_database_down() => (false, "unreachable, retrying".to_owned()),
        (RelayPhase::Running, Some(status)) if status.is_started() => {
            (true, format!("reachable, {} shards are leased", status.leases()))
        }
        _ => (false, "not tried yet".to_owned()),
    };
    dependency(relay, "database", ok, true, detail)
}

/// A schema that this version does not know ends the process with an error.
fn schema(relay: &RelayMonitor) -> DependencyCheck {
    let known = relay.status().is_some();
    let detail = if known { "this version knows it, and it has the destination" } else { "not checked yet" };
    dependency(relay, "schema", known, true, detail.to_owned())
}

/// Before a relay runs it needs its broker. After that it waits during an outage, unless the configuration says otherwise.
fn broker(relay: &RelayMonitor, requires_broker: bool) -> DependencyCheck {
    let required = requires_broker || relay.phase() != RelayPhase::Running;
    let (ok, detail) = match (relay.phase(), relay.is_broker_up()) {
        (RelayPhase::WaitingFor(Dependency::Broker, reason), _) => (false, reason),
        (_, Some(true)) => (true, "reachable at the last attempt".to_owned()),
        (_, Some(false)) => {
            let seconds = relay.broker_down_for().unwrap_or_default().as_secs();
            (false, format!("unreachable for {seconds} s, retrying"))
        }
        (_, None) => (false, "not tried yet".to_owned()),
    };
    dependency(relay, "broker", ok, required, detail)
}

fn check(relay: &RelayMonitor, ok: bool, detail: String) -> HealthCheck {
    HealthCheck::relay(&relay.labels().outbox, &relay.labels().destination, ok, detail)
}

fn dependency(relay: &RelayMonitor, name: &'static str, ok: bool, required: bool, detail: String) -> DependencyCheck {
    let (outbox, destination) = (relay.labels().outbox.clone(), relay.labels().destination.clone());
    DependencyCheck { outbox, destination, name, ok, required, detail }
}
