//! Builds the statements of an inbox, with literals in their text.

use std::fmt::Write as _;
use std::time::Duration;

use relevo_core::consume::Lane;
use relevo_core::inbox::{Arrival, Beat, Claim, Due, Entry, Held, Keeping, Setback, Stop};
use serde_json::{Value, json};
use uuid::Uuid;

use super::config::Config;
use crate::queries::{json_literal, literal, millis};

/// Builds the statements of one consumer.
#[derive(Clone)]
pub(super) struct Says {
    schema: String,
    consumer: String,
    wait_ms: u64,
    /// Lock timeout of calls that can afford to wait.
    patience_ms: u64,
    stall_ms: u64,
    keeping: Keeping,
}

impl Says {
    pub(super) fn new(config: &Config, consumer: &str, keeping: Keeping) -> Self {
        Self {
            schema: config.schema.quoted(),
            consumer: literal(consumer),
            // Zero would disable the timeout.
            wait_ms: millis(config.lock_timeout).max(1),
            patience_ms: (millis(config.call_deadline) / 2).max(1),
            stall_ms: millis(config.stall_deadline).min(i32::MAX.unsigned_abs().into()),
            keeping,
        }
    }

    pub(super) fn of(&self, consumer: &str, keeping: Keeping) -> Self {
        Self { consumer: literal(consumer), keeping, ..self.clone() }
    }

    pub(super) fn traces(&self) -> bool {
        self.keeping.trace.is_some()
    }

    /// `entries` must not contain duplicates.
    pub(super) fn enter(&self, held: Option<&Held>, entries: &[&Arrival]) -> String {
        let Self { schema, consumer, wait_ms, stall_ms, .. } = self;
        if let [arrival] = entries
            && !self.traces()
        {
            let (entry, queue, lane) = (named(arrival.entry), literal(&arrival.queue), lane(held));
            return format!(
                "SELECT {schema}.inbox_insert_one({consumer}, {entry}, {queue}, {lane}, {wait_ms}, {stall_ms})"
            );
        }
        let ids = join(entries.iter().map(|arrival| arrival.entry.id));
        let replays = join(entries.iter().map(|arrival| arrival.entry.replay));
        let queues = texts(entries.iter().map(|arrival| &*arrival.queue));
        let traces = if self.traces() { arrivals(schema, entries, Body::Left) } else { "NULL".to_owned() };
        format!(
            "SELECT {schema}.inbox_insert_many({consumer}, '{{{ids}}}', '{{{replays}}}', {queues}, {}, {wait_ms}, {stall_ms}, {traces})",
            lane(held)
        )
    }

    pub(super) fn append(&self, behind: &[&Arrival]) -> String {
        let Self { schema, consumer, .. } = self;
        format!("SELECT {schema}.inbox_append({consumer}, {})", arrivals(schema, behind, Body::Whole))
    }

    pub(super) fn skip(&self, entry: Entry) -> String {
        format!("SELECT {}.inbox_mark_skipped({}, {})", self.schema, self.consumer, named(entry))
    }

    pub(super) fn start(&self, entry: Entry) -> String {
        format!("SELECT {}.inbox_record_start({}, {}, {})", self.schema, self.consumer, named(entry), self.wait_ms)
    }

    /// Reads the committed starts only, without waiting for open transactions.
    pub(super) fn started(&self, entry: Entry) -> String {
        format!("SELECT {}.inbox_starts({}, {})", self.schema, self.consumer, named(entry))
    }

    pub(super) fn ended(&self, entry: Entry, claim: Option<Claim>) -> String {
        let (entry, claim) = (named(entry), token(claim));
        format!("SELECT {}.inbox_reset_start({}, {entry}, {claim}, {})", self.schema, self.consumer, self.wait_ms)
    }

    pub(super) fn claim(&self, arrival: &Arrival, held: Option<&Held>, lasts: Duration) -> String {
        let Self { schema, consumer, wait_ms, .. } = self;
        format!(
            "SELECT word, claim, times, rest_ms FROM {schema}.inbox_claim_call({consumer}, {}, {}, {}, {wait_ms})",
            row(schema, arrival, Body::Left),
            lane(held),
            millis(lasts)
        )
    }

