//! Acquires, renews and releases shard leases, and reshards destinations.

use std::time::Duration;

use relevo_core::outbox::leases::{HeldAddress, Lease, LeaseRequest, LeaseResponse, TakenShard};
use relevo_core::outbox::log::WindowLimit;
use relevo_core::slot::shard_of;
use serde_json::{Value, json};
use sqlx::sqlite::SqliteConnection;
use uuid::Uuid;

use crate::classify::Error;
use crate::connection::{Connection, Durability};
use crate::queries::{self, column, millis, now, number};

/// Relays call this often, so that free shards are acquired soon. Without changes it only reads, so an application that
/// writes for seconds does not block the relay's leases.
pub(crate) async fn acquire_leases(
    link: &Connection,
    destination: &str,
    ask: &LeaseRequest,
) -> Result<LeaseResponse, Error> {
    let mut session = link.acquire().await?;
    let board = load_lease_table(&mut session, destination, ask).await?;
    session.release();
    if board.needs_no_write(ask) {
        return Ok(board.response(ask));
    }
    // A power failure may undo an acquisition, but it also ends every process that has seen it.
    let mut session = link.begin(Durability::Normal).await?;
    release_requested(&mut session, destination, ask).await?;
    reshard_step(&mut session, destination).await?;
    let mut board = load_lease_table(&mut session, destination, ask).await?;
    board.add_self(ask);
    let changed = board.acquire(ask);
    write_leases(&mut session, destination, &changed).await?;
    write_relay(&mut session, destination, ask, board.now).await?;
    session.commit().await?;
    Ok(board.response(ask))
}

/// The lease row of a shard.
#[derive(Clone, Debug)]
struct LeaseRow {
    shard: u16,
    epoch: i64,
    owner: Option<Uuid>,
    expires_at: i64,
}

/// The state from which a relay's fair share follows.
#[derive(Clone, Debug)]
struct LeaseTable {
    now: i64,
    shards: u16,
    window_limit: WindowLimit,
    rows: Vec<LeaseRow>,
    relays: Vec<(Uuid, i64)>,
    held_addresses: Vec<HeldAddress>,
}

impl LeaseTable {
    /// Treats a lease as expired if it ends later than any lease can. Its clock was set back since, and it would not
    /// expire for that long. The relay's own lease is written again.
    fn expire_future_leases(&mut self, ask: &LeaseRequest) {
        let latest = self.now + millis((ask.duration * 20).max(Duration::from_mins(10)));
        let rows = self.rows.iter_mut().map(|row| &mut row.expires_at);
        let members = self.relays.iter_mut().map(|(_, until)| until);
        for until in rows.chain(members).filter(|until| **until > latest) {
            *until = 0;
        }
    }

    /// Rows of this relay that expire after this time are not renewed: two thirds of the lease are left.
    fn renew_before(&self, ask: &LeaseRequest) -> i64 {
        self.now + millis(ask.duration) / 3 * 2
    }

    fn fair_share(&self) -> usize {
        let live = self.relays.iter().filter(|(_, until)| *until >= self.now).count();
        usize::from(self.shards).div_ceil(live.max(1))
    }

    fn is_free(&self, row: &LeaseRow) -> bool {
        row.owner.is_none() || row.expires_at < self.now
    }

    /// Whether no row would change.
    fn needs_no_write(&self, ask: &LeaseRequest) -> bool {
        let fresh = self.renew_before(ask);
        let mine = || self.rows.iter().filter(|row| row.owner == Some(ask.owner));
        ask.release.is_empty()
            && self.window_limit == WindowLimit::Unlimited
            && self.relays.iter().any(|(owner, until)| *owner == ask.owner && *until >= fresh)
            && mine().all(|row| row.expires_at >= fresh)
            && (mine().count() >= self.fair_share() || !self.rows.iter().any(|row| self.is_free(row)))
    }

    /// Adds this relay to the live relays.
    fn add_self(&mut self, ask: &LeaseRequest) {
        let until = self.now + millis(ask.duration);
        self.relays.retain(|(owner, _)| *owner != ask.owner);
        self.relays.push((ask.owner, until));
    }

    /// Renews this relay's leases and acquires free shards up to its fair share. Returns the changed rows.
    fn acquire(&mut self, ask: &LeaseRequest) -> Vec<LeaseRow> {
        let (fair, fresh) = (self.fair_share(), self.renew_before(ask));
        let until = self.now + millis(ask.duration);
        let mut changed = Vec::new();
        let mut held = self.rows.iter().filter(|row| row.owner == Some(ask.owner)).count();
        for index in 0..self.rows.len() {
            let free = self.is_free(&self.rows[index]);
            let row = &mut self.rows[index];
            if row.owner == Some(ask.owner) {
                // An expired lease that no other relay acquired is still ours, with the same epoch.
                if row.expires_at >= fresh {
                    continue;
                }
            } else if free && held < fair {
                row.epoch += 1;
                row.owner = Some(ask.owner);
                held += 1;
            } else {
                continue;
            }
            row.expires_at = until;
            changed.push(row.clone());
        }
        changed
    }

