//! Implements the broker port for the relay.

use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use relevo_core::{Broker, Capabilities, OutcomeSender, Publication};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::classify::Error;
use crate::config::Config;
use crate::connection;
use crate::publish::{self, BrokerConnection};

/// Publishes to NATS `JetStream` streams. Cheap to clone; dropping the last clone closes the connection.
#[derive(Clone, Debug)]
pub struct Publisher {
    config: Arc<Config>,
    connection: watch::Receiver<BrokerConnection>,
    tasks: Arc<Mutex<JoinSet<()>>>,
}

impl Publisher {
    /// Validates the configuration and starts to connect. An unreachable server is not an error: the broker keeps
    /// trying, and publishing reports an outage until it connects.
    pub async fn open(config: Config) -> Result<Self, Error> {
        config.validate()?;
        let servers = connection::servers(&config)?;
        let (sender, state) = watch::channel(BrokerConnection::Down(Arc::new(Error::Connecting)));
        let mut keeper = JoinSet::new();
        keeper.spawn(publish::maintain(config.clone(), servers, sender));
        let mut broker = Self { config: Arc::new(config), connection: state, tasks: Arc::new(Mutex::new(keeper)) };
        broker.wait_for_first_attempt().await;
        Ok(broker)
    }

    /// Closes the connection. Messages in flight have an unknown outcome; later calls report an outage.
    pub async fn close(&self) {
        let mut keeper = std::mem::take(&mut *self.tasks.lock());
        keeper.shutdown().await;
        if let BrokerConnection::Up(session) = &*self.connection.borrow() {
            session.unconfirmed.connection_lost();
        }
    }

    /// Waits for the first attempt, so that the caller can publish at once if the server is reachable.
    async fn wait_for_first_attempt(&mut self) {
        let deadline = self.config.connect_timeout;
        // Ignore a timeout or a failure here: `publish` reports it.
        tokio::time::timeout(deadline, self.connection.changed()).await.ok();
    }
}

#[async_trait]
impl Broker for Publisher {
    fn capabilities(&self) -> Capabilities {
        let message_bytes_max = match &*self.connection.borrow() {
            BrokerConnection::Up(session) => publish::bytes_max(session, &self.config),
            BrokerConnection::Down(_) => self.config.message_bytes_max,
        };
        // The server stores messages of one connection in order, but a refused message does not stop later ones.
        Capabilities { ordered_in_flight: false, message_bytes_max }
    }

    fn is_unreachable(&self) -> bool {
        matches!(&*self.connection.borrow(), BrokerConnection::Down(reason) if !matches!(**reason, Error::Connecting))
    }

    async fn publish(&self, batch: &[Publication], confirms: &OutcomeSender) {
        let state = self.connection.borrow().clone();
        match state {
            BrokerConnection::Up(session) => publish::publish(&session, &self.config, batch, confirms).await,
            BrokerConnection::Down(reason) => {
                confirms
                    .report_all((0..batch.len()).map(|index| (index, Err(Error::Shared(Arc::clone(&reason)).into()))));
            }
        }
    }
}
