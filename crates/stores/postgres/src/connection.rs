//! One connection that reconnects after a break.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::TryStreamExt;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgRow};
use sqlx::{AssertSqlSafe, ConnectOptions};
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::classify::Error;

/// Unanswered keepalive probes before the server's system ends the connection.
const PROBES: u64 = 3;

/// Opens a connection. If this process or its machine fails, the server notices within about `deadline` and ends the
/// session. Otherwise the locks of the session would block a shard or a lane. `deadline` is shorter than a lease, like
/// every call timeout.
///
/// Statements set these options, because poolers reject startup options. On a connection without TCP they have no
/// effect.
pub(crate) async fn connect(options: &PgConnectOptions, deadline: Duration) -> Result<PgConnection, Error> {
    // The text of a statement may contain payloads.
    let mut connection = options.clone().disable_statement_logging().connect().await?;
    sqlx::raw_sql(AssertSqlSafe(keepalives(deadline))).execute(&mut connection).await?;
    Ok(connection)
}

fn keepalives(deadline: Duration) -> String {
    // Whole seconds and never zero, because zero means the system's default of hours.
    let interval = (deadline.as_secs() / (PROBES + 2)).max(1);
    let idle = deadline.as_secs().saturating_sub(PROBES * interval).max(1);
    let timeout_ms = deadline.as_millis().clamp(1, 1 << 30);
    format!(
        "SET tcp_keepalives_idle = {idle}; SET tcp_keepalives_interval = {interval}; \
         SET tcp_keepalives_count = {PROBES}; SET tcp_user_timeout = {timeout_ms}"
    )
}

/// Prefixes a statement that must see concurrent commits, whatever the default isolation level of the database is.
pub(crate) fn read_committed(sql: &str) -> String {
    format!("SET TRANSACTION ISOLATION LEVEL READ COMMITTED; {sql}")
}

/// A connection that serves one call at a time.
///
/// A call that fails because the connection broke returns an error. Only the next call reconnects, so that the relay
/// notices every break and clears its caches.
pub(crate) struct Connection {
    options: PgConnectOptions,
    timeout: Duration,
    open: Mutex<Option<PgConnection>>,
}

impl Connection {
    pub(crate) fn new(options: PgConnectOptions, timeout: Duration) -> Self {
        Self { options, timeout, open: Mutex::new(None) }
    }

    /// Runs one statement in the simple protocol: one round trip, whatever pooler is in between.
    pub(crate) async fn query(&self, sql: String) -> Result<Vec<PgRow>, Error> {
        let statement =
            async |connection: &mut PgConnection| Ok(sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(connection).await?);
        self.with_connection(Error::leaves_connection_usable, statement).await
    }

    /// Returns the full result of `COPY (…) TO STDOUT (FORMAT binary)`. A server error costs the connection: the client
    /// leaves the end of the error unread and would treat it as the next result.
    pub(crate) async fn copy_out(&self, query: String) -> Result<Bytes, Error> {
        let statement = format!("COPY ({query}) TO STDOUT (FORMAT binary)");
        let refused = |_: &Error| false;
        self.with_connection(refused, async |connection: &mut PgConnection| {
            let mut chunks = connection.copy_out_raw(&statement).await?;
            let mut whole = BytesMut::new();
            while let Some(chunk) = chunks.try_next().await? {
                whole.extend_from_slice(&chunk);
            }
            Ok(whole.freeze())
        })
        .await
    }

    async fn with_connection<T>(
        &self,
        keeps: impl Fn(&Error) -> bool,
        call: impl AsyncFnOnce(&mut PgConnection) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut guard = self.open.lock().await;
        // The connection is taken out while in use, so that a cancelled call leaves no half-read connection behind.
        let taken = guard.take();
        let work = async {
            let mut connection = match taken {
                Some(connection) => connection,
                None => connect(&self.options, self.timeout).await?,
            };
            let result = call(&mut connection).await;
            Ok::<_, Error>((connection, result))
        };
        let (connection, result) = timeout(self.timeout, work).await.map_err(|_| Error::Timeout(self.timeout))??;
        if result.as_ref().err().is_none_or(keeps) {
            *guard = Some(connection);
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use relevo_testkit::PgVersion;
    use relevo_testkit::postgres::Server;
    use sqlx::Row as _;

    use super::*;

    #[test]
    fn a_lost_peer_is_noticed_within_the_deadline() {
        for seconds in 5..100 {
            let text = keepalives(Duration::from_secs(seconds));
            let number = |name: &str| -> u64 {
                let (_, rest) = text.split_once(&format!("{name} = ")).expect("the setting");
                rest.split(';').next().and_then(|number| number.parse().ok()).expect("a number")
            };
            let (idle, interval) = (number("tcp_keepalives_idle"), number("tcp_keepalives_interval"));
            assert_eq!(idle + interval * number("tcp_keepalives_count"), seconds, "{text}");
            assert_eq!(number("tcp_user_timeout"), seconds * 1_000);
        }
        assert!(keepalives(Duration::from_millis(200)).contains("tcp_keepalives_idle = 1;"));
    }

    #[tokio::test]
    async fn a_session_of_the_relay_has_keepalives() {
        let database = Server::shared(PgVersion::V15).database().await;
        let link = Connection::new(database.options(), Duration::from_secs(5));
        for (name, expected) in [
            ("tcp_keepalives_idle", "2"),
            ("tcp_keepalives_interval", "1"),
            ("tcp_keepalives_count", "3"),
            ("tcp_user_timeout", "5000"),
        ] {
            let rows = link.query(format!("SHOW {name}")).await.expect("a database");
            assert_eq!(rows[0].get_unchecked::<String, _>(0), expected, "{name}");
        }
    }
}
