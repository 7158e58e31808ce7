//! The simulated broker. It accepts, rejects, loses confirmations, and receives messages late, even after it reported
//! that they were not sent.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use relevo_core::{Broker, Capabilities, Class, Confirms, Failure, MessageId, Outcome, Publication};
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;

use crate::history::{Name, fingerprint_of, lock};
use crate::line::LATE_MAX;
use crate::outbox::event::{Event, History};
use crate::outbox::scenario::Scenario;
use crate::outbox::writers::Kind;
use crate::wire::Wire;
use relevo_core::random::SplitMix64;

/// The broker behind all connections.
pub struct FarSide {
    history: Arc<History>,
    scenario: Arc<Scenario>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    refused: BTreeMap<MessageId, u32>,
    /// Whether poison messages are accepted now.
    mended: bool,
    /// Whether faults have ended, so that connections no longer break.
    quiet: bool,
}

/// One relay's connection.
pub struct Connection {
    far_side: Arc<FarSide>,
    wire: Wire,
    random: Mutex<SplitMix64>,
    /// Counts how often the connection broke.
    cuts: watch::Sender<u64>,
}

/// What happens to one message on its way.
#[derive(Clone, Copy)]
struct Plan {
    there: Duration,
    back: Duration,
    vanished: bool,
    unanswered: bool,
    cut: bool,
}

impl Plan {
    /// A client library may report that it is not connected, keep the message, and send it after it reconnects.
    fn is_ghost(&self, deadline: Duration) -> bool {
        self.there > deadline && self.there.as_millis().is_multiple_of(2)
    }
}

impl FarSide {
    /// Creates a broker that has received nothing.
    pub fn new(history: Arc<History>, scenario: Arc<Scenario>) -> Self {
        Self { history, scenario, state: Mutex::default() }
    }

    /// Ends the faults. From now on only poison messages are rejected, and with `mended` not even those.
    pub fn calm_down(&self, mended: bool) {
        let mut state = lock(&self.state);
        state.quiet = true;
        state.mended = mended;
    }

    /// Handles the arrival of a message. Returns `None` if the message breaks the connection.
    fn arrive(&self, publication: &Publication) -> Option<Outcome> {
        let message = &*publication.message;
        let name = Name::of(message);
        if let Some(class) = self.refuses(publication) {
            let word = if class == Class::Unknown { "takes the connection down" } else { class.word() };
            self.history.record(Event::Refused { name, class: word });
            return (class != Class::Unknown).then(|| Err(Failure::new(class, "the far side said so")));
        }
        let bytes = fingerprint_of(&message.payload);
        self.history.record(Event::Received { name, bytes, epoch: publication.epoch });
        Some(Ok(()))
    }

    fn refuses(&self, publication: &Publication) -> Option<Class> {
        let now = self.history.now();
        if self.scenario.broker_away.iter().any(|span| span.contains(now)) {
            return Some(Class::Outage);
        }
        let address = self.scenario.addresses.iter().find(|plan| *plan.topic == *publication.address)?;
        if address.blocked.iter().any(|span| span.contains(now)) {
            return Some(Class::Blocked);
        }
        if let Some(span) = address.throttled.iter().find(|span| span.contains(now)) {
            return Some(Class::Throttled(span.to.saturating_sub(now).min(Duration::from_secs(2))));
        }
        let mut state = lock(&self.state);
        match Kind::of(&publication.message) {
            Kind::Plain => None,
            Kind::Poison => (!state.mended).then_some(Class::Poison),
            Kind::Killer => (!state.quiet).then_some(Class::Unknown),
            Kind::Transient(times) => {
                let refused = state.refused.entry(publication.message.id).or_default();
                if *refused >= times {
                    return None;
                }
                *refused += 1;
                Some(Class::Transient)
            }
        }
    }
}

impl Connection {
    /// Creates a connection with its own random numbers.
    pub fn new(far_side: Arc<FarSide>, wire: Wire, random: SplitMix64) -> Self {
        Self { far_side, wire, random: Mutex::new(random), cuts: watch::Sender::new(0) }
    }

