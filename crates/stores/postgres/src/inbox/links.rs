//! The connections of an inbox: some for handlers' transactions, some for calls.

use std::sync::Arc;
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions, PgRow};
use sqlx::{AssertSqlSafe, Postgres};
use tokio::time::timeout;

use super::config::Config;
use super::handling::{Handling, Transaction};
use crate::classify::Error;
use crate::link::Link;

/// What stands before every call: later statements of a function must see what others committed meanwhile, whatever the
/// database's default is.
const READ_COMMITTED: &str = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED;";

/// The connections of one process to the inboxes of one schema.
pub(super) struct Links {
    handling: Arc<Handling>,
    calling: PgPool,
    /// Heartbeats wait for nothing else.
    beating: Link,
    deadline: Duration,
}

impl Links {
    /// Connects when it is first used.
    pub(super) fn new(config: &Config) -> Self {
        Self {
            handling: Arc::new(Handling::new(config.connect.clone(), config.handlers_max)),
            calling: pool(config, config.calls_max).connect_lazy_with(config.connect.clone()),
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
        let work = async {
            let mut connection = Busy(Some(self.calling.acquire().await?));
            let statement = AssertSqlSafe(format!("{READ_COMMITTED} {sql}"));
            let result = sqlx::raw_sql(statement).fetch_all(&mut **connection.get()).await.map_err(Error::from);
            if result.as_ref().err().is_none_or(Error::keeps_connection) {
                connection.done();
            }
            result
        };
        self.within(work).await
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

fn pool(config: &Config, most: u32) -> PgPoolOptions {
    PgPoolOptions::new().min_connections(0).max_connections(most.max(1)).acquire_timeout(config.call_deadline)
}

fn beating(options: PgConnectOptions, deadline: Duration) -> Link {
    Link::new(options, deadline)
}

/// A connection in the middle of a call: unless that ends well it is closed, not used again.
struct Busy(Option<PoolConnection<Postgres>>);

impl Busy {
    fn get(&mut self) -> &mut PoolConnection<Postgres> {
        self.0.as_mut().expect("it is taken out only when done or dropped")
    }

    fn done(mut self) {
        self.0.take();
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        if let Some(mut connection) = self.0.take() {
            connection.close_on_drop();
        }
    }
}
