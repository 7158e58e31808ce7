//! Circuit breakers: after a handler reports an outage, its lane pauses and single messages probe the service.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use relevo_core::{Jitter, Lane, RetryPolicy};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::status::ConsumerStatus;

/// Whether messages of a lane may be handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BreakerState {
    /// All messages may be handled.
    Closed,
    /// One message may be handled, to check whether the service is reachable again.
    HalfOpen,
    /// No message may be handled before this time.
    OpenUntil(Instant),
}

/// State of a lane's breaker while it is open, probed or overridden.
#[derive(Debug, Default)]
struct Breaker {
    /// Why it is open; `None` if it is closed.
    reason: Option<String>,
    /// When it is probed next.
    probe_at: Option<Instant>,
    /// A message is probing now.
    probing: bool,
    /// Consecutive outages.
    failures: u32,
    /// Operator override: `true` keeps it open, `false` keeps it closed.
    operator_override: Option<bool>,
}

/// The breakers of all lanes; live messages and retry queues share them.
#[derive(Debug)]
pub(crate) struct Breakers {
    policy: RetryPolicy,
    lanes: Mutex<BTreeMap<Lane, Breaker>>,
    /// The statistics that report open breakers.
    status: Arc<ConsumerStatus>,
    /// Wakes the consumer loop after a change.
    pub(crate) changed: Notify,
}

/// Pause of a lane whose breaker an operator opened. Only an operator ends it, so the value only bounds the next check.
const OVERRIDE_OPEN_FOR: Duration = Duration::from_hours(24);

impl Breakers {
    pub(crate) fn new(policy: RetryPolicy, status: Arc<ConsumerStatus>) -> Self {
        Self { policy, lanes: Mutex::default(), status, changed: Notify::new() }
    }

    /// Whether messages of this lane may be handled.
    pub(crate) fn state(&self, lane: &Lane, now: Instant) -> BreakerState {
        let lanes = self.lanes.lock();
        let Some(breaker) = lanes.get(lane) else { return BreakerState::Closed };
        match (breaker.operator_override, breaker.probe_at) {
            (Some(false), _) | (None, None) => BreakerState::Closed,
            (Some(true), _) => BreakerState::OpenUntil(now + OVERRIDE_OPEN_FOR),
            (None, Some(until)) if now < until => BreakerState::OpenUntil(until),
            // The probe ends by its timeout; check again later.
            (None, Some(_)) if breaker.probing => BreakerState::OpenUntil(now + self.policy.base),
            (None, Some(_)) => BreakerState::HalfOpen,
        }
    }

    /// Claims the probe after [`state`](Self::state) allowed one. Returns `false` if another worker was faster.
    pub(crate) fn begin_probe(&self, lane: &Lane) -> bool {
        self.lanes.lock().get_mut(lane).is_some_and(|breaker| !std::mem::replace(&mut breaker.probing, true))
    }

    /// Records an outage and returns how long to wait.
    pub(crate) fn record_outage(&self, lane: &Lane, reason: &str, now: Instant, jitter: Jitter) -> Duration {
        let mut lanes = self.lanes.lock();
        let breaker = lanes.entry(lane.clone()).or_default();
        breaker.reason = Some(reason.to_owned());
        // Messages that were already running when it opened add no information.
        let is_first = std::mem::take(&mut breaker.probing) || breaker.probe_at.is_none();
        if is_first {
            breaker.failures = breaker.failures.saturating_add(1);
            breaker.probe_at = Some(now + self.policy.delay(breaker.failures, jitter));
        }
        let pause = match breaker.operator_override {
            Some(_) => self.policy.base,
            None => breaker.probe_at.map_or(self.policy.base, |until| until.duration_since(now)),
        };
        self.status.set_open_breakers(open_lanes(&lanes));
        drop(lanes);
        self.changed.notify_one();
        pause
    }

    /// Records that a handler reached the services it needs.
    pub(crate) fn record_success(&self, lane: &Lane) {
        let mut lanes = self.lanes.lock();
        let Some(breaker) = lanes.get_mut(lane) else { return };
        if breaker.probe_at.is_some() {
            let operator_override = breaker.operator_override;
            *breaker = Breaker { operator_override, ..Breaker::default() };
            self.status.set_open_breakers(open_lanes(&lanes));
            self.changed.notify_one();
        }
        lanes.retain(|_, breaker| breaker.probe_at.is_some() || breaker.operator_override.is_some());
    }

    /// Releases a probe that ended without an attempt.
    pub(crate) fn release_probe(&self, lane: &Lane) {
        if let Some(breaker) = self.lanes.lock().get_mut(lane)
            && std::mem::take(&mut breaker.probing)
        {
            self.changed.notify_one();
        }
    }

    /// Applies the operator overrides. Lanes without one are automatic again.
    pub(crate) fn set_overrides(&self, overrides: &[(Lane, bool)]) {
        let mut lanes = self.lanes.lock();
        for breaker in lanes.values_mut() {
            breaker.operator_override = None;
        }
        for (lane, is_open) in overrides {
            lanes.entry(lane.clone()).or_default().operator_override = Some(*is_open);
        }
        lanes.retain(|_, breaker| breaker.probe_at.is_some() || breaker.operator_override.is_some());
        self.status.set_open_breakers(open_lanes(&lanes));
        drop(lanes);
        self.changed.notify_one();
    }

