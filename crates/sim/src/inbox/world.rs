//! One run: executes a scenario until all messages are handled or the time is over.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use relevo_core::Lane;
use relevo_core::inbox::operate::{DeadLetter, Fate, Shown};
use relevo_core::inbox::{Beat, Inbox as _};
use relevo_store_memory::{Outbox, Settings};
use tokio::runtime::Builder;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::history::fingerprint;
use crate::inbox::broker::Group;
use crate::inbox::directory::Directory;
use crate::inbox::event::{Case, Event, History};
use crate::inbox::handlers::Trials;
use crate::inbox::members::Host;
use crate::inbox::mutants::{Mutant, MutantInbox};
use crate::inbox::office::Office;
use crate::inbox::oracles;
use crate::inbox::people::Operator;
use crate::inbox::publisher::{Front, Publisher};
use crate::inbox::replays;
use crate::inbox::scenario::{Ending, Scenario};
use crate::inbox::server::Server;
use crate::line::LATE_MAX;
use crate::verdict::Verdict;
use crate::wire::Wire;
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
    pub letters: Vec<(Case, DeadLetter)>,
    /// The details of each consumer at the end.
    pub shown: Vec<Option<Shown>>,
    /// Descriptions of unfinished work.
    pub left: Vec<String>,
    /// The number of lines that handlers committed.
    pub ledger: usize,
}

/// Runs a seed, with a mutant or with the real consumers.
pub fn run(seed: u64, mutant: Option<Mutant>) -> Verdict<Event> {
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build();
    let runtime = runtime.expect("a runtime without I/O needs nothing that could be missing");
    // Inside the runtime, because the paused clock belongs to it.
    let record = runtime.block_on(async { World::new(Scenario::of(seed), mutant).live().await });
    let violations = oracles::judge(&record);
    Verdict { seed, violations, fingerprint: fingerprint(&record.events), events: record.events }
}

struct World {
    scenario: Arc<Scenario>,
    history: Arc<History>,
    directory: Arc<Directory>,
    outbox: Outbox,
    settings: Settings,
    groups: Vec<Arc<Group>>,
    servers: Vec<Arc<Server>>,
    office: Arc<Office>,
    trials: Arc<Trials>,
    wire: Wire,
    ending: CancellationToken,
    mutant: Option<Mutant>,
}

impl World {
    fn new(scenario: Scenario, mutant: Option<Mutant>) -> Self {
        let scenario = Arc::new(scenario);
        let (history, directory) = (Arc::new(History::begin()), Arc::new(Directory::default()));
        let settings = Settings { seed: scenario.seed, ..Settings::default() };
        let outbox = Outbox::new(settings.clone());
        let group =
            |number| Arc::new(Group::new(number, Arc::clone(&scenario), Arc::clone(&history), Arc::clone(&directory)));
        let server = |number: usize| {
            let plan = &scenario.consumers[number];
            let inbox = MutantInbox::new(outbox.inbox(&plan.name, plan.config.keeping), mutant);
            Arc::new(Server::new(number, inbox, Arc::clone(&history), Arc::clone(&directory), plan.stall))
        };
        let groups: Vec<_> = (0..scenario.consumers.len()).map(group).collect();
        let servers: Vec<_> = (0..scenario.consumers.len()).map(server).collect();
        let (for_office, for_trials) = (Arc::clone(&scenario), Arc::clone(&scenario));
        let office =
            Office::new(outbox.operator(), for_office, Arc::clone(&history), Arc::clone(&directory), servers.clone());
        let trials = Trials::new(for_trials, Arc::clone(&history), Arc::clone(&directory));
        Self {
            scenario,
            history,
            directory,
            outbox,
            settings,
            groups,
            servers,
            office: Arc::new(office),
            trials: Arc::new(trials),
            wire: Wire::default(),
            ending: CancellationToken::new(),
            mutant,
        }
    }

