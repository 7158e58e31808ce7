//! Reads the due messages of parked keys and settles them.

use std::sync::Arc;

use bytes::Bytes;
use relevo_core::outbox::LogEntry;
use relevo_core::outbox::leases::Lease;
use relevo_core::outbox::parked::{ParkedBatch, ParkedResult, ParkedSettlement, QueuedEntry};
use serde_json::{Value, json};

use super::leases::lease_tokens;
use super::read::full_message;
use super::settle::failure_json;
use crate::binary_copy::CopyRows;
use crate::classify::Error;
use crate::literal::{json_literal, literal};

pub(crate) fn read_parked(schema: &str, destination: &str, leases: &[Lease], keys: usize, messages: usize) -> String {
    let doc = json!({
        "leases": lease_tokens(leases.iter().copied()), "shards": leases.first().map_or(1, |lease| lease.shard_count),
        "keys": keys, "messages": messages,
    });
    format!(
        "SELECT slot, attempts, state, address, ordinal, seq, id, created_at, topic, key, type, content_type, headers, payload \
         FROM {schema}.read_parked({}, {})",
        literal(destination),
        json_literal(&doc)
    )
}

pub(crate) fn parked_batches(answer: Bytes) -> Result<Vec<ParkedBatch>, Error> {
    let mut rows = CopyRows::new(answer, 14)?;
    let mut runs: Vec<ParkedBatch> = Vec::new();
    while let Some(mut row) = rows.next_row()? {
        let slot = row.slot()?;
        let attempts = u32::try_from(row.int4()?).map_err(|_| Error::UnexpectedResponse("attempts are negative"))?;
        let quarantined = row.text()? == "quarantined";
        let address = row.optional_text()?.map(|address| address.to_string());
        let ordinal = row.int8()?;
        let seq = row.int8()?;
        let message = Arc::new(full_message(&mut row)?);
        let key = message.key.clone();
        let entry = QueuedEntry { ordinal, entry: LogEntry { seq, slot, message } };
        match runs.last_mut() {
            Some(run) if run.key == key => run.messages.push(entry),
            _ => runs.push(ParkedBatch {
                key,
                slot,
                attempts,
                quarantined,
                probe_address: address,
                messages: vec![entry],
            }),
        }
    }
    Ok(runs)
}

pub(crate) fn settle_parked(schema: &str, destination: &str, advances: &[ParkedSettlement]) -> String {
    let mut leases: Vec<Lease> = advances.iter().map(|advance| advance.lease).collect();
    leases.sort_unstable();
    leases.dedup();
    let runs: Vec<_> = advances
        .iter()
        .map(|advance| {
            json!({
                "key": &*advance.key,
                "shard": advance.lease.shard,
                "delivered": advance.delivered,
                "ordinal": advance.failed.as_ref().map(|(no, _)| no),
                "park": advance.failed.as_ref().map(|(_, why)| failure_json(why)),
                "released": advance.released_address.as_deref(),
            })
        })
        .collect();
    let doc = json!({ "leases": lease_tokens(leases), "runs": runs });
    format!("SELECT {schema}.settle_parked({}, {})::text", literal(destination), json_literal(&doc))
}

/// Reads the result of [`settle_parked`] for `count` settlements.
pub(crate) fn parked_results(answer: &Value, count: usize) -> Result<Vec<ParkedResult>, Error> {
    let answers = answer.as_array().ok_or(Error::UnexpectedResponse("the results of retries are malformed"))?;
    if answers.len() != count {
        return Err(Error::UnexpectedResponse("results of retries are missing"));
    }
    let result = |value: &Value| match value.as_str() {
        Some("lost") => Ok(ParkedResult::LeaseLost),
        Some("unparked") => Ok(ParkedResult::KeyFreed),
        Some("waits") => Ok(ParkedResult::StillParked),
        _ => Err(Error::UnexpectedResponse("the result of a retry is unknown")),
    };
    answers.iter().map(result).collect()
}
