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

use super::lane::{Cell, Held, durable_ns, is_same_durable};
use super::window::{Plan, Window};
use super::{Shared, read};
use crate::classify::{Error, api};
use crate::lanes::{Found, Member, Record, Written};

/// A new consumer waits at most this long for others to release its share.
const WELCOME: Duration = Duration::from_secs(1);
/// A member is deleted after this many leases without a heartbeat.
const FORGET_AFTER: i64 = 10;

/// Whether a consumer takes part in its group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Presence {
    #[default]
    Here,
    /// It released its lanes.
    Left,
}

/// Runs the first rebalance and starts the tasks that repeat it.
pub(super) async fn begin(shared: &Arc<Shared>) -> Result<(), Error> {
    let subscribed = shared.client.subscribe(shared.bucket.member_subjects()).await;
    let members = subscribed.map_err(|error| api("listening to the other members", error))?;
    let share = shared.attend(true).await?;
    shared.spawn(beat(Arc::clone(shared), members));
    shared.spawn(keep(Arc::clone(shared)));
    let deadline = Instant::now() + WELCOME.min(shared.membership.lease);
    loop {
        let mut changed = pin!(shared.changed.notified());
        changed.as_mut().enable();
        if shared.lanes_held().await >= share {
            return Ok(());
        }
        if tokio::time::timeout_at(deadline, changed).await.is_err() {
            return Ok(());
        }
    }
}

/// Rebalances the lanes until the consumer is closed or dropped.
async fn beat(shared: Arc<Shared>, mut members: Subscriber) {
    // Three heartbeats per lease: two may be late.
    let pause = shared.membership.lease / 3;
    let mut next = Instant::now() + pause;
    let mut closed = shared.closed.subscribe();
    loop {
        tokio::select! {
            _ = closed.wait_for(|closed| *closed) => return,
            () = tokio::time::sleep_until(next) => {}
            () = shared.attend_now.notified() => {}
            Some(message) = members.next() => {
                let own = message.subject.ends_with(&shared.id);
                let called = serde_json::from_slice::<Member>(&message.payload).is_ok_and(|member| member.call);
                if own || !called {
                    continue;
                }
            }
        }
        next = Instant::now() + pause;
        // The next call to receive or acknowledge fails with the same error; the next heartbeat retries.
        if let Err(error) = shared.attend(false).await {
            tracing::warn!(group = shared.group.name, %error, "lanes could not be renewed, will try again");
        }
    }
}

/// Tells the server that messages are in progress, so that it does not redeliver them.
async fn keep(shared: Arc<Shared>) {
    loop {
        sleep(shared.group.ack_wait / 3).await;
        for cell in &shared.cells {
            let slot = cell.held.lock().await;
            let all = slot.as_ref().map(|held| held.window.in_progress()).unwrap_or_default();
            drop(slot);
            let told = async {
                for (seq, reply) in all {
                    let reply = reply.unwrap_or_else(|| shared.reply(cell, seq));
                    if shared.client.publish(reply, async_nats::jetstream::AckKind::Progress.into()).await.is_err() {
                        return;
                    }
                }
            };
            if timeout(shared.deadline, told).await.is_err() {
                tracing::debug!(group = shared.group.name, "the server could not be told what is in progress");
            }
        }
    }
}

impl Shared {
    async fn lanes_held(&self) -> usize {
        let mut count = 0;
        for cell in &self.cells {
            count += usize::from(cell.held.lock().await.is_some());
        }
        count
    }

