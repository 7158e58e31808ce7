//! Settles shards: records their progress and parks messages. The transaction holds the write lock.

use std::collections::{BTreeMap, BTreeSet};

use relevo_core::outbox::Position;
use relevo_core::outbox::leases::Lease;
use relevo_core::outbox::log::{ParkedMessage, PublishFailure, SettleResult, Settlement};
use relevo_core::outbox::rules::{self, ParkStep};
use serde_json::{Value, json};
use sqlx::sqlite::SqliteConnection;

use crate::classify::Error;
use crate::queries::{self, column, parked_state, settled_through};

/// Checks each shard's lease and the heads that its messages queue behind. Then changes all of the shard, or nothing.
pub(crate) async fn settle(
    connection: &mut SqliteConnection,
    destination: &str,
    settlement: &Settlement,
) -> Result<SettleResult, Error> {
    validate(settlement)?;
    let leases: Vec<Lease> = settlement.progress.iter().map(|(lease, _)| *lease).collect();
    let (held, now) = queries::held_leases(connection, destination, &leases).await?;
    let mut settled = SettleResult {
        lost_shards: leases.iter().filter(|lease| !held.contains(lease)).map(|lease| lease.shard).collect(),
        reread: Vec::new(),
    };
    let mut messages: Vec<&ParkedMessage> =
        settlement.parked.iter().filter(|message| held.iter().any(|lease| lease.has_slot(message.slot))).collect();
    let mut progress: Vec<(Lease, Position)> =
        settlement.progress.iter().filter(|(lease, _)| held.contains(lease)).cloned().collect();
    if !messages.is_empty() {
        let existing = already_parked(connection, destination, &messages).await?;
        settled.reread = rules::reread(messages.iter().copied(), |message| existing.contains(&*message.key));
        let unchanged: Vec<Lease> = held
            .iter()
            .filter(|lease| {
                messages.iter().any(|message| lease.has_slot(message.slot) && settled.reread.contains(&message.seq))
            })
            .copied()
            .collect();
        messages.retain(|message| !unchanged.iter().any(|lease| lease.has_slot(message.slot)));
        progress.retain(|(lease, _)| !unchanged.contains(lease));
        ParkWriter { destination, already_parked: existing, now }.park(connection, &messages).await?;
    }
    if !progress.is_empty() {
        record_progress(connection, destination, &progress, now).await?;
    }
    Ok(settled)
}

/// Rejects an invalid request before anything is changed.
fn validate(settlement: &Settlement) -> Result<(), Error> {
    let Some(message) = rules::message_of_another_shard(settlement) else { return Ok(()) };
    Err(Error::unexpected_response(format!("message {} is parked, and its shard is not settled", message.seq)))
}

/// Returns those keys of the messages that are parked already.
async fn already_parked(
    connection: &mut SqliteConnection,
    destination: &str,
    messages: &[&ParkedMessage],
) -> Result<BTreeSet<String>, Error> {
    let keys: BTreeSet<&str> = messages.iter().map(|message| &*message.key).collect();
    let sql = "SELECT k.key FROM json_each(?2) AS w JOIN relevo_parked_key AS k \
               ON k.destination = ?1 AND k.key = w.value";
    let select = sqlx::query(sql).bind(destination).bind(json!(keys).to_string());
    select.fetch_all(connection).await?.iter().map(|row| column(row, 0)).collect()
}

/// Parks messages, under new keys and under keys that are parked already.
struct ParkWriter<'a> {
    destination: &'a str,
    already_parked: BTreeSet<String>,
    now: i64,
}

