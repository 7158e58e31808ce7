//! The relay's calls to the store: leases, settlements, parked keys and maintenance.
//!
//! Only one call runs at a time. When a parked head is removed, each message that should wait behind it must be either
//! settled or in memory.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use relevo_core::Broker;
use relevo_core::slot::shard_of;
use relevo_core::store::{
    Advance, Advanced, Ask, Ceiling, Lease, Leased, Maintained, Run, Settled, Standing, Stop, Stopped, Store,
    StoreError,
};
use relevo_core::trace::Open;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};
use uuid::Uuid;

use crate::keys::{Item, Source};
use crate::pages::Covered;
use crate::relay::{Held, Pending, Relay, RelayError};
use crate::stats::add;

/// Kinds of maintenance warnings that are throttled separately. A destination has a few.
const WARNING_KINDS_MAX: usize = 256;

/// The runs whose results were sent to the store: the key, the address that it released, and the address that stopped
/// it.
type Told = Vec<(bytestring::ByteString, Option<Arc<str>>, Option<Arc<str>>)>;

/// The reply of a store call.
pub(crate) enum Done {
    Leased { asked_at: Instant, gave_back: Vec<Lease>, result: Result<(Leased, Vec<Standing>), StoreError> },
    Settled { covered: Covered, result: Result<Settled, StoreError> },
    Runs(Result<Vec<Run>, StoreError>),
    Advanced { told: Told, spans: Vec<Open>, result: Result<Vec<Advanced>, StoreError> },
    Maintained(Result<Maintained, StoreError>),
    Left,
}

impl<S: Store + ?Sized + 'static, B: Broker + ?Sized + 'static> Relay<S, B> {
    /// Starts the most urgent call, unless one is running.
    pub(crate) fn start_chore(&mut self, now: Instant) {
        if self.chore.is_some() || self.stopping {
            return;
        }
        self.chore = self.next_chore(now);
    }

    fn next_chore(&mut self, now: Instant) -> Option<Pending<Done>> {
        if now >= self.due_at.lease || self.can_give_back() {
            return Some(self.lease_chore(now));
        }
        if self.held.is_empty() {
            return None;
        }
        if let Some(chore) = self.advance_chore() {
            return Some(chore);
        }
        let room = 2 * self.pages.messages() < self.config.pages_max * self.config.page_messages;
        if (self.pages.is_front_done() && (now >= self.due_at.settle_front || !room))
            || (now >= self.due_at.settle && self.pages.len() > 0)
        {
            self.due_at.settle = now + self.config.settle_every;
            self.due_at.settle_front = now + self.config.settle_min;
            if let Some(chore) = self.settle_chore() {
                return Some(chore);
            }
        }
        if now >= self.due_at.runs && self.takes_runs(now) {
            self.due_at.runs = now + self.config.due_every;
            return Some(self.runs_chore());
        }
        if now >= self.due_at.maintain {
            self.due_at.maintain = now + self.config.maintain_every;
            let store = Arc::clone(&self.store);
            return Some(Box::pin(async move { Done::Maintained(store.maintain().await) }));
        }
        None
    }

    /// Parked keys are not read while the broker is down, or while too many runs are in flight.
    pub(crate) fn takes_runs(&self, now: Instant) -> bool {
        self.health.is_worth_trying(now) && 2 * self.runs.len() <= self.config.runs_max
    }

    fn can_give_back(&self) -> bool {
        self.held.values().any(|held| held.leaving && self.is_idle(held.lease.shard))
    }

    fn is_idle(&self, shard: u16) -> bool {
        // A page that is being read would be published after the shard was released.
        !self.pages.holds_shard(shard) && !self.runs.holds_shard(shard) && !self.reading_of.contains(&shard)
    }

    fn lease_chore(&mut self, now: Instant) -> Pending<Done> {
        let every = self.config.lease_every.min(self.config.lease / 3);
        self.due_at.lease = now + every;
        let gave_back: Vec<Lease> = self
            .held
            .values()
            .filter(|held| held.leaving && self.is_idle(held.lease.shard))
            .map(|held| held.lease)
            .collect();
        let ask = Ask {
            owner: self.owner,
            name: self.config.name.clone(),
            // Shorter by the renewal interval, which other relays need to notice, so that a dead relay is replaced
            // within the lease.
            lease: self.config.lease.saturating_sub(every),
            give_back: gave_back.clone(),
        };
        let known: BTreeSet<Lease> = self.held.values().map(|held| held.lease).collect();
        let store = Arc::clone(&self.store);
        Box::pin(async move {
            let result = async {
                let leased = store.lease(ask).await?;
                let new: Vec<Lease> = leased.leases.iter().filter(|lease| !known.contains(lease)).copied().collect();
                // Read the state after the lease was acquired, so that it includes everything a former owner settled.
                let standings = store.standing(&new).await?;
                Ok((leased, standings))
            };
            let result = result.await;
            Done::Leased { asked_at: now, gave_back, result }
        })
    }

