//! Reads the next page of the leased shards.

use std::sync::Arc;

use relevo_core::outbox::leases::Lease;
use relevo_core::outbox::log::{Page, PageRequest};
use relevo_core::outbox::{LogEntry, Position};
use relevo_core::retry::{ExponentialBackoff, Jitter};
use relevo_core::slot::shard_of;
use relevo_core::store::StoreError;
use tokio::time::Instant;

use crate::buffer::{BufferedMessage, Origin};
use crate::config::Config;
use crate::relay::{Pending, Relay, RelayError};
use crate::settle::EntryState;
use crate::status::add;
use crate::store_calls::busy::CallKind;

pub(crate) type ReadReply = Result<Page, StoreError>;

/// The read call, and when the next one starts.
pub(crate) struct Reader {
    pub(crate) call: Option<Pending<ReadReply>>,
    /// The shards of the read request.
    pub(crate) shards: Vec<u16>,
    pub(crate) next_at: Instant,
    /// The pauses between reads when there is nothing to do.
    idle_backoff: ExponentialBackoff,
    /// Whether the relay has read to the end of its shards since the last reset.
    pub(crate) caught_up: bool,
}

impl Reader {
    pub(crate) fn new(config: &Config, now: Instant) -> Self {
        let idle_backoff = ExponentialBackoff::new(config.advanced.poll_interval_min, config.poll_interval_max);
        Self { call: None, shards: Vec::new(), next_at: now, idle_backoff, caught_up: false }
    }

    /// Drops the call, if there is one.
    pub(crate) fn cancel(&mut self) {
        self.call = None;
        self.shards.clear();
    }

    pub(crate) fn reset(&mut self, now: Instant) {
        self.cancel();
        self.next_at = now;
        self.caught_up = false;
    }
}

impl Relay {
    pub(crate) fn start_read(&mut self, now: Instant) {
        let is_early = now < self.reader.next_at || self.store_calls.busy.is_paused(CallKind::Read, now);
        if !self.can_read() || is_early || now >= self.leases.valid_until {
            return;
        }
        // Also read shards that are to be released, if their messages may prove that the broker works. Not beside a store
        // call, which may be releasing them.
        let all = self.needs_other_message() && self.store_calls.call.is_none();
        let shards = self.leases.shards.values().filter(|shard| all || !shard.releasing);
        let shards: Vec<(Lease, Position)> = shards.map(|shard| (shard.lease, shard.read_to.clone())).collect();
        if shards.is_empty() {
            return;
        }
        let store = Arc::clone(&self.store);
        let (messages_max, bytes_max) = (self.config.advanced.page_messages, self.config.memory_max / 2);
        let window_limit = self.leases.window_limit;
        self.reader.shards = shards.iter().map(|(lease, _)| lease.shard).collect();
        self.reader.call = Some(Box::pin(async move {
            store.read(PageRequest { shards: &shards, messages_max, bytes_max, window_limit }).await
        }));
    }

    pub(crate) fn can_read(&self) -> bool {
        self.reader.call.is_none()
            && !self.stopping
            && (self.pages.messages() < self.config.advanced.pages_max * self.config.advanced.page_messages
                || self.needs_other_message())
            && self.pages.bytes() < self.config.memory_max
            && self.parked.keys.len() < self.config.advanced.parked_keys_max
    }

    /// Whether the relay must read another message to find out if the broker works. Until then, the pages are blocked.
    fn needs_other_message(&self) -> bool {
        self.publisher.health.has_quarantine_candidates() && !self.buffer.has_ready() && self.publisher.in_flight == 0
    }

    pub(crate) fn apply_read(&mut self, reply: ReadReply) -> Result<(), RelayError> {
        let result = reply.map(|page| self.take_page(page));
        self.end_call(CallKind::Read, result)
    }

    fn take_page(&mut self, page: Page) {
        let Page { entries, mut shards, caught_up } = page;
        let now = Instant::now();
        if !entries.is_empty() {
            self.reader.next_at = now;
            self.reader.idle_backoff.reset();
        } else if caught_up || shards.is_empty() {
            // Without a shard there is nothing to read until resharding goes on.
            self.reader.caught_up |= caught_up;
            self.reader.next_at = now + self.reader.idle_backoff.next(Jitter::NONE);
        } else {
            self.reader.next_at = now; // other shards may have messages
        }
        shards.retain(|read| {
            let shard = self.leases.shards.get_mut(&read.lease.shard);
            shard.is_some_and(|shard| std::mem::replace(&mut shard.read_to, read.end.clone()) != read.end)
        });
        if shards.is_empty() {
            return;
        }
        let leases: Vec<Lease> = shards.iter().map(|shard| shard.lease).collect();
        let id = self.pages.push(shards, &entries);
        for (index, entry) in entries.into_iter().enumerate() {
            self.take_entry(id, index, entry, &leases);
        }
    }

    fn take_entry(&mut self, page: u64, index: usize, entry: LogEntry, leases: &[Lease]) {
        let shard = shard_of(entry.slot, leases[0].shard_count);
        let lease = *leases.iter().find(|lease| lease.shard == shard).expect("a page has only messages of its shards");
        let Some(route) = self.route(&entry.message) else {
            add(&self.status.counters.unrouted, 1);
            self.pages.resolve(page, index, EntryState::Done);
            return;
        };
        let address = route.address_of(&entry.message);
        let key = entry.message.key.clone();
        let message = BufferedMessage {
            entry,
            lease,
            route,
            address,
            origin: Origin::Log { page, index },
            attempts: 0,
            lost_confirms: 0,
            is_probe: false,
            span: None,
            was_sent: false,
        };
        if self.parked.keys.contains(&key) {
            self.wait_behind(&key, message);
        } else {
            self.buffer.push(message);
        }
    }
}
