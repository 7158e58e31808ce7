//! Builds the statements of an inbox.

pub(crate) mod results;

use std::time::Duration;

use relevo_core::AfterDead;
use relevo_core::broker_consumer::Lane;
use relevo_core::inbox::attempts::CallClaim;
use relevo_core::inbox::members::Heartbeat;
use relevo_core::inbox::retries::{InboxFailure, InboxFailureAction, QueueClaim};
use relevo_core::inbox::{DedupId, InboxMessage, InboxRetention, LaneLease};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::inbox::Config;
use crate::literal::{
    bytea_array, bytea_literal, join_with_commas, json_literal, literal, millis, optional_literal, text_array,
};
use crate::pool::Writes;

/// Builds the statements of one consumer.
#[derive(Clone)]
pub(crate) struct InboxStatements {
    schema: String,
    consumer: String,
    lock_timeout_ms: u64,
    /// Lock timeout of calls that can afford to wait.
    long_lock_timeout_ms: u64,
    stall_timeout_ms: u64,
    retention: InboxRetention,
}

impl InboxStatements {
    pub(crate) fn new(config: &Config, consumer: &str, retention: InboxRetention) -> Self {
        Self {
            schema: config.schema.quoted(),
            consumer: literal(consumer),
            // Zero would disable the timeout.
            lock_timeout_ms: millis(config.lock_timeout).max(1),
            long_lock_timeout_ms: (millis(config.call_timeout) / 2).max(1),
            stall_timeout_ms: millis(config.stall_timeout).min(i32::MAX.unsigned_abs().into()),
            retention,
        }
    }

    pub(crate) fn for_consumer(&self, consumer: &str, retention: InboxRetention) -> Self {
        Self { consumer: literal(consumer), retention, ..self.clone() }
    }

    pub(crate) const fn retention(&self) -> InboxRetention {
        self.retention
    }

    /// `entries` must not contain duplicates.
    pub(crate) fn insert(&self, lane: Option<&LaneLease>, entries: &[&InboxMessage]) -> String {
        let Self { schema, consumer, lock_timeout_ms: wait_ms, stall_timeout_ms: stall_ms, .. } = self;
        if let [arrival] = entries {
            let (entry, queue, lane) =
                (dedup_id_arguments(arrival.dedup_id), literal(&arrival.queue), lane_arguments(lane));
            return format!(
                "SELECT {schema}.inbox_insert_one({consumer}, {entry}, {queue}, {lane}, {wait_ms}, {stall_ms})"
            );
        }
        let ids = join_with_commas(entries.iter().map(|arrival| arrival.dedup_id.id));
        let replays = join_with_commas(entries.iter().map(|arrival| arrival.dedup_id.replay));
        let queues = text_array(entries.iter().map(|arrival| &*arrival.queue));
        format!(
            "SELECT {schema}.inbox_insert_many({consumer}, '{{{ids}}}', '{{{replays}}}', {queues}, {}, {wait_ms}, {stall_ms})",
            lane_arguments(lane)
        )
    }

    pub(crate) fn append(&self, behind: &[&InboxMessage]) -> String {
        let Self { schema, consumer, .. } = self;
        format!("SELECT {schema}.inbox_append({consumer}, {})", message_array(schema, behind, Body::Full))
    }

    /// Records messages as skipped that were inserted as done in the same transaction.
    pub(crate) fn mark_skipped(&self, ids: &[DedupId]) -> Writes {
        let statement = |id: &DedupId| {
            format!("SELECT {}.inbox_mark_skipped({}, {});", self.schema, self.consumer, dedup_id_arguments(*id))
        };
        Writes { sql: ids.iter().map(statement).collect(), statements: u32::try_from(ids.len()).unwrap_or(u32::MAX) }
    }

    pub(crate) fn record_start(&self, entry: DedupId) -> String {
        format!(
            "SELECT {}.inbox_record_start({}, {}, {})",
            self.schema,
            self.consumer,
            dedup_id_arguments(entry),
            self.lock_timeout_ms
        )
    }

    /// Reads the committed starts only, without waiting for open transactions.
    pub(crate) fn unfinished_starts(&self, entry: DedupId) -> String {
        format!("SELECT {}.inbox_starts({}, {})", self.schema, self.consumer, dedup_id_arguments(entry))
    }

