//! The lanes that a consumer owns, and its outstanding deliveries.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use relevo_core::DeliveryTag;
use sqlx::Row as _;

use crate::classify::Error;
use crate::consumer::Shared;
use crate::link::Write;

/// Whether a lease has expired. A lease that ends too far in the future was written by a clock that has since been set
/// back.
macro_rules! is_over {
    ($longest:literal) => {
        concat!(
            "(lease_until_ms <= unixepoch('subsec') * 1000 OR lease_until_ms > unixepoch('subsec') * 1000 + ",
            $longest,
            ")"
        )
    };
}

/// What a consumer knows about its group.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) lanes: BTreeMap<u16, Held>,
    out: HashMap<DeliveryTag, Out>,
    tags: HashMap<i64, DeliveryTag>,
    next_tag: u64,
    /// A call was cancelled during a write: the file may be ahead of this state.
    pub(crate) doubtful: bool,
}

/// A lane that this consumer owns.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) epoch: i64,
    /// Every message up to here was delivered, or does not match the group.
    pub(crate) cursor: i64,
    pub(crate) out: usize,
    pub(crate) paused: bool,
    /// The lane exceeds the fair share. It delivers nothing new, and is released when no delivery is outstanding.
    pub(crate) leaving: bool,
}

/// An outstanding delivery.
#[derive(Clone, Debug)]
pub(crate) struct Out {
    pub(crate) seq: i64,
    pub(crate) lane: u16,
}

impl State {
    /// Adds a delivery with a new tag. An older tag of the same message becomes invalid.
    pub(crate) fn hand_out(&mut self, out: Out) -> DeliveryTag {
        if let Some(old) = self.tags.get(&out.seq).copied() {
            self.take_back(old);
        }
        self.next_tag += 1;
        let tag = DeliveryTag::new(self.next_tag);
        if let Some(held) = self.lanes.get_mut(&out.lane) {
            held.out += 1;
        }
        self.tags.insert(out.seq, tag);
        self.out.insert(tag, out);
        tag
    }

    /// Removes a delivery that was acknowledged or no longer belongs to this consumer.
    pub(crate) fn take_back(&mut self, tag: DeliveryTag) {
        let Some(out) = self.out.remove(&tag) else { return };
        self.tags.remove(&out.seq);
        if let Some(held) = self.lanes.get_mut(&out.lane) {
            held.out -= 1;
        }
    }

    pub(crate) fn out(&self, tag: DeliveryTag) -> Option<&Out> {
        self.out.get(&tag)
    }

    pub(crate) fn outs(&self) -> impl Iterator<Item = (DeliveryTag, &Out)> {
        self.out.iter().map(|(tag, out)| (*tag, out))
    }

    /// Removes a lane and its outstanding deliveries.
    pub(crate) fn lose(&mut self, lane: u16) {
        self.lanes.remove(&lane);
        let tags: Vec<DeliveryTag> = self.outs().filter(|(_, out)| out.lane == lane).map(|(tag, _)| tag).collect();
        for tag in tags {
            self.take_back(tag);
        }
    }

    /// Whether a lane is ready to be released.
    pub(crate) fn has_drained(&self) -> bool {
        self.lanes.values().any(|held| held.leaving && held.out == 0)
    }
}

/// A lane as stored in the file.
struct Row {
    lane: u16,
    epoch: i64,
    cursor: i64,
    mine: bool,
    free: bool,
}

impl Shared {
    /// Renews the leases of this consumer, releases lanes above its fair share and claims free ones.
    pub(crate) async fn attend(&self, state: &mut State) -> Result<(), Error> {
        let mut write = self.broker.link.write_relaxed().await?;
        let (group, owner, lease) = (self.group.id, self.owner, self.lease_ms());
        sqlx::query(concat!("DELETE FROM broker_member WHERE group_id = ?1 AND ", is_over!("?2")))
            .bind(group)
            .bind(self.longest_ms())
            .execute(write.sql())
            .await?;
        let rows = self.lane_rows(&mut write).await?;
        if rows.is_empty() {
            write.abandon().await?;
            return Err(Error::NoGroup(self.group.name.clone()));
        }
        sqlx::query(
            "INSERT INTO broker_member (group_id, owner, name, lease_until_ms)
             VALUES (?1, ?2, ?3, CAST(unixepoch('subsec') * 1000 AS INTEGER) + ?4)
             ON CONFLICT (group_id, owner) DO UPDATE SET lease_until_ms = excluded.lease_until_ms",
        )
        .bind(group)
        .bind(owner)
        .bind(&self.membership.name)
        .bind(lease)
        .execute(write.sql())
        .await?;
        let members: i64 = sqlx::query_scalar("SELECT count(*) FROM broker_member WHERE group_id = ?1")
            .bind(group)
            .fetch_one(write.sql())
            .await?;
        let fair = rows.len().div_ceil(usize::try_from(members).unwrap_or(1).max(1));
        forget_lost(state, &rows);
        let give_back = choose_leaving(state, fair);
        self.give_back(&mut write, state, &give_back).await?;
        let room = fair.saturating_sub(state.lanes.len() - give_back.len());
        let is_held = |row: &Row| state.lanes.contains_key(&row.lane);
        let take: Vec<u16> =
            rows.iter().filter(|row| row.free && !is_held(row)).map(|row| row.lane).take(room).collect();
        let taken = self.take(&mut write, &take, lease).await?;
        write.commit().await?;
        for lane in &give_back {
            state.lose(*lane);
        }
        state.lanes.extend(taken);
        if !give_back.is_empty() {
            self.broker.wake.stir();
        }
        Ok(())
    }

