//! Implements the broker port for the relay.

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use relevo_core::{Broker, Capabilities, Confirms, Publication};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::classify::Error;
use crate::config::Config;
use crate::link;
use crate::publish::{self, State};

/// Publishes to NATS `JetStream` streams. Cheap to clone; dropping the last clone closes the connection.
#[derive(Clone, Debug)]
pub struct NatsBroker {
    config: Arc<Config>,
    state: watch::Receiver<State>,
    keeper: Arc<Mutex<JoinSet<()>>>,
}

impl NatsBroker {
    /// Validates the configuration and starts to connect. An unreachable server is not an error: the broker keeps
    /// trying, and publishing reports an outage until it connects.
    pub async fn open(config: Config) -> Result<Self, Error> {
        config.validate()?;
        let servers = link::servers(&config)?;
        let (sender, state) = watch::channel(State::Down(Arc::new(Error::Connecting)));
        let mut keeper = JoinSet::new();
        keeper.spawn(publish::keep(config.clone(), servers, sender));
        let mut broker = Self { config: Arc::new(config), state, keeper: Arc::new(Mutex::new(keeper)) };
        broker.first_attempt().await;
        Ok(broker)
    }

    /// Closes the connection. Messages in flight have an unknown outcome; later calls report an outage.
    pub async fn close(&self) {
        let mut keeper = std::mem::take(&mut *self.keeper.lock().unwrap_or_else(PoisonError::into_inner));
        keeper.shutdown().await;
        if let State::Up(session) = &*self.state.borrow() {
            session.acks.lose();
        }
    }

    /// Waits for the first attempt, so that the caller can publish at once if the server is reachable.
    async fn first_attempt(&mut self) {
        let deadline = self.config.connect_deadline;
        // Ignore a timeout or a failure here: `publish` reports it.
        tokio::time::timeout(deadline, self.state.changed()).await.ok();
    }
}

#[async_trait]
impl Broker for NatsBroker {
    fn capabilities(&self) -> Capabilities {
        let message_bytes_max = match &*self.state.borrow() {
            State::Up(session) => publish::bytes_max(session, &self.config),
            State::Down(_) => self.config.message_bytes_max,
        };
        // The server stores messages of one connection in order, but a refused message does not stop later ones.
        Capabilities { fences_order: false, message_bytes_max }
    }

    fn is_away(&self) -> bool {
        matches!(&*self.state.borrow(), State::Down(reason) if !matches!(**reason, Error::Connecting))
    }

    async fn publish(&self, batch: &[Publication], confirms: &Confirms) {
        let state = self.state.borrow().clone();
        match state {
            State::Up(session) => publish::publish(&session, &self.config, batch, confirms).await,
            State::Down(reason) => {
                confirms
                    .report_all((0..batch.len()).map(|index| (index, Err(Error::Common(Arc::clone(&reason)).into()))));
            }
        }
    }
}
