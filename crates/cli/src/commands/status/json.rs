//! A snapshot as JSON.

use std::time::Duration;

use relevo_core::inbox::admin::ConsumerDetails;
use serde_json::{Value, json};

use super::snapshot::{DestinationSnapshot, Rates, Snapshot};
use crate::commands::consumer;
use crate::output;

/// One object with everything.
pub(super) fn object(now: &Snapshot) -> Value {
    let ports = now.replies.iter().map(|reply| json!({ "port": reply.port, "error": reply.status.as_ref().err() }));
    let horizon = now.outbox_sample.horizon;
    json!({
        "at": output::timestamp(Some(now.taken_at)),
        "destinations": now.destinations.iter().map(|known| destination(now, known)).collect::<Vec<_>>(),
        "consumers": now.consumers.iter().map(|known| consumer(now, known)).collect::<Vec<_>>(),
        "xmin_age_transactions": horizon.map(|horizon| horizon.transactions),
        "xmin_held_ms": horizon.map(|horizon| millis(horizon.held_for)),
        "admin_ports": ports.collect::<Vec<_>>(),
    })
}

fn destination(now: &Snapshot, known: &DestinationSnapshot) -> Value {
    let (sample, backlog) = (&known.sample, &known.sample.backlog);
    let name = &known.destination.name;
    let mut value = json!({
        "name": name,
        "enabled": known.destination.enabled,
        "broker_up": now.broker_up(name),
        "pending": backlog.pending,
        "exact": backlog.exact,
        "oldest_pending_ms": millis(sample.oldest_pending),
        "parked": backlog.parked,
        "parked_keys": sample.parked_keys,
        "held_addresses": sample.held_addresses,
        "dead": backlog.dead,
        "retention_overdue_ms": millis(sample.holdback),
        "shards": known.shards.iter().map(output::shard).collect::<Vec<_>>(),
        "heads": known.heads.iter().map(|head| output::listed(head, name)).collect::<Vec<_>>(),
        "dead_ids": known.dead_letters.iter().map(|letter| letter.id.to_string()).collect::<Vec<_>>(),
    });
    add_rates(&mut value, "published_per_second", &now.published(name));
    value
}

fn consumer(now: &Snapshot, known: &ConsumerDetails) -> Value {
    let name = &known.summary.name;
    let mut value = consumer::show::json(known);
    if let Some(lanes) = value["lanes"].as_array_mut() {
        for (value, lane) in lanes.iter_mut().zip(&known.lanes) {
            value["lag"] = now.lag(name, &lane.name).into();
        }
    }
    add_rates(&mut value, "handled_per_second", &now.handled(name));
    value
}

fn add_rates(value: &mut Value, name: &str, rates: &Rates) {
    value[name] = rates.per_second.into();
    value["p50_seconds"] = rates.p50.into();
    value["p99_seconds"] = rates.p99.into();
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
