//! Counts the waiting messages of each lane.

use futures_util::future::try_join_all;
use relevo_core::Lane;

use super::ConsumerInner;
use super::lanes::LaneSlot;
use crate::classify::{Error, api_error};

impl ConsumerInner {
    /// Messages of each lane that the server has not delivered, and messages that this consumer has buffered.
    pub(super) async fn lag(&self) -> Result<Vec<(Lane, u64)>, Error> {
        try_join_all(self.lane_slots.iter().map(|cell| self.lag_of(cell))).await
    }

    async fn lag_of(&self, cell: &LaneSlot) -> Result<(Lane, u64), Error> {
        let info = self.stream.consumer_info(&cell.durable).await;
        let info = info.map_err(|error| api_error("get a durable consumer", error))?;
        let slot = cell.owned.lock().await;
        let here = slot.as_ref().map_or(0, |held| held.messages.ready_count());
        Ok((cell.lane.clone(), info.num_pending + here as u64))
    }
}
