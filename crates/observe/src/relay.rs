//! Relays, as those see them who watch over them.

mod collect;
mod tables;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use relevo_core::sample::{BrokerVitals, Sample, Surroundings, Vitals};
use relevo_relay::{Stats, Watched};
use tokio::time::timeout;

use crate::slot::Slot;

pub(crate) use collect::Relays;

/// A database that is slower than this has no number to give.
const DEADLINE: Duration = Duration::from_secs(4);

/// One relay. Every answer comes from memory: a scrape waits for nothing.
pub trait Observed: fmt::Debug + Send + Sync + 'static {
    /// The outbox that it reads.
    fn outbox(&self) -> &str;

    /// The destination that it carries to.
    fn destination(&self) -> &str;

    /// What kind of broker that is: `rabbitmq`, `nats`, `embedded`, `memory`.
    fn broker(&self) -> &str;

    /// Where that is, by which brokers of one kind are told apart: two relays with the same carry to the same one. It is
    /// told to nobody.
    fn broker_place(&self) -> &str;

    /// Counters and present state; `None` while there is no relay yet.
    fn relay(&self) -> Option<(&Stats, &Watched)>;

    /// Whether it does its work at the moment.
    fn is_ready(&self) -> bool {
        self.relay().is_some_and(|(_, watched)| watched.is_started() && !watched.is_database_away())
    }

    /// How often the database was found away.
    fn database_away(&self) -> u64 {
        self.relay().map_or(0, |(stats, _)| stats.database_away())
    }

    /// For how long the broker has been away, as far as that is known; zero while it is there.
    fn broker_away_for(&self) -> Option<Duration> {
        self.relay().map(|(_, watched)| watched.destination_away_for().unwrap_or_default())
    }

    /// Whether the broker was there when it was last tried, and no connection to it was lost since.
    fn is_broker_up(&self) -> Option<bool> {
        self.relay().map(|(_, watched)| !watched.is_destination_away())
    }

    /// What was last sampled of the outbox; `None` while it cannot be.
    fn vitals(&self) -> Option<Vitals>;

    /// What was last sampled of what the outbox's destinations share. All relays of one outbox may tell it.
    fn surroundings(&self) -> Option<Surroundings>;

    /// What was last sampled of the broker.
    fn broker_vitals(&self) -> Option<BrokerVitals>;

    /// What the metrics tell of the outbox: as [`vitals`](Self::vitals), or for a while what those were before they could no
    /// longer be sampled. One sample that fails must not end the alerts that look at it.
    fn last_vitals(&self) -> Option<Vitals> {
        self.vitals()
    }

    /// What the metrics tell of what the outbox's destinations share: as [`surroundings`](Self::surroundings), or for a while
    /// what was last seen of it.
    fn last_surroundings(&self) -> Option<Surroundings> {
        self.surroundings()
    }

    /// How long ago all of [`vitals`](Self::vitals) and [`surroundings`](Self::surroundings) were last sampled; `None` where
    /// nobody samples.
    fn sampled_ago(&self) -> Option<Duration>;
}

/// A relay that somebody runs in a process of their own.
#[derive(Debug)]
pub struct Embedded {
    outbox: String,
    destination: String,
    broker: String,
    relay: (Arc<Stats>, Arc<Watched>),
    vitals: Slot<Vitals>,
    surroundings: Slot<Surroundings>,
    broker_vitals: Slot<BrokerVitals>,
    /// Whether anybody ever did.
    is_sampled: AtomicBool,
}

impl Embedded {
    /// A relay by its names and its handles; `broker` is what kind of broker it carries to.
    pub fn new(outbox: &str, destination: &str, broker: &str, stats: Arc<Stats>, watched: Arc<Watched>) -> Self {
        Self {
            outbox: outbox.to_owned(),
            destination: destination.to_owned(),
            broker: broker.to_owned(),
            relay: (stats, watched),
            vitals: Slot::default(),
            surroundings: Slot::default(),
            broker_vitals: Slot::default(),
            is_sampled: AtomicBool::new(false),
        }
    }

    /// Samples the outbox once. Call it every few seconds, beside the relay: no scrape asks the database.
    pub async fn sample(&self, store: &dyn Sample) {
        self.is_sampled.store(true, Ordering::Relaxed);
        let vitals = timeout(DEADLINE, store.vitals()).await;
        self.vitals.put(vitals.ok().and_then(Result::ok));
        let surroundings = timeout(DEADLINE, store.surroundings()).await;
        self.surroundings.put(surroundings.ok().and_then(Result::ok));
    }

    /// What was sampled of the broker.
    pub fn broker_sampled(&self, vitals: Option<BrokerVitals>) {
        self.broker_vitals.put(vitals);
    }
}

impl Observed for Embedded {
    fn outbox(&self) -> &str {
        &self.outbox
    }

    fn destination(&self) -> &str {
        &self.destination
    }

    fn broker(&self) -> &str {
        &self.broker
    }

    /// All of a kind are taken for one: nothing else is known of them here.
    fn broker_place(&self) -> &str {
        &self.broker
    }

    fn relay(&self) -> Option<(&Stats, &Watched)> {
        Some((&self.relay.0, &self.relay.1))
    }

    fn vitals(&self) -> Option<Vitals> {
        self.vitals.get()
    }

    fn surroundings(&self) -> Option<Surroundings> {
        self.surroundings.get()
    }

    fn broker_vitals(&self) -> Option<BrokerVitals> {
        self.broker_vitals.last()
    }

    fn last_vitals(&self) -> Option<Vitals> {
        self.vitals.last()
    }

    fn last_surroundings(&self) -> Option<Surroundings> {
        self.surroundings.last()
    }

    fn sampled_ago(&self) -> Option<Duration> {
        self.is_sampled.load(Ordering::Relaxed).then(|| self.vitals.age().max(self.surroundings.age()))
    }
}
