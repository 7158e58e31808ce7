//! The SQLite inbox: each handler's effects are applied once.
//!
//! A handler works in an sqlx transaction, which [`Outbox::emit`](crate::Outbox::emit) accepts too. It holds the file's
//! only write lock from its beginning, and all other writers wait for it. There is no other locking. Handlers should be
//! fast, and must not write to the file in any other way.

mod config;
mod dead;
mod enter;
mod handlers;
mod members;
mod operate;
mod prune;
mod queues;
mod replays;
mod rows;
mod setback;
mod show;
pub(crate) mod source;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use relevo_core::consume::Lane;
use relevo_core::inbox::{
    self as port, Arrival, Beat, Begun, Claim, Claimed, Due, Enter, Entered, Entry, Held, Keeping, Kept, Orders,
    Setback,
};
use relevo_core::store::StoreError;
use tokio::time::timeout;
use uuid::Uuid;

pub use self::config::Config;
use self::handlers::{Handlers, Handling};
use self::rows::Asking;
use crate::classify::Error;
use crate::link::{Durability, Link};
use crate::store::DISK_DEADLINE;
use crate::{classify, disk};

/// The inbox of one consumer.
pub struct Inbox {
    links: Arc<Links>,
    consumer: String,
    keeping: Keeping,
}

/// The connections of one process to the inboxes of one file.
struct Links {
    file: PathBuf,
    handling: Handlers,
    /// For calls that can return "busy".
    brief: Link,
    /// For calls that can afford to wait.
    patient: Link,
    /// A separate connection, so that heartbeats wait for no other call of this process.
    beating: Link,
    wait: Duration,
    deadline: Duration,
}

/// Runs work in its own transaction on one of the links.
macro_rules! change {
    ($inbox:expr, $link:ident, $durability:ident, $session:ident, $work:expr) => {
        async {
            let mut $session = $inbox.links.$link.begin(Durability::$durability).await?;
            let done = $work.await?;
            $session.commit().await?;
            Ok(done)
        }
    };
}

/// Begins a handler's transaction. Its first statements return what was inserted, or `None` if it must not continue.
macro_rules! open {
    ($inbox:expr, $tx:ident, $work:expr) => {
        $inbox.links.within(async {
            let Some(mut $tx) = $inbox.links.handling.begin().await? else { return Ok(Begun::Busy) };
            let entered = $work.await;
            $inbox.hand($tx, entered).await
        })
    };
}

impl Inbox {
    /// Opens the file. Checks that this program supports its schema version and that it is on a local disk.
    pub async fn open(config: &Config, consumer: &str, keeping: Keeping) -> Result<Self, StoreError> {
        classify::check_local(&config.path, config.allow_network_file_system)?;
        let link = |wait| Link::new(&config.path, wait);
        let links = Links {
            file: config.path.clone(),
            handling: Handlers::new(&config.path, config.lock_timeout),
            brief: link(config.lock_timeout),
            patient: link(config.busy_timeout),
            beating: link(config.busy_timeout),
            wait: config.lock_timeout,
            deadline: config.busy_timeout.max(config.lock_timeout * 2) + DISK_DEADLINE,
        };
        links.try_out().await.map_err(|error| error.of_file(&links.file))?;
        Ok(Self { links: Arc::new(links), consumer: consumer.to_owned(), keeping })
    }

    /// Returns the inbox of another consumer, on the same connections.
    #[must_use]
    pub fn of(&self, consumer: &str, keeping: Keeping) -> Self {
        Self { links: Arc::clone(&self.links), consumer: consumer.to_owned(), keeping }
    }

    fn asking(&self) -> Asking<'_> {
        Asking { consumer: &self.consumer, traced: self.keeping.trace.is_some() }
    }

    /// Returns the transaction for the handler, or rolls it back if its first statements returned `None`.
    async fn hand(&self, tx: Handling, entered: Result<Option<Vec<Entered>>, Error>) -> Result<Begun<Handling>, Error> {
        match entered {
            Ok(Some(entered)) => Ok(Begun::Open(tx, entered)),
            Ok(None) => {
                self.links.roll_back(tx).await;
                Ok(Begun::Lost)
            }
            Err(error) => {
                self.links.handling.forget().await;
                Err(error)
            }
        }
    }
}

impl Links {
    /// Connects, and flushes what a process that was killed during a commit may have left. SQLite recovers that commit
    /// when it opens the file. A repeat of its message is then acknowledged without another commit.
    async fn try_out(&self) -> Result<(), Error> {
        self.brief.take().await?.give_back();
        disk::flush(&self.file).await
    }

    /// Applies the deadline. Errors name the file.
    async fn within<T>(&self, work: impl Future<Output = Result<T, Error>>) -> Result<T, StoreError> {
        let result = timeout(self.deadline, work).await.unwrap_or(Err(Error::Deadline(self.deadline)));
        result.map_err(|error| error.of_open_file(&self.file))
    }

    async fn commit(&self, tx: Handling) -> Result<(), Error> {
        let committed = tx.commit().await;
        if committed.is_err() {
            // It is unknown whether SQLite has ended the transaction.
            self.handling.forget().await;
        }
        Ok(committed?)
    }

