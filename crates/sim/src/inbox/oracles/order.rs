//! P6: a key's effects happen in the order of publication. P4: other keys make progress.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytestring::ByteString;

use super::{stopped_replays, violation_of};
use crate::inbox::behaviour::HandlerBehaviour;
use crate::inbox::event::{Case, Dead, Event};
use crate::inbox::world::Record;
use crate::run_result::Violation;

/// The maximum time for a message in a calm run, independent of other keys.
const HANDLING_TIME_MAX: Duration = Duration::from_secs(15);

/// A key at one consumer, in one replay.
type OrderedStream<'a> = (usize, u32, &'a ByteString);

/// The effects of an ordered consumer's key happen in the order in which its messages were published or added.
pub(super) fn as_published(record: &Record) -> Option<Violation> {
    let orders = orders(record);
    let excepted = exempt(record);
    let mut next: BTreeMap<OrderedStream<'_>, usize> = BTreeMap::new();
    let mut handled: BTreeSet<&Case> = BTreeSet::new();
    for (_, event) in &record.events {
        let (Event::Effect(case) | Event::Skipped(case)) = event else { continue };
        let line = (case.consumer, case.replay, &case.name.key);
        let Some(order) = orders.get(&line) else { continue };
        if !handled.insert(case) || excepted.contains(case) {
            continue;
        }
        let next = next.entry(line).or_default();
        while order.get(*next).is_some_and(|case| handled.contains(case) || excepted.contains(case)) {
            *next += 1;
        }
        let Some(index) = order.iter().position(|other| other == case) else { continue };
        if let Some(earlier) = order.get(*next).filter(|_| *next < index) {
            let sentence = format!("{case} was handled before {earlier}, which was published before it");
            return Some(violation_of("P6", case, sentence));
        }
    }
    None
}

/// Each key's messages in the promised order.
fn orders(record: &Record) -> BTreeMap<OrderedStream<'_>, Vec<Case>> {
    let mut orders: BTreeMap<OrderedStream<'_>, Vec<Case>> = BTreeMap::new();
    let ordered: Vec<usize> =
        (0..record.scenario.consumers.len()).filter(|number| record.scenario.consumers[*number].ordered).collect();
    for (_, event) in &record.events {
        match event {
            Event::Published { name, .. } => {
                for consumer in &ordered {
                    let case = Case { consumer: *consumer, replay: 0, name: name.clone() };
                    orders.entry((*consumer, 0, &name.key)).or_default().push(case);
                }
            }
            Event::ReplayEnqueued(case) if ordered.contains(&case.consumer) => {
                orders.entry((case.consumer, case.replay, &case.name.key)).or_default().push(case.clone());
            }
            _ => {}
        }
    }
    orders
}

/// Messages that were archived, or dead-lettered so that others could continue, and messages that a stopped replay did
/// not reach.
fn exempt(record: &Record) -> BTreeSet<&Case> {
    let mut excepted = BTreeSet::new();
    let mut unfinished: BTreeSet<&Case> = BTreeSet::new();
    for (_, event) in &record.events {
        match event {
            Event::FailureRecorded { case, dead: Some(Dead::Continue), .. } | Event::Discarded(case) => {
                excepted.insert(case);
            }
            Event::ReplayEnqueued(case) => {
                unfinished.insert(case);
            }
            Event::Effect(case) | Event::Skipped(case) => {
                unfinished.remove(case);
            }
            _ => {}
        }
    }
    let stopped = stopped_replays(&record.events);
    excepted.extend(unfinished.into_iter().filter(|case| stopped.contains(&(case.consumer, case.replay))));
    excepted
}

/// P4: in a calm run, a key without failures makes progress, independent of other keys.
pub(super) fn other_keys_progress(record: &Record) -> Option<Violation> {
    let scenario = &record.scenario;
    if !scenario.calm {
        return None;
    }
    let flows = |consumer: usize, key: &ByteString| {
        let plan = &scenario.consumers[consumer];
        let number = scenario.keys.iter().position(|plan| *plan.name == **key);
        let lane = number.map_or(0, |number| plan.lane_of(number));
        let roomy = plan.concurrency() >= 3 && plan.prefetch >= 8;
        roomy && !plan.outages.iter().any(|(outage_lane, _)| *outage_lane == lane)
    };
    let mut clean: BTreeSet<&ByteString> = BTreeSet::new();
    clean.extend(record.events.iter().filter_map(|(_, event)| match event {
        Event::Published { name, .. } => Some(&name.key),
        _ => None,
    }));
    for (_, event) in &record.events {
        if let Event::Published { name, kind, .. } = event
            && !HandlerBehaviour::parse(kind).is_plain()
        {
            clean.remove(&name.key);
        }
    }
    let mut since: BTreeMap<Case, Duration> = BTreeMap::new();
    for (at, event) in &record.events {
        match event {
            Event::Published { name, .. } if clean.contains(&name.key) => {
                for consumer in (0..scenario.consumers.len()).filter(|consumer| flows(*consumer, &name.key)) {
                    since.insert(Case { consumer, replay: 0, name: name.clone() }, *at);
                }
            }
            Event::Effect(case) | Event::Skipped(case) => {
                let waited = since.remove(case).map_or(Duration::ZERO, |since| at.saturating_sub(since));
                if waited > HANDLING_TIME_MAX {
                    let sentence = format!("{case} waited {waited:?} although its key had no failures");
                    return Some(violation_of("P4", case, sentence));
                }
            }
            _ => {}
        }
    }
    None
}
