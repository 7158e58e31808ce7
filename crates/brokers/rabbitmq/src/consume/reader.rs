//! One lane: a channel, a subscription, and its deliveries.

use std::sync::Arc;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use lapin::options::{BasicConsumeOptions, BasicQosOptions, QueueDeclareOptions};
use lapin::types::FieldTable;
use lapin::{Channel, Connection};
use tokio::time::{Instant, sleep_until, timeout};

use super::ConsumerInner;
use super::decode::ReceivedMessage;
use crate::classify::Error;
use crate::connection;
use crate::topology::field_table;

/// How a subscription ended.
enum SubscriptionEnd {
    /// Released to another consumer.
    HandedOver,
    /// Ended by the broker, or with the connection.
    Failed(Error),
}

/// Keeps a lane subscribed while the connection is open.
pub(crate) async fn run_lane(inner: &Arc<ConsumerInner>, connection: &Connection, lane: usize) {
    let mut backoff = connection::backoff();
    let mut is_verified = false;
    while connection.status().connected() {
        let subscribed = async {
            if !is_verified {
                verify_order(inner, connection, lane).await?;
            }
            subscribe(inner, connection, lane).await
        };
        let ended = match subscribed.await {
            Ok((channel, mut deliveries)) => {
                backoff.reset();
                is_verified = true;
                let ended = forward_deliveries(inner, lane, &mut deliveries).await;
                // Close the channel before the stream is dropped, which would cancel the subscription. After a cancel,
                // the next consumer would get the unacknowledged messages after newer ones.
                timeout(inner.config.connect_timeout, channel.close(200, "OK".into())).await.ok();
                inner.lane_unsubscribed(lane, matches!(ended, SubscriptionEnd::HandedOver));
                ended
            }
            Err(error) => SubscriptionEnd::Failed(error),
        };
        match ended {
            SubscriptionEnd::HandedOver => {}
            SubscriptionEnd::Failed(error) => {
                // The queue may have been deleted and created again with other settings.
                is_verified = false;
                inner.report_error(&inner.queues[lane], error);
                connection::pause(&mut backoff).await;
            }
        }
    }
}

async fn subscribe(
    inner: &ConsumerInner,
    connection: &Connection,
    lane: usize,
) -> Result<(Channel, lapin::Consumer), Error> {
    let queue = inner.queues[lane].as_str();
    let opening = async {
        let channel = connection.create_channel().await?;
        // Set the prefetch before the subscription: it applies only to later subscriptions.
        channel.basic_qos(inner.prefetch, BasicQosOptions::default()).await?;
        let (options, table) = (BasicConsumeOptions::default(), FieldTable::default());
        let deliveries = channel.basic_consume(queue.into(), "".into(), options, table).await?;
        Ok((channel, deliveries))
    };
    let opened = timeout(inner.config.connect_timeout, opening).await;
    let (channel, deliveries) =
        opened.map_err(|_| Error::NoResponse(inner.config.connect_timeout))?.map_err(Error::from_channel_error)?;
    inner.lane_subscribed(lane, channel.clone());
    Ok((channel, deliveries))
}

/// Refuses an ordered queue that exists without a single active consumer, such as one of an earlier version: two
/// consumers could handle messages of one key at the same time.
///
/// AMQP does not show the settings of a queue. The broker compares them when the queue is declared again, and names the
/// first one that differs, which may hide a missing single active consumer: every difference is refused. Without
/// permission to declare, the configuration is trusted.
async fn verify_order(inner: &ConsumerInner, connection: &Connection, lane: usize) -> Result<(), Error> {
    let name = &inner.queues[lane];
    let declarations = if inner.queue.is_ordered() { inner.queue.declarations() } else { Vec::new() };
    let Some(declaration) = declarations.into_iter().find(|declaration| declaration.name == *name) else {
        return Ok(());
    };
    let arguments = field_table(&declaration.arguments)?;
    let declaring = async {
        // A refused request closes its channel. A missing queue is not created.
        let channel = connection.create_channel().await?;
        let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        channel.queue_declare(name.as_str().into(), passive, FieldTable::default()).await?;
        let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        channel.queue_declare(name.as_str().into(), durable, arguments).await?;
        channel.close(200, "OK".into()).await
    };
    let declared = timeout(inner.config.connect_timeout, declaring).await;
    match declared.map_err(|_| Error::NoResponse(inner.config.connect_timeout))?.map_err(Error::from_channel_error) {
        Err(Error::Mismatch(text)) if text.contains("'x-single-active-consumer'") => {
            Err(Error::Unordered(name.clone()))
        }
        Err(Error::AccessRefused(_)) => Ok(()),
        other => other,
    }
}

async fn forward_deliveries(
    inner: &Arc<ConsumerInner>,
    lane: usize,
    deliveries: &mut lapin::Consumer,
) -> SubscriptionEnd {
    let mut moves = FuturesUnordered::new();
    let mut draining = None;
    loop {
        let drained = match inner.hand_over(lane) {
            HandOver::None => {
                draining = None;
                None
            }
            HandOver::Ready => return SubscriptionEnd::HandedOver,
            HandOver::Draining => Some(*draining.get_or_insert_with(|| Instant::now() + inner.options.lease)),
        };
        tokio::select! {
            biased;
            () = inner.lane_wakers[lane].notified() => {}
            () = sleep_until(drained.unwrap_or_else(Instant::now)), if drained.is_some() => return SubscriptionEnd::HandedOver,
            Some(()) = moves.next(), if !moves.is_empty() => {}
            delivery = deliveries.next() => match delivery {
                Some(Ok(delivery)) => {
                    let message = ReceivedMessage::new(delivery, inner.queue.lanes.is_some(), &inner.config.exchange);
                    if let Some(tag) = inner.buffer_delivery(lane, message) {
                        moves.push(move_to_next_retry_queue(inner, lane, tag));
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
async fn move_to_next_retry_queue(inner: &ConsumerInner, lane: usize, tag: u64) {
    let mut backoff = connection::backoff();
    while let Err(error) = inner.move_to_next_retry_queue(lane, tag).await {
        tracing::warn!(queue = inner.queues[lane], %error, "cannot move the message to its next retry queue, will retry");
        connection::pause(&mut backoff).await;
    }
}
