//! Acquires, renews and releases shard leases.

use std::time::Duration;

use relevo_core::outbox::leases::{HeldAddress, Lease, LeaseRequest, LeaseResponse, TakenShard};
use relevo_core::outbox::log::WindowLimit;
use relevo_core::outbox::rules::{LeaseClaim, StoredLease, assign_leases, fair_share};
use relevo_core::slot::shard_of;
use serde_json::{Value, json};
use sqlx::sqlite::SqliteConnection;
use uuid::Uuid;

use crate::classify::Error;
use crate::queries::{self, column, destinations, millis, now, number};

/// Renews the leases of a relay, and acquires free shards up to its fair share.
pub(crate) async fn acquire(
    connection: &mut SqliteConnection,
    destination: &str,
    request: &LeaseRequest,
) -> Result<LeaseResponse, Error> {
    release_requested(connection, destination, request).await?;
    destinations::reshard_step(connection, destination).await?;
    let mut table = LeaseTable::load(connection, destination, request).await?;
    table.add_self(request);
    let changed = table.acquire(request);
    write_leases(connection, destination, &changed).await?;
    write_relay(connection, destination, request, table.now).await?;
    Ok(table.response(request))
}

/// The lease row of a shard.
#[derive(Clone, Debug)]
struct LeaseRow {
    shard: u16,
    lease: StoredLease,
}

/// The state from which a relay's fair share follows.
#[derive(Clone, Debug)]
pub(crate) struct LeaseTable {
    now: i64,
    shards: u16,
    window_limit: WindowLimit,
    rows: Vec<LeaseRow>,
    relays: Vec<(Uuid, i64)>,
    held_addresses: Vec<HeldAddress>,
}

impl LeaseTable {
    /// A single statement reads one consistent state.
    pub(crate) async fn load(
        connection: &mut SqliteConnection,
        destination: &str,
        request: &LeaseRequest,
    ) -> Result<Self, Error> {
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
                "destination `{destination}` is disabled; hint: enable it with `relevo destination enable {destination}`"
            )));
        }
        let window_limit = match (column::<Option<i64>>(&row, 2)?, column::<Option<i64>>(&row, 3)?) {
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
            Some(LeaseRow {
                shard,
                lease: StoredLease { epoch: value[1].as_i64()?, owner, expires_at: value[3].as_i64()? },
            })
        };
        let read_relay = |value: &Value| Some((Uuid::parse_str(value[0].as_str()?).ok()?, value[1].as_i64()?));
        let read_hold = |value: &Value| {
            Some(HeldAddress { address: value[0].as_str()?.to_owned(), error: value[1].as_str()?.to_owned() })
        };
        let mut table = Self {
            now: column(&row, 4)?,
            shards: number(&row, 0)?,
            window_limit,
            rows: list(5)?.iter().map(read_row).collect::<Option<_>>().ok_or_else(malformed)?,
            relays: list(6)?.iter().map(read_relay).collect::<Option<_>>().ok_or_else(malformed)?,
            held_addresses: list(7)?.iter().map(read_hold).collect::<Option<_>>().ok_or_else(malformed)?,
        };
        table.expire_future_leases(request);
        Ok(table)
    }

    /// Treats a lease as expired if it ends later than any lease can. Its clock was set back since, and it would not
    /// expire for that long. The relay's own lease is written again.
    fn expire_future_leases(&mut self, request: &LeaseRequest) {
        let latest = self.now + millis((request.duration * 20).max(Duration::from_mins(10)));
        let rows = self.rows.iter_mut().map(|row| &mut row.lease.expires_at);
        let relays = self.relays.iter_mut().map(|(_, expires_at)| expires_at);
        for expires_at in rows.chain(relays).filter(|expires_at| **expires_at > latest) {
            *expires_at = 0;
        }
    }

    /// Rows of this relay that expire after this time are not renewed: two thirds of the lease are left.
    fn renew_before(&self, request: &LeaseRequest) -> i64 {
        self.now + millis(request.duration) / 3 * 2
    }

    fn fair_share(&self) -> usize {
        let live = self.relays.iter().filter(|(_, expires_at)| *expires_at >= self.now).count();
        fair_share(usize::from(self.shards), live)
    }

    fn leases_of(&self, owner: Uuid) -> impl Iterator<Item = &LeaseRow> {
        self.rows.iter().filter(move |row| row.lease.owner == Some(owner))
    }

    /// Whether no row would change.
    pub(crate) fn needs_no_write(&self, request: &LeaseRequest) -> bool {
        let renew_before = self.renew_before(request);
        let mine = || self.leases_of(request.owner);
        request.release.is_empty()
            && self.window_limit == WindowLimit::Unlimited
            && self.relays.iter().any(|(owner, expires_at)| *owner == request.owner && *expires_at >= renew_before)
            && mine().all(|row| row.lease.expires_at >= renew_before)
            && (mine().count() >= self.fair_share() || !self.rows.iter().any(|row| row.lease.is_free(self.now)))
    }

    /// Adds this relay to the live relays.
    fn add_self(&mut self, request: &LeaseRequest) {
        let expires_at = self.now + millis(request.duration);
        self.relays.retain(|(owner, _)| *owner != request.owner);
        self.relays.push((request.owner, expires_at));
    }

    /// Renews this relay's leases and acquires free shards up to its fair share. Returns the changed rows.
    fn acquire(&mut self, request: &LeaseRequest) -> Vec<LeaseRow> {
        let claim = LeaseClaim {
            owner: request.owner,
            fair_share: self.fair_share(),
            now: self.now,
            expires_at: self.now + millis(request.duration),
            renew_before: self.renew_before(request),
        };
        let changed = assign_leases(self.rows.iter_mut().map(|row| &mut row.lease), claim);
        changed.into_iter().map(|index| self.rows[index].clone()).collect()
    }

    pub(crate) fn response(&self, request: &LeaseRequest) -> LeaseResponse {
        let mine = || self.leases_of(request.owner);
        let remaining =
            mine().map(|row| row.lease.expires_at - self.now).min().unwrap_or(0).min(millis(request.duration));
        let lease = |row: &LeaseRow| Lease {
            shard: row.shard,
            shard_count: self.shards,
            epoch: row.lease.epoch,
            owner: request.owner,
        };
        LeaseResponse {
            leases: mine().map(lease).collect(),
            taken: Vec::new(),
            duration: Duration::from_millis(u64::try_from(remaining).unwrap_or(0)),
            fair_share: self.fair_share(),
            window_limit: self.window_limit,
            held_addresses: self.held_addresses.clone(),
            timeline_changed: false,
        }
    }
}

