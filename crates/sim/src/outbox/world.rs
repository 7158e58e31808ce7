//! One run: executes a scenario until all messages are delivered or the time is over.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use relevo_core::MessageId;
use relevo_core::dead_letters::{DeadLetter, DeadLetterState};
use relevo_core::outbox::RelayStore;
use relevo_store_memory::{Config, Database, MAIN, ParkedKeyView, ParkedStateView};
use tokio::runtime::Builder;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::history::{MessageName, fingerprint};
use crate::link::DELAY_MAX;
use crate::network::Network;
use crate::outbox::broker::SimBroker;
use crate::outbox::event::{Event, History};
use crate::outbox::mutants::{Mutant, MutantStore};
use crate::outbox::operators::{self, Operator};
use crate::outbox::oracles;
use crate::outbox::relay_host::RelayHost;
use crate::outbox::scenario::Scenario;
use crate::outbox::server::Server;
use crate::outbox::writers::Writer;
use crate::process_faults::DeadLetterEnding;
use crate::run_result::RunResult;

/// The maximum length of the period after the faults.
const DRAIN_MAX: Duration = Duration::from_mins(30);

/// The result of a run, for the oracles.
#[derive(Debug)]
pub struct Record {
    /// The scenario.
    pub scenario: Arc<Scenario>,
    /// The events.
    pub events: Vec<(Duration, Event)>,
    /// The messages that entered the log, in commit order.
    pub entered: Vec<MessageName>,
    /// The dead letters at the end.
    pub dead_letters: Vec<DeadLetter>,
    /// The parked keys at the end.
    pub parked: Vec<ParkedKeyView>,
}

/// Runs a seed, with a mutant or with the real relay.
pub fn run(seed: u64, mutant: Option<Mutant>) -> RunResult<Event> {
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build();
    let runtime = runtime.expect("a runtime without I/O can always be created");
    // Inside the runtime, because the paused clock belongs to it.
    let record = runtime.block_on(async { World::new(Scenario::of(seed), mutant).run().await });
    let violations = oracles::check_promises(&record);
    RunResult { seed, violations, fingerprint: fingerprint(&record.events), events: record.events }
}

struct World {
    scenario: Arc<Scenario>,
    history: Arc<History>,
    outbox: Database,
    broker: Arc<SimBroker>,
    mutant: Option<Mutant>,
}

impl World {
    fn new(scenario: Scenario, mutant: Option<Mutant>) -> Self {
        let scenario = Arc::new(scenario);
        let history = Arc::new(History::begin());
        let settings =
            Config { shards: scenario.shards, retention: scenario.retention, seed: scenario.seed, ..Config::default() };
        Self {
            outbox: Database::new(settings),
            broker: Arc::new(SimBroker::new(Arc::clone(&history), Arc::clone(&scenario))),
            scenario,
            history,
            mutant,
        }
    }

    async fn run(self) -> Record {
        let mut relays = self.start_relays();
        let mut people = self.start_clients();
        sleep(self.scenario.faults_for).await;
        self.history.record(Event::FaultsEnded);
        self.broker.stop_faults(self.scenario.ending == DeadLetterEnding::Redrive);
        self.drain(&mut people).await;
        // Messages that are still on the network arrive first.
        sleep(DELAY_MAX).await;
        while let Some(ended) = relays.try_join_next() {
            if ended.is_err() {
                self.history.record(Event::Relay { relay: usize::MAX, text: "panicked" });
            }
        }
        Record {
            events: self.history.events(),
            entered: self.outbox.committed().iter().map(|entry| MessageName::of(&entry.message)).collect(),
            dead_letters: self.outbox.dead_letters(MAIN),
            parked: self.outbox.parked(MAIN),
            scenario: self.scenario,
        }
    }

    fn start_relays(&self) -> JoinSet<()> {
        let mut store: Arc<dyn RelayStore> = Arc::new(self.outbox.store(MAIN));
        if let Some(mutant) = self.mutant {
            store = Arc::new(MutantStore::new(store, mutant));
        }
        let server = Arc::new(Server::new(store, Arc::clone(&self.history)));
        let network = Network::default();
        let mut relays = JoinSet::new();
        for number in 0..self.scenario.relays {
            let host = RelayHost {
                number,
                scenario: Arc::clone(&self.scenario),
                history: Arc::clone(&self.history),
                server: Arc::clone(&server),
                broker: Arc::clone(&self.broker),
                network: network.clone(),
                mutant: self.mutant,
            };
            relays.spawn(host.run());
        }
        relays
    }

    fn start_clients(&self) -> JoinSet<()> {
        let mut people = JoinSet::new();
        let locks = Arc::new(self.scenario.keys.iter().map(|_| Arc::default()).collect());
        let (outbox, history, scenario) =
            (|| self.outbox.clone(), || Arc::clone(&self.history), || Arc::clone(&self.scenario));
        for number in 0..self.scenario.writers {
            people.spawn(Writer::new(outbox(), history(), scenario(), Arc::clone(&locks), number).run());
        }
        people.spawn(Operator::new(outbox(), history(), scenario()).run());
        people.spawn(operators::reshard(outbox(), history(), scenario()));
        people.spawn(operators::restart_database(outbox(), history(), scenario()));
        people.spawn(operators::record_broker_outages(history(), scenario()));
        people
    }

    async fn drain(&self, people: &mut JoinSet<()>) {
        let mut operator = Operator::new(self.outbox.clone(), Arc::clone(&self.history), Arc::clone(&self.scenario));
        let end = self.history.now() + DRAIN_MAX;
        while self.history.now() < end {
            while people.try_join_next().is_some() {}
            match self.scenario.ending {
                DeadLetterEnding::Redrive => operator.mark(false, 1000).await,
                DeadLetterEnding::Discard => operator.mark(true, 1000).await,
                DeadLetterEnding::Leave => {}
            }
            if people.is_empty() && self.is_drained() {
                return;
            }
            sleep(Duration::from_secs(2)).await;
        }
    }

    fn is_drained(&self) -> bool {
        let parked = self.outbox.parked(MAIN);
        let left = self.scenario.ending == DeadLetterEnding::Leave;
        if self.outbox.scheduled() > 0 || !parked.iter().all(|key| left && key.state == ParkedStateView::Dead) {
            return false;
        }
        let dead = self.outbox.dead_letters(MAIN);
        // A mark that no relay has applied yet will free a key.
        let is_marked = |dead_letter: &DeadLetter| {
            matches!(dead_letter.summary.state, DeadLetterState::Redriving | DeadLetterState::Discarding)
        };
        let events = self.history.events();
        !dead.iter().any(is_marked) && oracles::undelivered(&events, &dead_lettered(&dead, &parked)).is_empty()
    }
}

/// Dead letters, and the messages that wait behind them.
pub(crate) fn dead_lettered(dead: &[DeadLetter], parked: &[ParkedKeyView]) -> BTreeSet<MessageId> {
    let dead = dead.iter().map(|dead_letter| &dead_letter.summary);
    let dead = dead.filter(|letter| letter.state == DeadLetterState::Dead).map(|letter| letter.id);
    let behind = parked.iter().filter(|key| key.state == ParkedStateView::Dead).flat_map(|key| &key.queue);
    dead.chain(behind.map(|entry| entry.message.id)).collect()
}
