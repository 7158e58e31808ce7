//! The simulated broker. It accepts, rejects, loses confirmations, and receives messages late, even after it reported
//! that they were not sent.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use relevo_core::{Broker, Capabilities, Class, Failure, MessageId, Outcome, OutcomeSender, Publication};
use tokio::sync::{Notify, mpsc};
use tokio::time::sleep;

use crate::history::{MessageName, fingerprint_of};
use crate::link::DELAY_MAX;
use crate::network::Network;
use crate::outbox::event::{Event, History};
use crate::outbox::scenario::Scenario;
use crate::outbox::writers::BrokerBehaviour;
use relevo_core::random::SplitMix64;

/// The broker behind all connections.
pub struct SimBroker {
    history: Arc<History>,
    scenario: Arc<Scenario>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    refused: BTreeMap<MessageId, u32>,
    /// Whether poison messages are accepted now.
    poison_fixed: bool,
    /// Whether faults have ended, so that connections no longer break.
    faults_ended: bool,
}

/// One relay's connection.
pub struct Connection {
    broker: Arc<SimBroker>,
    network: Network,
    random: Mutex<SplitMix64>,
    /// Ends every call in progress when the connection breaks, in the order of the calls. A `watch` channel would wake
    /// them in a random order, and a seed could not be replayed.
    disconnects: Arc<Notify>,
}

/// The faults of one message on its way.
#[derive(Clone, Copy)]
struct DeliveryPlan {
    request_delay: Duration,
    reply_delay: Duration,
    lost: bool,
    reply_lost: bool,
    disconnects: bool,
}

impl DeliveryPlan {
    /// A client library may report that it is not connected, keep the message, and send it after it reconnects.
    fn is_ghost(&self, deadline: Duration) -> bool {
        self.request_delay > deadline && self.request_delay.as_millis().is_multiple_of(2)
    }
}

impl SimBroker {
    /// Creates a broker that has received nothing.
    pub fn new(history: Arc<History>, scenario: Arc<Scenario>) -> Self {
        Self { history, scenario, state: Mutex::default() }
    }

    /// Ends the faults. From now on only poison messages are rejected, and with `poison_fixed` not even those.
    pub fn stop_faults(&self, poison_fixed: bool) {
        let mut state = self.state.lock();
        state.faults_ended = true;
        state.poison_fixed = poison_fixed;
    }

    /// Handles the arrival of a message. Returns `None` if the message breaks the connection.
    fn receive(&self, publication: &Publication) -> Option<Outcome> {
        let message = &*publication.message;
        let name = MessageName::of(message);
        if let Some(class) = self.refuses(publication) {
            let word = if class == Class::Unknown { "takes the connection down" } else { class.as_str() };
            self.history.record(Event::Refused { name, class: word });
            return (class != Class::Unknown).then(|| Err(Failure::new(class, "the broker rejected it")));
        }
        let bytes = fingerprint_of(&message.payload);
        self.history.record(Event::Received { name, bytes, epoch: publication.epoch });
        Some(Ok(()))
    }

