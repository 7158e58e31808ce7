//! The port to the relay.

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use relevo_core::{Broker, Capabilities, Confirms, Publication};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::classify::Error;
use crate::config::Config;
use crate::link;
use crate::publish::{self, State};

/// Publishes to streams of NATS `JetStream`. Cheap to clone; the connection ends with the last clone.
#[derive(Clone, Debug)]
pub struct NatsBroker {
    config: Arc<Config>,
    state: watch::Receiver<State>,
    keeper: Arc<Mutex<JoinSet<()>>>,
}

impl NatsBroker {
    /// Checks the configuration and begins to connect. A server that is away is no error: the connection is made when
    /// it comes, and until then publishing reports an outage.
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

    /// Gives the connection up. What is being published has no certain outcome; later calls report an outage.
    pub async fn close(&self) {
        let mut keeper = std::mem::take(&mut *self.keeper.lock().unwrap_or_else(PoisonError::into_inner));
        keeper.shutdown().await;
        if let State::Up(session) = &*self.state.borrow() {
            session.acks.lose();
        }
    }

    /// Whoever opens a broker whose server is there can publish at once.
    async fn first_attempt(&mut self) {
        let deadline = self.config.connect_deadline;
        // Neither the time that it took nor its failure matters here: `publish` tells.
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
        // The server stores what comes over one connection in its order, but a refused message holds no other back.
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
