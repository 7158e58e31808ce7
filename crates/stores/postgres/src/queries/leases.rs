//! Destinations, roles, leases of their shards, the positions that an owner starts at, and maintenance.

use std::time::Duration;

use bytes::Bytes;
use relevo_core::outbox::Position;
use relevo_core::outbox::admin::{RoleKind, StartFrom};
use relevo_core::outbox::leases::{HeldAddress, Lease, LeaseRequest, LeaseResponse, TakenShard};
use relevo_core::outbox::log::WindowLimit;
use relevo_core::outbox::maintenance::MaintenanceReport;
use serde_json::{Value, json};
use sqlx::postgres::PgRow;
use uuid::Uuid;

use super::column;
use super::read::slot_filter;
use crate::binary_copy::CopyRows;
use crate::classify::Error;
use crate::literal::{json_literal, literal, millis};

/// The leases as functions check them: shard, epoch and owner.
pub(super) fn lease_tokens(leases: impl IntoIterator<Item = Lease>) -> Value {
    leases.into_iter().map(|lease| json!([lease.shard, lease.epoch, lease.owner.to_string()])).collect()
}

pub(crate) fn acquire_leases(schema: &str, destination: &str, ask: &LeaseRequest) -> String {
    let give_back: Vec<_> = ask.release.iter().map(|lease| json!([lease.shard, lease.epoch])).collect();
    let doc = json!({
        "owner": ask.owner.to_string(), "name": ask.name, "lease_ms": millis(ask.duration), "release": give_back,
    });
    format!("SELECT {schema}.acquire_leases({}, {})::text", literal(destination), json_literal(&doc))
}

/// Reads the result of [`acquire_leases`] and its timeline.
pub(crate) fn lease_response(answer: &Value, ask: &LeaseRequest) -> Result<(LeaseResponse, i64), Error> {
    let malformed = Error::UnexpectedResponse("leases are malformed");
    let read = || -> Option<(LeaseResponse, i64)> {
        let shards = u16::try_from(answer["shards"].as_u64()?).ok()?;
        let lease = |pair: &Value| {
            let shard = u16::try_from(pair[0].as_u64()?).ok()?;
            Some(Lease { shard, shard_count: shards, epoch: pair[1].as_i64()?, owner: ask.owner })
        };
        let hold = |pair: &Value| {
            Some(HeldAddress { address: pair[0].as_str()?.to_owned(), error: pair[1].as_str()?.to_owned() })
        };
        let ceiling = match (answer["reshard"].as_bool()?, answer["reshard_tick"].as_i64()) {
            (false, _) => WindowLimit::Unlimited,
            (true, None) => WindowLimit::CurrentWindow,
            (true, Some(tick)) => WindowLimit::UntilTick(tick),
        };
        let leased = LeaseResponse {
            leases: answer["leases"].as_array()?.iter().map(lease).collect::<Option<_>>()?,
            taken: Vec::new(),
            duration: Duration::from_millis(answer["lasts_ms"].as_f64().map_or(0, remaining_millis)),
            fair_share: usize::try_from(answer["fair"].as_u64()?).ok()?,
            window_limit: ceiling,
            held_addresses: answer["holds"].as_array()?.iter().map(hold).collect::<Option<_>>()?,
            timeline_changed: answer["timeline_changed"].as_bool()?,
        };
        Some((leased, answer["timeline"].as_i64()?))
    };
    read().ok_or(malformed)
}

/// The remaining time of a lease, or zero if it has expired.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between zero and a day")]
fn remaining_millis(millis: f64) -> u64 {
    millis.clamp(0.0, 86_400_000.0) as u64
}

pub(crate) fn positions(schema: &str, destination: &str) -> String {
    format!("SELECT shard, from_tick, to_tick, settled_seq FROM {schema}.shard_positions({})", literal(destination))
}

pub(crate) fn taken_shards(rows: &[PgRow], leases: &[Lease]) -> Result<Vec<TakenShard>, Error> {
    let mut taken = Vec::with_capacity(leases.len());
    for row in rows {
        let shard: i16 = column(row, 0)?;
        let Some(lease) = leases.iter().find(|lease| i32::from(lease.shard) == i32::from(shard)) else { continue };
        let position = Position::in_window(column(row, 1)?, column(row, 2)?, column(row, 3)?);
        taken.push(TakenShard { lease: *lease, position, parked_keys: Vec::new() });
    }
    Ok(taken)
}

pub(crate) fn parked_keys(schema: &str, destination: &str, leases: &[Lease]) -> String {
    format!(
        "SELECT slot, key FROM {schema}.parked_key WHERE destination = {}{}",
        literal(destination),
        slot_filter(leases)
    )
}

pub(crate) fn add_parked(answer: Bytes, shards: u16, taken: &mut [TakenShard]) -> Result<(), Error> {
    let mut rows = CopyRows::new(answer, 2)?;
    while let Some(mut row) = rows.next_row()? {
        let shard = relevo_core::slot::shard_of(row.slot()?, shards);
        let key = row.text()?;
        if let Some(taken_shard) = taken.iter_mut().find(|taken_shard| taken_shard.lease.shard == shard) {
            taken_shard.parked_keys.push(key);
        }
    }
    Ok(())
}

pub(crate) fn release_leases(schema: &str, destination: &str, owner: Uuid) -> String {
    format!("SELECT {schema}.release_leases({}, '{owner}')", literal(destination))
}

pub(crate) fn maintain(schema: &str, history_only: bool) -> String {
    format!("SELECT {schema}.maintain(history_only => {history_only})::text")
}

/// Adds the result of [`maintain`] to the report.
pub(crate) fn add_maintenance(report: &mut MaintenanceReport, answer: &Value) {
    let count = |name: &str| u32::try_from(answer[name].as_u64().unwrap_or(0)).unwrap_or(u32::MAX);
    let flag = |name: &str| answer[name].as_bool().unwrap_or(false);
    for warning in answer["warnings"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if !report.warnings.iter().any(|known| known == warning) {
            report.warnings.push(warning.to_owned());
        }
    }
    (report.skipped, report.more) = (flag("busy"), flag("more"));
    report.partitions_created += count("partitions_created");
    report.partitions_emptied += count("partitions_emptied");
}

pub(crate) fn add_destination(schema: &str, name: &str, shards: u16, start: StartFrom) -> String {
    format!("SELECT {schema}.add_destination({}, {shards}, '{}')", literal(name), start.as_str())
}

pub(crate) fn remove_destination(schema: &str, name: &str) -> String {
    format!("SELECT {schema}.remove_destination({})", literal(name))
}

pub(crate) fn set_enabled(schema: &str, name: &str, enabled: bool) -> String {
    let function = if enabled { "enable_destination" } else { "disable_destination" };
    format!("SELECT {schema}.{function}({})", literal(name))
}

pub(crate) fn reshard_destination(schema: &str, name: &str, shards: u16) -> String {
    format!("SELECT {schema}.reshard_destination({}, {shards})", literal(name))
}

pub(crate) fn role_exists(role: &str) -> String {
    format!("SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = {})", literal(role))
}

pub(crate) fn grant(schema: &str, kind: RoleKind, role: &str) -> String {
    format!("SELECT {schema}.grant_{}({})", kind.as_str(), literal(role))
}

pub(crate) fn adopt(schema: &str) -> String {
    format!("SELECT {schema}.adopt()")
}

pub(crate) fn rebase(schema: &str) -> String {
    format!("SELECT {schema}.rebase()")
}
