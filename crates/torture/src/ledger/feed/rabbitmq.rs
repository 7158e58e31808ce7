//! RabbitMQ.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use lapin::options::QueueDeclareOptions;
use lapin::types::FieldTable;
use lapin::{Connection, ConnectionProperties};
use relevo_broker_rabbitmq::{
    Admin, Binding, Config, ConsumerOptions, Exchange, GroupConsumer, Publisher, Queue, Topology,
    dead_letter_queue_name,
};
use relevo_core::broker::admin::TopologyStatus;
use relevo_core::{Broker, BrokerAdmin as _, BrokerConsumer};

use super::{Feed, Kind};

impl Feed {
    fn queue(&self) -> Queue {
        let Kind::RabbitMq { queue, retry, .. } = &self.kind else { unreachable!("only called for RabbitMQ") };
        Queue {
            lanes: self.lanes,
            single_active_consumer: self.ordered,
            retry_delays: retry.clone(),
            ..Queue::new(queue)
        }
    }

    fn rabbitmq(&self) -> Config {
        let Kind::RabbitMq { url, exchange, .. } = &self.kind else { unreachable!("only called for RabbitMQ") };
        // The protocol counts heartbeats in seconds, and drops a peer after two missed ones.
        let heartbeat = Duration::from_secs((self.lease / 2).as_secs().max(1));
        Config { exchange: exchange.clone(), lanes: self.lanes, heartbeat, ..Config::new(url) }
    }
}

pub(super) async fn declare(feed: &Feed) -> Result<()> {
    let (config, queue) = (feed.rabbitmq(), feed.queue());
    let exchange = config.exchange.clone();
    let topology = Topology {
        exchanges: vec![Exchange::new(&exchange)],
        bindings: vec![Binding::to_queue(exchange, "#", &queue.name)],
        queues: vec![queue],
        policies: Vec::new(),
    };
    let items = Admin::new(Config { topology, ..config })?.apply().await?;
    let failed =
        items.iter().find(|item| matches!(item.status, TopologyStatus::Missing | TopologyStatus::Different(_)));
    ensure!(failed.is_none(), "the topology could not be created: {failed:?}");
    Ok(())
}

pub(super) async fn publisher(feed: &Feed) -> Result<Arc<dyn Broker>> {
    Ok(Arc::new(Publisher::open(feed.rabbitmq()).await?))
}

pub(super) async fn consumer(feed: &Feed, name: &str) -> Result<Arc<dyn BrokerConsumer>> {
    let membership = ConsumerOptions { name: name.to_owned(), prefetch: feed.prefetch.into(), lease: feed.lease };
    Ok(Arc::new(GroupConsumer::open(&feed.rabbitmq(), &feed.queue(), membership).await?))
}

pub(super) async fn unsettled(feed: &Feed) -> Result<u64> {
    let Kind::RabbitMq { url, .. } = &feed.kind else { unreachable!("only called for RabbitMQ") };
    let queue = feed.queue();
    let connection = Connection::connect(url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
    let mut unsettled = 0;
    for declared in queue.declarations().iter().filter(|declared| declared.name != dead_letter_queue_name(&queue.name))
    {
        let queue_state = channel.queue_declare(declared.name.as_str().into(), passive, FieldTable::default()).await?;
        unsettled += u64::from(queue_state.message_count());
    }
    connection.close(200, "done".into()).await?;
    Ok(unsettled)
}
