//! What tests and oracles look at.

use relevo_core::store::{DeadFilter, DeadLetter, Entry, Position};

use crate::leases::Shard;
use crate::outbox::{Outbox, lock};
use crate::parking::Waiting;

/// Why a parked key waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyState {
    /// For its time.
    Retrying,
    /// For this address.
    Held(String),
    /// For its time, to be sent alone.
    Quarantined,
    /// For a person.
    Dead,
}

/// A parked key.
#[derive(Clone, Debug)]
pub struct Parked {
    /// The key.
    pub key: String,
    /// Why it waits.
    pub state: KeyState,
    /// Counted attempts of its first message.
    pub attempts: u32,
    /// What waits, in order.
    pub queue: Vec<Entry>,
}

impl Outbox {
    /// Everything ever committed into the log, in commit order, what retention dropped included.
    pub fn committed(&self) -> Vec<Entry> {
        lock(self.state()).log.history.clone()
    }

    /// What the log still has of it, in sequence order.
    pub fn kept(&self) -> Vec<Entry> {
        let state = lock(self.state());
        let rows = state.log.rows.values().filter(|row| state.log.is_committed(row));
        rows.map(|row| row.entry.clone()).collect()
    }

    /// How many messages wait for their time.
    pub fn scheduled(&self) -> usize {
        lock(self.state()).scheduled.len()
    }

    /// A destination's parked keys, ordered by slot and key; none if there is no such destination.
    pub fn parked(&self, destination: &str) -> Vec<Parked> {
        let state = lock(self.state());
        let parked = state.destinations.get(destination).into_iter().flat_map(|it| &it.parked);
        parked
            .map(|(key, header)| Parked {
                key: key.name.to_string(),
                state: match &header.waiting {
                    Waiting::Retry => KeyState::Retrying,
                    Waiting::Address(address) => KeyState::Held(address.clone()),
                    Waiting::Quarantine => KeyState::Quarantined,
                    Waiting::Dead(_) => KeyState::Dead,
                },
                attempts: header.attempts,
                queue: header.queue.values().cloned().collect(),
            })
            .collect()
    }

    /// A destination's dead letters, whatever became of them, the oldest message first.
    pub fn dead(&self, destination: &str) -> Vec<DeadLetter> {
        let state = lock(self.state());
        let letters = state.destinations.get(destination);
        letters
            .map(|it| it.dead_letters(&DeadFilter::default(), usize::MAX, state.settings.started_at))
            .unwrap_or_default()
    }

    /// Where a destination's shards stand.
    pub fn progress(&self, destination: &str) -> Vec<Position> {
        let state = lock(self.state());
        let shards = state.destinations.get(destination).into_iter().flat_map(|it| &it.shards);
        shards.map(Shard::position).collect()
    }
}
