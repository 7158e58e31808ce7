//! Settles batches and parks the messages that were not published.

use relevo_core::AfterDead;
use relevo_core::outbox::log::{ParkAction, ParkedMessage, PublishFailure, SettleResult, Settlement};
use serde_json::{Value, json};

use super::leases::lease_tokens;
use crate::classify::Error;
use crate::literal::{json_literal, literal, millis};

pub(crate) fn settle(schema: &str, destination: &str, settlement: &Settlement) -> String {
    let progress: Vec<_> = settlement
        .progress
        .iter()
        .map(|(lease, position)| json!([lease.shard, position.from_tick(), position.to_tick(), position.settled_seq()]))
        .collect();
    let parks: Vec<_> = settlement.parked.iter().map(park_json).collect();
    let doc = json!({
        "leases": lease_tokens(settlement.progress.iter().map(|(lease, _)| *lease)),
        "shards": settlement.progress.first().map_or(1, |(lease, _)| lease.shard_count),
        "progress": progress,
        "parks": parks,
    });
    format!("SELECT {schema}.settle({}, {})::text", literal(destination), json_literal(&doc))
}

fn park_json(park: &ParkedMessage) -> Value {
    let mut value = park.failure.as_ref().map_or_else(|| json!({}), failure_json);
    value["seq"] = park.seq.into();
    value["slot"] = park.slot.into();
    value["key"] = (*park.key).into();
    value
}

pub(super) fn failure_json(stopped: &PublishFailure) -> Value {
    let (stop, after, address) = match &stopped.action {
        ParkAction::Retry { after } => ("retrying", Some(*after), None),
        ParkAction::HoldAddress { address, after } => ("held", Some(*after), Some(&**address)),
        ParkAction::Quarantine { after } => ("quarantined", Some(*after), None),
        ParkAction::DeadLetter(AfterDead::Hold) => ("dead_hold", None, None),
        ParkAction::DeadLetter(AfterDead::Continue) => ("dead_continue", None, None),
    };
    json!({
        "stop": stop, "after_ms": after.map(millis), "address": address, "attempts": stopped.attempts,
        "class": stopped.class, "error": stopped.error, "route": &*stopped.route,
    })
}

pub(crate) fn settle_result(answer: &Value) -> Result<SettleResult, Error> {
    let read = || -> Option<SettleResult> {
        Some(SettleResult {
            lost_shards: answer["lost"]
                .as_array()?
                .iter()
                .map(|v| u16::try_from(v.as_u64()?).ok())
                .collect::<Option<_>>()?,
            reread: answer["passed"].as_array()?.iter().map(Value::as_i64).collect::<Option<_>>()?,
        })
    };
    read().ok_or(Error::UnexpectedResponse("the result of a settlement is malformed"))
}
