//! Simulated applications. Their transactions span several keys and commit, roll back, or stay open for a long time.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use bytestring::ByteString;
use relevo_core::{Message, MessageId};
use relevo_store_memory::{Database, Draft, EmitError, OnDuplicate, Transaction};
use tokio::sync::Mutex;
use tokio::time::sleep;
use uuid::Uuid;

use crate::history::{MessageName, fingerprint_of};
use crate::outbox::event::{Event, History};
use crate::outbox::scenario::Scenario;
use relevo_core::random::SplitMix64;

/// How the broker treats a message. The message's type contains it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BrokerBehaviour {
    /// The broker accepts it.
    Plain,
    /// The broker rejects it permanently, until the broker is fixed.
    Poison,
    /// The broker rejects it this many times.
    Transient(u32),
    /// It breaks the connection each time.
    Killer,
}

impl BrokerBehaviour {
    /// Reads the behaviour from a message.
    pub fn of_message(message: &Message) -> Self {
        Self::parse(&message.kind)
    }

    /// Parses the behaviour from a message's type.
    pub fn parse(kind: &str) -> Self {
        match kind.split_once('-') {
            Some(("transient", times)) => Self::Transient(times.parse().unwrap_or(1)),
            _ if kind == "poison" => Self::Poison,
            _ if kind == "killer" => Self::Killer,
            _ => Self::Plain,
        }
    }

    fn message_type(self) -> String {
        match self {
            Self::Plain => "plain".to_owned(),
            Self::Poison => "poison".to_owned(),
            Self::Transient(times) => format!("transient-{times}"),
            Self::Killer => "killer".to_owned(),
        }
    }
}

/// The locks of the writers, one per key.
pub type Locks = Arc<Vec<Arc<Mutex<()>>>>;

/// One application.
pub struct Writer {
    outbox: Database,
    history: Arc<History>,
    scenario: Arc<Scenario>,
    locks: Locks,
    random: SplitMix64,
    /// Scheduled messages that may be cancelled.
    cancellable: Vec<MessageName>,
}

/// A message that a transaction has emitted.
struct Emitted {
    name: MessageName,
    event: Event,
}

impl Writer {
    /// Creates a writer with its own random numbers.
    pub fn new(outbox: Database, history: Arc<History>, scenario: Arc<Scenario>, locks: Locks, number: u64) -> Self {
        let random = SplitMix64::for_part(scenario.seed, "writer", number);
        Self { outbox, history, scenario, locks, random, cancellable: Vec::new() }
    }

    /// Writes until the faults end.
    pub async fn run(mut self) {
        loop {
            sleep(self.random.time(Duration::ZERO, self.scenario.pause * 2)).await;
            if self.history.now() >= self.scenario.faults_for {
                return;
            }
            self.transaction().await;
        }
    }

    async fn transaction(&mut self) {
        let max = self.scenario.keys.len().min(3) - 1;
        let mut keys: Vec<usize> =
            (0..=self.random.count(0, max)).map(|_| self.random.count(0, self.scenario.keys.len() - 1)).collect();
        // In a fixed order, as `emit_many` does, so that two writers never deadlock.
        keys.sort_unstable();
        keys.dedup();
        let mut guards = Vec::new();
        for key in &keys {
            if self.scenario.keys[*key].locked {
                guards.push(Arc::clone(&self.locks[*key]).lock_owned().await);
            }
        }
        let mut transaction = self.outbox.begin();
        let mut emitted = Vec::new();
        let mut cancelled = Vec::new();
        let lingers = self.random.permille(150);
        let result = self.fill(&mut transaction, &keys, lingers, &mut emitted, &mut cancelled).await;
        if result.is_err() || self.random.permille(150) {
            drop(transaction);
            return self.record_rollback(emitted);
        }
        if transaction.commit().is_err() {
            return self.record_rollback(emitted);
        }
        // No other task runs between the commit and this, so the history contains commits in their order.
        for emitted in emitted {
            if matches!(emitted.event, Event::Committed { scheduled: true, .. }) {
                self.cancellable.push(emitted.name);
            }
            self.history.record(emitted.event);
        }
        for name in cancelled {
            self.history.record(Event::Cancelled(name));
        }
    }

