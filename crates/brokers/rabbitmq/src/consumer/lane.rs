//! One lane: a channel, a subscription, and its deliveries.

use std::sync::Arc;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use lapin::options::{BasicConsumeOptions, BasicQosOptions};
use lapin::types::FieldTable;
use lapin::{Channel, Connection};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::arrived::Arrived;
use super::shared::Shared;
use crate::backoff::Backoff;
use crate::classify::Error;

/// How a subscription ended.
enum Ended {
    /// Released to another consumer.
    HandedOver,
    /// Ended by the broker, or with the connection.
    Broken(Error),
}

/// Keeps a lane subscribed while the connection is open.
pub(crate) async fn serve(shared: &Arc<Shared>, connection: &Connection, lane: usize) {
    let mut backoff = Backoff::default();
    while connection.status().connected() {
        let ended = match subscribe(shared, connection, lane).await {
            Ok((channel, mut deliveries)) => {
                backoff = Backoff::default();
                let ended = carry(shared, lane, &mut deliveries).await;
                // Close the channel before the stream is dropped, which would cancel the subscription. After a cancel,
                // the next consumer would get the unacknowledged messages after newer ones.
                timeout(shared.config.connect_deadline, channel.close(200, "OK".into())).await.ok();
                shared.lost(lane, matches!(ended, Ended::HandedOver));
                ended
            }
            Err(error) => Ended::Broken(error),
        };
        match ended {
            Ended::HandedOver => {}
            Ended::Broken(error) => {
                shared.trouble(&shared.queues[lane], error);
                sleep(backoff.next()).await;
            }
        }
    }
}

async fn subscribe(shared: &Shared, connection: &Connection, lane: usize) -> Result<(Channel, lapin::Consumer), Error> {
    let queue = shared.queues[lane].as_str();
    let opening = async {
        let channel = connection.create_channel().await?;
        // Set the prefetch before the subscription: it applies only to later subscriptions.
        channel.basic_qos(shared.membership.prefetch, BasicQosOptions::default()).await?;
        let (options, table) = (BasicConsumeOptions::default(), FieldTable::default());
        let deliveries = channel.basic_consume(queue.into(), "".into(), options, table).await?;
        Ok((channel, deliveries))
    };
    let opened = timeout(shared.config.connect_deadline, opening).await;
    let (channel, deliveries) =
        opened.map_err(|_| Error::Silent(shared.config.connect_deadline))?.map_err(Error::of_channel)?;
    shared.opened(lane, channel.clone());
    Ok((channel, deliveries))
}

async fn carry(shared: &Arc<Shared>, lane: usize, deliveries: &mut lapin::Consumer) -> Ended {
    let mut climbing = FuturesUnordered::new();
    let mut draining = None;
    loop {
        let drained = match shared.leaving(lane) {
            Leaving::Stays => {
                draining = None;
                None
            }
            Leaving::Idle => return Ended::HandedOver,
            Leaving::Busy => Some(*draining.get_or_insert_with(|| Instant::now() + shared.membership.hand_over)),
        };
        tokio::select! {
            biased;
            () = shared.wakers[lane].notified() => {}
            () = sleep_until(drained.unwrap_or_else(Instant::now)), if drained.is_some() => return Ended::HandedOver,
            Some(()) = climbing.next(), if !climbing.is_empty() => {}
            delivery = deliveries.next() => match delivery {
                Some(Ok(delivery)) => {
                    let arrived = Arrived::new(delivery, shared.group.lanes.is_some(), &shared.config.exchange);
                    if let Some(tag) = shared.arrived(lane, arrived) {
                        climbing.push(climb(shared, lane, tag));
                    }
                }
                Some(Err(error)) => return Ended::Broken(Error::of_channel(error)),
                // The queue was deleted or moved to another node: the next attempt returns the error.
                None => return Ended::Broken(Error::Closed),
            },
        }
    }
}

/// Whether a lane must be released.
pub(crate) enum Leaving {
    /// No.
    Stays,
    /// When its outstanding deliveries are acknowledged.
    Busy,
    /// Now.
    Idle,
}

/// Moves a message to its next retry queue. If this fails, the broker still has the message.
async fn climb(shared: &Shared, lane: usize, tag: u64) {
    let mut backoff = Backoff::default();
    while let Err(error) = shared.climb_on(lane, tag).await {
        tracing::warn!(queue = shared.queues[lane], %error, "a message cannot go on waiting, will try again");
        sleep(backoff.next()).await;
    }
}
