//! Publishes ready messages in batches and applies each outcome.

pub(crate) mod health;
mod spans;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::FuturesUnordered;
use jiff::Timestamp;
use relevo_core::broker::OutcomeReceiver;
use relevo_core::outbox::log::{ParkAction, PublishFailure};
use relevo_core::{Class, Failure, Next, Outcome, Publication};
use tokio::time::{Instant, timeout};
use tracing::field::display;
use tracing::{debug, error, warn};

use crate::buffer::{BufferId, Origin};
use crate::config::Config;
use crate::log_throttle::LogThrottle;
use crate::parked::holds::HoldReason;
use crate::publish::health::{BrokerHealth, SendPermit};
use crate::relay::{Pending, Relay};
use crate::settle::EntryState;
use crate::status::add;

/// The delay before a message with a lost confirmation is sent again. It doubles with each loss.
const RESEND_DELAY_MIN: Duration = Duration::from_millis(50);

/// Messages in flight, and those that will be sent again.
pub(crate) struct Publisher {
    pub(crate) outcomes: OutcomeReceiver,
    /// The messages of each batch. `None` after the outcome was reported.
    batches: BTreeMap<u64, Vec<Option<BufferId>>>,
    next_batch: u64,
    pub(crate) calls: FuturesUnordered<Pending<u64>>,
    pub(crate) in_flight: usize,
    /// Messages that are sent again at a given time.
    resends: BTreeMap<(Instant, BufferId), ResendMode>,
    pub(crate) health: BrokerHealth,
    outage_log: LogThrottle,
}

/// How a message is sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ResendMode {
    /// With other messages.
    Normal,
    /// Alone.
    Isolated,
}

impl Publisher {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            outcomes: OutcomeReceiver::default(),
            batches: BTreeMap::new(),
            next_batch: 0,
            calls: FuturesUnordered::new(),
            in_flight: 0,
            resends: BTreeMap::new(),
            health: BrokerHealth::new(config.advanced.outage_backoff_min, config.outage_backoff_max),
            outage_log: LogThrottle::default(),
        }
    }

    pub(crate) fn reset(&mut self, now: Instant) {
        self.outcomes = OutcomeReceiver::default();
        self.batches.clear();
        self.calls.clear();
        self.in_flight = 0;
        self.resends.clear();
        self.health.reset(now);
    }

    /// When a resend or a probe is due next.
    pub(crate) fn wake_at(&self, has_ready: bool) -> Option<Instant> {
        let probe = if self.in_flight == 0 { self.health.wake_at(has_ready) } else { None };
        let resend = self.resends.first_key_value().map(|((at, _), _)| *at);
        probe.into_iter().chain(resend).min()
    }

    /// Returns the message of an outcome, and `None` if its outcome was reported before.
    fn take_message(&mut self, batch: u64, index: usize) -> Option<BufferId> {
        self.batches.get_mut(&batch)?.get_mut(index)?.take()
    }
}

impl Relay {
    /// A relay with nothing to send learns of an outage and of its end only from the connection.
    pub(crate) fn is_broker_reported_up(&self, now: Instant) -> bool {
        let publisher = &self.publisher;
        let has_work = publisher.in_flight > 0 || self.buffer.has_ready() || !publisher.resends.is_empty();
        publisher.health.is_reported_up(now, self.reader.caught_up && !has_work) && !self.broker.is_unreachable()
    }

    /// Sends all messages that may be sent now.
    pub(crate) fn publish_ready(&mut self, now: Instant) {
        let lease_left = self.leases.valid_until.saturating_duration_since(now);
        if self.stopping || lease_left.is_zero() {
            return;
        }
        while self.publisher.in_flight < self.config.in_flight_messages_max {
            let room = self.config.in_flight_messages_max - self.publisher.in_flight;
            let batch = match self.publisher.health.may_send(now, self.publisher.in_flight, self.buffer.has_ready()) {
                SendPermit::Wait => return,
                SendPermit::Isolated(id) => {
                    self.publisher.health.isolated_sent(id);
                    self.buffer.start(id, false, 1)
                }
                SendPermit::Probe => {
                    let batch = self.fill_batch(1);
                    if !batch.is_empty() {
                        self.publisher.health.probe_sent();
                    }
                    batch
                }
                SendPermit::Any => self.fill_batch(self.config.batch_messages_max.min(room)),
            };
            if batch.is_empty() {
                return;
            }
            self.send(batch, lease_left);
        }
    }

