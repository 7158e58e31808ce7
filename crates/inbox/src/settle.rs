//! Acknowledgements and delayed retries, many in one call to the broker.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use relevo_core::inbox::Inbox;
use relevo_core::retry::ExponentialBackoff;
use relevo_core::trace::{ActiveSpan, Operation};
use relevo_core::{AckOutcome, BrokerConsumer, Class, DeliveryTag, Failure, Jitter, Lane, Tracer};
use tokio::time::{Instant, timeout};
use tracing::warn;

use crate::config::Config;
use crate::delivery::PendingDelivery;
use crate::runtime::{BoxedCall, ConsumerRuntime, poll};
use crate::status::add;

/// A delivery that this process has finished, not yet settled at the broker.
#[derive(Debug)]
pub(crate) struct HandledDelivery {
    tag: DeliveryTag,
    /// The broker delivers it again after this time. `None`: it is acknowledged.
    delay: Option<Duration>,
    lane: Lane,
    offset: Option<u64>,
    /// Pauses between failed calls to settle it.
    backoff: ExponentialBackoff,
    span: Option<ActiveSpan>,
}

/// Deliveries of a finished call, each with its outcome.
pub(crate) type Settled = Vec<(HandledDelivery, AckOutcome)>;

/// Deliveries to settle at the broker. Delayed retries have their own calls: those may wait for a broker queue, and
/// acknowledgements must not wait with them.
#[derive(Default)]
pub(crate) struct AckQueue {
    acknowledgements: Calls,
    retries: Calls,
}

/// The call in progress, and the deliveries for the next one.
#[derive(Default)]
struct Calls {
    pending: VecDeque<HandledDelivery>,
    /// Failed deliveries by the time of their next retry. Each has its own time, so that one that always fails does not
    /// delay others.
    failed: BTreeMap<(Instant, DeliveryTag), HandledDelivery>,
    in_call: Vec<HandledDelivery>,
    call: Option<BoxedCall<Vec<AckOutcome>>>,
}

impl AckQueue {
    /// Acknowledges the delivery, or has it delivered again after this delay.
    pub(crate) fn push(&mut self, delivery: PendingDelivery, delay: Option<Duration>, config: &Config) {
        let span = start_span(&delivery, &config.tracer, delay.is_some());
        let PendingDelivery { tag, message, .. } = delivery;
        let (lane, offset, backoff) = (message.lane, message.offset, config.outage_backoff());
        self.calls(delay).pending.push_back(HandledDelivery { tag, delay, lane, offset, backoff, span });
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.acknowledgements.is_empty() && self.retries.is_empty()
    }

    /// The outcomes of the next call that finishes. Without a call in progress it never returns.
    pub(crate) async fn finished(&mut self) -> Settled {
        tokio::select! {
            biased;
            outcomes = poll(&mut self.acknowledgements.call) => self.acknowledgements.finish(outcomes),
            outcomes = poll(&mut self.retries.call) => self.retries.finish(outcomes),
        }
    }

    /// When the next failed delivery is retried.
    pub(crate) fn wakes_at(&self) -> Option<Instant> {
        [&self.acknowledgements, &self.retries].into_iter().filter_map(Calls::wakes_at).min()
    }

    fn start(&mut self, consumer: &Arc<dyn BrokerConsumer>, config: &Config, now: Instant) {
        let call_timeout = config.broker_timeout;
        if self.acknowledgements.next(config.ack_batch_max, now) {
            let tags: Vec<DeliveryTag> = self.acknowledgements.in_call.iter().map(|delivery| delivery.tag).collect();
            let consumer = Arc::clone(consumer);
            self.acknowledgements.call = Some(Box::pin(async move {
                timeout(call_timeout, consumer.acknowledge(&tags)).await.unwrap_or_else(|_| timed_out(tags.len()))
            }));
        }
        if self.retries.next(config.ack_batch_max, now) {
            let retries: Vec<(DeliveryTag, Duration)> = self
                .retries
                .in_call
                .iter()
                .map(|delivery| (delivery.tag, delivery.delay.unwrap_or_default()))
                .collect();
            let consumer = Arc::clone(consumer);
            self.retries.call = Some(Box::pin(async move {
                let broker = consumer.delayed_retry().expect("the runtime does not start without it");
                timeout(call_timeout, broker.retry_later(&retries)).await.unwrap_or_else(|_| timed_out(retries.len()))
            }));
        }
    }

