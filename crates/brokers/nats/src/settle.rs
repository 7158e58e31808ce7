//! Acknowledgements. While a lane is being written, new ones wait, and the next write includes all of them.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use futures_util::future::join_all;
use relevo_core::{AckOutcome, DeliveryTag};
use tokio::sync::oneshot;

use crate::classify::Error;
use crate::consume::ConsumerInner;
use crate::consume::lane_messages::LaneMessages;
use crate::consume::lanes::{LaneSlot, OwnedLane};

/// The tags that are not outstanding, or the error of the write.
type CallResult = Result<HashSet<DeliveryTag>, Arc<Error>>;

/// The part of an `acknowledge` call that concerns one lane.
pub(crate) struct SettleCall {
    tags: Vec<DeliveryTag>,
    reply: oneshot::Sender<CallResult>,
}

impl SettleCall {
    fn respond(self, result: CallResult) {
        // The caller was cancelled if it no longer listens.
        self.reply.send(result).ok();
    }
}

impl ConsumerInner {
    pub(crate) async fn acknowledge(self: &Arc<Self>, tags: &[DeliveryTag]) -> Vec<AckOutcome> {
        let mut by_lane: BTreeMap<u64, Vec<DeliveryTag>> = BTreeMap::new();
        for tag in tags {
            by_lane.entry(tag.number() & 0xffff).or_default().push(*tag);
        }
        let calls = by_lane.into_iter().filter_map(|(number, lane_tags)| {
            let slot = self.lane_slots.get(usize::try_from(number).ok()?).filter(|_| !self.is_closed())?;
            let reply = self.enqueue_acks(slot, lane_tags.clone());
            Some(async move { (lane_tags, reply.await.unwrap_or_else(|_| Err(Arc::new(Error::Closed)))) })
        });
        let mut outcomes: HashMap<DeliveryTag, AckOutcome> = HashMap::new();
        for (lane_tags, result) in join_all(calls).await {
            for tag in lane_tags {
                let outcome = match &result {
                    Ok(stale) if stale.contains(&tag) => AckOutcome::Stale,
                    Ok(_) => AckOutcome::Acknowledged,
                    Err(error) => AckOutcome::Failed(Error::Shared(Arc::clone(error)).into()),
                };
                outcomes.insert(tag, outcome);
            }
        }
        tags.iter().map(|tag| outcomes.remove(tag).unwrap_or(AckOutcome::Stale)).collect()
    }

    /// Queues acknowledgements for the next write of their lane, and starts a task that writes them.
    fn enqueue_acks(self: &Arc<Self>, slot: &LaneSlot, tags: Vec<DeliveryTag>) -> oneshot::Receiver<CallResult> {
        let (sender, receiver) = oneshot::channel();
        let mut calls = slot.settle_calls.lock();
        // There are more calls than outstanding deliveries, so some calls were cancelled.
        if calls.len() >= self.options.prefetch {
            calls.retain(|call| !call.reply.is_closed());
        }
        calls.push(SettleCall { tags, reply: sender });
        drop(calls);
        let (inner, number) = (Arc::clone(self), usize::from(slot.number));
        // A separate task, because a caller that is cancelled during the write must not cancel the others.
        self.spawn(async move { inner.write_calls(&inner.lane_slots[number]).await });
        receiver
    }

    /// Writes all waiting acknowledgements of a lane at once. There is nothing to do if the previous write included
    /// them.
    async fn write_calls(&self, slot: &LaneSlot) {
        let mut owned = slot.owned.lock().await;
        let mut calls = std::mem::take(&mut *slot.settle_calls.lock());
        calls.retain(|call| !call.reply.is_closed());
        if calls.is_empty() {
            return;
        }
        let written = self.write_tags(slot, &mut owned, &calls).await;
        drop(owned);
        self.changed.notify_waiters();
        match written {
            Ok(stale) => {
                for (call, stale) in calls.into_iter().zip(stale) {
                    call.respond(Ok(stale));
                }
            }
            Err(error) => {
                let error = Arc::new(error);
                for call in calls {
                    call.respond(Err(Arc::clone(&error)));
                }
            }
        }
    }

    /// Writes the acknowledgements of these calls. Returns the stale tags of each call.
    async fn write_tags(
        &self,
        slot: &LaneSlot,
        owned: &mut Option<OwnedLane>,
        calls: &[SettleCall],
    ) -> Result<Vec<HashSet<DeliveryTag>>, Error> {
        let plan =
            |messages: &LaneMessages| messages.plan_acks(calls.iter().flat_map(|call| call.tags.iter().copied()));
        let Some(change) = self.write_change(slot, owned, plan).await? else {
            return Ok(calls.iter().map(|call| call.tags.iter().copied().collect()).collect());
        };
        // By index and not by tag: if two calls acknowledge the same delivery, only the second is stale.
        let mut indexes = 0..;
        let stale_of = |call: &SettleCall| {
            let tags = call.tags.iter().zip(indexes.by_ref());
            tags.filter(|(_, index)| change.stale.contains(index)).map(|(tag, _)| *tag).collect()
        };
        let stale = calls.iter().map(stale_of).collect();
        if let Some(lane) = owned.as_mut() {
            let acks = lane.messages.apply(change);
            if lane.releasing && lane.messages.outstanding() == 0 {
                self.rebalance_now.notify_one();
            }
            self.ack_at_server(slot, acks).await;
        }
        Ok(stale)
    }
}
