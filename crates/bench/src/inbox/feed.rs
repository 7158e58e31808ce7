//! A broker in memory that delivers messages as fast as they are consumed.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;
use parking_lot::Mutex;
use relevo_core::slot::shard_of;
use relevo_core::{
    AckOutcome, BrokerConsumer, ConsumerCapabilities, Delivery, DeliveryTag, Draft, Failure, Lane, MessageId,
    Publication, RawMessage, wire,
};
use tokio::sync::Notify;
use uuid::Uuid;

use crate::fill::{KEYS, PAYLOAD_BYTES};

/// The default prefetch of the brokers.
const PREFETCH: usize = 256;

/// Messages in lanes, each delivered once.
pub(super) struct Feed {
    inner: Mutex<Lanes>,
    settled: Notify,
}

#[derive(Default)]
struct Lanes {
    waiting: VecDeque<Delivery>,
    /// The number of unsettled messages of each lane, and the lane of each unsettled message.
    unsettled: BTreeMap<Lane, usize>,
    lane_by_tag: BTreeMap<DeliveryTag, Lane>,
}

impl Feed {
    /// Creates `count` new messages with the usual keys.
    pub(super) fn new(count: u32, lanes: u16) -> Self {
        let waiting = (0..count).map(|number| delivery(number, lanes)).collect();
        Self { inner: Mutex::new(Lanes { waiting, ..Lanes::default() }), settled: Notify::new() }
    }
}

#[async_trait]
impl BrokerConsumer for Feed {
    fn capabilities(&self) -> ConsumerCapabilities {
        ConsumerCapabilities { ordered_lanes: true, prefetch: usize::MAX }
    }

    async fn receive(&self, limit: usize) -> Result<Vec<Delivery>, Failure> {
        loop {
            let settled = self.settled.notified();
            let deliveries = self.inner.lock().take(limit);
            if !deliveries.is_empty() {
                return Ok(deliveries);
            }
            settled.await;
        }
    }

    async fn acknowledge(&self, tags: &[DeliveryTag]) -> Vec<AckOutcome> {
        let mut lanes = self.inner.lock();
        for tag in tags {
            if let Some(lane) = lanes.lane_by_tag.remove(tag) {
                *lanes.unsettled.entry(lane).or_default() -= 1;
            }
        }
        drop(lanes);
        self.settled.notify_one();
        vec![AckOutcome::Acknowledged; tags.len()]
    }

    async fn pause(&self, _lane: &Lane) -> Result<(), Failure> {
        Ok(())
    }

    async fn resume(&self, _lane: &Lane) -> Result<(), Failure> {
        Ok(())
    }

    async fn close(&self) -> Result<(), Failure> {
        Ok(())
    }
}

impl Lanes {
    /// Takes messages from the front, up to the limit or the first message whose lane is full. That one waits for a
    /// later call.
    fn take(&mut self, limit: usize) -> Vec<Delivery> {
        let mut deliveries = Vec::new();
        while deliveries.len() < limit
            && let Some(delivery) = self.waiting.pop_front_if(|next| self.unsettled.get(&next.lane) < Some(&PREFETCH))
        {
            *self.unsettled.entry(delivery.lane.clone()).or_default() += 1;
            self.lane_by_tag.insert(delivery.tag, delivery.lane.clone());
            deliveries.push(delivery);
        }
        deliveries
    }
}

fn delivery(number: u32, lanes: u16) -> Delivery {
    let key = format!("k-{}", number % KEYS);
    let lane = shard_of(relevo_core::slot::slot_of(&key), lanes);
    let draft = Draft::json("orders", &key, "OrderPlaced", vec![b'x'; PAYLOAD_BYTES]);
    let message = draft.into_message(MessageId::from_uuid(Uuid::now_v7()), Timestamp::now());
    let publication = Publication {
        message: Arc::new(message),
        address: "orders".into(),
        headers: Arc::default(),
        seq: number.into(),
        epoch: 1,
    };
    Delivery {
        tag: DeliveryTag::new(number.into()),
        raw: RawMessage::new(wire::headers(&publication, "/bench"), publication.message.payload.clone()),
        address: "orders".into(),
        lane: Lane::new(format!("orders.{lane}")),
        offset: Some(number.into()),
        redelivered: false,
        retry_count: 0,
    }
}
