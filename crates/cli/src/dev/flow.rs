//! The state of the demo for the screen and the page: counts, latencies and events.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use relevo_core::MessageId;
use serde_json::{Value, json};
use tokio::time::Instant;

/// The number of seconds in the chart of the page.
const RATES: usize = 120;
/// The number of events on the page.
const EVENTS: usize = 60;
/// The maximum number of messages whose commit time is remembered for their latency.
const UNDER_WAY_MAX: usize = 100_000;

/// What happened to a key with a rejected message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// Its message was rejected and is retried.
    Parked,
    /// Its message was dead-lettered, and the key waits for an operator.
    Dead,
    /// The key continues.
    Over,
}

/// The numbers of waiting messages, as the outbox and the broker last reported them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Waiting {
    pub(crate) pending: i64,
    pub(crate) parked: i64,
    pub(crate) dead: i64,
    pub(crate) lag: i64,
}

/// The median and the 99th percentile of some latencies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Latency {
    pub(crate) p50: Duration,
    pub(crate) p99: Duration,
}

/// The counts of this run. `committed` and `applied` include earlier runs in the data directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) committed: u64,
    pub(crate) rolled_back: u64,
    pub(crate) applied: u64,
    pub(crate) repeats: u64,
}

/// One second of the demo.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Second {
    pub(crate) rate: f64,
    pub(crate) latency: Latency,
    pub(crate) waiting: Waiting,
    pub(crate) counts: Counts,
    pub(crate) parked_keys: usize,
}

/// Everything that the parts of the demo report.
#[derive(Debug)]
pub(crate) struct Flow {
    started: Instant,
    /// The command that inspects the outbox from another terminal.
    ask: String,
    told: Mutex<Told>,
}

#[derive(Debug)]
struct Told {
    counts: Counts,
    /// Effects of earlier runs.
    before: u64,
    waiting: Waiting,
    changes: BTreeMap<u32, u64>,
    under_way: HashMap<MessageId, Instant>,
    /// Latencies from commit to effect since the last sample.
    fresh: Vec<Duration>,
    latency: Latency,
    looked: Instant,
    looked_at: u64,
    rates: VecDeque<f64>,
    events: VecDeque<(f64, String)>,
    /// Events that the screen has not shown yet.
    unshown: Vec<String>,
    troubles: BTreeMap<String, Trouble>,
}

impl Flow {
    pub(crate) fn new(ask: String, changes: BTreeMap<u32, u64>, applied: u64) -> Self {
        let started = Instant::now();
        let committed = changes.values().sum();
        let told = Told {
            counts: Counts { committed, applied, ..Counts::default() },
            before: applied,
            waiting: Waiting::default(),
            changes,
            under_way: HashMap::new(),
            fresh: Vec::new(),
            latency: Latency::default(),
            looked: started,
            looked_at: applied,
            rates: VecDeque::new(),
            events: VecDeque::new(),
            unshown: Vec::new(),
            troubles: BTreeMap::new(),
        };
        Self { started, ask, told: Mutex::new(told) }
    }

    /// A transaction is about to commit. Call it before the commit: the effect may happen before the commit returns.
    pub(crate) fn commits(&self, id: MessageId) {
        let mut told = self.told();
        if told.under_way.len() < UNDER_WAY_MAX {
            told.under_way.insert(id, Instant::now());
        }
    }

    /// A transaction has committed. `changes` is the number of changes of the order so far.
    pub(crate) fn committed(&self, order: u32, changes: u64) {
        let mut told = self.told();
        told.counts.committed += 1;
        told.changes.insert(order, changes);
    }

    /// A transaction has rolled back.
    pub(crate) fn rolled_back(&self) {
        self.told().counts.rolled_back += 1;
    }

    /// An effect is about to commit.
    pub(crate) fn arrived(&self, id: MessageId) {
        let mut told = self.told();
        if let Some(committed) = told.under_way.remove(&id) {
            told.fresh.push(committed.elapsed());
        }
    }

    /// Sets the number of effects in this run, and of repeats that the inbox recognised.
    pub(crate) fn handled(&self, effects: u64, repeats: u64) {
        let mut told = self.told();
        told.counts.applied = told.before + effects;
        told.counts.repeats = repeats;
    }

    /// A message of a key was rejected, or the key continues.
    pub(crate) fn trouble(&self, key: &str, trouble: Trouble) {
        match trouble {
            Trouble::Parked => self.event(format!("{key}: rejected, parked and retried; all other keys continue")),
            Trouble::Dead => self.event(format!("{key}: rejected and dead-lettered; the key waits for an operator")),
            Trouble::Over => self.event(format!("{key}: continues in order")),
        }
        let mut told = self.told();
        match trouble {
            Trouble::Over => told.troubles.remove(key),
            Trouble::Parked | Trouble::Dead => told.troubles.insert(key.to_owned(), trouble),
        };
    }

