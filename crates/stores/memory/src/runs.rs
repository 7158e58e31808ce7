//! Runs: due messages of parked keys, and their results.

use std::collections::BTreeSet;

use relevo_core::slot::{shard_of, slot_of};
use relevo_core::store::{Advance, Advanced, Lease, Run, Stop, Stopped};

use crate::leases::Destination;
use crate::parking::{Header, Key, Waiting};
use crate::state::{Micros, micros};

impl Destination {
    pub(crate) fn due(&mut self, leases: &[Lease], keys: usize, messages: usize, now: Micros) -> Vec<Run> {
        let held = self.held_shards(leases);
        self.carry_out_marks(&held, now);
        let shards = self.count();
        let parked = self.parked.iter().filter(|(key, _)| held.contains(&shard_of(key.slot, shards)));
        let mut due: Vec<(&Key, &Header)> = parked.filter(|(_, header)| self.is_due(header, now)).collect();
        due.sort_by_key(|(key, header)| (header.due, *key));
        let mut probed = BTreeSet::new();
        due.retain(|(_, header)| match &header.waiting {
            // One probe per address, because while it is held the others would fail too.
            Waiting::Address(address) => probed.insert(address),
            Waiting::Retry | Waiting::Quarantine | Waiting::Dead(_) => true,
        });
        let due = due.into_iter().take(keys);
        due.map(|(key, header)| run(key, header, messages)).collect()
    }

    fn is_due(&self, header: &Header, now: Micros) -> bool {
        match &header.waiting {
            Waiting::Retry | Waiting::Quarantine => header.due <= now,
            Waiting::Address(address) => self.holds.get(address).is_none_or(|hold| hold.until <= now),
            Waiting::Dead(_) => false,
        }
    }

    pub(crate) fn advance(&mut self, advance: &Advance, now: Micros) -> Advanced {
        if !self.is_held(&advance.lease) {
            return Advanced::Lost;
        }
        if let Some(address) = &advance.released {
            self.release(address, now);
        }
        let key = Key { slot: slot_of(&advance.key), name: advance.key.clone() };
        let Some(mut header) = self.parked.remove(&key) else { return Advanced::Unparked };
        for number in &advance.delivered {
            header.queue.remove(number);
        }
        match &advance.stopped {
            Some((number, stopped)) => self.stop(&mut header, *number, stopped, now),
            None if !advance.delivered.is_empty() => header.go_on(now),
            // The result is unknown, as in an outage. The key keeps waiting as before.
            None => {}
        }
        if header.queue.is_empty() && !matches!(header.waiting, Waiting::Dead(_)) {
            return Advanced::Unparked;
        }
        self.parked.insert(key, header);
        Advanced::Waits
    }

    fn stop(&mut self, header: &mut Header, number: i64, stopped: &Stopped, now: Micros) {
        // A message that comes before the probe is due was not tried, so it does not delay the probe.
        if let Stop::Address { address, after } = &stopped.stop
            && self.holds.get(&**address).is_none_or(|hold| hold.until <= now)
        {
            self.hold(address, &stopped.error, now.saturating_add(micros(*after)));
        }
        let is_head = header.queue.keys().next() == Some(&number);
        match stopped.stop {
            Stop::DeadHold | Stop::DeadContinue => {
                let Some(entry) = header.queue.remove(&number) else { return };
                let seq = entry.seq;
                self.bury(entry, stopped, now);
                header.go_on(now);
                if stopped.stop == Stop::DeadHold {
                    header.stop(seq, stopped, now);
                }
            }
            Stop::Retry { .. } | Stop::Address { .. } | Stop::Quarantine { .. } if is_head => {
                header.stop(number, stopped, now);
            }
            // A redriven message is at the front now. It goes first, with its own attempt count.
            Stop::Retry { .. } | Stop::Address { .. } | Stop::Quarantine { .. } => header.go_on(now),
        }
    }
}

fn run(key: &Key, header: &Header, messages: usize) -> Run {
    // A probe or a quarantined message is sent alone.
    let (address, most) = match &header.waiting {
        Waiting::Address(address) => (Some(address.clone()), 1),
        Waiting::Quarantine => (None, 1),
        Waiting::Retry | Waiting::Dead(_) => (None, messages.max(1)),
    };
    Run {
        key: key.name.clone(),
        slot: key.slot,
        attempts: header.attempts,
        quarantined: header.waiting == Waiting::Quarantine,
        address,
        messages: header.queue.iter().take(most).map(|(number, entry)| (*number, entry.clone())).collect(),
    }
}
