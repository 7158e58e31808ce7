//! P6 and P7: the end of every message, and the final state.

use std::collections::{BTreeMap, BTreeSet};

use relevo_core::inbox::operate::Fate;

use super::{Events, broke, stopped};
use crate::history::Name;
use crate::inbox::event::{Case, Event};
use crate::inbox::publisher::bytes_of;
use crate::inbox::world::Record;
use crate::verdict::{Violation, broken};

/// P7: a dead letter has the published bytes and headers.
pub(super) fn dead_letters_keep_bytes(record: &Record) -> Option<Violation> {
    let published: BTreeMap<&Name, u64> = record
        .events
        .iter()
        .filter_map(|(_, event)| match event {
            Event::Published { name, bytes, .. } => Some((name, *bytes)),
            _ => None,
        })
        .collect();
    let (case, _) = record.letters.iter().find(|(case, letter)| {
        published.get(&case.name).is_some_and(|bytes| *bytes != bytes_of(&letter.arrival.raw))
    })?;
    Some(broke("P7", case, format!("the dead letter {case} has other bytes than were published")))
}

/// P7: a dead letter is redriven once, however many operators request it.
pub(super) fn redriven_once(events: Events<'_>) -> Option<Violation> {
    let mut dead: BTreeSet<&Case> = BTreeSet::new();
    for (_, event) in events {
        match event {
            Event::SetBack { case, dead: Some(_), .. } => {
                dead.insert(case);
            }
            Event::Redriven(case) | Event::Archived(case) if !dead.remove(case) => {
                return Some(broke("P7", case, format!("{case} was redriven or archived and was no dead letter")));
            }
            _ => {}
        }
    }
    None
}

/// P6: every message has its effect at every consumer, or is skipped, or an operator can see why not.
pub(super) fn everything_ends(record: &Record) -> Option<Violation> {
    let expected = expected(record);
    let ended: BTreeSet<&Case> = record
        .events
        .iter()
        .filter_map(|(_, event)| match event {
            Event::Effect(case) | Event::Skipped(case) => Some(case),
            _ => None,
        })
        .collect();
    let dead: BTreeSet<&Case> =
        record.letters.iter().filter(|(_, letter)| letter.fate != Fate::Replayed).map(|(case, _)| case).collect();
    if let Some(both) = dead.iter().find(|case| ended.contains(**case)) {
        return Some(broke("P6", both, format!("{both} was handled and is a dead letter")));
    }
    let missing: Vec<&Case> = expected.iter().filter(|case| !ended.contains(case) && !dead.contains(case)).collect();
    let lost: Vec<&Case> = missing.iter().copied().filter(|case| !is_held(record, case)).collect();
    if let Some(first) = lost.first() {
        let count = lost.len();
        let sentence = format!("{count} messages were never handled and nobody knows of them, the first is {first}");
        return Some(broke("P6", first, sentence));
    }
    let held: u64 = record.shown.iter().flatten().map(|shown| shown.consumer.waiting).sum();
    if held != missing.len() as u64 {
        let sentence = format!("{held} messages wait behind dead letters, and {} are missing", missing.len());
        return Some(broken("P6", missing.first().map(|case| &case.name), sentence));
    }
    None
}

/// Every message at every consumer, and every message added to a replay that was not stopped.
fn expected(record: &Record) -> Vec<Case> {
    let mut expected = Vec::new();
    let stopped = stopped(&record.events);
    for (_, event) in &record.events {
        match event {
            Event::Published { name, .. } => {
                let consumers = 0..record.scenario.consumers.len();
                expected.extend(consumers.map(|consumer| Case { consumer, replay: 0, name: name.clone() }));
            }
            Event::Fed(case) if !stopped.contains(&(case.consumer, case.replay)) => expected.push(case.clone()),
            _ => {}
        }
    }
    expected
}

/// Whether its key waits for an operator.
fn is_held(record: &Record, case: &Case) -> bool {
    let queues = record.shown[case.consumer].iter().flat_map(|shown| &shown.queues);
    queues.into_iter().any(|queue| queue.queue == case.name.key && queue.next_attempt_at.is_none())
}

/// At the end nothing waits, no member owns a lane, and the ledger matches the history.
pub(super) fn comes_to_rest(record: &Record) -> Option<Violation> {
    if let Some(first) = record.left.first() {
        return Some(broken("P6", None, format!("{} things are left undone: {first}", record.left.len())));
    }
    for (consumer, shown) in record.shown.iter().enumerate() {
        let Some(shown) = shown else { continue };
        if shown.consumer.members > 0 {
            return Some(broken("P6", None, format!("members of c{consumer} are counted as alive after they left")));
        }
    }
    let effects = record.events.iter().filter(|(_, event)| matches!(event, Event::Effect(_))).count();
    (effects != record.ledger)
        .then(|| broken("P6", None, format!("{effects} effects were committed, and {} are there", record.ledger)))
}
