//! Which consumer owns which lane: leases in the file, renewed by heartbeats.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use relevo_core::DeliveryTag;
use sqlx::Row as _;

use crate::classify::Error;
use crate::connection::WriteTransaction;
use crate::consume::ConsumerInner;
use crate::consume::lanes::{ConsumerState, OwnedLane};

/// Whether a lease has expired. A lease that ends too far in the future was written by a clock that has since been set
/// back.
macro_rules! lease_expired {
    ($lease_max:literal) => {
        concat!(
            "(lease_until_ms <= unixepoch('subsec') * 1000 OR lease_until_ms > unixepoch('subsec') * 1000 + ",
            $lease_max,
            ")"
        )
    };
}

/// A lane as stored in the file.
struct LaneRow {
    lane: u16,
    epoch: i64,
    cursor: i64,
    mine: bool,
    free: bool,
}

impl ConsumerInner {
    /// Renews the leases of this consumer, releases lanes above its fair share and claims free ones.
    pub(crate) async fn rebalance(&self, state: &mut ConsumerState) -> Result<(), Error> {
        let mut write = self.broker.connections.begin_relaxed().await?;
        let (group, owner, lease) = (self.group.id, self.owner, self.lease_ms());
        sqlx::query(concat!("DELETE FROM broker_member WHERE group_id = ?1 AND ", lease_expired!("?2")))
            .bind(group)
            .bind(self.lease_ms_max())
            .execute(write.connection())
            .await?;
        let rows = self.lane_rows(&mut write).await?;
        if rows.is_empty() {
            write.rollback().await?;
            return Err(Error::GroupNotFound(self.group.name.clone()));
        }
        sqlx::query(
            "INSERT INTO broker_member (group_id, owner, name, lease_until_ms)
             VALUES (?1, ?2, ?3, CAST(unixepoch('subsec') * 1000 AS INTEGER) + ?4)
             ON CONFLICT (group_id, owner) DO UPDATE SET lease_until_ms = excluded.lease_until_ms",
        )
        .bind(group)
        .bind(owner)
        .bind(&self.options.name)
        .bind(lease)
        .execute(write.connection())
        .await?;
        let members: i64 = sqlx::query_scalar("SELECT count(*) FROM broker_member WHERE group_id = ?1")
            .bind(group)
            .fetch_one(write.connection())
            .await?;
        let fair = rows.len().div_ceil(usize::try_from(members).unwrap_or(1).max(1));
        drop_lost_lanes(state, &rows);
        let releasing = select_releasing(state, fair);
        self.release_lanes(&mut write, state, &releasing).await?;
        let capacity = fair.saturating_sub(state.lanes.len() - releasing.len());
        let is_held = |row: &LaneRow| state.lanes.contains_key(&row.lane);
        let free: Vec<u16> =
            rows.iter().filter(|row| row.free && !is_held(row)).map(|row| row.lane).take(capacity).collect();
        let claimed = self.claim_lanes(&mut write, &free, lease).await?;
        write.commit().await?;
        for lane in &releasing {
            state.drop_lane(*lane);
        }
        state.lanes.extend(claimed);
        if !releasing.is_empty() {
            self.broker.change_notifier.notify();
        }
        Ok(())
    }

    /// Releases all lanes at once.
    pub(crate) async fn leave_group(&self, state: &mut ConsumerState) -> Result<(), Error> {
        let mut write = self.broker.connections.begin_relaxed().await?;
        let rows = self.lane_rows(&mut write).await?;
        drop_lost_lanes(state, &rows);
        let mine: Vec<u16> = rows.iter().filter(|row| row.mine).map(|row| row.lane).collect();
        self.release_lanes(&mut write, state, &mine).await?;
        self.requeue_outstanding(&mut write, &mine).await?;
        sqlx::query("DELETE FROM broker_member WHERE group_id = ?1 AND owner = ?2")
            .bind(self.group.id)
            .bind(self.owner)
            .execute(write.connection())
            .await?;
        write.commit().await?;
        for lane in mine {
            state.drop_lane(lane);
        }
        self.broker.change_notifier.notify();
        Ok(())
    }