    /// Lanes whose breaker is open, each with the reason.
    pub(crate) fn open_lanes(&self) -> Vec<(Lane, String)> {
        open_lanes(&self.lanes.lock())
    }

    /// When the next lane may be probed.
    pub(crate) fn wakes_at(&self, now: Instant) -> Option<Instant> {
        let lanes = self.lanes.lock();
        let waiting = lanes.values().filter(|breaker| breaker.operator_override.is_none());
        waiting.filter_map(|breaker| breaker.probe_at).filter(|until| *until > now).min()
    }
}

fn open_lanes(lanes: &BTreeMap<Lane, Breaker>) -> Vec<(Lane, String)> {
    let open = |(lane, breaker): (&Lane, &Breaker)| match (breaker.operator_override, &breaker.reason) {
        (Some(false), _) | (None, None) => None,
        (Some(true), _) => Some((lane.clone(), "an operator opened it".to_owned())),
        (None, Some(reason)) => Some((lane.clone(), reason.clone())),
    };
    lanes.iter().filter_map(open).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use relevo_core::retry::Backoff;

    fn breakers() -> Breakers {
        let policy = RetryPolicy {
            base: Duration::from_secs(1),
            backoff: Backoff::Exponential { factor: 2 },
            max: Duration::from_secs(3),
            jitter_percent: 0,
            attempts_max: u32::MAX,
        };
        Breakers::new(policy, Arc::default())
    }

    #[test]
    fn failed_probes_lengthen_the_pause_and_a_successful_one_closes() {
        let (breakers, lane, mut now) = (breakers(), Lane::new("a"), Instant::now());
        for pause in [1, 2, 3, 3].map(Duration::from_secs) {
            assert_eq!(breakers.record_outage(&lane, "no route", now, Jitter::NONE), pause);
            assert_eq!(breakers.state(&lane, now), BreakerState::OpenUntil(now + pause));
            now += pause;
            assert_eq!(breakers.state(&lane, now), BreakerState::HalfOpen);
            assert!(breakers.begin_probe(&lane) && !breakers.begin_probe(&lane));
        }
        assert_eq!(breakers.open_lanes(), [(lane.clone(), "no route".to_owned())]);
        assert_eq!((breakers.status.open_breakers(), breakers.status.breakers_open()), (breakers.open_lanes(), 1));
        breakers.record_success(&lane);
        assert_eq!((breakers.status.open_breakers(), breakers.status.breakers_open()), (Vec::new(), 0));
        assert_eq!((breakers.state(&lane, now), breakers.open_lanes()), (BreakerState::Closed, Vec::new()));
        assert_eq!(breakers.record_outage(&lane, "again", now, Jitter::NONE), Duration::from_secs(1));
    }

    #[test]
    fn an_outage_reported_while_open_does_not_lengthen_the_pause() {
        let (breakers, lane, now) = (breakers(), Lane::new("a"), Instant::now());
        breakers.record_outage(&lane, "x", now, Jitter::NONE);
        breakers.record_outage(&lane, "x", now, Jitter::NONE);
        assert_eq!(breakers.state(&lane, now), BreakerState::OpenUntil(now + Duration::from_secs(1)));
    }

    #[test]
    fn an_open_breaker_does_not_pause_other_lanes() {
        let (breakers, now) = (breakers(), Instant::now());
        breakers.record_outage(&Lane::new("a"), "x", now, Jitter::NONE);
        assert_eq!(breakers.state(&Lane::new("b"), now), BreakerState::Closed);
    }

    #[test]
    fn a_released_probe_is_available_to_the_next_message() {
        let (breakers, lane, now) = (breakers(), Lane::new("a"), Instant::now());
        let then = now + breakers.record_outage(&lane, "x", now, Jitter::NONE);
        assert!(breakers.begin_probe(&lane));
        assert!(matches!(breakers.state(&lane, then), BreakerState::OpenUntil(_)));
        breakers.release_probe(&lane);
        assert_eq!(breakers.state(&lane, then), BreakerState::HalfOpen);
    }

    #[test]
    fn operators_override_breakers() {
        let (breakers, lane, now) = (breakers(), Lane::new("a"), Instant::now());
        breakers.set_overrides(&[(lane.clone(), true)]);
        assert!(matches!(breakers.state(&lane, now), BreakerState::OpenUntil(_)));
        assert_eq!(breakers.open_lanes().len(), 1);
        breakers.record_outage(&lane, "x", now, Jitter::NONE);
        breakers.set_overrides(&[(lane.clone(), false)]);
        assert_eq!((breakers.state(&lane, now), breakers.open_lanes().len()), (BreakerState::Closed, 0));
        breakers.set_overrides(&[]);
        assert!(matches!(breakers.state(&lane, now), BreakerState::OpenUntil(_)), "it is automatic again");
    }
}
