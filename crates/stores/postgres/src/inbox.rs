//! The PostgreSQL inbox: each handler's effects are applied once.
//!
//! A handler works in a [`Transaction`], in which it also emits. Without errors, it
//! costs one round trip for BEGIN and the inbox row, the handler's own statements, and one for COMMIT. Every other
//! operation is one statement in the simple protocol, so that it works behind a pooler in transaction mode.

mod config;

use std::collections::BTreeMap;
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use relevo_core::broker_consumer::Lane;
use relevo_core::inbox::attempts::{CallClaim, ClaimOutcome, InboxAttempts};
use relevo_core::inbox::members::{Heartbeat, HeartbeatReply, InboxMembers};
use relevo_core::inbox::retries::{ClaimedQueue, InboxFailure, InboxRetries, QueueClaim, RecordOutcome};
use relevo_core::inbox::transactions::{BeginOutcome, CommitAndBegin, CommitOutcome, EnterOutcome, InboxTransactions};
use relevo_core::inbox::{self as port, DedupId, Fence, InboxMessage, InboxRetention, LaneLease};
use relevo_core::store::StoreError;
use sqlx::postgres::PgRow;
use uuid::Uuid;

pub use self::config::Config;
use crate::classify::Error;
use crate::connection::{self, Connection};
use crate::migrate;
pub use crate::pool::Transaction;
use crate::pool::{ConnectionPool, Writes};
use crate::queries::inbox::InboxStatements;
use crate::queries::inbox::results::{self, InsertResult};
use crate::queries::{column, count_u32, json_response, scalar};

/// Maximum number of attempts for a claim whose retry queue is deleted in the meantime.
const CLAIM_ATTEMPTS_MAX: usize = 3;

/// The inbox of one consumer.
pub struct Inbox {
    connections: Arc<Connections>,
    consumer: Arc<str>,
    statements: InboxStatements,
    lock_timeout: Duration,
}

/// The connections of one process to the inboxes of one schema.
struct Connections {
    handlers: Arc<ConnectionPool>,
    calls: ConnectionPool,
    /// A separate connection, so that heartbeats never wait for other calls.
    heartbeats: Connection,
}

impl Inbox {
    /// Connects and checks the schema version.
    pub async fn open(config: &Config, consumer: &str, retention: InboxRetention) -> Result<Self, StoreError> {
        let pool = |connections_max| {
            let (options, schema) = (config.connect_options.clone(), config.schema.clone());
            ConnectionPool::new(options, schema, connections_max, config.call_timeout)
        };
        let connections = Connections {
            handlers: Arc::new(pool(config.handler_connections_max)),
            calls: pool(config.call_connections_max),
            heartbeats: Connection::new(config.connect_options.clone(), config.call_timeout),
        };
        let rows = connections.calls.query(&migrate::exists_query(&config.schema)).await?;
        let mut newest = None;
        if scalar::<Option<String>>(&rows)?.is_some() {
            let rows = connections.calls.query(&migrate::applied_query(&config.schema)).await?;
            newest = rows.last().map(|row| Ok::<_, Error>((column(row, 0)?, column(row, 1)?))).transpose()?;
        }
        migrate::check(&config.schema, newest)?;
        Ok(Self {
            connections: Arc::new(connections),
            consumer: consumer.into(),
            statements: InboxStatements::new(config, consumer, retention),
            lock_timeout: config.lock_timeout,
        })
    }

    /// Returns the inbox of another consumer, on the same connections.
    #[must_use]
    pub fn for_consumer(&self, consumer: &str, retention: InboxRetention) -> Self {
        Self {
            connections: Arc::clone(&self.connections),
            consumer: consumer.into(),
            statements: self.statements.for_consumer(consumer, retention),
            lock_timeout: self.lock_timeout,
        }
    }

    /// The first statement of a transaction: it enters the messages.
    fn begin_statement(&self, messages: &[InboxMessage], fence: Fence<'_>) -> String {
        match fence {
            Fence::Live { lane } => self.statements.insert(lane, &deduplicated(messages)),
            Fence::Call { lane, claim } => self.statements.complete_call(only(messages), lane, claim),
            Fence::Queue { claim, ordinal } => self.statements.complete_queued(claim, ordinal),
        }
    }

