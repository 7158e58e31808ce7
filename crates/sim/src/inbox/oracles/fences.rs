//! P8: a member that has lost a lane or a claim can write nothing.

use std::collections::BTreeMap;

use super::Events;
use crate::inbox::event::{Claim, Event, Grant};
use crate::verdict::{Violation, broken};

/// Every write under a lane comes from the last member that acquired it.
pub(super) fn a_lost_lane_writes_nothing(events: Events<'_>) -> Option<Violation> {
    let mut current: BTreeMap<(usize, &str), &Grant> = BTreeMap::new();
    for (_, event) in events {
        match event {
            Event::Granted(grant) => {
                current.insert((grant.consumer, &grant.lane), grant);
            }
            Event::Wrote(grant, what) if current.get(&(grant.consumer, &grant.lane)) != Some(&grant) => {
                return Some(broken("P8", None, format!("a member {what} under a lane that it had lost ({grant})")));
            }
            _ => {}
        }
    }
    None
}

/// Every write under the claim of a queue comes from the last member that claimed it.
pub(super) fn a_lost_claim_writes_nothing(events: Events<'_>) -> Option<Violation> {
    let mut current: BTreeMap<(usize, &str), &Claim> = BTreeMap::new();
    for (_, event) in events {
        match event {
            Event::Claimed(claim) => {
                current.insert((claim.consumer, &claim.queue), claim);
            }
            Event::WroteClaimed(claim, what) if current.get(&(claim.consumer, &*claim.queue)) != Some(&claim) => {
                return Some(broken("P8", None, format!("a member {what} under a claim that it had lost ({claim})")));
            }
            _ => {}
        }
    }
    None
}
