//! The operator ports: destinations, dead letters, inspection, consumers and replays.

mod examine;
pub(crate) mod replay_source;
mod sample;
mod search;
mod verify;
mod why;

use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use relevo_core::MessageId;
use relevo_core::dead_letters::{
    DeadLetter, DeadLetterAdmin, DeadLetterFilter, DeadLetterOwner, DeadLetterPage, MarkReport, MarkRequest,
};
use relevo_core::finding::Finding;
use relevo_core::inbox::ConsumerOperator;
use relevo_core::inbox::admin::{
    ConsumerAdmin, ConsumerControl, ConsumerDetails, ConsumerSummary, InboxRecord, RemoveOutcome,
};
use relevo_core::inbox::replays::{ConsumerReplays, EnqueueOutcome, Replay, ReplayBatch, ReplayPlan};
use relevo_core::outbox::OutboxOperator;
use relevo_core::outbox::admin::{DestinationChange, OutboxAdmin, OutboxSettings, RoleKind, StartFrom};
use relevo_core::outbox::inspect::{DestinationInfo, MessageDetails, OutboxInspector, ShardInfo};
use relevo_core::outbox::search::{
    MessageFilter, OutboxSearch, SearchPage, TailFilter, TailPage, TimeRange, VerifyReport,
};
use relevo_core::outbox::why::KeyFacts;
use relevo_core::store::StoreError;
use sqlx::sqlite::SqliteConnection;
use tokio::time::timeout;

use crate::classify::{self, Error};
use crate::config::OperatorConfig;
use crate::connection::{Connection, Durability};
use crate::queries::inbox::{self, members, replays};
use crate::queries::status::{self, Progress};
use crate::queries::{consumers, dead_letters, destinations, read, retention, tail};
use crate::store::DISK_TIMEOUT;

/// How long the check at start waits for another writer, which proves that the file can be written.
const WRITE_CHECK_TIMEOUT: Duration = Duration::from_millis(500);

/// Operator access to the outbox and the inboxes of a file.
pub struct Operator {
    file: PathBuf,
    read_connection: Connection,
    write_connection: Connection,
    timeout: Duration,
}

impl Operator {
    /// Opens the file. Checks that this program supports its schema version and that it is on a local disk.
    pub async fn open(config: OperatorConfig) -> Result<Self, StoreError> {
        let OperatorConfig { path: file, busy_timeout, allow_network_file_system } = config;
        classify::check_local(&file, allow_network_file_system)?;
        let operator = Self {
            read_connection: Connection::new(&file, busy_timeout),
            write_connection: Connection::new(&file, busy_timeout),
            timeout: busy_timeout + DISK_TIMEOUT,
            file,
        };
        let opening = timeout(operator.timeout, operator.check_writable()).await;
        let opening = opening.unwrap_or(Err(Error::Timeout(operator.timeout)));
        opening.map_err(|error| error.at_open(&operator.file))?;
        Ok(operator)
    }

    /// Connects, and acquires the write lock briefly, so that a read-only file fails now. If another connection holds
    /// the lock, the write check is skipped.
    async fn check_writable(&self) -> Result<(), Error> {
        self.read_connection.acquire().await?.release();
        let connection = Connection::new(&self.file, WRITE_CHECK_TIMEOUT);
        match connection.write(Durability::Normal, async |c| read::check_writable(c).await).await {
            Err(Error::Busy) => Ok(()),
            other => other,
        }
    }

    /// Runs one call with the deadline. Errors name the file.
    async fn with_timeout<T>(&self, work: impl Future<Output = Result<T, Error>>) -> Result<T, StoreError> {
        let result = timeout(self.timeout, work).await.unwrap_or(Err(Error::Timeout(self.timeout)));
        result.map_err(|error| error.after_open(&self.file))
    }

    /// Runs statements that only read. They wait for no writer.
    async fn inspect<T>(
        &self,
        work: impl AsyncFnOnce(&mut SqliteConnection) -> Result<T, Error>,
    ) -> Result<T, StoreError> {
        self.with_timeout(self.read_connection.read(work)).await
    }

