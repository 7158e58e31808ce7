//! Settles shards: records their progress and parks messages, in one transaction with the write lock.

use std::collections::{BTreeMap, BTreeSet};

use relevo_core::slot::shard_of;
use relevo_core::store::{Lease, Park, Position, Settled, Settlement, Stop, Stopped};
use serde_json::{Value, json};
use sqlx::sqlite::SqliteConnection;

use crate::classify::Error;
use crate::link::{Durability, Link};
use crate::queries::{self, column, upto, waiting};

/// Checks each shard's lease and the heads that its messages queue behind. Then changes all of the shard, or nothing.
pub(crate) async fn settle(link: &Link, destination: &str, settlement: &Settlement) -> Result<Settled, Error> {
    check(settlement)?;
    // A power failure may undo progress: it causes repeats, which have the same id. It must not undo parked messages.
    let durability = if settlement.parks.is_empty() { Durability::Process } else { Durability::Power };
    let mut session = link.begin(durability).await?;
    let leases: Vec<Lease> = settlement.progress.iter().map(|(lease, _)| *lease).collect();
    let (held, now) = queries::held(&mut session, destination, &leases).await?;
    let mut settled = Settled {
        lost: leases.iter().filter(|lease| !held.contains(lease)).map(|lease| lease.shard).collect(),
        passed: Vec::new(),
    };
    let mut parks: Vec<&Park> =
        settlement.parks.iter().filter(|park| held.iter().any(|lease| is_of(park, lease))).collect();
    let mut progress: Vec<(Lease, Position)> =
        settlement.progress.iter().filter(|(lease, _)| held.contains(lease)).copied().collect();
    if !parks.is_empty() {
        let existing = existing(&mut session, destination, &parks).await?;
        settled.passed = passed(&parks, &existing);
        let stays: Vec<Lease> = held
            .iter()
            .filter(|lease| parks.iter().any(|park| is_of(park, lease) && settled.passed.contains(&park.seq)))
            .copied()
            .collect();
        parks.retain(|park| !stays.iter().any(|lease| is_of(park, lease)));
        progress.retain(|(lease, _)| !stays.contains(lease));
        Parking { destination, existing, now }.park(&mut session, &parks).await?;
    }
    if !progress.is_empty() {
        record(&mut session, destination, &progress, now).await?;
    }
    session.commit().await?;
    Ok(settled)
}

fn is_of(park: &Park, lease: &Lease) -> bool {
    shard_of(park.slot, lease.shards) == lease.shard
}

/// Rejects an invalid request before anything is changed.
fn check(settlement: &Settlement) -> Result<(), Error> {
    for park in &settlement.parks {
        if !settlement.progress.iter().any(|(lease, _)| is_of(park, lease)) {
            return Err(Error::answer(format!("message {} is parked, and its shard is not settled", park.seq)));
        }
    }
    Ok(())
}

/// Returns those keys of the parks that are parked already.
async fn existing(
    connection: &mut SqliteConnection,
    destination: &str,
    parks: &[&Park],
) -> Result<BTreeSet<String>, Error> {
    let keys: BTreeSet<&str> = parks.iter().map(|park| &*park.key).collect();
    let sql = "SELECT k.key FROM json_each(?2) AS w JOIN relevo_parked_key AS k \
               ON k.destination = ?1 AND k.key = w.value";
    let select = sqlx::query(sql).bind(destination).bind(json!(keys).to_string());
    select.fetch_all(connection).await?.iter().map(|row| column(row, 0)).collect()
}

/// Returns messages that would queue behind a head that no longer exists.
fn passed(parks: &[&Park], existing: &BTreeSet<String>) -> Vec<i64> {
    let mut created = BTreeSet::new();
    let mut passed = Vec::new();
    for park in parks {
        match &park.stopped {
            None if !existing.contains(&*park.key) && !created.contains(&*park.key) => passed.push(park.seq),
            Some(Stopped { stop: Stop::DeadContinue, .. }) | None => {}
            Some(_) => {
                created.insert(&*park.key);
            }
        }
    }
    passed
}

/// Parks messages, under new keys and under keys that are parked already.
struct Parking<'a> {
    destination: &'a str,
    existing: BTreeSet<String>,
    now: i64,
}

