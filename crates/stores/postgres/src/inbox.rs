//! The PostgreSQL inbox: each handler's effects are applied once.
//!
//! A handler works in a [`Transaction`], which [`Outbox::emit`](crate::Outbox::emit) accepts too. Without errors, it
//! costs one round trip for BEGIN and the inbox row, the handler's own statements, and one for COMMIT. Every other
//! operation is one statement in the simple protocol, so that it works behind a pooler in transaction mode.

mod config;
mod handling;
mod links;
mod operate;
mod read;
mod sql;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use relevo_core::consume::Lane;
use relevo_core::inbox::{
    self as port, Arrival, Beat, Begun, Claim, Claimed, Due, Enter, Entered, Entry, Held, Keeping, Kept, Orders,
    Setback,
};
use relevo_core::store::StoreError;
use sqlx::postgres::PgRow;
use uuid::Uuid;

pub use self::config::Config;
pub use self::handling::Transaction;
use self::links::Links;
use self::read::Answers;
use self::sql::Says;
use crate::classify::Error;
use crate::migrate;
use crate::queries::{column, json_answer};

/// Maximum number of attempts for a claim whose retry queue is deleted in the meantime.
const CLAIMS_MAX: usize = 3;

/// The inbox of one consumer.
pub struct Inbox {
    links: Arc<Links>,
    says: Says,
    wait: Duration,
}

impl Inbox {
    /// Connects and checks the schema version.
    pub async fn open(config: &Config, consumer: &str, keeping: Keeping) -> Result<Self, StoreError> {
        let links = Arc::new(Links::new(config));
        let rows = links.call(migrate::exists_query(&config.schema)).await?;
        let mut newest = None;
        if read::only::<Option<String>>(&rows)?.is_some() {
            let rows = links.call(migrate::applied_query(&config.schema)).await?;
            newest = rows.last().map(|row| Ok::<_, Error>((column(row, 0)?, column(row, 1)?))).transpose()?;
        }
        migrate::check(&config.schema, newest)?;
        Ok(Self { links, says: Says::new(config, consumer, keeping), wait: config.lock_timeout })
    }

    /// Returns the inbox of another consumer, on the same connections.
    #[must_use]
    pub fn of(&self, consumer: &str, keeping: Keeping) -> Self {
        Self { links: Arc::clone(&self.links), says: self.says.of(consumer, keeping), wait: self.wait }
    }

    /// Begins a transaction. Keeps it open only if its first statement returned true.
    async fn open_if(&self, sql: String) -> Result<Begun<Transaction>, Error> {
        match unless_contended(self.links.begin(&sql).await)? {
            None => Ok(Begun::Busy),
            Some((tx, rows)) if read::only(&rows)? => Ok(Begun::Open(tx, vec![Entered::New])),
            Some((tx, _)) => {
                self.links.roll_back(tx).await?;
                Ok(Begun::Lost)
            }
        }
    }

    async fn enter(&self, enter: Enter<'_>) -> Result<Begun<Transaction>, Error> {
        let begun = self.links.begin(&self.says.enter(enter.held, &once(enter.arrivals))).await;
        self.entered(enter, begun).await
    }

    /// Reads the result of inserting messages, and appends those that are behind a retry queue to it.
    async fn entered(
        &self,
        enter: Enter<'_>,
        begun: Result<(Transaction, Vec<PgRow>), Error>,
    ) -> Result<Begun<Transaction>, Error> {
        let Some((mut tx, rows)) = unless_contended(begun)? else { return Ok(Begun::Busy) };
        let refused = match read::answers(&rows)? {
            Answers::Each(answers) => {
                let entered = read::in_order(enter.arrivals, answers);
                let told = enter.arrivals.iter().zip(&entered);
                let behind: Vec<_> = told.filter(|told| *told.1 == Entered::Behind).map(|told| told.0).collect();
                if !behind.is_empty() {
                    self.links.say(&mut tx, self.says.append(&behind)).await?;
                }
                return Ok(Begun::Open(tx, entered));
            }
            Answers::Lost => Begun::Lost,
            Answers::Busy => Begun::Busy,
        };
        self.links.roll_back(tx).await?;
        Ok(refused)
    }