    async fn fill(
        &mut self,
        transaction: &mut Transaction,
        keys: &[usize],
        lingers: bool,
        emitted: &mut Vec<Emitted>,
        cancelled: &mut Vec<MessageName>,
    ) -> Result<(), EmitError> {
        let longest = if lingers { self.scenario.open_max } else { Duration::from_millis(40) };
        let count = if self.random.permille(50) { self.random.count(5, 25) } else { self.random.count(1, 4) };
        for _ in 0..count {
            let savepoint = self.random.permille(100).then(|| (transaction.savepoint(), emitted.len()));
            let key = *self.random.pick(keys);
            self.emit(transaction, key, emitted)?;
            if self.random.permille(400) {
                sleep(self.random.time(Duration::ZERO, longest)).await;
            }
            if let Some((savepoint, emitted_before)) = savepoint
                && self.random.permille(600)
            {
                transaction.rollback_to(savepoint);
                let undone = emitted.split_off(emitted_before);
                self.record_rollback(undone);
            }
        }
        if self.random.permille(200)
            && let Some(name) = self.cancellable.pop()
            && transaction.cancel(name.id)?
        {
            cancelled.push(name);
        }
        if lingers {
            sleep(self.random.time(Duration::ZERO, longest)).await;
        }
        Ok(())
    }

    fn emit(&mut self, transaction: &mut Transaction, key: usize, emitted: &mut Vec<Emitted>) -> Result<(), EmitError> {
        let scenario = Arc::clone(&self.scenario);
        let plan = &scenario.keys[key];
        let topic = &scenario.addresses[*self.random.pick(&plan.addresses)].topic;
        let payload: Bytes = (0..self.random.count(0, 12)).map(|_| self.random.next_u64().to_le_bytes()[0]).collect();
        let kind = self.behaviour(plan.failing_permille);
        let mut draft = Draft::json(topic, &plan.name, &kind.message_type(), payload.clone());
        if plan.scheduled {
            draft.deliver_at = Some(self.outbox.now() + self.random.millis(0, 15_000));
        }
        if self.random.permille(100) {
            let (high, low) = (self.random.next_u64(), self.random.next_u64());
            draft.id = Some(MessageId::from_uuid(Uuid::from_u64_pair(high, low)));
            draft.on_duplicate = OnDuplicate::Ignore;
        }
        let repeats = draft.id.is_some() && self.random.permille(500);
        let id = transaction.emit(draft.clone())?;
        if repeats {
            // A caller that retries. Because of its id, the message is not emitted twice.
            transaction.emit(draft)?;
        }
        let name = MessageName { id, key: ByteString::from(plan.name.as_str()) };
        let event = Event::Committed {
            name: name.clone(),
            kind: kind.message_type().into(),
            topic: topic.as_str().into(),
            bytes: fingerprint_of(&payload),
            scheduled: plan.scheduled,
        };
        emitted.push(Emitted { name, event });
        Ok(())
    }

    fn behaviour(&mut self, failing_permille: u64) -> BrokerBehaviour {
        if !self.random.permille(failing_permille) {
            return BrokerBehaviour::Plain;
        }
        match self.random.between(0, 9) {
            0..=3 => BrokerBehaviour::Poison,
            4..=8 => BrokerBehaviour::Transient(u32::try_from(self.random.between(1, 7)).unwrap_or(1)),
            _ => BrokerBehaviour::Killer,
        }
    }

    fn record_rollback(&self, emitted: Vec<Emitted>) {
        for Emitted { name, .. } in emitted {
            self.history.record(Event::RolledBack(name));
        }
    }
}
