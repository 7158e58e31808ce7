//! The PostgreSQL inbox: each handler's effects are applied once.
//!
//! A handler works in a [`Transaction`], in which it also emits. Without errors, it
//! costs one round trip for BEGIN and the inbox row, the handler's own statements, and one for COMMIT. Every other
//! operation is one statement in the simple protocol, so that it works behind a pooler in transaction mode.

mod config;

use std::collections::BTreeMap;
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
use sqlx::postgres::PgRow;
use uuid::Uuid;

pub use self::config::Config;
use crate::classify::Error;
use crate::connection::{self, Connection};
use crate::migrate;
use crate::pool::ConnectionPool;
pub use crate::pool::Transaction;
use crate::queries::inbox::InboxStatements;
use crate::queries::inbox::results::{self, InsertResult};
use crate::queries::{column, count_u32, json_response, scalar};

/// Maximum number of attempts for a claim whose retry queue is deleted in the meantime.
const CLAIM_ATTEMPTS_MAX: usize = 3;

/// The inbox of one consumer.
pub struct Inbox {
    connections: Arc<Connections>,
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
    pub async fn open(config: &Config, consumer: &str, keeping: InboxRetention) -> Result<Self, StoreError> {
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
            statements: InboxStatements::new(config, consumer, keeping),
            lock_timeout: config.lock_timeout,
        })
    }

    /// Returns the inbox of another consumer, on the same connections.
    #[must_use]
    pub fn for_consumer(&self, consumer: &str, keeping: InboxRetention) -> Self {
        Self {
            connections: Arc::clone(&self.connections),
            statements: self.statements.for_consumer(consumer, keeping),
            lock_timeout: self.lock_timeout,
        }
    }

    /// Begins a transaction. Keeps it open only if its first statement returned true.
    async fn begin_if(&self, sql: String) -> Result<BeginOutcome<Transaction>, Error> {
        match none_if_contended(self.connections.handlers.begin(&sql).await)? {
            None => Ok(BeginOutcome::Busy),
            Some((tx, rows)) if scalar(&rows)? => Ok(BeginOutcome::Open(tx, vec![EnterOutcome::New])),
            Some((tx, _)) => {
                tx.roll_back().await?;
                Ok(BeginOutcome::Fenced)
            }
        }
    }

    async fn insert(&self, enter: Enter<'_>) -> Result<BeginOutcome<Transaction>, Error> {
        let begun =
            self.connections.handlers.begin(&self.statements.insert(enter.held, &deduplicated(enter.arrivals))).await;
        self.decode_insert(enter, begun).await
    }

    /// Reads the result of inserting messages, and appends those that are behind a retry queue to it.
    async fn decode_insert(
        &self,
        enter: Enter<'_>,
        begun: Result<(Transaction, Vec<PgRow>), Error>,
    ) -> Result<BeginOutcome<Transaction>, Error> {
        let Some((mut tx, rows)) = none_if_contended(begun)? else { return Ok(BeginOutcome::Busy) };
        let refused = match results::insert_result(&rows)? {
            InsertResult::Each(answers) => {
                let entered = results::results_in_order(enter.arrivals, answers);
                let outcomes = enter.arrivals.iter().zip(&entered);
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
        arrival: &InboxMessage,
        held: Option<&LaneLease>,
        lasts: Duration,
    ) -> Result<ClaimOutcome, Error> {
        for _ in 0..CLAIM_ATTEMPTS_MAX {
            let rows = match self.connections.calls.query(&self.statements.claim_call(arrival, held, lasts)).await {
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
            let enter = Enter { held, arrivals: std::slice::from_ref(arrival) };
            let (tx, entered) = match self.insert(enter).await? {
                BeginOutcome::Open(tx, entered) => (tx, entered.first().copied()),
                BeginOutcome::Fenced => return Ok(ClaimOutcome::Fenced),
                BeginOutcome::Busy => return Ok(ClaimOutcome::Busy(self.lock_timeout)),
            };
            match entered {
                Some(EnterOutcome::QueuedBehind) => {
                    return tx.commit().await.map(|()| ClaimOutcome::QueuedBehind);
                }
                Some(EnterOutcome::Duplicate(state)) => {
                    return tx.commit().await.map(|()| ClaimOutcome::Duplicate(state));
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

/// Removes duplicates and sorts by id.
fn deduplicated(arrivals: &[InboxMessage]) -> Vec<&InboxMessage> {
    let once: BTreeMap<DedupId, &InboxMessage> =
        arrivals.iter().rev().map(|arrival| (arrival.dedup_id, arrival)).collect();
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

#[async_trait]
impl port::Inbox for Inbox {
    type Transaction = Transaction;

    async fn begin(&self, enter: Enter<'_>) -> Result<BeginOutcome<Transaction>, StoreError> {
        Ok(self.insert(enter).await?)
    }

    async fn skip(&self, transaction: &mut Transaction, entry: DedupId) -> Result<(), StoreError> {
        transaction.run(self.statements.mark_skipped(entry)).await?;
        Ok(())
    }

    async fn commit(&self, transaction: Transaction) -> Result<(), StoreError> {
        transaction.commit().await.map_err(Error::at_commit)
    }

    async fn commit_and_begin(
        &self,
        transaction: Transaction,
        next: Enter<'_>,
    ) -> Result<Result<BeginOutcome<Transaction>, StoreError>, StoreError> {
        let sql = self.statements.insert(next.held, &deduplicated(next.arrivals));
        let begun = transaction.commit_and_begin(&sql).await.map_err(Error::at_commit)?;
        Ok(self.decode_insert(next, begun).await.map_err(StoreError::from))
    }

    async fn rollback(&self, transaction: Transaction) -> Result<(), StoreError> {
        Ok(transaction.roll_back().await?)
    }

    async fn record_start(&self, arrival: &InboxMessage) -> Result<u32, StoreError> {
        let rows = match self.connections.calls.query(&self.statements.record_start(arrival.dedup_id)).await {
            // Another worker has the message in an open transaction, so this start is not counted.
            Err(error) if error.is_contention() => {
                self.connections.calls.query(&self.statements.unfinished_starts(arrival.dedup_id)).await?
            }
            rows => rows?,
        };
        Ok(count_u32(scalar(&rows)?)?)
    }

    async fn claim_call(
        &self,
        arrival: &InboxMessage,
        held: Option<&LaneLease>,
        lasts: Duration,
    ) -> Result<ClaimOutcome, StoreError> {
        Ok(self.try_claim(arrival, held, lasts).await?)
    }

    async fn begin_claimed(
        &self,
        arrival: &InboxMessage,
        held: Option<&LaneLease>,
        claim: CallClaim,
    ) -> Result<BeginOutcome<Transaction>, StoreError> {
        Ok(self.begin_if(self.statements.complete_call(arrival, held, claim)).await?)
    }

    async fn end_attempt(&self, entry: DedupId, claim: Option<CallClaim>) -> Result<(), StoreError> {
        self.connections.calls.query(&self.statements.end_attempt(entry, claim)).await?;
        Ok(())
    }

    async fn set_back(
        &self,
        arrival: &InboxMessage,
        held: Option<&LaneLease>,
        claim: Option<CallClaim>,
        setback: &InboxFailure,
    ) -> Result<RecordOutcome, StoreError> {
        Ok(self.record(self.statements.fail(arrival, held, claim, setback)).await?)
    }

    async fn claim_due(
        &self,
        queues: usize,
        messages: usize,
        lasts: Duration,
    ) -> Result<Vec<ClaimedQueue>, StoreError> {
        Ok(results::claimed_queues(
            &self.connections.calls.query(&self.statements.claim_due_queues(queues, messages, lasts)).await?,
        )?)
    }

    async fn begin_due(&self, due: &ClaimedQueue, number: i64) -> Result<BeginOutcome<Transaction>, StoreError> {
        Ok(self.begin_if(self.statements.complete_queued(due, number)).await?)
    }

    async fn set_back_due(
        &self,
        due: &ClaimedQueue,
        number: i64,
        setback: &InboxFailure,
    ) -> Result<RecordOutcome, StoreError> {
        Ok(self.record(self.statements.fail_queued(due, number, setback)).await?)
    }

    async fn release_queue(&self, due: &ClaimedQueue) -> Result<(), StoreError> {
        self.connections.calls.query(&self.statements.release_queue(due)).await?;
        Ok(())
    }

    async fn heartbeat(&self, beat: &Heartbeat) -> Result<HeartbeatReply, StoreError> {
        let answer = json_response(
            &self.connections.heartbeats.query(connection::read_committed(&self.statements.heartbeat(beat))).await?,
        )?;
        // A deleted member still reports marks for its lanes. They show that this is not its first heartbeat.
        Ok(results::heartbeat_reply(&answer, !beat.settled_offsets.is_empty())?)
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
