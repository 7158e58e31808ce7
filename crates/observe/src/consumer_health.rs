//! The health of a consumer's member, in words.

use relevo_admin::HealthCheck;
use relevo_inbox::{ConsumerStatus, RunState};

/// Number of consecutive failures to read the lag before the broker counts as unreachable. One call may fail by chance.
const LAG_FAILURES_MAX: u64 = 2;

/// Whether it runs, or was stopped as requested.
pub(crate) fn liveness(status: &ConsumerStatus) -> HealthCheck {
    let (ok, detail) = match status.run_state() {
        RunState::Failed => (false, "it stopped unexpectedly and receives no messages"),
        RunState::New => (true, "not started"),
        RunState::Running => (true, "running"),
        RunState::Stopped => (true, "stopped"),
    };
    HealthCheck::consumer(status.consumer(), ok, detail.to_owned())
}

/// Whether it does its work. An unreachable broker, an open breaker and a waiting key are reported, but do not make it
/// unready: it waits for them, and a restart would not help.
pub(crate) fn readiness(status: &ConsumerStatus) -> HealthCheck {
    let (ok, detail) = match status.run_state() {
        RunState::New => (false, "not started".to_owned()),
        RunState::Stopped | RunState::Failed => (false, "not running".to_owned()),
        RunState::Running if status.is_alive() => (true, dependencies(status)),
        RunState::Running => (false, heartbeat(status)),
    };
    HealthCheck::consumer(status.consumer(), ok, detail)
}

fn heartbeat(status: &ConsumerStatus) -> String {
    let age = status.heartbeat_age().as_secs();
    match status.heartbeats() {
        0 => format!("the database has accepted no heartbeat for {age} s"),
        _ => format!("the database accepted the last heartbeat {age} s ago"),
    }
}

fn dependencies(status: &ConsumerStatus) -> String {
    if status.receive_failures() > 0 || status.lag_failures() >= LAG_FAILURES_MAX {
        return "running, the broker is unreachable".to_owned();
    }
    let open = status.open_breakers();
    match open.first() {
        None => "running".to_owned(),
        Some((lane, why)) => format!("running, open breakers: {}; lane {lane}: {why}", open.len()),
    }
}