impl ParkWriter<'_> {
    async fn park(mut self, connection: &mut SqliteConnection, messages: &[&ParkedMessage]) -> Result<(), Error> {
        let (mut heads, mut queued, mut dead) = (Vec::new(), Vec::new(), Vec::new());
        for message in messages {
            if let Some(failure) = &message.failure {
                queries::hold_address(connection, self.destination, failure, self.now, false).await?;
            }
            match rules::park_step(message, self.already_parked.contains(&*message.key)) {
                ParkStep::Queue => queued.push(message.seq),
                ParkStep::DeadLetter(failure) => dead.push(dead_letter_json(message.seq, failure)),
                ParkStep::ParkKey(failure) => {
                    heads.push(self.head(message, failure));
                    self.already_parked.insert(message.key.to_string());
                    queued.push(message.seq);
                }
                ParkStep::ParkKeyBehindDeadLetter(failure) => {
                    heads.push(self.head(message, failure));
                    self.already_parked.insert(message.key.to_string());
                    dead.push(dead_letter_json(message.seq, failure));
                }
            }
        }
        self.add_heads(connection, heads).await?;
        self.queue(connection, &queued).await?;
        self.dead_letter(connection, dead).await
    }

    fn head(&self, message: &ParkedMessage, failure: &PublishFailure) -> Value {
        let (state, next_at, address) = parked_state(failure, self.now);
        json!({
            "key": &*message.key, "slot": message.slot, "state": state, "attempts": failure.attempts, "next_at": next_at,
            "address": address, "seq": message.seq, "route": &*failure.route, "class": failure.class,
            "error": failure.error,
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
        require_all_found(seqs.len(), insert.execute(&mut *connection).await?.rows_affected())?;
        let update = sqlx::query("UPDATE relevo_destination SET last_ordinal = last_ordinal + ?2 WHERE name = ?1");
        update.bind(self.destination).bind(i64::try_from(seqs.len()).unwrap_or(i64::MAX)).execute(connection).await?;
        Ok(())
    }

    async fn dead_letter(&self, connection: &mut SqliteConnection, dead: Vec<Value>) -> Result<(), Error> {
        if dead.is_empty() {
            return Ok(());
        }
        let count = dead.len();
        let sql = "INSERT INTO relevo_dead_letter (destination, id, seq, slot, created_at_ms, topic, key, type, \
                   content_type, headers, payload, route, class, error, attempts, dead_at_ms) \
                   SELECT ?1, m.id, m.seq, m.slot, m.created_at_ms, m.topic, m.key, m.type, m.content_type, m.headers, \
                   m.payload, l.value ->> 'route', l.value ->> 'class', l.value ->> 'error', l.value ->> 'attempts', ?3 \
                   FROM json_each(?2) AS l JOIN relevo_message AS m ON m.seq = l.value ->> 'seq' WHERE true \
                   ON CONFLICT (destination, id) DO UPDATE \
                   SET state = 'dead', class = excluded.class, error = excluded.error, dead_at_ms = excluded.dead_at_ms";
        let insert = sqlx::query(sql).bind(self.destination).bind(Value::Array(dead).to_string());
        require_all_found(count, insert.bind(self.now).execute(connection).await?.rows_affected())
    }
}

fn dead_letter_json(seq: i64, failure: &PublishFailure) -> Value {
    json!({
        "seq": seq, "route": &*failure.route, "class": failure.class, "error": failure.error,
        "attempts": failure.attempts,
    })
}

fn require_all_found(expected: usize, found: u64) -> Result<(), Error> {
    if u64::try_from(expected) == Ok(found) {
        Ok(())
    } else {
        Err(Error::unexpected_response("a parked message is not in the log"))
    }
}

/// Advances the shards, and writes one history row per group of shards at the same position.
async fn record_progress(
    connection: &mut SqliteConnection,
    destination: &str,
    progress: &[(Lease, Position)],
    now: i64,
) -> Result<(), Error> {
    let rows: Value = progress
        .iter()
        .map(|(lease, at)| json!([lease.shard, at.from_tick(), at.to_tick(), at.settled_seq()]))
        .collect();
    let sql = "UPDATE relevo_progress AS p SET from_seq = w.value ->> 1, to_seq = w.value ->> 2, settled_seq = \
               w.value ->> 3, \
               settled_at_ms = ?3 FROM json_each(?2) AS w WHERE p.destination = ?1 AND p.shard = w.value ->> 0";
    sqlx::query(sql).bind(destination).bind(rows.to_string()).bind(now).execute(&mut *connection).await?;
    let mut groups: BTreeMap<i64, Vec<u16>> = BTreeMap::new();
    for (lease, position) in progress {
        groups.entry(settled_through(position)).or_default().push(lease.shard);
    }
    let shards = progress.first().map_or(1, |(lease, _)| lease.shard_count);
    for (settled_seq, settled) in groups {
        let all = settled.len() >= usize::from(shards);
        let list = settled.iter().map(u16::to_string).collect::<Vec<_>>().join(",");
        let sql = "INSERT INTO relevo_settle_history (destination, settled_at_ms, settled_seq, shards, shard_list) \
                   VALUES (?1, ?2, ?3, ?4, ?5)";
        let insert = sqlx::query(sql).bind(destination).bind(now).bind(settled_seq).bind(i64::from(shards));
        insert.bind((!all).then(|| format!(",{list},"))).execute(&mut *connection).await?;
    }
    Ok(())
}
