//! The names of the metrics of consumers. Alerts and dashboards use them: a name that was released does not change.
//!
//! The format adds `_total` to the names of counters.

/// Messages that the broker delivered, repeats included.
pub const RECEIVED: &str = "inbox_received";
/// What became of messages, by verdict.
pub const HANDLED: &str = "inbox_handled";
/// Tries that failed and were counted.
pub const FAILED: &str = "inbox_failed";
/// Of those, tries that panicked.
pub const PANICS: &str = "inbox_panics";
/// Of those, tries that passed their deadline.
pub const DEADLINES: &str = "inbox_deadlines";
/// Copies of dead letters that could not be published.
pub const COPIES_FAILED: &str = "inbox_copies_failed";
/// First deliveries that came behind a later message of their key.
pub const INVERSIONS: &str = "inbox_inversions";
/// Deliveries whose number had come before.
pub const REPEATS: &str = "inbox_repeats";
/// Times that the database was found away.
pub const DATABASE_AWAY: &str = "inbox_database_away";
/// Times that the broker was found away.
pub const BROKER_AWAY: &str = "inbox_broker_away";
/// How long tries of handlers took.
pub const HANDLER_DURATION: &str = "inbox_handler_duration_seconds";
/// Handlers that run.
pub const RUNNING: &str = "inbox_running";
/// Messages in memory.
pub const IN_MEMORY: &str = "inbox_in_memory";
/// Lanes whose breaker is open.
pub const BREAKERS_OPEN: &str = "inbox_breakers_open";
/// Messages that wait at the broker, by lane.
pub const LAG: &str = "inbox_lag_messages";
/// Since the last sign of life that the database took.
pub const BEAT_AGE: &str = "inbox_beat_age_seconds";