    /// Takes at most `room` ready messages. Parks messages whose address is held.
    fn fill_batch(&mut self, room: usize) -> Vec<BufferId> {
        let ordered_in_flight = self.broker.capabilities().ordered_in_flight;
        let mut batch = Vec::new();
        while batch.len() < room {
            let Some(id) = self.buffer.take_ready() else { break };
            let message = &self.buffer[id];
            match self.parked.held.get(&message.address) {
                Some(reason) if !message.is_probe => {
                    let failure = reason.failure_of(message);
                    self.buffer.start(id, false, 1);
                    self.buffer.finish(id, Ok(()));
                    self.park_or_dead_letter(id, failure);
                }
                _ => batch.extend(self.buffer.start(id, ordered_in_flight && room > 1, room - batch.len())),
            }
        }
        batch
    }

    fn send(&mut self, batch: Vec<BufferId>, lease_left: Duration) {
        let now = Timestamp::now();
        self.start_spans(&batch);
        let publications: Vec<Publication> = batch
            .iter()
            .map(|&id| {
                let message = &mut self.buffer[id];
                if !std::mem::replace(&mut message.was_sent, true) {
                    self.status.observe_dispatched(message.entry.message.created_at, now);
                }
                Publication {
                    message: message.outgoing(),
                    address: Arc::clone(&message.address),
                    headers: Arc::clone(&message.route.headers),
                    seq: message.entry.seq,
                    epoch: message.lease.epoch,
                }
            })
            .collect();
        let number = self.publisher.next_batch;
        self.publisher.next_batch += 1;
        self.publisher.in_flight += batch.len();
        add(&self.status.counters.attempts, batch.len());
        self.publisher.batches.insert(number, batch.into_iter().map(Some).collect());
        let broker = Arc::clone(&self.broker);
        let confirms = self.publisher.outcomes.sender(number);
        // Never longer than the lease: after it, another relay may publish the same messages.
        let publish_timeout = self.config.publish_timeout.min(lease_left);
        self.publisher.calls.push(Box::pin(async move {
            // Messages without a reported outcome by then may have arrived.
            drop(timeout(publish_timeout, broker.publish(&publications, &confirms)).await);
            number
        }));
    }

    pub(crate) fn take_outcomes(&mut self) {
        for (batch, index, outcome) in self.publisher.outcomes.take() {
            if let Some(id) = self.publisher.take_message(batch, index) {
                self.apply_outcome(id, outcome);
            }
        }
    }

    /// Handles the end of a broker call. Messages without a reported outcome may have arrived.
    pub(crate) fn end_batch(&mut self, batch: u64) {
        self.take_outcomes();
        for id in self.publisher.batches.remove(&batch).into_iter().flatten().flatten() {
            self.apply_outcome(id, Err(Failure::new(Class::Unknown, "no confirmation before the timeout")));
        }
    }

    fn apply_outcome(&mut self, id: BufferId, outcome: Outcome) {
        self.publisher.in_flight -= 1;
        self.buffer[id].end_span(&outcome);
        let Some(finished) = self.buffer.finish(id, outcome) else { return };
        let key = self.buffer[id].entry.message.key.clone();
        let mut finished = finished.into_iter();
        while let Some((id, outcome)) = finished.next() {
            match outcome {
                Ok(()) => self.on_confirmed(id),
                Err(failure) => {
                    // Later messages in flight must follow the failed one, even if they succeeded. Those are then sent
                    // twice.
                    let rest: Vec<BufferId> = finished.map(|(id, _)| id).collect();
                    self.buffer.requeue(&key, rest.into_iter());
                    self.on_failed(id, &failure);
                    return;
                }
            }
        }
        self.buffer.release_next(&key);
    }

    fn on_confirmed(&mut self, id: BufferId) {
        add(&self.status.counters.published, 1);
        let to_quarantine = self.publisher.health.on_success(id);
        let message = self.buffer.remove(id);
        self.status.observe_published(message.entry.message.created_at);
        let released = message.is_probe.then(|| {
            self.parked.held.release(&message.address);
            Arc::clone(&message.address)
        });
        match message.origin {
            Origin::Log { page, index } => {
                self.pages.resolve(page, index, EntryState::Done);
                self.pages.attach_span(page, index, message.span);
            }
            Origin::Parked { batch, ordinal } => {
                self.parked.batches.attach_span(batch, message.span);
                self.parked.batches.delivered(batch, ordinal, released);
            }
        }
        for id in to_quarantine {
            self.quarantine(id);
        }
    }

