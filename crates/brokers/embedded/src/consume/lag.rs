//! Counts the waiting messages of each lane.

use std::collections::BTreeMap;

use relevo_core::Lane;
use sqlx::Row as _;

use crate::classify::Error;
use crate::consume::ConsumerInner;

/// A lag is exact up to this number. Above it, the real lag may be higher.
pub const LAG_COUNT_MAX: u64 = 10_000;

impl ConsumerInner {
    /// The number of waiting messages of each lane, whichever consumer owns it. It reads at most [`LAG_COUNT_MAX`]
    /// messages after each distinct cursor, so the cost does not grow with the log.
    pub(crate) async fn lag(&self) -> Result<Vec<(Lane, u64)>, Error> {
        let mut counts = vec![0; self.lanes.len()];
        let mut count = |lane: u16, more: i64| {
            if let Some(waiting) = counts.get_mut(usize::from(lane)) {
                *waiting += more.cast_unsigned();
            }
        };
        // For its own lanes this consumer may have a newer cursor than the file.
        let state = self.state.lock().await;
        let cursors: BTreeMap<String, i64> =
            state.lanes.iter().map(|(lane, held)| (lane.to_string(), held.cursor)).collect();
        drop(state);
        let new_messages = sqlx::query(COUNT_NEW)
            .bind(self.group.id)
            .bind(i64::from(self.group.lanes))
            .bind(LAG_COUNT_MAX.cast_signed())
            .bind(serde_json::json!(cursors).to_string())
            .fetch_all(self.broker.connections.readers())
            .await?;
        for row in new_messages.iter().filter(|row| self.patterns.matches(row.get(1))) {
            count(row.get(0), row.get(2));
        }
        let returned = sqlx::query(COUNT_RETURNED)
            .bind(self.group.id)
            .bind(LAG_COUNT_MAX.cast_signed())
            .fetch_all(self.broker.connections.readers())
            .await?;
        for row in &returned {
            count(row.get(0), row.get(1));
        }
        Ok(self.lanes.iter().cloned().zip(counts).collect())
    }
}

/// Messages that were never delivered, by lane and address. The log is split at the lane cursors, so that each message
/// is read once, only for lanes whose cursor is before it.
const COUNT_NEW: &str = "
WITH place AS MATERIALIZED (
    SELECT l.lane, max(l.cursor, coalesce(c.value, 0), (SELECT coalesce(min(seq), 1) - 1 FROM broker_message)) AS low
    FROM broker_lane l LEFT JOIN json_each(?4) c ON CAST(c.key AS INTEGER) = l.lane WHERE l.group_id = ?1),
piece AS (
    SELECT low, lead(low, 1, 9223372036854775807) OVER (ORDER BY low) AS high FROM (SELECT DISTINCT low FROM place))
SELECT m.slot % ?2 AS lane, m.address, count(*)
FROM piece CROSS JOIN broker_message m JOIN place p ON p.lane = m.slot % ?2 AND p.low <= piece.low
WHERE m.seq > piece.low AND m.seq <= min(piece.high, piece.low + ?3)
GROUP BY 1, 2";

/// Messages that were delivered and returned.
const COUNT_RETURNED: &str = "
SELECT lane, count(*) FROM (SELECT lane FROM broker_unacknowledged WHERE group_id = ?1 AND outstanding = 0 LIMIT ?2)
GROUP BY lane";
