//! An outbox of any kind, opened for people: the commands know traits, and only this file knows stores.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use relevo_core::inbox::ConsumerOperator;
use relevo_core::inbox::replays::ConsumerReplays;
use relevo_core::outbox::OutboxOperator;
use relevo_core::outbox::inspect::DestinationInfo;
use relevo_core::outbox::search::OutboxSearch;
use relevo_core::replay_source::{OutboxRouting, ReplaySource};
use relevo_core::{Draft, EmitError, MessageId};
use relevo_store_postgres as postgres;
use relevo_store_sqlite as sqlite;
use sqlx::postgres::PgConnection;
use sqlx::sqlite::SqliteConnection;
use sqlx::{ConnectOptions as _, Connection as _};

use crate::args::{DestinationArgs, OutboxArgs};
use crate::database::{self, ANSWER_DEADLINE};
use crate::exit::{not_found, usage};

/// How long a file's writer is waited for where nothing is to be written.
const GLANCE: Duration = Duration::from_millis(500);

/// Where an outbox is.
#[derive(Debug)]
pub(crate) enum Place {
    /// In a schema of a PostgreSQL database.
    Postgres(Box<database::Place>),
    /// In a SQLite file.
    Sqlite(SqliteFile),
}

/// A SQLite file with an outbox.
#[derive(Debug)]
pub(crate) struct SqliteFile {
    pub(crate) path: PathBuf,
    allow_network_file_system: bool,
    origin: String,
}

impl SqliteFile {
    async fn open(&self) -> Result<sqlite::Operator> {
        self.open_within(None).await
    }

    /// Opens the file for a question or two, which wait only briefly for a writer.
    async fn glance(&self) -> Result<sqlite::Operator> {
        self.open_within(Some(GLANCE)).await
    }

    async fn open_within(&self, busy_timeout: Option<Duration>) -> Result<sqlite::Operator> {
        let defaults = sqlite::OperatorConfig::new(&self.path);
        let config = sqlite::OperatorConfig {
            busy_timeout: busy_timeout.unwrap_or(defaults.busy_timeout),
            allow_network_file_system: self.allow_network_file_system,
            ..defaults
        };
        let opened = sqlite::Operator::open(config).await;
        opened.with_context(|| format!("cannot open the outbox that {} names", self.origin))
    }
}

impl Place {
    /// From the command line, or else from the environment.
    pub(crate) fn of(target: &OutboxArgs) -> Result<Self> {
        let at = target.locate()?;
        Ok(match file_of(&at.url)? {
            Some(_) if at.place.schema.is_some() => {
                return Err(usage(
                    "`--schema` is for PostgreSQL only; hint: leave it out, a SQLite file has one outbox",
                ));
            }
            Some(path) => Self::Sqlite(SqliteFile {
                path,
                allow_network_file_system: at.place.allow_network_file_system,
                origin: at.origin,
            }),
            None => Self::Postgres(Box::new(database::Place::at(at)?)),
        })
    }

    /// Where it is, for people.
    pub(crate) fn shown(&self) -> String {
        match self {
            Self::Postgres(place) => place.shown(),
            Self::Sqlite(file) => file.path.display().to_string(),
        }
    }

    /// The outbox, with calls that may take so long.
    pub(crate) async fn open(&self, deadline: Duration) -> Result<Box<dyn OutboxOperator>> {
        Ok(match self {
            Self::Postgres(place) => Box::new(place.open(deadline).await?),
            Self::Sqlite(file) => Box::new(file.open().await?),
        })
    }

    /// The outbox, for a question or two.
    pub(crate) async fn glance(&self) -> Result<Box<dyn OutboxOperator>> {
        Ok(match self {
            Self::Postgres(place) => Box::new(place.open(ANSWER_DEADLINE).await?),
            Self::Sqlite(file) => Box::new(file.glance().await?),
        })
    }

    /// The inboxes of the same database.
    pub(crate) async fn consumers(&self) -> Result<Box<dyn ConsumerOperator>> {
        self.consumers_within(ANSWER_DEADLINE).await
    }

    /// The same, with answers that may take so long.
    pub(crate) async fn consumers_within(&self, deadline: Duration) -> Result<Box<dyn ConsumerOperator>> {
        Ok(match self {
            Self::Postgres(place) => Box::new(place.open(deadline).await?),
            Self::Sqlite(file) => Box::new(file.open().await?),
        })
    }