    /// Runs statements in one transaction that survives a power failure.
    async fn change<T>(
        &self,
        work: impl AsyncFnOnce(&mut SqliteConnection) -> Result<T, Error>,
    ) -> Result<T, StoreError> {
        self.with_timeout(self.write_connection.write(Durability::Full, work)).await
    }
}

#[async_trait]
impl OutboxAdmin for Operator {
    async fn add_destination(&self, destination: &str, shards: u16, start: StartFrom) -> Result<bool, StoreError> {
        self.change(async |c| destinations::add(c, destination, shards, start).await).await
    }

    async fn update_destination(&self, destination: &str, change: DestinationChange) -> Result<bool, StoreError> {
        self.change(async |c| match change {
            DestinationChange::Enabled(enabled) => destinations::set_enabled(c, destination, enabled).await,
            DestinationChange::Shards(shards) => destinations::reshard(c, destination, shards).await,
        })
        .await
    }

    async fn remove_destination(&self, destination: &str) -> Result<bool, StoreError> {
        self.change(async |c| destinations::remove(c, destination).await).await
    }

    async fn grant(&self, _: RoleKind, _: &str) -> Result<bool, StoreError> {
        let reason =
            "a SQLite file has no roles; hint: the permissions of the file and its directory decide who may use it";
        Err(StoreError::Refused { reason: reason.to_owned() })
    }

    async fn settings(&self) -> Result<OutboxSettings, StoreError> {
        self.inspect(async |c| retention::settings(c).await).await
    }

    async fn set_settings(&self, settings: &OutboxSettings) -> Result<(), StoreError> {
        if self.settings().await? == *settings {
            return Ok(());
        }
        self.change(async |c| retention::set_settings(c, settings).await).await
    }
}

#[async_trait]
impl DeadLetterAdmin for Operator {
    async fn list_dead_letters(
        &self,
        filter: &DeadLetterFilter,
        after: Option<&str>,
        limit: usize,
    ) -> Result<DeadLetterPage, StoreError> {
        match &filter.owner {
            DeadLetterOwner::Destination(name) => {
                self.inspect(async |c| dead_letters::list(c, name, filter, after, limit).await).await
            }
            DeadLetterOwner::Consumer(_) | DeadLetterOwner::AnyConsumer => {
                filter.check_for_consumer()?;
                self.inspect(async |c| inbox::dead_letters::list(c, filter, after, limit).await).await
            }
        }
    }

    async fn get_dead_letters(&self, filter: &DeadLetterFilter, limit: usize) -> Result<Vec<DeadLetter>, StoreError> {
        match &filter.owner {
            DeadLetterOwner::Destination(name) => {
                self.inspect(async |c| dead_letters::get(c, name, filter, limit).await).await
            }
            DeadLetterOwner::Consumer(_) | DeadLetterOwner::AnyConsumer => {
                filter.check_for_consumer()?;
                self.inspect(async |c| inbox::dead_letters::get(c, filter, limit).await).await
            }
        }
    }

    async fn mark_dead_letters(&self, request: &MarkRequest) -> Result<MarkReport, StoreError> {
        request.check()?;
        let filter = &request.filter;
        let count = match (&filter.owner, request.dry_run) {
            (DeadLetterOwner::Destination(name), true) => {
                self.inspect(async |c| dead_letters::count_unmarked(c, name, filter).await).await?
            }
            (DeadLetterOwner::Destination(name), false) => {
                self.change(async |c| dead_letters::mark(c, name, request).await).await?
            }
            (DeadLetterOwner::Consumer(_) | DeadLetterOwner::AnyConsumer, true) => {
                self.inspect(async |c| inbox::dead_letters::count(c, filter).await).await?
            }
            (DeadLetterOwner::Consumer(_) | DeadLetterOwner::AnyConsumer, false) => {
                self.change(async |c| inbox::dead_letters::mark(c, request).await).await?
            }
        };
        Ok(MarkReport::complete(count))
    }
}

#[async_trait]
impl OutboxInspector for Operator {
    async fn destinations(&self) -> Result<Vec<DestinationInfo>, StoreError> {
        self.inspect(async |c| destinations::list(c).await).await
    }

