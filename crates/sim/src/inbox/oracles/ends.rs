//! P6 and P7: the end of every message, and the final state.

use std::collections::{BTreeMap, BTreeSet};

use relevo_core::dead_letters::DeadLetterState;

use super::{Events, stopped_replays, violation_of};
use crate::history::MessageName;
use crate::inbox::event::{Case, Event};
use crate::inbox::publisher::bytes_of;
use crate::inbox::world::Record;
use crate::run_result::{Violation, violation};

/// P7: a dead letter has the published bytes and headers.
pub(super) fn dead_letters_keep_bytes(record: &Record) -> Option<Violation> {
    let published: BTreeMap<&MessageName, u64> = record
        .events
        .iter()
        .filter_map(|(_, event)| match event {
            Event::Published { name, bytes, .. } => Some((name, *bytes)),
            _ => None,
        })
        .collect();
    let (case, _) = record.dead_letters.iter().find(|(case, dead_letter)| {
        let message = dead_letter.content.inbox_message();
        published.get(&case.name).is_some_and(|bytes| message.is_none_or(|message| *bytes != bytes_of(&message.raw)))
    })?;
    Some(violation_of("P7", case, format!("the dead letter {case} has other bytes than were published")))
}

/// P7: a dead letter is redriven once, even if several operators request it.
pub(super) fn redriven_once(events: Events<'_>) -> Option<Violation> {
    let mut dead: BTreeSet<&Case> = BTreeSet::new();
    for (_, event) in events {
        match event {
            Event::FailureRecorded { case, dead: Some(_), .. } => {
                dead.insert(case);
            }
            Event::Redriven(case) | Event::Discarded(case) if !dead.remove(case) => {
                return Some(violation_of(
                    "P7",
                    case,
                    format!("{case} was redriven or archived, but was no dead letter"),
                ));
            }
            _ => {}
        }
    }
    None
}

/// P6: every message has its effect at every consumer, or is skipped, or is visible to an operator.
pub(super) fn everything_ends(record: &Record) -> Option<Violation> {
    let expected = expected(record);
    let handled: BTreeSet<&Case> = record
        .events
        .iter()
        .filter_map(|(_, event)| match event {
            Event::Effect(case) | Event::Skipped(case) => Some(case),
            _ => None,
        })
        .collect();
    let dead: BTreeSet<&Case> = record
        .dead_letters
        .iter()
        .filter(|(_, dead_letter)| dead_letter.summary.state != DeadLetterState::Redriven)
        .map(|(case, _)| case)
        .collect();
    if let Some(both) = dead.iter().find(|case| handled.contains(**case)) {
        return Some(violation_of("P6", both, format!("{both} was handled and is a dead letter")));
    }
    let missing: Vec<&Case> = expected.iter().filter(|case| !handled.contains(case) && !dead.contains(case)).collect();
    let lost: Vec<&Case> = missing.iter().copied().filter(|case| !is_held(record, case)).collect();
    if let Some(first) = lost.first() {
        let count = lost.len();
        let sentence = format!("{count} messages were never handled and have no record, the first is {first}");
        return Some(violation_of("P6", first, sentence));
    }
    let waiting: u64 = record.consumers.iter().flatten().map(|details| details.summary.waiting).sum();
    if waiting != missing.len() as u64 {
        let sentence = format!("{waiting} messages wait behind dead letters, and {} are missing", missing.len());
        return Some(violation("P6", missing.first().map(|case| &case.name), sentence));
    }
    None
}

/// Every message at every consumer, and every message added to a replay that was not stopped.
fn expected(record: &Record) -> Vec<Case> {
    let mut expected = Vec::new();
    let stopped = stopped_replays(&record.events);
    for (_, event) in &record.events {
        match event {
            Event::Published { name, .. } => {
                let consumers = 0..record.scenario.consumers.len();
                expected.extend(consumers.map(|consumer| Case { consumer, replay: 0, name: name.clone() }));
            }
            Event::ReplayEnqueued(case) if !stopped.contains(&(case.consumer, case.replay)) => {
                expected.push(case.clone());
            }
            _ => {}
        }
    }
    expected
}

/// Whether its key waits for an operator.
fn is_held(record: &Record, case: &Case) -> bool {
    let queues = record.consumers[case.consumer].iter().flat_map(|details| &details.queues);
    queues.into_iter().any(|queue| queue.queue == case.name.key && queue.next_attempt_at.is_none())
}

/// At the end nothing waits, no member owns a lane, and the ledger matches the history.
pub(super) fn nothing_is_unfinished(record: &Record) -> Option<Violation> {
    if let Some(first) = record.unfinished.first() {
        return Some(violation("P6", None, format!("{} items are unfinished: {first}", record.unfinished.len())));
    }
    for (consumer, details) in record.consumers.iter().enumerate() {
        let Some(details) = details else { continue };
        if details.summary.members > 0 {
            return Some(violation("P6", None, format!("members of c{consumer} are counted as alive after they left")));
        }
    }
    let effects = record.events.iter().filter(|(_, event)| matches!(event, Event::Effect(_))).count();
    (effects != record.effects).then(|| {
        violation("P6", None, format!("{effects} effects were committed, and the ledger has {}", record.effects))
    })
}
