//! The operator port. It records the effects of operators in the history.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;
use relevo_core::inbox::admin::{ConsumerControl, ConsumerDetails, Operate as _};
use relevo_core::inbox::dead_letters::{DeadLetter, DeadLetterFilter, DeadLetterState, MarkRequest};
use relevo_core::inbox::replays::{EnqueueOutcome, Replay, ReplayBatch, ReplayPlan, ReplayState};
use relevo_core::inbox::{DedupId, InboxMessage};
use relevo_core::store::StoreError;
use relevo_store_memory::Operator;

use crate::inbox::event::{Case, Event, History};
use crate::inbox::message_names::MessageNames;
use crate::inbox::scenario::Scenario;
use crate::inbox::server::Server;

/// More dead letters than any run has.
const ALL: usize = 100_000;

/// The operator port that records every change.
pub struct OperatorPort {
    operator: Operator,
    scenario: Arc<Scenario>,
    history: Arc<History>,
    names: Arc<MessageNames>,
    servers: Vec<Arc<Server>>,
    known: Mutex<SeenState>,
}

#[derive(Default)]
struct SeenState {
    /// How often each dead letter was redriven, and whether it was archived.
    letters: BTreeMap<(usize, DedupId), (u32, bool)>,
    enqueued: BTreeSet<Case>,
    stopped: BTreeSet<(usize, u32)>,
}

impl OperatorPort {
    /// Wraps the operator port of a store.
    pub fn new(
        operator: Operator,
        scenario: Arc<Scenario>,
        history: Arc<History>,
        names: Arc<MessageNames>,
        servers: Vec<Arc<Server>>,
    ) -> Self {
        Self { operator, scenario, history, names, servers, known: Mutex::default() }
    }

    /// Every dead letter, with the number of its consumer.
    pub async fn dead_letters(&self) -> Vec<(usize, DeadLetter)> {
        let letters = self.operator.list_dead_letters(&DeadLetterFilter::default(), ALL).await.unwrap_or_default();
        let numbered = letters.into_iter().map(|letter| (self.number(&letter.consumer), letter));
        numbered.filter_map(|(number, letter)| Some((number?, letter))).collect()
    }

    /// See [`relevo_core::inbox::admin::Operate::redrive`].
    pub async fn redrive(&self, mark: MarkRequest) -> Result<u64, StoreError> {
        let count = self.operator.redrive(&mark).await?;
        if count == 0 {
            let filter = DeadLetterFilter { state: Some(DeadLetterState::Redriven), ..mark.filter };
            for letter in self.operator.list_dead_letters(&filter, ALL).await? {
                if let Some(number) = self.number(&letter.consumer) {
                    self.servers[number].redrive_again(letter.message);
                }
            }
        }
        self.record_dead_letters().await;
        Ok(count)
    }

    /// See [`relevo_core::inbox::admin::Operate::archive`].
    pub async fn discard(&self, mark: MarkRequest) -> Result<u64, StoreError> {
        let count = self.operator.archive(&mark).await?;
        self.record_dead_letters().await;
        Ok(count)
    }

    /// Records changes of dead letters. No other task runs between the change and this.
    async fn record_dead_letters(&self) {
        let letters = self.dead_letters().await;
        let mut known = self.known.lock();
        for (consumer, letter) in letters {
            let entry = letter.message.dedup_id;
            let is_archived = letter.state == DeadLetterState::Discarded;
            let (redriven, archived) = known.letters.entry((consumer, entry)).or_default();
            for _ in *redriven..letter.redrives {
                self.history.record(Event::Redriven(self.names.case(consumer, entry)));
            }
            if is_archived && !*archived {
                self.history.record(Event::Discarded(self.names.case(consumer, entry)));
            }
            (*redriven, *archived) = (letter.redrives, is_archived);
        }
    }

    /// See [`relevo_core::inbox::admin::Operate::set_control`].
    pub async fn set_control(&self, consumer: usize, lane: Option<&str>, order: ConsumerControl) {
        let what = match (lane.is_some(), order) {
            (false, ConsumerControl::Pause) => "pause",
            (false, ConsumerControl::Resume) => "resume",
            (true, ConsumerControl::Pause) => "pause a lane",
            (true, ConsumerControl::Resume) => "resume a lane",
            (_, ConsumerControl::OpenBreaker) => "open a breaker",
            (_, ConsumerControl::CloseBreaker) => "close a breaker",
            (_, ConsumerControl::AutoBreaker) => "free a breaker",
        };
        let name = &self.scenario.consumers[consumer].name;
        if self.operator.set_control(name, lane, order).await.unwrap_or_default() {
            self.history.record(Event::ControlSet { consumer, what });
        }
    }

    /// The details of a consumer.
    pub async fn consumer_details(&self, consumer: usize) -> Option<ConsumerDetails> {
        self.operator.get_consumer(&self.scenario.consumers[consumer].name, ALL).await.ok().flatten()
    }

    /// See [`relevo_core::inbox::admin::Operate::create_replay`].
    pub async fn create_replay(&self, plan: ReplayPlan) -> Result<u32, StoreError> {
        self.operator.create_replay(&plan).await
    }

    /// The current state of a replay.
    pub async fn replay(&self, consumer: usize, number: u32) -> Option<Replay> {
        let replays = self.operator.list_replays(&self.scenario.consumers[consumer].name).await.unwrap_or_default();
        replays.into_iter().find(|replay| replay.number == number)
    }

    /// See [`relevo_core::inbox::admin::Operate::enqueue_replay`].
    pub async fn enqueue_replay(
        &self,
        consumer: usize,
        number: u32,
        messages: Vec<InboxMessage>,
        from: Option<String>,
        to: Option<String>,
    ) -> Result<EnqueueOutcome, StoreError> {
        let name = &self.scenario.consumers[consumer].name;
        let portion = ReplayBatch { messages: &messages, cursor: from.as_deref(), next_cursor: to.as_deref() };
        let fed = self.operator.enqueue_replay(name, number, portion).await?;
        if fed == EnqueueOutcome::Enqueued {
            let mut known = self.known.lock();
            for arrival in messages {
                let case = self.names.case(consumer, DedupId { replay: number, ..arrival.dedup_id });
                if known.enqueued.insert(case.clone()) {
                    self.history.record(Event::ReplayEnqueued(case));
                }
            }
        }
        self.record_replay(consumer, number).await;
        Ok(fed)
    }

    /// See [`relevo_core::inbox::admin::Operate::stop_replay`].
    pub async fn stop_replay(&self, consumer: usize, number: u32) -> Result<bool, StoreError> {
        let stopped = self.operator.stop_replay(&self.scenario.consumers[consumer].name, number).await?;
        self.record_replay(consumer, number).await;
        Ok(stopped)
    }

    /// See [`relevo_core::inbox::admin::Operate::resume_replay`].
    pub async fn resume_replay(&self, consumer: usize, number: u32) -> Result<bool, StoreError> {
        let name = &self.scenario.consumers[consumer].name;
        let resumed = self.operator.resume_replay(name, number, ALL as u64).await?;
        self.record_replay(consumer, number).await;
        Ok(resumed)
    }

    /// Records whether a replay was stopped or resumed.
    async fn record_replay(&self, consumer: usize, replay: u32) {
        let Some(shown) = self.replay(consumer, replay).await else { return };
        let mut known = self.known.lock();
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