    async fn shards(&self, destination: &str) -> Result<Vec<ShardInfo>, StoreError> {
        self.inspect(async |c| {
            let progress = Progress::load(c, destination).await?;
            status::key::shards(c, destination, progress.shards).await
        })
        .await
    }

    async fn message(&self, destination: &str, id: MessageId) -> Result<Option<MessageDetails>, StoreError> {
        self.inspect(async |c| status::search::show(c, destination, id).await).await
    }

    async fn key_facts(&self, destination: &str, key: &str) -> Result<KeyFacts, StoreError> {
        self.inspect(async |c| why::key_facts(c, destination, key).await).await
    }

    async fn examine(&self) -> Result<Vec<Finding>, StoreError> {
        self.with_timeout(examine::examine(&self.file)).await
    }
}

#[async_trait]
impl OutboxSearch for Operator {
    async fn search(
        &self,
        destination: &str,
        filter: &MessageFilter,
        limit: usize,
        budget: Duration,
    ) -> Result<SearchPage, StoreError> {
        self.inspect(async |c| search::search(c, destination, filter, limit, budget).await).await
    }

    async fn tail(&self, filter: &TailFilter, cursor: Option<&str>, limit: usize) -> Result<TailPage, StoreError> {
        self.inspect(async |c| tail::tail(c, filter, cursor, limit).await).await
    }

    async fn verify(&self, destination: &str, range: TimeRange) -> Result<VerifyReport, StoreError> {
        self.inspect(async |c| verify::verify(c, destination, range).await).await
    }
}

impl OutboxOperator for Operator {
    fn as_search(&self) -> Option<&dyn OutboxSearch> {
        Some(self)
    }
}

#[async_trait]
impl ConsumerAdmin for Operator {
    async fn list_consumers(&self) -> Result<Vec<ConsumerSummary>, StoreError> {
        self.inspect(async |c| consumers::list(c, None).await).await
    }

    async fn get_consumer(&self, name: &str, limit: usize) -> Result<Option<ConsumerDetails>, StoreError> {
        self.inspect(async |c| consumers::details(c, name, limit).await).await
    }

    async fn set_control(
        &self,
        consumer: &str,
        lane: Option<&str>,
        control: ConsumerControl,
    ) -> Result<bool, StoreError> {
        self.change(async |c| consumers::set_control(c, consumer, lane, control).await).await
    }

    async fn remove_consumer(&self, consumer: &str) -> Result<RemoveOutcome, StoreError> {
        self.change(async |c| members::remove_consumer(c, consumer).await).await
    }

    async fn find_message(&self, id: MessageId) -> Result<Vec<InboxRecord>, StoreError> {
        self.inspect(async |c| consumers::find_message(c, id).await).await
    }
}

#[async_trait]
impl ConsumerReplays for Operator {
    async fn create_replay(&self, plan: &ReplayPlan) -> Result<u32, StoreError> {
        self.change(async |c| replays::create(c, plan).await).await
    }

    async fn enqueue_replay(
        &self,
        consumer: &str,
        number: u32,
        batch: ReplayBatch<'_>,
    ) -> Result<EnqueueOutcome, StoreError> {
        self.change(async |c| replays::enqueue(c, consumer, number, batch).await).await
    }

    async fn stop_replay(&self, consumer: &str, number: u32) -> Result<bool, StoreError> {
        self.change(async |c| replays::stop(c, consumer, number).await).await
    }

    async fn resume_replay(&self, consumer: &str, number: u32, more_dead_letters: u64) -> Result<bool, StoreError> {
        self.change(async |c| replays::resume(c, consumer, number, more_dead_letters).await).await
    }

    async fn list_replays(&self, consumer: &str) -> Result<Vec<Replay>, StoreError> {
        self.inspect(async |c| replays::list(c, consumer).await).await
    }
}

impl ConsumerOperator for Operator {
    fn as_replays(&self) -> Option<&dyn ConsumerReplays> {
        Some(self)
    }
}
