//! Lane assignment. Each member sends heartbeats, keeps its share of the lanes, releases any surplus and claims free
//! ones. The server's clock decides which members are alive. Its revision check decides which member owns a lane.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use async_nats::Subscriber;
use async_nats::jetstream::consumer::{DeliverPolicy, Info};
use futures_util::StreamExt as _;
use futures_util::future::join_all;
use tokio::time::{Instant, sleep, timeout};

use super::lane_messages::{LaneChange, LaneMessages};
use super::lane_store::{LaneRecord, MemberHeartbeat, RecordWrite, StoredRecord};
use super::lanes::{LaneSlot, OwnedLane, durable_ns, is_same_durable};
use super::{ConsumerInner, reader};
use crate::classify::{Error, api_error};

/// A new consumer waits at most this long for others to release its share.
const JOIN_TIMEOUT: Duration = Duration::from_secs(1);
/// A member is deleted after this many leases without a heartbeat.
const REMOVE_AFTER_LEASES: i64 = 10;

/// Whether a consumer takes part in its group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Participation {
    #[default]
    Joined,
    /// It released its lanes.
    Left,
}

/// Runs the first rebalance and starts the tasks that repeat it.
pub(super) async fn join_group(inner: &Arc<ConsumerInner>) -> Result<(), Error> {
    let subscribed = inner.client.subscribe(inner.lane_store.member_subjects()).await;
    let members = subscribed.map_err(|error| api_error("subscribe to the members of the group", error))?;
    let share = inner.rebalance(true).await?;
    inner.spawn(heartbeat(Arc::clone(inner), members));
    inner.spawn(send_in_progress(Arc::clone(inner)));
    let deadline = Instant::now() + JOIN_TIMEOUT.min(inner.options.lease);
    loop {
        let mut changed = pin!(inner.changed.notified());
        changed.as_mut().enable();
        if inner.owned_lanes().await >= share {
            return Ok(());
        }
        if tokio::time::timeout_at(deadline, changed).await.is_err() {
            return Ok(());
        }
    }
}

/// Rebalances the lanes until the consumer is closed or dropped.
async fn heartbeat(inner: Arc<ConsumerInner>, mut members: Subscriber) {
    // Three heartbeats per lease: two may be late.
    let interval = inner.options.lease / 3;
    let mut next = Instant::now() + interval;
    let mut closed = inner.closed.subscribe();
    loop {
        tokio::select! {
            _ = closed.wait_for(|closed| *closed) => return,
            () = tokio::time::sleep_until(next) => {}
            () = inner.rebalance_now.notified() => {}
            Some(message) = members.next() => {
                let is_own = message.subject.ends_with(&inner.id);
                let requested = serde_json::from_slice::<MemberHeartbeat>(&message.payload).is_ok_and(|member| member.call);
                if is_own || !requested {
                    continue;
                }
            }
        }
        next = Instant::now() + interval;
        // The next call to receive or acknowledge fails with the same error; the next heartbeat retries.
        if let Err(error) = inner.rebalance(false).await {
            tracing::warn!(group = inner.group.name, %error, "lanes not renewed, will retry");
        }
    }
}

/// Signals to the server that messages are in progress, so that it does not redeliver them.
async fn send_in_progress(inner: Arc<ConsumerInner>) {
    loop {
        sleep(inner.group.ack_wait / 3).await;
        for slot in &inner.lane_slots {
            let owned = slot.owned.lock().await;
            let all = owned.as_ref().map(|lane| lane.messages.in_progress()).unwrap_or_default();
            drop(owned);
            let signals = async {
                for (seq, reply) in all {
                    let reply = reply.unwrap_or_else(|| inner.ack_subject(slot, seq));
                    if inner.client.publish(reply, async_nats::jetstream::AckKind::Progress.into()).await.is_err() {
                        return;
                    }
                }
            };
            if timeout(inner.timeout, signals).await.is_err() {
                tracing::debug!(group = inner.group.name, "progress signals not sent, the server may redeliver");
            }
        }
    }
}

impl ConsumerInner {
    async fn owned_lanes(&self) -> usize {
        let mut count = 0;
        for slot in &self.lane_slots {
            count += usize::from(slot.owned.lock().await.is_some());
        }
        count
    }

