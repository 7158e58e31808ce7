//! Destinations: adds, removes, enables and reshards them.

use relevo_core::outbox::admin::StartFrom;
use relevo_core::outbox::inspect::DestinationInfo;
use relevo_core::outbox::rules::{self, ReshardStep};
use relevo_core::slot::SLOTS;
use sqlx::sqlite::{SqliteConnection, SqliteRow};

use crate::classify::Error;
use crate::queries::{self, column, now, number, read};

/// Adds a destination. Returns false if it exists.
pub(crate) async fn add(
    connection: &mut SqliteConnection,
    destination: &str,
    shards: u16,
    start: StartFrom,
) -> Result<bool, Error> {
    check_shards(shards)?;
    let sql =
        concat!("INSERT OR IGNORE INTO relevo_destination (name, shards, added_at_ms) VALUES (?1, ?2, ", now!(), ")");
    let insert = sqlx::query(sql).bind(destination).bind(i64::from(shards)).execute(&mut *connection).await?;
    if insert.rows_affected() == 0 {
        return Ok(false);
    }
    let start_seq = match start {
        StartFrom::Now => read::newest_seq(connection).await?,
        StartFrom::Oldest => 0,
    };
    add_shards(connection, destination, i64::from(shards), 0, start_seq).await?;
    Ok(true)
}

/// Removes a destination. Returns false if it does not exist.
pub(crate) async fn remove(connection: &mut SqliteConnection, destination: &str) -> Result<bool, Error> {
    let delete = sqlx::query("DELETE FROM relevo_destination WHERE name = ?1").bind(destination);
    Ok(delete.execute(connection).await?.rows_affected() > 0)
}

/// Enables or disables a destination. Returns false if it does not exist.
pub(crate) async fn set_enabled(
    connection: &mut SqliteConnection,
    destination: &str,
    enabled: bool,
) -> Result<bool, Error> {
    let update = sqlx::query("UPDATE relevo_destination SET enabled = ?2 WHERE name = ?1");
    Ok(update.bind(destination).bind(enabled).execute(connection).await?.rows_affected() > 0)
}

/// Requests a new number of shards; relays carry the change out. Returns false if the destination does not exist.
pub(crate) async fn reshard(connection: &mut SqliteConnection, destination: &str, shards: u16) -> Result<bool, Error> {
    check_shards(shards)?;
    let update = sqlx::query("UPDATE relevo_destination SET reshard_to = ?2, reshard_seq = NULL WHERE name = ?1");
    Ok(update.bind(destination).bind(i64::from(shards)).execute(connection).await?.rows_affected() > 0)
}

/// Lists all destinations by name.
pub(crate) async fn list(connection: &mut SqliteConnection) -> Result<Vec<DestinationInfo>, Error> {
    let sql = "SELECT name, shards, reshard_to, enabled FROM relevo_destination ORDER BY name";
    let rows = sqlx::query(sql).fetch_all(connection).await?;
    let destination = |row: &SqliteRow| {
        let resharding_to = column::<Option<i64>>(row, 2)?.map(|_| number(row, 2)).transpose()?;
        Ok(DestinationInfo { name: column(row, 0)?, shards: number(row, 1)?, resharding_to, enabled: column(row, 3)? })
    };
    rows.iter().map(destination).collect()
}

fn check_shards(shards: u16) -> Result<(), Error> {
    if (1..=SLOTS).contains(&shards) {
        Ok(())
    } else {
        Err(Error::Refused(format!("invalid number of shards {shards}: must be from 1 to {SLOTS}")))
    }
}

/// Takes the next step of a reshard when every shard is ready. All shards finish their windows, then all advance to the
/// number of the furthest one. The new shards start there.
pub(crate) async fn reshard_step(connection: &mut SqliteConnection, destination: &str) -> Result<(), Error> {
    let sql = "SELECT d.reshard_to, d.reshard_seq, p.from_seq, p.to_seq, p.settled_seq \
               FROM relevo_destination AS d JOIN relevo_progress AS p ON p.destination = d.name \
               WHERE d.name = ?1 AND d.reshard_to IS NOT NULL";
    let rows = sqlx::query(sql).bind(destination).fetch_all(&mut *connection).await?;
    let Some(first) = rows.first() else { return Ok(()) };
    let (shards, seq): (i64, Option<i64>) = (column(first, 0)?, column(first, 1)?);
    let positions = rows.iter().map(|row| queries::position(row, 2)).collect::<Result<Vec<_>, _>>()?;
    let at = match rules::reshard_step(seq, &positions) {
        ReshardStep::FinishWindows => return Ok(()),
        ReshardStep::AdvanceTo(seq) => {
            let update = sqlx::query("UPDATE relevo_destination SET reshard_seq = ?2 WHERE name = ?1");
            update.bind(destination).bind(seq).execute(connection).await?;
            return Ok(());
        }
        ReshardStep::Replace(seq) => seq,
    };
    let epoch: i64 = {
        let max = sqlx::query("SELECT max(epoch) FROM relevo_lease WHERE destination = ?1").bind(destination);
        column(&max.fetch_one(&mut *connection).await?, 0)?
    };
    add_shards(connection, destination, shards, epoch + 1, at).await?;
    let sql =
        "UPDATE relevo_destination SET shards = reshard_to, reshard_to = NULL, reshard_seq = NULL WHERE name = ?1";
    sqlx::query(sql).bind(destination).execute(connection).await?;
    Ok(())
}

/// A `WITH` clause for the numbers from 0 to below parameter 2.
macro_rules! numbers {
    () => {
        "WITH RECURSIVE number (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM number WHERE n + 1 < ?2) "
    };
}

/// Replaces the shards of a destination. All new shards start at one number.
async fn add_shards(
    connection: &mut SqliteConnection,
    destination: &str,
    shards: i64,
    epoch: i64,
    at: i64,
) -> Result<(), Error> {
    for delete in
        ["DELETE FROM relevo_lease WHERE destination = ?1", "DELETE FROM relevo_progress WHERE destination = ?1"]
    {
        sqlx::query(delete).bind(destination).execute(&mut *connection).await?;
    }
    let lease =
        concat!(numbers!(), "INSERT INTO relevo_lease (destination, shard, epoch) SELECT ?1, n, ?3 FROM number");
    sqlx::query(lease).bind(destination).bind(shards).bind(epoch).execute(&mut *connection).await?;
    let progress = concat!(
        numbers!(),
        "INSERT INTO relevo_progress (destination, shard, from_seq, to_seq, settled_seq, settled_at_ms) \
         SELECT ?1, n, ?3, ?3, 0, ",
        now!(),
        " FROM number"
    );
    sqlx::query(progress).bind(destination).bind(shards).bind(at).execute(connection).await?;
    Ok(())
}
