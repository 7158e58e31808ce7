//! Records acknowledgements.

use std::collections::{BTreeSet, HashSet};

use relevo_core::DeliveryTag;
use sqlx::Row as _;

use crate::classify::Error;
use crate::connection::WriteTransaction;
use crate::consume::ConsumerInner;
use crate::consume::assignment::json_list;
use crate::consume::lanes::ConsumerState;

impl ConsumerInner {
    /// Acknowledges deliveries in one transaction; returns the tags that are not outstanding.
    pub(crate) async fn acknowledge(&self, tags: &[DeliveryTag]) -> Result<HashSet<DeliveryTag>, Error> {
        let mut state = self.state.lock().await;
        if state.uncertain {
            self.reload_if_uncertain(&mut state).await?;
        }
        if tags.iter().all(|tag| state.outstanding(*tag).is_none()) {
            return Ok(tags.iter().copied().collect());
        }
        let mut write = self.broker.connections.begin_durable().await?;
        for lane in self.lost_lanes(&mut write, &state).await? {
            state.drop_lane(lane);
        }
        let seqs: BTreeSet<i64> = tags.iter().filter_map(|tag| Some(state.outstanding(*tag)?.seq)).collect();
        let not_outstanding = tags.iter().copied().filter(|tag| state.outstanding(*tag).is_none()).collect();
        state.uncertain = true;
        sqlx::query(
            "DELETE FROM broker_unacknowledged WHERE group_id = ?1 AND seq IN (SELECT value FROM json_each(?2))",
        )
        .bind(self.group.id)
        .bind(json_list(&Vec::from_iter(seqs)))
        .execute(write.connection())
        .await?;
        write.commit().await?;
        state.uncertain = false;
        for tag in tags {
            state.remove(*tag);
        }
        if state.has_drained() {
            // Other consumers wait for the lane; if this fails, the heartbeat retries.
            if let Err(error) = self.rebalance(&mut state).await {
                tracing::warn!(group = self.group.name, %error, "cannot release a lane, will retry");
            }
        }
        drop(state);
        self.changed.notify_waiters();
        Ok(not_outstanding)
    }

    /// Lanes that the file no longer assigns to this consumer.
    async fn lost_lanes(&self, write: &mut WriteTransaction, state: &ConsumerState) -> Result<Vec<u16>, Error> {
        let rows = sqlx::query("SELECT lane, epoch FROM broker_lane WHERE group_id = ?1 AND owner = ?2")
            .bind(self.group.id)
            .bind(self.owner)
            .fetch_all(write.connection())
            .await?;
        let mine: BTreeSet<(u16, i64)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
        let held = state.lanes.iter().map(|(lane, held)| (*lane, held.epoch));
        Ok(held.filter(|lane| !mine.contains(lane)).map(|(lane, _)| lane).collect())
    }
}