    async fn try_claim(&self, arrival: &Arrival, held: Option<&Held>, lasts: Duration) -> Result<Claimed, Error> {
        for _ in 0..CLAIMS_MAX {
            let rows = match self.links.call(self.says.claim(arrival, held, lasts)).await {
                Err(error) if error.is_contention() => return Ok(Claimed::Busy(self.wait)),
                rows => rows?,
            };
            let row = read::claim(&rows)?;
            match row.word {
                "mine" => {
                    let token = row.token.ok_or(Error::Answer("a claim without a token"))?;
                    return Ok(Claimed::Mine(Claim { token, started: row.started }));
                }
                "lost" => return Ok(Claimed::Lost),
                "busy" => return Ok(Claimed::Busy(Duration::from_millis(row.rest_ms))),
                "behind" => {}
                word if self.says.traces() => _ = read::state(word)?,
                word => return Ok(Claimed::Repeat(read::state(word)?)),
            }
            // The message is behind a retry queue, or its repeat is traced. Insert it the way a handler's transaction
            // does.
            let enter = Enter { held, arrivals: std::slice::from_ref(arrival) };
            let (tx, entered) = match self.enter(enter).await? {
                Begun::Open(tx, entered) => (tx, entered.first().copied()),
                Begun::Lost => return Ok(Claimed::Lost),
                Begun::Busy => return Ok(Claimed::Busy(self.wait)),
            };
            match entered {
                Some(Entered::Behind) => return self.links.commit(tx).await.map(|()| Claimed::Behind),
                Some(Entered::Repeat(state)) => return self.links.commit(tx).await.map(|()| Claimed::Repeat(state)),
                // The queue was deleted in the meantime.
                Some(Entered::New) | None => self.links.roll_back(tx).await?,
            }
        }
        Ok(Claimed::Busy(self.wait))
    }

    async fn keep(&self, sql: String) -> Result<Kept, Error> {
        let rows = match self.links.call(sql).await {
            Err(error) if error.is_contention() => return Ok(Kept::Busy),
            rows => rows?,
        };
        match read::only::<&str>(&rows)? {
            "kept" => Ok(Kept::Kept),
            "lost" => Ok(Kept::Lost),
            "busy" => Ok(Kept::Busy),
            word => Ok(Kept::Repeat(read::state(word)?)),
        }
    }
}

/// Removes duplicates and sorts by id.
fn once(arrivals: &[Arrival]) -> Vec<&Arrival> {
    let once: BTreeMap<Entry, &Arrival> = arrivals.iter().rev().map(|arrival| (arrival.entry, arrival)).collect();
    once.into_values().collect()
}

/// Returns `None` if another worker blocked the call.
fn unless_contended<T>(answer: Result<T, Error>) -> Result<Option<T>, Error> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(error) if error.is_contention() => Ok(None),
        Err(error) => Err(error),
    }
}

#[async_trait]
impl port::Inbox for Inbox {
    type Transaction = Transaction;

    async fn begin(&self, enter: Enter<'_>) -> Result<Begun<Transaction>, StoreError> {
        Ok(self.enter(enter).await?)
    }

    async fn skip(&self, transaction: &mut Transaction, entry: Entry) -> Result<(), StoreError> {
        self.links.say(transaction, self.says.skip(entry)).await?;
        Ok(())
    }

    async fn commit(&self, transaction: Transaction) -> Result<(), StoreError> {
        Ok(self.links.commit(transaction).await?)
    }