    /// Releases all lanes at once.
    pub(crate) async fn leave(&self, state: &mut State) -> Result<(), Error> {
        let mut write = self.broker.link.write_relaxed().await?;
        let rows = self.lane_rows(&mut write).await?;
        forget_lost(state, &rows);
        let mine: Vec<u16> = rows.iter().filter(|row| row.mine).map(|row| row.lane).collect();
        self.give_back(&mut write, state, &mine).await?;
        self.put_back(&mut write, &mine).await?;
        sqlx::query("DELETE FROM broker_member WHERE group_id = ?1 AND owner = ?2")
            .bind(self.group.id)
            .bind(self.owner)
            .execute(write.sql())
            .await?;
        write.commit().await?;
        for lane in mine {
            state.lose(lane);
        }
        self.broker.wake.stir();
        Ok(())
    }

    /// Reloads the state after a cancelled call. A message that is outstanding only in the file was never delivered. A
    /// message that is outstanding only here has been acknowledged.
    pub(crate) async fn resolve_doubt(&self, state: &mut State) -> Result<(), Error> {
        let mut write = self.broker.link.write_relaxed().await?;
        let rows = self.lane_rows(&mut write).await?;
        forget_lost(state, &rows);
        let lanes: Vec<u16> = state.lanes.keys().copied().collect();
        let out: Vec<i64> = sqlx::query_scalar(
            "SELECT seq FROM broker_unacknowledged
             WHERE group_id = ?1 AND outstanding = 1 AND lane IN (SELECT value FROM json_each(?2))",
        )
        .bind(self.group.id)
        .bind(json(&lanes))
        .fetch_all(write.sql())
        .await?;
        let out: HashSet<i64> = out.into_iter().collect();
        let unknown: Vec<i64> = out.iter().copied().filter(|seq| !state.tags.contains_key(seq)).collect();
        sqlx::query(
            "UPDATE broker_unacknowledged SET outstanding = 0
             WHERE group_id = ?1 AND seq IN (SELECT value FROM json_each(?2))",
        )
        .bind(self.group.id)
        .bind(json(&unknown))
        .execute(write.sql())
        .await?;
        write.commit().await?;
        let acknowledged: Vec<DeliveryTag> =
            state.outs().filter(|(_, known)| !out.contains(&known.seq)).map(|(tag, _)| tag).collect();
        for tag in acknowledged {
            state.take_back(tag);
        }
        for row in rows {
            if let Some(held) = state.lanes.get_mut(&row.lane) {
                held.cursor = held.cursor.max(row.cursor);
            }
        }
        state.doubtful = false;
        Ok(())
    }

    /// The longest lease that this consumer assumes for any consumer of its group.
    fn longest_ms(&self) -> i64 {
        let longest = (self.membership.lease * 20).max(Duration::from_mins(10));
        i64::try_from(longest.as_millis()).unwrap_or(i64::MAX / 2)
    }

    /// Whether consumers joined, left or died, so that the lanes must be rebalanced.
    pub(crate) async fn should_attend(&self, state: &State) -> Result<bool, Error> {
        let row = sqlx::query(concat!(
            "SELECT (SELECT count(*) FROM broker_lane WHERE group_id = ?1 AND (owner IS NULL OR ",
            is_over!("?3"),
            ") AND owner IS NOT ?2), (SELECT count(*) FROM broker_member WHERE group_id = ?1 AND NOT ",
            is_over!("?3"),
            ")"
        ))
        .bind(self.group.id)
        .bind(self.owner)
        .bind(self.longest_ms())
        .fetch_one(self.broker.link.readers())
        .await?;
        let (free, members): (i64, i64) = (row.get(0), row.get(1));
        let fair = usize::from(self.group.lanes).div_ceil(usize::try_from(members).unwrap_or(1).max(1));
        let staying = state.lanes.values().filter(|held| !held.leaving).count();
        Ok((free > 0 && staying < fair) || staying > fair || state.has_drained())
    }

