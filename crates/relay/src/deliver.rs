//! Publishes messages and acts on each outcome.

use std::sync::Arc;
use std::time::Duration;

use bytestring::ByteString;
use jiff::Timestamp;
use relevo_core::store::{Stop, Stopped, Store};
use relevo_core::{AfterDead, Broker, Class, Failure, Next, Outcome, Publication};
use tokio::time::{Instant, timeout};
use tracing::field::display;
use tracing::{debug, error, warn};

use crate::health::May;
use crate::keys::{Item, Source};
use crate::pages::Verdict;
use crate::parked::Held;
use crate::relay::{Again, Relay};
use crate::stats::add;

/// The delay before a message with a lost confirmation is sent again. It doubles with each loss.
const SEND_AGAIN: Duration = Duration::from_millis(50);

impl<S: Store + ?Sized + 'static, B: Broker + ?Sized + 'static> Relay<S, B> {
    /// Sends all messages that may be sent now.
    pub(crate) fn dispatch(&mut self, now: Instant) {
        let left = self.valid_until.saturating_duration_since(now);
        if self.stopping || left.is_zero() {
            return;
        }
        while self.in_flight < self.config.in_flight_max {
            let batch = match self.health.may_send(now, self.in_flight, !self.keys.ready.is_empty()) {
                May::Nothing => return,
                May::Alone(item) => {
                    self.health.sent_alone(item);
                    self.keys.fly(item, false, 1)
                }
                May::One => {
                    let batch = self.fill(1);
                    if !batch.is_empty() {
                        self.health.probe_sent();
                    }
                    batch
                }
                May::All => self.fill(self.config.batch_max.min(self.config.in_flight_max - self.in_flight)),
            };
            if batch.is_empty() {
                return;
            }
            self.send(batch, left);
        }
    }

    /// Takes at most `room` ready items. Parks items whose address is held.
    fn fill(&mut self, room: usize) -> Vec<usize> {
        let fenced = self.broker.capabilities().fences_order;
        let mut batch = Vec::new();
        while batch.len() < room {
            let Some(at) = self.keys.ready.pop_front() else { break };
            let item = &self.keys.items[at];
            match self.holds.get(&item.address) {
                Some(held) if !item.is_probe => {
                    let stopped = held_stop(item, held);
                    self.keys.fly(at, false, 1);
                    self.keys.land(at, Ok(()));
                    self.stop(at, stopped);
                }
                _ => batch.extend(self.keys.fly(at, fenced && room > 1, room - batch.len())),
            }
        }
        batch
    }

