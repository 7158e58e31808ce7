//! Parked messages that are due, and the outcomes of their retries.

use std::collections::BTreeSet;

use relevo_core::AfterDead;
use relevo_core::outbox::leases::Lease;
use relevo_core::outbox::log::{ParkAction, PublishFailure};
use relevo_core::outbox::parked::{ParkedBatch, ParkedResult, ParkedSettlement, QueuedEntry};
use serde_json::json;
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use crate::classify::Error;
use crate::queries::{self, column, dead_letters, now, number, parked_state};

/// Whether a mark waits to be applied, and whether a parked key is due. An idle relay polls this five times a second.
pub(crate) async fn has_marks_or_due(
    connection: &mut SqliteConnection,
    destination: &str,
) -> Result<(bool, bool), Error> {
    let sql = concat!(
        "SELECT EXISTS (SELECT 1 FROM relevo_dead_letter \
            WHERE destination = ?1 AND state IN ('redriving', 'discarding')), \
         EXISTS (SELECT 1 FROM relevo_parked_key WHERE destination = ?1 AND next_at_ms <= ",
        now!(),
        ") OR EXISTS (SELECT 1 FROM relevo_address_hold WHERE destination = ?1 AND next_at_ms <= ",
        now!(),
        ")"
    );
    let row = sqlx::query(sql).bind(destination).fetch_one(connection).await?;
    Ok((column(&row, 0)?, column(&row, 1)?))
}

/// Applies the marks of operators in these shards.
pub(crate) async fn apply_marks(
    connection: &mut SqliteConnection,
    destination: &str,
    leases: &[Lease],
) -> Result<(), Error> {
    let (held, now) = queries::held_leases(connection, destination, leases).await?;
    dead_letters::apply_marks(connection, destination, &held, now).await
}

/// Loads the due messages of these shards, the longest waiting key first.
pub(crate) async fn load_due(
    connection: &mut SqliteConnection,
    destination: &str,
    leases: &[Lease],
    keys: usize,
    messages: usize,
) -> Result<Vec<ParkedBatch>, Error> {
    let (held, now) = queries::held_leases(connection, destination, leases).await?;
    if held.is_empty() {
        return Ok(Vec::new());
    }
    // One probe per address, by the key that has waited longest. Probes of other keys would fail too.
    let sql = "WITH ready AS ( \
                   SELECT * FROM (SELECT k.key, k.slot, k.attempts, k.state, k.address, k.next_at_ms AS at \
                       FROM relevo_parked_key AS k \
                       WHERE k.destination = ?1 AND k.next_at_ms <= ?2 \
                           AND (?3 IS NULL OR k.slot IN (SELECT value FROM json_each(?3))) \
                       ORDER BY k.next_at_ms, k.key LIMIT ?4) \
                   UNION ALL \
                   SELECT k.key, k.slot, k.attempts, k.state, k.address, h.next_at_ms \
                   FROM relevo_address_hold AS h JOIN relevo_parked_key AS k ON k.destination = ?1 AND k.key = ( \
                       SELECT f.key FROM relevo_parked_key AS f \
                       WHERE f.destination = ?1 AND f.address = h.address AND f.state = 'held' \
                           AND (?3 IS NULL OR f.slot IN (SELECT value FROM json_each(?3))) \
                       ORDER BY f.since_ms, f.key LIMIT 1) \
                   WHERE h.destination = ?1 AND h.next_at_ms <= ?2 \
                   ORDER BY at, key LIMIT ?4 \
               ) \
               SELECT r.key, r.slot, r.attempts, r.state, r.address, m.ordinal, m.seq, m.slot, m.id, \
               m.created_at_ms, m.topic, \
               m.key, m.type, m.content_type, m.headers, m.payload \
               FROM ready AS r JOIN relevo_parked_message AS m ON m.destination = ?1 AND m.key = r.key \
               AND m.ordinal IN (SELECT q.ordinal FROM relevo_parked_message AS q WHERE q.destination = ?1 AND \
               q.key = r.key \
                   ORDER BY q.ordinal LIMIT ?5) \
               AND (r.state NOT IN ('held', 'quarantined') OR m.ordinal = ( \
                   SELECT min(q.ordinal) FROM relevo_parked_message AS q WHERE q.destination = ?1 AND q.key = r.key)) \
               ORDER BY r.at, r.key, m.ordinal";
    let limit = |count: usize| i64::try_from(count.max(1)).unwrap_or(i64::MAX);
    let select = sqlx::query(sql).bind(destination).bind(now).bind(queries::slots(&held));
    let rows = select.bind(limit(keys)).bind(limit(messages)).fetch_all(connection).await?;
    let mut batches: Vec<ParkedBatch> = Vec::new();
    for row in &rows {
        let key: &str = column(row, 0)?;
        if batches.last().is_none_or(|batch| &*batch.key != key) {
            batches.push(parked_batch(row, key)?);
        }
        let message = QueuedEntry { ordinal: column(row, 5)?, entry: queries::entry(row, 6)? };
        batches
            .last_mut()
            .ok_or_else(|| Error::unexpected_response("a parked message has no key"))?
            .messages
            .push(message);
    }
    Ok(batches)
}