    fn response(&self, ask: &LeaseRequest) -> LeaseResponse {
        let mine = || self.rows.iter().filter(|row| row.owner == Some(ask.owner));
        let lasts = mine().map(|row| row.expires_at - self.now).min().unwrap_or(0).min(millis(ask.duration));
        let lease =
            |row: &LeaseRow| Lease { shard: row.shard, shard_count: self.shards, epoch: row.epoch, owner: ask.owner };
        LeaseResponse {
            leases: mine().map(lease).collect(),
            duration: Duration::from_millis(u64::try_from(lasts).unwrap_or(0)),
            fair_share: self.fair_share(),
            window_limit: self.window_limit,
            held_addresses: self.held_addresses.clone(),
            timeline_changed: false,
        }
    }
}

/// A single statement reads one consistent state.
async fn load_lease_table(
    connection: &mut SqliteConnection,
    destination: &str,
    ask: &LeaseRequest,
) -> Result<LeaseTable, Error> {
    let sql = concat!(
        "SELECT d.shards, d.enabled, d.reshard_to, d.reshard_seq, ",
        now!(),
        ", (SELECT json_group_array(json_array(l.shard, l.epoch, hex(l.owner), l.expires_at_ms) ORDER BY l.shard) \
            FROM relevo_lease AS l WHERE l.destination = d.name), \
           (SELECT json_group_array(json_array(hex(m.owner), m.expires_at_ms)) \
            FROM relevo_relay AS m WHERE m.destination = d.name), \
           (SELECT json_group_array(json_array(h.address, h.error) ORDER BY h.address) \
            FROM relevo_address_hold AS h WHERE h.destination = d.name) \
         FROM relevo_destination AS d WHERE d.name = ?1"
    );
    let row = sqlx::query(sql).bind(destination).fetch_optional(connection).await?;
    let row = row.ok_or_else(|| queries::unknown_destination(destination))?;
    if !column::<bool>(&row, 1)? {
        return Err(Error::Refused(format!(
            "destination `{destination}` is switched off; hint: switch it on with `relevo destination switch`"
        )));
    }
    let ceiling = match (column::<Option<i64>>(&row, 2)?, column::<Option<i64>>(&row, 3)?) {
        (None, _) => WindowLimit::Unlimited,
        (Some(_), None) => WindowLimit::CurrentWindow,
        (Some(_), Some(at)) => WindowLimit::UntilTick(at),
    };
    let list = |index: usize| -> Result<Vec<Value>, Error> {
        serde_json::from_str(column(&row, index)?).map_err(|_| Error::unexpected_response("leases are malformed"))
    };
    let malformed = || Error::unexpected_response("leases are malformed");
    let read_row = |value: &Value| {
        let owner = Some(value[2].as_str()?).filter(|text| !text.is_empty());
        let owner = owner.map(Uuid::parse_str).transpose().ok()?;
        let shard = u16::try_from(value[0].as_u64()?).ok()?;
        Some(LeaseRow { shard, epoch: value[1].as_i64()?, owner, expires_at: value[3].as_i64()? })
    };
    let member = |value: &Value| Some((Uuid::parse_str(value[0].as_str()?).ok()?, value[1].as_i64()?));
    let hold = |value: &Value| {
        Some(HeldAddress { address: value[0].as_str()?.to_owned(), error: value[1].as_str()?.to_owned() })
    };
    let mut board = LeaseTable {
        now: column(&row, 4)?,
        shards: number(&row, 0)?,
        window_limit: ceiling,
        rows: list(5)?.iter().map(read_row).collect::<Option<_>>().ok_or_else(malformed)?,
        relays: list(6)?.iter().map(member).collect::<Option<_>>().ok_or_else(malformed)?,
        held_addresses: list(7)?.iter().map(hold).collect::<Option<_>>().ok_or_else(malformed)?,
    };
    board.expire_future_leases(ask);
    Ok(board)
}

async fn release_requested(
    connection: &mut SqliteConnection,
    destination: &str,
    ask: &LeaseRequest,
) -> Result<(), Error> {
    for lease in &ask.release {
        let sql = "UPDATE relevo_lease SET owner = NULL, expires_at_ms = 0 \
                   WHERE destination = ?1 AND shard = ?2 AND epoch = ?3 AND owner = ?4";
        let update = sqlx::query(sql).bind(destination).bind(i64::from(lease.shard)).bind(lease.epoch);
        update.bind(ask.owner).execute(&mut *connection).await?;
    }
    Ok(())
}

