//! Selects the deliveries of a call to `receive`.

use std::pin::pin;

use relevo_core::{Delivery, DeliveryTag, Lane};

use super::ConsumerInner;
use super::lanes::{DeliveryStage, LaneTable};
use crate::classify::Error;

impl ConsumerInner {
    pub(crate) async fn receive(&self, limit: usize) -> Result<Vec<Delivery>, Error> {
        assert!(limit > 0, "with a limit of 0 the call would never return");
        loop {
            let mut changed = pin!(self.changed.notified());
            // Register before the check, so that no change in between is missed.
            changed.as_mut().enable();
            {
                let mut table = self.lane_table();
                if table.closed {
                    return Ok(Vec::new());
                }
                if let Some(error) = table.fatal_error.take() {
                    return Err(error);
                }
                let deliveries = table.take_ready(limit, &self.lanes);
                if !deliveries.is_empty() {
                    return Ok(deliveries);
                }
            }
            changed.await;
        }
    }
}

impl LaneTable {
    /// Delivers at most `limit` buffered messages. Each call starts with a different lane.
    pub(crate) fn take_ready(&mut self, limit: usize, names: &[Lane]) -> Vec<Delivery> {
        let mut deliveries = Vec::new();
        let count = self.lanes.len();
        for index in (0..count).map(|step| (self.next_lane + step) % count) {
            let lane = &mut self.lanes[index];
            while deliveries.len() < limit
                && !lane.paused
                && !lane.handing_over
                && let Some(tag) = lane.buffered.pop_front()
            {
                let delivery = lane.outstanding.get_mut(&tag).expect("a buffered message is outstanding");
                delivery.stage = DeliveryStage::HandedOut;
                deliveries.push(Delivery {
                    tag: DeliveryTag::new(tag),
                    raw: delivery.message.to_raw_message(),
                    address: delivery.message.address.clone(),
                    lane: names[index].clone(),
                    offset: None,
                    redelivered: delivery.message.redelivered,
                    retry_count: delivery.message.retries,
                });
            }
        }
        self.next_lane = (self.next_lane + 1) % count;
        deliveries
    }
}
