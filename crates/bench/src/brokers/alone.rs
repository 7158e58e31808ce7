//! A client library without Relevo, publishing from memory.

use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use relevo_core::Publication;
use tokio::time::{MissedTickBehavior, interval};

/// Completes when the server has confirmed a message.
pub(super) type Confirm = Pin<Box<dyn Future<Output = anyhow::Result<()>> + Send>>;

/// A connection of a client library.
#[async_trait]
pub(super) trait Client: Send + Sync {
    /// Sends a message with the same headers as our adapter.
    async fn send(&self, publication: &Publication) -> anyhow::Result<Confirm>;
}

/// Messages per second, with at most `window` unconfirmed messages.
pub(super) async fn rate(client: &dyn Client, batch: &[Publication], window: usize) -> anyhow::Result<f64> {
    let start = Instant::now();
    let mut confirms = FuturesUnordered::new();
    for publication in batch {
        if confirms.len() >= window
            && let Some(confirm) = confirms.next().await
        {
            confirm?;
        }
        confirms.push(client.send(publication).await?);
    }
    while let Some(confirm) = confirms.next().await {
        confirm?;
    }
    Ok(f64::from(u32::try_from(batch.len())?) / start.elapsed().as_secs_f64())
}

/// Latencies from sending to the confirm, with one message every `period`. In milliseconds, sorted.
pub(super) async fn latencies(
    client: &dyn Client,
    batch: &[Publication],
    period: Duration,
    time: Duration,
) -> anyhow::Result<Vec<f64>> {
    let mut ticker = interval(period);
    ticker.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let start = Instant::now();
    let mut messages = batch.iter().cycle();
    let mut confirms = FuturesUnordered::new();
    let mut millis = Vec::new();
    while start.elapsed() < time || !confirms.is_empty() {
        tokio::select! {
            biased;
            Some(confirmed) = confirms.next() => millis.push(confirmed?),
            _ = ticker.tick(), if start.elapsed() < time => {
                let Some(publication) = messages.next() else { break };
                let sent = Instant::now();
                let confirm = client.send(publication).await?;
                confirms.push(async move { confirm.await.map(|()| sent.elapsed().as_secs_f64() * 1000.0) });
            }
        }
    }
    // The first second is the warm-up of both sides.
    let warm = usize::try_from(Duration::from_secs(1).as_nanos() / period.as_nanos())?.min(millis.len());
    let mut millis = millis.split_off(warm);
    millis.sort_by(f64::total_cmp);
    Ok(millis)
}
