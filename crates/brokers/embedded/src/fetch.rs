//! Reads the next deliveries.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use relevo_core::message::Headers;
use relevo_core::{Delivery, Raw};
use sqlx::Row as _;
use sqlx::sqlite::SqliteRow;

use crate::classify::Error;
use crate::consumer::Shared;
use crate::lanes::{Out, State, json, write_cursors};

/// The number of sequence numbers that one statement reads.
const WINDOW: i64 = 4_096;
/// The number of windows that one call reads before it releases the lock on the lanes.
const WINDOWS_MAX: usize = 16;

/// The result of one fetch.
pub(crate) struct Fetched {
    pub(crate) deliveries: Vec<Delivery>,
    /// The log has more messages; fetch again at once.
    pub(crate) more: bool,
}

/// A message that will be delivered.
struct Found {
    seq: i64,
    lane: u16,
    redelivered: bool,
    address: Arc<str>,
    raw: Raw,
}

/// The messages of a fetch that are not recorded as outstanding yet.
struct Look {
    limit: usize,
    /// The free capacity of each lane. A full lane is not in the map.
    rooms: BTreeMap<u16, usize>,
    cursors: BTreeMap<u16, i64>,
    /// Messages that were delivered before.
    again: Vec<Found>,
    fresh: Vec<Found>,
}

impl Look {
    fn left(&self) -> usize {
        self.limit - self.again.len() - self.fresh.len()
    }

    /// Whether the lane has capacity for one more message. If not, the lane takes no part in the rest of this fetch.
    fn enter(&mut self, lane: u16) -> bool {
        match self.rooms.get_mut(&lane) {
            Some(room) if *room > 0 => {
                *room -= 1;
                true
            }
            _ => {
                self.rooms.remove(&lane);
                false
            }
        }
    }
}

impl Shared {
    pub(crate) async fn fetch(&self, state: &mut State, limit: usize) -> Result<Fetched, Error> {
        let open = state.lanes.iter().filter(|(_, held)| !held.paused && !held.leaving);
        let rooms: BTreeMap<u16, usize> = open
            .map(|(lane, held)| (*lane, self.membership.prefetch.saturating_sub(held.out)))
            .filter(|(_, room)| *room > 0)
            .collect();
        let cursors = state.lanes.iter().map(|(lane, held)| (*lane, held.cursor)).collect();
        let mut look = Look { limit, rooms, cursors, again: Vec::new(), fresh: Vec::new() };
        if look.rooms.is_empty() {
            return Ok(Fetched { deliveries: Vec::new(), more: false });
        }
        self.look_again(&mut look).await?;
        let more = self.look_on(&mut look).await?;
        if look.again.is_empty() && look.fresh.is_empty() {
            // Only this consumer needs the new cursors; the next heartbeat writes them to the file.
            for (lane, held) in &mut state.lanes {
                held.cursor = look.cursors[lane];
            }
            return Ok(Fetched { deliveries: Vec::new(), more });
        }
        let deliveries = self.hand_out(state, look).await?;
        Ok(Fetched { more: true, deliveries })
    }

    /// Reads messages that were delivered before and returned to the lane.
    async fn look_again(&self, look: &mut Look) -> Result<(), Error> {
        let lanes: Vec<u16> = look.rooms.keys().copied().collect();
        let rows = sqlx::query(AGAIN)
            .bind(self.group.id)
            .bind(json(&lanes))
            .bind(i64::try_from(look.limit).unwrap_or(i64::MAX))
            .fetch_all(self.broker.link.readers())
            .await?;
        for row in &rows {
            let lane: u16 = row.get("lane");
            if look.enter(lane) {
                look.again.push(found(row, lane, true)?);
            }
        }
        if rows.len() >= look.limit {
            // These lanes may have more returned messages, and new messages must not overtake them.
            look.rooms.clear();
        }
        Ok(())
    }

    /// Reads messages that were never delivered. Lanes with the same cursor are read together, the lowest cursor first.
    async fn look_on(&self, look: &mut Look) -> Result<bool, Error> {
        let newest: i64 = sqlx::query_scalar("SELECT coalesce(max(seq), 0) FROM broker_message")
            .fetch_one(self.broker.link.readers())
            .await?;
        for _ in 0..WINDOWS_MAX {
            let standing = |look: &Look| look.rooms.keys().map(|lane| look.cursors[lane]).collect::<Vec<i64>>();
            let Some(low) = standing(look).into_iter().min().filter(|low| *low < newest) else { return Ok(false) };
            let lanes: Vec<u16> = look.rooms.keys().copied().filter(|lane| look.cursors[lane] == low).collect();
            let next = standing(look).into_iter().filter(|cursor| *cursor > low).min().unwrap_or(newest);
            let end = next.min(low + WINDOW).min(newest);
            self.look_at(look, &lanes, low, end).await?;
            if look.left() == 0 {
                return Ok(true);
            }
        }
        Ok(true)
    }

