//! Publishes batches of messages, with one outcome per message.

mod batch;
mod call;
mod channel_task;
mod connection_task;
mod encode;
mod ready_queue;
mod returns;
mod unconfirmed;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use lapin::types::ShortString;
use parking_lot::Mutex;
use relevo_core::broker::OutcomeReceiver;
use relevo_core::{Broker, Capabilities, OutcomeSender, Publication};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use batch::{ChannelBatch, plan_batch};
use call::{PendingConfirm, PublishCall, QueuedMessage, report_all};
use channel_task::ChannelTask;
use connection_task::BrokerConnection;
pub(crate) use encode::EncodedMessage;

use crate::classify::Error;
use crate::config::Config;

/// The maximum number of exchanges with channels.
const EXCHANGES_MAX: usize = 256;
/// The capacity of a channel task's queue of batches. The task takes them at once unless it is full.
const JOBS_MAX: usize = 16;
/// The default frame size of a server, used until a connection has negotiated one.
const FRAME_BYTES: usize = 131_072;

/// A RabbitMQ publisher. Cheap to clone: clones share the connection.
///
/// It connects in the background and reconnects after every failure; in the meantime messages are reported as an
/// outage. Dropping the last clone ends it at once; [`close`](Self::close) closes the connection properly.
#[derive(Clone)]
pub struct Publisher(Arc<PublisherInner>);

struct PublisherInner {
    config: Arc<Config>,
    connection: watch::Receiver<BrokerConnection>,
    closing: watch::Sender<bool>,
    exchanges: Mutex<Exchanges>,
    /// Held by the call of [`Publisher::publish_to_queues`] that is sending.
    queue_turn: tokio::sync::Mutex<()>,
}

struct Exchanges {
    channel_tasks: HashMap<String, Vec<mpsc::Sender<Vec<QueuedMessage>>>>,
    tasks: JoinSet<()>,
}

impl Publisher {
    /// Starts to connect. An unreachable broker is not an error.
    #[expect(clippy::unused_async, reason = "tasks are started, which needs a runtime")]
    pub async fn open(config: Config) -> Result<Self, Error> {
        config.validate()?;
        Ok(Self::start(Arc::new(config), "relevo publisher".to_owned()))
    }

    /// Starts to connect with a validated configuration. `name` is the connection name in the broker's tools.
    pub(crate) fn start(config: Arc<Config>, name: String) -> Self {
        let (sender, connection) = watch::channel(BrokerConnection::Connecting);
        let (closing, closes) = watch::channel(false);
        let mut tasks = JoinSet::new();
        tasks.spawn(connection_task::run(Arc::clone(&config), name, sender, closes));
        let exchanges = Mutex::new(Exchanges { channel_tasks: HashMap::new(), tasks });
        let queue_turn = tokio::sync::Mutex::new(());
        Self(Arc::new(PublisherInner { config, connection, closing, exchanges, queue_turn }))
    }

    /// Whether it is connected now. It sends no request to the server.
    pub fn is_connected(&self) -> bool {
        matches!(&*self.0.connection.borrow(), BrokerConnection::Up(_))
    }

    /// Closes the connection. Messages in flight may have been stored; later calls report an outage.
    pub async fn close(&self) {
        self.0.closing.send_replace(true);
        let mut connection = self.0.connection.clone();
        // If the task has ended, its sender is dropped.
        connection.wait_for(|connection| matches!(connection, BrokerConnection::Closed)).await.ok();
    }

    /// Publishes messages to queues, in order on one channel. The routing key is the name of the queue. Returns an
    /// outcome for each: `Ok` if the broker has confirmed the message and routed it to its queue. After an error it may
    /// still have been stored, as [`Error::class`] says.
    ///
    /// Calls send one after the other, so that a call that is cancelled while it waits has sent nothing.
    pub(crate) async fn publish_to_queues(&self, messages: Vec<EncodedMessage>) -> Vec<Result<(), Error>> {
        let count = messages.len();
        let limit = self.0.config.confirm_timeout;
        let Ok(_turn) = timeout(limit, self.0.queue_turn.lock()).await else {
            return vec![Err(Error::NoResponse(limit)); count];
        };
        let outcomes = OutcomeReceiver::default();
        let call = PublishCall::new(&outcomes.sender(0), count, Instant::now());
        let batch = ChannelBatch { exchange: "", channel: 0, messages: messages.into_iter().enumerate().collect() };
        call.wait_for_outcomes(self.enqueue(batch, &call)).await;
        let mut results = vec![Err(Error::Closed); count];
        for (_, index, outcome) in outcomes.take() {
            results[index] = outcome.map_err(|failure| match failure.cause::<Error>() {
                // On the default exchange, an unroutable message has no queue.
                Some(Error::Unroutable { key, .. }) => Error::NotFound(format!("`{key}`")),
                Some(error) => error.clone(),
                None => Error::Closed,
            });
        }
        results
    }

