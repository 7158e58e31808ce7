//! The names of consumer metrics. Alerts and dashboards use them: a released name does not change.
//!
//! The format appends `_total` to the names of counters.

/// Messages that the broker delivered, including repeats.
pub const RECEIVED: &str = "inbox_received";
/// Finished messages, by verdict.
pub const HANDLED: &str = "inbox_handled";
/// Attempts that failed and were counted.
pub const FAILED: &str = "inbox_failed";
/// Failed attempts that panicked.
pub const PANICS: &str = "inbox_panics";
/// Failed attempts that exceeded their deadline.
pub const DEADLINES: &str = "inbox_deadlines";
/// Copies of dead letters that could not be published.
pub const COPIES_FAILED: &str = "inbox_copies_failed";
/// First deliveries that arrived after a later message of their key.
pub const INVERSIONS: &str = "inbox_inversions";
/// Deliveries whose number had arrived before.
pub const REPEATS: &str = "inbox_repeats";
/// Times that the database was found unreachable.
pub const DATABASE_AWAY: &str = "inbox_database_away";
/// Times that the broker was found unreachable.
pub const BROKER_AWAY: &str = "inbox_broker_away";
/// Duration of handler attempts.
pub const HANDLER_DURATION: &str = "inbox_handler_duration_seconds";
/// Handlers that are running.
pub const RUNNING: &str = "inbox_running";
/// Messages in memory.
pub const IN_MEMORY: &str = "inbox_in_memory";
/// Lanes whose breaker is open.
pub const BREAKERS_OPEN: &str = "inbox_breakers_open";
/// Messages that wait at the broker, by lane.
pub const LAG: &str = "inbox_lag_messages";
/// Time since the last heartbeat that the database accepted.
pub const BEAT_AGE: &str = "inbox_beat_age_seconds";
