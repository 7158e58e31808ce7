//! The relay's calls to the store: leases, settlements, parked keys and maintenance.
//!
//! Only one call runs at a time. When a parked head is removed, each message that should wait behind it must be either
//! settled or in memory.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use relevo_core::outbox::RelayStore;
use relevo_core::outbox::leases::{Lease, LeaseRequest, LeaseResponse, TakenShard};
use relevo_core::outbox::log::{ParkAction, PublishFailure, SettleResult, WindowLimit};
use relevo_core::outbox::maintenance::MaintenanceReport;
use relevo_core::outbox::parked::{ParkedBatch, ParkedResult, ParkedSettlement};
use relevo_core::slot::shard_of;
use relevo_core::store::StoreError;
use relevo_core::trace::ActiveSpan;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};
use uuid::Uuid;

use crate::buffer::{BufferedMessage, Origin};
use crate::relay::{LeasedShard, Pending, Relay, RelayError};
use crate::settle::PendingSettlement;
use crate::status::add;

/// Kinds of maintenance warnings that are throttled separately. A destination has a few.
const WARNING_KINDS_MAX: usize = 256;

/// The runs whose results were sent to the store: the key, the address that it released, and the address that stopped
/// it.
type SentSettlements = Vec<(bytestring::ByteString, Option<Arc<str>>, Option<Arc<str>>)>;

/// The reply of a store call.
pub(crate) enum StoreReply {
    Leases { requested_at: Instant, released: Vec<Lease>, result: Result<(LeaseResponse, Vec<TakenShard>), StoreError> },
    Settlement { pending: PendingSettlement, result: Result<SettleResult, StoreError> },
    Parked(Result<Vec<ParkedBatch>, StoreError>),
    ParkedSettlement { sent: SentSettlements, spans: Vec<ActiveSpan>, result: Result<Vec<ParkedResult>, StoreError> },
    Maintenance(Result<MaintenanceReport, StoreError>),
    Released,
}

impl Relay {
    /// Starts the most urgent call, unless one is running.
    pub(crate) fn start_call(&mut self, now: Instant) {
        if self.store_call.is_some() || self.stopping {
            return;
        }
        self.store_call = self.next_call(now);
    }

    fn next_call(&mut self, now: Instant) -> Option<Pending<StoreReply>> {
        if now >= self.schedule.lease || self.can_release() {
            return Some(self.lease_call(now));
        }
        if self.leased_shards.is_empty() {
            return None;
        }
        if let Some(chore) = self.settle_parked_call() {
            return Some(chore);
        }
        let room = 2 * self.pages.messages() < self.config.pages_max * self.config.page_messages;
        if (self.pages.is_front_complete() && (now >= self.schedule.settle_front || !room))
            || (now >= self.schedule.settle && self.pages.len() > 0)
        {
            self.schedule.settle = now + self.config.settle_interval_max;
            self.schedule.settle_front = now + self.config.settle_interval_min;
            if let Some(chore) = self.settle_call() {
                return Some(chore);
            }
        }
        if now >= self.schedule.parked && self.can_take_parked(now) {
            self.schedule.parked = now + self.config.parked_poll_interval;
            return Some(self.read_parked_call());
        }
        if now >= self.schedule.maintain {
            self.schedule.maintain = now + self.config.maintenance_interval;
            let store = Arc::clone(&self.store);
            return Some(Box::pin(async move { StoreReply::Maintenance(store.maintain().await) }));
        }
        None
    }

    /// Parked keys are not read while the broker is down, or while too many runs are in flight.
    pub(crate) fn can_take_parked(&self, now: Instant) -> bool {
        self.health.is_worth_trying(now) && 2 * self.parked_batches.len() <= self.config.parked_keys_per_poll
    }

    fn can_release(&self) -> bool {
        self.leased_shards.values().any(|held| held.releasing && self.is_idle(held.lease.shard))
    }

    fn is_idle(&self, shard: u16) -> bool {
        // A page that is being read would be published after the shard was released.
        !self.pages.holds_shard(shard)
            && !self.parked_batches.holds_shard(shard)
            && !self.reading_shards.contains(&shard)
    }