    pub(super) fn begin_claimed(&self, arrival: &Arrival, held: Option<&Held>, claim: Claim) -> String {
        let Self { schema, consumer, wait_ms, stall_ms, .. } = self;
        format!(
            "SELECT {schema}.inbox_complete_call({consumer}, {}, {}, '{}', {wait_ms}, {stall_ms}, {})",
            row(schema, arrival, Body::Left),
            lane(held),
            claim.token,
            self.traces()
        )
    }

    pub(super) fn set_back(
        &self,
        arrival: &Arrival,
        held: Option<&Held>,
        claim: Option<Claim>,
        setback: &Setback,
    ) -> String {
        let Self { schema, consumer, wait_ms, .. } = self;
        format!(
            "SELECT {schema}.inbox_fail({consumer}, {}, {}, {}, {}, {wait_ms}, {})",
            row(schema, arrival, Body::Whole),
            lane(held),
            token(claim),
            why(setback),
            self.traces()
        )
    }

    pub(super) fn due(&self, queues: usize, messages: usize, lasts: Duration) -> String {
        let most = |number: usize| i32::try_from(number).unwrap_or(i32::MAX);
        format!(
            "SELECT queue, claim_token, attempts, unfinished_starts, redriven, ordinal, id, replay, header_names, header_values, payload, \
             address, lane, broker_offset, correlation FROM {}.inbox_claim_due_queues({}, {}, {}, {})",
            self.schema,
            self.consumer,
            most(queues),
            most(messages),
            millis(lasts)
        )
    }

    pub(super) fn begin_due(&self, due: &Due, number: i64) -> String {
        let Self { schema, consumer, wait_ms, stall_ms, .. } = self;
        let (queue, token) = (literal(&due.queue), due.token);
        format!(
            "SELECT {schema}.inbox_complete_queued({consumer}, {queue}, '{token}', {number}, {wait_ms}, {stall_ms}, {})",
            self.traces()
        )
    }

    pub(super) fn set_back_due(&self, due: &Due, number: i64, setback: &Setback) -> String {
        let Self { schema, consumer, wait_ms, .. } = self;
        let (queue, token, why) = (literal(&due.queue), due.token, why(setback));
        format!(
            "SELECT {schema}.inbox_fail_queued({consumer}, {queue}, '{token}', {number}, {why}, {wait_ms}, {})",
            self.traces()
        )
    }

    pub(super) fn release(&self, due: &Due) -> String {
        let (queue, token) = (literal(&due.queue), due.token);
        format!(
            "SELECT {}.inbox_release_queue({}, {queue}, '{token}', {})",
            self.schema, self.consumer, self.patience_ms
        )
    }

    pub(super) fn beat(&self, beat: &Beat) -> String {
        let marks: Value =
            beat.marks.iter().map(|(lane, mark)| json!([lane.name(), mark.map(|mark| mark.to_string())])).collect();
        let breakers: Value = beat.breakers.iter().map(|(lane, why)| json!([lane.name(), why])).collect();
        let last = beat.last_message_at.map_or_else(|| "NULL".to_owned(), |at| literal(&at.to_string()));
        format!(
            "SELECT {}.inbox_heartbeat({}, '{}', {}, {}, {last}, {}, {}, {})::text",
            self.schema,
            self.consumer,
            beat.owner,
            literal(&beat.name),
            millis(beat.lasts),
            json_literal(&marks),
            json_literal(&breakers),
            self.wait_ms
        )
    }

    pub(super) fn take(&self, owner: Uuid, lanes: &[Lane]) -> String {
        let lanes = texts(lanes.iter().map(Lane::name));
        format!(
            "SELECT lane, epoch FROM {}.inbox_acquire_lanes({}, '{owner}', {lanes}, {})",
            self.schema, self.consumer, self.patience_ms
        )
    }

    /// Releases these lanes. Without `lanes`, releases all lanes and removes the member.
    pub(super) fn give_back(&self, owner: Uuid, lanes: Option<&[Lane]>) -> String {
        let lanes = lanes.map_or_else(|| "NULL".to_owned(), |lanes| texts(lanes.iter().map(Lane::name)));
        format!(
            "SELECT {}.inbox_release_lanes({}, '{owner}', {lanes}, {})",
            self.schema, self.consumer, self.patience_ms
        )
    }

