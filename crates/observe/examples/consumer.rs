//! A service with a consumer that exposes metrics: `curl localhost:9465/metrics`. Ctrl-C stops it cleanly.
//!
//! The inbox is in memory here, so that the example needs no server. With PostgreSQL the rest is the same.

use std::error::Error;
use std::sync::Arc;

use async_trait::async_trait;
use relevo_broker_embedded::{Config as BrokerConfig, EmbeddedBroker, Group, Membership};
use relevo_core::inbox::Keeping;
use relevo_inbox::{Config, Handled, Handlers, Incoming, Inside, Runtime, Verdict};
use relevo_observe::consumer::Service;
use relevo_store_memory::{Outbox, Settings, Transaction};
use tokio_util::sync::CancellationToken;

struct Invoice;

#[async_trait]
impl Inside<Transaction> for Invoice {
    async fn handle(&self, transaction: &mut Transaction, incoming: &Incoming) -> Handled {
        transaction.record(format!("invoice for {}", incoming.key()))?;
        Ok(Verdict::Done)
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let broker = EmbeddedBroker::open(BrokerConfig::new("relevo-shop.db")).await?;
    broker.declare(&Group::new("billing", ["orders.**"])).await?;
    let consumer = broker.consumer("billing", Membership::default()).await?;
    let inbox = Outbox::new(Settings::default()).inbox("billing", Keeping::default());
    let handlers = Handlers::new().inside("OrderPlaced", Invoice);
    let billing = Runtime::new(Arc::new(inbox), Arc::new(consumer), handlers, Config::new("billing"));

    let stop = CancellationToken::new();
    let told = Service::new("shop", [billing.stats()]).serve("127.0.0.1:9465".parse()?, None, stop.clone());
    let ran = billing.run(stop.clone());
    let interrupted = async {
        tokio::signal::ctrl_c().await?;
        stop.cancel();
        Ok::<(), Box<dyn Error>>(())
    };
    tokio::try_join!(async { Ok(told.await?) }, async { Ok(ran.await?) }, interrupted)?;
    Ok(())
}
