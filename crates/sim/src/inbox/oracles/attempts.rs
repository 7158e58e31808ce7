//! P5: only failures of the handler count, and a dead-lettered message had all attempts of its policy.

use std::collections::BTreeMap;

use super::violation_of;
use crate::inbox::event::{Case, Event};
use crate::inbox::world::Record;
use crate::run_result::Violation;

/// The attempts of a message since its last redrive.
#[derive(Default)]
struct Attempts {
    started: u32,
    outages: u32,
    failed: u32,
    /// The number of deliveries by the broker, including repeats of the relay.
    deliveries: u32,
    /// How often another message of its key was redriven while it may have been tried.
    unrecorded: u32,
}

/// Classes that dead-letter a message at once.
const DEAD_AT_ONCE: [&str; 4] = ["poison", "undecodable", "expired", "crash"];

/// Attempts are tries during which the external service was up. No message is dead-lettered before it had all of them.
pub(super) fn only_failures_count(record: &Record) -> Option<Violation> {
    let mut tries: BTreeMap<&Case, Attempts> = BTreeMap::new();
    for (_, event) in &record.events {
        let Some(case) = event.case() else { continue };
        let plan = &record.scenario.consumers[case.consumer];
        let tries = tries.entry(case).or_default();
        match event {
            Event::AttemptStarted(_) => tries.started += 1,
            Event::HandlerReturned { result: "outage", .. } => tries.outages += 1,
            Event::Redriven(_) => *tries = Attempts::default(),
            Event::FailureRecorded { attempts, class, dead, .. } => {
                let max = tries.started - tries.outages;
                if *attempts > max {
                    let sentence = format!("{case} has {attempts} attempts counted and was tried {max} times");
                    return Some(violation_of("P5", case, sentence));
                }
                let needed = plan.config.retry.durable.attempts_max;
                if dead.is_some() && !DEAD_AT_ONCE.contains(class) && *attempts < needed {
                    let sentence = format!("{case} was dead-lettered after {attempts} attempts of {needed}");
                    return Some(violation_of("P5", case, sentence));
                }
            }
            _ => {}
        }
    }
    None
}

/// No message has more attempts than its policy allows. If no process dies, it is not even tried more often.
pub(super) fn no_more_than_the_policy_has(record: &Record) -> Option<Violation> {
    let mut tries: BTreeMap<&Case, Attempts> = BTreeMap::new();
    for (_, event) in &record.events {
        let Some(case) = event.case() else { continue };
        if let Event::Redriven(_) = event {
            tries.remove(case);
            // The redriven message is now the first one. A member that tries a message behind it cannot record its
            // result.
            let behind = |other: &Case| other.consumer == case.consumer && other.name.key == case.name.key;
            tries.iter_mut().filter(|(other, _)| behind(other)).for_each(|(_, tries)| tries.unrecorded += 1);
            continue;
        }
        let plan = &record.scenario.consumers[case.consumer];
        let max = plan.config.retry.durable.attempts_max;
        let tries = tries.entry(case).or_default();
        match event {
            Event::Delivered { .. } => tries.deliveries += 1,
            Event::HandlerReturned { result: "retry" | "poison" | "panic" | "nothing", .. } => tries.failed += 1,
            Event::FailureRecorded { attempts, .. } if *attempts > max => {
                return Some(violation_of("P5", case, format!("{case} has {attempts} attempts, and its policy {max}")));
            }
            _ => {}
        }
        // A message that fails in a batch is tried again alone, which does not count. Each delivery has its own
        // in-memory tries.
        let is_exact =
            record.scenario.calm && plan.config.batch_max == 1 && !plan.retries_at_broker() && tries.deliveries <= 1;
        if is_exact && tries.failed > max + tries.unrecorded {
            return Some(violation_of(
                "P5",
                case,
                format!("{case} failed {} times, and its policy has {max}", tries.failed),
            ));
        }
    }
    None
}
