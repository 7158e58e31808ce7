//! Behaviours of members in these cases.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use relevo_inbox::{HandlerResult, Verdict};
use relevo_torture::ledger::{Conduct, Point, Reached};
use tokio::sync::watch;

/// A message at a point, as an owned value.
#[derive(Clone, Debug)]
pub(crate) struct Moment {
    pub(crate) point: Point,
    pub(crate) change: i64,
    /// Set if a handler has the message.
    pub(crate) attempt: u32,
    pub(crate) lane: String,
}

/// A conduct that runs this function at every point.
pub(crate) fn does<F, A>(act: F) -> Arc<dyn Conduct>
where
    F: Fn(Moment) -> A + Send + Sync + 'static,
    A: Future<Output = HandlerResult> + Send + 'static,
{
    Arc::new(Does(act))
}

struct Does<F>(F);

#[async_trait]
impl<F, A> Conduct for Does<F>
where
    F: Fn(Moment) -> A + Send + Sync,
    A: Future<Output = HandlerResult> + Send,
{
    async fn at(&self, reached: Reached<'_>) -> HandlerResult {
        let Reached { point, change, incoming } = reached;
        let attempt = incoming.map_or(0, relevo_inbox::Incoming::attempt);
        let lane = incoming.map(|incoming| incoming.lane().name().to_owned()).unwrap_or_default();
        (self.0)(Moment { point, change, attempt, lane }).await
    }
}

/// An event that any number of tasks can wait for.
#[derive(Clone, Debug)]
pub(crate) struct Event(watch::Sender<bool>);

impl Event {
    pub(crate) fn new() -> Self {
        Self(watch::Sender::new(false))
    }

    pub(crate) fn happen(&self) {
        self.0.send_replace(true);
    }

    pub(crate) async fn wait(&self) {
        self.0.subscribe().wait_for(|happened| *happened).await.expect("this holds the sender");
    }
}

/// A log of what happened, in order.
#[derive(Clone, Debug)]
pub(crate) struct Log<T>(Arc<Mutex<Vec<T>>>);

impl<T: Clone> Log<T> {
    pub(crate) fn new() -> Self {
        Self(Arc::default())
    }

    pub(crate) fn note(&self, what: T) {
        self.0.lock().expect("no holder panics").push(what);
    }

    pub(crate) fn all(&self) -> Vec<T> {
        self.0.lock().expect("no holder panics").clone()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.lock().expect("no holder panics").len()
    }
}

/// Checks that two members never handle the same lane at the same time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Guard {
    handling: Arc<Mutex<BTreeMap<String, (&'static str, usize)>>>,
    broken: Arc<Mutex<Vec<String>>>,
}

impl Guard {
    /// Records that the handler of a member runs, until the value is dropped.
    pub(crate) fn enter(&self, member: &'static str, lane: &str) -> Inside {
        let mut handling = self.handling.lock().expect("no holder panics");
        let (owner, count) = handling.entry(lane.to_owned()).or_insert((member, 0));
        if *count > 0 && *owner != member {
            let told = format!("{member} handles lane {lane} while {owner} does");
            self.broken.lock().expect("no holder panics").push(told);
        }
        (*owner, *count) = (member, *count + 1);
        Inside { guard: self.clone(), lane: lane.to_owned() }
    }

    pub(crate) fn broken(&self) -> Vec<String> {
        self.broken.lock().expect("no holder panics").clone()
    }
}

/// A running handler.
pub(crate) struct Inside {
    guard: Guard,
    lane: String,
}

impl Drop for Inside {
    fn drop(&mut self) {
        if let Some((_, count)) = self.guard.handling.lock().expect("no holder panics").get_mut(&self.lane) {
            *count -= 1;
        }
    }
}

/// The result of a handler that succeeded.
pub(crate) const DONE: HandlerResult = Ok(Verdict::Done);