    /// The channels of an exchange, opened at its first use.
    fn channel_tasks(&self, exchange: &str) -> Result<Vec<mpsc::Sender<Vec<QueuedMessage>>>, Error> {
        let PublisherInner { config, connection, exchanges, .. } = &*self.0;
        let mut exchanges = exchanges.lock();
        if let Some(senders) = exchanges.channel_tasks.get(exchange) {
            return Ok(senders.clone());
        }
        if exchanges.channel_tasks.len() == EXCHANGES_MAX {
            return Err(Error::TooManyExchanges(EXCHANGES_MAX));
        }
        let name = ShortString::try_new(exchange)
            .map_err(|_| Error::InvalidAddress("its exchange is longer than 255 bytes"))?;
        let senders: Vec<_> = (0..config.channels_per_exchange)
            .map(|_| {
                let (sender, jobs) = mpsc::channel(JOBS_MAX);
                let task = ChannelTask::new(Arc::clone(config), name.clone(), connection.clone(), jobs);
                exchanges.tasks.spawn(task.run());
                sender
            })
            .collect();
        exchanges.channel_tasks.insert(exchange.to_owned(), senders.clone());
        Ok(senders)
    }

    fn frame_bytes(&self) -> usize {
        match &*self.0.connection.borrow() {
            BrokerConnection::Up(live) => live.connection.configuration().frame_max() as usize,
            BrokerConnection::Connecting | BrokerConnection::Down(_) | BrokerConnection::Closed => FRAME_BYTES,
        }
    }

    async fn enqueue(&self, batch: ChannelBatch<'_>, call: &Arc<PublishCall>) {
        let fail_all = |messages: Vec<QueuedMessage>, error: &Error| {
            report_all(messages.into_iter().map(|message| (message.pending, Err(error.clone()))).collect());
        };
        let queued = |(index, message)| QueuedMessage { pending: PendingConfirm::new(call, index), message };
        let messages = batch.messages.into_iter().map(queued).collect();
        match self.channel_tasks(batch.exchange) {
            Err(error) => fail_all(messages, &error),
            Ok(senders) => {
                if let Err(mpsc::error::SendError(messages)) = senders[batch.channel].send(messages).await {
                    fail_all(messages, &Error::Closed);
                }
            }
        }
    }
}

#[async_trait]
impl Broker for Publisher {
    fn capabilities(&self) -> Capabilities {
        // A refused message does not stop the next one on its channel.
        Capabilities { ordered_in_flight: false }
    }

    fn is_unreachable(&self) -> bool {
        match &*self.0.connection.borrow() {
            BrokerConnection::Up(live) => live.alarm.is_some(),
            BrokerConnection::Down(_) => true,
            BrokerConnection::Connecting | BrokerConnection::Closed => false,
        }
    }

    async fn close(&self) {
        Self::close(self).await;
    }

    async fn publish(&self, batch: &[Publication], confirms: &OutcomeSender) {
        let started_at = Instant::now();
        let plan = plan_batch(batch, &self.0.config, self.frame_bytes());
        confirms.report_all(plan.refused.into_iter().map(|(index, error)| (index, Err(error.into()))));
        for step in plan.steps {
            let count = step.iter().map(|batch| batch.messages.len()).sum();
            let call = PublishCall::new(confirms, count, started_at);
            call.wait_for_outcomes(async {
                for batch in step {
                    self.enqueue(batch, &call).await;
                }
            })
            .await;
        }
    }
}

impl fmt::Debug for Publisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Publisher").field(&self.0.config).finish()
    }
}
