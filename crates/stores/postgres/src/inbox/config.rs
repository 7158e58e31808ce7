//! How handlers reach an inbox.

use std::time::Duration;

use sqlx::postgres::PgConnectOptions;

use crate::config::Schema;

/// How an inbox is reached, and what its transactions wait for.
///
/// The inbox prepares no statements. Behind a pooler in transaction mode handlers must not either: their queries say
/// `persistent(false)`, and they emit through [`Outbox::unprepared`](crate::Outbox::unprepared).
#[derive(Clone, Debug)]
pub struct Config {
    /// The database.
    pub connect: PgConnectOptions,
    /// Where the inbox is.
    pub schema: Schema,
    /// Handlers' transactions that may be open at once, each on a connection of its own. Somewhat more than the consumer's
    /// concurrency: the connection of a handler that was ended is used until its transaction is rolled back.
    pub handlers_max: u32,
    /// Connections for everything else: claims, setbacks, due queues.
    pub calls_max: u32,
    /// How long a message waits for another worker's transaction until it is busy. Handlers' own statements wait as their
    /// session says.
    pub lock_timeout: Duration,
    /// The server ends a handler's transaction if one of its statements runs, or nothing happens in it, for so long: its locks
    /// keep the lane from everybody. Longer than any handler may take. Zero for never; a session with a
    /// `statement_timeout` or `idle_in_transaction_session_timeout` of its own keeps it.
    pub stall_deadline: Duration,
    /// No call takes longer.
    pub call_deadline: Duration,
}

impl Config {
    /// The defaults: schema `relevo`, twenty handlers at once, waits of 100 ms, transactions that stand still for five minutes at
    /// most, calls of at most five seconds.
    pub fn new(connect: PgConnectOptions) -> Self {
        Self {
            connect,
            schema: Schema::default(),
            handlers_max: 20,
            calls_max: 4,
            lock_timeout: Duration::from_millis(100),
            stall_deadline: Duration::from_mins(5),
            call_deadline: Duration::from_secs(5),
        }
    }
}