    /// Reloads the state after a cancelled call. A message that is outstanding only in the file was never delivered. A
    /// message that is outstanding only here has been acknowledged.
    pub(crate) async fn reload_if_uncertain(&self, state: &mut ConsumerState) -> Result<(), Error> {
        let mut write = self.broker.connections.begin_relaxed().await?;
        let rows = self.lane_rows(&mut write).await?;
        drop_lost_lanes(state, &rows);
        let lanes: Vec<u16> = state.lanes.keys().copied().collect();
        let outstanding: Vec<i64> = sqlx::query_scalar(
            "SELECT seq FROM broker_unacknowledged
             WHERE group_id = ?1 AND outstanding = 1 AND lane IN (SELECT value FROM json_each(?2))",
        )
        .bind(self.group.id)
        .bind(json_list(&lanes))
        .fetch_all(write.connection())
        .await?;
        let outstanding: HashSet<i64> = outstanding.into_iter().collect();
        let unknown: Vec<i64> = outstanding.iter().copied().filter(|seq| !state.tags.contains_key(seq)).collect();
        sqlx::query(
            "UPDATE broker_unacknowledged SET outstanding = 0
             WHERE group_id = ?1 AND seq IN (SELECT value FROM json_each(?2))",
        )
        .bind(self.group.id)
        .bind(json_list(&unknown))
        .execute(write.connection())
        .await?;
        write.commit().await?;
        let acknowledged: Vec<DeliveryTag> = state
            .all_outstanding()
            .filter(|(_, known)| !outstanding.contains(&known.seq))
            .map(|(tag, _)| tag)
            .collect();
        for tag in acknowledged {
            state.remove(tag);
        }
        for row in rows {
            if let Some(held) = state.lanes.get_mut(&row.lane) {
                held.cursor = held.cursor.max(row.cursor);
            }
        }
        state.uncertain = false;
        Ok(())
    }

    /// The longest lease that this consumer assumes for any consumer of its group.
    fn lease_ms_max(&self) -> i64 {
        let lease_max = (self.options.lease * 20).max(Duration::from_mins(10));
        i64::try_from(lease_max.as_millis()).unwrap_or(i64::MAX / 2)
    }

    /// Whether consumers joined, left or died, so that the lanes must be rebalanced.
    pub(crate) async fn needs_rebalance(&self, state: &ConsumerState) -> Result<bool, Error> {
        let row = sqlx::query(concat!(
            "SELECT (SELECT count(*) FROM broker_lane WHERE group_id = ?1 AND (owner IS NULL OR ",
            lease_expired!("?3"),
            ") AND owner IS NOT ?2), (SELECT count(*) FROM broker_member WHERE group_id = ?1 AND NOT ",
            lease_expired!("?3"),
            ")"
        ))
        .bind(self.group.id)
        .bind(self.owner)
        .bind(self.lease_ms_max())
        .fetch_one(self.broker.connections.readers())
        .await?;
        let (free, members): (i64, i64) = (row.get(0), row.get(1));
        let fair = usize::from(self.group.lanes).div_ceil(usize::try_from(members).unwrap_or(1).max(1));
        let staying = state.lanes.values().filter(|held| !held.releasing).count();
        Ok((free > 0 && staying < fair) || staying > fair || state.has_drained())
    }

    async fn lane_rows(&self, write: &mut WriteTransaction) -> Result<Vec<LaneRow>, Error> {
        let rows = sqlx::query(concat!(
            "SELECT lane, epoch, cursor, owner IS ?2, owner IS NULL OR owner IS ?2 OR ",
            lease_expired!("?3"),
            " FROM broker_lane WHERE group_id = ?1 ORDER BY lane"
        ))
        .bind(self.group.id)
        .bind(self.owner)
        .bind(self.lease_ms_max())
        .fetch_all(write.connection())
        .await?;
        Ok(rows
            .iter()
            .map(|row| LaneRow {
                lane: row.get(0),
                epoch: row.get(1),
                cursor: row.get(2),
                mine: row.get(3),
                free: row.get(4),
            })
            .collect())
    }

    /// Renews every lane and records its cursor; then frees the released lanes.
    async fn release_lanes(
        &self,
        write: &mut WriteTransaction,
        state: &ConsumerState,
        lanes: &[u16],
    ) -> Result<(), Error> {
        write_cursors(write, self.group.id, state.lanes.iter().map(|(lane, held)| (*lane, held.cursor))).await?;
        sqlx::query(
            "UPDATE broker_lane SET lease_until_ms = CAST(unixepoch('subsec') * 1000 AS INTEGER) + ?3
             WHERE group_id = ?1 AND owner = ?2",
        )
        .bind(self.group.id)
        .bind(self.owner)
        .bind(self.lease_ms())
        .execute(write.connection())
        .await?;
        sqlx::query(
            "UPDATE broker_lane SET owner = NULL, lease_until_ms = 0
             WHERE group_id = ?1 AND owner = ?2 AND lane IN (SELECT value FROM json_each(?3))",
        )
        .bind(self.group.id)
        .bind(self.owner)
        .bind(json_list(lanes))
        .execute(write.connection())
        .await?;
        Ok(())
    }