    fn send(&mut self, items: Vec<usize>, lease_left: Duration) {
        let now = Timestamp::now();
        self.begin_spans(&items);
        let publications: Vec<Publication> = items
            .iter()
            .map(|&at| {
                let item = &mut self.keys.items[at];
                if !std::mem::replace(&mut item.was_sent, true) {
                    self.stats.latencies.dispatch(item.entry.message.created_at, now);
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
        add(&self.stats.attempts, items.len());
        self.batches.insert(number, items);
        let broker = Arc::clone(&self.broker);
        let confirms = self.reports.confirms(number);
        // Never longer than the lease: after it, another relay may publish the same messages.
        let deadline = self.config.publish_deadline.min(lease_left);
        self.publishing.push(Box::pin(async move {
            // Messages without a reported outcome by then may have arrived.
            drop(timeout(deadline, broker.publish(&publications, &confirms)).await);
            number
        }));
    }

    pub(crate) fn take_reports(&mut self) {
        for (batch, index, outcome) in self.reports.take() {
            let Some(item) = self.batches.get(&batch).and_then(|items| items.get(index)).copied() else { continue };
            if item == usize::MAX {
                continue; // an outcome was reported before
            }
            if let Some(items) = self.batches.get_mut(&batch) {
                items[index] = usize::MAX;
            }
            self.landed(item, outcome);
        }
    }

    /// Handles the end of a broker call. Messages without a reported outcome may have arrived.
    pub(crate) fn batch_ended(&mut self, batch: u64) {
        self.take_reports();
        for item in self.batches.remove(&batch).unwrap_or_default() {
            if item != usize::MAX {
                self.landed(item, Err(Failure::new(Class::Unknown, "the broker did not answer in time")));
            }
        }
    }

    fn landed(&mut self, at: usize, outcome: Outcome) {
        self.in_flight -= 1;
        self.keys.items[at].tell(&outcome);
        let Some(landed) = self.keys.land(at, outcome) else { return };
        let key = self.keys.items[at].entry.message.key.clone();
        let mut landed = landed.into_iter();
        while let Some((item, outcome)) = landed.next() {
            match outcome {
                Ok(()) => self.delivered(item),
                Err(failure) => {
                    // Later messages in flight must follow the failed one, even if they succeeded. Those are then sent
                    // twice.
                    let rest: Vec<usize> = landed.map(|(item, _)| item).collect();
                    self.keys.put_back(&key, rest.into_iter());
                    self.failed(item, &key, failure);
                    return;
                }
            }
        }
        self.keys.go_on(&key);
    }

    fn delivered(&mut self, at: usize) {
        add(&self.stats.published, 1);
        let proven = self.health.passed(at);
        let item = self.keys.items.remove(at);
        self.stats.latencies.publish(item.entry.message.created_at);
        let released = item.is_probe.then(|| {
            self.holds.release(&item.address);
            Arc::clone(&item.address)
        });
        match item.source {
            Source::Page { page, index } => {
                self.pages.resolve(page, index, Verdict::Done);
                self.pages.will_settle(page, index, item.span);
            }
            Source::Run { run, no } => {
                self.runs.will_settle(run, item.span);
                self.runs.delivered(run, no, released);
            }
        }
        for guilty in proven {
            self.quarantine(guilty);
        }
    }

    fn failed(&mut self, at: usize, key: &ByteString, failure: Failure) {
        let now = Instant::now();
        let jitter = self.random.jitter();
        let item = &mut self.keys.items[at];
        let attempt = item.attempts + 1;
        let class = failure.class();
        self.stats.failed(class);
        let message_id = item.entry.message.id;
        let outcome = Err(failure);
        let next = item.route.policy.next(attempt, &outcome, jitter);
        let Err(failure) = outcome else { unreachable!("it was made an error above") };
        if class != Class::Unknown {
            item.unknowns = 0;
        }
        let stop = match next {
            Next::Delivered => unreachable!("a failure is never a delivery"),
            Next::WaitForDestination => {
                if self.health.away(at, now, self.config.outage_min, self.config.outage_max) {
                    add(&self.stats.outages, 1);
                    if let Some(times) = self.outages.happened(now, self.config.outage_min) {
                        warn!(relay = %self.config.name, error = %failure.describe(), times, "the destination is away");
                    }
                }
                self.keys.ready.push_front(at);
                return;
            }
            Next::SendAgain => return self.send_again(at, now),
            Next::RetryIn(after) => {
                add(&self.stats.retried, 1);
                Stop::Retry { after }
            }
            Next::HoldAddress(pause) => {
                let after = pause.unwrap_or(self.config.hold_probe);
                let held = Held { class: class.word(), error: failure.describe(), after };
                self.holds.add(&item.address, held);
                if class == Class::Blocked {
                    error!(address = %item.address, error = %failure.describe(), "nothing can pass to this address");
                }
                Stop::Address { address: Arc::clone(&item.address), after }
            }
            Next::Bury => match item.route.after_dead {
                AfterDead::Hold => Stop::DeadHold,
                AfterDead::Continue => Stop::DeadContinue,
            },
        };
        let trace_id = self.config.traces.trace_of(&item.entry.message).map(display);
        debug!(%message_id, trace_id, attempt, class = class.word(), error = %failure.describe(), ?stop, "not delivered");
        self.health.answered(at);
        let stopped = Stopped {
            stop,
            attempts: if class.counts() { attempt } else { item.attempts },
            class: class.word(),
            error: failure.describe(),
            route: item.route.name.as_str().into(),
        };
        debug_assert!(self.keys.items[at].entry.message.key == *key, "an item keeps its key");
        self.stop(at, stopped);
    }

    /// Handles a lost confirmation: sends the same id again soon, and alone after several consecutive losses.
    fn send_again(&mut self, at: usize, now: Instant) {
        add(&self.stats.unknown, 1);
        let item = &mut self.keys.items[at];
        item.unknowns += 1;
        if item.unknowns < self.config.unknown_max {
            let pause = SEND_AGAIN * (1 << item.unknowns.min(6));
            self.later.insert((now + pause, at), Again::Send);
        } else if self.health.suspect(at) {
            // It was lost again although it was sent alone. Quarantine it as soon as another message succeeds.
            self.health.away(at, now, self.config.outage_min, self.config.outage_max);
            self.later.insert((now + self.config.outage_max, at), Again::Alone);
        }
        self.health.unanswered(at, now, self.config.outage_min, self.config.outage_max);
    }

    /// Makes items ready whose delay has ended.
    pub(crate) fn wake_later(&mut self, now: Instant) {
        while let Some(entry) = self.later.first_entry() {
            if entry.key().0 > now {
                return;
            }
            let ((_, at), again) = entry.remove_entry();
            match again {
                Again::Send => self.keys.ready.push_back(at),
                Again::Alone => self.health.retry_accused(at),
            }
        }
    }

    fn quarantine(&mut self, at: usize) {
        self.later.retain(|(_, item), _| *item != at);
        let item = &self.keys.items[at];
        let trace_id = self.config.traces.trace_of(&item.entry.message).map(display);
        error!(message_id = %item.entry.message.id, trace_id, "a message takes connections down with it, quarantined");
        let stopped = Stopped {
            stop: Stop::Quarantine { after: self.config.quarantine_probe },
            attempts: item.attempts,
            class: Class::Unknown.word(),
            error: "its answer was lost each time, even when it was sent alone".to_owned(),
            route: item.route.name.as_str().into(),
        };
        self.stop(at, stopped);
    }

    /// Parks or dead-letters an item. Its key waits behind it or continues without it.
    pub(crate) fn stop(&mut self, at: usize, stopped: Stopped) {
        let item = self.keys.items.remove(at);
        let key = item.entry.message.key.clone();
        let goes_on = stopped.stop == Stop::DeadContinue;
        if matches!(stopped.stop, Stop::DeadHold | Stop::DeadContinue) {
            add(&self.stats.buried, 1);
            let trace_id = self.config.traces.trace_of(&item.entry.message).map(display);
            error!(message_id = %item.entry.message.id, trace_id, attempts = stopped.attempts, error = %stopped.error, "message is dead");
        } else {
            add(&self.stats.parked, 1);
        }
        match item.source {
            Source::Page { page, index } => {
                self.pages.resolve(page, index, Verdict::Stopped(Box::new(stopped)));
                if goes_on {
                    self.keys.go_on(&key);
                    return;
                }
                self.parked.insert(&key);
            }
            Source::Run { run, no } => self.runs.stopped(run, no, stopped),
        }
        for waiting in self.keys.take_waiting(&key) {
            let item = self.keys.items.remove(waiting);
            match item.source {
                Source::Page { .. } => self.wait_behind(&key, item),
                // The remaining messages of the run are still in the store's queue.
                Source::Run { run, .. } => self.runs.abandon(run),
            }
        }
    }

    /// Records that a message of the log waits behind a parked head of its key. It stays in memory until this is
    /// settled.
    pub(crate) fn wait_behind(&mut self, key: &ByteString, item: Item) {
        let Source::Page { page, index } = item.source else { unreachable!("only the log's messages wait behind") };
        add(&self.stats.parked, 1);
        let at = self.keys.items.insert(item);
        self.behind.entry(key.clone()).or_default().push(at);
        self.pages.resolve(page, index, Verdict::Behind(at));
    }

    /// Handles a parked head that is no longer in the way. Messages that wait behind it in memory are published
    /// directly, before later messages of the key.
    pub(crate) fn unpark(&mut self, key: &ByteString) {
        self.parked.remove(key);
        let mut waiting = self.behind.remove(key).unwrap_or_default();
        waiting.sort_by_key(|at| self.keys.items[*at].source.order());
        for at in waiting {
            let mut item = self.keys.items.remove(at);
            let Source::Page { page, index } = item.source else { unreachable!("only the log's messages wait behind") };
            // The routes may have changed while it waited.
            let Some(route) = self.route(&item.entry.message) else {
                self.pages.resolve(page, index, Verdict::Done);
                continue;
            };
            item.address = route.address_of(&item.entry.message);
            item.route = route;
            self.pages.resolve(page, index, Verdict::Pending);
            self.keys.push(item);
        }
    }
}

/// The parking reason of an item whose address is held.
fn held_stop(item: &Item, held: &Held) -> Stopped {
    Stopped {
        stop: Stop::Address { address: Arc::clone(&item.address), after: held.after },
        attempts: item.attempts,
        class: held.class,
        error: held.error.clone(),
        route: item.route.name.as_str().into(),
    }
}