    /// Settles whatever can be settled.
    pub(crate) fn settle_chore(&mut self) -> Option<Pending<Done>> {
        let covered = self.pages.settlement(&self.settled)?;
        let store = Arc::clone(&self.store);
        Some(Box::pin(async move {
            let result = store.settle(covered.settlement.clone()).await;
            Done::Settled { covered, result }
        }))
    }

    fn runs_chore(&self) -> Pending<Done> {
        let store = Arc::clone(&self.store);
        let leases: Vec<Lease> = self.held.values().filter(|held| !held.leaving).map(|held| held.lease).collect();
        // Keys in flight are still due and are returned first. Request enough keys to get others too.
        let (keys, messages) = (self.config.runs_max, self.config.run_messages);
        Box::pin(async move { Done::Runs(store.due(&leases, keys, messages).await) })
    }

    pub(crate) fn advance_chore(&mut self) -> Option<Pending<Done>> {
        if !self.runs.has_ended() {
            return None;
        }
        let advances: Vec<Advance> = self.runs.take_ended();
        let stopped_at =
            |advance: &Advance| held_address(advance.stopped.as_ref().map(|(_, stopped)| stopped)?).cloned();
        let told = advances
            .iter()
            .map(|advance| (advance.key.clone(), advance.released.clone(), stopped_at(advance)))
            .collect();
        let spans = self.runs.take_spans();
        let store = Arc::clone(&self.store);
        Some(Box::pin(async move { Done::Advanced { told, spans, result: store.advance(advances).await } }))
    }

    pub(crate) fn leave_chore(&self) -> Pending<Done> {
        leave(Arc::clone(&self.store), self.owner, Duration::ZERO)
    }

    /// After a pause, releases what the former owner may still hold. Leases are then acquired by a new owner.
    pub(crate) fn leave_later(&mut self, pause: Duration) -> Pending<Done> {
        let owner = self.owner;
        self.new_owner();
        leave(Arc::clone(&self.store), owner, pause)
    }

    pub(crate) fn chore_done(&mut self, done: Done) -> Result<(), RelayError> {
        match done {
            Done::Leased { asked_at, gave_back, result } => match result {
                Ok((leased, standings)) => self.leased(asked_at, &gave_back, leased, standings),
                Err(error) => return self.store_failed(error),
            },
            Done::Settled { covered, result } => match result {
                Ok(settled) => self.has_settled(&covered, &settled),
                Err(error) => return self.store_failed(error),
            },
            Done::Runs(Ok(runs)) => self.take_runs(runs),
            Done::Advanced { told, spans, result: Ok(answers) } => {
                if !answers.contains(&Advanced::Lost) {
                    spans.into_iter().for_each(Open::end);
                }
                self.has_advanced(&told, &answers);
            }
            Done::Maintained(Ok(maintained)) => self.has_maintained(&maintained.warnings),
            Done::Maintained(Err(error)) if error.is_passing() => {
                if let Some(times) = self.upkeep_failures.happened(Instant::now(), self.config.maintain_every) {
                    warn!(relay = %self.config.name, error = &error as &dyn std::error::Error, times, "maintenance failed, will retry");
                }
            }
            Done::Runs(Err(error)) | Done::Advanced { result: Err(error), .. } | Done::Maintained(Err(error)) => {
                return self.store_failed(error);
            }
            Done::Left => {}
        }
        Ok(())
    }

