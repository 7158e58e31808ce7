//! Receives deliveries from the broker and buffers them.

use std::sync::Arc;

use relevo_core::inbox::Inbox;
use relevo_core::inbox::retry_policy::is_expired;
use relevo_core::retry::ExponentialBackoff;
use relevo_core::{Delivery, Failure, Jitter};
use tokio::time::Instant;
use tracing::warn;

use crate::config::Config;
use crate::handler::Registration;
use crate::runtime::{BoxedCall, ConsumerError, ConsumerRuntime};
use crate::sequence::{SequenceCheck, SequenceTracker};
use crate::status::{add, set};

/// Calls to receive, one at a time.
pub(crate) struct Receiver {
    pub(crate) call: Option<BoxedCall<Result<Vec<Delivery>, Failure>>>,
    /// When the next call may begin.
    at: Instant,
    failures: usize,
    backoff: ExponentialBackoff,
    sequences: SequenceTracker,
}

impl Receiver {
    pub(crate) fn new(config: &Config, now: Instant) -> Self {
        let (backoff, sequences) = (config.outage_backoff(), SequenceTracker::new(config.sequence_keys_max));
        Self { call: None, at: now, failures: 0, backoff, sequences }
    }
}

impl<I: Inbox> ConsumerRuntime<I> {
    pub(crate) fn start_receiving(&mut self, now: Instant) {
        if self.receive_wakes_at().is_none_or(|at| now < at) {
            return;
        }
        let room = self.worker.config.in_memory_messages_max - self.lanes.len();
        let (consumer, limit) = (Arc::clone(&self.consumer), room.min(self.worker.config.receive_batch_max));
        self.receiver.call = Some(Box::pin(async move { consumer.receive(limit).await }));
    }

    /// When the next call may begin; `None` while it depends on more than time.
    pub(crate) fn receive_wakes_at(&self) -> Option<Instant> {
        let heartbeat = self.heartbeat.state.borrow();
        // After an outage, receiving resumes only when a worker or the heartbeat has reached the database again.
        let may_receive = !self.store_health.is_down()
            && heartbeat.heartbeats > 0
            && !heartbeat.reply.paused
            && self.lanes.len() < self.worker.config.in_memory_messages_max;
        let at = self.receiver.at.max(self.store_health.available_at);
        (self.receiver.call.is_none() && may_receive).then_some(at)
    }

    pub(crate) fn apply_received(&mut self, reply: Result<Vec<Delivery>, Failure>) -> Result<(), ConsumerError> {
        let now = Instant::now();
        let receiver = &mut self.receiver;
        match reply {
            Ok(deliveries) if deliveries.is_empty() => return Err(ConsumerError::Closed),
            Ok(deliveries) => {
                receiver.failures = 0;
                receiver.backoff.reset();
                self.heartbeat.report.lock().last_message_at = Some(self.worker.config.clock.now());
                add(&self.worker.status.received, deliveries.len());
                for delivery in deliveries {
                    self.buffer(delivery, now);
                }
            }
            Err(failure) => {
                add(&self.worker.status.broker_outages, 1);
                let pause = receiver.backoff.next(Jitter::NONE);
                warn!(error = %failure.error_chain(), ?pause, "receiving failed, will retry");
                receiver.failures += 1;
                receiver.at = now + pause;
            }
        }
        set(&self.worker.status.receive_failures, self.receiver.failures);
        Ok(())
    }

    fn buffer(&mut self, delivery: Delivery, now: Instant) {
        let (config, status) = (&self.worker.config, &self.worker.status);
        let retries = delivery.retry_count;
        let mut delivery = self.worker.decoder.decode_delivery(config, delivery);
        if let Ok(incoming) = &delivery.incoming {
            let expired =
                is_expired(incoming.message.created_at, config.clock.now(), self.worker.inbox.retention().done);
            let registration = self.worker.handler(incoming);
            delivery.message.attempts = self.worker.attempts_after_broker_retries(registration, retries);
            let is_in_transaction = registration.is_none_or(Registration::is_in_transaction);
            delivery.can_batch = !delivery.redelivered && is_in_transaction && !expired;
            if let (Some(source), Some(seq)) = (&incoming.source, incoming.seq) {
                match self.receiver.sequences.check(source, &incoming.message.key, seq, delivery.redelivered) {
                    SequenceCheck::InOrder => {}
                    SequenceCheck::Repeat => add(&status.sequence_repeats, 1),
                    SequenceCheck::OutOfOrder => delivery.out_of_order = true,
                }
            }
        }
        self.lanes.push(delivery, now);
    }
}
