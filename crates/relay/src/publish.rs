//! Publishes messages and acts on each outcome.

pub(crate) mod health;
mod spans;

use std::sync::Arc;
use std::time::Duration;

use bytestring::ByteString;
use jiff::Timestamp;
use relevo_core::outbox::log::{ParkAction, PublishFailure};
use relevo_core::{AfterDead, Class, Failure, Next, Outcome, Publication};
use tokio::time::{Instant, timeout};
use tracing::field::display;
use tracing::{debug, error, warn};

use crate::buffer::{BufferedMessage, Origin};
use crate::parked::holds::HoldReason;
use crate::publish::health::SendPermit;
use crate::relay::{Relay, ResendMode};
use crate::settle::EntryState;
use crate::status::add;

/// The delay before a message with a lost confirmation is sent again. It doubles with each loss.
const RESEND_DELAY_MIN: Duration = Duration::from_millis(50);

impl Relay {
    /// Sends all messages that may be sent now.
    pub(crate) fn dispatch(&mut self, now: Instant) {
        let left = self.valid_until.saturating_duration_since(now);
        if self.stopping || left.is_zero() {
            return;
        }
        while self.in_flight < self.config.in_flight_messages_max {
            let batch = match self.health.may_send(now, self.in_flight, !self.buffer.ready.is_empty()) {
                SendPermit::Wait => return,
                SendPermit::Isolated(item) => {
                    self.health.isolated_sent(item);
                    self.buffer.start(item, false, 1)
                }
                SendPermit::Probe => {
                    let batch = self.fill(1);
                    if !batch.is_empty() {
                        self.health.probe_sent();
                    }
                    batch
                }
                SendPermit::Any => {
                    self.fill(self.config.batch_messages_max.min(self.config.in_flight_messages_max - self.in_flight))
                }
            };
            if batch.is_empty() {
                return;
            }
            self.send(batch, left);
        }
    }

    /// Takes at most `room` ready items. Parks items whose address is held.
    fn fill(&mut self, room: usize) -> Vec<usize> {
        let fenced = self.broker.capabilities().ordered_in_flight;
        let mut batch = Vec::new();
        while batch.len() < room {
            let Some(at) = self.buffer.ready.pop_front() else { break };
            let item = &self.buffer.messages[at];
            match self.held_addresses.get(&item.address) {
                Some(held) if !item.is_probe => {
                    let stopped = held_address_failure(item, held);
                    self.buffer.start(at, false, 1);
                    self.buffer.finish(at, Ok(()));
                    self.park_or_dead_letter(at, stopped);
                }
                _ => batch.extend(self.buffer.start(at, fenced && room > 1, room - batch.len())),
            }
        }
        batch
    }

    fn send(&mut self, items: Vec<usize>, lease_left: Duration) {
        let now = Timestamp::now();
        self.start_spans(&items);
        let publications: Vec<Publication> = items
            .iter()
            .map(|&at| {
                let item = &mut self.buffer.messages[at];
                if !std::mem::replace(&mut item.was_sent, true) {
                    self.status.observe_dispatched(item.entry.message.created_at, now);
                }
                Publication {
                    message: item.outgoing(),
                    address: Arc::clone(&item.address),
                    headers: Arc::clone(&item.route.headers),
                    seq: item.entry.seq,
                    epoch: item.lease.epoch,
                }
            })
            .collect();
        let number = self.next_batch;
        self.next_batch += 1;
        self.in_flight += items.len();
        add(&self.status.counters.attempts, items.len());
        self.batches.insert(number, items);
        let broker = Arc::clone(&self.broker);
        let confirms = self.outcomes.sender(number);
        // Never longer than the lease: after it, another relay may publish the same messages.
        let deadline = self.config.publish_timeout.min(lease_left);
        self.publish_calls.push(Box::pin(async move {
            // Messages without a reported outcome by then may have arrived.
            drop(timeout(deadline, broker.publish(&publications, &confirms)).await);
            number
        }));
    }

    pub(crate) fn take_outcomes(&mut self) {
        for (batch, index, outcome) in self.outcomes.take() {
            let Some(item) = self.batches.get(&batch).and_then(|items| items.get(index)).copied() else { continue };
            if item == usize::MAX {
                continue; // an outcome was reported before
            }
            if let Some(items) = self.batches.get_mut(&batch) {
                items[index] = usize::MAX;
            }
            self.apply_outcome(item, outcome);
        }
    }

    /// Handles the end of a broker call. Messages without a reported outcome may have arrived.
    pub(crate) fn batch_ended(&mut self, batch: u64) {
        self.take_outcomes();
        for item in self.batches.remove(&batch).unwrap_or_default() {
            if item != usize::MAX {
                self.apply_outcome(item, Err(Failure::new(Class::Unknown, "the broker did not answer in time")));
            }
        }
    }