    /// Drops the calls in progress. Their deliveries may or may not be settled.
    pub(crate) fn abandon_calls(&mut self) {
        self.acknowledgements.call = None;
        self.retries.call = None;
    }

    fn calls(&mut self, delay: Option<Duration>) -> &mut Calls {
        if delay.is_some() { &mut self.retries } else { &mut self.acknowledgements }
    }
}

/// Begins the span of an acknowledgement or a delayed retry.
fn start_span(delivery: &PendingDelivery, tracer: &Tracer, is_retry: bool) -> Option<ActiveSpan> {
    let incoming = delivery.incoming.as_ref().ok()?;
    let mut span = tracer.start(Operation::Settle, &incoming.message, &incoming.address)?;
    span.verdict(if is_retry { "retry" } else { "acknowledge" });
    Some(span)
}

fn timed_out(deliveries: usize) -> Vec<AckOutcome> {
    AckOutcome::failed(Failure::new(Class::Unknown, "the broker did not respond in time"), deliveries)
}

impl Calls {
    fn is_empty(&self) -> bool {
        self.pending.is_empty() && self.failed.is_empty() && self.in_call.is_empty()
    }

    fn wakes_at(&self) -> Option<Instant> {
        let next = self.failed.first_key_value().map(|((at, _), _)| *at);
        next.filter(|_| self.call.is_none())
    }

    /// Selects the deliveries of the next call; `false` if there is none.
    fn next(&mut self, limit: usize, now: Instant) -> bool {
        if self.call.is_some() {
            return false;
        }
        let is_due = self.failed.first_key_value().is_some_and(|((at, _), _)| *at <= now);
        // Part of a full call is reserved for retries, so that neither new nor failed deliveries starve.
        let new_max = if is_due && limit > 1 { limit - limit.div_ceil(4) } else { limit };
        self.in_call.extend(self.pending.drain(..self.pending.len().min(new_max)));
        while self.in_call.len() < limit
            && let Some(entry) = self.failed.first_entry()
            && entry.key().0 <= now
        {
            self.in_call.push(entry.remove());
        }
        !self.in_call.is_empty()
    }

    fn finish(&mut self, outcomes: Vec<AckOutcome>) -> Settled {
        self.call = None;
        assert_eq!(outcomes.len(), self.in_call.len(), "a broker has one outcome per delivery");
        self.in_call.drain(..).zip(outcomes).collect()
    }
}

impl<I: Inbox> ConsumerRuntime<I> {
    pub(crate) fn start_acks(&mut self, now: Instant) {
        self.acks.start(&self.consumer, &self.worker.config, now);
    }

    pub(crate) fn apply_acks(&mut self, settled: Settled) {
        let now = Instant::now();
        let mut failures = Vec::new();
        for (delivery, outcome) in settled {
            match outcome {
                AckOutcome::Acknowledged => self.remove(delivery, false, now),
                AckOutcome::Stale => self.remove(delivery, true, now),
                AckOutcome::Failed(failure) => {
                    self.retry(delivery, now);
                    failures.push(failure);
                }
            }
        }
        if let Some(first) = failures.first() {
            add(&self.worker.status.broker_outages, 1);
            warn!(failed = failures.len(), error = %first.error_chain(), "acknowledging failed, will retry");
        }
    }

    /// Schedules a retry with the delivery's own backoff. Repeating the call is safe, whatever its outcome was.
    fn retry(&mut self, mut delivery: HandledDelivery, now: Instant) {
        let at = now + delivery.backoff.next(Jitter::NONE);
        self.acks.calls(delivery.delay).failed.insert((at, delivery.tag), delivery);
    }

    fn remove(&mut self, delivery: HandledDelivery, is_stale: bool, now: Instant) {
        let HandledDelivery { lane, offset, span, .. } = delivery;
        add(&self.worker.status.stale_acks, usize::from(is_stale));
        if let Some(span) = span {
            if is_stale {
                span.fail("stale", "the delivery was not outstanding".to_owned());
            } else {
                span.end();
            }
        }
        self.lanes.remove_message(&lane, now);
        let Some(queue) = self.lanes.map.get_mut(&lane) else { return };
        // The broker delivers a stale one again, maybe to another member, or it was acknowledged before. The inbox has
        // it in both cases.
        queue.revoked |= is_stale;
        if let Some(offset) = offset {
            queue.settled_offset.settled(offset);
        }
    }
}
