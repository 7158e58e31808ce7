//! P8: a member that has lost a lane or a claim can write nothing.

use std::collections::BTreeMap;

use super::Events;
use crate::inbox::event::{ClaimRef, Event, LaneRef};
use crate::run_result::{Violation, violation};

/// Every write under a lane comes from the last member that acquired it.
pub(super) fn a_lost_lane_writes_nothing(events: Events<'_>) -> Option<Violation> {
    let mut current: BTreeMap<(usize, &str), &LaneRef> = BTreeMap::new();
    for (_, event) in events {
        match event {
            Event::LaneAcquired(grant) => {
                current.insert((grant.consumer, &grant.lane), grant);
            }
            Event::WroteInLane(grant, what) if current.get(&(grant.consumer, &grant.lane)) != Some(&grant) => {
                return Some(violation("P8", None, format!("a member {what} under a lane that it had lost ({grant})")));
            }
            _ => {}
        }
    }
    None
}

/// Every write under the claim of a queue comes from the last member that claimed it.
pub(super) fn a_lost_claim_writes_nothing(events: Events<'_>) -> Option<Violation> {
    let mut current: BTreeMap<(usize, &str), &ClaimRef> = BTreeMap::new();
    for (_, event) in events {
        match event {
            Event::QueueClaimed(claim) => {
                current.insert((claim.consumer, &claim.queue), claim);
            }
            Event::WroteInQueue(claim, what) if current.get(&(claim.consumer, &*claim.queue)) != Some(&claim) => {
                return Some(violation(
                    "P8",
                    None,
                    format!("a member {what} under a claim that it had lost ({claim})"),
                ));
            }
            _ => {}
        }
    }
    None
}
