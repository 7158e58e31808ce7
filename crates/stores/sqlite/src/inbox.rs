//! The SQLite inbox: each handler's effects are applied once.
//!
//! A handler works in a [`Transaction`], in which it also emits. It holds the file's only write lock from its beginning,
//! and all other writers wait for it. There is no other locking. Handlers should be fast, and must not write to the file
//! in any other way.

mod config;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use relevo_core::broker_consumer::Lane;
use relevo_core::inbox::attempts::{CallClaim, ClaimOutcome};
use relevo_core::inbox::members::{Heartbeat, HeartbeatReply};
use relevo_core::inbox::retries::{ClaimedQueue, InboxFailure, RecordOutcome};
use relevo_core::inbox::transactions::{BeginOutcome, Enter, EnterOutcome};
use relevo_core::inbox::{self as port, DedupId, InboxMessage, InboxRetention, LaneLease};
use relevo_core::store::StoreError;
use sqlx::sqlite::SqliteConnection;
use tokio::time::timeout;
use uuid::Uuid;

pub use self::config::Config;
use crate::classify::Error;
use crate::connection::{Connection, Durability};
use crate::pool::HandlerConnection;
pub use crate::pool::Transaction;
use crate::queries::inbox::{enter, members, prune, retry};
use crate::store::DISK_TIMEOUT;
use crate::{classify, disk};

/// The inbox of one consumer.
pub struct Inbox {
    connections: Arc<InboxConnections>,
    consumer: String,
    retention: InboxRetention,
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

impl Inbox {
    /// Opens the file. Checks that this program supports its schema version and that it is on a local disk.
    pub async fn open(config: &Config, consumer: &str, retention: InboxRetention) -> Result<Self, StoreError> {
        classify::check_local(&config.path, config.allow_network_file_system)?;
        let connection = |busy_timeout| Connection::new(&config.path, busy_timeout);
        let connections = InboxConnections {
            file: config.path.clone(),
            handlers: HandlerConnection::new(&config.path, config.lock_timeout),
            short_wait: connection(config.lock_timeout),
            long_wait: connection(config.busy_timeout),
            heartbeat: connection(config.busy_timeout),
            lock_timeout: config.lock_timeout,
            timeout: config.busy_timeout.max(config.lock_timeout * 2) + DISK_TIMEOUT,
        };
        connections.check_writable().await.map_err(|error| error.at_open(&connections.file))?;
        Ok(Self { connections: Arc::new(connections), consumer: consumer.to_owned(), retention })
    }

    /// Returns the inbox of another consumer, on the same connections.
    #[must_use]
    pub fn for_consumer(&self, consumer: &str, retention: InboxRetention) -> Self {
        Self { connections: Arc::clone(&self.connections), consumer: consumer.to_owned(), retention }
    }

    /// Begins a handler's transaction. `insert` runs its first statements. It returns the outcomes of the messages, or
    /// `None` if the handler must not run.
    async fn begin_handler(
        &self,
        insert: impl AsyncFnOnce(&mut SqliteConnection) -> Result<Option<Vec<EnterOutcome>>, Error>,
    ) -> Result<BeginOutcome<Transaction>, StoreError> {
        let connections = &self.connections;
        let begin = async {
            let Some(mut transaction) = connections.handlers.begin().await? else { return Ok(BeginOutcome::Busy) };
            match insert(&mut transaction).await {
                Ok(Some(outcomes)) => Ok(BeginOutcome::Open(transaction, outcomes)),
                Ok(None) => {
                    connections.roll_back(transaction).await;
                    Ok(BeginOutcome::Fenced)
                }
                Err(error) => {
                    connections.handlers.close().await;
                    Err(error)
                }
            }
        };
        connections.with_timeout(begin).await
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

    /// Runs `work` in its own transaction on one of the connections.
    async fn write<T>(
        &self,
        connection: &Connection,
        durability: Durability,
        work: impl AsyncFnOnce(&mut SqliteConnection) -> Result<T, Error>,
    ) -> Result<T, StoreError> {
        self.with_timeout(connection.write(durability, work)).await
    }

    /// Runs `work` in its own durable transaction. Returns `busy` if another connection held the write lock for too long.
    async fn write_or_busy<T>(
        &self,
        busy: T,
        work: impl AsyncFnOnce(&mut SqliteConnection) -> Result<T, Error>,
    ) -> Result<T, StoreError> {
        let write = async {
            match self.short_wait.write(Durability::Full, work).await {
                Err(Error::Busy) => Ok(busy),
                other => other,
            }
        };
        self.with_timeout(write).await
    }

    async fn commit(&self, transaction: Transaction) -> Result<(), Error> {
        let committed = transaction.commit().await;
        if committed.is_err() {
            // It is unknown whether SQLite has ended the transaction.
            self.handlers.close().await;
        }
        Ok(committed?)
    }

    async fn roll_back(&self, transaction: Transaction) {
        // SQLite may have rolled back already, for example because the disk is full. Closing the connection rolls back
        // in any case.
        if transaction.rollback().await.is_err() {
            self.handlers.close().await;
        }
    }
}

/// The result for the one message of a transaction.
fn new_if_inserted(inserted: bool) -> Option<Vec<EnterOutcome>> {
    inserted.then(|| vec![EnterOutcome::New])
}

#[async_trait]
impl port::Inbox for Inbox {
    type Transaction = Transaction;

    async fn begin(&self, request: Enter<'_>) -> Result<BeginOutcome<Transaction>, StoreError> {
        self.begin_handler(async |c| enter::insert_messages(c, &self.consumer, request).await).await
    }