    fn apply_outcome(&mut self, at: usize, outcome: Outcome) {
        self.in_flight -= 1;
        self.buffer.messages[at].end_span(&outcome);
        let Some(landed) = self.buffer.finish(at, outcome) else { return };
        let key = self.buffer.messages[at].entry.message.key.clone();
        let mut landed = landed.into_iter();
        while let Some((item, outcome)) = landed.next() {
            match outcome {
                Ok(()) => self.delivered(item),
                Err(failure) => {
                    // Later messages in flight must follow the failed one, even if they succeeded. Those are then sent
                    // twice.
                    let rest: Vec<usize> = landed.map(|(item, _)| item).collect();
                    self.buffer.requeue(&key, rest.into_iter());
                    self.failed(item, &key, &failure);
                    return;
                }
            }
        }
        self.buffer.release_next(&key);
    }

    fn delivered(&mut self, at: usize) {
        add(&self.status.counters.published, 1);
        let proven = self.health.on_success(at);
        let item = self.buffer.messages.remove(at);
        self.status.observe_published(item.entry.message.created_at);
        let released = item.is_probe.then(|| {
            self.held_addresses.release(&item.address);
            Arc::clone(&item.address)
        });
        match item.origin {
            Origin::Log { page, index } => {
                self.pages.resolve(page, index, EntryState::Done);
                self.pages.attach_span(page, index, item.span);
            }
            Origin::Parked { batch: run, ordinal: no } => {
                self.parked_batches.attach_span(run, item.span);
                self.parked_batches.delivered(run, no, released);
            }
        }
        for guilty in proven {
            self.quarantine(guilty);
        }
    }

    fn failed(&mut self, at: usize, key: &ByteString, failure: &Failure) {
        let now = Instant::now();
        let jitter = self.random.jitter();
        let item = &mut self.buffer.messages[at];
        let attempt = item.attempts + 1;
        let class = failure.class();
        self.status.count_failure(class);
        let message_id = item.entry.message.id;
        let next = item.route.policy.decide(attempt, class, jitter);
        if class != Class::Unknown {
            item.lost_confirms = 0;
        }
        let stop = match next {
            Next::WaitForBroker => {
                if self.health.on_outage(at, now, self.config.outage_backoff_min, self.config.outage_backoff_max) {
                    add(&self.status.counters.broker_outages, 1);
                    if let Some(times) = self.outage_log.occurred(now, self.config.outage_backoff_min) {
                        warn!(relay = %self.config.name, error = %failure.error_chain(), times, "the destination is away");
                    }
                }
                self.buffer.ready.push_front(at);
                return;
            }
            Next::Resend => return self.resend(at, now),
            Next::RetryAfter(after) => {
                add(&self.status.counters.retried, 1);
                ParkAction::Retry { after }
            }
            Next::HoldAddress(pause) => {
                let after = pause.unwrap_or(self.config.blocked_probe_interval);
                let held = HoldReason { class: class.as_str(), error: failure.error_chain(), probe_after: after };
                self.held_addresses.add(&item.address, held);
                if class == Class::Blocked {
                    error!(address = %item.address, error = %failure.error_chain(), "nothing can pass to this address");
                }
                ParkAction::HoldAddress { address: Arc::clone(&item.address), after }
            }
            Next::DeadLetter => match item.route.after_dead {
                AfterDead::Hold => ParkAction::DeadHold,
                AfterDead::Continue => ParkAction::DeadContinue,
            },
        };
        let trace_id = self.config.tracer.trace_id(&item.entry.message).map(display);
        debug!(%message_id, trace_id, attempt, class = class.as_str(), error = %failure.error_chain(), ?stop, "not delivered");
        self.health.on_rejection(at);
        let stopped = PublishFailure {
            action: stop,
            attempts: if class.counts_as_attempt() { attempt } else { item.attempts },
            class: class.as_str(),
            error: failure.error_chain(),
            route: item.route.name.as_str().into(),
        };
        debug_assert!(self.buffer.messages[at].entry.message.key == *key, "an item keeps its key");
        self.park_or_dead_letter(at, stopped);
    }

    /// Handles a lost confirmation: sends the same id again soon, and alone after several consecutive losses.
    fn resend(&mut self, at: usize, now: Instant) {
        let item = &mut self.buffer.messages[at];
        item.lost_confirms += 1;
        if item.lost_confirms < self.config.lost_confirms_max {
            let pause = RESEND_DELAY_MIN * (1 << item.lost_confirms.min(6));
            self.resends.insert((now + pause, at), ResendMode::Normal);
        } else if self.health.isolate(at) {
            // It was lost again although it was sent alone. Quarantine it as soon as another message succeeds.
            self.health.on_outage(at, now, self.config.outage_backoff_min, self.config.outage_backoff_max);
            self.resends.insert((now + self.config.outage_backoff_max, at), ResendMode::Isolated);
        }
        self.health.on_lost_confirm(at, now, self.config.outage_backoff_min, self.config.outage_backoff_max);
    }

