//! The SQLite inbox: each handler's effects are applied once.
//!
//! A handler works in an sqlx transaction, which [`Outbox::emit`](crate::Emitter::emit) accepts too. It holds the file's
//! only write lock from its beginning, and all other writers wait for it. There is no other locking. Handlers should be
//! fast, and must not write to the file in any other way.

mod config;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use relevo_core::broker_consumer::Lane;
use relevo_core::inbox::{
    self as port, BeginOutcome, CallClaim, ClaimOutcome, ClaimedQueue, DedupId, Enter, EnterOutcome, Heartbeat,
    HeartbeatReply, InboxFailure, InboxMessage, InboxRetention, LaneLease, RecordOutcome,
};
use relevo_core::store::StoreError;
use tokio::time::timeout;
use uuid::Uuid;

pub use self::config::Config;
use crate::classify::Error;
use crate::connection::{Connection, Durability};
use crate::pool::{HandlerConnection, HandlerTransaction};
use crate::queries::inbox::{Asking, enter, members, prune, retry};
use crate::store::DISK_TIMEOUT;
use crate::{classify, disk};

/// The inbox of one consumer.
pub struct Inbox {
    connections: Arc<InboxConnections>,
    consumer: String,
    keeping: InboxRetention,
}

/// The connections of one process to the inboxes of one file.
struct InboxConnections {
    file: PathBuf,
    handlers: HandlerConnection,
    /// For calls that can return "busy".
    short_wait: Connection,
    /// For calls that can afford to wait.
    long_wait: Connection,
    /// A separate connection, so that heartbeats wait for no other call of this process.
    heartbeat: Connection,
    lock_timeout: Duration,
    timeout: Duration,
}

/// Runs work in its own transaction on one of the links.
macro_rules! change {
    ($inbox:expr, $link:ident, $durability:ident, $session:ident, $work:expr) => {
        async {
            let mut $session = $inbox.connections.$link.begin(Durability::$durability).await?;
            let done = $work.await?;
            $session.commit().await?;
            Ok(done)
        }
    };
}

/// Begins a handler's transaction. Its first statements return what was inserted, or `None` if it must not continue.
macro_rules! open {
    ($inbox:expr, $tx:ident, $work:expr) => {
        $inbox.connections.with_timeout(async {
            let Some(mut $tx) = $inbox.connections.handlers.begin().await? else { return Ok(BeginOutcome::Busy) };
            let entered = $work.await;
            $inbox.finish_begin($tx, entered).await
        })
    };
}

impl Inbox {
    /// Opens the file. Checks that this program supports its schema version and that it is on a local disk.
    pub async fn open(config: &Config, consumer: &str, keeping: InboxRetention) -> Result<Self, StoreError> {
        classify::check_local(&config.path, config.allow_network_file_system)?;
        let link = |wait| Connection::new(&config.path, wait);
        let links = InboxConnections {
            file: config.path.clone(),
            handlers: HandlerConnection::new(&config.path, config.lock_timeout),
            short_wait: link(config.lock_timeout),
            long_wait: link(config.busy_timeout),
            heartbeat: link(config.busy_timeout),
            lock_timeout: config.lock_timeout,
            timeout: config.busy_timeout.max(config.lock_timeout * 2) + DISK_TIMEOUT,
        };
        links.check_writable().await.map_err(|error| error.at_open(&links.file))?;
        Ok(Self { connections: Arc::new(links), consumer: consumer.to_owned(), keeping })
    }

    /// Returns the inbox of another consumer, on the same connections.
    #[must_use]
    pub fn for_consumer(&self, consumer: &str, keeping: InboxRetention) -> Self {
        Self { connections: Arc::clone(&self.connections), consumer: consumer.to_owned(), keeping }
    }