    async fn skip(&self, transaction: &mut Transaction, id: DedupId) -> Result<(), StoreError> {
        self.connections.with_timeout(enter::mark_skipped(transaction, &self.consumer, id)).await
    }

    async fn commit(&self, transaction: Transaction) -> Result<(), StoreError> {
        self.connections.with_timeout(self.connections.commit(transaction)).await
    }

    async fn rollback(&self, transaction: Transaction) -> Result<(), StoreError> {
        self.connections.roll_back(transaction).await;
        Ok(())
    }

    async fn record_start(&self, message: &InboxMessage) -> Result<u32, StoreError> {
        let record = async |c: &mut SqliteConnection| enter::record_start(c, &self.consumer, message.dedup_id).await;
        self.connections.write(&self.connections.long_wait, Durability::Full, record).await
    }

    async fn claim_call(
        &self,
        message: &InboxMessage,
        lane: Option<&LaneLease>,
        duration: Duration,
    ) -> Result<ClaimOutcome, StoreError> {
        let busy = ClaimOutcome::Busy(self.connections.lock_timeout);
        let claim =
            async |c: &mut SqliteConnection| enter::claim_call(c, &self.consumer, message, lane, duration).await;
        self.connections.write_or_busy(busy, claim).await
    }

    async fn begin_claimed(
        &self,
        message: &InboxMessage,
        lane: Option<&LaneLease>,
        claim: CallClaim,
    ) -> Result<BeginOutcome<Transaction>, StoreError> {
        self.begin_handler(async |c| {
            let inserted = enter::complete_call(c, &self.consumer, message, lane, claim).await?;
            Ok(new_if_inserted(inserted))
        })
        .await
    }

    async fn end_attempt(&self, id: DedupId, claim: Option<CallClaim>) -> Result<(), StoreError> {
        let end = async |c: &mut SqliteConnection| enter::end_attempt(c, &self.consumer, id, claim).await;
        self.connections.write(&self.connections.long_wait, Durability::Normal, end).await
    }

    async fn set_back(
        &self,
        message: &InboxMessage,
        lane: Option<&LaneLease>,
        claim: Option<CallClaim>,
        failure: &InboxFailure,
    ) -> Result<RecordOutcome, StoreError> {
        let record = async |c: &mut SqliteConnection| {
            retry::record_failure(c, &self.consumer, message, lane, claim, failure).await
        };
        self.connections.write_or_busy(RecordOutcome::Busy, record).await
    }

    async fn claim_due(
        &self,
        queues: usize,
        messages: usize,
        duration: Duration,
    ) -> Result<Vec<ClaimedQueue>, StoreError> {
        let claim = async |c: &mut SqliteConnection| {
            retry::claim_due_queues(c, &self.consumer, queues, messages, duration).await
        };
        self.connections.write(&self.connections.long_wait, Durability::Normal, claim).await
    }

    async fn begin_due(&self, queue: &ClaimedQueue, ordinal: i64) -> Result<BeginOutcome<Transaction>, StoreError> {
        self.begin_handler(async |c| {
            let inserted = retry::complete_first(c, &self.consumer, queue, ordinal).await?;
            Ok(new_if_inserted(inserted))
        })
        .await
    }

    async fn set_back_due(
        &self,
        queue: &ClaimedQueue,
        ordinal: i64,
        failure: &InboxFailure,
    ) -> Result<RecordOutcome, StoreError> {
        let record = async |c: &mut SqliteConnection| {
            retry::record_queued_failure(c, &self.consumer, queue, ordinal, failure).await
        };
        self.connections.write_or_busy(RecordOutcome::Busy, record).await
    }

    async fn release_queue(&self, queue: &ClaimedQueue) -> Result<(), StoreError> {
        let release = async |c: &mut SqliteConnection| retry::release_queue(c, &self.consumer, queue).await;
        self.connections.write(&self.connections.long_wait, Durability::Normal, release).await
    }

    async fn heartbeat(&self, heartbeat: &Heartbeat) -> Result<HeartbeatReply, StoreError> {
        let record = async |c: &mut SqliteConnection| members::heartbeat(c, &self.consumer, heartbeat).await;
        self.connections.write(&self.connections.heartbeat, Durability::Normal, record).await
    }

    async fn acquire_lanes(&self, owner: Uuid, lanes: &[Lane]) -> Result<Vec<LaneLease>, StoreError> {
        let acquire = async |c: &mut SqliteConnection| members::acquire_lanes(c, &self.consumer, owner, lanes).await;
        self.connections.write(&self.connections.long_wait, Durability::Full, acquire).await
    }

    async fn release_lanes(&self, owner: Uuid, lanes: &[Lane]) -> Result<(), StoreError> {
        let release =
            async |c: &mut SqliteConnection| members::release_lanes(c, &self.consumer, owner, Some(lanes)).await;
        self.connections.write(&self.connections.long_wait, Durability::Normal, release).await
    }

    async fn leave(&self, owner: Uuid) -> Result<(), StoreError> {
        let leave = async |c: &mut SqliteConnection| members::leave(c, &self.consumer, owner).await;
        self.connections.write(&self.connections.long_wait, Durability::Normal, leave).await
    }

    async fn prune(&self, limit: usize) -> Result<bool, StoreError> {
        let prune = async |c: &mut SqliteConnection| prune::prune(c, &self.consumer, self.retention, limit).await;
        self.connections.write(&self.connections.long_wait, Durability::Normal, prune).await
    }
}
