//! Pauses of calls to a busy store.

use std::collections::BTreeMap;
use std::time::Duration;

use relevo_core::retry::{ExponentialBackoff, Jitter};
use tokio::time::Instant;

use crate::config::Config;

/// A kind of store call. Each kind waits on its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum CallKind {
    Lease,
    Read,
    Settle,
    ReadParked,
    SettleParked,
}

/// The calls that the store was too busy for, and when each is repeated.
#[derive(Debug)]
pub(crate) struct BusyCalls {
    min: Duration,
    max: Duration,
    /// A lease is renewed at least this often.
    lease_max: Duration,
    pauses: BTreeMap<CallKind, Pause>,
}

#[derive(Debug)]
struct Pause {
    since: Instant,
    until: Instant,
    backoff: ExponentialBackoff,
}

impl BusyCalls {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            min: config.advanced.outage_backoff_min,
            max: config.outage_backoff_max,
            lease_max: config.advanced.lease_renew_interval,
            pauses: BTreeMap::new(),
        }
    }

    /// Pauses a kind of call and returns for how long: its own backoff, or longer if the store requested it.
    pub(crate) fn pause(&mut self, kind: CallKind, retry_after: Option<Duration>, now: Instant) -> Duration {
        let new = || Pause { since: now, until: now, backoff: ExponentialBackoff::new(self.min, self.max) };
        let calls = self.pauses.entry(kind).or_insert_with(new);
        let mut pause = calls.backoff.next(Jitter::NONE);
        if kind == CallKind::Lease {
            pause = pause.min(self.lease_max);
        }
        let pause = pause.max(retry_after.unwrap_or_default());
        calls.until = now + pause;
        pause
    }

    /// Ends the pauses of a kind of call, after a success.
    pub(crate) fn succeeded(&mut self, kind: CallKind) {
        self.pauses.remove(&kind);
    }

    pub(crate) fn is_paused(&self, kind: CallKind, now: Instant) -> bool {
        self.until(kind).is_some_and(|until| now < until)
    }

    /// How long no call of this kind has succeeded.
    pub(crate) fn busy_for(&self, kind: CallKind, now: Instant) -> Duration {
        self.pauses.get(&kind).map_or(Duration::ZERO, |pause| now - pause.since)
    }

    /// The end of the last pause of this kind, if no call has succeeded since.
    pub(crate) fn until(&self, kind: CallKind) -> Option<Instant> {
        self.pauses.get(&kind).map(|pause| pause.until)
    }

    /// When the next pause ends.
    pub(crate) fn next_end(&self, now: Instant) -> Option<Instant> {
        self.pauses.values().map(|pause| pause.until).filter(|until| now < *until).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_kind_of_call_waits_on_its_own_and_as_long_as_the_store_requests() {
        let now = Instant::now();
        let mut busy = BusyCalls::new(&Config::default());
        let (min, requested) = (Config::default().advanced.outage_backoff_min, Duration::from_mins(1));
        assert_eq!(busy.pause(CallKind::Settle, None, now), min);
        assert_eq!(busy.pause(CallKind::Settle, None, now), min * 2);
        assert_eq!(busy.pause(CallKind::Read, Some(requested), now), requested);
        assert!(busy.is_paused(CallKind::Settle, now) && !busy.is_paused(CallKind::Lease, now));
        assert_eq!(busy.next_end(now), Some(now + min * 2));
        busy.succeeded(CallKind::Settle);
        assert_eq!(busy.pause(CallKind::Settle, None, now), min, "the backoff begins again");
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_is_requested_again_before_it_expires() {
        let mut busy = BusyCalls::new(&Config::default());
        let pauses: Vec<_> = (0..9).map(|_| busy.pause(CallKind::Lease, None, Instant::now())).collect();
        assert_eq!(pauses.last(), Some(&Config::default().advanced.lease_renew_interval));
    }
}
