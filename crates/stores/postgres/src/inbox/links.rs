//! The connections of an inbox: some for handlers' transactions, some for calls.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sqlx::AssertSqlSafe;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgRow};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::config::Config;
use super::handling::{Handling, Transaction};
use crate::classify::Error;
use crate::link::{self, Link};

/// What stands before every call: later statements of a function must see what others committed meanwhile, whatever the
/// database's default is.
const READ_COMMITTED: &str = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED;";

/// The connections of one process to the inboxes of one schema.
pub(super) struct Links {
    handling: Arc<Handling>,
    calling: Calling,
    /// Heartbeats wait for nothing else.
    beating: Link,
    deadline: Duration,
}

impl Links {
    /// Connects when it is first used.
    pub(super) fn new(config: &Config) -> Self {
        Self {
            handling: Arc::new(Handling::new(config.connect.clone(), config.handlers_max, config.call_deadline)),
            calling: Calling::new(config.connect.clone(), config.calls_max, config.call_deadline),
            beating: beating(config.connect.clone(), config.call_deadline),
            deadline: config.call_deadline,
        }
    }

    /// A transaction for a handler, with the first thing that is said in it.
    pub(super) async fn begin(&self, sql: &str) -> Result<(Transaction, Vec<PgRow>), Error> {
        self.within(self.handling.begin(sql)).await
    }

    /// One statement in a handler's transaction, in the simple protocol.
    pub(super) async fn say(&self, tx: &mut Transaction, sql: String) -> Result<Vec<PgRow>, Error> {
        self.within(tx.say(sql)).await
    }

    pub(super) async fn commit(&self, tx: Transaction) -> Result<(), Error> {
        self.within(tx.commit()).await
    }

    /// Commits and begins the next; the outer error is the commit's.
    pub(super) async fn commit_and_begin(
        &self,
        tx: Transaction,
        sql: &str,
    ) -> Result<Result<(Transaction, Vec<PgRow>), Error>, Error> {
        self.within(tx.commit_and_begin(sql)).await
    }

    pub(super) async fn roll_back(&self, tx: Transaction) -> Result<(), Error> {
        self.within(tx.roll_back()).await
    }

    /// One statement as a transaction of its own, in one round trip, whatever pooler is in between.
    pub(super) async fn call(&self, sql: String) -> Result<Vec<PgRow>, Error> {
        self.within(self.calling.call(&format!("{READ_COMMITTED} {sql}"))).await
    }

    /// A heartbeat's statement, on a connection of its own.
    pub(super) async fn beat(&self, sql: &str) -> Result<Vec<PgRow>, Error> {
        self.beating.call(format!("{READ_COMMITTED} {sql}")).await
    }

    async fn within<T>(&self, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        timeout(self.deadline, work).await.map_err(|_| Error::Deadline(self.deadline))?
    }
}

/// A statement of its own that needs READ COMMITTED, for connections that are made elsewhere.
pub(super) fn read_committed(sql: &str) -> String {
    format!("{READ_COMMITTED} {sql}")
}

fn beating(options: PgConnectOptions, deadline: Duration) -> Link {
    Link::new(options, deadline)
}

/// The connections of calls. A pool of its own, because that of sqlx pings a connection when it is taken and again when it
/// is returned: three round trips for one call.
struct Calling {
    options: PgConnectOptions,
    deadline: Duration,
    /// As many as there may be connections.
    permits: Semaphore,
    idle: Mutex<Vec<PgConnection>>,
}

impl Calling {
    /// Connects when it is first used.
    fn new(options: PgConnectOptions, most: u32, deadline: Duration) -> Self {
        Self { options, deadline, permits: Semaphore::new(most.max(1) as usize), idle: Mutex::default() }
    }

    /// One statement. A connection is taken out while it is in use: after a call that is cancelled it is closed.
    async fn call(&self, sql: &str) -> Result<Vec<PgRow>, Error> {
        let _permit = self.permits.acquire().await.expect("it is never closed");
        loop {
            let idle = self.lock().pop();
            let was_idle = idle.is_some();
            let mut connection = match idle {
                Some(connection) => connection,
                None => link::connect(&self.options, self.deadline).await?,
            };
            let result = sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).fetch_all(&mut connection).await;
            match result.map_err(Error::from) {
                // The server ended the session while nobody used it: the statement was not run.
                Err(error) if was_idle && error.is_session_end() => {}
                Err(error) if !error.keeps_connection() => {
                    // Whatever broke this one has mostly broken the others.
                    self.lock().clear();
                    return Err(error);
                }
                result => {
                    self.lock().push(connection);
                    return result;
                }
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<PgConnection>> {
        // Nothing panics while it is held.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
