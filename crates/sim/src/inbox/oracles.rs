//! Oracles that check the promises. They use only the history and the final state.

mod attempts;
mod effects;
mod ends;
mod fences;
mod order;

use std::collections::BTreeSet;
use std::time::Duration;

use crate::inbox::event::{Case, Event};
use crate::inbox::world::Record;
use crate::run_result::{Violation, violation};

type Events<'a> = &'a [(Duration, Event)];

/// Returns the broken promises, one violation each. The one nearest to the cause comes first.
pub fn check_promises(record: &Record) -> Vec<Violation> {
    let events = &record.events;
    [
        members_keep_running(events),
        fences::a_lost_lane_writes_nothing(events),
        fences::a_lost_claim_writes_nothing(events),
        attempts::only_failures_count(record),
        attempts::no_more_than_the_policy_has(record),
        effects::only_published_messages(events),
        effects::acknowledged_after_commit(events),
        effects::happen_once(events),
        effects::calls_keep_their_ids(events),
        effects::one_call_at_a_time(events),
        ends::dead_letters_keep_bytes(record),
        ends::redriven_once(events),
        ends::everything_ends(record),
        order::as_published(record),
        ends::nothing_is_unfinished(record),
        order::other_keys_progress(record),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn violation_of(promise: &'static str, case: &Case, sentence: String) -> Violation {
    violation(promise, Some(&case.name), sentence)
}

/// Replays that were stopped and not resumed.
fn stopped_replays(events: Events<'_>) -> BTreeSet<(usize, u32)> {
    let mut stopped = BTreeSet::new();
    for (_, event) in events {
        match event {
            Event::ReplayStopped { consumer, replay } => {
                stopped.insert((*consumer, *replay));
            }
            Event::ReplayResumed { consumer, replay } => {
                stopped.remove(&(*consumer, *replay));
            }
            _ => {}
        }
    }
    stopped
}

/// A member ends only on request.
fn members_keep_running(events: Events<'_>) -> Option<Violation> {
    events.iter().find_map(|(_, event)| match event {
        Event::Member { consumer, text: text @ ("panicked" | "stopped by itself"), .. } => {
            Some(violation("P6", None, format!("a member of c{consumer} {text}")))
        }
        _ => None,
    })
}
