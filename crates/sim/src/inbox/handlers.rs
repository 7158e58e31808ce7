//! Handlers that behave as the type of a message requires.

use std::collections::BTreeMap;
use std::future::pending;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use relevo_core::inbox::DedupId;
use relevo_inbox::{CallHandler, Handler, HandlerError, HandlerResult, Handlers, Incoming, Verdict};
use tokio::sync::Notify;
use tokio::time::sleep;
use uuid::Uuid;

use crate::inbox::behaviour::HandlerBehaviour;
use crate::inbox::broker::Group;
use crate::inbox::event::{Case, Event, History};
use crate::inbox::message_names::MessageNames;
use crate::inbox::mutants::Mutant;
use crate::inbox::pause::PauseGate;
use crate::inbox::scenario::Scenario;
use crate::inbox::store::Session;
use relevo_core::random::SplitMix64;

/// The shared state of all handlers: the attempts, and whether the external service is up.
pub struct SharedHandlerState {
    scenario: Arc<Scenario>,
    history: Arc<History>,
    names: Arc<MessageNames>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    attempts: BTreeMap<Case, u32>,
    /// Whether poison messages succeed now.
    poison_fixed: bool,
}

/// The handlers of one running member.
#[derive(Clone)]
pub struct SimHandler(Arc<Inner>);

struct Inner {
    consumer: usize,
    shared: Arc<SharedHandlerState>,
    pause_gate: PauseGate,
    /// Notified when a message kills the process.
    kill_signal: Arc<Notify>,
    random: Mutex<SplitMix64>,
    mutant: Option<Mutant>,
}

/// The action of a handler in one attempt.
enum HandlerAction {
    Done(Duration),
    Skip,
    Retry,
    Poison,
    Unavailable,
    Panic,
    Hang,
    Kill,
}

impl SharedHandlerState {
    /// Creates the state without attempts.
    pub fn new(scenario: Arc<Scenario>, history: Arc<History>, names: Arc<MessageNames>) -> Self {
        Self { scenario, history, names, state: Mutex::default() }
    }

    /// Makes poison messages succeed from now on.
    pub fn fix_poison(&self) {
        self.state.lock().poison_fixed = true;
    }

    fn faults_ended(&self) -> bool {
        self.history.now() >= self.scenario.faults_for
    }

    fn is_unavailable(&self, consumer: usize, incoming: &Incoming) -> bool {
        let now = self.history.now();
        let outages = self.scenario.consumers[consumer].outages.iter();
        outages.clone().any(|(lane, span)| Group::lane(*lane) == *incoming.lane() && span.contains(now))
    }
}

impl SimHandler {
    /// Creates the handlers of a member that just started.
    pub fn new(
        consumer: usize,
        shared: Arc<SharedHandlerState>,
        pause_gate: PauseGate,
        kill_signal: Arc<Notify>,
        random: SplitMix64,
        mutant: Option<Mutant>,
    ) -> Self {
        Self(Arc::new(Inner { consumer, shared, pause_gate, kill_signal, random: Mutex::new(random), mutant }))
    }

    /// Registers the handlers by message type: inside the transaction, or with a call before it.
    pub fn handlers(&self) -> Handlers<Session> {
        Handlers::new().handler("inside.*", self.clone()).call_handler("call.*", self.clone())
    }

    fn case(&self, incoming: &Incoming) -> Case {
        self.0.shared.names.case(self.0.consumer, dedup_id(incoming))
    }

