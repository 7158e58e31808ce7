//! The publishing side of the broker.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use async_trait::async_trait;
use lapin::types::ShortString;
use relevo_core::{Broker, Capabilities, Confirms, Publication};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::classify::Error;
use crate::config::Config;
use crate::keeper::{self, State};
use crate::publish::{Call, Item, Owner, Share, Ticket, sort, tell_all};

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
pub struct RabbitBroker(Arc<Inner>);

struct Inner {
    config: Arc<Config>,
    state: watch::Receiver<State>,
    closing: watch::Sender<bool>,
    exchanges: Mutex<Exchanges>,
}

struct Exchanges {
    owners: HashMap<String, Vec<mpsc::Sender<Vec<Item>>>>,
    tasks: JoinSet<()>,
}

impl RabbitBroker {
    /// Starts to connect. An unreachable broker is not an error.
    #[expect(clippy::unused_async, reason = "tasks are started, which needs a runtime")]
    pub async fn open(config: Config) -> Result<Self, Error> {
        config.check()?;
        let config = Arc::new(config);
        let (sender, state) = watch::channel(State::Connecting);
        let (closing, closes) = watch::channel(false);
        let mut tasks = JoinSet::new();
        tasks.spawn(keeper::keep(Arc::clone(&config), sender, closes));
        let exchanges = Mutex::new(Exchanges { owners: HashMap::new(), tasks });
        Ok(Self(Arc::new(Inner { config, state, closing, exchanges })))
    }

    /// Whether it is connected now. It sends no request to the server.
    pub fn is_connected(&self) -> bool {
        matches!(&*self.0.state.borrow(), State::Up(_))
    }

    /// Closes the connection. Messages in flight may have been stored; later calls report an outage.
    pub async fn close(&self) {
        self.0.closing.send_replace(true);
        let mut state = self.0.state.clone();
        // If the task has ended, its sender is dropped.
        state.wait_for(|state| matches!(state, State::Closed)).await.ok();
    }

    /// The channels of an exchange, opened at its first use.
    fn owners(&self, exchange: &str) -> Result<Vec<mpsc::Sender<Vec<Item>>>, Error> {
        let Inner { config, state, exchanges, .. } = &*self.0;
        // No code panics while it holds the lock.
        let mut exchanges = exchanges.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(owners) = exchanges.owners.get(exchange) {
            return Ok(owners.clone());
        }
        if exchanges.owners.len() == EXCHANGES_MAX {
            return Err(Error::Exchanges(EXCHANGES_MAX));
        }
        let name =
            ShortString::try_new(exchange).map_err(|_| Error::Address("its exchange is longer than 255 bytes"))?;
        let owners: Vec<_> = (0..config.channels)
            .map(|_| {
                let (sender, jobs) = mpsc::channel(JOBS_MAX);
                let owner = Owner::new(Arc::clone(config), name.clone(), state.clone(), jobs);
                exchanges.tasks.spawn(owner.run());
                sender
            })
            .collect();
        exchanges.owners.insert(exchange.to_owned(), owners.clone());
        Ok(owners)
    }

    fn frame_bytes(&self) -> usize {
        match &*self.0.state.borrow() {
            State::Up(line) => line.connection.configuration().frame_max() as usize,
            State::Connecting | State::Down(_) | State::Closed => FRAME_BYTES,
        }
    }

    async fn hand_over(&self, share: Share<'_>, call: &Arc<Call>) {
        let all = |items: Vec<Item>, why: &Error| {
            tell_all(items.into_iter().map(|item| (item.ticket, Err(why.clone()))).collect());
        };
        let item = |(index, parcel)| Item { ticket: Ticket::new(call, index), parcel };
        let items = share.parcels.into_iter().map(item).collect();
        match self.owners(share.exchange) {
            Err(why) => all(items, &why),
            Ok(owners) => {
                if let Err(mpsc::error::SendError(items)) = owners[share.channel].send(items).await {
                    all(items, &Error::Closed);
                }
            }
        }
    }
}

#[async_trait]
impl Broker for RabbitBroker {
    fn capabilities(&self) -> Capabilities {
        // A refused message does not stop the next one on its channel.
        Capabilities { fences_order: false, message_bytes_max: self.0.config.message_bytes_max }
    }

    fn is_away(&self) -> bool {
        match &*self.0.state.borrow() {
            State::Up(line) => line.alarm.is_some(),
            State::Down(_) => true,
            State::Connecting | State::Closed => false,
        }
    }

    async fn publish(&self, batch: &[Publication], confirms: &Confirms) {
        let began = Instant::now();
        let sorted = sort(batch, &self.0.config, self.frame_bytes());
        confirms.report_all(sorted.refused.into_iter().map(|(index, why)| (index, Err(why.into()))));
        for wave in sorted.waves {
            let call = Call::new(confirms, wave.iter().map(|share| share.parcels.len()).sum(), began);
            call.finished_after(async {
                for share in wave {
                    self.hand_over(share, &call).await;
                }
            })
            .await;
        }
    }
}

impl fmt::Debug for RabbitBroker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RabbitBroker").field(&self.0.config).finish()
    }
}
