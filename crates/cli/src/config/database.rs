//! Which database a URL means. A URL may hold a password, so that it is never shown.

use std::fmt;
use std::path::PathBuf;

use relevo_sqlite_file::canonical_path;
use sqlx::ConnectOptions as _;
use sqlx::postgres::PgConnectOptions;
use tracing::subscriber::{NoSubscriber, with_default};

use super::problem::Problem;
use super::secret::Secret;

/// An outbox's database.
#[derive(Clone)]
pub(crate) enum Database {
    Postgres(Box<PgConnectOptions>),
    Sqlite(PathBuf),
}

impl Database {
    pub(super) fn parse(url: &Secret) -> Result<Self, Problem> {
        let url = url.reveal();
        if let Some(path) = url.strip_prefix("sqlite:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            if path.is_empty() || path.contains('?') {
                return Err(Problem::new("the URL of a SQLite file is `sqlite:PATH` and no more"));
            }
            return Ok(Self::Sqlite(path.into()));
        }
        if !url.starts_with("postgres://") && !url.starts_with("postgresql://") {
            let problem = Problem::new("the database's URL begins with none of `postgres://` and `sqlite:`");
            return Err(problem.hint("`postgres://user@host:port/name` or `sqlite:PATH`"));
        }
        // The parser logs parameters that it does not know, and a misspelt password is one of them.
        let options = with_default(NoSubscriber::default(), || url.parse::<PgConnectOptions>());
        let options = options.map_err(|_| {
            let problem = Problem::new("the database's URL cannot be read");
            problem.hint("`postgres://user:password@host:port/name`, with special characters as `%XX`")
        })?;
        let named = options.get_application_name().is_some();
        let options = if named { options } else { options.application_name("relevo") };
        // Slow statements are the relay's to judge.
        Ok(Self::Postgres(Box::new(options.disable_statement_logging())))
    }
}

impl Database {
    /// What tells two databases apart, as far as their URLs do; whoever connects is no part of it.
    pub(super) fn identity(&self) -> String {
        match self {
            Self::Sqlite(path) => canonical_path(path).display().to_string(),
            Self::Postgres(_) => self.to_string(),
        }
    }
}

/// Where it is, without user and password.
impl fmt::Display for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite(path) => write!(f, "{}", path.display()),
            Self::Postgres(options) => {
                let database = options.get_database().unwrap_or(options.get_username());
                match options.get_socket() {
                    Some(socket) => write!(f, "{}/{database}", socket.display()),
                    None => write!(f, "{}:{}/{database}", options.get_host(), options.get_port()),
                }
            }
        }
    }
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_is_shown_without_its_password() {
        let url = Secret::new("postgres://me:sesame@db.example:5433/shop?sslmode=disable");
        let database = Database::parse(&url).unwrap();
        assert_eq!(
            (database.to_string(), format!("{database:?}")),
            ("db.example:5433/shop".into(), "db.example:5433/shop".into())
        );
    }

    #[test]
    fn a_sqlite_file_is_known_in_both_spellings() {
        for url in ["sqlite:/var/lib/shop.db", "sqlite:///var/lib/shop.db"] {
            assert_eq!(Database::parse(&Secret::new(url)).unwrap().to_string(), "/var/lib/shop.db");
        }
    }

    #[test]
    fn a_url_that_cannot_be_read_is_not_shown() {
        for url in ["sesame", "mysql://me:sesame@db/shop", "postgres://me:sesame@db:port/shop", "sqlite:", "sqlite:a?b"]
        {
            let told = Database::parse(&Secret::new(url)).unwrap_err().to_string();
            assert!(!told.contains("sesame"), "{told}");
        }
    }
}