    /// The outbox's log as a source of replays.
    pub(crate) async fn log(&self, sending: OutboxRouting) -> Result<Box<dyn ReplaySource>> {
        Ok(match self {
            Self::Postgres(place) => {
                let operator = place.open(ANSWER_DEADLINE).await?;
                Box::new(postgres::OutboxReplaySource::new(Arc::new(operator), sending))
            }
            Self::Sqlite(file) => Box::new(sqlite::OutboxReplaySource::new(Arc::new(file.open().await?), sending)),
        })
    }

    /// A connection that emits.
    pub(crate) async fn writer(&self) -> Result<Writer> {
        Ok(match self {
            Self::Postgres(place) => {
                // Whether there is an outbox is asked first: the answer is clearer than a missing function.
                place.open(ANSWER_DEADLINE).await?;
                let connection = place.connect().await?;
                Writer::Postgres { connection, outbox: postgres::Emitter::new(&place.schema) }
            }
            Self::Sqlite(file) => {
                file.glance().await?;
                let path = &file.path;
                let connection = sqlite::connect_options(path).disable_statement_logging().connect().await;
                let connection = connection.map_err(|error| sqlite::describe_error(error, path))?;
                Writer::Sqlite { connection, file: path.clone() }
            }
        })
    }
}

/// The file of a `sqlite:` URL; `None` for any other.
fn file_of(url: &str) -> Result<Option<PathBuf>> {
    let Some(path) = url.strip_prefix("sqlite:") else { return Ok(None) };
    let path = path.strip_prefix("//").unwrap_or(path);
    if path.is_empty() || path.starts_with(':') {
        return Err(usage("the URL names no file; hint: `sqlite:relevo.db`, or `sqlite:///var/lib/relevo/relevo.db`"));
    }
    Ok(Some(PathBuf::from(path)))
}

/// An outbox, and the destination that is meant.
pub(crate) struct Opened {
    pub(crate) outbox: Box<dyn OutboxOperator>,
    pub(crate) destination: DestinationInfo,
    pub(crate) shown: String,
}

/// Opens an outbox for the destination that was named, or for the only one there is.
pub(crate) async fn open(which: &DestinationArgs) -> Result<Opened> {
    open_within(which, ANSWER_DEADLINE).await
}

/// The same, with answers that may take so long.
pub(crate) async fn open_within(which: &DestinationArgs, deadline: Duration) -> Result<Opened> {
    let place = Place::of(&which.target)?;
    let outbox = place.open(deadline).await?;
    let known = outbox.destinations().await.with_context(|| format!("the outbox at {}", place.shown()))?;
    let destination = choose(known, which.destination.as_deref())?;
    Ok(Opened { outbox, destination, shown: place.shown() })
}

/// The search of an outbox, if its store has one.
pub(crate) fn search(outbox: &dyn OutboxOperator) -> Result<&dyn OutboxSearch> {
    outbox.as_search().ok_or_else(|| usage("the outbox of this database cannot be searched"))
}

/// The replays of a database, if its store has them.
pub(crate) fn replays(consumers: &dyn ConsumerOperator) -> Result<&dyn ConsumerReplays> {
    consumers.as_replays().ok_or_else(|| usage("this database has no replays"))
}

fn choose(known: Vec<DestinationInfo>, wanted: Option<&str>) -> Result<DestinationInfo> {
    let names = || format!("`{}`", known.iter().map(|it| it.name.as_str()).collect::<Vec<_>>().join("`, `"));
    let Some(name) = wanted else {
        return match known.len() {
            0 => Err(not_found("there is no destination yet; hint: add one with `relevo destination add NAME`")),
            1 => Ok(known.into_iter().next().expect("one was counted")),
            _ => Err(usage(format!(
                "there is more than one destination; hint: choose with `--destination`: {}",
                names()
            ))),
        };
    };
    let hint = match known.len() {
        0 => format!("add it with `relevo destination add {name}`"),
        _ => format!("there are {}", names()),
    };
    let found = known.into_iter().find(|it| it.name == name);
    found.ok_or_else(|| not_found(format!("destination `{name}` is not known; hint: {hint}")))
}

