//! A consumer on the embedded broker that writes invoices and emits an event about each. Ctrl-C shuts it down cleanly.
//!
//! The inbox is in memory, so that the example needs no database. With PostgreSQL the transaction type is
//! `relevo_store_postgres::inbox::Transaction`; the rest is the same.

use std::sync::Arc;

use relevo_broker_embedded::{BrokerFile, Config as BrokerConfig, ConsumerOptions, Group};
use relevo_core::Draft;
use relevo_core::inbox::InboxRetention;
use relevo_inbox::{Config, ConsumerRuntime, HandlerError, HandlerResult, Handlers, Incoming, Tx};
use relevo_store_memory::{Config as StoreConfig, Database, Transaction};
use serde::Deserialize;
use tokio_util::sync::CancellationToken;

#[derive(Deserialize)]
struct OrderPlaced {
    order: String,
    cents: u64,
}

/// Either both the invoice and its event exist once, or neither exists.
async fn bill(mut tx: Tx<Transaction>, placed: Incoming<OrderPlaced>) -> HandlerResult<()> {
    if placed.cents == 0 {
        return Err(HandlerError::permanent("an order without a price").with_class("price").into()); // dead-lettered
    }
    tx.record_effect(format!("invoice for {}: {} cents", placed.order, placed.cents))?; // any other error is retried
    tx.emit(placed.with_causation(Draft::json("invoices", &placed.order, "InvoiceIssued", "{}")))?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let broker = BrokerFile::open(BrokerConfig::new("relevo-billing.db")).await?;
    broker.declare_group(&Group::new("billing", ["orders.**"])).await?;
    let consumer = broker.consumer("billing", ConsumerOptions::default()).await?;
    let inbox = Database::new(StoreConfig::default()).inbox("billing", InboxRetention::default());
    let handlers = Handlers::new().on("OrderPlaced", bill);
    let runtime = ConsumerRuntime::new(Arc::new(inbox), Arc::new(consumer), handlers, Config::default());

    let stop = CancellationToken::new();
    let interrupt = async {
        tokio::signal::ctrl_c().await?;
        stop.cancel();
        Ok(())
    };
    tokio::try_join!(async { Ok(runtime.run(stop.clone()).await?) }, interrupt).map(|_| ())
}
