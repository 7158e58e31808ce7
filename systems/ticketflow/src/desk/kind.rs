//! The kind of a database: for real users with secret tokens, or for the demo.
//!
//! The sample's tokens are in the README, and one of them is an admin's. So the two kinds never share a database.

use super::DeskError;
use super::link::Link;

/// The kind of a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Real users, who have secret tokens.
    Real,
    /// The sample users, whose tokens are public.
    Sample,
}

impl Kind {
    const fn word(self) -> &'static str {
        match self {
            Self::Real => "real",
            Self::Sample => "sample",
        }
    }

    /// The error for a database of the other kind, with a hint.
    const fn refusal(self) -> &'static str {
        match self {
            Self::Real => {
                "the database is a sample's, whose tokens everybody knows; hint: name another database in the \
                 configuration or another `--data DIR`, or delete this one"
            }
            Self::Sample => {
                "the database is not a sample's, and tokens of samples are public; hint: start with \
                 `--config FILE`, or try the sample in another `--data DIR`"
            }
        }
    }
}

/// The first call decides; of two concurrent calls, the database selects one.
pub(super) async fn claim(link: &Link, kind: Kind) -> Result<(), DeskError> {
    let mut tx = link.begin().await?;
    let insert = "INSERT INTO ticketflow.desk (id, kind) VALUES (1, $1) ON CONFLICT DO NOTHING";
    tx.run(insert, &[&kind.word()]).await?;
    let row = tx.row("SELECT kind FROM ticketflow.desk", &[]).await?;
    let is_same = row.map(|row| row.get::<String>(0)).transpose()?.is_some_and(|stored| stored == kind.word());
    tx.commit().await?;
    if is_same { Ok(()) } else { Err(DeskError::Schema(kind.refusal().to_owned())) }
}