    /// Reads the result of the first statement, and appends messages that are behind a retry queue to it.
    async fn decode_begin(
        &self,
        messages: &[InboxMessage],
        fence: Fence<'_>,
        begun: Result<(Transaction, Vec<PgRow>), Error>,
    ) -> Result<BeginOutcome<Transaction>, Error> {
        let Some((mut tx, rows)) = none_if_contended(begun)? else { return Ok(BeginOutcome::Busy) };
        let result = match fence {
            Fence::Live { .. } => results::insert_result(&rows)?,
            Fence::Call { .. } | Fence::Queue { .. } if scalar(&rows)? => {
                return Ok(BeginOutcome::Open(tx, vec![EnterOutcome::New]));
            }
            Fence::Call { .. } | Fence::Queue { .. } => InsertResult::Fenced,
        };
        let refused = match result {
            InsertResult::Each(answers) => {
                let entered = results::results_in_order(messages, answers);
                let outcomes = messages.iter().zip(&entered);
                let behind: Vec<_> = outcomes
                    .filter(|(_, outcome)| **outcome == EnterOutcome::QueuedBehind)
                    .map(|(message, _)| message)
                    .collect();
                if !behind.is_empty() {
                    tx.run(self.statements.append(&behind)).await?;
                }
                return Ok(BeginOutcome::Open(tx, entered));
            }
            InsertResult::Fenced => BeginOutcome::Fenced,
            InsertResult::Busy => BeginOutcome::Busy,
        };
        tx.roll_back().await?;
        Ok(refused)
    }

    async fn try_claim(
        &self,
        message: &InboxMessage,
        lane: Option<&LaneLease>,
        ttl: Duration,
    ) -> Result<ClaimOutcome, Error> {
        for _ in 0..CLAIM_ATTEMPTS_MAX {
            let rows = match self.connections.calls.query(&self.statements.claim_call(message, lane, ttl)).await {
                Err(error) if error.is_contention() => return Ok(ClaimOutcome::Busy(self.lock_timeout)),
                rows => rows?,
            };
            let row = results::claim_row(&rows)?;
            match row.outcome {
                "mine" => {
                    let token = row.token.ok_or(Error::UnexpectedResponse("a claim without a token"))?;
                    return Ok(ClaimOutcome::Claimed(CallClaim { token, unfinished_starts: row.unfinished_starts }));
                }
                "lost" => return Ok(ClaimOutcome::Fenced),
                "busy" => return Ok(ClaimOutcome::Busy(Duration::from_millis(row.remaining_ms))),
                "behind" => {}
                word => return Ok(ClaimOutcome::Duplicate(results::parse_state(word)?)),
            }
            // The message is behind a retry queue. Append it the way a handler's transaction does.
            let (messages, fence) = (slice::from_ref(message), Fence::Live { lane });
            let begun = self.connections.handlers.begin(&self.begin_statement(messages, fence)).await;
            let (tx, entered) = match self.decode_begin(messages, fence, begun).await? {
                BeginOutcome::Open(tx, entered) => (tx, entered.first().copied()),
                BeginOutcome::Fenced => return Ok(ClaimOutcome::Fenced),
                BeginOutcome::Busy => return Ok(ClaimOutcome::Busy(self.lock_timeout)),
            };
            match entered {
                Some(EnterOutcome::QueuedBehind) => {
                    return tx.commit(&Writes::default()).await.map(|()| ClaimOutcome::QueuedBehind);
                }
                Some(EnterOutcome::Duplicate(state)) => {
                    return tx.commit(&Writes::default()).await.map(|()| ClaimOutcome::Duplicate(state));
                }
                // The queue was deleted in the meantime.
                Some(EnterOutcome::New) | None => tx.roll_back().await?,
            }
        }
        Ok(ClaimOutcome::Busy(self.lock_timeout))
    }

    async fn record(&self, sql: String) -> Result<RecordOutcome, Error> {
        let rows = match self.connections.calls.query(&sql).await {
            Err(error) if error.is_contention() => return Ok(RecordOutcome::Busy),
            rows => rows?,
        };
        match scalar::<&str>(&rows)? {
            "kept" => Ok(RecordOutcome::Recorded),
            "lost" => Ok(RecordOutcome::Fenced),
            "busy" => Ok(RecordOutcome::Busy),
            word => Ok(RecordOutcome::Duplicate(results::parse_state(word)?)),
        }
    }
}

/// The message of a call.
fn only(messages: &[InboxMessage]) -> &InboxMessage {
    assert_eq!(messages.len(), 1, "a call is about one message");
    &messages[0]
}

/// Removes duplicates and sorts by id.
fn deduplicated(messages: &[InboxMessage]) -> Vec<&InboxMessage> {
    let once: BTreeMap<DedupId, &InboxMessage> =
        messages.iter().rev().map(|message| (message.dedup_id, message)).collect();
    once.into_values().collect()
}

/// Returns `None` if another worker blocked the call.
fn none_if_contended<T>(answer: Result<T, Error>) -> Result<Option<T>, Error> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(error) if error.is_contention() => Ok(None),
        Err(error) => Err(error),
    }
}

impl port::Inbox for Inbox {
    fn consumer(&self) -> &str {
        &self.consumer
    }

    fn retention(&self) -> InboxRetention {
        self.statements.retention()
    }
}

#[async_trait]
impl InboxTransactions for Inbox {
    type Transaction = Transaction;

    async fn begin(
        &self,
        messages: &[InboxMessage],
        fence: Fence<'_>,
    ) -> Result<BeginOutcome<Transaction>, StoreError> {
        let begun = self.connections.handlers.begin(&self.begin_statement(messages, fence)).await;
        Ok(self.decode_begin(messages, fence, begun).await?)
    }

