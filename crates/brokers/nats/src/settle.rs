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
    fn respond(self, told: CallResult) {
        // The caller was cancelled if it no longer listens.
        self.reply.send(told).ok();
    }
}

impl ConsumerInner {
    pub(crate) async fn acknowledge(self: &Arc<Self>, tags: &[DeliveryTag]) -> Vec<AckOutcome> {
        let mut by_lane: BTreeMap<u64, Vec<DeliveryTag>> = BTreeMap::new();
        for tag in tags {
            by_lane.entry(tag.number() & 0xffff).or_default().push(*tag);
        }
        let calls = by_lane.into_iter().filter_map(|(lane, of_lane)| {
            let cell = self.lane_slots.get(usize::try_from(lane).ok()?).filter(|_| !self.is_closed())?;
            let asked = self.enqueue_acks(cell, of_lane.clone());
            Some(async move { (of_lane, asked.await.unwrap_or_else(|_| Err(Arc::new(Error::Closed)))) })
        });
        let mut outcomes: HashMap<DeliveryTag, AckOutcome> = HashMap::new();
        for (of_lane, told) in join_all(calls).await {
            for tag in of_lane {
                let outcome = match &told {
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
    fn enqueue_acks(self: &Arc<Self>, cell: &LaneSlot, tags: Vec<DeliveryTag>) -> oneshot::Receiver<CallResult> {
        let (told, answer) = oneshot::channel();
        let mut calls = cell.settle_calls.lock();
        // There are more calls than outstanding deliveries, so some calls were cancelled.
        if calls.len() >= self.membership.prefetch {
            calls.retain(|call| !call.reply.is_closed());
        }
        calls.push(SettleCall { tags, reply: told });
        drop(calls);
        let (shared, number) = (Arc::clone(self), usize::from(cell.number));
        // A separate task, because a caller that is cancelled during the write must not cancel the others.
        self.spawn(async move { shared.write_calls(&shared.lane_slots[number]).await });
        answer
    }

    /// Writes all waiting acknowledgements of a lane at once. There is nothing to do if the previous write included
    /// them.
    async fn write_calls(&self, cell: &LaneSlot) {
        let mut slot = cell.owned.lock().await;
        let mut calls = std::mem::take(&mut *cell.settle_calls.lock());
        calls.retain(|call| !call.reply.is_closed());
        if calls.is_empty() {
            return;
        }
        let written = self.write_tags(cell, &mut slot, &calls).await;
        drop(slot);
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
        cell: &LaneSlot,
        slot: &mut Option<OwnedLane>,
        calls: &[SettleCall],
    ) -> Result<Vec<HashSet<DeliveryTag>>, Error> {
        let plan = |window: &LaneMessages| window.plan_acks(calls.iter().flat_map(|call| call.tags.iter().copied()));
        let Some(plan) = self.write_change(cell, slot, plan).await? else {
            return Ok(calls.iter().map(|call| call.tags.iter().copied().collect()).collect());
        };
        // By index and not by tag: if two calls acknowledge the same delivery, only the second is stale.
        let mut places = 0..;
        let stale_of = |call: &SettleCall| {
            let tags = call.tags.iter().zip(places.by_ref());
            tags.filter(|(_, place)| plan.stale.contains(place)).map(|(tag, _)| *tag).collect()
        };
        let stale = calls.iter().map(stale_of).collect();
        if let Some(held) = slot.as_mut() {
            let words = held.messages.apply(plan);
            if held.releasing && held.messages.outstanding() == 0 {
                self.rebalance_now.notify_one();
            }
            self.ack_at_server(cell, words).await;
        }
        Ok(stale)
    }
}