    /// Adds an event that the screen and the page show.
    pub(crate) fn event(&self, text: String) {
        let mut told = self.told();
        if told.events.len() == EVENTS {
            told.events.pop_back();
        }
        told.events.push_front((self.started.elapsed().as_secs_f64(), text.clone()));
        told.unshown.push(text);
    }

    /// Sets the numbers of waiting messages.
    pub(crate) fn waits(&self, waiting: Waiting) {
        self.told().waiting = waiting;
    }

    /// The counts so far.
    pub(crate) fn counts(&self) -> Counts {
        self.told().counts
    }

    /// The time since the start.
    pub(crate) fn runs_for(&self) -> Duration {
        self.started.elapsed()
    }

    /// Events since the last call.
    pub(crate) fn unshown(&self) -> Vec<String> {
        std::mem::take(&mut self.told().unshown)
    }

    /// The rate and the latency since the last call. It is called about once a second.
    pub(crate) fn look(&self) -> Second {
        let mut told = self.told();
        let elapsed = told.looked.elapsed().as_secs_f64().max(f64::EPSILON);
        let applied = u32::try_from(told.counts.applied - told.looked_at).unwrap_or(u32::MAX);
        let rate = f64::from(applied) / elapsed;
        told.looked = Instant::now();
        told.looked_at = told.counts.applied;
        if told.rates.len() == RATES {
            told.rates.pop_front();
        }
        told.rates.push_back(rate);
        let mut fresh = std::mem::take(&mut told.fresh);
        if !fresh.is_empty() {
            told.latency = Latency::of(&mut fresh);
        }
        let parked_keys = told.troubles.values().filter(|trouble| **trouble == Trouble::Parked).count();
        Second { rate, latency: told.latency, waiting: told.waiting, counts: told.counts, parked_keys }
    }

    /// The state that the page shows, as JSON.
    pub(crate) fn page(&self) -> Value {
        let told = self.told();
        let orders: Vec<_> = told
            .changes
            .iter()
            .map(|(number, changes)| {
                let state = match told.troubles.get(&super::shop::key(*number)) {
                    Some(Trouble::Parked) => "waits",
                    Some(Trouble::Dead) => "dead",
                    Some(Trouble::Over) | None => "",
                };
                json!({ "number": number, "changes": changes, "state": state })
            })
            .collect();
        let events: Vec<_> =
            told.events.iter().map(|(seconds, text)| json!({ "seconds": seconds, "text": text })).collect();
        let Counts { committed, rolled_back, applied, repeats } = told.counts;
        let Waiting { pending, parked, dead, lag } = told.waiting;
        // A published message was applied, or it waits at the broker.
        let published = i64::try_from(applied).unwrap_or(i64::MAX).saturating_add(lag);
        json!({
            "seconds": self.started.elapsed().as_secs_f64(), "ask": self.ask,
            "committed": committed, "rolled_back": rolled_back, "applied": applied, "repeats": repeats,
            "pending": pending, "parked": parked, "dead": dead, "lag": lag, "published": published,
            "p50_ms": told.latency.p50.as_secs_f64() * 1000.0, "p99_ms": told.latency.p99.as_secs_f64() * 1000.0,
            "rates": told.rates, "orders": orders, "events": events,
        })
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        // No code panics while the lock is held.
        self.told.lock()
    }
}

impl Latency {
    fn of(latencies: &mut [Duration]) -> Self {
        latencies.sort_unstable();
        let at = |percent: usize| {
            let rank = (latencies.len() * percent).div_ceil(100);
            latencies.get(rank.saturating_sub(1)).copied().unwrap_or_default()
        };
        Self { p50: at(50), p99: at(99) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_nearest_rank() {
        let mut latencies: Vec<_> = (1..=200).rev().map(Duration::from_millis).collect();
        let expected = Latency { p50: Duration::from_millis(100), p99: Duration::from_millis(198) };
        assert_eq!(Latency::of(&mut latencies), expected);
        assert_eq!(Latency::of(&mut []), Latency::default());
    }

    #[tokio::test]
    async fn a_run_continues_the_counts_of_the_last_run() {
        let flow = Flow::new(String::new(), BTreeMap::from([(1, 5), (2, 7)]), 11);
        flow.committed(1, 6);
        flow.handled(1, 0);
        let counts = flow.counts();
        assert_eq!((counts.committed, counts.applied), (13, 12));
        assert!(flow.look().rate > 0.0);
    }

    #[tokio::test]
    async fn the_page_shows_parked_keys() {
        let flow = Flow::new(String::new(), BTreeMap::from([(1, 5), (2, 7)]), 0);
        flow.trouble("order-2", Trouble::Parked);
        assert_eq!(flow.page()["orders"][1]["state"], "waits");
        flow.trouble("order-2", Trouble::Over);
        assert_eq!(flow.page()["orders"][1]["state"], "");
        assert_eq!(flow.page()["events"].as_array().map(Vec::len), Some(2));
    }
}
