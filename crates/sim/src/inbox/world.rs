//! One run: executes a scenario until all messages are handled or the time is over.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use relevo_core::Lane;
use relevo_core::dead_letters::{DeadLetter, DeadLetterState};
use relevo_core::inbox::admin::ConsumerDetails;
use relevo_core::inbox::members::{Heartbeat, InboxMembers as _};
use relevo_core::inbox::{DedupId, InboxRetention};
use relevo_store_memory::{Config, Database};
use tokio::runtime::Builder;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::history::fingerprint;
use crate::inbox::broker::Group;
use crate::inbox::event::{Case, Event, History};
use crate::inbox::handlers::SharedHandlerState;
use crate::inbox::members::MemberHost;
use crate::inbox::message_names::MessageNames;
use crate::inbox::mutants::{Mutant, MutantInbox};
use crate::inbox::operator_port::OperatorPort;
use crate::inbox::operators::Operator;
use crate::inbox::oracles;
use crate::inbox::publisher::{Fanout, Publisher};
use crate::inbox::replays;
use crate::inbox::scenario::Scenario;
use crate::inbox::server::Server;
use crate::link::DELAY_MAX;
use crate::network::Network;
use crate::process_faults::DeadLetterEnding;
use crate::run_result::RunResult;
use relevo_core::random::SplitMix64;

/// The maximum length of the period after the faults.
const DRAIN_MAX: Duration = Duration::from_mins(15);

/// The maximum time for members to stop.
const STOP_MAX: Duration = Duration::from_mins(2);

/// The result of a run, for the oracles.
#[derive(Debug)]
pub struct Record {
    /// The scenario.
    pub scenario: Arc<Scenario>,
    /// The events.
    pub events: Vec<(Duration, Event)>,
    /// The dead letters at the end.
    pub dead_letters: Vec<(Case, DeadLetter)>,
    /// The details of each consumer at the end.
    pub consumers: Vec<Option<ConsumerDetails>>,
    /// Descriptions of unfinished work.
    pub unfinished: Vec<String>,
    /// The number of lines that handlers committed.
    pub effects: usize,
}

/// Runs a seed, with a mutant or with the real consumers.
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
    names: Arc<MessageNames>,
    outbox: Database,
    settings: Config,
    groups: Vec<Arc<Group>>,
    servers: Vec<Arc<Server>>,
    operator_port: Arc<OperatorPort>,
    shared: Arc<SharedHandlerState>,
    network: Network,
    run_ended: CancellationToken,
    mutant: Option<Mutant>,
}

impl World {
    fn new(scenario: Scenario, mutant: Option<Mutant>) -> Self {
        let scenario = Arc::new(scenario);
        let (history, names) = (Arc::new(History::begin()), Arc::new(MessageNames::default()));
        let settings = Config { seed: scenario.seed, ..Config::default() };
        let outbox = Database::new(settings.clone());
        let group =
            |number| Arc::new(Group::new(number, Arc::clone(&scenario), Arc::clone(&history), Arc::clone(&names)));
        let server = |number: usize| {
            let plan = &scenario.consumers[number];
            let inbox = MutantInbox::new(outbox.inbox(&plan.name, InboxRetention::default()), mutant);
            Arc::new(Server::new(number, inbox, Arc::clone(&history), Arc::clone(&names), plan.idle_timeout))
        };
        let groups: Vec<_> = (0..scenario.consumers.len()).map(group).collect();
        let servers: Vec<_> = (0..scenario.consumers.len()).map(server).collect();
        let (for_office, for_trials) = (Arc::clone(&scenario), Arc::clone(&scenario));
        let port =
            OperatorPort::new(outbox.operator(), for_office, Arc::clone(&history), Arc::clone(&names), servers.clone());
        let trials = SharedHandlerState::new(for_trials, Arc::clone(&history), Arc::clone(&names));
        Self {
            scenario,
            history,
            names,
            outbox,
            settings,
            groups,
            servers,
            operator_port: Arc::new(port),
            shared: Arc::new(trials),
            network: Network::default(),
            run_ended: CancellationToken::new(),
            mutant,
        }
    }