async fn release_requested(
    connection: &mut SqliteConnection,
    destination: &str,
    request: &LeaseRequest,
) -> Result<(), Error> {
    for lease in &request.release {
        let sql = "UPDATE relevo_lease SET owner = NULL, expires_at_ms = 0 \
                   WHERE destination = ?1 AND shard = ?2 AND epoch = ?3 AND owner = ?4";
        let update = sqlx::query(sql).bind(destination).bind(i64::from(lease.shard)).bind(lease.epoch);
        update.bind(request.owner).execute(&mut *connection).await?;
    }
    Ok(())
}

async fn write_leases(connection: &mut SqliteConnection, destination: &str, rows: &[LeaseRow]) -> Result<(), Error> {
    if rows.is_empty() {
        return Ok(());
    }
    let owner = |row: &LeaseRow| row.lease.owner.map(|owner| owner.simple().to_string());
    let value = |row: &LeaseRow| json!([row.shard, row.lease.epoch, owner(row), row.lease.expires_at]);
    let rows: Value = rows.iter().map(value).collect();
    let sql = "UPDATE relevo_lease AS l SET epoch = w.value ->> 1, owner = unhex(w.value ->> 2), expires_at_ms = \
               w.value ->> 3 \
               FROM json_each(?2) AS w WHERE l.destination = ?1 AND l.shard = w.value ->> 0";
    sqlx::query(sql).bind(destination).bind(rows.to_string()).execute(connection).await?;
    Ok(())
}

async fn write_relay(
    connection: &mut SqliteConnection,
    destination: &str,
    request: &LeaseRequest,
    now: i64,
) -> Result<(), Error> {
    let sql = "INSERT INTO relevo_relay (destination, owner, name, expires_at_ms) VALUES (?1, ?2, ?3, ?4) \
               ON CONFLICT (destination, owner) DO UPDATE SET expires_at_ms = excluded.expires_at_ms";
    let insert = sqlx::query(sql).bind(destination).bind(request.owner).bind(&request.name);
    insert.bind(now + millis(request.duration)).execute(&mut *connection).await?;
    let delete = sqlx::query("DELETE FROM relevo_relay WHERE destination = ?1 AND expires_at_ms < ?2");
    delete.bind(destination).bind(now).execute(connection).await?;
    Ok(())
}

/// Returns the positions of newly leased shards. It reads committed rows after the lease, so it includes everything
/// that a former owner settled.
pub(crate) async fn taken_shards(
    connection: &mut SqliteConnection,
    destination: &str,
    leases: &[Lease],
) -> Result<Vec<TakenShard>, Error> {
    let Some(first) = leases.first() else { return Ok(Vec::new()) };
    let sql = "SELECT p.shard, p.from_seq, p.to_seq, p.settled_seq FROM relevo_progress AS p \
               JOIN relevo_destination AS d ON d.name = p.destination \
               WHERE p.destination = ?1 AND d.shards = ?2 ORDER BY p.shard";
    let select = sqlx::query(sql).bind(destination).bind(i64::from(first.shard_count));
    let mut shards = Vec::with_capacity(leases.len());
    for row in select.fetch_all(&mut *connection).await? {
        let shard: u16 = number(&row, 0)?;
        if let Some(lease) = leases.iter().find(|lease| lease.shard == shard) {
            shards.push(TakenShard { lease: *lease, position: queries::position(&row, 1)?, parked_keys: Vec::new() });
        }
    }
    let keys = sqlx::query("SELECT slot, key FROM relevo_parked_key WHERE destination = ?1").bind(destination);
    for row in keys.fetch_all(&mut *connection).await? {
        let shard = shard_of(number(&row, 0)?, first.shard_count);
        if let Some(taken) = shards.iter_mut().find(|taken| taken.lease.shard == shard) {
            taken.parked_keys.push(column::<String>(&row, 1)?.into());
        }
    }
    Ok(shards)
}

/// Releases all leases of a relay that shuts down, so that they are free at once.
pub(crate) async fn release_all(
    connection: &mut SqliteConnection,
    destination: &str,
    owner: Uuid,
) -> Result<(), Error> {
    for sql in [
        "UPDATE relevo_lease SET owner = NULL, expires_at_ms = 0 WHERE destination = ?1 AND owner = ?2",
        "DELETE FROM relevo_relay WHERE destination = ?1 AND owner = ?2",
    ] {
        sqlx::query(sql).bind(destination).bind(owner).execute(&mut *connection).await?;
    }
    Ok(())
}
