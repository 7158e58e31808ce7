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
    lane: &'a LaneSlot,
    owned: MutexGuard<'a, Option<OwnedLane>>,
    change: LaneChange,
}

impl ConsumerInner {
    pub(super) async fn receive(&self, limit: usize) -> Result<Vec<Delivery>, Error> {
        assert!(limit > 0, "a limit of nothing would wait for ever");
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
            let look = tokio::select! {
                biased; // Closing must not wait for a server that does not respond.
                _ = closed.wait_for(|closed| *closed) => return Ok(Vec::new()),
                look = self.poll_lanes(limit) => look?,
            };
            if !look.deliveries.is_empty() {
                return Ok(look.deliveries);
            }
            if look.poll_again {
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
        let mut look = PollResult::default();
        let mut chosen = self.select_lanes(limit).await?;
        let writes = chosen.iter_mut().map(|SelectedLane { lane: cell, owned: slot, change: plan }| async {
            match slot.as_mut() {
                Some(held) => self.write_record(cell, held, plan).await,
                None => Ok(false),
            }
        });
        let written = join_all(writes).await;
        let mut failed = None;
        for (SelectedLane { lane: cell, owned: mut slot, change: plan }, written) in chosen.into_iter().zip(written) {
            match (written, slot.as_mut()) {
                (Ok(true), Some(held)) => self.deliver(cell, held, plan, &mut look.deliveries),
                (Ok(_), _) => look.poll_again = true,
                (Err(error), _) => failed = Some(error),
            }
        }
        match failed {
            // Return the successful deliveries; the uncertain lane reports its error at the next poll.
            Some(error) if look.deliveries.is_empty() => Err(error),
            _ => Ok(look),
        }
    }

    async fn select_lanes(&self, limit: usize) -> Result<Vec<SelectedLane<'_>>, Error> {
        let first = self.next_lane.fetch_add(1, Ordering::Relaxed) % self.lane_slots.len();
        let mut left = limit;
        let mut chosen: Vec<SelectedLane<'_>> = Vec::new();
        for cell in self.lane_slots[first..].iter().chain(&self.lane_slots[..first]) {
            // A poll that already holds lanes does not wait for others, which may be waiting for the server.
            let mut slot = match cell.owned.try_lock() {
                Ok(slot) => slot,
                Err(_) if !chosen.is_empty() => continue,
                Err(_) => cell.owned.lock().await,
            };
            self.reload_if_uncertain(cell, &mut slot).await?;
            let Some(held) = slot.as_ref().filter(|held| !held.paused && !held.releasing) else { continue };
            let room = self.membership.prefetch.saturating_sub(held.messages.outstanding());
            let plan = held.messages.ready(room.min(left));
            if !plan.is_empty() {
                left -= plan.handed_out.len();
                chosen.push(SelectedLane { lane: cell, owned: slot, change: plan });
            }
            if left == 0 {
                break;
            }
        }
        Ok(chosen)
    }

    fn deliver(&self, cell: &LaneSlot, held: &mut OwnedLane, plan: LaneChange, deliveries: &mut Vec<Delivery>) {
        let handed = plan.handed_out.clone();
        held.messages.apply(plan);
        for seq in handed {
            // The low bits hold the lane, so that an acknowledgement finds it.
            let number = self.next_tag.fetch_add(1, Ordering::Relaxed);
            let tag = DeliveryTag::new(number << 16 | u64::from(cell.number));
            if let Some((content, redelivered)) = held.messages.mark_handed_out(seq, tag) {
                deliveries.push(Delivery {
                    tag,
                    raw: content.raw.clone(),
                    address: content.address.clone(),
                    lane: cell.lane.clone(),
                    offset: Some(seq),
                    redelivered,
                    retry_count: 0,
                });
            }
        }
    }
}
