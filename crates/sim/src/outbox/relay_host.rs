//! Hosts that kill, pause, stop and restart relays.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use relevo_relay::{Relay, RelayError};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::link::FaultyLink;
use crate::network::Network;
use crate::outbox::broker::{Connection, SimBroker};
use crate::outbox::event::{Event, History};
use crate::outbox::mutants::{Mutant, MutantBroker};
use crate::outbox::scenario::Scenario;
use crate::outbox::server::Server;
use crate::outbox::store::FaultyStore;
use relevo_core::random::SplitMix64;

/// Longer than any run.
const FOREVER: Duration = Duration::from_hours(24);

/// A host that runs one relay at a time and restarts it.
pub struct RelayHost {
    /// Its number.
    pub number: usize,
    /// The scenario.
    pub scenario: Arc<Scenario>,
    /// The history.
    pub history: Arc<History>,
    /// The store's server.
    pub server: Arc<Server>,
    /// The broker.
    pub broker: Arc<SimBroker>,
    /// The network.
    pub network: Network,
    /// The fault of the relay, if any.
    pub mutant: Option<Mutant>,
}

type Running = Pin<Box<dyn Future<Output = Result<(), RelayError>> + Send>>;

impl RelayHost {
    /// Runs relays one after the other. Returns only if a relay stops by itself.
    pub async fn run(self) {
        let mut random = SplitMix64::for_part(self.scenario.seed, "relay", self.number as u64);
        sleep(random.millis(0, 3000)).await;
        loop {
            let stop = CancellationToken::new();
            let running = self.start(&mut random, stop.clone());
            self.record("starts");
            if !self.run_until_fault(running, &stop, &mut random).await {
                self.record("stopped by itself");
                return;
            }
            sleep(random.time(Duration::ZERO, self.scenario.config.lease_duration * 2)).await;
        }
    }

    fn start(&self, random: &mut SplitMix64, stop: CancellationToken) -> Running {
        let chances = SplitMix64::new(random.next_u64());
        let line =
            FaultyLink::new(Arc::clone(&self.history), self.network.clone(), self.scenario.link_faults(), chances);
        let store = FaultyStore::new(Arc::clone(&self.server), line);
        let connection =
            Connection::new(Arc::clone(&self.broker), self.network.clone(), SplitMix64::new(random.next_u64()));
        let broker = MutantBroker::new(connection, self.mutant);
        let relay =
            Relay::with_seed(Arc::new(store), Arc::new(broker), self.scenario.config.clone(), random.next_u64());
        Box::pin(relay.expect("scenarios have valid configurations").run(stop))
    }

    /// Runs a relay until something ends it. Returns `false` if it ended by itself.
    async fn run_until_fault(&self, mut running: Running, stop: &CancellationToken, random: &mut SplitMix64) -> bool {
        let faults = &self.scenario.relay;
        loop {
            let life = match faults.lifetime_max {
                Some(longest) if !self.faults_ended() => random.time(Duration::from_millis(100), longest),
                _ => FOREVER,
            };
            // `timeout` only borrows the relay. Dropping the timeout pauses the relay and does not drop it.
            if timeout(life, &mut running).await.is_ok() {
                return false;
            }
            if self.faults_ended() {
                continue;
            }
            if random.permille(faults.killed_permille) {
                self.record("is killed");
                return true;
            }
            if random.permille(faults.paused_permille) {
                self.record("is paused");
                sleep(random.time(self.scenario.config.lease_duration / 4, self.scenario.config.lease_duration * 3))
                    .await;
                self.record("goes on");
                continue;
            }
            self.record("is told to stop");
            stop.cancel();
            let patience = if random.permille(200) { random.millis(0, 1000) } else { FOREVER };
            let stopped = timeout(patience, &mut running).await;
            self.record(if stopped.is_ok() { "stopped" } else { "is killed while it stops" });
            return true;
        }
    }

    fn faults_ended(&self) -> bool {
        self.history.now() >= self.scenario.faults_for
    }

    fn record(&self, text: &'static str) {
        self.history.record(Event::Relay { relay: self.number, text });
    }
}
