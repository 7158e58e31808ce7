//! Selects the next deliveries and records them as outstanding.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use relevo_core::message::Headers;
use relevo_core::{Delivery, RawMessage};
use sqlx::Row as _;
use sqlx::sqlite::SqliteRow;

use crate::classify::Error;
use crate::consume::ConsumerInner;
use crate::consume::assignment::{json_list, write_cursors};
use crate::consume::lanes::{ConsumerState, OutstandingDelivery};

/// The number of sequence numbers that one statement reads.
const SCAN_WINDOW: i64 = 4_096;
/// The number of windows that one call reads before it releases the lock on the lanes.
const SCAN_WINDOWS_MAX: usize = 16;

/// The result of one fetch.
pub(crate) struct FetchResult {
    pub(crate) deliveries: Vec<Delivery>,
    /// The log has more messages; fetch again at once.
    pub(crate) more: bool,
}

/// A message that will be delivered.
struct FetchedMessage {
    seq: i64,
    lane: u16,
    redelivered: bool,
    address: Arc<str>,
    raw: RawMessage,
}

/// The messages of a fetch that are not recorded as outstanding yet.
struct FetchPlan {
    limit: usize,
    /// The free capacity of each lane. A full lane is not in the map.
    capacity: BTreeMap<u16, usize>,
    cursors: BTreeMap<u16, i64>,
    /// Messages that were delivered before.
    redelivered: Vec<FetchedMessage>,
    new_messages: Vec<FetchedMessage>,
}

impl FetchPlan {
    fn remaining(&self) -> usize {
        self.limit - self.redelivered.len() - self.new_messages.len()
    }

    /// Whether the lane has capacity for one more message. If not, the lane takes no part in the rest of this fetch.
    fn reserve(&mut self, lane: u16) -> bool {
        match self.capacity.get_mut(&lane) {
            Some(capacity) if *capacity > 0 => {
                *capacity -= 1;
                true
            }
            _ => {
                self.capacity.remove(&lane);
                false
            }
        }
    }
}

impl ConsumerInner {
    pub(crate) async fn fetch(&self, state: &mut ConsumerState, limit: usize) -> Result<FetchResult, Error> {
        let open = state.lanes.iter().filter(|(_, held)| !held.paused && !held.releasing);
        let capacity: BTreeMap<u16, usize> = open
            .map(|(lane, held)| (*lane, self.options.prefetch.saturating_sub(held.outstanding)))
            .filter(|(_, capacity)| *capacity > 0)
            .collect();
        let cursors = state.lanes.iter().map(|(lane, held)| (*lane, held.cursor)).collect();
        let mut plan = FetchPlan { limit, capacity, cursors, redelivered: Vec::new(), new_messages: Vec::new() };
        if plan.capacity.is_empty() {
            return Ok(FetchResult { deliveries: Vec::new(), more: false });
        }
        self.fetch_returned(&mut plan).await?;
        let more = self.fetch_new(&mut plan).await?;
        if plan.redelivered.is_empty() && plan.new_messages.is_empty() {
            // Only this consumer needs the new cursors; the next heartbeat writes them to the file.
            for (lane, held) in &mut state.lanes {
                held.cursor = plan.cursors[lane];
            }
            return Ok(FetchResult { deliveries: Vec::new(), more });
        }
        let deliveries = self.write_and_deliver(state, plan).await?;
        Ok(FetchResult { more: true, deliveries })
    }

    /// Reads messages that were delivered before and returned to the lane.
    async fn fetch_returned(&self, plan: &mut FetchPlan) -> Result<(), Error> {
        let lanes: Vec<u16> = plan.capacity.keys().copied().collect();
        let rows = sqlx::query(SELECT_RETURNED)
            .bind(self.group.id)
            .bind(json_list(&lanes))
            .bind(i64::try_from(plan.limit).unwrap_or(i64::MAX))
            .fetch_all(self.broker.connections.readers())
            .await?;
        for row in &rows {
            let lane: u16 = row.get("lane");
            if plan.reserve(lane) {
                plan.redelivered.push(decode_message(row, lane, true)?);
            }
        }
        if rows.len() >= plan.limit {
            // These lanes may have more returned messages, and new messages must not overtake them.
            plan.capacity.clear();
        }
        Ok(())
    }

