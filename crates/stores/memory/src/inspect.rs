//! Read access for tests and oracles.

use relevo_core::store::{DeadFilter, DeadLetter, Entry, Position};

use crate::leases::Shard;
use crate::outbox::{Outbox, lock};
use crate::parking::Waiting;

/// What a parked key waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyState {
    /// The time of its next attempt.
    Retrying,
    /// This held address.
    Held(String),
    /// The time of its next attempt, when it is sent alone.
    Quarantined,
    /// An operator.
    Dead,
}

/// A parked key.
#[derive(Clone, Debug)]
pub struct Parked {
    /// The key.
    pub key: String,
    /// What it waits for.
    pub state: KeyState,
    /// Counted attempts of its first message.
    pub attempts: u32,
    /// The waiting messages, in order.
    pub queue: Vec<Entry>,
}

impl Outbox {
    /// Every message ever committed to the log, in commit order, including those deleted by retention.
    pub fn committed(&self) -> Vec<Entry> {
        lock(self.state()).log.history.clone()
    }

    /// The retained messages of the log, in sequence order.
    pub fn kept(&self) -> Vec<Entry> {
        let state = lock(self.state());
        let rows = state.log.rows.values().filter(|row| state.log.is_committed(row));
        rows.map(|row| row.entry.clone()).collect()
    }

    /// The number of scheduled messages.
    pub fn scheduled(&self) -> usize {
        lock(self.state()).scheduled.len()
    }

    /// The parked keys of a destination, ordered by slot and key. Empty if the destination does not exist.
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

    /// The dead letters of a destination in any state, the oldest message first.
    pub fn dead(&self, destination: &str) -> Vec<DeadLetter> {
        let state = lock(self.state());
        let letters = state.destinations.get(destination);
        letters
            .map(|it| it.dead_letters(&DeadFilter::default(), usize::MAX, state.settings.started_at))
            .unwrap_or_default()
    }

    /// The positions of a destination's shards.
    pub fn progress(&self, destination: &str) -> Vec<Position> {
        let state = lock(self.state());
        let shards = state.destinations.get(destination).into_iter().flat_map(|it| &it.shards);
        shards.map(Shard::position).collect()
    }
}