    /// Reads the messages of these lanes after `low`, up to `end`.
    async fn look_at(&self, look: &mut Look, lanes: &[u16], low: i64, end: i64) -> Result<(), Error> {
        let left = look.left();
        let all = lanes.len() == usize::from(self.group.lanes);
        let rows = sqlx::query(ON)
            .bind(low)
            .bind(end)
            .bind(i64::from(self.group.lanes))
            .bind((!all).then(|| json(lanes)))
            .bind(self.patterns.globs())
            .bind(i64::try_from(left).unwrap_or(i64::MAX))
            .fetch_all(self.broker.link.readers())
            .await?;
        let end = if rows.len() == left { rows.last().map_or(end, |row| row.get("seq")) } else { end };
        for row in &rows {
            let (seq, lane): (i64, u16) = (row.get("seq"), row.get("lane"));
            if !look.rooms.contains_key(&lane) || !self.patterns.matches(row.get("address")) {
                continue;
            }
            if look.enter(lane) {
                look.fresh.push(found(row, lane, false)?);
            } else {
                look.cursors.insert(lane, seq - 1);
            }
        }
        for lane in lanes {
            if look.rooms.contains_key(lane) {
                look.cursors.insert(*lane, end);
            }
        }
        Ok(())
    }

    /// Records the messages as outstanding, then delivers them. A lane that was lost in the meantime delivers nothing.
    async fn hand_out(&self, state: &mut State, look: Look) -> Result<Vec<Delivery>, Error> {
        let mut write = self.broker.link.write_relaxed().await?;
        let rows = sqlx::query("SELECT lane, epoch, cursor FROM broker_lane WHERE group_id = ?1 AND owner = ?2")
            .bind(self.group.id)
            .bind(self.owner)
            .fetch_all(write.sql())
            .await?;
        let standing: BTreeMap<u16, (i64, i64)> =
            rows.iter().map(|row| (row.get(0), (row.get(1), row.get(2)))).collect();
        let is_mine = |lane: u16| {
            standing
                .get(&lane)
                .is_some_and(|(epoch, _)| state.lanes.get(&lane).is_some_and(|held| held.epoch == *epoch))
        };
        // A limit deleted the messages that the cursor in the file has passed.
        let is_there = |lane: u16, seq: i64| standing.get(&lane).is_some_and(|(_, cursor)| seq > *cursor);
        let lost: Vec<u16> = state.lanes.keys().copied().filter(|lane| !is_mine(*lane)).collect();
        let Look { mut again, mut fresh, mut cursors, .. } = look;
        again.retain(|found| is_mine(found.lane));
        fresh.retain(|found| is_mine(found.lane) && is_there(found.lane, found.seq));
        cursors.retain(|lane, _| is_mine(*lane));

        state.doubtful = true;
        if !again.is_empty() {
            let seqs: Vec<i64> = again.iter().map(|found| found.seq).collect();
            sqlx::query(
                "UPDATE broker_unacknowledged SET outstanding = 1
                 WHERE group_id = ?1 AND seq IN (SELECT value FROM json_each(?2))",
            )
            .bind(self.group.id)
            .bind(json(&seqs))
            .execute(write.sql())
            .await?;
        }
        // Sequence number and lane share one integer: SQLite reads a flat list much faster than a list of pairs.
        let packed: Vec<i64> = fresh.iter().map(|found| found.seq << 8 | i64::from(found.lane)).collect();
        sqlx::query(
            "INSERT INTO broker_unacknowledged (seq, group_id, lane, outstanding)
             SELECT value >> 8, ?1, value & 255, 1 FROM json_each(?2)",
        )
        .bind(self.group.id)
        .bind(json(&packed))
        .execute(write.sql())
        .await?;
        write_cursors(&mut write, self.group.id, cursors.iter().map(|(lane, cursor)| (*lane, *cursor))).await?;
        write.commit().await?;

        for (lane, held) in &mut state.lanes {
            if let Some(cursor) = cursors.get(lane) {
                held.cursor = *cursor;
            }
        }
        for lane in lost {
            state.lose(lane);
        }
        let deliveries = again.into_iter().chain(fresh).map(|found| self.deliver(state, found)).collect();
        state.doubtful = false;
        Ok(deliveries)
    }

    fn deliver(&self, state: &mut State, found: Found) -> Delivery {
        let Found { seq, lane, redelivered, address, raw } = found;
        let tag = state.hand_out(Out { seq, lane });
        let lane = self.lanes[usize::from(lane)].clone();
        Delivery { tag, raw, address, lane, place: Some(seq.cast_unsigned()), redelivered, retries: 0 }
    }
}

fn found(row: &SqliteRow, lane: u16, redelivered: bool) -> Result<Found, Error> {
    let seq = row.get("seq");
    let headers: Headers = serde_json::from_str(row.get("headers"))
        .map_err(|_| Error::Schema { what: format!("the headers of message {seq} cannot be read") })?;
    let payload = Bytes::from(row.get::<Vec<u8>, _>("payload"));
    let address = row.get::<&str, _>("address").into();
    Ok(Found { seq, lane, redelivered, address, raw: Raw::new(headers, payload) })
}

const AGAIN: &str = "
SELECT u.seq, u.lane, m.address, m.headers, m.payload FROM (
    SELECT seq, lane FROM broker_unacknowledged
     WHERE group_id = ?1 AND outstanding = 0 AND lane IN (SELECT value FROM json_each(?2))
     ORDER BY seq LIMIT ?3) u
JOIN broker_message m ON m.seq = u.seq ORDER BY u.seq";

const ON: &str = "
SELECT m.seq, m.slot % ?3 AS lane, m.address, m.headers, m.payload
FROM broker_message m
WHERE m.seq > ?1 AND m.seq <= ?2
  AND (?4 IS NULL OR m.slot % ?3 IN (SELECT value FROM json_each(?4)))
  AND (?5 IS NULL OR EXISTS (SELECT 1 FROM json_each(?5) g WHERE m.address GLOB g.value))
ORDER BY m.seq LIMIT ?6";