    async fn commit(&self, tx: Transaction, skipped: &[DedupId]) -> Result<CommitOutcome, StoreError> {
        match tx.commit(&self.statements.mark_skipped(skipped)).await {
            Ok(()) => Ok(CommitOutcome::Committed),
            Err(error) => error.at_commit(),
        }
    }

    async fn commit_and_begin(
        &self,
        tx: Transaction,
        skipped: &[DedupId],
        next: &[InboxMessage],
        fence: Fence<'_>,
    ) -> Result<CommitAndBegin<Transaction>, StoreError> {
        let writes = self.statements.mark_skipped(skipped);
        match tx.commit_and_begin(&writes, &self.begin_statement(next, fence)).await {
            Ok(begun) => {
                let begun = self.decode_begin(next, fence, begun).await;
                Ok((CommitOutcome::Committed, Some(begun.map_err(StoreError::from))))
            }
            Err(error) => Ok((error.at_commit()?, None)),
        }
    }

    async fn rollback(&self, tx: Transaction) -> Result<(), StoreError> {
        Ok(tx.roll_back().await?)
    }
}

#[async_trait]
impl InboxAttempts for Inbox {
    async fn record_start(&self, message: &InboxMessage) -> Result<u32, StoreError> {
        let rows = match self.connections.calls.query(&self.statements.record_start(message.dedup_id)).await {
            // Another worker has the message in an open transaction, so this start is not counted.
            Err(error) if error.is_contention() => {
                self.connections.calls.query(&self.statements.unfinished_starts(message.dedup_id)).await?
            }
            rows => rows?,
        };
        Ok(count_u32(scalar(&rows)?)?)
    }

    async fn claim_call(
        &self,
        message: &InboxMessage,
        lane: Option<&LaneLease>,
        ttl: Duration,
    ) -> Result<ClaimOutcome, StoreError> {
        Ok(self.try_claim(message, lane, ttl).await?)
    }

    async fn end_attempt(&self, id: DedupId, claim: Option<CallClaim>) -> Result<(), StoreError> {
        self.connections.calls.query(&self.statements.end_attempt(id, claim)).await?;
        Ok(())
    }
}

#[async_trait]
impl InboxRetries for Inbox {
    async fn record_failure(
        &self,
        message: &InboxMessage,
        fence: Fence<'_>,
        failure: &InboxFailure,
    ) -> Result<RecordOutcome, StoreError> {
        let sql = match fence {
            Fence::Live { lane } => self.statements.fail(message, lane, None, failure),
            Fence::Call { lane, claim } => self.statements.fail(message, lane, Some(claim), failure),
            Fence::Queue { claim, ordinal } => self.statements.fail_queued(claim, ordinal, failure),
        };
        Ok(self.record(sql).await?)
    }

    async fn claim_due(&self, queues: usize, messages: usize, ttl: Duration) -> Result<Vec<ClaimedQueue>, StoreError> {
        let rows = self.connections.calls.query(&self.statements.claim_due_queues(queues, messages, ttl)).await?;
        Ok(results::claimed_queues(&rows)?)
    }

    async fn release_queue(&self, claim: &QueueClaim) -> Result<(), StoreError> {
        self.connections.calls.query(&self.statements.release_queue(claim)).await?;
        Ok(())
    }
}

#[async_trait]
impl InboxMembers for Inbox {
    async fn heartbeat(&self, heartbeat: &Heartbeat) -> Result<HeartbeatReply, StoreError> {
        let reply = json_response(
            &self
                .connections
                .heartbeats
                .query(connection::read_committed(&self.statements.heartbeat(heartbeat)))
                .await?,
        )?;
        // A deleted member still reports marks for its lanes. They show that this is not its first heartbeat.
        Ok(results::heartbeat_reply(&reply, !heartbeat.settled_offsets.is_empty())?)
    }

    async fn acquire_lanes(&self, owner: Uuid, lanes: &[Lane]) -> Result<Vec<LaneLease>, StoreError> {
        let rows = self.connections.calls.query(&self.statements.acquire_lanes(owner, lanes)).await?;
        Ok(results::lane_leases(&rows, owner)?)
    }

    async fn release_lanes(&self, owner: Uuid, lanes: &[Lane]) -> Result<(), StoreError> {
        self.connections.calls.query(&self.statements.release_lanes(owner, Some(lanes))).await?;
        Ok(())
    }

    async fn leave(&self, owner: Uuid) -> Result<(), StoreError> {
        self.connections.calls.query(&self.statements.release_lanes(owner, None)).await?;
        Ok(())
    }

    async fn prune(&self, limit: usize) -> Result<bool, StoreError> {
        Ok(scalar(&self.connections.calls.query(&self.statements.prune(limit)).await?)?)
    }
}
