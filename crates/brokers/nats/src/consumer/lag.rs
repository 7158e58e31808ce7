//! Counts the waiting messages of each lane.

use futures_util::future::try_join_all;
use relevo_core::Lane;

use super::Shared;
use super::lane::Cell;
use crate::classify::{Error, api};

impl Shared {
    /// Messages of each lane that the server has not delivered, and messages that this consumer has buffered.
    pub(super) async fn lag(&self) -> Result<Vec<(Lane, u64)>, Error> {
        try_join_all(self.cells.iter().map(|cell| self.lag_of(cell))).await
    }

    async fn lag_of(&self, cell: &Cell) -> Result<(Lane, u64), Error> {
        let info = self.stream.consumer_info(&cell.durable).await;
        let info = info.map_err(|error| api("looking at a lane's consumer", error))?;
        let slot = cell.held.lock().await;
        let here = slot.as_ref().map_or(0, |held| held.window.waiting());
        Ok((cell.lane.clone(), info.num_pending + here as u64))
    }
}