    /// Rebalances all lanes once. Returns this consumer's share.
    async fn attend(self: &Arc<Self>, call: bool) -> Result<usize, Error> {
        let _one = self.attending.lock().await;
        // A heartbeat of a closed consumer would reserve a share of the lanes.
        if self.is_closed() {
            return Ok(0);
        }
        // Renew first, and each lane separately. An error in one lane, or in counting members, must not cost another
        // lease.
        let renewed = join_all(self.cells.iter().map(|cell| self.renew(cell))).await;
        let now_ms = self.sign(call, self.lease_ms()).await?;
        let share = self.share(now_ms).await?;
        renewed.into_iter().collect::<Result<(), Error>>()?;
        let released = self.give_up(share).await?;
        // The consumer may have been closed in the meantime; it must not claim lanes then.
        if !self.is_closed() {
            self.take_free(share, now_ms).await?;
        }
        if released > 0 {
            self.sign(true, self.lease_ms()).await?;
        }
        // A lane may have been claimed, or may no longer have to be released.
        self.changed.notify_waiters();
        Ok(share)
    }

    async fn sign(&self, call: bool, lease_ms: u64) -> Result<i64, Error> {
        let member = Member { name: self.membership.name.clone(), lease_ms, call };
        self.bucket.attend(&self.id, &member).await
    }

    /// An even share of the lanes. If they do not divide evenly, the first members by id have one more.
    async fn share(&self, now_ms: i64) -> Result<usize, Error> {
        let mut alive = Vec::new();
        for (id, member, at_ms) in self.bucket.members().await? {
            let silent = now_ms - at_ms;
            let lease_ms = i64::try_from(member.lease_ms).unwrap_or(i64::MAX / FORGET_AFTER);
            if id == self.id || silent < lease_ms {
                alive.push(id);
            } else if silent >= lease_ms.saturating_mul(FORGET_AFTER) {
                self.forget(&id).await;
            }
        }
        alive.sort_unstable();
        Ok(share(self.cells.len(), &alive, &self.id))
    }

    /// Deletes a dead member. A failure is harmless, because a dead member does not count.
    async fn forget(&self, id: &str) {
        if let Err(error) = self.bucket.forget(id).await {
            tracing::debug!(group = self.group.name, %error, "a dead member could not be forgotten");
        }
    }

    async fn renew(&self, cell: &Cell) -> Result<(), Error> {
        let mut slot = cell.held.lock().await;
        self.resolve(cell, &mut slot).await?;
        let Some(held) = slot.as_mut() else { return Ok(()) };
        if !self.write(cell, held, &Plan::default()).await? {
            self.resolve(cell, &mut slot).await?;
        }
        Ok(())
    }

    /// Releases lanes above the share, those with the fewest outstanding deliveries first. A lane is released when none
    /// is outstanding.
    async fn give_up(&self, share: usize) -> Result<usize, Error> {
        let mut held = Vec::new();
        for (index, cell) in self.cells.iter().enumerate() {
            if let Some(lane) = &*cell.held.lock().await {
                held.push((lane.window.out(), index));
            }
        }
        held.sort_unstable();
        let surplus = held.len().saturating_sub(share);
        let mut released = 0;
        for (at, (_, index)) in held.into_iter().enumerate() {
            let cell = &self.cells[index];
            let mut slot = cell.held.lock().await;
            let Some(lane) = slot.as_mut() else { continue };
            lane.leaving = at < surplus;
            if lane.leaving && lane.window.out() == 0 {
                self.release(cell, &mut slot).await?;
                released += 1;
            }
        }
        Ok(released)
    }

    async fn take_free(self: &Arc<Self>, share: usize, now_ms: i64) -> Result<(), Error> {
        let held = self.lanes_held().await;
        if held >= share {
            return Ok(());
        }
        let looked = self.cells.iter().map(|cell| async move {
            if cell.held.lock().await.is_some() {
                return Ok(None);
            }
            let found = self.bucket.lane(cell.number).await?;
            Ok::<_, Error>(self.is_free(found.as_ref(), now_ms).then_some((cell, found)))
        });
        let mut free = Vec::new();
        for looked in join_all(looked).await {
            free.extend(looked?);
        }
        let taken = join_all(free.into_iter().take(share - held).map(|(cell, found)| self.take(cell, found))).await;
        taken.into_iter().collect()
    }