    async fn run(self) -> Record {
        let mut members = self.start_members();
        let mut people = self.start_clients();
        let _nature = self.start_background();
        sleep(self.scenario.faults_for).await;
        self.history.record(Event::FaultsEnded);
        if self.scenario.ending == DeadLetterEnding::Redrive {
            self.shared.fix_poison();
        }
        let mut left = self.drain(&mut people).await;
        // Messages that are still on the network arrive first.
        sleep(DELAY_MAX).await;
        self.run_ended.cancel();
        let stopped = timeout(STOP_MAX, async {
            while let Some(ended) = members.join_next().await {
                if ended.is_err() {
                    self.history.record(Event::Member { consumer: 0, member: usize::MAX, text: "panicked" });
                }
            }
        });
        if stopped.await.is_err() {
            left.push("a member does not stop".to_owned());
        }
        sleep(DELAY_MAX).await;
        left.extend(self.servers.iter().filter(|server| !server.is_idle()).map(|_| "a transaction is open".to_owned()));
        if self.network.has_panicked() {
            left.push("a server panicked".to_owned());
        }
        let mut shown = Vec::new();
        for consumer in 0..self.scenario.consumers.len() {
            shown.push(self.operator_port.consumer_details(consumer).await);
            left.extend(self.lanes_not_free(consumer).await);
        }
        let dead_letters = self.operator_port.dead_letters().await.into_iter();
        Record {
            events: self.history.events(),
            dead_letters: dead_letters
                .map(|(consumer, dead_letter)| (self.names.case(consumer, dedup_id(&dead_letter)), dead_letter))
                .collect(),
            consumers: shown,
            unfinished: left,
            effects: self.outbox.effects().len(),
            scenario: self.scenario,
        }
    }

    fn start_members(&self) -> JoinSet<()> {
        let mut members = JoinSet::new();
        for (consumer, plan) in self.scenario.consumers.iter().enumerate() {
            for number in 0..plan.members {
                let host = MemberHost {
                    consumer,
                    number,
                    scenario: Arc::clone(&self.scenario),
                    history: Arc::clone(&self.history),
                    server: Arc::clone(&self.servers[consumer]),
                    group: Arc::clone(&self.groups[consumer]),
                    shared: Arc::clone(&self.shared),
                    network: self.network.clone(),
                    started_at: self.settings.started_at,
                    mutant: self.mutant,
                    run_ended: self.run_ended.clone(),
                };
                members.spawn(host.run());
            }
        }
        members
    }

    fn operator(&self, number: u64) -> Operator {
        let (port, history) = (Arc::clone(&self.operator_port), Arc::clone(&self.history));
        Operator::new(port, history, Arc::clone(&self.scenario), &self.network, number)
    }

    fn start_clients(&self) -> JoinSet<()> {
        let mut people = JoinSet::new();
        let front = Arc::new(Fanout {
            scenario: Arc::clone(&self.scenario),
            history: Arc::clone(&self.history),
            groups: self.groups.clone(),
            started_at: self.settings.started_at,
            last_offset: Mutex::new(0),
        });
        for number in 0..self.scenario.publishers {
            people.spawn(Publisher::new(Arc::clone(&front), number).run());
        }
        people.spawn(self.operator(0).mark_periodically());
        people.spawn(self.operator(1).send_controls());
        let (port, scenario) = (Arc::clone(&self.operator_port), Arc::clone(&self.scenario));
        people.spawn(replays::run_replays(
            port,
            Arc::clone(&self.history),
            scenario,
            self.groups.clone(),
            self.network.clone(),
        ));
        people
    }

    /// Starts tasks that happen without a user: idle transactions end, the broker acts spontaneously, the database
    /// restarts.
    fn start_background(&self) -> JoinSet<()> {
        let mut nature = JoinSet::new();
        let servers = self.servers.clone();
        nature.spawn(async move {
            loop {
                sleep(Duration::from_millis(200)).await;
                for server in &servers {
                    server.abort_stalled();
                }
            }
        });
        for (number, group) in self.groups.iter().enumerate() {
            nature.spawn(inject_broker_faults(Arc::clone(group), Arc::clone(&self.scenario), number));
        }
        nature.spawn(restart_database(self.outbox.clone(), Arc::clone(&self.history), Arc::clone(&self.scenario)));
        nature
    }

