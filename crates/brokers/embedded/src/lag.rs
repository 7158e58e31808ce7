//! How much of each lane waits.

use relevo_core::Lane;
use sqlx::Row as _;

use crate::classify::Error;
use crate::consumer::Shared;
use crate::inspect::LAG_EXACT_MAX;

impl Shared {
    /// What waits in each lane, whoever has it. Behind each place at which lanes stand, at most [`LAG_EXACT_MAX`] messages of
    /// the log are looked at: what it costs does not grow with the log.
    pub(crate) async fn lag(&self) -> Result<Vec<(Lane, u64)>, Error> {
        let mut counts = vec![0; self.lanes.len()];
        let mut count = |lane: u16, more: i64| {
            if let Some(waiting) = counts.get_mut(usize::from(lane)) {
                *waiting += more.cast_unsigned();
            }
        };
        let fresh = sqlx::query(FRESH)
            .bind(self.group.id)
            .bind(i64::from(self.group.lanes))
            .bind(LAG_EXACT_MAX.cast_signed())
            .fetch_all(self.broker.link.readers())
            .await?;
        for row in fresh.iter().filter(|row| self.patterns.matches(row.get(1))) {
            count(row.get(0), row.get(2));
        }
        let again = sqlx::query(AGAIN)
            .bind(self.group.id)
            .bind(LAG_EXACT_MAX.cast_signed())
            .fetch_all(self.broker.link.readers())
            .await?;
        for row in &again {
            count(row.get(0), row.get(1));
        }
        Ok(self.lanes.iter().cloned().zip(counts).collect())
    }
}

/// What was never handed out, by lane and address. The log is cut where lanes stand, so that a message is looked at once, for
/// every lane that has come so far at most.
const FRESH: &str = "
WITH place AS (
    SELECT max(cursor, (SELECT coalesce(min(seq), 1) - 1 FROM broker_message)) AS low FROM broker_lane WHERE grp = ?1),
piece AS (
    SELECT low, lead(low, 1, 9223372036854775807) OVER (ORDER BY low) AS high FROM (SELECT DISTINCT low FROM place))
SELECT m.slot % ?2 AS lane, m.address, count(*)
FROM piece CROSS JOIN broker_message m CROSS JOIN broker_lane l
WHERE m.seq > piece.low AND m.seq <= min(piece.high, piece.low + ?3)
  AND l.grp = ?1 AND l.lane = m.slot % ?2 AND l.cursor <= piece.low
GROUP BY 1, 2";

/// What came back, what is due again, and what waits behind another of its key.
const AGAIN: &str = "
SELECT lane, count(*) FROM (
    SELECT lane FROM (SELECT lane FROM broker_pending WHERE grp = ?1 AND state = 0 LIMIT ?2)
    UNION ALL
    SELECT lane FROM (SELECT lane FROM broker_pending
                       WHERE grp = ?1 AND state = 2 AND due_ms <= unixepoch('subsec') * 1000 LIMIT ?2)
    UNION ALL
    SELECT lane FROM (SELECT lane FROM broker_pending
                       WHERE grp = ?1 AND state = 3 AND key IS NOT NULL LIMIT ?2))
GROUP BY lane";