    /// Reads messages that were never delivered. Lanes with the same cursor are read together, the lowest cursor first.
    async fn fetch_new(&self, plan: &mut FetchPlan) -> Result<bool, Error> {
        let newest: i64 = sqlx::query_scalar("SELECT coalesce(max(seq), 0) FROM broker_message")
            .fetch_one(self.broker.connections.readers())
            .await?;
        for _ in 0..SCAN_WINDOWS_MAX {
            let open_cursors =
                |plan: &FetchPlan| plan.capacity.keys().map(|lane| plan.cursors[lane]).collect::<Vec<i64>>();
            let Some(low) = open_cursors(plan).into_iter().min().filter(|low| *low < newest) else { return Ok(false) };
            let lanes: Vec<u16> = plan.capacity.keys().copied().filter(|lane| plan.cursors[lane] == low).collect();
            let next = open_cursors(plan).into_iter().filter(|cursor| *cursor > low).min().unwrap_or(newest);
            let end = next.min(low + SCAN_WINDOW).min(newest);
            self.fetch_window(plan, &lanes, low, end).await?;
            if plan.remaining() == 0 {
                return Ok(true);
            }
        }
        Ok(true)
    }

    /// Reads the messages of these lanes after `low`, up to `end`.
    async fn fetch_window(&self, plan: &mut FetchPlan, lanes: &[u16], low: i64, end: i64) -> Result<(), Error> {
        let limit = plan.remaining();
        let all = lanes.len() == usize::from(self.group.lanes);
        let rows = sqlx::query(SELECT_NEW)
            .bind(low)
            .bind(end)
            .bind(i64::from(self.group.lanes))
            .bind((!all).then(|| json_list(lanes)))
            .bind(self.patterns.globs())
            .bind(i64::try_from(limit).unwrap_or(i64::MAX))
            .fetch_all(self.broker.connections.readers())
            .await?;
        let end = if rows.len() == limit { rows.last().map_or(end, |row| row.get("seq")) } else { end };
        for row in &rows {
            let (seq, lane): (i64, u16) = (row.get("seq"), row.get("lane"));
            if !plan.capacity.contains_key(&lane) || !self.patterns.matches(row.get("address")) {
                continue;
            }
            if plan.reserve(lane) {
                plan.new_messages.push(decode_message(row, lane, seq <= self.broker.redelivered_through)?);
            } else {
                plan.cursors.insert(lane, seq - 1);
            }
        }
        for lane in lanes {
            if plan.capacity.contains_key(lane) {
                plan.cursors.insert(*lane, end);
            }
        }
        Ok(())
    }