    /// Waits until everything is handled. Returns descriptions of unfinished work.
    async fn drain(&self, people: &mut JoinSet<()>) -> Vec<String> {
        let mut operator = self.operator(2);
        let mut freed = false;
        let end = self.history.now() + DRAIN_MAX;
        loop {
            while people.try_join_next().is_some() {}
            if people.is_empty() && !std::mem::replace(&mut freed, true) {
                operator.clear_controls().await;
            }
            match self.scenario.ending {
                DeadLetterEnding::Redrive => operator.mark(false, 1000).await,
                DeadLetterEnding::Discard => operator.mark(true, 1000).await,
                DeadLetterEnding::Leave => {}
            }
            let mut left = self.unfinished().await;
            if !people.is_empty() {
                left.push("a task is still running".to_owned());
            }
            if left.is_empty() || self.history.now() > end {
                return left;
            }
            sleep(Duration::from_secs(2)).await;
        }
    }

    /// Lanes that a new member cannot acquire.
    async fn lanes_not_free(&self, consumer: usize) -> Vec<String> {
        let plan = &self.scenario.consumers[consumer];
        let inbox = self.outbox.inbox(&plan.name, InboxRetention::default());
        let (owner, ttl) = (Uuid::from_u128(1), plan.config.heartbeat_ttl);
        let heartbeat = Heartbeat {
            owner,
            name: "a new member".to_owned(),
            ttl,
            settled_offsets: Vec::new(),
            last_message_at: None,
            breakers: Vec::new(),
        };
        let lanes: Vec<Lane> = (0..plan.lanes).map(Group::lane).collect();
        let leases = match inbox.heartbeat(&heartbeat).await {
            Ok(_) => inbox.acquire_lanes(owner, &lanes).await.unwrap_or_default(),
            Err(_) => Vec::new(),
        };
        let missing = lanes.iter().filter(|lane| !leases.iter().any(|lease| lease.lane == **lane));
        missing.map(|lane| format!("{lane} of c{consumer} is not free")).collect()
    }

    async fn unfinished(&self) -> Vec<String> {
        let mut left = Vec::new();
        let leaves = self.scenario.ending == DeadLetterEnding::Leave;
        for (consumer, group) in self.groups.iter().enumerate() {
            if !group.is_empty() {
                left.push(format!("the broker has messages for c{consumer}"));
            }
            let queues = self.operator_port.consumer_details(consumer).await.into_iter().flat_map(|shown| shown.queues);
            let open = queues.filter(|queue| !(leaves && queue.next_attempt_at.is_none()));
            left.extend(open.map(|queue| format!("queue {} of c{consumer} waits", queue.queue)));
        }
        let dead_letters = self.operator_port.dead_letters().await;
        let pending = dead_letters
            .iter()
            .filter(|(_, dead_letter)| dead_letter.summary.state == DeadLetterState::Dead && !leaves);
        left.extend(pending.map(|(consumer, _)| format!("a dead letter of c{consumer} is pending")));
        left
    }
}

async fn inject_broker_faults(group: Arc<Group>, scenario: Arc<Scenario>, number: usize) {
    let Some(every) = scenario.broker_fault_interval else { return };
    let mut random = SplitMix64::for_part(scenario.seed, "broker", number as u64);
    let start = Instant::now();
    loop {
        sleep(random.time(Duration::ZERO, every * 2)).await;
        if start.elapsed() >= scenario.faults_for {
            return;
        }
        group.inject_fault(random.next_u64(), random.count(0, 1000));
    }
}

/// Restarts the database at the times of the scenario. While it is down, the links make calls fail.
async fn restart_database(outbox: Database, history: Arc<History>, scenario: Arc<Scenario>) {
    let start = Instant::now();
    let mut outages = scenario.database_outages.clone();
    outages.sort_by_key(|(span, _)| span.from);
    for (span, restarts) in outages {
        sleep_until(start + span.from).await;
        history.record(Event::Fault("the database goes away"));
        if restarts {
            outbox.restart();
        }
    }
}

const fn dedup_id(dead_letter: &DeadLetter) -> DedupId {
    DedupId { id: dead_letter.summary.id, replay: dead_letter.summary.replay }
}
