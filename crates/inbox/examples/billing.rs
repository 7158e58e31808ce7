//! A consumer with one handler of each kind, on the embedded broker. Ctrl-C shuts it down cleanly.
//!
//! The inbox is in memory, so that the example needs no database. With PostgreSQL the transaction type is
//! `relevo_store_postgres::inbox::Transaction`; the rest is the same.

use std::sync::Arc;

use async_trait::async_trait;
use relevo_broker_embedded::{BrokerFile, Config as BrokerConfig, ConsumerOptions, Group};
use relevo_core::inbox::InboxRetention;
use relevo_inbox::{
    CallHandler, Config, ConsumerRuntime, HandlerError, HandlerResult, Handlers, Incoming, TypedInside, Verdict, typed,
};
use relevo_store_memory::{Config as StoreConfig, Database, Draft, Transaction};
use serde::Deserialize;
use tokio_util::sync::CancellationToken;

#[derive(Deserialize)]
struct OrderPlaced {
    order: String,
    cents: u64,
}

/// Writes an invoice and emits an event about it: both happen once, or neither.
struct Invoice;

#[async_trait]
impl TypedInside<Transaction> for Invoice {
    type Payload = OrderPlaced;

    async fn handle(&self, transaction: &mut Transaction, order: OrderPlaced, incoming: &Incoming) -> HandlerResult {
        if order.cents == 0 {
            return Ok(Verdict::Skip);
        }
        transaction.record_effect(format!("invoice for {}: {} cents", order.order, order.cents))?;
        let issued = Draft::json("invoices", &order.order, "InvoiceIssued", "{}");
        transaction.emit(incoming.with_causation(issued))?;
        Ok(Verdict::Done)
    }
}

/// Sends a letter: calls the postal service outside of any transaction, and stores its receipt once.
struct Letter;

#[async_trait]
impl CallHandler<Transaction> for Letter {
    type Answer = String;

    async fn call(&self, incoming: &Incoming) -> Result<String, HandlerError> {
        post(incoming.idempotency_id(), incoming.payload()).await.map_err(|error| match error {
            PostError::Closed => HandlerError::unavailable("the post is closed"), // pauses the lane, counts no attempt
            PostError::NoSuchStreet => HandlerError::permanent("no such street").with_class("address"), // dead-lettered
        })
    }

    async fn commit(&self, transaction: &mut Transaction, _incoming: &Incoming, receipt: &String) -> HandlerResult {
        transaction.record_effect(receipt.clone())?;
        Ok(Verdict::Done)
    }
}

enum PostError {
    Closed,
    NoSuchStreet,
}

async fn post(id: uuid::Uuid, letter: &[u8]) -> Result<String, PostError> {
    tokio::task::yield_now().await;
    match letter {
        b"" => Err(PostError::NoSuchStreet),
        b"sunday" => Err(PostError::Closed),
        _ => Ok(format!("sent as {id}")),
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let broker = BrokerFile::open(BrokerConfig::new("relevo-billing.db")).await?;
    broker.declare_group(&Group::new("billing", ["orders.**", "letters"])).await?;
    let consumer = broker.consumer("billing", ConsumerOptions::default()).await?;
    let inbox = Database::new(StoreConfig::default()).inbox("billing", InboxRetention::default());
    let handlers = Handlers::new().handler("OrderPlaced", typed(Invoice)).call_handler("letter.*", Letter);

    let runtime = ConsumerRuntime::new(Arc::new(inbox), Arc::new(consumer), handlers, Config::new("billing"));
    let stop = CancellationToken::new();
    let interrupted = stop.clone();
    let run = runtime.run(stop);
    tokio::pin!(run);
    tokio::select! {
        ended = &mut run => return Ok(ended?),
        _ = tokio::signal::ctrl_c() => interrupted.cancel(),
    }
    Ok(run.await?)
}
