//! The way to an outbox in a database. A URL may hold a password, so that no URL is ever shown.

use std::time::Duration;

use anyhow::Result;
use relevo_store_postgres::{Operator, OperatorConfig, Schema};
use sqlx::ConnectOptions as _;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use tokio::time::timeout;
use tracing::subscriber::{NoSubscriber, with_default};

use crate::exit::{ExitStatus, unreachable_server, usage};
use crate::location::OutboxLocation;

/// No server is waited for longer.
const CONNECT_DEADLINE: Duration = Duration::from_secs(10);
/// How long one answer may take.
pub(crate) const ANSWER_DEADLINE: Duration = Duration::from_mins(1);
/// How long one answer may take that rewrites or deletes whole tables.
pub(crate) const REWRITE_DEADLINE: Duration = Duration::from_hours(24);

/// An outbox's database and schema.
#[derive(Debug)]
pub(crate) struct Place {
    connect: PgConnectOptions,
    pub(crate) schema: Schema,
    origin: String,
}

impl Place {
    /// The database and the schema of an outbox.
    pub(crate) fn at(location: OutboxLocation) -> Result<Self> {
        Ok(Self { connect: parse(&location.url)?, schema: location.place.schema(), origin: location.origin })
    }

    /// Where it is, for people.
    pub(crate) fn shown(&self) -> String {
        let database = self.connect.get_database().unwrap_or(self.connect.get_username());
        match self.connect.get_socket() {
            Some(socket) => format!("{}/{database}", socket.display()),
            None => format!("{}:{}/{database}", self.connect.get_host(), self.connect.get_port()),
        }
    }

    /// A connection of its own.
    pub(crate) async fn connect(&self) -> Result<PgConnection> {
        let connection = timeout(CONNECT_DEADLINE, self.connect.connect()).await;
        let connection = connection.unwrap_or_else(|_| Err(sqlx::Error::Io(std::io::ErrorKind::TimedOut.into())));
        connection.map_err(|error| self.unreached(error.into(), "cannot connect to"))
    }

    /// The outbox, if it is of this program's version.
    pub(crate) async fn open(&self, call_deadline: Duration) -> Result<Operator> {
        let config = OperatorConfig {
            schema: self.schema.clone(),
            call_timeout: call_deadline,
            ..OperatorConfig::new(self.connect.clone())
        };
        let opened = timeout(CONNECT_DEADLINE, Operator::open(config)).await;
        let opened = opened
            .map_or_else(|_| Err(unreachable_server(format!("no answer within {CONNECT_DEADLINE:?}"))), |it| Ok(it?));
        opened.map_err(|error| self.unreached(error, "cannot open the outbox at"))
    }

    /// What was tried where, and what to look at if nobody answered.
    fn unreached(&self, error: anyhow::Error, what: &str) -> anyhow::Error {
        let hint = match ExitStatus::of(&error) {
            ExitStatus::Unreachable => {
                "; hint: check host and port, that the server runs, and that it may be reached from here"
            }
            _ => "",
        };
        error.context(format!("{what} {}, which {} names{hint}", self.shown(), self.origin))
    }
}

fn parse(url: &str) -> Result<PgConnectOptions> {
    if !url.starts_with("postgres://") && !url.starts_with("postgresql://") {
        return Err(usage(
            "the database's URL begins neither with `postgres://` nor with `sqlite:`; hint: `postgres://user@host:port/name`",
        ));
    }
    // The parser logs parameters that it does not know, and a misspelt password is one of them.
    let options = with_default(NoSubscriber::default(), || url.parse::<PgConnectOptions>());
    let options = options.map_err(|error| {
        // The parser's own words for it: they name what is wrong and repeat nothing of the URL.
        let why = std::error::Error::source(&error).map_or_else(String::new, |why| format!(": {why}"));
        let hint =
            "`postgres://user:password@host:port/name`, with `@`, `:` and `/` of a password as `%40`, `%3A`, `%2F`";
        usage(format!("the database's URL cannot be read{why}; hint: {hint}"))
    })?;
    let named = options.get_application_name().is_some();
    let options = if named { options } else { options.application_name("relevo") };
    // Statements that take long are no warning here, and are none of the reader's business.
    Ok(options.disable_statement_logging())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error_report::ErrorReport;

    fn place(url: &str) -> Result<Place> {
        Ok(Place { connect: parse(url)?, schema: Schema::default(), origin: "`--database`".to_owned() })
    }

    #[test]
    fn a_place_is_shown_without_its_password() {
        let place = place("postgres://me:sesame@db.example:5433/shop?sslmode=disable").unwrap();
        assert_eq!(place.shown(), "db.example:5433/shop");
    }

    #[test]
    fn a_url_that_cannot_be_read_is_not_shown() {
        for url in ["sesame", "mysql://me:sesame@db/shop", "postgres://me:sesame@db:port/shop", "postgres://:sesame@"] {
            if let Err(error) = place(url) {
                let told = ErrorReport::of(&error).to_string();
                assert!(!told.contains("sesame"), "{told}");
            }
        }
    }
}
