//! Repeated requests: the first response is stored in the transaction of its effect.

use super::columns::{At, Id};
use super::link::{Row, Tx, Values};
use super::{Act, Answer, DeskError, Once};

/// The status of a request whose transaction is open. No other transaction sees it.
const UNDER_WAY: i64 = 0;

/// Claims the key for this transaction, or returns the stored response of an earlier request. A concurrent request waits here until
/// the first has ended.
pub(super) async fn claim(tx: &mut Tx, act: &Act, once: &Once) -> Result<Option<Answer>, DeskError> {
    let insert = "INSERT INTO ticketflow.idempotency AS i (person_id, key, request_sha256, status, body, created_at) \
                  VALUES ($1, $2, $3, $4, '', $5) ON CONFLICT (person_id, key) DO UPDATE \
                  SET request_sha256 = excluded.request_sha256, status = excluded.status, created_at = excluded.created_at \
                  WHERE i.created_at < $6";
    let person = Id(act.by.id);
    let sha256 = once.request_sha256.to_vec();
    let forgotten = act.at.checked_sub(once.remembered).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
    let values: Values = &[&person, &once.key, &sha256, &UNDER_WAY, &At(act.at), &At(forgotten)];
    if tx.run(insert, values).await? > 0 {
        return Ok(None);
    }
    let select = "SELECT request_sha256, status, location, etag, body FROM ticketflow.idempotency \
                  WHERE person_id = $1 AND key = $2";
    let row = tx.row(select, &[&person, &once.key]).await?;
    let row = row.ok_or_else(|| DeskError::Broken(anyhow::anyhow!("a request was there and is not any more")))?;
    if row.get::<Vec<u8>>(0)? == sha256 { answer(&row).map(Some) } else { Err(DeskError::KeyReused) }
}

/// Stores the response.
pub(super) async fn record(tx: &mut Tx, act: &Act, once: &Once, answer: &Answer) -> Result<(), DeskError> {
    let update = "UPDATE ticketflow.idempotency SET status = $3, location = $4, etag = $5, body = $6 \
                  WHERE person_id = $1 AND key = $2";
    let status = i64::from(answer.status);
    let person = Id(act.by.id);
    tx.run(update, &[&person, &once.key, &status, &answer.location, &answer.etag, &answer.body]).await?;
    Ok(())
}

fn answer(row: &Row) -> Result<Answer, DeskError> {
    Ok(Answer {
        status: u16::try_from(row.get::<i64>(1)?).map_err(|error| DeskError::Broken(error.into()))?,
        location: row.get(2)?,
        etag: row.get(3)?,
        body: row.get(4)?,
        is_repeat: true,
    })
}
