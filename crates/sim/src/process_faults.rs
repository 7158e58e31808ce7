//! What the scenarios of both worlds have: faults of processes, and what becomes of dead letters.

use std::time::Duration;

/// Faults of relays, or of members of a consumer.
#[derive(Clone, Debug, Default)]
pub struct ProcessFaults {
    /// The maximum time before a fault. `None` means no faults.
    pub lifetime_max: Option<Duration>,
    /// How many of a thousand faults are kills.
    pub killed_permille: u64,
    /// How many of a thousand faults are pauses. The rest are orderly stops.
    pub paused_permille: u64,
}

/// The treatment of dead letters at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeadLetterEnding {
    /// The cause is fixed, and they are redriven.
    Redrive,
    /// They are discarded.
    Discard,
    /// They stay, with the messages that wait behind them.
    Leave,
}
