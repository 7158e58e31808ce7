//! The handler: one row per message.

use std::ops::DerefMut;
use std::sync::Arc;

use async_trait::async_trait;
use relevo_inbox::{CallHandler, Handler, HandlerError, HandlerResult, Incoming, Verdict};
use serde::Deserialize;
use sqlx::{PgConnection, SqliteConnection};

use super::behaviour::{Behaviour, Point, PointReached};
use super::failure_rates::{FAILS, FailureRates, MessageKind};
use super::store::{ServiceCall, Store};

const INSERT: &str = "INSERT INTO ledger (consumer, message_id, message_key, change, member, lane, broker_offset) \
                      VALUES ($1, $2, $3, $4, $5, $6, $7)";
const CURED: &str = "SELECT count(*) FROM ledger_cure WHERE consumer = $1";

#[derive(Deserialize)]
struct Payload {
    change: i64,
}

/// The number of the change in a payload, if there is one.
pub fn change_of(payload: &[u8]) -> Option<i64> {
    serde_json::from_slice(payload).ok().map(|payload: Payload| payload.change)
}

/// The connection of a handler's transaction, with the ledger's statements.
#[async_trait]
pub trait LedgerConnection: Send {
    /// Writes a row.
    async fn write(
        &mut self,
        consumer: &str,
        member: &str,
        change: i64,
        incoming: &Incoming,
    ) -> Result<(), sqlx::Error>;

    /// Whether the consumer is cured, so that no message is poison to it any more.
    async fn is_cured(&mut self, consumer: &str) -> Result<bool, sqlx::Error>;
}

macro_rules! connection {
    ($connection:ty) => {
        #[async_trait]
        impl LedgerConnection for $connection {
            async fn write(
                &mut self,
                consumer: &str,
                member: &str,
                change: i64,
                incoming: &Incoming,
            ) -> Result<(), sqlx::Error> {
                let row = sqlx::query(INSERT).bind(consumer).bind(incoming.id().to_string()).bind(incoming.key());
                let row = row.bind(change).bind(member).bind(incoming.lane().name());
                row.bind(incoming.offset().map(u64::cast_signed)).execute(&mut *self).await?;
                Ok(())
            }

            async fn is_cured(&mut self, consumer: &str) -> Result<bool, sqlx::Error> {
                let cures: i64 = sqlx::query_scalar(CURED).bind(consumer).fetch_one(&mut *self).await?;
                Ok(cures > 0)
            }
        }
    };
}

connection!(PgConnection);
connection!(SqliteConnection);

/// The handler for both forms. An *inside* handler writes a row; a *calling* handler calls the external service first.
#[derive(Clone)]
pub struct LedgerHandler {
    /// The name of the consumer.
    pub consumer: String,
    /// The name of the process.
    pub member: String,
    /// The database that stands in for the external service.
    pub external_service: Store,
    /// Which messages fail, and how.
    pub failure_rates: FailureRates,
    /// The behaviour at each point.
    pub behaviour: Arc<dyn Behaviour>,
}

impl LedgerHandler {
    async fn write(
        &self,
        connection: &mut (impl LedgerConnection + ?Sized),
        incoming: &Incoming,
        attempts_fail: bool,
    ) -> HandlerResult {
        let Payload { change } = incoming.json()?;
        // First, so that every failure has something to roll back.
        connection.write(&self.consumer, &self.member, change, incoming).await?;
        match self.failure_rates.of(incoming.id()) {
            MessageKind::Poison if !connection.is_cured(&self.consumer).await? => {
                return Err(HandlerError::permanent("it is poison").into());
            }
            MessageKind::Fails if attempts_fail && incoming.attempt() <= FAILS => {
                return Err(HandlerError::transient("it fails at first").into());
            }
            MessageKind::Good | MessageKind::Fails | MessageKind::Poison => {}
        }
        self.behaviour.at(PointReached { point: Point::During, change, incoming: Some(incoming) }).await
    }
}

#[async_trait]
impl<T: DerefMut<Target: LedgerConnection> + Send> Handler<T> for LedgerHandler {
    async fn handle(&self, transaction: &mut T, incoming: &Incoming) -> HandlerResult {
        self.write(&mut **transaction, incoming, true).await
    }
}

#[async_trait]
impl<T: DerefMut<Target: LedgerConnection> + Send> CallHandler<T> for LedgerHandler {
    type Answer = Verdict;

    async fn call(&self, incoming: &Incoming) -> HandlerResult {
        let Payload { change } = incoming.json()?;
        let call = ServiceCall {
            message_id: incoming.id().to_string(),
            idempotency_id: incoming.idempotency_id().to_string(),
            member: self.member.clone(),
        };
        self.external_service.call(&self.consumer, &call).await?;
        if self.failure_rates.of(incoming.id()) == MessageKind::Fails && incoming.attempt() <= FAILS {
            return Err(HandlerError::transient("the external service fails at first").into());
        }
        self.behaviour.at(PointReached { point: Point::Called, change, incoming: Some(incoming) }).await
    }

    async fn commit(&self, transaction: &mut T, incoming: &Incoming, verdict: &Verdict) -> HandlerResult {
        self.write(&mut **transaction, incoming, false).await?;
        Ok(*verdict)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_may_have_more_fields_than_its_change() {
        assert_eq!(change_of(br#"{"change": 7, "token": "p1"}"#), Some(7));
        assert_eq!((change_of(b"7"), change_of(b"\xff")), (None, None));
    }
}
