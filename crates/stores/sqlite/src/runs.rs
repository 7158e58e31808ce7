//! Retry runs: parked messages that are due, and their outcomes.

use std::collections::BTreeSet;

use relevo_core::store::{Advance, Advanced, Lease, Run, Stop, Stopped};
use serde_json::json;
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use crate::classify::Error;
use crate::dead;
use crate::link::{Durability, Link};
use crate::queries::{self, column, now, number, waiting};

/// Applies the marks of operators, then returns the due runs.
pub(crate) async fn due(
    link: &Link,
    destination: &str,
    leases: &[Lease],
    keys: usize,
    messages: usize,
) -> Result<Vec<Run>, Error> {
    let mut session = link.take().await?;
    let (marked, due) = something(&mut session, destination).await?;
    if marked {
        // Only marks change rows. Reading runs needs no write lock.
        session.give_back();
        session = link.begin(Durability::Power).await?;
        let (held, now) = queries::held(&mut session, destination, leases).await?;
        dead::carry_out_marks(&mut session, destination, &held, now).await?;
        session.commit().await?;
        session = link.take().await?;
    }
    let mut runs = Vec::new();
    if due || marked {
        let (held, now) = queries::held(&mut session, destination, leases).await?;
        if !held.is_empty() {
            runs = ready(&mut session, destination, &held, now, keys, messages).await?;
        }
    }
    session.give_back();
    Ok(runs)
}

/// Whether a mark or a run is due. An idle relay polls this five times a second.
async fn something(connection: &mut SqliteConnection, destination: &str) -> Result<(bool, bool), Error> {
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

async fn ready(
    connection: &mut SqliteConnection,
    destination: &str,
    held: &[Lease],
    now: i64,
    keys: usize,
    messages: usize,
) -> Result<Vec<Run>, Error> {
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
    let limit = |most: usize| i64::try_from(most.max(1)).unwrap_or(i64::MAX);
    let select = sqlx::query(sql).bind(destination).bind(now).bind(queries::slots(held));
    let rows = select.bind(limit(keys)).bind(limit(messages)).fetch_all(connection).await?;
    let mut runs: Vec<Run> = Vec::new();
    for row in &rows {
        let key: &str = column(row, 0)?;
        if runs.last().is_none_or(|run| &*run.key != key) {
            runs.push(run(row, key)?);
        }
        let message = (column(row, 5)?, queries::entry(row, 6)?);
        runs.last_mut().ok_or_else(|| Error::answer("a run is missing"))?.messages.push(message);
    }
    Ok(runs)
}

fn run(row: &SqliteRow, key: &str) -> Result<Run, Error> {
    let state: &str = column(row, 3)?;
    Ok(Run {
        key: key.into(),
        slot: number(row, 1)?,
        attempts: number(row, 2)?,
        quarantined: state == "quarantined",
        address: column::<Option<String>>(row, 4)?.filter(|_| state == "held"),
        messages: Vec::new(),
    })
}

/// Records the outcomes of runs.
pub(crate) async fn advance(link: &Link, destination: &str, advances: &[Advance]) -> Result<Vec<Advanced>, Error> {
    let mut session = link.begin(Durability::Power).await?;
    let leases: BTreeSet<Lease> = advances.iter().map(|advance| advance.lease).collect();
    let leases: Vec<Lease> = leases.into_iter().collect();
    let (held, now) = queries::held(&mut session, destination, &leases).await?;
    let mut answers = Vec::with_capacity(advances.len());
    for advance in advances {
        answers.push(if held.contains(&advance.lease) {
            Step { destination, now, advance }.take(&mut session).await?
        } else {
            Advanced::Lost
        });
    }
    session.commit().await?;
    Ok(answers)
}

/// Records the outcome of one run.
struct Step<'a> {
    destination: &'a str,
    now: i64,
    advance: &'a Advance,
}

