//! Oracles that check the promises. They use only the history.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytestring::ByteString;
use relevo_core::MessageId;

use crate::history::{MessageName, fingerprint_of};
use crate::outbox::event::{Dead, Event, LeaseRef};
use crate::outbox::scenario::Scenario;
use crate::outbox::world::{Record, dead_lettered};
use crate::outbox::writers::BrokerBehaviour;
use crate::run_result::{Violation, violation};

/// The maximum time for a message in a calm run, independent of other keys.
pub const DELIVERY_TIME_MAX: Duration = Duration::from_secs(15);

type Events<'a> = &'a [(Duration, Event)];

/// Returns the broken promises, one violation each. The one nearest to the cause comes first.
pub fn check_promises(record: &Record) -> Vec<Violation> {
    let events = &record.events;
    [
        relays_keep_running(events),
        a_lost_lease_settles_nothing(events),
        outages_do_not_count(events, record.scenario.attempts_max),
        only_committed_messages(events),
        bytes_and_marks(record),
        everything_arrives(record),
        in_commit_order(record),
        other_keys_flow(events, &record.scenario),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// A relay ends only on request.
fn relays_keep_running(events: Events<'_>) -> Option<Violation> {
    events.iter().find_map(|(_, event)| match event {
        Event::Relay { text: text @ ("panicked" | "stopped by itself"), .. } => {
            Some(violation("P1", None, format!("a relay {text}")))
        }
        _ => None,
    })
}

/// P8: every write happens under the newest lease of its shard.
fn a_lost_lease_settles_nothing(events: Events<'_>) -> Option<Violation> {
    let mut current: BTreeMap<u16, LeaseRef> = BTreeMap::new();
    for (_, event) in events {
        match event {
            Event::LeaseTaken(lease) => {
                // Resharding revokes every lease.
                current.retain(|_, other| other.shard_count == lease.shard_count);
                current.insert(lease.shard, *lease);
            }
            Event::LeaseReleased(lease) if current.get(&lease.shard) == Some(lease) => {
                current.remove(&lease.shard);
            }
            Event::Wrote { lease, text } if current.get(&lease.shard) != Some(lease) => {
                return Some(violation("P8", None, format!("a relay {text} under a lease that it had lost ({lease})")));
            }
            _ => {}
        }
    }
    None
}

/// P5: only rejections of the message itself count as attempts, and only those dead-letter it.
fn outages_do_not_count(events: Events<'_>, attempts_max: u32) -> Option<Violation> {
    let mut counted: BTreeMap<MessageId, u32> = BTreeMap::new();
    let mut poison = BTreeSet::new();
    for (_, event) in events {
        match event {
            Event::Refused { name, class: "transient" } => *counted.entry(name.id).or_default() += 1,
            Event::Refused { name, class: "poison" } => {
                *counted.entry(name.id).or_default() += 1;
                poison.insert(name.id);
            }
            Event::Parked { name, attempts, dead, .. } => {
                let refusals = counted.get(&name.id).copied().unwrap_or_default();
                if *attempts > refusals {
                    let sentence = format!("{name} has {attempts} attempts counted and was refused {refusals} times");
                    return Some(violation("P5", Some(name), sentence));
                }
                if dead.is_some() && !poison.contains(&name.id) && refusals < attempts_max {
                    let sentence = format!("{name} was dead-lettered after {refusals} refusals of {attempts_max}");
                    return Some(violation("P5", Some(name), sentence));
                }
            }
            _ => {}
        }
    }
    None
}

/// P2: only committed messages arrive, and no cancelled ones.
fn only_committed_messages(events: Events<'_>) -> Option<Violation> {
    let mut committed = BTreeSet::new();
    let mut cancelled = BTreeSet::new();
    for (_, event) in events {
        match event {
            Event::Committed { name, .. } => {
                committed.insert(name.id);
            }
            Event::Cancelled(name) => {
                cancelled.insert(name.id);
            }
            Event::Received { name, .. } if cancelled.contains(&name.id) => {
                return Some(violation("P2", Some(name), format!("{name} was received although it was cancelled")));
            }
            Event::Received { name, .. } if !committed.contains(&name.id) => {
                return Some(violation("P2", Some(name), format!("{name} was received although it was not committed")));
            }
            _ => {}
        }
    }
    None
}

/// P7: the bytes are those of the writer, and a repeated mark counts once.
fn bytes_and_marks(record: &Record) -> Option<Violation> {
    let mut payloads = BTreeMap::new();
    for (_, event) in &record.events {
        match event {
            Event::Committed { name, bytes, .. } => {
                payloads.insert(name.id, *bytes);
            }
            Event::Received { name, bytes, .. } if payloads.get(&name.id).is_some_and(|own| own != bytes) => {
                return Some(violation("P7", Some(name), format!("{name} was received with other bytes")));
            }
            Event::MarkedTwice(name) => {
                return Some(violation("P7", Some(name), format!("two requests marked {name} twice")));
            }
            Event::QueuedTwice(name) => {
                return Some(violation("P7", Some(name), format!("{name} is twice in its key's queue")));
            }
            _ => {}
        }
    }
    let changed =
        record.dead_letters.iter().filter_map(|dead_letter| dead_letter.content.outbox_message()).find(|message| {
            payloads.get(&message.id).is_some_and(|bytes| *bytes != fingerprint_of(&message.payload))
        })?;
    let name = MessageName::of(changed);
    Some(violation("P7", Some(&name), format!("the dead letter {name} has other bytes than were committed")))
}

/// Committed messages that were neither received nor dead-lettered nor cancelled.
pub(crate) fn undelivered(events: Events<'_>, dead_lettered: &BTreeSet<MessageId>) -> Vec<MessageName> {
    let mut open: BTreeMap<MessageId, &MessageName> = BTreeMap::new();
    let mut order = Vec::new();
    for (_, event) in events {
        match event {
            Event::Committed { name, .. } => {
                open.insert(name.id, name);
                order.push(name);
            }
            Event::Received { name, .. } | Event::Cancelled(name) | Event::Marked { name, discard: true } => {
                open.remove(&name.id);
            }
            _ => {}
        }
    }
    let is_open = |name: &&&MessageName| open.contains_key(&name.id) && !dead_lettered.contains(&name.id);
    order.iter().filter(is_open).map(|name| (*name).clone()).collect()
}

/// P1: every committed message is received in the end, or is visible to an operator.
fn everything_arrives(record: &Record) -> Option<Violation> {
    let missing = undelivered(&record.events, &dead_lettered(&record.dead_letters, &record.parked));
    let first = missing.first()?;
    let parked = record.parked.iter().find(|key| *key.key == *first.key);
    let state = parked.map_or_else(
        || "it is in no table".to_owned(),
        |key| {
            let subject = if key.queue.iter().any(|entry| entry.message.id == first.id) { "it" } else { "its key" };
            format!("{subject} is parked: {:?}, {} wait", key.state, key.queue.len())
        },
    );
    let count = missing.len();
    let sentence = format!("{count} committed messages were never received, the first is {first}; {state}");
    Some(violation("P1", Some(first), sentence))
}

/// P3: first receipts of one key's messages follow commit order.
fn in_commit_order(record: &Record) -> Option<Violation> {
    let orders = orders(record);
    let excepted = exempt(&record.events);
    let mut next: BTreeMap<&ByteString, usize> = BTreeMap::new();
    let mut received = BTreeSet::new();
    for (_, event) in &record.events {
        let Event::Received { name, .. } = event else { continue };
        let Some(order) = orders.get(&name.key) else { continue };
        if !received.insert(name.id) || excepted.contains(&name.id) {
            continue;
        }
        let next = next.entry(&name.key).or_default();
        while order.get(*next).is_some_and(|id| received.contains(id) || excepted.contains(id)) {
            *next += 1;
        }
        let Some(index) = order.iter().position(|id| *id == name.id) else { continue };
        if let Some(earlier) = order.get(*next).filter(|_| *next < index) {
            let earlier = MessageName { id: *earlier, key: name.key.clone() };
            let sentence = format!("{name} was received before {earlier}, which was committed before it");
            return Some(violation("P3", Some(name), sentence));
        }
    }
    None
}

/// Each key's messages in the promised order.
fn orders(record: &Record) -> BTreeMap<ByteString, Vec<MessageId>> {
    let mut orders: BTreeMap<ByteString, Vec<MessageId>> = BTreeMap::new();
    let plan = |key: &str| record.scenario.keys.iter().find(|plan| plan.name == key);
    for (_, event) in &record.events {
        if let Event::Committed { name, .. } = event
            && plan(&name.key).is_some_and(|plan| plan.locked)
        {
            orders.entry(name.key.clone()).or_default().push(name.id);
        }
    }
    // A scheduled message gets its position in the order when it enters the log.
    for name in record.entered.iter().filter(|name| plan(&name.key).is_some_and(|plan| plan.scheduled)) {
        orders.entry(name.key.clone()).or_default().push(name.id);
    }
    orders
}

/// Messages that were discarded, or dead-lettered by a route whose keys continue.
fn exempt(events: Events<'_>) -> BTreeSet<MessageId> {
    let mut continuing = BTreeSet::new();
    let mut excepted = BTreeSet::new();
    for (_, event) in events {
        match event {
            Event::Committed { name, kind, topic, .. }
                if topic.starts_with("c.") && BrokerBehaviour::parse(kind) == BrokerBehaviour::Poison =>
            {
                continuing.insert(name.id);
            }
            // The relay may have died before it recorded the dead letter, and the next relay may find the broker fixed.
            Event::Refused { name, class: "poison" } if continuing.contains(&name.id) => {
                excepted.insert(name.id);
            }
            Event::Parked { name, dead: Some(Dead::Continue), .. } | Event::Marked { name, discard: true } => {
                excepted.insert(name.id);
            }
            _ => {}
        }
    }
    excepted
}

/// P4: in a calm run, a key without failures makes progress, independent of other keys.
fn other_keys_flow(events: Events<'_>, scenario: &Scenario) -> Option<Violation> {
    if !scenario.calm {
        return None;
    }
    let is_open = |address: &usize| {
        let plan = &scenario.addresses[*address];
        plan.blocked.is_empty() && plan.throttled.is_empty()
    };
    let clean = scenario
        .keys
        .iter()
        .filter(|key| key.failing_permille == 0 && !key.scheduled && key.addresses.iter().all(is_open));
    let clean: BTreeSet<&str> = clean.map(|key| key.name.as_str()).collect();
    let mut waiting = BTreeMap::new();
    let end = events.last().map_or(Duration::ZERO, |(at, _)| *at);
    for (at, event) in events {
        match event {
            Event::Committed { name, .. } if clean.contains(&*name.key) => {
                waiting.insert(name.id, (*at, name));
            }
            Event::Received { name, .. } => {
                if let Some((since, name)) = waiting.remove(&name.id)
                    && at.saturating_sub(since) > DELIVERY_TIME_MAX
                {
                    return Some(late_violation(name, at.saturating_sub(since)));
                }
            }
            _ => {}
        }
    }
    let (since, name) = waiting.values().next()?;
    Some(late_violation(name, end.saturating_sub(*since)))
}

fn late_violation(name: &MessageName, waited: Duration) -> Violation {
    violation("P4", Some(name), format!("{name} waited {waited:?} although its key had no failures"))
}