    fn is_free(&self, found: Option<&Found>, now_ms: i64) -> bool {
        found.is_none_or(|Found { record, at_ms, .. }| {
            let ours = record.owner.as_ref().is_none_or(|owner| *owner == self.id);
            ours || u64::try_from(now_ms - at_ms).is_ok_and(|silent| silent >= record.lease_ms)
        })
    }

    /// Claims a lane, unless another consumer claims it first.
    async fn take(self: &Arc<Self>, cell: &Cell, found: Option<Found>) -> Result<(), Error> {
        let info = self.stream.consumer_info(&cell.durable).await;
        let info = info.map_err(|error| api("looking at a lane's consumer", error))?;
        let durable_ns = durable_ns(&info);
        let (revision, mut record) = found.map_or((0, Record::default()), |found| (found.revision, found.record));
        if !is_same_durable(record.durable_ns, durable_ns) {
            // The durable consumer is new or was recreated, so the record describes another one.
            let high = begins_behind(&info, record.durable_ns != 0);
            record = Record { durable_ns, high, epoch: record.epoch, ..Record::default() };
        }
        record.owner = Some(self.id.clone());
        record.epoch += 1;
        record.lease_ms = self.lease_ms();
        let mut slot = cell.held.lock().await;
        let Written::Kept(revision) = self.bucket.write(cell.number, &record, revision).await? else { return Ok(()) };
        let reader = self.spawn(read::read(Arc::clone(self), cell.number, record.epoch));
        *slot = Some(Held {
            epoch: record.epoch,
            revision,
            durable_ns: record.durable_ns,
            window: Window::new(&record),
            doubtful: false,
            leaving: false,
            paused: false,
            reader,
        });
        Ok(())
    }

    /// Releases all lanes and leaves the group, once. A lane that could not be released can be retried, or expires with
    /// its lease.
    pub(super) async fn leave(&self) -> Result<(), Error> {
        let mut presence = self.attending.lock().await;
        if *presence == Presence::Left {
            return Ok(());
        }
        let released = join_all(self.cells.iter().map(|cell| async move {
            let mut slot = cell.held.lock().await;
            self.release(cell, &mut slot).await
        }));
        let released: Result<(), Error> = released.await.into_iter().collect();
        // A lease of zero ends this membership at once, so that the others claim its lanes.
        self.sign(true, 0).await?;
        self.bucket.forget(&self.id).await?;
        released?;
        *presence = Presence::Left;
        Ok(())
    }
}

/// The last message before the start of a durable consumer that has no record yet.
///
/// If a durable consumer of the same name existed before, the acknowledgements on the server may belong to that one. An
/// acknowledgement does not identify the consumer. If the stream was recreated too, it does not identify the message
/// either.
fn begins_behind(info: &Info, was_another: bool) -> u64 {
    match info.config.deliver_policy {
        DeliverPolicy::All if was_another => 0,
        DeliverPolicy::ByStartSequence { start_sequence } if was_another => start_sequence.saturating_sub(1),
        _ => info.ack_floor.stream_sequence,
    }
}

/// The number of lanes of this member.
fn share(lanes: usize, alive: &[String], own: &str) -> usize {
    let members = alive.len().max(1);
    let rank = alive.iter().position(|id| id == own).unwrap_or_default();
    lanes / members + usize::from(rank < lanes % members)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_even_and_together_they_are_all_lanes() {
        for lanes in 1..20 {
            for members in 1..25 {
                let alive: Vec<String> = (0..members).map(|number| format!("{number:02}")).collect();
                let shares: Vec<usize> = alive.iter().map(|own| share(lanes, &alive, own)).collect();
                assert_eq!(shares.iter().sum::<usize>(), lanes, "{lanes} among {members}");
                assert!(shares.iter().max() <= shares.iter().min().map(|min| min + 1).as_ref(), "{shares:?}");
            }
        }
    }
}