    pub(crate) fn end_attempt(&self, entry: DedupId, claim: Option<CallClaim>) -> String {
        let (entry, claim) = (dedup_id_arguments(entry), token_argument(claim));
        format!(
            "SELECT {}.inbox_reset_start({}, {entry}, {claim}, {})",
            self.schema, self.consumer, self.lock_timeout_ms
        )
    }

    pub(crate) fn claim_call(&self, arrival: &InboxMessage, lane: Option<&LaneLease>, ttl: Duration) -> String {
        let Self { schema, consumer, lock_timeout_ms: wait_ms, .. } = self;
        format!(
            "SELECT word, claim, times, rest_ms FROM {schema}.inbox_claim_call({consumer}, {}, {}, {}, {wait_ms})",
            message_row(schema, arrival, Body::Omitted),
            lane_arguments(lane),
            millis(ttl)
        )
    }

    pub(crate) fn complete_call(&self, arrival: &InboxMessage, lane: Option<&LaneLease>, claim: CallClaim) -> String {
        let Self { schema, consumer, lock_timeout_ms: wait_ms, stall_timeout_ms: stall_ms, .. } = self;
        format!(
            "SELECT {schema}.inbox_complete_call({consumer}, {}, {}, '{}', {wait_ms}, {stall_ms})",
            message_row(schema, arrival, Body::Omitted),
            lane_arguments(lane),
            claim.token
        )
    }

    pub(crate) fn fail(
        &self,
        arrival: &InboxMessage,
        lane: Option<&LaneLease>,
        claim: Option<CallClaim>,
        failure: &InboxFailure,
    ) -> String {
        let Self { schema, consumer, lock_timeout_ms: wait_ms, .. } = self;
        format!(
            "SELECT {schema}.inbox_fail({consumer}, {}, {}, {}, {}, {wait_ms})",
            message_row(schema, arrival, Body::Full),
            lane_arguments(lane),
            token_argument(claim),
            failure_arguments(failure)
        )
    }

    pub(crate) fn claim_due_queues(&self, queues: usize, messages: usize, ttl: Duration) -> String {
        let most = |number: usize| i32::try_from(number).unwrap_or(i32::MAX);
        format!(
            "SELECT queue, claim_token, attempts, unfinished_starts, ordinal, id, replay, header_names, header_values, payload, \
             address, lane, broker_offset FROM {}.inbox_claim_due_queues({}, {}, {}, {})",
            self.schema,
            self.consumer,
            most(queues),
            most(messages),
            millis(ttl)
        )
    }

    pub(crate) fn complete_queued(&self, claim: &QueueClaim, ordinal: i64) -> String {
        let Self { schema, consumer, lock_timeout_ms: wait_ms, stall_timeout_ms: stall_ms, .. } = self;
        let (queue, token) = (literal(&claim.queue), claim.token);
        format!(
            "SELECT {schema}.inbox_complete_queued({consumer}, {queue}, '{token}', {ordinal}, {wait_ms}, {stall_ms})"
        )
    }

    pub(crate) fn fail_queued(&self, claim: &QueueClaim, ordinal: i64, failure: &InboxFailure) -> String {
        let Self { schema, consumer, lock_timeout_ms: wait_ms, .. } = self;
        let (queue, token, why) = (literal(&claim.queue), claim.token, failure_arguments(failure));
        format!("SELECT {schema}.inbox_fail_queued({consumer}, {queue}, '{token}', {ordinal}, {why}, {wait_ms})")
    }

    pub(crate) fn release_queue(&self, claim: &QueueClaim) -> String {
        let (queue, token) = (literal(&claim.queue), claim.token);
        format!(
            "SELECT {}.inbox_release_queue({}, {queue}, '{token}', {})",
            self.schema, self.consumer, self.long_lock_timeout_ms
        )
    }

    pub(crate) fn heartbeat(&self, beat: &Heartbeat) -> String {
        let marks: Value = beat
            .settled_offsets
            .iter()
            .map(|(lane, mark)| json!([lane.name(), mark.map(|mark| mark.to_string())]))
            .collect();
        let breakers: Value = beat.breakers.iter().map(|(lane, why)| json!([lane.name(), why])).collect();
        let last = beat.last_message_at.map_or_else(|| "NULL".to_owned(), |at| literal(&at.to_string()));
        format!(
            "SELECT {}.inbox_heartbeat({}, '{}', {}, {}, {last}, {}, {}, {})::text",
            self.schema,
            self.consumer,
            beat.owner,
            literal(&beat.name),
            millis(beat.ttl),
            json_literal(&marks),
            json_literal(&breakers),
            self.lock_timeout_ms
        )
    }

