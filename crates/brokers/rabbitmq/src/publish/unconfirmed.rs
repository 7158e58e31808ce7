//! The sent and unconfirmed messages of one channel.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use lapin::options::BasicPublishOptions;
use lapin::types::ShortString;
use lapin::{BasicProperties, Channel, Confirmation};

use super::call::{ConfirmResult, PendingConfirm, QueuedMessage};
use super::encode::EncodedMessage;
use super::ready_queue::ReadyQueue;
use super::returns::{ReturnKey, ReturnMatcher};
use crate::classify::Error;

/// A channel and its messages in flight. One task owns it: the client library numbers confirms wrongly when several
/// tasks publish on one channel.
pub(crate) struct UnconfirmedMessages {
    channel: Arc<Channel>,
    exchange: ShortString,
    slots: Vec<Slot>,
    free: Vec<usize>,
    ready_queue: Arc<ReadyQueue>,
    spare_buffer: Vec<usize>,
    returns: ReturnMatcher<(Option<PendingConfirm>, bool)>,
    /// Ordered by deadline: a call may have waited before it came here.
    deadlines: BinaryHeap<Reverse<(Instant, usize, u64)>>,
    serial: u64,
    /// The serial of the latest confirmed message.
    confirmed: u64,
    /// The number of messages that are sent, not confirmed and not expired.
    awaiting: usize,
    /// When a message expired, if nothing was confirmed since then.
    silent_since: Option<Instant>,
    channel_error: Option<lapin::Error>,
}

struct Slot {
    waker: Waker,
    sent: Option<SentMessage>,
}

struct SentMessage {
    confirm: Pin<Box<dyn Future<Output = lapin::Result<Confirmation>> + Send>>,
    /// `None` for an expired message, whose outcome was reported. Its confirm must still be matched.
    pending: Option<PendingConfirm>,
    return_key: ReturnKey,
    bytes: usize,
    serial: u64,
}

impl UnconfirmedMessages {
    /// `silent_since`: since when the previous channel had no confirm.
    pub(crate) fn new(channel: Channel, exchange: ShortString, silent_since: Option<Instant>) -> Self {
        Self {
            channel: Arc::new(channel),
            exchange,
            slots: Vec::new(),
            free: Vec::new(),
            ready_queue: Arc::default(),
            spare_buffer: Vec::new(),
            returns: ReturnMatcher::default(),
            deadlines: BinaryHeap::new(),
            serial: 0,
            confirmed: 0,
            awaiting: 0,
            silent_since,
            channel_error: None,
        }
    }

    /// The number of messages that are sent, not confirmed and not expired.
    pub(crate) const fn awaiting(&self) -> usize {
        self.awaiting
    }

    /// Whether any message waits for its outcome.
    pub(crate) fn is_busy(&self) -> bool {
        self.awaiting > 0 || !self.returns.is_empty()
    }

    /// Whether another call of [`Self::settle`] can decide more without a new wake-up.
    pub(crate) fn needs_round(&self) -> bool {
        self.returns.needs_round()
    }

