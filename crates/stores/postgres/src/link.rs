//! One connection, made anew after it breaks.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::TryStreamExt;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgRow};
use sqlx::{AssertSqlSafe, ConnectOptions};
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::classify::Error;

/// A connection that serves one call at a time.
///
/// A call that fails because the connection broke says so; only the next one connects again, so that no break goes
/// unnoticed by the relay, which must then forget what it holds in memory.
pub(crate) struct Link {
    options: PgConnectOptions,
    deadline: Duration,
    connection: Mutex<Option<PgConnection>>,
}

impl Link {
    pub(crate) fn new(options: PgConnectOptions, deadline: Duration) -> Self {
        Self { options, deadline, connection: Mutex::new(None) }
    }

    /// One statement in the simple protocol: one round trip, whatever pooler is in between.
    pub(crate) async fn call(&self, sql: String) -> Result<Vec<PgRow>, Error> {
        let statement =
            async |connection: &mut PgConnection| Ok(sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(connection).await?);
        self.serve(Error::keeps_connection, statement).await
    }

    /// The answer of `COPY (…) TO STDOUT (FORMAT binary)`, whole. One that the server refuses costs the connection: the
    /// client leaves the end of the refusal unread, and would take it for the next answer.
    pub(crate) async fn copy(&self, query: String) -> Result<Bytes, Error> {
        let statement = format!("COPY ({query}) TO STDOUT (FORMAT binary)");
        let refused = |_: &Error| false;
        self.serve(refused, async |connection: &mut PgConnection| {
            let mut chunks = connection.copy_out_raw(&statement).await?;
            let mut whole = BytesMut::new();
            while let Some(chunk) = chunks.try_next().await? {
                whole.extend_from_slice(&chunk);
            }
            Ok(whole.freeze())
        })
        .await
    }

    async fn serve<T>(
        &self,
        keeps: impl Fn(&Error) -> bool,
        call: impl AsyncFnOnce(&mut PgConnection) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut guard = self.connection.lock().await;
        // Taken out while in use: a call that is cancelled in the middle leaves no half-read connection behind.
        let taken = guard.take();
        let work = async {
            let mut connection = match taken {
                Some(connection) => connection,
                None => self.options.connect().await?,
            };
            let result = call(&mut connection).await;
            Ok::<_, Error>((connection, result))
        };
        let (connection, result) = timeout(self.deadline, work).await.map_err(|_| Error::Deadline(self.deadline))??;
        if result.as_ref().err().is_none_or(keeps) {
            *guard = Some(connection);
        }
        result
    }
}
