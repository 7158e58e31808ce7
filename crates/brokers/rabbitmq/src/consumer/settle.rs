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

use super::arrived::Arrived;
use super::shared::Shared;
use super::side::Copy;
use super::state::Phase;
use crate::classify::Error;
use crate::ladder;
use crate::topology::retry_queue;

impl Shared {
    /// Acknowledges each delivery, or moves it to a retry queue for a delay.
    pub(crate) async fn settle(&self, deliveries: &[(DeliveryTag, Option<Duration>)]) -> Vec<AckOutcome> {
        let claims = self.claim(deliveries);
        let settled = join_all(claims.into_iter().map(|(lane, claim)| self.settle_lane(lane, claim))).await;
        let mut results: BTreeMap<u64, Result<(), Error>> = settled.into_iter().flatten().collect();
        let outcome = |(tag, _): &(DeliveryTag, _)| match results.remove(&tag.number()) {
            Some(Ok(())) => AckOutcome::Acknowledged,
            Some(Err(error)) => AckOutcome::Failed(error.into()),
            None => AckOutcome::Stale,
        };
        deliveries.iter().map(outcome).collect()
    }

    /// Reserves the outstanding deliveries for this call.
    fn claim(&self, deliveries: &[(DeliveryTag, Option<Duration>)]) -> BTreeMap<usize, Claim<'_>> {
        let mut claims = BTreeMap::new();
        let mut state = self.state();
        for (tag, delay) in deliveries {
            let Some((lane, held)) = state.find(*tag) else { continue };
            let claim = claims.entry(lane).or_insert_with(|| Claim::new(self, lane));
            claim.tags.insert(tag.number());
            if held.phase == Phase::Out {
                held.phase = Phase::Settling;
                claim.retries.extend(delay.map(|after| (tag.number(), Retry { after, counted: true })));
            }
        }
        drop(state);
        claims
    }

    /// Acknowledges the deliveries of a lane. A failed one stays outstanding and does not stop the others.
    async fn settle_lane(&self, lane: usize, claim: Claim<'_>) -> Vec<(u64, Result<(), Error>)> {
        let mut failed = self.publish_copies(lane, &claim).await;
        let tags: BTreeSet<u64> = claim.tags.iter().copied().filter(|tag| !failed.contains_key(tag)).collect();
        let acknowledged = if tags.is_empty() { Ok(()) } else { self.acknowledge_lane(lane, &tags).await };
        let result = |tag: &u64| (*tag, failed.remove(tag).map_or_else(|| acknowledged.clone(), Err));
        claim.tags.iter().map(result).collect()
    }

    async fn acknowledge_lane(&self, lane: usize, tags: &BTreeSet<u64>) -> Result<(), Error> {
        let channel = self.tell(lane, tags)?;
        self.round_trip(lane, &channel).await?;
        let mut state = self.state();
        for tag in tags {
            state.lanes[lane].held.remove(tag);
        }
        drop(state);
        self.wakers[lane].notify_one();
        Ok(())
    }

    /// Publishes the copies that must be in a retry queue before the original is acknowledged. Returns the failed ones
    /// with their errors.
    async fn publish_copies(&self, lane: usize, claim: &Claim<'_>) -> BTreeMap<u64, Error> {
        let (mut tags, mut copies) = (Vec::new(), Vec::new());
        let mut failed = BTreeMap::new();
        for (tag, result) in self.copies(lane, claim) {
            match result {
                Ok(copy) => {
                    tags.push(tag);
                    copies.push(copy);
                }
                Err(error) => drop(failed.insert(tag, error)),
            }
        }
        if !copies.is_empty() {
            let published = tags.into_iter().zip(self.side.publish(copies).await);
            failed.extend(published.filter_map(|(tag, result)| Some((tag, result.err()?))));
        }
        failed
    }

    fn copies(&self, lane: usize, claim: &Claim<'_>) -> Vec<(u64, Result<Copy, Error>)> {
        let state = self.state();
        let copy = |(tag, retry): &(u64, Retry)| {
            let held = state.lanes[lane].held.get(tag).ok_or(Error::Unsettled);
            (*tag, held.and_then(|held| self.copy(lane, &held.arrived, *retry)))
        };
        claim.retries.iter().map(copy).collect()
    }

    /// Queues the acknowledgements. Returns their channel.
    fn tell(&self, lane: usize, tags: &BTreeSet<u64>) -> Result<Channel, Error> {
        let mut state = self.state();
        let lane = &mut state.lanes[lane];
        // The lane may have been lost and even reopened: its new channel does not know these deliveries.
        if !tags.iter().all(|tag| lane.held.contains_key(tag)) {
            return Err(Error::Unsettled);
        }
        let channel = lane.channel.clone().ok_or(Error::Unsettled)?;
        for (number, multiple) in lane.tell(tags) {
            // The first poll queues the frame; the round trip shows whether it arrived.
            if let Some(Err(_)) = channel.basic_ack(number, BasicAckOptions { multiple }).now_or_never() {
                return Err(Error::Unsettled);
            }
        }
        Ok(channel)
    }

    fn copy(&self, lane: usize, arrived: &Arrived, retry: Retry) -> Result<Copy, Error> {
        let Arrived { properties, address, retries, .. } = arrived;
        let Some((rung, left)) = ladder::step(&self.group.retry, retry.after) else {
            return Err(Error::Missing(format!("the queue `{}` has no retry ladder", self.group.name)));
        };
        let retries = retries.saturating_add(retry.counted.into());
        let properties = ladder::climbing(properties, retries, left, address);
        Ok(Copy { queue: retry_queue(&self.queues[lane], rung), properties, payload: arrived.payload.clone() })
    }

    /// Moves a message with a remaining delay to its next retry queue. It was not delivered to a caller, so this is not
    /// counted as a retry.
    pub(crate) async fn climb_on(&self, lane: usize, tag: u64) -> Result<(), Error> {
        let mut claim = Claim::new(self, lane);
        {
            let mut state = self.state();
            let Some((_, held)) = state.find(DeliveryTag::new(tag)) else { return Ok(()) };
            claim.tags.insert(tag);
            if held.phase == Phase::Out {
                held.phase = Phase::Settling;
                claim.retries.push((tag, Retry { after: held.arrived.pause_left, counted: false }));
            }
        }
        self.settle_lane(lane, claim).await.into_iter().try_for_each(|(_, settled)| settled)
    }

    /// RabbitMQ does not confirm an acknowledgement. A later request on the same channel is answered after the broker
    /// has processed the acknowledgement; here, the queue itself answers. From then on a failure of this process or its
    /// connection has no effect. A crash of the broker may still lose it, because the queue may have it only in memory.
    async fn round_trip(&self, lane: usize, channel: &Channel) -> Result<(), Error> {
        let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let asked = channel.queue_declare(self.queues[lane].as_str().into(), options, FieldTable::default());
        match timeout(self.config.confirm_deadline, asked).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(Error::Unsettled),
        }
    }
}

/// A message for a retry queue.
#[derive(Clone, Copy)]
struct Retry {
    after: Duration,
    /// Whether a caller requested it. Otherwise the message continues a delay that is longer than one queue's.
    counted: bool,
}

/// The deliveries of one lane that one call acknowledges. Those without a sent acknowledgement are outstanding again
/// when the call ends, even by cancellation.
struct Claim<'a> {
    shared: &'a Shared,
    lane: usize,
    tags: BTreeSet<u64>,
    retries: Vec<(u64, Retry)>,
}

impl<'a> Claim<'a> {
    fn new(shared: &'a Shared, lane: usize) -> Self {
        Self { shared, lane, tags: BTreeSet::new(), retries: Vec::new() }
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        let lane = &mut state.lanes[self.lane];
        for tag in &self.tags {
            if let Some(held) = lane.held.get_mut(tag).filter(|held| held.phase == Phase::Settling) {
                held.phase = Phase::Out;
            }
        }
    }
}