impl Step<'_> {
    async fn take(&self, connection: &mut SqliteConnection) -> Result<Advanced, Error> {
        if let Some(address) = &self.advance.released {
            self.release(connection, address).await?;
        }
        self.delivered(connection).await?;
        match &self.advance.stopped {
            Some((no, stopped)) => self.stopped(connection, *no, stopped).await?,
            None if !self.advance.delivered.is_empty() => self.go_on(connection).await?,
            // The outcome is unknown, as in an outage. The key stays as it was.
            None => {}
        }
        if dead::drop_if_empty(connection, self.destination, &self.advance.key).await? {
            return Ok(Advanced::Unparked);
        }
        let sql = "SELECT EXISTS (SELECT 1 FROM relevo_parked_key WHERE destination = ?1 AND key = ?2)";
        let row = sqlx::query(sql).bind(self.destination).bind(&*self.advance.key).fetch_one(connection).await?;
        Ok(if column(&row, 0)? { Advanced::Waits } else { Advanced::Unparked })
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

    async fn delivered(&self, connection: &mut SqliteConnection) -> Result<(), Error> {
        if self.advance.delivered.is_empty() {
            return Ok(());
        }
        let numbers = json!(self.advance.delivered).to_string();
        let insert = "INSERT OR REPLACE INTO relevo_parked_published (destination, seq, published_at_ms) \
                      SELECT ?1, seq, ?4 FROM relevo_parked_message \
                      WHERE destination = ?1 AND key = ?2 AND ordinal IN (SELECT value FROM json_each(?3))";
        let insert = sqlx::query(insert).bind(self.destination).bind(&*self.advance.key).bind(&numbers);
        insert.bind(self.now).execute(&mut *connection).await?;
        let delete = "DELETE FROM relevo_parked_message \
                      WHERE destination = ?1 AND key = ?2 AND ordinal IN (SELECT value FROM json_each(?3))";
        let delete = sqlx::query(delete).bind(self.destination).bind(&*self.advance.key).bind(&numbers);
        delete.execute(connection).await?;
        Ok(())
    }

    /// Makes the next message of the queue due now.
    async fn go_on(&self, connection: &mut SqliteConnection) -> Result<(), Error> {
        dead::go_on(connection, self.destination, &self.advance.key, self.now).await
    }

    async fn stopped(&self, connection: &mut SqliteConnection, no: i64, stopped: &Stopped) -> Result<(), Error> {
        queries::hold(connection, self.destination, stopped, self.now, true).await?;
        match stopped.stop {
            Stop::DeadHold | Stop::DeadContinue => {
                let key = &*self.advance.key;
                let Some(id) = dead::bury(connection, self.destination, key, no, stopped, self.now).await? else {
                    return Ok(());
                };
                if stopped.stop == Stop::DeadContinue {
                    return self.go_on(connection).await;
                }
                self.wait(connection, stopped, Some(id)).await
            }
            Stop::Retry { .. } | Stop::Address { .. } | Stop::Quarantine { .. } => {
                // A redriven message was inserted at the front in the meantime. It goes first, with its own attempts.
                if self.is_overtaken(connection, no).await? {
                    return self.go_on(connection).await;
                }
                self.wait(connection, stopped, None).await
            }
        }
    }

    async fn is_overtaken(&self, connection: &mut SqliteConnection, no: i64) -> Result<bool, Error> {
        let sql = "SELECT min(ordinal) < ?3 FROM relevo_parked_message WHERE destination = ?1 AND key = ?2";
        let row = sqlx::query(sql).bind(self.destination).bind(&*self.advance.key).bind(no);
        Ok(column::<Option<bool>>(&row.fetch_one(connection).await?, 0)?.unwrap_or(false))
    }

    async fn wait(
        &self,
        connection: &mut SqliteConnection,
        stopped: &Stopped,
        dead_id: Option<uuid::Uuid>,
    ) -> Result<(), Error> {
        let (state, next_at, address) = waiting(stopped, self.now);
        let sql = "UPDATE relevo_parked_key SET state = ?3, attempts = ?4, next_at_ms = ?5, address = ?6, dead_id = ?7, \
                   route = ?8, class = ?9, error = ?10 WHERE destination = ?1 AND key = ?2";
        let update = sqlx::query(sql).bind(self.destination).bind(&*self.advance.key).bind(state);
        let update = update.bind(i64::from(stopped.attempts)).bind(next_at).bind(address).bind(dead_id);
        update.bind(&*stopped.route).bind(stopped.class).bind(&stopped.error).execute(connection).await?;
        Ok(())
    }
}