    pub(super) fn prune(&self, limit: usize) -> String {
        // A literal of milliseconds cannot exceed 24 days.
        let interval = |time: Duration| format!("interval '1 millisecond' * {}", millis(time));
        // Traces from an earlier configuration are pruned too.
        let trace = self.keeping.trace.unwrap_or(self.keeping.done);
        format!(
            "SELECT {}.inbox_prune({}, {}, {}, {}, {})",
            self.schema,
            self.consumer,
            interval(self.keeping.done),
            interval(self.keeping.dead),
            i32::try_from(limit).unwrap_or(i32::MAX),
            interval(trace)
        )
    }
}

/// Whether to send a message's headers and payload too.
#[derive(Clone, Copy)]
pub(super) enum Body {
    Whole,
    Left,
}

/// Builds an array of messages.
pub(super) fn arrivals(schema: &str, arrivals: &[&Arrival], body: Body) -> String {
    let rows: Vec<_> = arrivals.iter().map(|arrival| row(schema, arrival, body)).collect();
    format!("ARRAY[{}]::{schema}.inbox_arrival[]", rows.join(","))
}

fn row(schema: &str, arrival: &Arrival, body: Body) -> String {
    let raw = &arrival.raw;
    let body = match body {
        Body::Whole => format!(
            "{}, {}, {}",
            byte_strings(raw.headers.iter().map(|(name, _)| name.as_bytes())),
            byte_strings(raw.headers.iter().map(|(_, value)| &**value)),
            bytes(&raw.payload)
        ),
        Body::Left => "NULL, NULL, NULL".to_owned(),
    };
    format!(
        "ROW({}, {}, {body}, {}, {}, {}, {})::{schema}.inbox_arrival",
        named(arrival.entry),
        literal(&arrival.queue),
        literal(&arrival.address),
        literal(arrival.lane.name()),
        arrival.place.map_or_else(|| "NULL".to_owned(), |place| place.to_string()),
        arrival.correlation.as_ref().map_or_else(|| "NULL".to_owned(), |text| literal(text)),
    )
}

/// Builds the arguments of a failure.
fn why(setback: &Setback) -> String {
    let (stop, after) = match setback.stop {
        Stop::Wait { after } => ("wait", millis(after)),
        Stop::Retry { after } => ("retry", millis(after)),
        Stop::DeadHold => ("dead_hold", 0),
        Stop::DeadContinue => ("dead_continue", 0),
    };
    format!(
        "'{stop}', {after}, {}, {}, {}, {}",
        i32::try_from(setback.attempts).unwrap_or(i32::MAX),
        literal(setback.class),
        literal(&setback.error),
        setback.backtrace.as_ref().map_or_else(|| "NULL".to_owned(), |text| literal(text)),
    )
}

fn named(entry: Entry) -> String {
    format!("'{}', {}", entry.id, entry.replay)
}

fn lane(held: Option<&Held>) -> String {
    held.map_or_else(
        || "NULL, NULL, NULL".to_owned(),
        |held| format!("{}, {}, '{}'", literal(held.lane.name()), held.epoch, held.owner),
    )
}

fn token(claim: Option<Claim>) -> String {
    claim.map_or_else(|| "NULL".to_owned(), |claim| format!("'{}'", claim.token))
}

fn join(values: impl Iterator<Item = impl std::fmt::Display>) -> String {
    values.map(|value| value.to_string()).collect::<Vec<_>>().join(",")
}

pub(super) fn texts<'a>(values: impl Iterator<Item = &'a str>) -> String {
    format!("ARRAY[{}]::text[]", values.map(literal).collect::<Vec<_>>().join(","))
}

fn byte_strings<'a>(values: impl Iterator<Item = &'a [u8]>) -> String {
    format!("ARRAY[{}]::bytea[]", values.map(bytes).collect::<Vec<_>>().join(","))
}

/// Builds a bytes literal that does not depend on `standard_conforming_strings`.
fn bytes(value: &[u8]) -> String {
    let mut text = String::with_capacity(value.len() * 2 + 8);
    text.push_str(" E'\\\\x");
    for byte in value {
        write!(text, "{byte:02x}").expect("a string takes everything");
    }
    text.push('\'');
    text
}