    fn asking(&self) -> Asking<'_> {
        Asking { consumer: &self.consumer, traced: self.keeping.trace.is_some() }
    }

    /// Returns the transaction for the handler, or rolls it back if its first statements returned `None`.
    async fn finish_begin(
        &self,
        tx: HandlerTransaction,
        entered: Result<Option<Vec<EnterOutcome>>, Error>,
    ) -> Result<BeginOutcome<HandlerTransaction>, Error> {
        match entered {
            Ok(Some(entered)) => Ok(BeginOutcome::Open(tx, entered)),
            Ok(None) => {
                self.connections.roll_back(tx).await;
                Ok(BeginOutcome::Fenced)
            }
            Err(error) => {
                self.connections.handlers.close().await;
                Err(error)
            }
        }
    }
}

impl InboxConnections {
    /// Connects, and flushes what a process that was killed during a commit may have left. SQLite recovers that commit
    /// when it opens the file. A repeat of its message is then acknowledged without another commit.
    async fn check_writable(&self) -> Result<(), Error> {
        self.short_wait.acquire().await?.release();
        disk::flush(&self.file).await
    }

    /// Applies the deadline. Errors name the file.
    async fn with_timeout<T>(&self, work: impl Future<Output = Result<T, Error>>) -> Result<T, StoreError> {
        let result = timeout(self.timeout, work).await.unwrap_or(Err(Error::Timeout(self.timeout)));
        result.map_err(|error| error.after_open(&self.file))
    }

    async fn commit(&self, tx: HandlerTransaction) -> Result<(), Error> {
        let committed = tx.commit().await;
        if committed.is_err() {
            // It is unknown whether SQLite has ended the transaction.
            self.handlers.close().await;
        }
        Ok(committed?)
    }

    async fn roll_back(&self, tx: HandlerTransaction) {
        // SQLite may have rolled back already, for example because the disk is full. Closing the connection rolls back
        // in any case.
        if tx.rollback().await.is_err() {
            self.handlers.close().await;
        }
    }
}

/// Returns the result, or `busy` if another connection held the write lock for too long.
async fn or_if_busy<T>(work: impl Future<Output = Result<T, Error>>, busy: T) -> Result<T, Error> {
    match work.await {
        Err(Error::Busy) => Ok(busy),
        other => other,
    }
}

/// The result for the one message of a transaction.
fn new_if_inserted(entered: bool) -> Option<Vec<EnterOutcome>> {
    entered.then(|| vec![EnterOutcome::New])
}

#[async_trait]
impl port::Inbox for Inbox {
    type Transaction = HandlerTransaction;

    async fn begin(&self, arrivals: Enter<'_>) -> Result<BeginOutcome<HandlerTransaction>, StoreError> {
        open!(self, tx, enter::insert_messages(&mut tx, self.asking(), arrivals)).await
    }

    async fn skip(&self, transaction: &mut HandlerTransaction, entry: DedupId) -> Result<(), StoreError> {
        self.connections.with_timeout(enter::mark_skipped(transaction, &self.consumer, entry)).await
    }

    async fn commit(&self, transaction: HandlerTransaction) -> Result<(), StoreError> {
        self.connections.with_timeout(self.connections.commit(transaction)).await
    }

    async fn rollback(&self, transaction: HandlerTransaction) -> Result<(), StoreError> {
        self.connections.roll_back(transaction).await;
        Ok(())
    }

    async fn record_start(&self, arrival: &InboxMessage) -> Result<u32, StoreError> {
        let start = change!(
            self,
            long_wait,
            Full,
            session,
            enter::record_start(&mut session, &self.consumer, arrival.dedup_id)
        );
        self.connections.with_timeout(start).await
    }

    async fn claim_call(
        &self,
        arrival: &InboxMessage,
        held: Option<&LaneLease>,
        lasts: Duration,
    ) -> Result<ClaimOutcome, StoreError> {
        let claim = change!(self, short_wait, Full, s, enter::claim_call(&mut s, self.asking(), arrival, held, lasts));
        self.connections.with_timeout(or_if_busy(claim, ClaimOutcome::Busy(self.connections.lock_timeout))).await
    }

