//! Selects the next deliveries.

use std::pin::pin;
use std::sync::atomic::Ordering;

use futures_util::future::join_all;
use relevo_core::{Delivery, DeliveryTag};
use tokio::sync::MutexGuard;

use super::ConsumerInner;
use super::lane_messages::LaneChange;
use super::lanes::{LaneSlot, OwnedLane};
use crate::classify::Error;

/// The result of one poll.
#[derive(Default)]
struct PollResult {
    deliveries: Vec<Delivery>,
    /// A lane changed unexpectedly: poll again at once.
    poll_again: bool,
}

/// A lane with messages to deliver.
struct SelectedLane<'a> {
    slot: &'a LaneSlot,
    owned: MutexGuard<'a, Option<OwnedLane>>,
    change: LaneChange,
}

impl ConsumerInner {
    pub(super) async fn receive(&self, limit: usize) -> Result<Vec<Delivery>, Error> {
        assert!(limit > 0, "with a limit of zero, the call would never return");
        let mut closed = self.closed.subscribe();
        loop {
            // Register before the poll, so that no change in between is missed.
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            if *closed.borrow_and_update() {
                return Ok(Vec::new());
            }
            if let Some(error) = self.fatal_error.lock().take() {
                return Err(error);
            }
            let result = tokio::select! {
                biased; // Closing must not wait for a server that does not respond.
                _ = closed.wait_for(|closed| *closed) => return Ok(Vec::new()),
                result = self.poll_lanes(limit) => result?,
            };
            if !result.deliveries.is_empty() {
                return Ok(result.deliveries);
            }
            if result.poll_again {
                continue;
            }
            tokio::select! {
                () = changed => {}
                // The sender lives as long as `self`.
                _ = closed.changed() => {}
            }
        }
    }

    /// Polls all lanes once. Deliveries are recorded first and then returned without another await. A cancelled call
    /// therefore leaves no delivery outstanding that its caller never received.
    async fn poll_lanes(&self, limit: usize) -> Result<PollResult, Error> {
        // Two concurrent polls would wait for each other's lanes.
        let _one = self.receive_lock.lock().await;
        let mut result = PollResult::default();
        let mut selected = self.select_lanes(limit).await?;
        let writes = selected.iter_mut().map(|SelectedLane { slot, owned, change }| async {
            match owned.as_mut() {
                Some(lane) => self.write_record(slot, lane, change).await,
                None => Ok(false),
            }
        });
        let written = join_all(writes).await;
        let mut failed = None;
        for (SelectedLane { slot, mut owned, change }, written) in selected.into_iter().zip(written) {
            match (written, owned.as_mut()) {
                (Ok(true), Some(lane)) => self.deliver(slot, lane, change, &mut result.deliveries),
                (Ok(_), _) => result.poll_again = true,
                (Err(error), _) => failed = Some(error),
            }
        }
        match failed {
            // Return the successful deliveries; the uncertain lane reports its error at the next poll.
            Some(error) if result.deliveries.is_empty() => Err(error),
            _ => Ok(result),
        }
    }

    async fn select_lanes(&self, limit: usize) -> Result<Vec<SelectedLane<'_>>, Error> {
        let first = self.next_lane.fetch_add(1, Ordering::Relaxed) % self.lane_slots.len();
        let mut left = limit;
        let mut selected: Vec<SelectedLane<'_>> = Vec::new();
        for slot in self.lane_slots[first..].iter().chain(&self.lane_slots[..first]) {
            // A poll that already holds lanes does not wait for others, which may be waiting for the server.
            let mut owned = match slot.owned.try_lock() {
                Ok(owned) => owned,
                Err(_) if !selected.is_empty() => continue,
                Err(_) => slot.owned.lock().await,
            };
            self.reload_if_uncertain(slot, &mut owned).await?;
            let Some(lane) = owned.as_ref().filter(|lane| !lane.paused && !lane.releasing) else { continue };
            let room = self.options.prefetch.saturating_sub(lane.messages.outstanding());
            let change = lane.messages.ready(room.min(left));
            if !change.is_empty() {
                left -= change.handed_out.len();
                selected.push(SelectedLane { slot, owned, change });
            }
            if left == 0 {
                break;
            }
        }
        Ok(selected)
    }

    fn deliver(&self, slot: &LaneSlot, lane: &mut OwnedLane, change: LaneChange, deliveries: &mut Vec<Delivery>) {
        let sequences = change.handed_out.clone();
        lane.messages.apply(change);
        for seq in sequences {
            // The low bits hold the lane, so that an acknowledgement finds it.
            let number = self.next_tag.fetch_add(1, Ordering::Relaxed);
            let tag = DeliveryTag::new(number << 16 | u64::from(slot.number));
            if let Some((content, redelivered)) = lane.messages.mark_handed_out(seq, tag) {
                deliveries.push(Delivery {
                    tag,
                    raw: content.raw.clone(),
                    address: content.address.clone(),
                    lane: slot.lane.clone(),
                    offset: Some(seq),
                    redelivered,
                    retry_count: 0,
                });
            }
        }
    }
}