    fn plan(&self) -> Plan {
        let mut random = lock(&self.random);
        let (there, back) = (random.millis(0, 30), random.millis(0, 30));
        let mut plan = Plan { there, back, vanished: false, unanswered: false, cut: false };
        let scenario = &self.far_side.scenario;
        let faults = &scenario.broker;
        if self.far_side.history.now() >= scenario.faults_for {
            return plan;
        }
        if random.permille(faults.slow) {
            plan.there = random.millis(30, 800);
        }
        if random.permille(faults.late) {
            plan.there = random.time(scenario.config.publish_deadline, LATE_MAX);
        }
        plan.vanished = random.permille(faults.vanished);
        plan.unanswered = random.permille(faults.unanswered);
        plan.cut = random.permille(faults.cut);
        for (happens, what) in [
            (plan.there > scenario.config.publish_deadline, "a message is late"),
            (plan.vanished, "a message is lost"),
            (plan.unanswered, "an answer of the broker is lost"),
            (plan.cut, "a connection to the broker breaks"),
        ] {
            if happens {
                self.far_side.history.record(Event::Fault(what));
            }
        }
        plan
    }

    /// Sends one key's messages in order. If the broker guarantees order in flight, the first failure fails the others.
    fn send(&self, messages: Vec<(usize, Publication)>, answers: &mpsc::Sender<(usize, Outcome)>) {
        let plans: Vec<Plan> = messages.iter().map(|_| self.plan()).collect();
        let (far_side, cuts, answers) = (Arc::clone(&self.far_side), self.cuts.clone(), answers.clone());
        self.wire.carry(async move {
            let mut failed = false;
            for ((index, publication), plan) in messages.into_iter().zip(plans) {
                if failed {
                    let outcome = Err(Failure::new(Class::Unknown, "an earlier message of its key failed"));
                    drop(answers.send((index, outcome)).await);
                    continue;
                }
                if plan.is_ghost(far_side.scenario.config.publish_deadline) {
                    failed = true;
                    drop(answers.send((index, Err(Failure::new(Class::Outage, "not connected")))).await);
                }
                sleep(plan.there).await;
                if plan.vanished {
                    far_side.history.record(Event::Vanished(Name::of(&publication.message)));
                    return hang(plan, &answers).await;
                }
                let Some(outcome) = far_side.arrive(&publication) else {
                    cuts.send_modify(|count| *count += 1);
                    return;
                };
                if failed {
                    continue;
                }
                failed = outcome.is_err();
                sleep(plan.back).await;
                if plan.cut {
                    cuts.send_modify(|count| *count += 1);
                }
                if plan.unanswered {
                    return hang(plan, &answers).await;
                }
                // The caller may have stopped waiting.
                drop(answers.send((index, outcome)).await);
            }
        });
    }
}

/// Sends no reply. The caller sees the broken connection at once, or waits for its own deadline.
async fn hang(plan: Plan, answers: &mpsc::Sender<(usize, Outcome)>) {
    if plan.back.as_millis().is_multiple_of(2) {
        answers.closed().await;
    }
}

#[async_trait]
impl Broker for Connection {
    fn capabilities(&self) -> Capabilities {
        Capabilities { fences_order: self.far_side.scenario.fenced, message_bytes_max: 1 << 20 }
    }

    async fn publish(&self, batch: &[Publication], confirms: &Confirms) {
        let mut cuts = self.cuts.subscribe();
        let (answers, mut answered) = mpsc::channel(batch.len().max(1));
        let keys: BTreeSet<&str> = batch.iter().map(|publication| &*publication.message.key).collect();
        for key in keys {
            let messages = batch.iter().enumerate().filter(|(_, publication)| *publication.message.key == *key);
            self.send(messages.map(|(index, publication)| (index, publication.clone())).collect(), &answers);
        }
        drop(answers);
        loop {
            let answer = tokio::select! {
                biased; // a fixed order, so that a run can be repeated
                answer = answered.recv() => answer,
                _ = cuts.changed() => return, // messages without a reported outcome may have arrived
            };
            let Some((index, outcome)) = answer else { return };
            confirms.report(index, outcome);
        }
    }
}