fn parked_batch(row: &SqliteRow, key: &str) -> Result<ParkedBatch, Error> {
    let state: &str = column(row, 3)?;
    Ok(ParkedBatch {
        key: key.into(),
        slot: number(row, 1)?,
        attempts: number(row, 2)?,
        quarantined: state == "quarantined",
        probe_address: column::<Option<String>>(row, 4)?.filter(|_| state == "held"),
        messages: Vec::new(),
    })
}

/// Records the outcomes of due messages.
pub(crate) async fn settle(
    connection: &mut SqliteConnection,
    destination: &str,
    settlements: &[ParkedSettlement],
) -> Result<Vec<ParkedResult>, Error> {
    let leases: BTreeSet<Lease> = settlements.iter().map(|settlement| settlement.lease).collect();
    let leases: Vec<Lease> = leases.into_iter().collect();
    let (held, now) = queries::held_leases(connection, destination, &leases).await?;
    let mut results = Vec::with_capacity(settlements.len());
    for settlement in settlements {
        results.push(if held.contains(&settlement.lease) {
            RetryWriter { destination, now, settlement }.settle(connection).await?
        } else {
            ParkedResult::LeaseLost
        });
    }
    Ok(results)
}

/// Records the outcome of one key.
struct RetryWriter<'a> {
    destination: &'a str,
    now: i64,
    settlement: &'a ParkedSettlement,
}