    async fn live(self) -> Record {
        let mut members = self.members();
        let mut people = self.people();
        let _nature = self.nature();
        sleep(self.scenario.faults_for).await;
        self.history.record(Event::Quiet);
        if self.scenario.ending == Ending::Redrive {
            self.trials.mend();
        }
        let mut left = self.drain(&mut people).await;
        // Let messages arrive that are still on the network.
        sleep(LATE_MAX).await;
        self.ending.cancel();
        let stopped = timeout(STOP_MAX, async {
            while let Some(ended) = members.join_next().await {
                if ended.is_err() {
                    self.history.record(Event::Member { consumer: 0, member: usize::MAX, what: "panicked" });
                }
            }
        });
        if stopped.await.is_err() {
            left.push("a member does not stop".to_owned());
        }
        sleep(LATE_MAX).await;
        left.extend(self.servers.iter().filter(|server| !server.is_idle()).map(|_| "a transaction is open".to_owned()));
        if self.wire.has_panicked() {
            left.push("a server panicked".to_owned());
        }
        let mut shown = Vec::new();
        for consumer in 0..self.scenario.consumers.len() {
            shown.push(self.office.shown(consumer).await);
            left.extend(self.taken(consumer).await);
        }
        let letters = self.office.letters().await.into_iter();
        Record {
            events: self.history.events(),
            letters: letters
                .map(|(consumer, letter)| (self.directory.case(consumer, letter.arrival.entry), letter))
                .collect(),
            shown,
            left,
            ledger: self.outbox.ledger().len(),
            scenario: self.scenario,
        }
    }

    fn members(&self) -> JoinSet<()> {
        let mut members = JoinSet::new();
        for (consumer, plan) in self.scenario.consumers.iter().enumerate() {
            for number in 0..plan.members {
                let host = Host {
                    consumer,
                    number,
                    scenario: Arc::clone(&self.scenario),
                    history: Arc::clone(&self.history),
                    server: Arc::clone(&self.servers[consumer]),
                    group: Arc::clone(&self.groups[consumer]),
                    trials: Arc::clone(&self.trials),
                    wire: self.wire.clone(),
                    began_at: self.settings.started_at,
                    mutant: self.mutant,
                    ending: self.ending.clone(),
                };
                members.spawn(host.work());
            }
        }
        members
    }

    fn operator(&self, number: u64) -> Operator {
        let (office, history) = (Arc::clone(&self.office), Arc::clone(&self.history));
        Operator::new(office, history, Arc::clone(&self.scenario), &self.wire, number)
    }

    fn people(&self) -> JoinSet<()> {
        let mut people = JoinSet::new();
        let front = Arc::new(Front {
            scenario: Arc::clone(&self.scenario),
            history: Arc::clone(&self.history),
            groups: self.groups.clone(),
            began_at: self.settings.started_at,
            places: Mutex::new(0),
        });
        for number in 0..self.scenario.publishers {
            people.spawn(Publisher::new(Arc::clone(&front), number).work());
        }
        people.spawn(self.operator(0).look());
        people.spawn(self.operator(1).order());
        let (office, scenario) = (Arc::clone(&self.office), Arc::clone(&self.scenario));
        people.spawn(replays::work(
            office,
            Arc::clone(&self.history),
            scenario,
            self.groups.clone(),
            self.wire.clone(),
        ));
        people
    }

    /// Starts tasks that happen without a user: idle transactions end, the broker acts spontaneously, the database
    /// restarts.
    fn nature(&self) -> JoinSet<()> {
        let mut nature = JoinSet::new();
        let servers = self.servers.clone();
        nature.spawn(async move {
            loop {
                sleep(Duration::from_millis(200)).await;
                for server in &servers {
                    server.reap();
                }
            }
        });
        for (number, group) in self.groups.iter().enumerate() {
            nature.spawn(stir(Arc::clone(group), Arc::clone(&self.scenario), number));
        }
        nature.spawn(restart(self.outbox.clone(), Arc::clone(&self.history), Arc::clone(&self.scenario)));
        nature
    }

