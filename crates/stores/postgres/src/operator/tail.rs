//! Follows the log by snapshots: a page has what one snapshot sees and an earlier one did not.

use relevo_core::outbox::search::{TailFilter, TailPage};

use crate::classify::Error;
use crate::connection::Connection;
use crate::queries::{column, tail};
use crate::tick::Snapshot;

/// A position between two pages.
struct Cursor {
    /// Everything that this snapshot sees was returned.
    from: Snapshot,
    /// The snapshot of an unfinished window, and the last transaction and number that were returned of it.
    page: Option<(Snapshot, tail::Place)>,
}

impl Cursor {
    fn parse(text: &str) -> Result<Self, Error> {
        let invalid = || Error::InvalidCursor(text.to_owned());
        let parts: Vec<&str> = text.split(' ').collect();
        let snapshot = |text: &str| Snapshot::parse(text).map_err(|_| invalid());
        match parts[..] {
            [from] => Ok(Self { from: snapshot(from)?, page: None }),
            [from, to, xid, seq] => {
                let place =
                    tail::Place { xid: xid.parse().map_err(|_| invalid())?, seq: seq.parse().map_err(|_| invalid())? };
                Ok(Self { from: snapshot(from)?, page: Some((snapshot(to)?, place)) })
            }
            _ => Err(invalid()),
        }
    }
}

/// Returns the next page. Messages are read in the order of transactions, which an index has, and sorted by number.
pub(super) async fn tail(
    connection: &Connection,
    schema: &str,
    filter: &TailFilter,
    cursor: Option<&str>,
    limit: usize,
) -> Result<TailPage, Error> {
    let Some(cursor) = cursor else {
        let to = current_snapshot(connection).await?;
        let rows = tail::decode(connection.copy_out(tail::newest(schema, filter, &to, limit)).await?)?;
        let messages = rows.into_iter().map(|(_, message)| message).rev().collect();
        return Ok(TailPage { messages, next: to.text().to_owned(), more: false });
    };
    let Cursor { from, page } = Cursor::parse(cursor)?;
    let (to, after) = match page {
        Some((to, after)) => (to, after),
        None => (current_snapshot(connection).await?, tail::Place::default()),
    };
    let rows = tail::decode(connection.copy_out(tail::page(schema, filter, (&from, &to), after, limit)).await?)?;
    let more = rows.len() >= limit;
    let next = match rows.last() {
        Some((xid, last)) if more => format!("{} {} {xid} {}", from.text(), to.text(), last.seq),
        _ => to.text().to_owned(),
    };
    let mut messages: Vec<_> = rows.into_iter().map(|(_, message)| message).collect();
    messages.sort_by_key(|message| message.seq);
    Ok(TailPage { messages, next, more })
}

async fn current_snapshot(connection: &Connection) -> Result<Snapshot, Error> {
    let rows = connection.query(tail::CURRENT_SNAPSHOT.to_owned()).await?;
    let row = rows.first().ok_or(Error::UnexpectedResponse("no snapshot"))?;
    if column(row, 1)? {
        return Err(Error::StandbyHasNoTail);
    }
    Snapshot::parse(column(row, 0)?)
}