impl Parking<'_> {
    async fn park(mut self, connection: &mut SqliteConnection, parks: &[&Park]) -> Result<(), Error> {
        let (mut heads, mut queued, mut buried) = (Vec::new(), Vec::new(), Vec::new());
        for park in parks {
            let Some(stopped) = &park.stopped else {
                queued.push(park.seq);
                continue;
            };
            queries::hold(connection, self.destination, stopped, self.now, false).await?;
            if stopped.stop == Stop::DeadContinue {
                buried.push(letter(park.seq, stopped));
            } else if self.existing.contains(&*park.key) {
                // Even a message that can never succeed waits its turn. As a dead letter it could not block the key
                // after the head is delivered.
                queued.push(park.seq);
            } else {
                heads.push(self.head(park, stopped));
                self.existing.insert(park.key.to_string());
                if stopped.stop == Stop::DeadHold {
                    buried.push(letter(park.seq, stopped));
                } else {
                    queued.push(park.seq);
                }
            }
        }
        self.add_heads(connection, heads).await?;
        self.queue(connection, &queued).await?;
        self.bury(connection, buried).await
    }

    fn head(&self, park: &Park, stopped: &Stopped) -> Value {
        let (state, next_at, address) = waiting(stopped, self.now);
        json!({
            "key": &*park.key, "slot": park.slot, "state": state, "attempts": stopped.attempts, "next_at": next_at,
            "address": address, "seq": park.seq, "route": &*stopped.route, "class": stopped.class,
            "error": stopped.error,
        })
    }

    async fn add_heads(&self, connection: &mut SqliteConnection, heads: Vec<Value>) -> Result<(), Error> {
        if heads.is_empty() {
            return Ok(());
        }
        let sql = "INSERT INTO relevo_parked_key (destination, key, slot, state, attempts, next_at_ms, address, dead_id, \
                   route, class, error, since_ms) \
                   SELECT ?1, h.value ->> 'key', h.value ->> 'slot', h.value ->> 'state', h.value ->> 'attempts', \
                   h.value ->> 'next_at', h.value ->> 'address', \
                   CASE h.value ->> 'state' WHEN 'dead' THEN \
                       (SELECT m.id FROM relevo_message AS m WHERE m.seq = h.value ->> 'seq') END, \
                   h.value ->> 'route', h.value ->> 'class', h.value ->> 'error', ?3 \
                   FROM json_each(?2) AS h";
        let insert = sqlx::query(sql).bind(self.destination).bind(Value::Array(heads).to_string());
        insert.bind(self.now).execute(connection).await?;
        Ok(())
    }

    /// Appends messages to the queues of their keys.
    async fn queue(&self, connection: &mut SqliteConnection, seqs: &[i64]) -> Result<(), Error> {
        if seqs.is_empty() {
            return Ok(());
        }
        let sql = "INSERT INTO relevo_parked_message \
                   (destination, key, ordinal, seq, slot, id, created_at_ms, topic, type, content_type, headers, payload) \
                   SELECT d.name, m.key, d.last_ordinal + 1 + w.key, m.seq, m.slot, m.id, m.created_at_ms, m.topic, \
                   m.type, \
                   m.content_type, m.headers, m.payload \
                   FROM relevo_destination AS d, json_each(?2) AS w JOIN relevo_message AS m ON m.seq = w.value \
                   WHERE d.name = ?1";
        let insert = sqlx::query(sql).bind(self.destination).bind(json!(seqs).to_string());
        all_found(seqs.len(), insert.execute(&mut *connection).await?.rows_affected())?;
        let update = sqlx::query("UPDATE relevo_destination SET last_ordinal = last_ordinal + ?2 WHERE name = ?1");
        update.bind(self.destination).bind(i64::try_from(seqs.len()).unwrap_or(i64::MAX)).execute(connection).await?;
        Ok(())
    }

    async fn bury(&self, connection: &mut SqliteConnection, letters: Vec<Value>) -> Result<(), Error> {
        if letters.is_empty() {
            return Ok(());
        }
        let count = letters.len();
        let sql = "INSERT INTO relevo_dead_letter (destination, id, seq, slot, created_at_ms, topic, key, type, \
                   content_type, headers, payload, route, class, error, attempts, dead_at_ms) \
                   SELECT ?1, m.id, m.seq, m.slot, m.created_at_ms, m.topic, m.key, m.type, m.content_type, m.headers, \
                   m.payload, l.value ->> 'route', l.value ->> 'class', l.value ->> 'error', l.value ->> 'attempts', ?3 \
                   FROM json_each(?2) AS l JOIN relevo_message AS m ON m.seq = l.value ->> 'seq' WHERE true \
                   ON CONFLICT (destination, id) DO UPDATE \
                   SET state = 'dead', class = excluded.class, error = excluded.error, dead_at_ms = excluded.dead_at_ms";
        let insert = sqlx::query(sql).bind(self.destination).bind(Value::Array(letters).to_string());
        all_found(count, insert.bind(self.now).execute(connection).await?.rows_affected())
    }
}

fn letter(seq: i64, stopped: &Stopped) -> Value {
    json!({
        "seq": seq, "route": &*stopped.route, "class": stopped.class, "error": stopped.error,
        "attempts": stopped.attempts,
    })
}

fn all_found(wanted: usize, found: u64) -> Result<(), Error> {
    if u64::try_from(wanted) == Ok(found) { Ok(()) } else { Err(Error::answer("a parked message is not in the log")) }
}

/// Advances the shards, and writes one history row per group of shards at the same position.
async fn record(
    connection: &mut SqliteConnection,
    destination: &str,
    progress: &[(Lease, Position)],
    now: i64,
) -> Result<(), Error> {
    let rows: Value = progress.iter().map(|(lease, at)| json!([lease.shard, at.from, at.to, at.place])).collect();
    let sql = "UPDATE relevo_progress AS p SET from_seq = w.value ->> 1, to_seq = w.value ->> 2, settled_seq = \
               w.value ->> 3, \
               settled_at_ms = ?3 FROM json_each(?2) AS w WHERE p.destination = ?1 AND p.shard = w.value ->> 0";
    sqlx::query(sql).bind(destination).bind(rows.to_string()).bind(now).execute(&mut *connection).await?;
    let mut lines: BTreeMap<i64, Vec<u16>> = BTreeMap::new();
    for (lease, position) in progress {
        lines.entry(upto(position)).or_default().push(lease.shard);
    }
    let shards = progress.first().map_or(1, |(lease, _)| lease.shards);
    for (upto, settled) in lines {
        let all = settled.len() >= usize::from(shards);
        let list = settled.iter().map(u16::to_string).collect::<Vec<_>>().join(",");
        let sql = "INSERT INTO relevo_settle_history (destination, settled_at_ms, settled_seq, shards, shard_list) \
                   VALUES (?1, ?2, ?3, ?4, ?5)";
        let insert = sqlx::query(sql).bind(destination).bind(now).bind(upto).bind(i64::from(shards));
        insert.bind((!all).then(|| format!(",{list},"))).execute(&mut *connection).await?;
    }
    Ok(())
}
