//! Selects the next deliveries.

use std::pin::pin;
use std::sync::atomic::Ordering;

use futures_util::future::join_all;
use relevo_core::{Delivery, DeliveryTag};
use tokio::sync::MutexGuard;

use super::lane::{Cell, Held};
use super::window::Plan;
use super::{Shared, lock};
use crate::classify::Error;

/// The result of one poll.
#[derive(Default)]
struct Look {
    deliveries: Vec<Delivery>,
    /// A lane changed unexpectedly: poll again at once.
    again: bool,
}

/// A lane with messages to deliver.
struct Chosen<'a> {
    cell: &'a Cell,
    slot: MutexGuard<'a, Option<Held>>,
    plan: Plan,
}

impl Shared {
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
            if let Some(error) = lock(&self.fault).take() {
                return Err(error);
            }
            let look = tokio::select! {
                biased; // Closing must not wait for a server that does not respond.
                _ = closed.wait_for(|closed| *closed) => return Ok(Vec::new()),
                look = self.look(limit) => look?,
            };
            if !look.deliveries.is_empty() {
                return Ok(look.deliveries);
            }
            if look.again {
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
    async fn look(&self, limit: usize) -> Result<Look, Error> {
        // Two concurrent polls would wait for each other's lanes.
        let _one = self.looking.lock().await;
        let mut look = Look::default();
        let mut chosen = self.choose(limit).await?;
        let writes = chosen.iter_mut().map(|Chosen { cell, slot, plan }| async {
            match slot.as_mut() {
                Some(held) => self.write(cell, held, plan).await,
                None => Ok(false),
            }
        });
        let written = join_all(writes).await;
        let mut failed = None;
        for (Chosen { cell, mut slot, plan }, written) in chosen.into_iter().zip(written) {
            match (written, slot.as_mut()) {
                (Ok(true), Some(held)) => self.hand_out(cell, held, plan, &mut look.deliveries),
                (Ok(_), _) => look.again = true,
                (Err(error), _) => failed = Some(error),
            }
        }
        match failed {
            // Return the successful deliveries; the uncertain lane reports its error at the next poll.
            Some(error) if look.deliveries.is_empty() => Err(error),
            _ => Ok(look),
        }
    }

    async fn choose(&self, limit: usize) -> Result<Vec<Chosen<'_>>, Error> {
        let first = self.turn.fetch_add(1, Ordering::Relaxed) % self.cells.len();
        let mut left = limit;
        let mut chosen: Vec<Chosen<'_>> = Vec::new();
        for cell in self.cells[first..].iter().chain(&self.cells[..first]) {
            // A poll that already holds lanes does not wait for others, which may be waiting for the server.
            let mut slot = match cell.held.try_lock() {
                Ok(slot) => slot,
                Err(_) if !chosen.is_empty() => continue,
                Err(_) => cell.held.lock().await,
            };
            self.resolve(cell, &mut slot).await?;
            let Some(held) = slot.as_ref().filter(|held| !held.paused && !held.leaving) else { continue };
            let room = self.membership.prefetch.saturating_sub(held.window.out());
            let plan = held.window.ready(room.min(left));
            if !plan.is_empty() {
                left -= plan.handed.len();
                chosen.push(Chosen { cell, slot, plan });
            }
            if left == 0 {
                break;
            }
        }
        Ok(chosen)
    }

    fn hand_out(&self, cell: &Cell, held: &mut Held, plan: Plan, deliveries: &mut Vec<Delivery>) {
        let handed = plan.handed.clone();
        held.window.carry_out(plan);
        for seq in handed {
            // The low bits hold the lane, so that an acknowledgement finds it.
            let number = self.tags.fetch_add(1, Ordering::Relaxed);
            let tag = DeliveryTag::new(number << 16 | u64::from(cell.number));
            if let Some((content, redelivered)) = held.window.hand_out(seq, tag) {
                deliveries.push(Delivery {
                    tag,
                    raw: content.raw.clone(),
                    address: content.address.clone(),
                    lane: cell.lane.clone(),
                    place: Some(seq),
                    redelivered,
                    retries: 0,
                });
            }
        }
    }
}