    async fn begin_claimed(
        &self,
        arrival: &InboxMessage,
        held: Option<&LaneLease>,
        claim: CallClaim,
    ) -> Result<BeginOutcome<HandlerTransaction>, StoreError> {
        open!(self, tx, async {
            enter::complete_call(&mut tx, self.asking(), arrival, held, claim).await.map(new_if_inserted)
        })
        .await
    }

    async fn end_attempt(&self, entry: DedupId, claim: Option<CallClaim>) -> Result<(), StoreError> {
        let end =
            change!(self, long_wait, Normal, session, enter::end_attempt(&mut session, &self.consumer, entry, claim));
        self.connections.with_timeout(end).await
    }

    async fn set_back(
        &self,
        arrival: &InboxMessage,
        held: Option<&LaneLease>,
        claim: Option<CallClaim>,
        setback: &InboxFailure,
    ) -> Result<RecordOutcome, StoreError> {
        let asking = self.asking();
        let keep = change!(self, short_wait, Full, session, async {
            retry::record_failure(&mut session, asking, arrival, held, claim, setback).await
        });
        self.connections.with_timeout(or_if_busy(keep, RecordOutcome::Busy)).await
    }

    async fn claim_due(
        &self,
        queues: usize,
        messages: usize,
        lasts: Duration,
    ) -> Result<Vec<ClaimedQueue>, StoreError> {
        let due = change!(self, long_wait, Normal, session, async {
            retry::claim_due_queues(&mut session, &self.consumer, queues, messages, lasts).await
        });
        self.connections.with_timeout(due).await
    }

    async fn begin_due(&self, due: &ClaimedQueue, number: i64) -> Result<BeginOutcome<HandlerTransaction>, StoreError> {
        open!(self, tx, async { retry::complete_first(&mut tx, self.asking(), due, number).await.map(new_if_inserted) })
            .await
    }

    async fn set_back_due(
        &self,
        due: &ClaimedQueue,
        number: i64,
        setback: &InboxFailure,
    ) -> Result<RecordOutcome, StoreError> {
        let asking = self.asking();
        let keep = change!(self, short_wait, Full, session, async {
            retry::record_queued_failure(&mut session, asking, due, number, setback).await
        });
        self.connections.with_timeout(or_if_busy(keep, RecordOutcome::Busy)).await
    }

    async fn release_queue(&self, due: &ClaimedQueue) -> Result<(), StoreError> {
        let release =
            change!(self, long_wait, Normal, session, retry::release_queue(&mut session, &self.consumer, due));
        self.connections.with_timeout(release).await
    }

    async fn heartbeat(&self, beat: &Heartbeat) -> Result<HeartbeatReply, StoreError> {
        let beat = change!(self, heartbeat, Normal, session, members::heartbeat(&mut session, &self.consumer, beat));
        self.connections.with_timeout(beat).await
    }

    async fn acquire_lanes(&self, owner: Uuid, lanes: &[Lane]) -> Result<Vec<LaneLease>, StoreError> {
        let take =
            change!(self, long_wait, Full, session, members::acquire_lanes(&mut session, &self.consumer, owner, lanes));
        self.connections.with_timeout(take).await
    }

    async fn release_lanes(&self, owner: Uuid, lanes: &[Lane]) -> Result<(), StoreError> {
        let give = change!(self, long_wait, Normal, session, async {
            members::release_lanes(&mut session, &self.consumer, owner, Some(lanes)).await
        });
        self.connections.with_timeout(give).await
    }

    async fn leave(&self, owner: Uuid) -> Result<(), StoreError> {
        let leave = change!(self, long_wait, Normal, session, members::leave(&mut session, &self.consumer, owner));
        self.connections.with_timeout(leave).await
    }

    async fn prune(&self, limit: usize) -> Result<bool, StoreError> {
        let prune = change!(self, long_wait, Normal, session, async {
            prune::prune(&mut session, &self.consumer, self.keeping, limit).await
        });
        self.connections.with_timeout(prune).await
    }
}
