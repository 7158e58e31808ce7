//! P6: a handler's effect happens once, and the broker keeps the message until then.

use std::collections::{BTreeMap, BTreeSet};

use uuid::Uuid;

use super::{Events, violation_of};
use crate::history::MessageName;
use crate::inbox::event::{Case, Event};
use crate::run_result::Violation;

/// Nothing happens for a message that was never published, or in a replay that it was not added to.
pub(super) fn only_published_messages(events: Events<'_>) -> Option<Violation> {
    let mut published: BTreeSet<&MessageName> = BTreeSet::new();
    let mut enqueued: BTreeSet<&Case> = BTreeSet::new();
    for (_, event) in events {
        match event {
            Event::Published { name, .. } => {
                published.insert(name);
            }
            Event::ReplayEnqueued(case) => {
                enqueued.insert(case);
            }
            Event::Effect(case) | Event::Skipped(case) | Event::FailureRecorded { case, .. } => {
                if !published.contains(&case.name) {
                    return Some(violation_of("P6", case, format!("{case} was never published")));
                }
                if case.replay > 0 && !enqueued.contains(case) {
                    return Some(violation_of("P6", case, format!("{case} was never enqueued for its replay")));
                }
            }
            _ => {}
        }
    }
    None
}

/// An acknowledged message was handled, or the inbox stores it.
pub(super) fn acknowledged_after_commit(events: Events<'_>) -> Option<Violation> {
    let mut stored: BTreeSet<&Case> = BTreeSet::new();
    for (_, event) in events {
        match event {
            Event::Effect(case)
            | Event::Skipped(case)
            | Event::QueuedBehind(case)
            | Event::FailureRecorded { case, .. } => {
                stored.insert(case);
            }
            Event::Acknowledged(case) if !stored.contains(case) => {
                return Some(violation_of(
                    "P6",
                    case,
                    format!("{case} was acknowledged before a result was committed"),
                ));
            }
            _ => {}
        }
    }
    None
}

/// One effect, or one decision to skip, for each message at each consumer in each replay.
pub(super) fn happen_once(events: Events<'_>) -> Option<Violation> {
    let mut handled: BTreeSet<&Case> = BTreeSet::new();
    let mut redriven: BTreeSet<&Case> = BTreeSet::new();
    for (_, event) in events {
        match event {
            Event::Redriven(case) => {
                redriven.insert(case);
            }
            Event::Effect(case) | Event::Skipped(case) if !handled.insert(case) => {
                let promise = if redriven.contains(case) { "P7" } else { "P6" };
                return Some(violation_of(promise, case, format!("{case} was handled twice")));
            }
            _ => {}
        }
    }
    None
}

/// The calls to an external service for one message have one id, and no other message uses it.
pub(super) fn calls_keep_their_ids(events: Events<'_>) -> Option<Violation> {
    let mut ids: BTreeMap<&Case, Uuid> = BTreeMap::new();
    let mut owners: BTreeMap<Uuid, &Case> = BTreeMap::new();
    for (_, event) in events {
        let Event::CallStarted { case, id } = event else { continue };
        if *ids.entry(case).or_insert(*id) != *id {
            return Some(violation_of("P6", case, format!("the external service was called for {case} under two ids")));
        }
        let owner = *owners.entry(*id).or_insert(case);
        if owner != case {
            return Some(violation_of(
                "P6",
                case,
                format!("the external service was called for {case} under the id of {owner}"),
            ));
        }
    }
    None
}

/// Only one worker at a time calls an external service for a message.
pub(super) fn one_call_at_a_time(events: Events<'_>) -> Option<Violation> {
    let mut open: BTreeMap<&Case, u32> = BTreeMap::new();
    for (_, event) in events {
        match event {
            Event::CallStarted { case, .. } => {
                let calls = open.entry(case).or_default();
                *calls += 1;
                if *calls > 1 {
                    return Some(violation_of("P6", case, format!("two workers called for {case} at the same time")));
                }
            }
            Event::CallEnded(case) => {
                open.entry(case).and_modify(|calls| *calls = calls.saturating_sub(1));
            }
            _ => {}
        }
    }
    None
}