    /// Rebalances all lanes once. Returns this consumer's share.
    async fn rebalance(self: &Arc<Self>, call: bool) -> Result<usize, Error> {
        let _one = self.rebalance_lock.lock().await;
        // A heartbeat of a closed consumer would reserve a share of the lanes.
        if self.is_closed() {
            return Ok(0);
        }
        // Renew first, and each lane separately. An error in one lane, or in counting members, must not cost another
        // lease.
        let renewed = join_all(self.lane_slots.iter().map(|slot| self.renew(slot))).await;
        let now_ms = self.write_heartbeat(call, self.lease_ms()).await?;
        let share = self.fair_share(now_ms).await?;
        renewed.into_iter().collect::<Result<(), Error>>()?;
        let released = self.release_surplus(share).await?;
        // The consumer may have been closed in the meantime; it must not claim lanes then.
        if !self.is_closed() {
            self.claim_free(share, now_ms).await?;
        }
        if released > 0 {
            self.write_heartbeat(true, self.lease_ms()).await?;
        }
        // A lane may have been claimed, or may no longer have to be released.
        self.changed.notify_waiters();
        Ok(share)
    }

    async fn write_heartbeat(&self, call: bool, lease_ms: u64) -> Result<i64, Error> {
        let member = MemberHeartbeat { name: self.options.name.clone(), lease_ms, call };
        self.lane_store.heartbeat(&self.id, &member).await
    }

    /// An even share of the lanes. If they do not divide evenly, the first members by id have one more.
    async fn fair_share(&self, now_ms: i64) -> Result<usize, Error> {
        let mut alive = Vec::new();
        for (id, member, at_ms) in self.lane_store.members().await? {
            let silent = now_ms - at_ms;
            let lease_ms = i64::try_from(member.lease_ms).unwrap_or(i64::MAX / REMOVE_AFTER_LEASES);
            if id == self.id || silent < lease_ms {
                alive.push(id);
            } else if silent >= lease_ms.saturating_mul(REMOVE_AFTER_LEASES) {
                self.remove_member(&id).await;
            }
        }
        alive.sort_unstable();
        Ok(fair_share(self.lane_slots.len(), &alive, &self.id))
    }

    /// Deletes a dead member. A failure is harmless, because a dead member does not count.
    async fn remove_member(&self, id: &str) {
        if let Err(error) = self.lane_store.remove_member(id).await {
            tracing::debug!(group = self.group.name, %error, "dead member not deleted");
        }
    }

    async fn renew(&self, slot: &LaneSlot) -> Result<(), Error> {
        let mut owned = slot.owned.lock().await;
        self.reload_if_uncertain(slot, &mut owned).await?;
        let Some(lane) = owned.as_mut() else { return Ok(()) };
        if !self.write_record(slot, lane, &LaneChange::default()).await? {
            self.reload_if_uncertain(slot, &mut owned).await?;
        }
        Ok(())
    }

    /// Releases lanes above the share, those with the fewest outstanding deliveries first. A lane is released when none
    /// is outstanding.
    async fn release_surplus(&self, share: usize) -> Result<usize, Error> {
        let mut lanes = Vec::new();
        for (index, slot) in self.lane_slots.iter().enumerate() {
            if let Some(lane) = &*slot.owned.lock().await {
                lanes.push((lane.messages.outstanding(), index));
            }
        }
        lanes.sort_unstable();
        let surplus = lanes.len().saturating_sub(share);
        let mut released = 0;
        for (rank, (_, index)) in lanes.into_iter().enumerate() {
            let slot = &self.lane_slots[index];
            let mut owned = slot.owned.lock().await;
            let Some(lane) = owned.as_mut() else { continue };
            lane.releasing = rank < surplus;
            if lane.releasing && lane.messages.outstanding() == 0 {
                self.release(slot, &mut owned).await?;
                released += 1;
            }
        }
        Ok(released)
    }

    async fn claim_free(self: &Arc<Self>, share: usize, now_ms: i64) -> Result<(), Error> {
        let count = self.owned_lanes().await;
        if count >= share {
            return Ok(());
        }
        let checked = self.lane_slots.iter().map(|slot| async move {
            if slot.owned.lock().await.is_some() {
                return Ok(None);
            }
            let stored = self.lane_store.read_lane(slot.number).await?;
            Ok::<_, Error>(self.is_free(stored.as_ref(), now_ms).then_some((slot, stored)))
        });
        let mut free = Vec::new();
        for checked in join_all(checked).await {
            free.extend(checked?);
        }
        let claimed =
            join_all(free.into_iter().take(share - count).map(|(slot, stored)| self.claim_lane(slot, stored))).await;
        claimed.into_iter().collect()
    }

