//! Circuit breakers: after a handler reports an outage, its lane pauses and single messages probe the service.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use relevo_core::{Jitter, Lane, Policy};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::stats::Stats;

/// Whether messages of a lane may be handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gate {
    /// All messages may be handled.
    Flow,
    /// One message may be handled, to check whether the service is reachable again.
    Probe,
    /// No message may be handled before this time.
    Shut(Instant),
}

/// State of a lane's breaker while it is open, probed or overridden.
#[derive(Debug, Default)]
struct Breaker {
    /// Why it is open; `None` if it is closed.
    why: Option<String>,
    /// When it is probed next.
    until: Option<Instant>,
    /// A message is probing now.
    probing: bool,
    /// Consecutive outages.
    failures: u32,
    /// Operator override: `true` keeps it open, `false` keeps it closed.
    forced: Option<bool>,
}

/// The breakers of all lanes; the live path and the retry table share them.
#[derive(Debug)]
pub(crate) struct Breakers {
    policy: Policy,
    lanes: Mutex<BTreeMap<Lane, Breaker>>,
    /// The statistics that report open breakers.
    stats: Arc<Stats>,
    /// Wakes the consumer loop after a change.
    pub(crate) changed: Notify,
}

/// Pause of a lane whose breaker an operator opened. Only an operator ends it, so the value only bounds the next check.
const FOR_AS_LONG_AS_ORDERED: Duration = Duration::from_hours(24);

impl Breakers {
    pub(crate) fn new(policy: Policy, stats: Arc<Stats>) -> Self {
        Self { policy, lanes: Mutex::default(), stats, changed: Notify::new() }
    }

    /// Whether messages of this lane may be handled.
    pub(crate) fn gate(&self, lane: &Lane, now: Instant) -> Gate {
        let lanes = self.lock();
        let Some(breaker) = lanes.get(lane) else { return Gate::Flow };
        match (breaker.forced, breaker.until) {
            (Some(false), _) | (None, None) => Gate::Flow,
            (Some(true), _) => Gate::Shut(now + FOR_AS_LONG_AS_ORDERED),
            (None, Some(until)) if now < until => Gate::Shut(until),
            // The probe ends by its timeout; check again later.
            (None, Some(_)) if breaker.probing => Gate::Shut(now + self.policy.base),
            (None, Some(_)) => Gate::Probe,
        }
    }

    /// Claims the probe after [`gate`](Self::gate) allowed one. Returns `false` if another worker was faster.
    pub(crate) fn begin_probe(&self, lane: &Lane) -> bool {
        self.lock().get_mut(lane).is_some_and(|breaker| !std::mem::replace(&mut breaker.probing, true))
    }

    /// Records an outage and returns how long to wait.
    pub(crate) fn failed(&self, lane: &Lane, why: &str, now: Instant, jitter: Jitter) -> Duration {
        let mut lanes = self.lock();
        let breaker = lanes.entry(lane.clone()).or_default();
        breaker.why = Some(why.to_owned());
        // Messages that were already running when it opened add no information.
        let news = std::mem::take(&mut breaker.probing) || breaker.until.is_none();
        if news {
            breaker.failures = breaker.failures.saturating_add(1);
            breaker.until = Some(now + self.policy.pause(breaker.failures, jitter));
        }
        let pause = match breaker.forced {
            Some(_) => self.policy.base,
            None => breaker.until.map_or(self.policy.base, |until| until.duration_since(now)),
        };
        self.stats.breakers_are(open(&lanes));
        drop(lanes);
        self.changed.notify_one();
        pause
    }

    /// Records that a handler reached the services it needs.
    pub(crate) fn passed(&self, lane: &Lane) {
        let mut lanes = self.lock();
        let Some(breaker) = lanes.get_mut(lane) else { return };
        if breaker.until.is_some() {
            let forced = breaker.forced;
            *breaker = Breaker { forced, ..Breaker::default() };
            self.stats.breakers_are(open(&lanes));
            self.changed.notify_one();
        }
        lanes.retain(|_, breaker| breaker.until.is_some() || breaker.forced.is_some());
    }

    /// Releases a probe that ended without an attempt.
    pub(crate) fn undecided(&self, lane: &Lane) {
        if let Some(breaker) = self.lock().get_mut(lane)
            && std::mem::take(&mut breaker.probing)
        {
            self.changed.notify_one();
        }
    }

    /// Applies the operator overrides. Lanes without one are automatic again.
    pub(crate) fn force(&self, orders: &[(Lane, bool)]) {
        let mut lanes = self.lock();
        for breaker in lanes.values_mut() {
            breaker.forced = None;
        }
        for (lane, is_open) in orders {
            lanes.entry(lane.clone()).or_default().forced = Some(*is_open);
        }
        lanes.retain(|_, breaker| breaker.until.is_some() || breaker.forced.is_some());
        self.stats.breakers_are(open(&lanes));
        drop(lanes);
        self.changed.notify_one();
    }