    fn refuses(&self, publication: &Publication) -> Option<Class> {
        let now = self.history.now();
        if self.scenario.broker_outages.iter().any(|span| span.contains(now)) {
            return Some(Class::Outage);
        }
        let address = self.scenario.addresses.iter().find(|plan| *plan.topic == *publication.address)?;
        if address.blocked.iter().any(|span| span.contains(now)) {
            return Some(Class::Blocked);
        }
        if let Some(span) = address.throttled.iter().find(|span| span.contains(now)) {
            return Some(Class::Throttled(span.to.saturating_sub(now).min(Duration::from_secs(2))));
        }
        let mut state = self.state.lock();
        match BrokerBehaviour::of_message(&publication.message) {
            BrokerBehaviour::Plain => None,
            BrokerBehaviour::Poison => (!state.poison_fixed).then_some(Class::Poison),
            BrokerBehaviour::Killer => (!state.faults_ended).then_some(Class::Unknown),
            BrokerBehaviour::Transient(times) => {
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
    pub fn new(broker: Arc<SimBroker>, network: Network, random: SplitMix64) -> Self {
        Self { broker, network, random: Mutex::new(random), disconnects: Arc::default() }
    }

    fn plan(&self) -> DeliveryPlan {
        let mut random = self.random.lock();
        let (there, back) = (random.millis(0, 30), random.millis(0, 30));
        let mut plan = DeliveryPlan {
            request_delay: there,
            reply_delay: back,
            lost: false,
            reply_lost: false,
            disconnects: false,
        };
        let scenario = &self.broker.scenario;
        let faults = &scenario.broker;
        if self.broker.history.now() >= scenario.faults_for {
            return plan;
        }
        if random.permille(faults.slow) {
            plan.request_delay = random.millis(30, 800);
        }
        if random.permille(faults.late) {
            plan.request_delay = random.time(scenario.config.publish_timeout, DELAY_MAX);
        }
        plan.lost = random.permille(faults.lost);
        plan.reply_lost = random.permille(faults.reply_lost);
        plan.disconnects = random.permille(faults.disconnected);
        for (occurs, text) in [
            (plan.request_delay > scenario.config.publish_timeout, "a message is late"),
            (plan.lost, "a message is lost"),
            (plan.reply_lost, "an answer of the broker is lost"),
            (plan.disconnects, "a connection to the broker breaks"),
        ] {
            if occurs {
                self.broker.history.record(Event::Fault(text));
            }
        }
        plan
    }

    /// Sends one key's messages in order. If the broker guarantees order in flight, the first failure fails the others.
    fn send(&self, messages: Vec<(usize, Publication)>, outcomes: &mpsc::Sender<(usize, Outcome)>) {
        let plans: Vec<DeliveryPlan> = messages.iter().map(|_| self.plan()).collect();
        let (broker, disconnects, outcomes) =
            (Arc::clone(&self.broker), Arc::clone(&self.disconnects), outcomes.clone());
        self.network.spawn(async move {
            let mut failed = false;
            for ((index, publication), plan) in messages.into_iter().zip(plans) {
                if failed {
                    let outcome = Err(Failure::new(Class::Unknown, "an earlier message of its key failed"));
                    drop(outcomes.send((index, outcome)).await);
                    continue;
                }
                if plan.is_ghost(broker.scenario.config.publish_timeout) {
                    failed = true;
                    drop(outcomes.send((index, Err(Failure::new(Class::Outage, "not connected")))).await);
                }
                sleep(plan.request_delay).await;
                if plan.lost {
                    broker.history.record(Event::LostInTransit(MessageName::of(&publication.message)));
                    return hang(plan, &outcomes).await;
                }
                let Some(outcome) = broker.receive(&publication) else {
                    disconnects.notify_waiters();
                    return;
                };
                if failed {
                    continue;
                }
                failed = outcome.is_err();
                sleep(plan.reply_delay).await;
                if plan.disconnects {
                    disconnects.notify_waiters();
                }
                if plan.reply_lost {
                    return hang(plan, &outcomes).await;
                }
                // The caller may have stopped waiting.
                drop(outcomes.send((index, outcome)).await);
            }
        });
    }
}

/// Sends no reply. The caller sees the broken connection at once, or waits for its own deadline.
async fn hang(plan: DeliveryPlan, outcomes: &mpsc::Sender<(usize, Outcome)>) {
    if plan.reply_delay.as_millis().is_multiple_of(2) {
        outcomes.closed().await;
    }
}

#[async_trait]
impl Broker for Connection {
    fn capabilities(&self) -> Capabilities {
        Capabilities { ordered_in_flight: self.broker.scenario.ordered_in_flight }
    }

    async fn publish(&self, batch: &[Publication], confirms: &OutcomeSender) {
        let mut disconnected = pin!(self.disconnects.notified());
        disconnected.as_mut().enable();
        let (outcomes, mut received) = mpsc::channel(batch.len().max(1));
        let keys: BTreeSet<&str> = batch.iter().map(|publication| &*publication.message.key).collect();
        for key in keys {
            let messages = batch.iter().enumerate().filter(|(_, publication)| *publication.message.key == *key);
            self.send(messages.map(|(index, publication)| (index, publication.clone())).collect(), &outcomes);
        }
        drop(outcomes);
        loop {
            let outcome = tokio::select! {
                biased; // a fixed order, so that a run can be repeated
                outcome = received.recv() => outcome,
                () = &mut disconnected => return, // messages without a reported outcome may have arrived
            };
            let Some((index, outcome)) = outcome else { return };
            confirms.report(index, outcome);
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use relevo_core::broker::OutcomeReceiver;
    use relevo_core::{Draft, HeaderRules};
    use tokio::task::JoinSet;

    use super::*;

    fn publication() -> Publication {
        let message =
            Draft::json("orders", "k", "T", "").into_message(MessageId::v7(1, [0; 10]), Timestamp::UNIX_EPOCH);
        let headers = Arc::new(HeaderRules::default());
        Publication { message: Arc::new(message), address: "orders".into(), headers, seq: 1, epoch: 1 }
    }

    #[tokio::test(start_paused = true)]
    async fn a_disconnect_ends_the_calls_in_their_order() {
        let broker = Arc::new(SimBroker::new(Arc::new(History::begin()), Arc::new(Scenario::of(0))));
        let connection = Arc::new(Connection::new(broker, Network::default(), SplitMix64::new(0)));
        let ended = Arc::new(Mutex::new(Vec::new()));
        let mut calls = JoinSet::new();
        for number in 0..20 {
            let (connection, ended) = (Arc::clone(&connection), Arc::clone(&ended));
            calls.spawn(async move {
                connection.publish(&[publication()], &OutcomeReceiver::default().sender(number)).await;
                ended.lock().push(number);
            });
        }
        tokio::task::yield_now().await;
        connection.disconnects.notify_waiters();
        while calls.join_next().await.is_some() {}
        assert_eq!(*ended.lock(), (0..20).collect::<Vec<u64>>());
    }
}
