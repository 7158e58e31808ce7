//! A moment as programs read it.

use std::time::Duration;

use relevo_core::inbox::admin::ConsumerDetails;
use serde_json::{Value, json};

use super::moment::{At, Moment, Pace};
use crate::commands::consumers;
use crate::output;

/// One object for the whole of it; rates are null without a moment before.
pub(super) fn object(now: &Moment, before: Option<&Moment>) -> Value {
    let ports = now.ports.iter().map(|answer| json!({ "port": answer.port, "error": answer.told.as_ref().err() }));
    json!({
        "at": output::timestamp(Some(now.clock)),
        "destinations": now.destinations.iter().map(|at| destination(now, before, at)).collect::<Vec<_>>(),
        "consumers": now.consumers.iter().map(|shown| consumer(now, before, shown)).collect::<Vec<_>>(),
        "xmin_age_transactions": now.around.horizon.map(|horizon| horizon.transactions),
        "xmin_held_ms": now.around.horizon.map(|horizon| millis(horizon.held_for)),
        "admin_ports": ports.collect::<Vec<_>>(),
    })
}

fn destination(now: &Moment, before: Option<&Moment>, at: &At) -> Value {
    let (vitals, backlog) = (&at.vitals, &at.vitals.backlog);
    let name = &at.destination.name;
    let mut value = json!({
        "name": name,
        "on": at.destination.enabled,
        "broker_up": now.broker_up(name),
        "pending": backlog.pending,
        "exact": backlog.exact,
        "oldest_pending_ms": millis(vitals.oldest_pending),
        "parked": backlog.parked,
        "parked_keys": vitals.parked_keys,
        "held_addresses": vitals.held_addresses,
        "dead": backlog.dead,
        "retention_holdback_ms": millis(vitals.holdback),
        "emitted_per_second": before.and_then(|before| now.emitted(before, at)),
        "shards": at.shards.iter().map(output::shard).collect::<Vec<_>>(),
        "heads": at.heads.iter().map(|head| output::listed(head, name)).collect::<Vec<_>>(),
        "dead_ids": at.dead.iter().map(|letter| letter.id.to_string()).collect::<Vec<_>>(),
    });
    pace(&mut value, "published", &before.map(|before| now.published(before, name)).unwrap_or_default());
    value
}

fn consumer(now: &Moment, before: Option<&Moment>, shown: &ConsumerDetails) -> Value {
    let name = &shown.summary.name;
    let mut value = consumers::show::json(shown);
    if let Some(lanes) = value["lanes"].as_array_mut() {
        for (lane, known) in lanes.iter_mut().zip(&shown.lanes) {
            lane["lag"] = now.lag(name, &known.name).into();
        }
    }
    pace(&mut value, "handled", &before.map(|before| now.handled(before, name)).unwrap_or_default());
    value
}

fn pace(value: &mut Value, what: &str, pace: &Pace) {
    value[format!("{what}_per_second")] = pace.rate.into();
    value["p50_seconds"] = pace.p50.into();
    value["p99_seconds"] = pace.p99.into();
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