    fn is_free(&self, stored: Option<&StoredRecord>, now_ms: i64) -> bool {
        stored.is_none_or(|StoredRecord { record, written_at_ms, .. }| {
            let is_own_or_free = record.owner.as_ref().is_none_or(|owner| *owner == self.id);
            is_own_or_free || u64::try_from(now_ms - written_at_ms).is_ok_and(|silent| silent >= record.lease_ms)
        })
    }

    /// Claims a lane, unless another consumer claims it first.
    async fn claim_lane(self: &Arc<Self>, slot: &LaneSlot, stored: Option<StoredRecord>) -> Result<(), Error> {
        let info = self.stream.consumer_info(&slot.durable).await;
        let info = info.map_err(|error| api_error("get a durable consumer", error))?;
        let durable_ns = durable_ns(&info);
        let (revision, mut record) =
            stored.map_or((0, LaneRecord::default()), |stored| (stored.revision, stored.record));
        if !is_same_durable(record.durable_ns, durable_ns) {
            // The durable consumer is new or was recreated, so the record describes another one.
            let handed_out_to = start_before(&info, record.durable_ns != 0);
            // An earlier record was deleted, or belongs to another durable consumer: the messages that it or the server
            // counts as delivered may have been delivered before.
            let known = record.handed_out_to.max(record.redelivered_to);
            let redelivered_to = known.max(info.delivered.stream_sequence);
            let epoch = record.epoch;
            record = LaneRecord { epoch, durable_ns, handed_out_to, redelivered_to, ..LaneRecord::default() };
        }
        record.owner = Some(self.id.clone());
        record.epoch += 1;
        record.lease_ms = self.lease_ms();
        let mut owned = slot.owned.lock().await;
        let RecordWrite::Stored(revision) = self.lane_store.write_lane(slot.number, &record, revision).await? else {
            return Ok(());
        };
        let reader = self.spawn(reader::read_lane(Arc::clone(self), slot.number, record.epoch));
        *owned = Some(OwnedLane {
            epoch: record.epoch,
            revision,
            durable_ns: record.durable_ns,
            messages: LaneMessages::new(&record),
            uncertain: false,
            releasing: false,
            paused: false,
            reader,
        });
        Ok(())
    }

    /// Releases all lanes and leaves the group, once. A lane that could not be released can be retried, or expires with
    /// its lease.
    pub(super) async fn leave_group(&self) -> Result<(), Error> {
        let mut participation = self.rebalance_lock.lock().await;
        if *participation == Participation::Left {
            return Ok(());
        }
        let released = join_all(self.lane_slots.iter().map(|slot| async move {
            let mut owned = slot.owned.lock().await;
            self.release(slot, &mut owned).await
        }));
        let released: Result<(), Error> = released.await.into_iter().collect();
        // A lease of zero ends this membership at once, so that the others claim its lanes.
        self.write_heartbeat(true, 0).await?;
        self.lane_store.remove_member(&self.id).await?;
        released?;
        *participation = Participation::Left;
        Ok(())
    }
}

/// The last message before the start of a durable consumer that has no record yet.
///
/// If a durable consumer of the same name existed before, the acknowledgements on the server may belong to that one. An
/// acknowledgement does not identify the consumer. If the stream was recreated too, it does not identify the message
/// either.
fn start_before(info: &Info, was_recreated: bool) -> u64 {
    match info.config.deliver_policy {
        DeliverPolicy::All if was_recreated => 0,
        DeliverPolicy::ByStartSequence { start_sequence } if was_recreated => start_sequence.saturating_sub(1),
        _ => info.ack_floor.stream_sequence,
    }
}

/// The number of lanes of this member.
fn fair_share(lanes: usize, alive: &[String], own: &str) -> usize {
    let members = alive.len().max(1);
    let rank = alive.iter().position(|id| id == own).unwrap_or_default();
    lanes / members + usize::from(rank < lanes % members)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fair_shares_are_even_and_cover_all_lanes() {
        for lanes in 1..20 {
            for members in 1..25 {
                let alive: Vec<String> = (0..members).map(|number| format!("{number:02}")).collect();
                let shares: Vec<usize> = alive.iter().map(|own| fair_share(lanes, &alive, own)).collect();
                assert_eq!(shares.iter().sum::<usize>(), lanes, "{lanes} among {members}");
                assert!(shares.iter().max() <= shares.iter().min().map(|min| min + 1).as_ref(), "{shares:?}");
            }
        }
    }
}