/// A connection that emits, one transaction at a time.
pub(crate) enum Writer {
    /// Into PostgreSQL.
    Postgres { connection: PgConnection, outbox: postgres::Emitter },
    /// Into a SQLite file.
    Sqlite { connection: SqliteConnection, file: PathBuf },
}

/// A message that was refused, by its place among those given.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) at: usize,
    pub(crate) error: anyhow::Error,
}

impl Writer {
    /// Emits all of them in one transaction, or none.
    pub(crate) async fn emit(&mut self, drafts: Vec<Draft>) -> Result<Vec<MessageId>, Refused> {
        let end = drafts.len().saturating_sub(1);
        let at = |at: usize| move |error: anyhow::Error| Refused { at, error };
        let mut ids = Vec::with_capacity(drafts.len());
        match self {
            Self::Postgres { connection, outbox } => {
                let mut tx = connection.begin().await.map_err(|error| at(0)(error.into()))?;
                for (n, draft) in drafts.into_iter().enumerate() {
                    ids.push(outbox.emit(&mut tx, draft).await.map_err(|error| at(n)(error.into()))?);
                }
                tx.commit().await.map_err(|error| at(end)(error.into()))?;
            }
            Self::Sqlite { connection, file } => {
                let failed = |error: sqlx::Error| anyhow::Error::from(sqlite::describe_error(error, file));
                let mut tx = sqlite::begin(&mut *connection).await.map_err(|error| at(0)(failed(error)))?;
                for (n, draft) in drafts.into_iter().enumerate() {
                    let id = sqlite::emit(&mut tx, draft).await.map_err(|error| match error {
                        EmitError::Busy(error) | EmitError::Store(error) => match error.downcast() {
                            Ok(error) => at(n)(failed(*error)),
                            Err(error) => at(n)(anyhow::anyhow!(error)),
                        },
                        EmitError::Invalid(_) | EmitError::DuplicateId(_) | EmitError::NotInMainFile => {
                            at(n)(error.into())
                        }
                    });
                    ids.push(id?);
                }
                tx.commit().await.map_err(|error| at(end)(failed(error)))?;
            }
        }
        Ok(ids)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error_report::ErrorReport;
    use crate::exit::ExitStatus;

    fn named(names: &[&str]) -> Vec<DestinationInfo> {
        let one =
            |name: &&str| DestinationInfo { name: (*name).to_owned(), shards: 8, resharding_to: None, enabled: true };
        names.iter().map(one).collect()
    }

    fn refused(known: &[&str], name: Option<&str>) -> (ExitStatus, String) {
        let error = choose(named(known), name).expect_err("it cannot be chosen");
        (ExitStatus::of(&error), ErrorReport::of(&error).to_string())
    }

    #[test]
    fn a_sqlite_url_names_a_file() {
        let file = |url| file_of(url).unwrap().map(|path| path.display().to_string());
        assert_eq!(file("sqlite:shop.db").as_deref(), Some("shop.db"));
        assert_eq!(file("sqlite://shop.db").as_deref(), Some("shop.db"));
        assert_eq!(file("sqlite:///var/shop.db").as_deref(), Some("/var/shop.db"));
        assert_eq!(file("postgres://me@db/shop"), None);
        assert!(file_of("sqlite:").is_err() && file_of("sqlite::memory:").is_err());
    }

    #[test]
    fn the_only_destination_need_not_be_named() {
        assert_eq!(choose(named(&["main"]), None).unwrap().name, "main");
        assert_eq!(choose(named(&["audit", "main"]), Some("main")).unwrap().name, "main");
    }

    #[test]
    fn a_destination_that_cannot_be_chosen_is_told_with_the_known_ones() {
        let (code, told) = refused(&["audit", "main"], Some("mian"));
        assert_eq!(told, "error: destination `mian` is not known\nhint: there are `audit`, `main`");
        assert_eq!(code, ExitStatus::NotFound);
        let (code, told) = refused(&["audit", "main"], None);
        assert_eq!(code, ExitStatus::Usage);
        assert!(told.ends_with("hint: choose with `--destination`: `audit`, `main`"), "{told}");
        assert_eq!(refused(&[], None).0, ExitStatus::NotFound);
    }
}