    /// Records the messages as outstanding, then delivers them. A lane that was lost in the meantime delivers nothing.
    async fn write_and_deliver(&self, state: &mut ConsumerState, plan: FetchPlan) -> Result<Vec<Delivery>, Error> {
        let mut write = self.broker.connections.begin_relaxed().await?;
        let rows = sqlx::query("SELECT lane, epoch, cursor FROM broker_lane WHERE group_id = ?1 AND owner = ?2")
            .bind(self.group.id)
            .bind(self.owner)
            .fetch_all(write.connection())
            .await?;
        let stored: BTreeMap<u16, (i64, i64)> = rows.iter().map(|row| (row.get(0), (row.get(1), row.get(2)))).collect();
        let is_mine = |lane: u16| {
            stored.get(&lane).is_some_and(|(epoch, _)| state.lanes.get(&lane).is_some_and(|held| held.epoch == *epoch))
        };
        // Messages that the cursor in the file has passed may be deleted.
        let is_stored = |lane: u16, seq: i64| stored.get(&lane).is_some_and(|(_, cursor)| seq > *cursor);
        let lost: Vec<u16> = state.lanes.keys().copied().filter(|lane| !is_mine(*lane)).collect();
        let FetchPlan { mut redelivered, mut new_messages, mut cursors, .. } = plan;
        redelivered.retain(|message| is_mine(message.lane));
        new_messages.retain(|message| is_mine(message.lane) && is_stored(message.lane, message.seq));
        cursors.retain(|lane, _| is_mine(*lane));

        state.uncertain = true;
        if !redelivered.is_empty() {
            let seqs: Vec<i64> = redelivered.iter().map(|message| message.seq).collect();
            sqlx::query(
                "UPDATE broker_unacknowledged SET outstanding = 1
                 WHERE group_id = ?1 AND seq IN (SELECT value FROM json_each(?2))",
            )
            .bind(self.group.id)
            .bind(json_list(&seqs))
            .execute(write.connection())
            .await?;
        }
        // Sequence number and lane share one integer: SQLite reads a flat list much faster than a list of pairs.
        let packed: Vec<i64> = new_messages.iter().map(|message| message.seq << 8 | i64::from(message.lane)).collect();
        sqlx::query(
            "INSERT INTO broker_unacknowledged (seq, group_id, lane, outstanding)
             SELECT value >> 8, ?1, value & 255, 1 FROM json_each(?2)",
        )
        .bind(self.group.id)
        .bind(json_list(&packed))
        .execute(write.connection())
        .await?;
        write_cursors(&mut write, self.group.id, cursors.iter().map(|(lane, cursor)| (*lane, *cursor))).await?;
        write.commit().await?;

        for (lane, held) in &mut state.lanes {
            if let Some(cursor) = cursors.get(lane) {
                held.cursor = *cursor;
            }
        }
        for lane in lost {
            state.drop_lane(lane);
        }
        let deliveries =
            redelivered.into_iter().chain(new_messages).map(|message| self.deliver(state, message)).collect();
        state.uncertain = false;
        Ok(deliveries)
    }

    fn deliver(&self, state: &mut ConsumerState, message: FetchedMessage) -> Delivery {
        let FetchedMessage { seq, lane, redelivered, address, raw } = message;
        let tag = state.insert(OutstandingDelivery { seq, lane });
        let lane = self.lanes[usize::from(lane)].clone();
        Delivery { tag, raw, address, lane, offset: Some(seq.cast_unsigned()), redelivered, retry_count: 0 }
    }
}

fn decode_message(row: &SqliteRow, lane: u16, redelivered: bool) -> Result<FetchedMessage, Error> {
    let seq = row.get("seq");
    let headers: Headers = serde_json::from_str(row.get("headers"))
        .map_err(|_| Error::Schema { detail: format!("the header of message {seq} is malformed") })?;
    let payload = Bytes::from(row.get::<Vec<u8>, _>("payload"));
    let address = row.get::<&str, _>("address").into();
    Ok(FetchedMessage { seq, lane, redelivered, address, raw: RawMessage::new(headers, payload) })
}

const SELECT_RETURNED: &str = "
SELECT u.seq, u.lane, m.address, m.headers, m.payload FROM (
    SELECT seq, lane FROM broker_unacknowledged
     WHERE group_id = ?1 AND outstanding = 0 AND lane IN (SELECT value FROM json_each(?2))
     ORDER BY seq LIMIT ?3) u
JOIN broker_message m ON m.seq = u.seq ORDER BY u.seq";

const SELECT_NEW: &str = "
SELECT m.seq, m.slot % ?3 AS lane, m.address, m.headers, m.payload
FROM broker_message m
WHERE m.seq > ?1 AND m.seq <= ?2
  AND (?4 IS NULL OR m.slot % ?3 IN (SELECT value FROM json_each(?4)))
  AND (?5 IS NULL OR EXISTS (SELECT 1 FROM json_each(?5) g WHERE m.address GLOB g.value))
ORDER BY m.seq LIMIT ?6";
