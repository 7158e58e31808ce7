//! Handlers' transactions, and the connections that they are made of.
//!
//! A pool of its own, because every round trip counts here: BEGIN goes with the first statement, COMMIT with the check that
//! must go before it, and a connection that ended well is put back as it is.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::TryStreamExt as _;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgRow};
use sqlx::{AssertSqlSafe, Connection as _, Either};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::classify::Error;
use crate::link;

/// How long a transaction that was dropped may take to be rolled back; its connection counts as used until then.
const ROLLED_BACK_WITHIN: Duration = Duration::from_secs(30);

/// The server answers COMMIT in a transaction that an error has ended by rolling it back, and the client takes that for success:
/// so a statement goes first, which is refused there, and COMMIT is then not looked at.
const COMMIT: &str = "SELECT 1; COMMIT";
const COMMIT_STATEMENTS: u32 = 2;

/// The connections of handlers.
pub(super) struct Handling {
    options: PgConnectOptions,
    deadline: Duration,
    /// As many as there may be connections.
    permits: Arc<Semaphore>,
    idle: Mutex<Vec<PgConnection>>,
}

impl Handling {
    /// Connects when it is first used.
    pub(super) fn new(options: PgConnectOptions, most: u32, deadline: Duration) -> Self {
        let permits = Arc::new(Semaphore::new(most.max(1) as usize));
        Self { options, deadline, permits, idle: Mutex::default() }
    }

    /// Opens a transaction and says the first thing in it. An error that the server answers leaves nothing open.
    pub(super) async fn begin(self: &Arc<Self>, sql: &str) -> Result<(Transaction, Vec<PgRow>), Error> {
        let permit = Arc::clone(&self.permits).acquire_owned().await.expect("it is never closed");
        let sql = format!("BEGIN; {sql}");
        loop {
            let idle = self.lock().pop();
            let was_idle = idle.is_some();
            let mut connection = match idle {
                Some(connection) => connection,
                None => connect(&self.options, self.deadline).await?,
            };
            match say(&mut connection, sql.clone()).await {
                Ok(rows) => {
                    let open = Open { connection, permit };
                    return Ok((Transaction { open: Some(open), home: Arc::clone(self) }, rows));
                }
                // It broke while nobody used it, and nothing was done in it: another one may live.
                Err(error) if was_idle && !error.keeps_connection() => {}
                Err(error) => {
                    if error.keeps_connection() {
                        say(&mut connection, "ROLLBACK".to_owned()).await?;
                        self.lock().push(connection);
                    }
                    return Err(error);
                }
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<PgConnection>> {
        // Nothing panics while it is held.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection on which sqlx counts a transaction as open, for as long as it lives: so a handler's own `begin` makes a
/// savepoint, and BEGIN and COMMIT are said as text.
async fn connect(options: &PgConnectOptions, deadline: Duration) -> Result<PgConnection, Error> {
    let mut connection = link::connect(options, deadline).await?;
    std::mem::forget(connection.begin().await?);
    say(&mut connection, "ROLLBACK".to_owned()).await?;
    Ok(connection)
}

/// In the simple protocol, which knows no prepared statements.
async fn say(connection: &mut PgConnection, sql: String) -> Result<Vec<PgRow>, Error> {
    Ok(sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(connection).await?)
}

/// The transaction that a handler works in.
///
/// It is sqlx's connection to a handler: `sqlx::query(…).execute(&mut **transaction)`. What the handler begins on it is a
/// savepoint. Dropped, it is rolled back.
pub struct Transaction {
    /// Until it has ended.
    open: Option<Open>,
    home: Arc<Handling>,
}

struct Open {
    connection: PgConnection,
    permit: OwnedSemaphorePermit,
}

impl Transaction {
    /// One more statement.
    pub(super) async fn say(&mut self, sql: String) -> Result<Vec<PgRow>, Error> {
        say(self, sql).await
    }

    pub(super) async fn commit(self) -> Result<(), Error> {
        self.end(COMMIT).await
    }

    /// Commits and begins the next, in one round trip. The outer error is the commit's.
    pub(super) async fn commit_and_begin(mut self, sql: &str) -> Result<Result<(Self, Vec<PgRow>), Error>, Error> {
        let statement = format!("{COMMIT}; BEGIN; {sql}");
        let (mut ended, mut rows) = (0, Vec::new());
        let mut answers = sqlx::raw_sql(AssertSqlSafe(statement)).fetch_many(&mut *self);
        let error = loop {
            match answers.try_next().await {
                Ok(Some(Either::Left(_))) => ended += 1,
                Ok(Some(Either::Right(row))) if ended >= COMMIT_STATEMENTS => rows.push(row),
                Ok(Some(Either::Right(_))) => {}
                Ok(None) => break None,
                Err(error) => break Some(Error::from(error)),
            }
        };
        drop(answers);
        match error {
            None => Ok(Ok((self, rows))),
            Some(error) if ended < COMMIT_STATEMENTS => Err(error),
            Some(error) => {
                if error.keeps_connection() {
                    self.roll_back().await.ok();
                }
                Ok(Err(error))
            }
        }
    }

    pub(super) async fn roll_back(self) -> Result<(), Error> {
        self.end("ROLLBACK").await
    }

    /// A connection that did not take this well is not used again.
    async fn end(mut self, sql: &str) -> Result<(), Error> {
        self.say(sql.to_owned()).await?;
        if let Some(Open { connection, permit }) = self.open.take() {
            self.home.lock().push(connection);
            drop(permit);
        }
        Ok(())
    }
}

impl Deref for Transaction {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.open.as_ref().expect("it is taken out only at the end").connection
    }
}

impl DerefMut for Transaction {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.open.as_mut().expect("it is taken out only at the end").connection
    }
}

impl fmt::Debug for Transaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Transaction")
    }
}

impl Drop for Transaction {
    /// Its connection may be in the middle of something: it is told to roll back, and closed.
    fn drop(&mut self) {
        let Some(Open { mut connection, permit }) = self.open.take() else { return };
        let Ok(runtime) = Handle::try_current() else { return };
        runtime.spawn(async move {
            // Whether or not the server can be told, what is not committed does not happen.
            _ = timeout(ROLLED_BACK_WITHIN, say(&mut connection, "ROLLBACK".to_owned())).await;
            drop((connection, permit));
        });
    }
}
