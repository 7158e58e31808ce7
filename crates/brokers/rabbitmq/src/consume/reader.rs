//! One lane: a channel, a subscription, and its deliveries.

use std::sync::Arc;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use lapin::options::{BasicConsumeOptions, BasicQosOptions};
use lapin::types::FieldTable;
use lapin::{Channel, Connection};
use tokio::time::{Instant, sleep_until, timeout};

use super::ConsumerInner;
use super::decode::ReceivedMessage;
use crate::classify::Error;
use crate::connection;

/// How a subscription ended.
enum SubscriptionEnd {
    /// Released to another consumer.
    HandedOver,
    /// Ended by the broker, or with the connection.
    Failed(Error),
}

/// Keeps a lane subscribed while the connection is open.
pub(crate) async fn run_lane(shared: &Arc<ConsumerInner>, connection: &Connection, lane: usize) {
    let mut backoff = connection::backoff();
    while connection.status().connected() {
        let ended = match subscribe(shared, connection, lane).await {
            Ok((channel, mut deliveries)) => {
                backoff = connection::backoff();
                let ended = forward_deliveries(shared, lane, &mut deliveries).await;
                // Close the channel before the stream is dropped, which would cancel the subscription. After a cancel,
                // the next consumer would get the unacknowledged messages after newer ones.
                timeout(shared.config.connect_timeout, channel.close(200, "OK".into())).await.ok();
                shared.lane_unsubscribed(lane, matches!(ended, SubscriptionEnd::HandedOver));
                ended
            }
            Err(error) => SubscriptionEnd::Failed(error),
        };
        match ended {
            SubscriptionEnd::HandedOver => {}
            SubscriptionEnd::Failed(error) => {
                shared.report_error(&shared.queues[lane], error);
                connection::pause(&mut backoff).await;
            }
        }
    }
}

async fn subscribe(
    shared: &ConsumerInner,
    connection: &Connection,
    lane: usize,
) -> Result<(Channel, lapin::Consumer), Error> {
    let queue = shared.queues[lane].as_str();
    let opening = async {
        let channel = connection.create_channel().await?;
        // Set the prefetch before the subscription: it applies only to later subscriptions.
        channel.basic_qos(shared.membership.prefetch, BasicQosOptions::default()).await?;
        let (options, table) = (BasicConsumeOptions::default(), FieldTable::default());
        let deliveries = channel.basic_consume(queue.into(), "".into(), options, table).await?;
        Ok((channel, deliveries))
    };
    let opened = timeout(shared.config.connect_timeout, opening).await;
    let (channel, deliveries) =
        opened.map_err(|_| Error::NoResponse(shared.config.connect_timeout))?.map_err(Error::from_channel_error)?;
    shared.lane_subscribed(lane, channel.clone());
    Ok((channel, deliveries))
}

async fn forward_deliveries(
    shared: &Arc<ConsumerInner>,
    lane: usize,
    deliveries: &mut lapin::Consumer,
) -> SubscriptionEnd {
    let mut climbing = FuturesUnordered::new();
    let mut draining = None;
    loop {
        let drained = match shared.hand_over(lane) {
            HandOver::None => {
                draining = None;
                None
            }
            HandOver::Ready => return SubscriptionEnd::HandedOver,
            HandOver::Draining => Some(*draining.get_or_insert_with(|| Instant::now() + shared.membership.hand_over)),
        };
        tokio::select! {
            biased;
            () = shared.lane_wakers[lane].notified() => {}
            () = sleep_until(drained.unwrap_or_else(Instant::now)), if drained.is_some() => return SubscriptionEnd::HandedOver,
            Some(()) = climbing.next(), if !climbing.is_empty() => {}
            delivery = deliveries.next() => match delivery {
                Some(Ok(delivery)) => {
                    let arrived = ReceivedMessage::new(delivery, shared.queue.lanes.is_some(), &shared.config.exchange);
                    if let Some(tag) = shared.buffer_delivery(lane, arrived) {
                        climbing.push(move_to_next_retry_queue(shared, lane, tag));
                    }
                }
                Some(Err(error)) => return SubscriptionEnd::Failed(Error::from_channel_error(error)),
                // The queue was deleted or moved to another node: the next attempt returns the error.
                None => return SubscriptionEnd::Failed(Error::Closed),
            },
        }
    }
}

/// Whether a lane must be released.
pub(crate) enum HandOver {
    /// No.
    None,
    /// When its outstanding deliveries are acknowledged.
    Draining,
    /// Now.
    Ready,
}

/// Moves a message to its next retry queue. If this fails, the broker still has the message.
async fn move_to_next_retry_queue(shared: &ConsumerInner, lane: usize, tag: u64) {
    let mut backoff = connection::backoff();
    while let Err(error) = shared.move_to_next_retry_queue(lane, tag).await {
        tracing::warn!(queue = shared.queues[lane], %error, "a message cannot go on waiting, will try again");
        connection::pause(&mut backoff).await;
    }
}