    fn leased(&mut self, asked_at: Instant, gave_back: &[Lease], leased: Leased, standings: Vec<Standing>) {
        self.database_is_back();
        self.watched.has_leased();
        add(&self.stats.lease_changes, gave_back.len() + standings.len());
        for lease in gave_back {
            self.held.remove(&lease.shard);
            self.settled.remove(&lease.shard);
        }
        let lost = self.held.values().filter(|held| !leased.leases.contains(&held.lease)).count();
        if lost > 0 {
            // These leases were resharded, or expired and taken, so nothing of them can be settled. Other messages in
            // flight are sent again.
            self.has_lost(lost);
            warn!(relay = %self.config.name, lost, "leases were lost");
            self.forget();
            return;
        }
        if leased.timeline_changed {
            warn!(relay = %self.config.name, "the database moved to another timeline: published messages may have no row");
        }
        self.valid_until = asked_at + leased.lasts.saturating_sub(self.config.lease_margin);
        self.ceiling = leased.ceiling;
        self.holds.learn(leased.holds);
        if leased.ceiling != Ceiling::Open {
            // Resharding waits for every relay. Check again soon, and let empty windows be settled.
            self.due_at.lease = self.due_at.lease.min(asked_at + self.config.due_every);
            self.due_at.settle = asked_at;
        }
        for standing in standings {
            let Some(lease) = leased.leases.iter().find(|lease| lease.shard == standing.shard) else { continue };
            for key in &standing.parked {
                self.parked.insert(key);
            }
            self.settled.insert(standing.shard, (*lease, standing.position));
            self.held.insert(standing.shard, Held { lease: *lease, cursor: standing.position, leaving: false });
            self.due_at.read = asked_at;
        }
        // Other relays hold all shards, so there is nothing to send here.
        self.has_looked |= self.held.is_empty();
        let excess = self.held.len().saturating_sub(leased.fair);
        let leaving = self.held.values().filter(|held| held.leaving).count();
        let more = excess.saturating_sub(leaving);
        if more > 0 {
            info!(relay = %self.config.name, shards = more, "giving shards to another relay");
        }
        for held in self.held.values_mut().rev().filter(|held| !held.leaving).take(more) {
            held.leaving = true;
        }
        if leaving > excess {
            for held in self.held.values_mut().filter(|held| held.leaving).take(leaving - excess) {
                held.leaving = false;
            }
        }
    }

    /// A warning usually repeats over many runs, with other numbers. Only repeats of the same kind are throttled.
    fn has_maintained(&mut self, warnings: &[String]) {
        for warning in warnings {
            let is_number = |word: &&str| word.trim_matches(|c: char| !c.is_alphanumeric()).parse::<u64>().is_ok();
            let kind = warning.split_whitespace().filter(|word| !is_number(word)).collect();
            if self.upkeep_warnings.len() >= WARNING_KINDS_MAX {
                self.upkeep_warnings.clear();
            }
            let throttle = self.upkeep_warnings.entry(kind).or_default();
            if let Some(times) = throttle.happened(Instant::now(), self.config.maintain_every) {
                warn!(relay = %self.config.name, warning, times, "maintenance warning");
            }
        }
    }

    fn has_lost(&self, leases: usize) {
        add(&self.stats.leases_lost, leases);
        add(&self.stats.lease_changes, leases);
    }

    fn has_settled(&mut self, covered: &Covered, settled: &Settled) {
        if !settled.lost.is_empty() {
            self.has_lost(settled.lost.len());
            warn!(relay = %self.config.name, shards = ?settled.lost, "a lease was lost, nothing of it was settled");
            self.forget();
            return;
        }
        if !settled.passed.is_empty() {
            // An operator freed the head. Reading again publishes the messages that waited behind it before later ones
            // of their key.
            info!(relay = %self.config.name, messages = settled.passed.len(), "a parked key was freed, reading again");
            self.forget();
            return;
        }
        add(&self.stats.settlements, 1);
        for (lease, position) in &covered.settlement.progress {
            self.settled.insert(lease.shard, (*lease, *position));
        }
        for item in self.pages.settled(covered) {
            let key = self.keys.items.remove(item).entry.message.key.clone();
            if let Some(behind) = self.behind.get_mut(&key) {
                behind.retain(|at| *at != item);
                if behind.is_empty() {
                    self.behind.remove(&key);
                }
            }
        }
        let stopped = covered.settlement.parks.iter().filter_map(|park| park.stopped.as_ref());
        self.holds.settled(stopped.filter_map(held_address).map(|address| &**address));
    }