impl RetryWriter<'_> {
    async fn settle(&self, connection: &mut SqliteConnection) -> Result<ParkedResult, Error> {
        if let Some(address) = &self.settlement.released_address {
            self.release(connection, address).await?;
        }
        self.remove_published(connection).await?;
        match &self.settlement.failed {
            Some((ordinal, failure)) => self.record_failure(connection, *ordinal, failure).await?,
            None if !self.settlement.delivered.is_empty() => self.make_due_now(connection).await?,
            // The outcome is unknown, as in an outage. The key stays as it was.
            None => {}
        }
        if dead_letters::unpark_if_empty(connection, self.destination, &self.settlement.key).await? {
            return Ok(ParkedResult::KeyFreed);
        }
        let sql = "SELECT EXISTS (SELECT 1 FROM relevo_parked_key WHERE destination = ?1 AND key = ?2)";
        let row = sqlx::query(sql).bind(self.destination).bind(&*self.settlement.key).fetch_one(connection).await?;
        Ok(if column(&row, 0)? { ParkedResult::StillParked } else { ParkedResult::KeyFreed })
    }

    /// The address works again: all keys that wait for it are due now.
    async fn release(&self, connection: &mut SqliteConnection, address: &str) -> Result<(), Error> {
        let delete = sqlx::query("DELETE FROM relevo_address_hold WHERE destination = ?1 AND address = ?2");
        delete.bind(self.destination).bind(address).execute(&mut *connection).await?;
        let sql = "UPDATE relevo_parked_key SET state = 'retrying', next_at_ms = ?3, address = NULL \
                   WHERE destination = ?1 AND state = 'held' AND address = ?2";
        sqlx::query(sql).bind(self.destination).bind(address).bind(self.now).execute(connection).await?;
        Ok(())
    }

    async fn remove_published(&self, connection: &mut SqliteConnection) -> Result<(), Error> {
        if self.settlement.delivered.is_empty() {
            return Ok(());
        }
        let numbers = json!(self.settlement.delivered).to_string();
        let insert = "INSERT OR REPLACE INTO relevo_parked_published (destination, seq, published_at_ms) \
                      SELECT ?1, seq, ?4 FROM relevo_parked_message \
                      WHERE destination = ?1 AND key = ?2 AND ordinal IN (SELECT value FROM json_each(?3))";
        let insert = sqlx::query(insert).bind(self.destination).bind(&*self.settlement.key).bind(&numbers);
        insert.bind(self.now).execute(&mut *connection).await?;
        let delete = "DELETE FROM relevo_parked_message \
                      WHERE destination = ?1 AND key = ?2 AND ordinal IN (SELECT value FROM json_each(?3))";
        let delete = sqlx::query(delete).bind(self.destination).bind(&*self.settlement.key).bind(&numbers);
        delete.execute(connection).await?;
        Ok(())
    }

    /// Makes the next message of the queue due now.
    async fn make_due_now(&self, connection: &mut SqliteConnection) -> Result<(), Error> {
        dead_letters::make_due_now(connection, self.destination, &self.settlement.key, self.now).await
    }

    async fn record_failure(
        &self,
        connection: &mut SqliteConnection,
        ordinal: i64,
        failure: &PublishFailure,
    ) -> Result<(), Error> {
        queries::hold_address(connection, self.destination, failure, self.now, true).await?;
        match failure.action {
            ParkAction::DeadLetter(_) => {
                let key = &*self.settlement.key;
                let Some(id) =
                    dead_letters::move_to_dead_letters(connection, self.destination, key, ordinal, failure, self.now)
                        .await?
                else {
                    return Ok(());
                };
                if failure.action == ParkAction::DeadLetter(AfterDead::Continue) {
                    return self.make_due_now(connection).await;
                }
                self.park_again(connection, failure, Some(id)).await
            }
            ParkAction::Retry { .. } | ParkAction::HoldAddress { .. } | ParkAction::Quarantine { .. } => {
                // A redriven message was inserted at the front in the meantime. It goes first, with its own attempts.
                if self.is_overtaken(connection, ordinal).await? {
                    return self.make_due_now(connection).await;
                }
                self.park_again(connection, failure, None).await
            }
        }
    }

    async fn is_overtaken(&self, connection: &mut SqliteConnection, ordinal: i64) -> Result<bool, Error> {
        let sql = "SELECT min(ordinal) < ?3 FROM relevo_parked_message WHERE destination = ?1 AND key = ?2";
        let row = sqlx::query(sql).bind(self.destination).bind(&*self.settlement.key).bind(ordinal);
        Ok(column::<Option<bool>>(&row.fetch_one(connection).await?, 0)?.unwrap_or(false))
    }

    async fn park_again(
        &self,
        connection: &mut SqliteConnection,
        failure: &PublishFailure,
        dead_id: Option<uuid::Uuid>,
    ) -> Result<(), Error> {
        let (state, next_at, address) = parked_state(failure, self.now);
        let sql = "UPDATE relevo_parked_key SET state = ?3, attempts = ?4, next_at_ms = ?5, address = ?6, dead_id = ?7, \
                   route = ?8, class = ?9, error = ?10 WHERE destination = ?1 AND key = ?2";
        let update = sqlx::query(sql).bind(self.destination).bind(&*self.settlement.key).bind(state);
        let update = update.bind(i64::from(failure.attempts)).bind(next_at).bind(address).bind(dead_id);
        update.bind(&*failure.route).bind(failure.class).bind(&failure.error).execute(connection).await?;
        Ok(())
    }
}