    async fn roll_back(&self, tx: Handling) {
        // SQLite may have rolled back already, for example because the disk is full. Closing the connection rolls back
        // in any case.
        if tx.rollback().await.is_err() {
            self.handling.forget().await;
        }
    }
}

/// Returns the result, or `busy` if another connection held the write lock for too long.
async fn unless_busy<T>(work: impl Future<Output = Result<T, Error>>, busy: T) -> Result<T, Error> {
    match work.await {
        Err(Error::Busy) => Ok(busy),
        other => other,
    }
}

/// The result for the one message of a transaction.
fn new_if(entered: bool) -> Option<Vec<Entered>> {
    entered.then(|| vec![Entered::New])
}

#[async_trait]
impl port::Inbox for Inbox {
    type Transaction = Handling;

    async fn begin(&self, arrivals: Enter<'_>) -> Result<Begun<Handling>, StoreError> {
        open!(self, tx, enter::enter(&mut tx, self.asking(), arrivals)).await
    }

    async fn skip(&self, transaction: &mut Handling, entry: Entry) -> Result<(), StoreError> {
        self.links.within(enter::skip(transaction, &self.consumer, entry)).await
    }

    async fn commit(&self, transaction: Handling) -> Result<(), StoreError> {
        self.links.within(self.links.commit(transaction)).await
    }

    async fn roll_back(&self, transaction: Handling) -> Result<(), StoreError> {
        self.links.roll_back(transaction).await;
        Ok(())
    }

    async fn start(&self, arrival: &Arrival) -> Result<u32, StoreError> {
        let start = change!(self, patient, Power, session, enter::start(&mut session, &self.consumer, arrival.entry));
        self.links.within(start).await
    }

    async fn claim(&self, arrival: &Arrival, held: Option<&Held>, lasts: Duration) -> Result<Claimed, StoreError> {
        let claim = change!(self, brief, Power, s, enter::claim(&mut s, self.asking(), arrival, held, lasts));
        self.links.within(unless_busy(claim, Claimed::Busy(self.links.wait))).await
    }

    async fn begin_claimed(
        &self,
        arrival: &Arrival,
        held: Option<&Held>,
        claim: Claim,
    ) -> Result<Begun<Handling>, StoreError> {
        open!(self, tx, async { enter::enter_claimed(&mut tx, self.asking(), arrival, held, claim).await.map(new_if) })
            .await
    }

    async fn ended(&self, entry: Entry, claim: Option<Claim>) -> Result<(), StoreError> {
        let end = change!(self, patient, Process, session, enter::ended(&mut session, &self.consumer, entry, claim));
        self.links.within(end).await
    }

    async fn set_back(
        &self,
        arrival: &Arrival,
        held: Option<&Held>,
        claim: Option<Claim>,
        setback: &Setback,
    ) -> Result<Kept, StoreError> {
        let asking = self.asking();
        let keep = change!(self, brief, Power, session, async {
            setback::set_back(&mut session, asking, arrival, held, claim, setback).await
        });
        self.links.within(unless_busy(keep, Kept::Busy)).await
    }

    async fn due(&self, queues: usize, messages: usize, lasts: Duration) -> Result<Vec<Due>, StoreError> {
        let due = change!(self, patient, Process, session, async {
            queues::due(&mut session, &self.consumer, queues, messages, lasts).await
        });
        self.links.within(due).await
    }

    async fn begin_due(&self, due: &Due, number: i64) -> Result<Begun<Handling>, StoreError> {
        open!(self, tx, async { queues::enter_first(&mut tx, self.asking(), due, number).await.map(new_if) }).await
    }

    async fn set_back_due(&self, due: &Due, number: i64, setback: &Setback) -> Result<Kept, StoreError> {
        let asking = self.asking();
        let keep = change!(self, brief, Power, session, async {
            setback::set_back_due(&mut session, asking, due, number, setback).await
        });
        self.links.within(unless_busy(keep, Kept::Busy)).await
    }

    async fn release(&self, due: &Due) -> Result<(), StoreError> {
        let release = change!(self, patient, Process, session, queues::release(&mut session, &self.consumer, due));
        self.links.within(release).await
    }

    async fn beat(&self, beat: &Beat) -> Result<Orders, StoreError> {
        let beat = change!(self, beating, Process, session, members::beat(&mut session, &self.consumer, beat));
        self.links.within(beat).await
    }

    async fn take(&self, owner: Uuid, lanes: &[Lane]) -> Result<Vec<Held>, StoreError> {
        let take = change!(self, patient, Power, session, members::take(&mut session, &self.consumer, owner, lanes));
        self.links.within(take).await
    }

    async fn give_back(&self, owner: Uuid, lanes: &[Lane]) -> Result<(), StoreError> {
        let give = change!(self, patient, Process, session, async {
            members::give_back(&mut session, &self.consumer, owner, Some(lanes)).await
        });
        self.links.within(give).await
    }

    async fn leave(&self, owner: Uuid) -> Result<(), StoreError> {
        let leave = change!(self, patient, Process, session, members::leave(&mut session, &self.consumer, owner));
        self.links.within(leave).await
    }

    async fn prune(&self, limit: usize) -> Result<bool, StoreError> {
        let prune = change!(self, patient, Process, session, async {
            prune::prune(&mut session, &self.consumer, self.keeping, limit).await
        });
        self.links.within(prune).await
    }
}