async fn write_leases(connection: &mut SqliteConnection, destination: &str, rows: &[LeaseRow]) -> Result<(), Error> {
    if rows.is_empty() {
        return Ok(());
    }
    let owner = |row: &LeaseRow| row.owner.map(|owner| owner.simple().to_string());
    let rows: Value = rows.iter().map(|row| json!([row.shard, row.epoch, owner(row), row.expires_at])).collect();
    let sql = "UPDATE relevo_lease AS l SET epoch = w.value ->> 1, owner = unhex(w.value ->> 2), expires_at_ms = \
               w.value ->> 3 \
               FROM json_each(?2) AS w WHERE l.destination = ?1 AND l.shard = w.value ->> 0";
    sqlx::query(sql).bind(destination).bind(rows.to_string()).execute(connection).await?;
    Ok(())
}

async fn write_relay(
    connection: &mut SqliteConnection,
    destination: &str,
    ask: &LeaseRequest,
    now: i64,
) -> Result<(), Error> {
    let sql = "INSERT INTO relevo_relay (destination, owner, name, expires_at_ms) VALUES (?1, ?2, ?3, ?4) \
               ON CONFLICT (destination, owner) DO UPDATE SET expires_at_ms = excluded.expires_at_ms";
    let insert = sqlx::query(sql).bind(destination).bind(ask.owner).bind(&ask.name);
    insert.bind(now + millis(ask.duration)).execute(&mut *connection).await?;
    let delete = sqlx::query("DELETE FROM relevo_relay WHERE destination = ?1 AND expires_at_ms < ?2");
    delete.bind(destination).bind(now).execute(connection).await?;
    Ok(())
}

/// Takes the next step of a reshard when every shard is ready. All shards finish their windows, then all advance to the
/// number of the furthest one. The new shards start there.
async fn reshard_step(connection: &mut SqliteConnection, destination: &str) -> Result<(), Error> {
    let sql = "SELECT d.reshard_to, d.reshard_seq, max(p.to_seq), min(p.from_seq), min(p.from_seq = p.to_seq) \
               FROM relevo_destination AS d JOIN relevo_progress AS p ON p.destination = d.name \
               WHERE d.name = ?1 AND d.reshard_to IS NOT NULL GROUP BY d.name";
    let Some(row) = sqlx::query(sql).bind(destination).fetch_optional(&mut *connection).await? else {
        return Ok(());
    };
    let (shards, at): (i64, Option<i64>) = (column(&row, 0)?, column(&row, 1)?);
    let (furthest, nearest, exhausted): (i64, i64, bool) = (column(&row, 2)?, column(&row, 3)?, column(&row, 4)?);
    if at.is_none() && !exhausted {
        return Ok(());
    }
    // An owner that did not know of the reshard may have advanced further. The other shards follow it.
    let at = at.map_or(furthest, |at| at.max(furthest));
    if !(exhausted && nearest == at) {
        let update = sqlx::query("UPDATE relevo_destination SET reshard_seq = ?2 WHERE name = ?1");
        update.bind(destination).bind(at).execute(connection).await?;
        return Ok(());
    }
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
pub(crate) async fn add_shards(
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

/// Returns the positions of newly leased shards. It reads committed rows after the lease, so it includes everything
/// that a former owner settled.
pub(crate) async fn shard_positions(
    link: &Connection,
    destination: &str,
    leases: &[Lease],
) -> Result<Vec<TakenShard>, Error> {
    let Some(first) = leases.first() else { return Ok(Vec::new()) };
    let mut session = link.acquire().await?;
    let sql = "SELECT p.shard, p.from_seq, p.to_seq, p.settled_seq FROM relevo_progress AS p \
               JOIN relevo_destination AS d ON d.name = p.destination \
               WHERE p.destination = ?1 AND d.shards = ?2 ORDER BY p.shard";
    let select = sqlx::query(sql).bind(destination).bind(i64::from(first.shard_count));
    let mut standings = Vec::with_capacity(leases.len());
    for row in select.fetch_all(&mut *session).await? {
        let shard: u16 = number(&row, 0)?;
        if leases.iter().any(|lease| lease.shard == shard) {
            standings.push(TakenShard { shard, position: queries::position(&row, 1)?, parked_keys: Vec::new() });
        }
    }
    let keys = sqlx::query("SELECT slot, key FROM relevo_parked_key WHERE destination = ?1").bind(destination);
    for row in keys.fetch_all(&mut *session).await? {
        let shard = shard_of(number(&row, 0)?, first.shard_count);
        if let Some(standing) = standings.iter_mut().find(|standing| standing.shard == shard) {
            standing.parked_keys.push(column::<String>(&row, 1)?.into());
        }
    }
    session.release();
    Ok(standings)
}

/// Releases all leases of a relay that shuts down, so that they are free at once.
pub(crate) async fn release_leases(link: &Connection, destination: &str, owner: Uuid) -> Result<(), Error> {
    let mut session = link.begin(Durability::Normal).await?;
    for sql in [
        "UPDATE relevo_lease SET owner = NULL, expires_at_ms = 0 WHERE destination = ?1 AND owner = ?2",
        "DELETE FROM relevo_relay WHERE destination = ?1 AND owner = ?2",
    ] {
        sqlx::query(sql).bind(destination).bind(owner).execute(&mut *session).await?;
    }
    session.commit().await
}