    /// Waits until everything is handled. Returns what is not.
    async fn drain(&self, people: &mut JoinSet<()>) -> Vec<String> {
        let mut operator = self.operator(2);
        let mut freed = false;
        let end = self.history.now() + DRAIN_MAX;
        loop {
            while people.try_join_next().is_some() {}
            if people.is_empty() && !std::mem::replace(&mut freed, true) {
                operator.free().await;
            }
            match self.scenario.ending {
                Ending::Redrive => operator.mark(false, 1000).await,
                Ending::Archive => operator.mark(true, 1000).await,
                Ending::Leave => {}
            }
            let mut left = self.left().await;
            if !people.is_empty() {
                left.push("somebody is still at work".to_owned());
            }
            if left.is_empty() || self.history.now() > end {
                return left;
            }
            sleep(Duration::from_secs(2)).await;
        }
    }

    /// Lanes that a new member cannot acquire.
    async fn taken(&self, consumer: usize) -> Vec<String> {
        let plan = &self.scenario.consumers[consumer];
        let inbox = self.outbox.inbox(&plan.name, plan.config.keeping);
        let (owner, lasts) = (Uuid::from_u128(1), plan.config.beat_lasts);
        let beat = Beat {
            owner,
            name: "somebody new".to_owned(),
            lasts,
            marks: Vec::new(),
            last_message_at: None,
            breakers: Vec::new(),
        };
        let lanes: Vec<Lane> = (0..plan.lanes).map(Group::lane).collect();
        let taken = match inbox.beat(&beat).await {
            Ok(_) => inbox.take(owner, &lanes).await.unwrap_or_default(),
            Err(_) => Vec::new(),
        };
        let missing = lanes.iter().filter(|lane| !taken.iter().any(|held| held.lane == **lane));
        missing.map(|lane| format!("{lane} of c{consumer} is not free")).collect()
    }

    async fn left(&self) -> Vec<String> {
        let mut left = Vec::new();
        let leaves = self.scenario.ending == Ending::Leave;
        for (consumer, group) in self.groups.iter().enumerate() {
            if !group.is_empty() {
                left.push(format!("the broker has messages for c{consumer}"));
            }
            let queues = self.office.shown(consumer).await.into_iter().flat_map(|shown| shown.queues);
            let open = queues.filter(|queue| !(leaves && queue.next_attempt_at.is_none()));
            left.extend(open.map(|queue| format!("queue {} of c{consumer} waits", queue.queue)));
        }
        let letters = self.office.letters().await;
        let pending = letters.iter().filter(|(_, letter)| letter.fate == Fate::Pending && !leaves);
        left.extend(pending.map(|(consumer, _)| format!("a dead letter of c{consumer} is pending")));
        left
    }
}

async fn stir(group: Arc<Group>, scenario: Arc<Scenario>, number: usize) {
    let Some(every) = scenario.restless else { return };
    let mut random = SplitMix64::for_part(scenario.seed, "broker", number as u64);
    let start = Instant::now();
    loop {
        sleep(random.time(Duration::ZERO, every * 2)).await;
        if start.elapsed() >= scenario.faults_for {
            return;
        }
        group.stir(random.next_u64(), random.count(0, 1000));
    }
}

/// Restarts the database at the times of the scenario. While it is down, the links make calls fail.
async fn restart(outbox: Outbox, history: Arc<History>, scenario: Arc<Scenario>) {
    let start = Instant::now();
    let mut away = scenario.database_away.clone();
    away.sort_by_key(|(span, _)| span.from);
    for (span, restarts) in away {
        sleep_until(start + span.from).await;
        history.record(Event::Fault("the database goes away"));
        if restarts {
            outbox.restart();
        }
    }
}
