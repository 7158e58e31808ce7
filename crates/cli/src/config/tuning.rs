//! The numbers of relays and routes: their keys beside the code that they set.

use std::time::Duration;

use relevo_relay::Config as Relay;

use super::keys::{Key, Kind};

/// The keys of `[relay]`; each has its line in [`apply`].
pub(crate) const TUNING: &[Key] = &[
    Key::number("lease_ms", 100, "10000", "How long a lease lasts: another relay takes over this long after one dies."),
    Key::number("lease_every_ms", 1, "500", "How often leases are asked for: so soon shards are taken that were left."),
    Key::number(
        "lease_margin_ms",
        0,
        "2000",
        "How much of a lease is never used for publishing, for clocks that run apart.",
    ),
    Key::number("page_messages", 1, "2000", "Messages read at once."),
    Key::number("pages_max", 1, "4", "Pages' worth of messages in memory."),
    Key::number(
        "bytes_max",
        1024,
        "16777216",
        "About how many bytes of messages are in memory before no page is read.",
    ),
    Key::number("batch_max", 1, "1000", "Messages handed to the broker in one call."),
    Key::number("in_flight_max", 1, "8000", "Messages that wait for their confirmation."),
    Key::number(
        "publish_deadline_ms",
        1,
        "5000",
        "No publish takes longer; together with `lease_margin_ms` shorter than the lease.",
    ),
    Key::number("idle_min_ms", 1, "1", "The first pause between reads while there is nothing to do; it doubles."),
    Key::number("idle_max_ms", 1, "40", "The longest pause between reads while there is nothing to do."),
    Key::number("due_every_ms", 1, "200", "How often parked keys and operators' marks are looked for."),
    Key::number("runs_max", 1, "200", "Parked keys tried at once."),
    Key::number("run_messages", 1, "100", "Messages of one parked key taken at once."),
    Key::number(
        "parked_keys_max",
        1,
        "1000000",
        "Parked keys that one relay remembers; above it, it reads no further.",
    ),
    Key::number("maintain_every_ms", 100, "5000", "How often partitions and retention are looked after."),
    Key::number("settle_min_ms", 0, "10", "The least time between two settlements while there is room in memory."),
    Key::number("settle_every_ms", 1, "1000", "How long progress may stay unsettled."),
    Key::number("outage_min_ms", 1, "100", "The first pause of an outage; it doubles."),
    Key::number("outage_max_ms", 1, "5000", "The longest pause of an outage."),
    Key::number("hold_probe_ms", 1, "30000", "How often a blocked address is probed."),
    Key::number("quarantine_probe_ms", 1, "300000", "How often a quarantined message is tried, alone."),
    Key::number("unknown_max", 1, "3", "After so many lost answers in a row a message is sent alone."),
    Key::number("grace_ms", 0, "10000", "How long a relay that is told to stop waits for what is in flight."),
];

/// Sets one of [`TUNING`]; says whether the name is one of them.
pub(crate) fn apply(relay: &mut Relay, name: &str, value: i64) -> bool {
    let count = usize::try_from(value).unwrap_or_default();
    let time = Duration::from_millis(u64::try_from(value).unwrap_or_default());
    match name {
        "lease_ms" => relay.lease_duration = time,
        "lease_every_ms" => relay.lease_renew_interval = time,
        "lease_margin_ms" => relay.lease_margin = time,
        "page_messages" => relay.page_messages = count,
        "pages_max" => relay.pages_max = count,
        "bytes_max" => relay.memory_max = count,
        "batch_max" => relay.batch_messages_max = count,
        "in_flight_max" => relay.in_flight_messages_max = count,
        "publish_deadline_ms" => relay.publish_timeout = time,
        "idle_min_ms" => relay.poll_interval_min = time,
        "idle_max_ms" => relay.poll_interval_max = time,
        "due_every_ms" => relay.parked_poll_interval = time,
        "runs_max" => relay.parked_keys_per_poll = count,
        "run_messages" => relay.parked_messages_per_key = count,
        "parked_keys_max" => relay.parked_keys_max = count,
        "maintain_every_ms" => relay.maintenance_interval = time,
        "settle_min_ms" => relay.settle_interval_min = time,
        "settle_every_ms" => relay.settle_interval_max = time,
        "outage_min_ms" => relay.outage_backoff_min = time,
        "outage_max_ms" => relay.outage_backoff_max = time,
        "hold_probe_ms" => relay.blocked_probe_interval = time,
        "quarantine_probe_ms" => relay.quarantine_probe_interval = time,
        "unknown_max" => relay.lost_confirms_max = u32::try_from(value).unwrap_or(u32::MAX),
        "grace_ms" => relay.shutdown_grace = time,
        _ => return false,
    }
    true
}

/// The keys of a route.
pub(crate) const ROUTE: &[Key] = &[
    Key::of_route(
        "name",
        Kind::Text,
        "\"everything\"",
        "Its name in metrics and errors; no two of a destination share one.",
    ),
    Key::of_route(
        "topic",
        Kind::Text,
        "\"**\"",
        "Which topics: words between dots, `*` for any one word, `**` at the end for any rest.",
    ),
    Key::of_route("type", Kind::Text, "\"**\"", "Which types, in the same way."),
    Key::of_route(
        "address",
        Kind::Text,
        "\"{topic}\"",
        "Where they go at the broker; `{topic}`, `{type}` and `{key}` are replaced; any other `{` is an error.",
    ),
    Key::of_route(
        "headers",
        Kind::Pairs,
        "{}",
        "Headers that are added, as `{ x-event-id = \"{id}\" }`; `{id}`, `{topic}`, `{type}`, `{key}` and `{header:NAME}` \
         are replaced. One that asks for a header that the message has not got is left out.",
    ),
    Key::of_route(
        "rename_headers",
        Kind::Pairs,
        "{}",
        "New names of the message's own headers, as `{ correlation-id = \"x-correlation-id\" }`.",
    ),
    Key::of_route(
        "backoff",
        Kind::Choice(&["exponential", "linear"]),
        "\"exponential\"",
        "How pauses between attempts grow: `base × factor^(n-1)` or `base × n`.",
    ),
    Key::of_route("base_ms", Kind::from(1), "1000", "The first pause."),
    Key::of_route("factor", Kind::Integer { min: 1, max: 100 }, "2", "The growth of exponential pauses."),
    Key::of_route("ceiling_ms", Kind::from(1), "300000", "No pause is longer, jitter included."),
    Key::of_route(
        "jitter_percent",
        Kind::Integer { min: 0, max: 100 },
        "20",
        "The largest share that chance adds to a pause, so that messages do not all come back at once.",
    ),
    Key::of_route("attempts_max", Kind::Integer { min: 1, max: 1_000_000 }, "10", "How many attempts a message has."),
    Key::of_route(
        "after_dead",
        Kind::Choice(&["hold", "continue"]),
        "\"hold\"",
        "What happens to a key when one of its messages is given up: it waits for a person, or goes on without its \
         order being promised.",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_s_defaults_are_the_relay_s_own() {
        let default = Relay::default();
        let mut relay = Relay::default();
        for key in TUNING {
            // Another value first, so that the default is seen to be set.
            assert!(apply(&mut relay, key.name, 7_777), "`{}` sets nothing", key.name);
            assert_ne!(format!("{relay:?}"), format!("{default:?}"), "`{}` sets nothing", key.name);
            let value = key.default.and_then(|text| text.parse().ok()).expect("a number");
            apply(&mut relay, key.name, value);
            assert_eq!(format!("{relay:?}"), format!("{default:?}"), "`{}` has another default", key.name);
        }
    }
}