    fn take_runs(&mut self, runs: Vec<Run>) {
        for mut run in runs {
            if self.runs.holds_key(&run.key) {
                continue;
            }
            let Some(shards) = self.held.values().next().map(|held| held.lease.shards) else { return };
            let Some(held) = self.held.get(&shard_of(run.slot, shards)).copied() else { continue };
            // Many keys may be due, so poll again at once while there are new ones.
            self.due_at.runs = Instant::now();
            self.parked.insert(&run.key);
            let number = self.runs.start(held.lease, run.key.clone(), run.messages.len());
            for (index, (no, entry)) in run.messages.into_iter().enumerate() {
                let route = self.route(&entry.message);
                let address = route.as_ref().map(|route| route.address_of(&entry.message));
                let first = index == 0;
                if first && run.address.as_deref() != address.as_deref() {
                    // The routes changed while it waited. Other messages that wait for the address may have a new
                    // address too.
                    self.release(number, run.address.take());
                }
                let (Some(route), Some(address)) = (route, address) else {
                    self.runs.delivered(number, no, None); // no route matches it any more
                    continue;
                };
                let is_probe = run.address.is_some();
                self.keys.push(Item {
                    entry,
                    lease: held.lease,
                    route,
                    address,
                    source: Source::Run { run: number, no },
                    attempts: if first { run.attempts } else { 0 },
                    unknowns: if first && run.quarantined { self.config.unknown_max - 1 } else { 0 },
                    is_probe,
                    span: None,
                    // Only the head was passed to the broker before. The messages behind it were not.
                    was_sent: first,
                });
            }
        }
    }

    /// Releases the address that the run should probe.
    fn release(&mut self, run: u64, address: Option<String>) {
        if let Some(address) = address {
            self.holds.release(&address);
            self.runs.release(run, address.into());
        }
    }

    fn has_advanced(&mut self, told: &Told, answers: &[Advanced]) {
        if answers.contains(&Advanced::Lost) {
            self.has_lost(1);
            self.forget();
            return;
        }
        for ((key, released, held), answer) in told.iter().zip(answers) {
            if let Some(address) = released {
                self.holds.told(address);
            }
            self.holds.settled(held.as_deref());
            // A head of the log that failed meanwhile, and is not settled yet, still blocks the key.
            if *answer == Advanced::Unparked && !self.pages.holds_stopped(key) {
                self.unpark(key);
            }
        }
    }
}

/// The held address that stopped a message, if any.
fn held_address(stopped: &Stopped) -> Option<&Arc<str>> {
    match &stopped.stop {
        Stop::Address { address, .. } => Some(address),
        Stop::Retry { .. } | Stop::Quarantine { .. } | Stop::DeadHold | Stop::DeadContinue => None,
    }
}

fn leave<S: Store + ?Sized + 'static>(store: Arc<S>, owner: Uuid, pause: Duration) -> Pending<Done> {
    Box::pin(async move {
        sleep(pause).await;
        if let Err(error) = store.leave(owner).await {
            // The leases expire without this call.
            warn!(error = &error as &dyn std::error::Error, "leases could not be given back");
        }
        Done::Left
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use relevo_broker_memory::{MemoryBroker, Settings};
    use relevo_store_memory::{self as memory, MAIN, Outbox};
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Metadata, Subscriber};

    use super::*;
    use crate::config::Config;

    /// Counts log lines.
    struct Lines(Arc<AtomicUsize>);

    impl Subscriber for Lines {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}

        fn record_follows_from(&self, _: &Id, _: &Id) {}

        fn event(&self, _: &Event<'_>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }

        fn enter(&self, _: &Id) {}

        fn exit(&self, _: &Id) {}
    }

    #[tokio::test(start_paused = true)]
    async fn a_maintenance_warning_that_stays_is_logged_at_growing_intervals() {
        let outbox = Outbox::new(memory::Settings::default());
        let (store, broker) = (Arc::new(outbox.destination(MAIN)), Arc::new(MemoryBroker::new(Settings::default())));
        let config = Config::default();
        let every = config.maintain_every;
        let mut relay = Relay::with_seed(store, broker, config, 7).expect("a valid configuration");
        let lines = Arc::new(AtomicUsize::new(0));
        let _log = tracing::subscriber::set_default(Lines(Arc::clone(&lines)));
        let warned = |text: String| Maintained { warnings: vec![text], ..Maintained::default() };
        for rows in 0..120 {
            let warning = warned(format!("destination \"main\" has {rows} undelivered rows"));
            relay.chore_done(Done::Maintained(Ok(warning))).expect("it goes on");
            tokio::time::advance(every).await;
        }
        let logged = lines.load(Ordering::Relaxed);
        assert!((2..20).contains(&logged), "ten minutes are {logged} lines");
        relay.chore_done(Done::Maintained(Ok(warned("dropped 30 rows".to_owned())))).expect("it goes on");
        assert_eq!(lines.load(Ordering::Relaxed), logged + 1, "another warning is logged at once");
    }
}