    fn lease_call(&mut self, now: Instant) -> Pending<StoreReply> {
        let every = self.config.lease_renew_interval.min(self.config.lease_duration / 3);
        self.schedule.lease = now + every;
        let gave_back: Vec<Lease> = self
            .leased_shards
            .values()
            .filter(|held| held.releasing && self.is_idle(held.lease.shard))
            .map(|held| held.lease)
            .collect();
        let ask = LeaseRequest {
            owner: self.owner,
            name: self.config.name.clone(),
            // Shorter by the renewal interval, which other relays need to notice, so that a dead relay is replaced
            // within the lease.
            duration: self.config.lease_duration.saturating_sub(every),
            release: gave_back.clone(),
        };
        let known: BTreeSet<Lease> = self.leased_shards.values().map(|held| held.lease).collect();
        let store = Arc::clone(&self.store);
        Box::pin(async move {
            let result = async {
                let leased = store.acquire_leases(ask).await?;
                let new: Vec<Lease> = leased.leases.iter().filter(|lease| !known.contains(lease)).copied().collect();
                // Read the state after the lease was acquired, so that it includes everything a former owner settled.
                let standings = store.standing(&new).await?;
                Ok((leased, standings))
            };
            let result = result.await;
            StoreReply::Leases { requested_at: now, released: gave_back, result }
        })
    }

    /// Settles whatever can be settled.
    pub(crate) fn settle_call(&mut self) -> Option<Pending<StoreReply>> {
        let covered = self.pages.settlement(&self.settled)?;
        let store = Arc::clone(&self.store);
        Some(Box::pin(async move {
            let result = store.settle(covered.settlement.clone()).await;
            StoreReply::Settlement { pending: covered, result }
        }))
    }

    fn read_parked_call(&self) -> Pending<StoreReply> {
        let store = Arc::clone(&self.store);
        let leases: Vec<Lease> =
            self.leased_shards.values().filter(|held| !held.releasing).map(|held| held.lease).collect();
        // Keys in flight are still due and are returned first. Request enough keys to get others too.
        let (keys, messages) = (self.config.parked_keys_per_poll, self.config.parked_messages_per_key);
        Box::pin(async move { StoreReply::Parked(store.read_parked(&leases, keys, messages).await) })
    }

    pub(crate) fn settle_parked_call(&mut self) -> Option<Pending<StoreReply>> {
        if !self.parked_batches.has_finished() {
            return None;
        }
        let advances: Vec<ParkedSettlement> = self.parked_batches.take_finished();
        let stopped_at =
            |advance: &ParkedSettlement| held_address(advance.failed.as_ref().map(|(_, stopped)| stopped)?).cloned();
        let told = advances
            .iter()
            .map(|advance| (advance.key.clone(), advance.released_address.clone(), stopped_at(advance)))
            .collect();
        let spans = self.parked_batches.take_spans();
        let store = Arc::clone(&self.store);
        Some(Box::pin(async move {
            StoreReply::ParkedSettlement { sent: told, spans, result: store.settle_parked(advances).await }
        }))
    }

    pub(crate) fn release_call(&self) -> Pending<StoreReply> {
        release_leases(Arc::clone(&self.store), self.owner, Duration::ZERO)
    }

    /// After a pause, releases what the former owner may still hold. Leases are then acquired by a new owner.
    pub(crate) fn release_after(&mut self, pause: Duration) -> Pending<StoreReply> {
        let owner = self.owner;
        self.new_owner();
        release_leases(Arc::clone(&self.store), owner, pause)
    }

    pub(crate) fn apply_reply(&mut self, done: StoreReply) -> Result<(), RelayError> {
        match done {
            StoreReply::Leases { requested_at: asked_at, released: gave_back, result } => match result {
                Ok((leased, standings)) => self.apply_leases(asked_at, &gave_back, leased, standings),
                Err(error) => return self.store_failed(error),
            },
            StoreReply::Settlement { pending: covered, result } => match result {
                Ok(settled) => self.apply_settlement(&covered, &settled),
                Err(error) => return self.store_failed(error),
            },
            StoreReply::Parked(Ok(runs)) => self.take_parked_batches(runs),
            StoreReply::ParkedSettlement { sent: told, spans, result: Ok(answers) } => {
                if !answers.contains(&ParkedResult::LeaseLost) {
                    spans.into_iter().for_each(ActiveSpan::end);
                }
                self.apply_parked(&told, &answers);
            }
            StoreReply::Maintenance(Ok(maintained)) => self.has_maintained(&maintained.warnings),
            StoreReply::Maintenance(Err(error)) if error.is_retryable() => {
                if let Some(times) = self.upkeep_failures.occurred(Instant::now(), self.config.maintenance_interval) {
                    warn!(relay = %self.config.name, error = &error as &dyn std::error::Error, times, "maintenance failed, will retry");
                }
            }
            StoreReply::Parked(Err(error))
            | StoreReply::ParkedSettlement { result: Err(error), .. }
            | StoreReply::Maintenance(Err(error)) => {
                return self.store_failed(error);
            }
            StoreReply::Released => {}
        }
        Ok(())
    }

