//! A service with a consumer that exposes metrics: `curl localhost:9465/metrics`. Ctrl-C stops it cleanly.
//!
//! The inbox is in memory here, so that the example needs no server. With PostgreSQL the rest is the same.

use std::error::Error;
use std::sync::Arc;

use relevo_broker_embedded::{BrokerFile, Config as BrokerConfig, ConsumerOptions, Group};
use relevo_core::inbox::InboxRetention;
use relevo_inbox::{Config, ConsumerRuntime, HandlerResult, Handlers, Incoming, Tx};
use relevo_observe::ProcessMonitor;
use relevo_store_memory::{Config as StoreConfig, Database, Transaction};
use tokio_util::sync::CancellationToken;

async fn bill(mut tx: Tx<Transaction>, incoming: Incoming) -> HandlerResult<()> {
    tx.record_effect(format!("invoice for {}", incoming.key()))?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let broker = BrokerFile::open(BrokerConfig::new("relevo-shop.db")).await?;
    broker.declare_group(&Group::new("billing", ["orders.**"])).await?;
    let consumer = broker.consumer("billing", ConsumerOptions::default()).await?;
    let inbox = Database::new(StoreConfig::default()).inbox("billing", InboxRetention::default());
    let handlers = Handlers::new().on_raw("OrderPlaced", bill);
    let billing = ConsumerRuntime::new(Arc::new(inbox), Arc::new(consumer), handlers, Config::default());

    let stop = CancellationToken::new();
    let monitor = ProcessMonitor::new("shop", env!("CARGO_PKG_VERSION")).consumers([billing.status()]);
    let served = monitor.serve("127.0.0.1:9465".parse()?, None, stop.clone());
    let ran = billing.run(stop.clone());
    let interrupted = async {
        tokio::signal::ctrl_c().await?;
        stop.cancel();
        Ok::<(), Box<dyn Error>>(())
    };
    tokio::try_join!(async { Ok(served.await?) }, async { Ok(ran.await?) }, interrupted)?;
    Ok(())
}