    async fn claim_lanes(
        &self,
        write: &mut WriteTransaction,
        lanes: &[u16],
        lease: i64,
    ) -> Result<Vec<(u16, OwnedLane)>, Error> {
        if lanes.is_empty() {
            return Ok(Vec::new());
        }
        let rows = sqlx::query(
            "UPDATE broker_lane SET owner = ?2, epoch = epoch + 1,
                    lease_until_ms = CAST(unixepoch('subsec') * 1000 AS INTEGER) + ?3
             WHERE group_id = ?1 AND lane IN (SELECT value FROM json_each(?4)) RETURNING lane, epoch, cursor",
        )
        .bind(self.group.id)
        .bind(self.owner)
        .bind(lease)
        .bind(json_list(lanes))
        .fetch_all(write.connection())
        .await?;
        self.requeue_outstanding(write, lanes).await?;
        let held = |row: &sqlx::sqlite::SqliteRow| OwnedLane {
            epoch: row.get(1),
            cursor: row.get(2),
            outstanding: 0,
            paused: false,
            releasing: false,
        };
        Ok(rows.iter().map(|row| (row.get(0), held(row))).collect())
    }

    /// Makes the outstanding messages of these lanes deliverable again. Their former consumer can no longer acknowledge
    /// them.
    async fn requeue_outstanding(&self, write: &mut WriteTransaction, lanes: &[u16]) -> Result<(), Error> {
        sqlx::query(
            "UPDATE broker_unacknowledged SET outstanding = 0
             WHERE group_id = ?1 AND outstanding = 1 AND lane IN (SELECT value FROM json_each(?2))",
        )
        .bind(self.group.id)
        .bind(json_list(lanes))
        .execute(write.connection())
        .await?;
        Ok(())
    }
}

/// Records the cursors of lanes. A cursor never moves back: a limit may have moved it forward.
pub(crate) async fn write_cursors(
    write: &mut WriteTransaction,
    group: i64,
    cursors: impl Iterator<Item = (u16, i64)>,
) -> Result<(), Error> {
    let cursors: BTreeMap<String, i64> = cursors.map(|(lane, cursor)| (lane.to_string(), cursor)).collect();
    sqlx::query(
        "UPDATE broker_lane SET cursor = c.value FROM json_each(?2) c
         WHERE group_id = ?1 AND lane = CAST(c.key AS INTEGER) AND cursor < c.value",
    )
    .bind(group)
    .bind(serde_json::json!(cursors).to_string())
    .execute(write.connection())
    .await?;
    Ok(())
}

/// A list of numbers as JSON, for `json_each`.
pub(crate) fn json_list<T: serde::Serialize>(numbers: &[T]) -> String {
    serde_json::to_string(numbers).expect("numbers are always JSON")
}

fn drop_lost_lanes(state: &mut ConsumerState, rows: &[LaneRow]) {
    let is_mine =
        |lane: u16, held: &OwnedLane| rows.iter().any(|row| row.lane == lane && row.mine && row.epoch == held.epoch);
    let lost: Vec<u16> =
        state.lanes.iter().filter(|(lane, held)| !is_mine(**lane, held)).map(|(lane, _)| *lane).collect();
    for lane in lost {
        state.drop_lane(lane);
    }
}

/// Marks lanes for release, those with the fewest outstanding deliveries first. Returns the lanes that can be released
/// now.
fn select_releasing(state: &mut ConsumerState, fair: usize) -> Vec<u16> {
    let mut lanes: Vec<(usize, u16)> = state.lanes.iter().map(|(lane, held)| (held.outstanding, *lane)).collect();
    lanes.sort_unstable();
    let surplus = lanes.len().saturating_sub(fair);
    for (index, (_, lane)) in lanes.iter().enumerate() {
        if let Some(held) = state.lanes.get_mut(lane) {
            held.releasing = index < surplus;
        }
    }
    lanes.into_iter().take(surplus).filter(|(out, _)| *out == 0).map(|(_, lane)| lane).collect()
}