    /// Chooses the behaviour, and records that an attempt started.
    fn begin(&self, incoming: &Incoming) -> (Case, HandlerAction) {
        let (shared, case) = (&self.0.shared, self.case(incoming));
        shared.history.record(Event::AttemptStarted(case.clone()));
        let mut state = shared.state.lock();
        let attempts = *state.attempts.entry(case.clone()).and_modify(|attempts| *attempts += 1).or_insert(1);
        let action = match HandlerBehaviour::parse(incoming.kind()) {
            _ if shared.is_unavailable(self.0.consumer, incoming) => HandlerAction::Unavailable,
            HandlerBehaviour::Skip => HandlerAction::Skip,
            HandlerBehaviour::Poison if !state.poison_fixed => HandlerAction::Poison,
            _ if shared.faults_ended() => HandlerAction::Done(self.0.random.lock().millis(0, 60)),
            HandlerBehaviour::Fails(times) if attempts <= times => HandlerAction::Retry,
            HandlerBehaviour::Panics(times) if attempts <= times => HandlerAction::Panic,
            HandlerBehaviour::Hangs(times) if attempts <= times => HandlerAction::Hang,
            HandlerBehaviour::Kills(times) if attempts <= times => HandlerAction::Kill,
            HandlerBehaviour::Slow => {
                let deadline = shared.scenario.consumers[self.0.consumer].config.handler_timeout;
                HandlerAction::Done(self.0.random.lock().time(deadline / 2, deadline * 5 / 4))
            }
            _ => HandlerAction::Done(self.0.random.lock().millis(0, 60)),
        };
        (case, action)
    }

    async fn perform(&self, case: Case, action: HandlerAction) -> HandlerResult {
        let record = |result| self.0.shared.history.record(Event::HandlerReturned { case: case.clone(), result });
        match action {
            HandlerAction::Done(after) => {
                sleep(after).await;
                self.0.pause_gate.wait_while_paused().await;
                record("done");
                Ok(Verdict::Done)
            }
            HandlerAction::Skip => {
                record("skip");
                Ok(Verdict::Skip)
            }
            HandlerAction::Retry => {
                record("retry");
                Err(HandlerError::transient("it fails this time").into())
            }
            HandlerAction::Poison => {
                record("poison");
                Err(HandlerError::permanent("it always fails").into())
            }
            HandlerAction::Unavailable => {
                record("outage");
                let counts = self.0.mutant == Some(Mutant::CountOutages);
                let error = if counts { HandlerError::transient } else { HandlerError::unavailable };
                Err(error("the external service is down").into())
            }
            HandlerAction::Panic => {
                record("panic");
                // Without the panic hook, because a run has many panics.
                resume_unwind(Box::new("the message makes its handler panic"))
            }
            HandlerAction::Hang => {
                record("nothing");
                pending().await
            }
            HandlerAction::Kill => {
                record("its process dies");
                self.0.kill_signal.notify_one();
                pending().await
            }
        }
    }
}

fn dedup_id(incoming: &Incoming) -> DedupId {
    DedupId { id: incoming.id(), replay: incoming.replay() }
}

#[async_trait]
impl Handler<Session> for SimHandler {
    async fn handle(&self, session: &mut Session, incoming: &Incoming) -> HandlerResult {
        let (case, action) = self.begin(incoming);
        if !matches!(action, HandlerAction::Skip) {
            // Write the effect first, so that a failure has something to roll back.
            session.effect(dedup_id(incoming)).await?;
        }
        self.perform(case, action).await
    }
}

#[async_trait]
impl CallHandler<Session> for SimHandler {
    type Answer = Verdict;

    async fn call(&self, incoming: &Incoming) -> HandlerResult {
        let (case, action) = self.begin(incoming);
        let id = if self.0.mutant == Some(Mutant::FreshIds) {
            let mut random = self.0.random.lock();
            Uuid::from_u64_pair(random.next_u64(), random.next_u64())
        } else {
            incoming.idempotency_id()
        };
        self.0.pause_gate.wait_while_paused().await;
        self.0.shared.history.record(Event::CallStarted { case: case.clone(), id });
        let _ends = CallEndGuard(&self.0.shared.history, case.clone());
        self.perform(case, action).await
    }

    async fn commit(&self, session: &mut Session, incoming: &Incoming, verdict: &Verdict) -> HandlerResult {
        if *verdict == Verdict::Done {
            session.effect(dedup_id(incoming)).await?;
        }
        Ok(*verdict)
    }
}

/// Records the end of a call, with any result.
struct CallEndGuard<'a>(&'a History, Case);

impl Drop for CallEndGuard<'_> {
    fn drop(&mut self) {
        self.0.record(Event::CallEnded(self.1.clone()));
    }
}