    fn apply_leases(
        &mut self,
        asked_at: Instant,
        gave_back: &[Lease],
        leased: LeaseResponse,
        standings: Vec<TakenShard>,
    ) {
        self.database_recovered();
        self.status.set_leased();
        add(&self.status.counters.lease_changes, gave_back.len() + standings.len());
        for lease in gave_back {
            self.leased_shards.remove(&lease.shard);
            self.settled.remove(&lease.shard);
        }
        let lost = self.leased_shards.values().filter(|held| !leased.leases.contains(&held.lease)).count();
        if lost > 0 {
            // These leases were resharded, or expired and taken, so nothing of them can be settled. Other messages in
            // flight are sent again.
            self.status.count_lost_leases(lost);
            warn!(relay = %self.config.name, lost, "leases were lost");
            self.discard_unsettled();
            return;
        }
        if leased.timeline_changed {
            warn!(relay = %self.config.name, "the database moved to another timeline: published messages may have no row");
        }
        self.valid_until = asked_at + leased.duration.saturating_sub(self.config.lease_margin);
        self.window_limit = leased.window_limit;
        self.held_addresses.replace_stored(leased.held_addresses);
        if leased.window_limit != WindowLimit::Unlimited {
            // Resharding waits for every relay. Check again soon, and let empty windows be settled.
            self.schedule.lease = self.schedule.lease.min(asked_at + self.config.parked_poll_interval);
            self.schedule.settle = asked_at;
        }
        for standing in standings {
            let Some(lease) = leased.leases.iter().find(|lease| lease.shard == standing.shard) else { continue };
            for key in &standing.parked_keys {
                self.parked_keys.insert(key);
            }
            self.settled.insert(standing.shard, (*lease, standing.position));
            self.leased_shards
                .insert(standing.shard, LeasedShard { lease: *lease, read_to: standing.position, releasing: false });
            self.schedule.read = asked_at;
        }
        // Other relays hold all shards, so there is nothing to send here.
        self.caught_up |= self.leased_shards.is_empty();
        let excess = self.leased_shards.len().saturating_sub(leased.fair_share);
        let leaving = self.leased_shards.values().filter(|held| held.releasing).count();
        let more = excess.saturating_sub(leaving);
        if more > 0 {
            info!(relay = %self.config.name, shards = more, "giving shards to another relay");
        }
        for held in self.leased_shards.values_mut().rev().filter(|held| !held.releasing).take(more) {
            held.releasing = true;
        }
        if leaving > excess {
            for held in self.leased_shards.values_mut().filter(|held| held.releasing).take(leaving - excess) {
                held.releasing = false;
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
            if let Some(times) = throttle.occurred(Instant::now(), self.config.maintenance_interval) {
                warn!(relay = %self.config.name, warning, times, "maintenance warning");
            }
        }
    }

    fn apply_settlement(&mut self, covered: &PendingSettlement, settled: &SettleResult) {
        if !settled.lost_shards.is_empty() {
            self.status.count_lost_leases(settled.lost_shards.len());
            warn!(relay = %self.config.name, shards = ?settled.lost_shards, "a lease was lost, nothing of it was settled");
            self.discard_unsettled();
            return;
        }
        if !settled.reread.is_empty() {
            // An operator freed the head. Reading again publishes the messages that waited behind it before later ones
            // of their key.
            info!(relay = %self.config.name, messages = settled.reread.len(), "a parked key was freed, reading again");
            self.discard_unsettled();
            return;
        }
        add(&self.status.counters.settlements, 1);
        for (lease, position) in &covered.settlement.progress {
            self.settled.insert(lease.shard, (*lease, *position));
        }
        for item in self.pages.apply_settlement(covered) {
            let key = self.buffer.messages.remove(item).entry.message.key.clone();
            if let Some(behind) = self.waiting_behind.get_mut(&key) {
                behind.retain(|at| *at != item);
                if behind.is_empty() {
                    self.waiting_behind.remove(&key);
                }
            }
        }
        let stopped = covered.settlement.parked.iter().filter_map(|park| park.failure.as_ref());
        self.held_addresses.mark_settled(stopped.filter_map(held_address).map(|address| &**address));
    }

    fn take_parked_batches(&mut self, runs: Vec<ParkedBatch>) {
        for mut run in runs {
            if self.parked_batches.holds_key(&run.key) {
                continue;
            }
            let Some(shards) = self.leased_shards.values().next().map(|held| held.lease.shard_count) else { return };
            let Some(held) = self.leased_shards.get(&shard_of(run.slot, shards)).copied() else { continue };
            // Many keys may be due, so poll again at once while there are new ones.
            self.schedule.parked = Instant::now();
            self.parked_keys.insert(&run.key);
            let number = self.parked_batches.start(held.lease, run.key.clone(), run.messages.len());
            for (index, (no, entry)) in run.messages.into_iter().enumerate() {
                let route = self.route(&entry.message);
                let address = route.as_ref().map(|route| route.address_of(&entry.message));
                let first = index == 0;
                if first && run.probe_address.as_deref() != address.as_deref() {
                    // The routes changed while it waited. Other messages that wait for the address may have a new
                    // address too.
                    self.release_address(number, run.probe_address.take());
                }
                let (Some(route), Some(address)) = (route, address) else {
                    self.parked_batches.delivered(number, no, None); // no route matches it any more
                    continue;
                };
                let is_probe = run.probe_address.is_some();
                self.buffer.push(BufferedMessage {
                    entry,
                    lease: held.lease,
                    route,
                    address,
                    origin: Origin::Parked { batch: number, ordinal: no },
                    attempts: if first { run.attempts } else { 0 },
                    lost_confirms: if first && run.quarantined { self.config.lost_confirms_max - 1 } else { 0 },
                    is_probe,
                    span: None,
                    // Only the head was passed to the broker before. The messages behind it were not.
                    was_sent: first,
                });
            }
        }
    }

    /// Releases the address that the run should probe.
    fn release_address(&mut self, run: u64, address: Option<String>) {
        if let Some(address) = address {
            self.held_addresses.release(&address);
            self.parked_batches.release(run, address.into());
        }
    }

    fn apply_parked(&mut self, told: &SentSettlements, answers: &[ParkedResult]) {
        if answers.contains(&ParkedResult::LeaseLost) {
            self.status.count_lost_leases(1);
            self.discard_unsettled();
            return;
        }
        for ((key, released, held), answer) in told.iter().zip(answers) {
            if let Some(address) = released {
                self.held_addresses.confirm_release(address);
            }
            self.held_addresses.mark_settled(held.as_deref());
            // A head of the log that failed meanwhile, and is not settled yet, still blocks the key.
            if *answer == ParkedResult::KeyFreed && !self.pages.has_failed_entry(key) {
                self.unpark(key);
            }
        }
    }
}

/// The held address that stopped a message, if any.
fn held_address(stopped: &PublishFailure) -> Option<&Arc<str>> {
    match &stopped.action {
        ParkAction::HoldAddress { address, .. } => Some(address),
        ParkAction::Retry { .. } | ParkAction::Quarantine { .. } | ParkAction::DeadHold | ParkAction::DeadContinue => {
            None
        }
    }
}

fn release_leases(store: Arc<dyn RelayStore>, owner: Uuid, pause: Duration) -> Pending<StoreReply> {
    Box::pin(async move {
        sleep(pause).await;
        if let Err(error) = store.release_leases(owner).await {
            // The leases expire without this call.
            warn!(error = &error as &dyn std::error::Error, "leases could not be given back");
        }
        StoreReply::Released
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use relevo_broker_memory::{Config as BrokerConfig, MemoryBroker};
    use relevo_store_memory::{self as memory, Database, MAIN};
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
        let outbox = Database::new(memory::Config::default());
        let (store, broker) = (Arc::new(outbox.store(MAIN)), Arc::new(MemoryBroker::new(BrokerConfig::default())));
        let config = Config::default();
        let every = config.maintenance_interval;
        let mut relay = Relay::with_seed(store, broker, config, 7).expect("a valid configuration");
        let lines = Arc::new(AtomicUsize::new(0));
        let _log = tracing::subscriber::set_default(Lines(Arc::clone(&lines)));
        let warned = |text: String| MaintenanceReport { warnings: vec![text], ..MaintenanceReport::default() };
        for rows in 0..120 {
            let warning = warned(format!("destination \"main\" has {rows} undelivered rows"));
            relay.apply_reply(StoreReply::Maintenance(Ok(warning))).expect("it goes on");
            tokio::time::advance(every).await;
        }
        let logged = lines.load(Ordering::Relaxed);
        assert!((2..20).contains(&logged), "ten minutes are {logged} lines");
        relay.apply_reply(StoreReply::Maintenance(Ok(warned("dropped 30 rows".to_owned())))).expect("it goes on");
        assert_eq!(lines.load(Ordering::Relaxed), logged + 1, "another warning is logged at once");
    }
}
