//! How a relay is doing now, for whoever must tell a stuck one from one that waits.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The present of one relay; its [`Stats`](crate::Stats) are its past.
#[derive(Debug, Default)]
pub struct Watched {
    steps: AtomicU64,
    leases: AtomicU64,
    in_flight: AtomicU64,
    destination_away: AtomicBool,
    has_leased: AtomicBool,
    database_away: AtomicBool,
}

impl Watched {
    /// Steps that were begun. It grows for as long as the relay's loop turns, which it does at least once a lease,
    /// whatever is away.
    pub fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }

    /// Shards that it holds.
    pub fn leases(&self) -> u64 {
        self.leases.load(Ordering::Relaxed)
    }

    /// Messages that wait for their confirmation.
    pub fn in_flight(&self) -> u64 {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Whether the destination could not be reached when it was last tried.
    pub fn is_destination_away(&self) -> bool {
        self.destination_away.load(Ordering::Relaxed)
    }

    /// Whether the database could not be reached when it was last tried.
    pub fn is_database_away(&self) -> bool {
        self.database_away.load(Ordering::Relaxed)
    }

    /// Whether the database has ever answered this relay's request for leases.
    pub fn is_started(&self) -> bool {
        self.has_leased.load(Ordering::Relaxed)
    }

    pub(crate) fn step(&self, leases: usize, in_flight: usize, destination_up: bool) {
        self.steps.fetch_add(1, Ordering::Relaxed);
        self.leases.store(leases as u64, Ordering::Relaxed);
        self.in_flight.store(in_flight as u64, Ordering::Relaxed);
        self.destination_away.store(!destination_up, Ordering::Relaxed);
    }

    pub(crate) fn database_is(&self, there: bool) {
        self.database_away.store(!there, Ordering::Relaxed);
    }

    pub(crate) fn has_leased(&self) {
        self.has_leased.store(true, Ordering::Relaxed);
    }
}