    async fn commit_and_begin(
        &self,
        transaction: Transaction,
        next: Enter<'_>,
    ) -> Result<Result<Begun<Transaction>, StoreError>, StoreError> {
        let sql = self.says.enter(next.held, &once(next.arrivals));
        let begun = self.links.commit_and_begin(transaction, &sql).await?;
        Ok(self.entered(next, begun).await.map_err(StoreError::from))
    }

    async fn roll_back(&self, transaction: Transaction) -> Result<(), StoreError> {
        Ok(self.links.roll_back(transaction).await?)
    }

    async fn start(&self, arrival: &Arrival) -> Result<u32, StoreError> {
        let rows = match self.links.call(self.says.start(arrival.entry)).await {
            // Another worker has the message in an open transaction, so this start is not counted.
            Err(error) if error.is_contention() => self.links.call(self.says.started(arrival.entry)).await?,
            rows => rows?,
        };
        Ok(read::count(read::only(&rows)?)?)
    }

    async fn claim(&self, arrival: &Arrival, held: Option<&Held>, lasts: Duration) -> Result<Claimed, StoreError> {
        Ok(self.try_claim(arrival, held, lasts).await?)
    }

    async fn begin_claimed(
        &self,
        arrival: &Arrival,
        held: Option<&Held>,
        claim: Claim,
    ) -> Result<Begun<Transaction>, StoreError> {
        Ok(self.open_if(self.says.begin_claimed(arrival, held, claim)).await?)
    }

    async fn ended(&self, entry: Entry, claim: Option<Claim>) -> Result<(), StoreError> {
        self.links.call(self.says.ended(entry, claim)).await?;
        Ok(())
    }

    async fn set_back(
        &self,
        arrival: &Arrival,
        held: Option<&Held>,
        claim: Option<Claim>,
        setback: &Setback,
    ) -> Result<Kept, StoreError> {
        Ok(self.keep(self.says.set_back(arrival, held, claim, setback)).await?)
    }

    async fn due(&self, queues: usize, messages: usize, lasts: Duration) -> Result<Vec<Due>, StoreError> {
        Ok(read::dues(&self.links.call(self.says.due(queues, messages, lasts)).await?)?)
    }

    async fn begin_due(&self, due: &Due, number: i64) -> Result<Begun<Transaction>, StoreError> {
        Ok(self.open_if(self.says.begin_due(due, number)).await?)
    }

    async fn set_back_due(&self, due: &Due, number: i64, setback: &Setback) -> Result<Kept, StoreError> {
        Ok(self.keep(self.says.set_back_due(due, number, setback)).await?)
    }

    async fn release(&self, due: &Due) -> Result<(), StoreError> {
        self.links.call(self.says.release(due)).await?;
        Ok(())
    }

    async fn beat(&self, beat: &Beat) -> Result<Orders, StoreError> {
        let answer = json_answer(&self.links.beat(&self.says.beat(beat)).await?)?;
        // A deleted member still reports marks for its lanes. They show that this is not its first heartbeat.
        Ok(read::orders(&answer, !beat.marks.is_empty())?)
    }

    async fn take(&self, owner: Uuid, lanes: &[Lane]) -> Result<Vec<Held>, StoreError> {
        let rows = self.links.call(self.says.take(owner, lanes)).await?;
        let held = rows.iter().map(|row| {
            Ok::<_, Error>(Held { lane: Lane::new(column::<&str>(row, 0)?), epoch: column(row, 1)?, owner })
        });
        Ok(held.collect::<Result<_, _>>()?)
    }

    async fn give_back(&self, owner: Uuid, lanes: &[Lane]) -> Result<(), StoreError> {
        self.links.call(self.says.give_back(owner, Some(lanes))).await?;
        Ok(())
    }

    async fn leave(&self, owner: Uuid) -> Result<(), StoreError> {
        self.links.call(self.says.give_back(owner, None)).await?;
        Ok(())
    }

    async fn prune(&self, limit: usize) -> Result<bool, StoreError> {
        Ok(read::only(&self.links.call(self.says.prune(limit)).await?)?)
    }
}
