//! Acknowledgements and delayed retries.
//!
//! For a delayed retry, a copy is published to a retry queue and confirmed first. Then the original is acknowledged. A
//! crash in between leaves two messages with the same id, but never loses one.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::join_all;
use lapin::Channel;
use lapin::options::{BasicAckOptions, QueueDeclareOptions};
use lapin::types::FieldTable;
use relevo_core::{AckOutcome, DeliveryTag};
use tokio::time::timeout;

use crate::classify::Error;
use crate::consume::{ConsumerInner, DeliveryStage, ReceivedMessage, retry_queues};
use crate::publish::EncodedMessage;
use crate::topology::retry_queue_name;

impl ConsumerInner {
    /// Acknowledges each delivery, or moves it to a retry queue for a delay.
    pub(crate) async fn settle(&self, deliveries: &[(DeliveryTag, Option<Duration>)]) -> Vec<AckOutcome> {
        let batches = self.claim_deliveries(deliveries);
        let settled = join_all(batches.into_iter().map(|(lane, batch)| self.settle_lane(lane, batch))).await;
        let mut results: BTreeMap<u64, Result<(), Error>> = settled.into_iter().flatten().collect();
        let outcome = |(tag, _): &(DeliveryTag, _)| match results.remove(&tag.number()) {
            Some(Ok(())) => AckOutcome::Acknowledged,
            Some(Err(error)) => AckOutcome::Failed(error.into()),
            None => AckOutcome::Stale,
        };
        deliveries.iter().map(outcome).collect()
    }