    pub(crate) fn acquire_lanes(&self, owner: Uuid, lanes: &[Lane]) -> String {
        let lanes = text_array(lanes.iter().map(Lane::name));
        format!(
            "SELECT lane, epoch FROM {}.inbox_acquire_lanes({}, '{owner}', {lanes}, {})",
            self.schema, self.consumer, self.long_lock_timeout_ms
        )
    }

    /// Releases these lanes. Without `lanes`, releases all lanes and removes the member.
    pub(crate) fn release_lanes(&self, owner: Uuid, lanes: Option<&[Lane]>) -> String {
        let lanes = lanes.map_or_else(|| "NULL".to_owned(), |lanes| text_array(lanes.iter().map(Lane::name)));
        format!(
            "SELECT {}.inbox_release_lanes({}, '{owner}', {lanes}, {})",
            self.schema, self.consumer, self.long_lock_timeout_ms
        )
    }

    pub(crate) fn prune(&self, limit: usize) -> String {
        // A literal of milliseconds cannot exceed 24 days.
        let interval = |time: Duration| format!("interval '1 millisecond' * {}", millis(time));
        format!(
            "SELECT {}.inbox_prune({}, {}, {}, {})",
            self.schema,
            self.consumer,
            interval(self.retention.done),
            interval(self.retention.dead_letters),
            i32::try_from(limit).unwrap_or(i32::MAX)
        )
    }
}

/// Whether to send a message's headers and payload too.
#[derive(Clone, Copy)]
pub(crate) enum Body {
    Full,
    Omitted,
}

/// Builds an array of messages.
pub(crate) fn message_array(schema: &str, arrivals: &[&InboxMessage], body: Body) -> String {
    let rows: Vec<_> = arrivals.iter().map(|arrival| message_row(schema, arrival, body)).collect();
    format!("ARRAY[{}]::{schema}.inbox_arrival[]", rows.join(","))
}

fn message_row(schema: &str, arrival: &InboxMessage, body: Body) -> String {
    let raw = &arrival.raw;
    let body = match body {
        Body::Full => format!(
            "{}, {}, {}",
            bytea_array(raw.headers.iter().map(|(name, _)| name.as_bytes())),
            bytea_array(raw.headers.iter().map(|(_, value)| &**value)),
            bytea_literal(&raw.payload)
        ),
        Body::Omitted => "NULL, NULL, NULL".to_owned(),
    };
    format!(
        "ROW({}, {}, {body}, {}, {}, {}, {})::{schema}.inbox_arrival",
        dedup_id_arguments(arrival.dedup_id),
        literal(&arrival.queue),
        literal(&arrival.address),
        literal(arrival.lane.name()),
        arrival.offset.map_or_else(|| "NULL".to_owned(), |place| place.to_string()),
        i32::try_from(arrival.attempts).unwrap_or(i32::MAX),
    )
}

fn failure_arguments(failure: &InboxFailure) -> String {
    let (stop, after) = match failure.action {
        InboxFailureAction::Postpone { after } => ("wait", millis(after)),
        InboxFailureAction::Retry { after } => ("retry", millis(after)),
        InboxFailureAction::DeadLetter(AfterDead::Hold) => ("dead_hold", 0),
        InboxFailureAction::DeadLetter(AfterDead::Continue) => ("dead_continue", 0),
    };
    format!(
        "'{stop}', {after}, {}, {}, {}, {}",
        i32::try_from(failure.attempts).unwrap_or(i32::MAX),
        literal(failure.class),
        literal(&failure.error),
        optional_literal(failure.backtrace.as_deref()),
    )
}

fn dedup_id_arguments(entry: DedupId) -> String {
    format!("'{}', {}", entry.id, entry.replay)
}

fn lane_arguments(lane: Option<&LaneLease>) -> String {
    lane.map_or_else(
        || "NULL, NULL, NULL".to_owned(),
        |lease| format!("{}, {}, '{}'", literal(lease.lane.name()), lease.epoch, lease.owner),
    )
}

fn token_argument(claim: Option<CallClaim>) -> String {
    claim.map_or_else(|| "NULL".to_owned(), |claim| format!("'{}'", claim.token))
}