    fn on_failed(&mut self, id: BufferId, failure: &Failure) {
        let now = Instant::now();
        let jitter = self.random.jitter();
        let class = failure.class();
        self.status.count_failure(class);
        let message = &mut self.buffer[id];
        let attempt = message.attempts + 1;
        if class != Class::Unknown {
            message.lost_confirms = 0;
        }
        let action = match message.route.policy.decide(attempt, class, jitter) {
            Next::WaitForBroker => return self.wait_for_broker(id, now, failure),
            Next::Resend => return self.resend(id, now),
            Next::RetryAfter(after) => {
                add(&self.status.counters.retried, 1);
                ParkAction::Retry { after }
            }
            Next::HoldAddress(pause) => {
                let after = pause.unwrap_or(self.config.advanced.blocked_probe_interval);
                let reason = HoldReason { class: class.as_str(), error: failure.error_chain(), probe_after: after };
                self.parked.held.add(&message.address, reason);
                if class == Class::Blocked {
                    error!(
                        address = %message.address, error = %failure.error_chain(),
                        "broker rejects every message to this address; its keys are parked until a probe succeeds"
                    );
                }
                ParkAction::HoldAddress { address: Arc::clone(&message.address), after }
            }
            Next::DeadLetter => ParkAction::DeadLetter(message.route.after_dead),
        };
        let message_id = message.entry.message.id;
        let trace_id = self.config.tracer.trace_id(&message.entry.message).map(display);
        debug!(%message_id, trace_id, attempt, class = class.as_str(), error = %failure.error_chain(), ?action, "publish failed");
        self.publisher.health.on_rejection(id);
        let failure = PublishFailure {
            action,
            attempts: if class.counts_as_attempt() { attempt } else { message.attempts },
            class: class.as_str(),
            error: failure.error_chain(),
            route: message.route.name.as_str().into(),
        };
        self.park_or_dead_letter(id, failure);
    }

    /// Handles an outage: the message stays the first one to send.
    fn wait_for_broker(&mut self, id: BufferId, now: Instant, failure: &Failure) {
        if self.publisher.health.on_outage(id, now) {
            add(&self.status.counters.broker_outages, 1);
            if let Some(times) = self.publisher.outage_log.occurred(now, self.config.advanced.outage_backoff_min) {
                warn!(relay = %self.config.name, error = %failure.error_chain(), times, "broker unreachable, publishing paused");
            }
        }
        self.buffer.push_ready_front(id);
    }

    /// Handles a lost confirmation: sends the same id again soon, and alone after several consecutive losses.
    fn resend(&mut self, id: BufferId, now: Instant) {
        let message = &mut self.buffer[id];
        message.lost_confirms += 1;
        if message.lost_confirms < self.config.advanced.lost_confirms_max {
            let delay = RESEND_DELAY_MIN * (1 << message.lost_confirms.min(6));
            self.publisher.resends.insert((now + delay, id), ResendMode::Normal);
        } else if self.publisher.health.isolate(id) {
            // It was lost again although it was sent alone. Quarantine it as soon as another message succeeds.
            self.publisher.health.on_outage(id, now);
            self.publisher.resends.insert((now + self.config.outage_backoff_max, id), ResendMode::Isolated);
        }
        self.publisher.health.on_lost_confirm(id, now);
    }

    /// Makes messages ready whose delay has ended.
    pub(crate) fn wake_resends(&mut self, now: Instant) {
        while let Some(resend) = self.publisher.resends.first_entry() {
            if resend.key().0 > now {
                return;
            }
            let ((_, id), mode) = resend.remove_entry();
            match mode {
                ResendMode::Normal => self.buffer.push_ready(id),
                ResendMode::Isolated => self.publisher.health.retry_candidate(id),
            }
        }
    }

    fn quarantine(&mut self, id: BufferId) {
        self.publisher.resends.retain(|(_, other), _| *other != id);
        let message = &self.buffer[id];
        let message_id = message.entry.message.id;
        let trace_id = self.config.tracer.trace_id(&message.entry.message).map(display);
        error!(%message_id, trace_id, "message quarantined: the broker never confirms it, even when it is sent alone");
        let failure = PublishFailure {
            action: ParkAction::Quarantine { after: self.config.advanced.quarantine_probe_interval },
            attempts: message.attempts,
            class: Class::Unknown.as_str(),
            error: "no confirmation after repeated attempts, even when sent alone".to_owned(),
            route: message.route.name.as_str().into(),
        };
        self.park_or_dead_letter(id, failure);
    }
}