    async fn lane_rows(&self, write: &mut Write) -> Result<Vec<Row>, Error> {
        let rows = sqlx::query(concat!(
            "SELECT lane, epoch, cursor, owner IS ?2, owner IS NULL OR owner IS ?2 OR ",
            is_over!("?3"),
            " FROM broker_lane WHERE group_id = ?1 ORDER BY lane"
        ))
        .bind(self.group.id)
        .bind(self.owner)
        .bind(self.longest_ms())
        .fetch_all(write.sql())
        .await?;
        Ok(rows
            .iter()
            .map(|row| Row {
                lane: row.get(0),
                epoch: row.get(1),
                cursor: row.get(2),
                mine: row.get(3),
                free: row.get(4),
            })
            .collect())
    }

    /// Renews every lane and records its cursor; then frees the released lanes.
    async fn give_back(&self, write: &mut Write, state: &State, lanes: &[u16]) -> Result<(), Error> {
        write_cursors(write, self.group.id, state.lanes.iter().map(|(lane, held)| (*lane, held.cursor))).await?;
        sqlx::query(
            "UPDATE broker_lane SET lease_until_ms = CAST(unixepoch('subsec') * 1000 AS INTEGER) + ?3
             WHERE group_id = ?1 AND owner = ?2",
        )
        .bind(self.group.id)
        .bind(self.owner)
        .bind(self.lease_ms())
        .execute(write.sql())
        .await?;
        sqlx::query(
            "UPDATE broker_lane SET owner = NULL, lease_until_ms = 0
             WHERE group_id = ?1 AND owner = ?2 AND lane IN (SELECT value FROM json_each(?3))",
        )
        .bind(self.group.id)
        .bind(self.owner)
        .bind(json(lanes))
        .execute(write.sql())
        .await?;
        Ok(())
    }

    async fn take(&self, write: &mut Write, lanes: &[u16], lease: i64) -> Result<Vec<(u16, Held)>, Error> {
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
        .bind(json(lanes))
        .fetch_all(write.sql())
        .await?;
        self.put_back(write, lanes).await?;
        let held = |row: &sqlx::sqlite::SqliteRow| Held {
            epoch: row.get(1),
            cursor: row.get(2),
            out: 0,
            paused: false,
            leaving: false,
        };
        Ok(rows.iter().map(|row| (row.get(0), held(row))).collect())
    }

    /// Returns the outstanding messages of these lanes. Their former consumer can no longer acknowledge them.
    async fn put_back(&self, write: &mut Write, lanes: &[u16]) -> Result<(), Error> {
        sqlx::query(
            "UPDATE broker_unacknowledged SET outstanding = 0
             WHERE group_id = ?1 AND outstanding = 1 AND lane IN (SELECT value FROM json_each(?2))",
        )
        .bind(self.group.id)
        .bind(json(lanes))
        .execute(write.sql())
        .await?;
        Ok(())
    }
}

/// Records the cursors of lanes. A cursor never moves back: a limit may have moved it forward.
pub(crate) async fn write_cursors(
    write: &mut Write,
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
    .execute(write.sql())
    .await?;
    Ok(())
}

/// A list of numbers as JSON, for `json_each`.
pub(crate) fn json<T: serde::Serialize>(numbers: &[T]) -> String {
    serde_json::to_string(numbers).expect("numbers are always JSON")
}

fn forget_lost(state: &mut State, rows: &[Row]) {
    let is_mine =
        |lane: u16, held: &Held| rows.iter().any(|row| row.lane == lane && row.mine && row.epoch == held.epoch);
    let lost: Vec<u16> =
        state.lanes.iter().filter(|(lane, held)| !is_mine(**lane, held)).map(|(lane, _)| *lane).collect();
    for lane in lost {
        state.lose(lane);
    }
}

/// Marks lanes for release, those with the fewest outstanding deliveries first. Returns the lanes that can be released
/// now.
fn choose_leaving(state: &mut State, fair: usize) -> Vec<u16> {
    let mut lanes: Vec<(usize, u16)> = state.lanes.iter().map(|(lane, held)| (held.out, *lane)).collect();
    lanes.sort_unstable();
    let surplus = lanes.len().saturating_sub(fair);
    for (index, (_, lane)) in lanes.iter().enumerate() {
        if let Some(held) = state.lanes.get_mut(lane) {
            held.leaving = index < surplus;
        }
    }
    lanes.into_iter().take(surplus).filter(|(out, _)| *out == 0).map(|(_, lane)| lane).collect()
}
