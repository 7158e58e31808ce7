//! Handlers that behave as the type of a message requires.

use std::collections::BTreeMap;
use std::future::pending;
use std::panic::resume_unwind;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use relevo_core::inbox::Entry;
use relevo_inbox::{Call, Handled, Handlers, Incoming, Inside, Trouble, Verdict};
use tokio::sync::Notify;
use tokio::time::sleep;
use uuid::Uuid;

use crate::history::lock;
use crate::inbox::broker::Group;
use crate::inbox::directory::Directory;
use crate::inbox::event::{Case, Event, History};
use crate::inbox::gate::Gate;
use crate::inbox::kind::Kind;
use crate::inbox::mutants::Mutant;
use crate::inbox::scenario::Scenario;
use crate::inbox::store::Session;
use relevo_core::random::SplitMix64;

/// The shared state of all handlers: the attempts, and whether the external service is up.
pub struct Trials {
    scenario: Arc<Scenario>,
    history: Arc<History>,
    directory: Arc<Directory>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    tries: BTreeMap<Case, u32>,
    /// Whether poison messages succeed now.
    mended: bool,
}

/// The handlers of one running member.
#[derive(Clone)]
pub struct Handler(Arc<Inner>);

struct Inner {
    consumer: usize,
    trials: Arc<Trials>,
    gate: Gate,
    /// Notified when a message kills the process.
    doom: Arc<Notify>,
    random: Mutex<SplitMix64>,
    mutant: Option<Mutant>,
}

/// What a handler does with a message this time.
enum Act {
    Done(Duration),
    Skip,
    Retry,
    Poison,
    Away,
    Panic,
    Hang,
    Kill,
}

impl Trials {
    /// Creates the state without attempts.
    pub fn new(scenario: Arc<Scenario>, history: Arc<History>, directory: Arc<Directory>) -> Self {
        Self { scenario, history, directory, state: Mutex::default() }
    }

    /// Makes poison messages succeed from now on.
    pub fn mend(&self) {
        lock(&self.state).mended = true;
    }

    fn is_quiet(&self) -> bool {
        self.history.now() >= self.scenario.faults_for
    }

    fn is_away(&self, consumer: usize, incoming: &Incoming) -> bool {
        let now = self.history.now();
        let away = self.scenario.consumers[consumer].away.iter();
        away.clone().any(|(lane, span)| Group::lane(*lane) == *incoming.lane() && span.contains(now))
    }
}

impl Handler {
    /// Creates the handlers of a member that just started.
    pub fn new(
        consumer: usize,
        trials: Arc<Trials>,
        gate: Gate,
        doom: Arc<Notify>,
        random: SplitMix64,
        mutant: Option<Mutant>,
    ) -> Self {
        Self(Arc::new(Inner { consumer, trials, gate, doom, random: Mutex::new(random), mutant }))
    }

    /// Registers the handlers by message type: inside the transaction, or with a call before it.
    pub fn registered(&self) -> Handlers<Session> {
        Handlers::new().inside("inside.*", self.clone()).call("call.*", self.clone())
    }

    fn case(&self, incoming: &Incoming) -> Case {
        self.0.trials.directory.case(self.0.consumer, entry(incoming))
    }

    /// Chooses the behaviour, and records that an attempt started.
    fn begin(&self, incoming: &Incoming) -> (Case, Act) {
        let (trials, case) = (&self.0.trials, self.case(incoming));
        trials.history.record(Event::Tried(case.clone()));
        let mut state = lock(&trials.state);
        let tries = *state.tries.entry(case.clone()).and_modify(|tries| *tries += 1).or_insert(1);
        let act = match Kind::parse(incoming.kind()) {
            _ if trials.is_away(self.0.consumer, incoming) => Act::Away,
            Kind::Skip => Act::Skip,
            Kind::Poison if !state.mended => Act::Poison,
            _ if trials.is_quiet() => Act::Done(lock(&self.0.random).millis(0, 60)),
            Kind::Fails(times) if tries <= times => Act::Retry,
            Kind::Panics(times) if tries <= times => Act::Panic,
            Kind::Hangs(times) if tries <= times => Act::Hang,
            Kind::Kills(times) if tries <= times => Act::Kill,
            Kind::Slow => {
                let deadline = trials.scenario.consumers[self.0.consumer].config.deadline;
                Act::Done(lock(&self.0.random).time(deadline / 2, deadline * 5 / 4))
            }
            _ => Act::Done(lock(&self.0.random).millis(0, 60)),
        };
        (case, act)
    }

    async fn act(&self, case: Case, act: Act) -> Handled {
        let say = |what| self.0.trials.history.record(Event::Said { case: case.clone(), what });
        match act {
            Act::Done(after) => {
                sleep(after).await;
                self.0.gate.pass().await;
                say("done");
                Ok(Verdict::Done)
            }
            Act::Skip => {
                say("skip");
                Ok(Verdict::Skip)
            }
            Act::Retry => {
                say("retry");
                Err(Trouble::retry("it fails this time"))
            }
            Act::Poison => {
                say("poison");
                Err(Trouble::poison("it can never pass"))
            }
            Act::Away => {
                say("away");
                let counts = self.0.mutant == Some(Mutant::CountAway);
                Err(if counts { Trouble::retry("counted") } else { Trouble::away("what it needs is away") })
            }
            Act::Panic => {
                say("panic");
                // Without the panic hook, because a run has many panics.
                resume_unwind(Box::new("the handler was told to panic"))
            }
            Act::Hang => {
                say("nothing");
                pending().await
            }
            Act::Kill => {
                say("its process dies");
                self.0.doom.notify_one();
                pending().await
            }
        }
    }
}

fn entry(incoming: &Incoming) -> Entry {
    Entry { id: incoming.id(), replay: incoming.replay() }
}

#[async_trait]
impl Inside<Session> for Handler {
    async fn handle(&self, session: &mut Session, incoming: &Incoming) -> Handled {
        let (case, act) = self.begin(incoming);
        if !matches!(act, Act::Skip) {
            // Write the effect first, so that a failure has something to roll back.
            session.effect(entry(incoming)).await?;
        }
        self.act(case, act).await
    }
}

#[async_trait]
impl Call<Session> for Handler {
    type Answer = Verdict;

    async fn call(&self, incoming: &Incoming) -> Result<Verdict, Trouble> {
        let (case, act) = self.begin(incoming);
        let id = if self.0.mutant == Some(Mutant::FreshIds) {
            let mut random = lock(&self.0.random);
            Uuid::from_u64_pair(random.next_u64(), random.next_u64())
        } else {
            incoming.idempotency_id()
        };
        self.0.gate.pass().await;
        self.0.trials.history.record(Event::Called { case: case.clone(), id });
        let _ends = Ends(&self.0.trials.history, case.clone());
        self.act(case, act).await
    }

    async fn commit(&self, session: &mut Session, incoming: &Incoming, answer: &Verdict) -> Handled {
        if *answer == Verdict::Done {
            session.effect(entry(incoming)).await?;
        }
        Ok(*answer)
    }
}

/// Records the end of a call, whatever its result.
struct Ends<'a>(&'a History, Case);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.record(Event::CallEnded(self.1.clone()));
    }
}
