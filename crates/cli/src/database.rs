//! Timeouts of calls to a database.

use std::time::Duration;

/// The timeout of a call.
pub(crate) const ANSWER_DEADLINE: Duration = Duration::from_mins(1);
/// The timeout of a call that rewrites or deletes whole tables.
pub(crate) const REWRITE_DEADLINE: Duration = Duration::from_hours(24);