    /// Lanes whose breaker is open, each with the reason.
    pub(crate) fn open(&self) -> Vec<(Lane, String)> {
        open(&self.lock())
    }

    /// When the next lane may be probed.
    pub(crate) fn wakes_at(&self, now: Instant) -> Option<Instant> {
        let lanes = self.lock();
        let waiting = lanes.values().filter(|breaker| breaker.forced.is_none());
        waiting.filter_map(|breaker| breaker.until).filter(|until| *until > now).min()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Lane, Breaker>> {
        // No code panics while it holds this lock.
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn open(lanes: &BTreeMap<Lane, Breaker>) -> Vec<(Lane, String)> {
    let told = |(lane, breaker): (&Lane, &Breaker)| match (breaker.forced, &breaker.why) {
        (Some(false), _) | (None, None) => None,
        (Some(true), _) => Some((lane.clone(), "a person opened it".to_owned())),
        (None, Some(why)) => Some((lane.clone(), why.clone())),
    };
    lanes.iter().filter_map(told).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use relevo_core::retry::Backoff;

    fn breakers() -> Breakers {
        let policy = Policy {
            base: Duration::from_secs(1),
            backoff: Backoff::Exponential { factor: 2 },
            ceiling: Duration::from_secs(3),
            jitter_percent: 0,
            attempts_max: u32::MAX,
        };
        Breakers::new(policy, Arc::default())
    }

    #[test]
    fn pauses_grow_from_probe_to_probe_and_a_passed_one_closes() {
        let (breakers, lane, mut now) = (breakers(), Lane::new("a"), Instant::now());
        for pause in [1, 2, 3, 3].map(Duration::from_secs) {
            assert_eq!(breakers.failed(&lane, "no route", now, Jitter::NONE), pause);
            assert_eq!(breakers.gate(&lane, now), Gate::Shut(now + pause));
            now += pause;
            assert_eq!(breakers.gate(&lane, now), Gate::Probe);
            assert!(breakers.begin_probe(&lane) && !breakers.begin_probe(&lane));
        }
        assert_eq!(breakers.open(), [(lane.clone(), "no route".to_owned())]);
        assert_eq!((breakers.stats.open_breakers(), breakers.stats.breakers_open()), (breakers.open(), 1));
        breakers.passed(&lane);
        assert_eq!((breakers.stats.open_breakers(), breakers.stats.breakers_open()), (Vec::new(), 0));
        assert_eq!((breakers.gate(&lane, now), breakers.open()), (Gate::Flow, Vec::new()));
        assert_eq!(breakers.failed(&lane, "again", now, Jitter::NONE), Duration::from_secs(1));
    }

    #[test]
    fn those_under_way_when_it_opened_do_not_make_the_pause_longer() {
        let (breakers, lane, now) = (breakers(), Lane::new("a"), Instant::now());
        breakers.failed(&lane, "x", now, Jitter::NONE);
        breakers.failed(&lane, "x", now, Jitter::NONE);
        assert_eq!(breakers.gate(&lane, now), Gate::Shut(now + Duration::from_secs(1)));
    }

    #[test]
    fn other_lanes_flow() {
        let (breakers, now) = (breakers(), Instant::now());
        breakers.failed(&Lane::new("a"), "x", now, Jitter::NONE);
        assert_eq!(breakers.gate(&Lane::new("b"), now), Gate::Flow);
    }

    #[test]
    fn a_probe_that_did_not_try_leaves_the_right_to_the_next() {
        let (breakers, lane, now) = (breakers(), Lane::new("a"), Instant::now());
        let then = now + breakers.failed(&lane, "x", now, Jitter::NONE);
        assert!(breakers.begin_probe(&lane));
        assert!(matches!(breakers.gate(&lane, then), Gate::Shut(_)));
        breakers.undecided(&lane);
        assert_eq!(breakers.gate(&lane, then), Gate::Probe);
    }

    #[test]
    fn people_open_and_close_by_force() {
        let (breakers, lane, now) = (breakers(), Lane::new("a"), Instant::now());
        breakers.force(&[(lane.clone(), true)]);
        assert!(matches!(breakers.gate(&lane, now), Gate::Shut(_)));
        assert_eq!(breakers.open().len(), 1);
        breakers.failed(&lane, "x", now, Jitter::NONE);
        breakers.force(&[(lane.clone(), false)]);
        assert_eq!((breakers.gate(&lane, now), breakers.open().len()), (Gate::Flow, 0));
        breakers.force(&[]);
        assert!(matches!(breakers.gate(&lane, now), Gate::Shut(_)), "it decides by itself again");
    }
}
