//! Behaviours of members in these cases.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use relevo_inbox::{HandlerResult, Verdict};
use relevo_torture::ledger::{Behaviour, Point, PointReached};
use tokio::sync::watch;

/// A message at a point, as an owned value.
#[derive(Clone, Debug)]
pub(crate) struct PointEvent {
    pub(crate) point: Point,
    pub(crate) change: i64,
    /// Set if a handler has the message.
    pub(crate) attempt: u32,
    pub(crate) lane: String,
}

/// A behaviour that runs this function at every point.
pub(crate) fn behaviour_fn<F, A>(function: F) -> Arc<dyn Behaviour>
where
    F: Fn(PointEvent) -> A + Send + Sync + 'static,
    A: Future<Output = HandlerResult> + Send + 'static,
{
    Arc::new(BehaviourFn(function))
}

struct BehaviourFn<F>(F);

#[async_trait]
impl<F, A> Behaviour for BehaviourFn<F>
where
    F: Fn(PointEvent) -> A + Send + Sync,
    A: Future<Output = HandlerResult> + Send,
{
    async fn at(&self, reached: PointReached<'_>) -> HandlerResult {
        let PointReached { point, change, incoming } = reached;
        let attempt = incoming.map_or(0, relevo_inbox::Incoming::attempt);
        let lane = incoming.map(|incoming| incoming.lane().name().to_owned()).unwrap_or_default();
        (self.0)(PointEvent { point, change, attempt, lane }).await
    }
}

/// An event that any number of tasks can wait for.
#[derive(Clone, Debug)]
pub(crate) struct Event(watch::Sender<bool>);

impl Event {
    pub(crate) fn new() -> Self {
        Self(watch::Sender::new(false))
    }

    pub(crate) fn set(&self) {
        self.0.send_replace(true);
    }

    pub(crate) async fn wait(&self) {
        self.0.subscribe().wait_for(|happened| *happened).await.expect("this holds the sender");
    }
}

/// A log of values, in order.
#[derive(Clone, Debug)]
pub(crate) struct Log<T>(Arc<Mutex<Vec<T>>>);

impl<T: Clone> Log<T> {
    pub(crate) fn new() -> Self {
        Self(Arc::default())
    }

    pub(crate) fn push(&self, value: T) {
        self.0.lock().expect("no thread panicked").push(value);
    }

    pub(crate) fn all(&self) -> Vec<T> {
        self.0.lock().expect("no thread panicked").clone()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.lock().expect("no thread panicked").len()
    }
}

/// Checks that two members never handle the same lane at the same time.
#[derive(Clone, Debug, Default)]
pub(crate) struct LaneGuard {
    handling: Arc<Mutex<BTreeMap<String, (&'static str, usize)>>>,
    violations: Arc<Mutex<Vec<String>>>,
}

impl LaneGuard {
    /// Records that the handler of a member runs, until the value is dropped.
    pub(crate) fn enter(&self, member: &'static str, lane: &str) -> RunningHandler {
        let mut handling = self.handling.lock().expect("no thread panicked");
        let (owner, count) = handling.entry(lane.to_owned()).or_insert((member, 0));
        if *count > 0 && *owner != member {
            let violation = format!("{member} and {owner} handle lane {lane} at the same time");
            self.violations.lock().expect("no thread panicked").push(violation);
        }
        (*owner, *count) = (member, *count + 1);
        RunningHandler { guard: self.clone(), lane: lane.to_owned() }
    }

    pub(crate) fn violations(&self) -> Vec<String> {
        self.violations.lock().expect("no thread panicked").clone()
    }
}

/// A running handler.
pub(crate) struct RunningHandler {
    guard: LaneGuard,
    lane: String,
}

impl Drop for RunningHandler {
    fn drop(&mut self) {
        if let Some((_, count)) = self.guard.handling.lock().expect("no thread panicked").get_mut(&self.lane) {
            *count -= 1;
        }
    }
}

/// The result of a handler that succeeded.
pub(crate) const DONE: HandlerResult = Ok(Verdict::Done);