    /// Makes items ready whose delay has ended.
    pub(crate) fn wake_resends(&mut self, now: Instant) {
        while let Some(entry) = self.resends.first_entry() {
            if entry.key().0 > now {
                return;
            }
            let ((_, at), again) = entry.remove_entry();
            match again {
                ResendMode::Normal => self.buffer.ready.push_back(at),
                ResendMode::Isolated => self.health.retry_candidate(at),
            }
        }
    }

    fn quarantine(&mut self, at: usize) {
        self.resends.retain(|(_, item), _| *item != at);
        let item = &self.buffer.messages[at];
        let trace_id = self.config.tracer.trace_id(&item.entry.message).map(display);
        error!(message_id = %item.entry.message.id, trace_id, "a message takes connections down with it, quarantined");
        let stopped = PublishFailure {
            action: ParkAction::Quarantine { after: self.config.quarantine_probe_interval },
            attempts: item.attempts,
            class: Class::Unknown.as_str(),
            error: "its answer was lost each time, even when it was sent alone".to_owned(),
            route: item.route.name.as_str().into(),
        };
        self.park_or_dead_letter(at, stopped);
    }

    /// Parks or dead-letters an item. Its key waits behind it or continues without it.
    pub(crate) fn park_or_dead_letter(&mut self, at: usize, stopped: PublishFailure) {
        let item = self.buffer.messages.remove(at);
        let key = item.entry.message.key.clone();
        let goes_on = stopped.action == ParkAction::DeadContinue;
        if matches!(stopped.action, ParkAction::DeadHold | ParkAction::DeadContinue) {
            add(&self.status.counters.dead_lettered, 1);
            let trace_id = self.config.tracer.trace_id(&item.entry.message).map(display);
            error!(message_id = %item.entry.message.id, trace_id, attempts = stopped.attempts, error = %stopped.error, "message is dead");
        } else {
            add(&self.status.counters.parked, 1);
        }
        match item.origin {
            Origin::Log { page, index } => {
                self.pages.resolve(page, index, EntryState::Failed(Box::new(stopped)));
                if goes_on {
                    self.buffer.release_next(&key);
                    return;
                }
                self.parked_keys.insert(&key);
            }
            Origin::Parked { batch: run, ordinal: no } => self.parked_batches.failed(run, no, stopped),
        }
        for waiting in self.buffer.take_waiting(&key) {
            let item = self.buffer.messages.remove(waiting);
            match item.origin {
                Origin::Log { .. } => self.wait_behind(&key, item),
                // The remaining messages of the run are still in the store's queue.
                Origin::Parked { batch: run, .. } => self.parked_batches.abandon(run),
            }
        }
    }

    /// Records that a message of the log waits behind a parked head of its key. It stays in memory until this is
    /// settled.
    pub(crate) fn wait_behind(&mut self, key: &ByteString, item: BufferedMessage) {
        let Origin::Log { page, index } = item.origin else { unreachable!("only the log's messages wait behind") };
        add(&self.status.counters.parked, 1);
        let at = self.buffer.messages.insert(item);
        self.waiting_behind.entry(key.clone()).or_default().push(at);
        self.pages.resolve(page, index, EntryState::WaitsBehind(at));
    }

    /// Handles a parked head that is no longer in the way. Messages that wait behind it in memory are published
    /// directly, before later messages of the key.
    pub(crate) fn unpark(&mut self, key: &ByteString) {
        self.parked_keys.remove(key);
        let mut waiting = self.waiting_behind.remove(key).unwrap_or_default();
        waiting.sort_by_key(|at| self.buffer.messages[*at].origin.order());
        for at in waiting {
            let mut item = self.buffer.messages.remove(at);
            let Origin::Log { page, index } = item.origin else { unreachable!("only the log's messages wait behind") };
            // The routes may have changed while it waited.
            let Some(route) = self.route(&item.entry.message) else {
                self.pages.resolve(page, index, EntryState::Done);
                continue;
            };
            item.address = route.address_of(&item.entry.message);
            item.route = route;
            self.pages.resolve(page, index, EntryState::Pending);
            self.buffer.push(item);
        }
    }
}

/// The parking reason of an item whose address is held.
fn held_address_failure(item: &BufferedMessage, held: &HoldReason) -> PublishFailure {
    PublishFailure {
        action: ParkAction::HoldAddress { address: Arc::clone(&item.address), after: held.probe_after },
        attempts: item.attempts,
        class: held.class,
        error: held.error.clone(),
        route: item.route.name.as_str().into(),
    }
}