    /// Reserves the outstanding deliveries for this call.
    fn claim_deliveries(&self, deliveries: &[(DeliveryTag, Option<Duration>)]) -> BTreeMap<usize, AckBatch<'_>> {
        let mut batches = BTreeMap::new();
        let mut table = self.lane_table();
        for (tag, delay) in deliveries {
            let Some((lane, delivery)) = table.find(*tag) else { continue };
            let batch = batches.entry(lane).or_insert_with(|| AckBatch::new(self, lane));
            batch.tags.insert(tag.number());
            if delivery.stage == DeliveryStage::HandedOut {
                delivery.stage = DeliveryStage::Acking;
                batch.retries.extend(delay.map(|delay| (tag.number(), Retry { delay, counted: true })));
            }
        }
        drop(table);
        batches
    }

    /// Acknowledges the deliveries of a lane. A failed one stays outstanding and does not stop the others.
    async fn settle_lane(&self, lane: usize, batch: AckBatch<'_>) -> Vec<(u64, Result<(), Error>)> {
        let mut failed = self.publish_copies(lane, &batch).await;
        let tags: BTreeSet<u64> = batch.tags.iter().copied().filter(|tag| !failed.contains_key(tag)).collect();
        let acknowledged = if tags.is_empty() { Ok(()) } else { self.acknowledge_lane(lane, &tags).await };
        let result = |tag: &u64| (*tag, failed.remove(tag).map_or_else(|| acknowledged.clone(), Err));
        batch.tags.iter().map(result).collect()
    }

    async fn acknowledge_lane(&self, lane: usize, tags: &BTreeSet<u64>) -> Result<(), Error> {
        let channel = self.send_acks(lane, tags)?;
        self.await_ack_round_trip(lane, &channel).await?;
        let mut table = self.lane_table();
        for tag in tags {
            table.lanes[lane].outstanding.remove(tag);
        }
        drop(table);
        self.lane_wakers[lane].notify_one();
        Ok(())
    }

    /// Publishes the copies that must be in a retry queue before the original is acknowledged. Returns the failed ones
    /// with their errors.
    async fn publish_copies(&self, lane: usize, batch: &AckBatch<'_>) -> BTreeMap<u64, Error> {
        let (mut tags, mut copies) = (Vec::new(), Vec::new());
        let mut failed = BTreeMap::new();
        for (tag, result) in self.copies(lane, batch) {
            match result {
                Ok(copy) => {
                    tags.push(tag);
                    copies.push(copy);
                }
                Err(error) => drop(failed.insert(tag, error)),
            }
        }
        if !copies.is_empty() {
            let published = tags.into_iter().zip(self.retry_publisher().await.publish_to_queues(copies).await);
            failed.extend(published.filter_map(|(tag, result)| Some((tag, result.err()?))));
        }
        failed
    }

    fn copies(&self, lane: usize, batch: &AckBatch<'_>) -> Vec<(u64, Result<EncodedMessage, Error>)> {
        let table = self.lane_table();
        let copy = |(tag, retry): &(u64, Retry)| {
            let delivery = table.lanes[lane].outstanding.get(tag).ok_or(Error::AckUnconfirmed);
            (*tag, delivery.and_then(|delivery| self.copy(lane, &delivery.message, *retry)))
        };
        batch.retries.iter().map(copy).collect()
    }

    /// Queues the acknowledgements. Returns their channel.
    fn send_acks(&self, lane: usize, tags: &BTreeSet<u64>) -> Result<Channel, Error> {
        let mut table = self.lane_table();
        let lane = &mut table.lanes[lane];
        // The lane may have been lost and even reopened: its new channel does not know these deliveries.
        if !tags.iter().all(|tag| lane.outstanding.contains_key(tag)) {
            return Err(Error::AckUnconfirmed);
        }
        let channel = lane.channel.clone().ok_or(Error::AckUnconfirmed)?;
        for (number, multiple) in lane.mark_acks_sent(tags) {
            // The first poll queues the frame; the round trip shows whether it arrived.
            if let Some(Err(_)) = channel.basic_ack(number, BasicAckOptions { multiple }).now_or_never() {
                return Err(Error::AckUnconfirmed);
            }
        }
        Ok(channel)
    }

    fn copy(&self, lane: usize, message: &ReceivedMessage, retry: Retry) -> Result<EncodedMessage, Error> {
        let ReceivedMessage { properties, address, retries, .. } = message;
        let Some((delay, left)) = retry_queues::next_delay(&self.queue.retry_delays, retry.delay) else {
            return Err(Error::NotFound(format!("queue `{}` has no retry queues", self.queue.name)));
        };
        let retries = retries.saturating_add(retry.counted.into());
        let properties = retry_queues::retry_properties(properties, retries, left, address);
        // The name was checked when the consumer was opened.
        let routing_key = retry_queue_name(&self.queues[lane], delay).as_str().into();
        Ok(EncodedMessage { routing_key, properties, payload: message.payload.clone() })
    }

    /// Moves a message with a remaining delay to its next retry queue. It was not delivered to a caller, so this is not
    /// counted as a retry.
    pub(crate) async fn move_to_next_retry_queue(&self, lane: usize, tag: u64) -> Result<(), Error> {
        let mut batch = AckBatch::new(self, lane);
        {
            let mut table = self.lane_table();
            let Some((_, delivery)) = table.find(DeliveryTag::new(tag)) else { return Ok(()) };
            batch.tags.insert(tag);
            if delivery.stage == DeliveryStage::HandedOut {
                delivery.stage = DeliveryStage::Acking;
                batch.retries.push((tag, Retry { delay: delivery.message.delay_left, counted: false }));
            }
        }
        self.settle_lane(lane, batch).await.into_iter().try_for_each(|(_, settled)| settled)
    }

    /// RabbitMQ does not confirm an acknowledgement. A later request on the same channel is answered after the broker
    /// has processed the acknowledgement; here, the queue itself answers. From then on a failure of this process or its
    /// connection has no effect. A crash of the broker may still lose it, because the queue may have it only in memory.
    async fn await_ack_round_trip(&self, lane: usize, channel: &Channel) -> Result<(), Error> {
        let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let declared = channel.queue_declare(self.queues[lane].as_str().into(), options, FieldTable::default());
        match timeout(self.config.confirm_timeout, declared).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(Error::AckUnconfirmed),
        }
    }
}

/// A message for a retry queue.
#[derive(Clone, Copy)]
struct Retry {
    delay: Duration,
    /// Whether a caller requested it. Otherwise the message continues a delay that is longer than one queue's.
    counted: bool,
}

/// The deliveries of one lane that one call acknowledges. Those without a sent acknowledgement are outstanding again
/// when the call ends, even by cancellation.
struct AckBatch<'a> {
    consumer: &'a ConsumerInner,
    lane: usize,
    tags: BTreeSet<u64>,
    retries: Vec<(u64, Retry)>,
}

impl<'a> AckBatch<'a> {
    fn new(consumer: &'a ConsumerInner, lane: usize) -> Self {
        Self { consumer, lane, tags: BTreeSet::new(), retries: Vec::new() }
    }
}

impl Drop for AckBatch<'_> {
    fn drop(&mut self) {
        let mut table = self.consumer.lane_table();
        let lane = &mut table.lanes[self.lane];
        for tag in &self.tags {
            if let Some(delivery) =
                lane.outstanding.get_mut(tag).filter(|delivery| delivery.stage == DeliveryStage::Acking)
            {
                delivery.stage = DeliveryStage::HandedOut;
            }
        }
    }
}
