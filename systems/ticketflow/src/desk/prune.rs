//! Deletes old rows in small transactions, so that locks are short and a shutdown does not wait.

use jiff::Timestamp;

use super::DeskError;
use super::columns::At;
use super::link::Link;

/// The maximum number of rows that one transaction deletes.
pub const PRUNE_MAX: i64 = 1000;

/// The kinds of rows that are deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Old {
    /// Stored responses of requests that may not be repeated any more.
    Requests,
    /// Sent e-mails, with their content.
    Emails,
}

impl Old {
    /// The time is checked twice: a request that is repeated at this moment makes its row a new one, which must stay.
    const fn statement(self) -> &'static str {
        match self {
            Self::Requests => {
                "DELETE FROM ticketflow.idempotency WHERE created_at < $1 AND (person_id, key) IN ( \
                 SELECT person_id, key FROM ticketflow.idempotency WHERE created_at < $1 ORDER BY created_at LIMIT $2)"
            }
            Self::Emails => {
                "DELETE FROM ticketflow.email WHERE sent_at < $1 AND message_id IN ( \
                 SELECT message_id FROM ticketflow.email WHERE sent_at < $1 ORDER BY sent_at LIMIT $2)"
            }
        }
    }
}

pub(super) async fn prune(link: &Link, what: Old, before: Timestamp) -> Result<u64, DeskError> {
    let mut tx = link.begin().await?;
    let deleted = tx.run(what.statement(), &[&At(before), &PRUNE_MAX]).await?;
    tx.commit().await?;
    Ok(deleted)
}
