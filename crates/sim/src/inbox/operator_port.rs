//! The operator port. It records the effects of operators in the history.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;
use relevo_core::dead_letters::{
    DeadLetter, DeadLetterAdmin as _, DeadLetterFilter, DeadLetterOwner, DeadLetterState, MarkAction, MarkRequest,
};
use relevo_core::inbox::admin::{ConsumerAdmin as _, ConsumerControl, ConsumerDetails};
use relevo_core::inbox::replays::{ConsumerReplays as _, EnqueueOutcome, Replay, ReplayBatch, ReplayPlan, ReplayState};
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
    /// How often each dead letter was redriven, and whether it was discarded.
    dead_letters: BTreeMap<(usize, DedupId), (u32, bool)>,
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
        let all = DeadLetterFilter::of(DeadLetterOwner::AnyConsumer);
        let dead_letters = self.operator.get_dead_letters(&all, ALL).await.unwrap_or_default();
        let numbered = dead_letters.into_iter().map(|letter| (self.number(&letter.summary.owner), letter));
        numbered.filter_map(|(number, dead_letter)| Some((number?, dead_letter))).collect()
    }

    /// Redrives or discards dead letters and returns how many.
    pub async fn mark(&self, request: MarkRequest) -> Result<u64, StoreError> {
        let count = self.operator.mark_dead_letters(&request).await?.count;
        if count == 0 && request.action == MarkAction::Redrive {
            let filter = DeadLetterFilter { states: vec![DeadLetterState::Redriven], ..request.filter };
            for letter in self.operator.get_dead_letters(&filter, ALL).await? {
                if let (Some(number), Some(message)) =
                    (self.number(&letter.summary.owner), letter.content.inbox_message())
                {
                    self.servers[number].redrive_again(message.clone());
                }
            }
        }
        self.record_dead_letters().await;
        Ok(count)
    }

    /// Records changes of dead letters. No other task runs between the change and this.
    async fn record_dead_letters(&self) {
        let dead_letters = self.dead_letters().await;
        let mut known = self.known.lock();
        for (consumer, dead_letter) in dead_letters {
            let dead_letter = dead_letter.summary;
            let dedup_id = DedupId { id: dead_letter.id, replay: dead_letter.replay };
            let is_discarded = dead_letter.state == DeadLetterState::Discarded;
            let (redriven, discarded) = known.dead_letters.entry((consumer, dedup_id)).or_default();
            for _ in *redriven..dead_letter.redrives {
                self.history.record(Event::Redriven(self.names.case(consumer, dedup_id)));
            }
            if is_discarded && !*discarded {
                self.history.record(Event::Discarded(self.names.case(consumer, dedup_id)));
            }
            (*redriven, *discarded) = (dead_letter.redrives, is_discarded);
        }
    }

    /// See [`relevo_core::inbox::admin::ConsumerAdmin::set_control`].
    pub async fn set_control(&self, consumer: usize, lane: Option<&str>, control: ConsumerControl) {
        let text = match (lane.is_some(), control) {
            (false, ConsumerControl::Pause) => "pause",
            (false, ConsumerControl::Resume) => "resume",
            (true, ConsumerControl::Pause) => "pause a lane",
            (true, ConsumerControl::Resume) => "resume a lane",
            (_, ConsumerControl::OpenBreaker) => "open a breaker",
            (_, ConsumerControl::CloseBreaker) => "close a breaker",
            (_, ConsumerControl::AutoBreaker) => "free a breaker",
        };
        let name = &self.scenario.consumers[consumer].name;
        if self.operator.set_control(name, lane, control).await.unwrap_or_default() {
            self.history.record(Event::ControlSet { consumer, text });
        }
    }

    /// The details of a consumer.
    pub async fn consumer_details(&self, consumer: usize) -> Option<ConsumerDetails> {
        self.operator.get_consumer(&self.scenario.consumers[consumer].name, ALL).await.ok().flatten()
    }

    /// See [`relevo_core::inbox::replays::ConsumerReplays::create_replay`].
    pub async fn create_replay(&self, plan: ReplayPlan) -> Result<u32, StoreError> {
        self.operator.create_replay(&plan).await
    }

    /// The current state of a replay.
    pub async fn replay(&self, consumer: usize, number: u32) -> Option<Replay> {
        let replays = self.operator.list_replays(&self.scenario.consumers[consumer].name).await.unwrap_or_default();
        replays.into_iter().find(|replay| replay.number == number)
    }

    /// See [`relevo_core::inbox::replays::ConsumerReplays::enqueue_replay`].
    pub async fn enqueue_replay(
        &self,
        consumer: usize,
        number: u32,
        messages: Vec<InboxMessage>,
        from: Option<String>,
        to: Option<String>,
    ) -> Result<EnqueueOutcome, StoreError> {
        let name = &self.scenario.consumers[consumer].name;
        let batch = ReplayBatch { messages: &messages, cursor: from.as_deref(), next_cursor: to.as_deref() };
        let outcome = self.operator.enqueue_replay(name, number, batch).await?;
        if outcome == EnqueueOutcome::Enqueued {
            let mut known = self.known.lock();
            for message in messages {
                let case = self.names.case(consumer, DedupId { replay: number, ..message.dedup_id });
                if known.enqueued.insert(case.clone()) {
                    self.history.record(Event::ReplayEnqueued(case));
                }
            }
        }
        self.record_replay(consumer, number).await;
        Ok(outcome)
    }

    /// See [`relevo_core::inbox::replays::ConsumerReplays::stop_replay`].
    pub async fn stop_replay(&self, consumer: usize, number: u32) -> Result<bool, StoreError> {
        let stopped = self.operator.stop_replay(&self.scenario.consumers[consumer].name, number).await?;
        self.record_replay(consumer, number).await;
        Ok(stopped)
    }

    /// See [`relevo_core::inbox::replays::ConsumerReplays::resume_replay`].
    pub async fn resume_replay(&self, consumer: usize, number: u32) -> Result<bool, StoreError> {
        let name = &self.scenario.consumers[consumer].name;
        let resumed = self.operator.resume_replay(name, number, ALL as u64).await?;
        self.record_replay(consumer, number).await;
        Ok(resumed)
    }

    /// Records whether a replay was stopped or resumed.
    async fn record_replay(&self, consumer: usize, replay: u32) {
        let Some(replay_state) = self.replay(consumer, replay).await else { return };
        let mut known = self.known.lock();
        if replay_state.state == ReplayState::Stopped {
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
