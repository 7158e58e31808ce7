//! Opening a desk, on PostgreSQL or on a SQLite file.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use relevo::stores::sqlite;
use sqlx::Connection as _;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::sqlite::SqlitePoolOptions;
use uuid::Uuid;

use super::link::Link;
use super::migrate::VERSION;
use super::read::{self, Email, Figures};
use super::{
    Act, Answer, Change, Desk, DeskError, Filter, Kind, Listing, Old, Tell, Token, Whom, access, change, kind, prune,
};
use crate::config::Database;
use crate::domain::{Caller, Comment, Entry, Person, Ticket};

/// The maximum number of connections to PostgreSQL. Far fewer keep two cores busy.
const CONNECTIONS_MAX: u32 = 16;
const READERS_MAX: u32 = 4;
/// How long a request waits for a connection.
const ACQUIRE_DEADLINE: Duration = Duration::from_secs(3);
/// A connection that was idle for longer is tested before it is used, because the server may have closed it.
const TRUSTED: Duration = Duration::from_millis(100);

/// Opens a migrated database.
pub async fn open(database: &Database) -> Result<Arc<dyn Desk>, DeskError> {
    let link = link(database)?;
    let version: i64 = match link.row("SELECT max(version) FROM ticketflow.migration", &[]).await {
        Ok(row) => row.map(|row| row.get::<Option<i64>>(0)).transpose()?.flatten().unwrap_or(0),
        Err(DeskError::Broken(_)) => 0,
        Err(error) => return Err(error),
    };
    if version == VERSION {
        return Ok(Arc::new(Sql(link)));
    }
    let hint = if version < VERSION { "run `ticketflow migrate`" } else { "upgrade the program" };
    Err(DeskError::Schema(format!(
        "the database is at version {version} of TicketFlow's tables, this program needs {VERSION}; hint: {hint}"
    )))
}

/// The recipients of recent e-mails, newest first.
pub async fn recipients(database: &Database) -> Result<Vec<String>, DeskError> {
    let rows =
        link(database)?.rows("SELECT recipient FROM ticketflow.email ORDER BY sent_at DESC LIMIT 200", &[]).await?;
    rows.iter().map(|row| row.get(0)).collect()
}

fn link(database: &Database) -> Result<Link, DeskError> {
    match database {
        Database::Postgres(url) => postgres(url.expose()),
        Database::Sqlite(file) => Ok(sqlite(file)),
    }
}

fn postgres(url: &str) -> Result<Link, DeskError> {
    let options: PgConnectOptions = url.parse()?;
    let pool = PgPoolOptions::new()
        .max_connections(CONNECTIONS_MAX)
        .acquire_timeout(ACQUIRE_DEADLINE)
        // Testing before every use would add a round trip to about a dozen.
        .test_before_acquire(false)
        .before_acquire(|connection, seen| {
            Box::pin(async move { Ok(seen.idle_for < TRUSTED || connection.ping().await.is_ok()) })
        });
    Ok(Link::Postgres(pool.connect_lazy_with(options.application_name("ticketflow"))))
}

fn sqlite(file: &Path) -> Link {
    let options = sqlite::connect_options(file);
    let pool = || SqlitePoolOptions::new().acquire_timeout(ACQUIRE_DEADLINE).test_before_acquire(false);
    Link::Sqlite {
        writer: pool().max_connections(1).connect_lazy_with(options.clone()),
        readers: pool().max_connections(READERS_MAX).connect_lazy_with(options.read_only(true)),
    }
}

/// A desk in SQL.
struct Sql(Link);

#[async_trait]
impl Desk for Sql {
    async fn claim(&self, kind: Kind) -> Result<(), DeskError> {
        kind::claim(&self.0, kind).await
    }

    async fn person_of(&self, token: &Token) -> Result<Option<Person>, DeskError> {
        access::person_of(&self.0, token).await
    }

    async fn change(&self, act: &Act, change: Change, tell: &Tell) -> Result<Answer, DeskError> {
        change::change(&self.0, act, change, tell).await
    }

    async fn add_person(&self, person: &Person, token: &Token, at: Timestamp) -> Result<(), DeskError> {
        let mut tx = self.0.begin().await?;
        change::add_person(&mut tx, person, token, at).await?;
        tx.commit().await
    }

    async fn person(&self, whom: &Whom) -> Result<Person, DeskError> {
        access::person(&self.0, whom).await
    }

    async fn set_token(&self, person: &Person, token: &Token) -> Result<(), DeskError> {
        let mut tx = self.0.begin().await?;
        access::set_token(&mut tx, person, token).await?;
        tx.commit().await
    }

    async fn disable(&self, person: &Person, at: Timestamp) -> Result<(), DeskError> {
        let mut tx = self.0.begin().await?;
        access::disable(&mut tx, person, at).await?;
        tx.commit().await
    }

    async fn ticket(&self, caller: &Caller, id: Uuid) -> Result<Ticket, DeskError> {
        read::ticket(&self.0, caller, id).await
    }

    async fn tickets(&self, caller: &Caller, filter: &Filter) -> Result<Vec<Ticket>, DeskError> {
        read::list(&self.0, caller, filter).await
    }

    async fn comments(&self, caller: &Caller, id: Uuid) -> Result<Vec<Comment>, DeskError> {
        read::comments(&self.0, caller, id).await
    }

    async fn history(&self, caller: &Caller, id: Uuid) -> Result<Vec<Entry>, DeskError> {
        read::history(&self.0, caller, id).await
    }

    async fn people(&self, listing: &Listing) -> Result<Vec<Person>, DeskError> {
        read::people(&self.0, listing).await
    }

    async fn emails(&self, caller: &Caller, ticket: Option<Uuid>, limit: i64) -> Result<Vec<Email>, DeskError> {
        read::emails(&self.0, caller, ticket, limit).await
    }

    async fn figures(&self) -> Result<Figures, DeskError> {
        read::figures(&self.0).await
    }

    async fn prune(&self, what: Old, before: Timestamp) -> Result<u64, DeskError> {
        prune::prune(&self.0, what, before).await
    }

    async fn ping(&self) -> Result<(), DeskError> {
        self.0.row("SELECT 1", &[]).await?;
        Ok(())
    }
}
