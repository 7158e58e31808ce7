//! For whom a desk is: for people with tokens of their own, or for whoever tries it.
//!
//! The sample's tokens stand in the README, and one of them is an admin's. So the two never share a database.

use super::DeskError;
use super::link::Link;

/// For whom a desk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// For people who were added, with tokens that only they know.
    Real,
    /// For whoever tries it, with tokens that everybody knows.
    Sample,
}

impl Kind {
    const fn word(self) -> &'static str {
        match self {
            Self::Real => "real",
            Self::Sample => "sample",
        }
    }

    /// Why a desk of the other kind cannot be this one, and what to do.
    const fn refusal(self) -> &'static str {
        match self {
            Self::Real => {
                "the database is a sample's, whose tokens everybody knows; hint: name another database in the \
                 configuration or another `--data DIR`, or delete this one"
            }
            Self::Sample => {
                "the database is not a sample's, so that nobody with a known token is let in; hint: start with \
                 `--config FILE`, or try the sample in another `--data DIR`"
            }
        }
    }
}

/// The first to come decides; of two at once, the database lets one be first.
pub(super) async fn claim(link: &Link, kind: Kind) -> Result<(), DeskError> {
    let mut tx = link.begin().await?;
    let insert = "INSERT INTO ticketflow.desk (id, kind) VALUES (1, $1) ON CONFLICT DO NOTHING";
    tx.run(insert, &[&kind.word()]).await?;
    let row = tx.row("SELECT kind FROM ticketflow.desk", &[]).await?;
    let is_same = row.map(|row| row.get::<String>(0)).transpose()?.is_some_and(|stored| stored == kind.word());
    tx.commit().await?;
    if is_same { Ok(()) } else { Err(DeskError::Schema(kind.refusal().to_owned())) }
}