    /// The number of sent and unconfirmed messages.
    pub(crate) const fn unconfirmed(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Since when nothing was confirmed, if a message has expired.
    pub(crate) const fn silent_since(&self) -> Option<Instant> {
        self.silent_since
    }

    /// Whether a message can be sent. If not, [`Self::settle`] returns the cause as soon as it is known.
    pub(crate) fn is_open(&self) -> bool {
        self.channel_error.is_none() && self.channel.status().connected()
    }

    /// The number of expired messages that keep their slot until their confirm arrives.
    pub(crate) const fn expired(&self) -> usize {
        self.unconfirmed() - self.awaiting
    }

    /// The routing keys of messages that wait for a confirm.
    pub(crate) fn awaiting_keys(&self) -> HashSet<ShortString> {
        let sent = self.slots.iter().filter_map(|slot| slot.sent.as_ref());
        sent.filter(|sent| sent.pending.is_some()).map(|sent| sent.return_key.routing_key.clone()).collect()
    }

    /// Sends a message. [`Self::settle`] returns its outcome, or [`Self::expire`] after the deadline.
    pub(crate) fn send(&mut self, item: QueuedMessage, due: Instant) {
        let QueuedMessage { mut pending, message } = item;
        pending.mark_sent();
        let EncodedMessage { routing_key: key, properties, payload } = message;
        let id = properties.message_id().clone().unwrap_or_default();
        let return_key = ReturnKey { id, routing_key: key.clone() };
        let bytes = payload.len();
        let channel = Arc::clone(&self.channel);
        let confirm = Box::pin(publish(channel, self.exchange.clone(), key, properties, payload));
        let number = self.free.pop().unwrap_or_else(|| {
            let waker = self.ready_queue.waker(self.slots.len());
            self.slots.push(Slot { waker, sent: None });
            self.slots.len() - 1
        });
        self.serial += 1;
        let serial = self.serial;
        self.slots[number].sent = Some(SentMessage { confirm, pending: Some(pending), return_key, bytes, serial });
        self.awaiting += 1;
        self.deadlines.push(Reverse((due, number, serial)));
        // Poll it at once: the order of the polls is the order on the wire.
        self.poll(number);
    }

    /// Becomes ready when [`Self::settle`] has work.
    pub(crate) fn ready_queue(&self) -> Arc<ReadyQueue> {
        Arc::clone(&self.ready_queue)
    }

    /// Processes the received confirms and appends the decided outcomes. Returns the error if the channel is broken.
    pub(crate) fn settle(&mut self, results: &mut Vec<ConfirmResult>) -> Option<lapin::Error> {
        // Every round except the last processes confirms. The limit lets the task return to sending.
        for _ in 0..ROUNDS_MAX {
            let mut woken = self.ready_queue.take_ready(std::mem::take(&mut self.spare_buffer));
            for number in woken.drain(..) {
                self.poll(number);
            }
            self.spare_buffer = woken;
            let idle = self.unconfirmed() == 0;
            for ((pending, confirmed), returned) in self.returns.end_round(idle) {
                if let Some(pending) = pending {
                    results.push((pending, self.outcome(confirmed, returned)));
                }
            }
            if !self.returns.needs_round() {
                break;
            }
        }
        if self.returns.should_prune() {
            self.returns.prune(&self.slots.iter().filter_map(|slot| Some(&slot.sent.as_ref()?.return_key)).collect());
        }
        self.channel_error.clone()
    }

    fn poll(&mut self, number: usize) {
        let slot = &mut self.slots[number];
        let Some(sent) = &mut slot.sent else { return };
        let Poll::Ready(result) = sent.confirm.as_mut().poll(&mut Context::from_waker(&slot.waker)) else { return };
        let confirmation = match result {
            Ok(confirmation) => confirmation,
            // It stays in its slot, to be reported with all the others.
            Err(error) => {
                sent.confirm = Box::pin(std::future::pending());
                self.record_error(error);
                return;
            }
        };
        let Some(sent) = slot.sent.take() else { return };
        self.free.push(number);
        self.awaiting -= usize::from(sent.pending.is_some());
        self.silent_since = None;
        self.confirmed = self.confirmed.max(sent.serial);
        let confirmed = confirmation.is_ack();
        let carried = confirmation.take_message().map(|returned| ReturnKey {
            id: returned.delivery.properties.message_id().clone().unwrap_or_default(),
            routing_key: returned.delivery.routing_key.clone(),
        });
        self.returns.add_confirm((sent.pending, confirmed), (sent.return_key, sent.serial), carried, self.serial);
    }

    /// An error from the server takes precedence over the error of sending on a closed channel.
    fn record_error(&mut self, error: lapin::Error) {
        if self.channel_error.is_none() || error.is_amqp_error() {
            self.channel_error = Some(error);
        }
    }

    fn outcome(&self, confirmed: bool, returned: Option<ReturnKey>) -> Result<(), Error> {
        match returned {
            Some(message) => {
                Err(Error::Unroutable { exchange: self.exchange.to_string(), key: message.routing_key.to_string() })
            }
            None if confirmed => Ok(()),
            None => Err(Error::Nacked),
        }
    }

    /// Reports messages that have passed their deadline. If a later message was confirmed, the server responds, and
    /// only the queue of this message does not.
    pub(crate) fn expire(&mut self, now: Instant, limit: Duration, results: &mut Vec<ConfirmResult>) {
        while let Some(&Reverse((due, number, serial))) = self.deadlines.peek() {
            let waiting = |slot: &Slot| slot.sent.as_ref().is_some_and(|sent| sent.serial == serial);
            let is_waiting = waiting(&self.slots[number]);
            if is_waiting && due > now {
                return;
            }
            self.deadlines.pop();
            let pending = self.slots[number].sent.as_mut().filter(|_| is_waiting).and_then(|sent| sent.pending.take());
            if let Some(pending) = pending {
                self.awaiting -= 1;
                let error = if self.confirmed > serial {
                    Error::QueueStalled(limit)
                } else {
                    self.silent_since.get_or_insert(now);
                    Error::Unconfirmed(limit)
                };
                results.push((pending, Err(error)));
            }
        }
        if self.awaiting == 0 && !self.returns.needs_round() {
            // Only confirms of expired messages could still show whether these were returned. Do not wait for them.
            let undecided = self.returns.drain_undecided().filter_map(|((pending, _), _)| pending);
            results.extend(undecided.map(|pending| (pending, Err(Error::Unconfirmed(limit)))));
        }
    }

    /// Ends the channel: every message without an outcome gets the error that `error_of` returns for its routing key and
    /// size.
    pub(crate) fn fail_all(mut self, error_of: impl Fn(&str, usize) -> Error, results: &mut Vec<ConfirmResult>) {
        // Confirmed, but possibly returned.
        let undecided = self.returns.drain_undecided();
        results.extend(
            undecided.filter_map(|((pending, _), name)| Some((pending?, Err(error_of(name.routing_key.as_str(), 0))))),
        );
        let mut sent: Vec<SentMessage> = self.slots.iter_mut().filter_map(|slot| slot.sent.take()).collect();
        sent.sort_by_key(|sent| sent.serial);
        let result =
            |sent: SentMessage| Some((sent.pending?, Err(error_of(sent.return_key.routing_key.as_str(), sent.bytes))));
        results.extend(sent.into_iter().filter_map(result));
    }
}

const ROUNDS_MAX: usize = 8;

async fn publish(
    channel: Arc<Channel>,
    exchange: ShortString,
    key: ShortString,
    properties: BasicProperties,
    payload: Bytes,
) -> lapin::Result<Confirmation> {
    let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
    channel.basic_publish(exchange, key, options, &payload, properties).await?.await
}
