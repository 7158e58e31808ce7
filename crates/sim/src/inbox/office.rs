//! The operator port. It records the effects of operators in the history.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use relevo_core::inbox::operate::{
    DeadFilter, DeadLetter, Fate, Fed, Mark, Operate as _, Order, Plan, Portion, Replay, ReplayState, Shown,
};
use relevo_core::inbox::{Arrival, Entry};
use relevo_core::store::StoreError;
use relevo_store_memory::Operator;

use crate::history::lock;
use crate::inbox::directory::Directory;
use crate::inbox::event::{Case, Event, History};
use crate::inbox::scenario::Scenario;
use crate::inbox::server::Server;

/// More dead letters than any run has.
const ALL: usize = 100_000;

/// The operator port that records every change.
pub struct Office {
    operator: Operator,
    scenario: Arc<Scenario>,
    history: Arc<History>,
    directory: Arc<Directory>,
    servers: Vec<Arc<Server>>,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// How often each dead letter was redriven, and whether it was archived.
    letters: BTreeMap<(usize, Entry), (u32, bool)>,
    fed: BTreeSet<Case>,
    stopped: BTreeSet<(usize, u32)>,
}

impl Office {
    /// Wraps the operator port of a store.
    pub fn new(
        operator: Operator,
        scenario: Arc<Scenario>,
        history: Arc<History>,
        directory: Arc<Directory>,
        servers: Vec<Arc<Server>>,
    ) -> Self {
        Self { operator, scenario, history, directory, servers, known: Mutex::default() }
    }

    /// Every dead letter, with the number of its consumer.
    pub async fn letters(&self) -> Vec<(usize, DeadLetter)> {
        let letters = self.operator.dead(&DeadFilter::default(), ALL).await.unwrap_or_default();
        let numbered = letters.into_iter().map(|letter| (self.number(&letter.consumer), letter));
        numbered.filter_map(|(number, letter)| Some((number?, letter))).collect()
    }

    /// See [`relevo_core::inbox::operate::Operate::redrive`].
    pub async fn redrive(&self, mark: Mark) -> Result<u64, StoreError> {
        let count = self.operator.redrive(&mark).await?;
        if count == 0 {
            let filter = DeadFilter { fate: Some(Fate::Replayed), ..mark.filter };
            for letter in self.operator.dead(&filter, ALL).await? {
                if let Some(number) = self.number(&letter.consumer) {
                    self.servers[number].redrive_again(letter.arrival);
                }
            }
        }
        self.look().await;
        Ok(count)
    }

    /// See [`relevo_core::inbox::operate::Operate::archive`].
    pub async fn archive(&self, mark: Mark) -> Result<u64, StoreError> {
        let count = self.operator.archive(&mark).await?;
        self.look().await;
        Ok(count)
    }

    /// Records changes of dead letters. No other task runs between the change and this.
    async fn look(&self) {
        let letters = self.letters().await;
        let mut known = lock(&self.known);
        for (consumer, letter) in letters {
            let entry = letter.arrival.entry;
            let is_archived = letter.fate == Fate::Archived;
            let (redriven, archived) = known.letters.entry((consumer, entry)).or_default();
            for _ in *redriven..letter.redriven {
                self.history.record(Event::Redriven(self.directory.case(consumer, entry)));
            }
            if is_archived && !*archived {
                self.history.record(Event::Archived(self.directory.case(consumer, entry)));
            }
            (*redriven, *archived) = (letter.redriven, is_archived);
        }
    }

    /// See [`relevo_core::inbox::operate::Operate::order`].
    pub async fn order(&self, consumer: usize, lane: Option<&str>, order: Order) {
        let what = match (lane.is_some(), order) {
            (false, Order::Pause) => "pause",
            (false, Order::Resume) => "resume",
            (true, Order::Pause) => "pause a lane",
            (true, Order::Resume) => "resume a lane",
            (_, Order::OpenBreaker) => "open a breaker",
            (_, Order::CloseBreaker) => "close a breaker",
            (_, Order::FreeBreaker) => "free a breaker",
        };
        let name = &self.scenario.consumers[consumer].name;
        if self.operator.order(name, lane, order).await.unwrap_or_default() {
            self.history.record(Event::Ordered { consumer, what });
        }
    }

    /// The details of a consumer.
    pub async fn shown(&self, consumer: usize) -> Option<Shown> {
        self.operator.consumer(&self.scenario.consumers[consumer].name, ALL).await.ok().flatten()
    }

    /// See [`relevo_core::inbox::operate::Operate::begin_replay`].
    pub async fn begin_replay(&self, plan: Plan) -> Result<u32, StoreError> {
        self.operator.begin_replay(&plan).await
    }

    /// The current state of a replay.
    pub async fn replay(&self, consumer: usize, number: u32) -> Option<Replay> {
        let replays = self.operator.replays(&self.scenario.consumers[consumer].name).await.unwrap_or_default();
        replays.into_iter().find(|replay| replay.number == number)
    }

    /// See [`relevo_core::inbox::operate::Operate::feed`].
    pub async fn feed(
        &self,
        consumer: usize,
        number: u32,
        messages: Vec<Arrival>,
        from: Option<String>,
        to: Option<String>,
    ) -> Result<Fed, StoreError> {
        let name = &self.scenario.consumers[consumer].name;
        let portion = Portion { messages: &messages, from: from.as_deref(), to: to.as_deref() };
        let fed = self.operator.feed(name, number, portion).await?;
        if fed == Fed::Kept {
            let mut known = lock(&self.known);
            for arrival in messages {
                let case = self.directory.case(consumer, Entry { replay: number, ..arrival.entry });
                if known.fed.insert(case.clone()) {
                    self.history.record(Event::Fed(case));
                }
            }
        }
        self.look_at_replay(consumer, number).await;
        Ok(fed)
    }

    /// See [`relevo_core::inbox::operate::Operate::stop_replay`].
    pub async fn stop_replay(&self, consumer: usize, number: u32) -> Result<bool, StoreError> {
        let stopped = self.operator.stop_replay(&self.scenario.consumers[consumer].name, number).await?;
        self.look_at_replay(consumer, number).await;
        Ok(stopped)
    }

    /// See [`relevo_core::inbox::operate::Operate::resume_replay`].
    pub async fn resume_replay(&self, consumer: usize, number: u32) -> Result<bool, StoreError> {
        let name = &self.scenario.consumers[consumer].name;
        let resumed = self.operator.resume_replay(name, number, ALL as u64).await?;
        self.look_at_replay(consumer, number).await;
        Ok(resumed)
    }

    /// Records whether a replay was stopped or resumed.
    async fn look_at_replay(&self, consumer: usize, replay: u32) {
        let Some(shown) = self.replay(consumer, replay).await else { return };
        let mut known = lock(&self.known);
        if shown.state == ReplayState::Stopped {
            if known.stopped.insert((consumer, replay)) {
                self.history.record(Event::ReplayStopped { consumer, replay });
            }
        } else if known.stopped.remove(&(consumer, replay)) {
            self.history.record(Event::ReplayResumed { consumer, replay });
        }
    }

    fn number(&self, name: &str) -> Option<usize> {
        self.scenario.consumers.iter().position(|plan| plan.name == name)
    }
}
