//! Counts the waiting messages of each lane.

use futures_util::future::try_join_all;
use relevo_core::Lane;

use super::ConsumerInner;
use super::lanes::LaneSlot;
use crate::classify::{Error, api_error};

impl ConsumerInner {
    /// Messages of each lane that the server has not delivered, and messages that this consumer has buffered.
    pub(super) async fn lag(&self) -> Result<Vec<(Lane, u64)>, Error> {
        try_join_all(self.lane_slots.iter().map(|slot| self.lag_of(slot))).await
    }

    async fn lag_of(&self, slot: &LaneSlot) -> Result<(Lane, u64), Error> {
        let info = self.stream.consumer_info(&slot.durable).await;
        let info = info.map_err(|error| api_error("get a durable consumer", error))?;
        let owned = slot.owned.lock().await;
        let buffered = owned.as_ref().map_or(0, |lane| lane.messages.ready_count());
        Ok((slot.lane.clone(), info.num_pending + buffered as u64))
    }
}
