//! The in-memory broker.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use async_trait::async_trait;
use parking_lot::Mutex;
use relevo_core::{Broker, Capabilities, Class, Failure, Message, MessageId, Outcome, OutcomeSender, Publication};
use tokio::sync::watch;

use crate::config::Config;
use crate::failure_rule::{FailureRule, apply_rules};

/// An in-memory broker. Cheap to clone: all clones are the same broker.
#[derive(Clone, Debug)]
pub struct MemoryBroker(Arc<Inner>);

/// A received message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceivedMessage {
    /// The message's id. Repeats have the same id.
    pub id: MessageId,
    /// Its key.
    pub key: String,
    /// The address it was published to.
    pub address: Arc<str>,
    /// Its number in the outbox.
    pub seq: i64,
    /// The epoch of the lease under which it was sent.
    pub epoch: i64,
    /// The message.
    pub message: Arc<Message>,
}

struct Inner {
    config: Config,
    received: AtomicU64,
    /// Whether any fault or hook is set. Otherwise a batch is confirmed without a check of its messages.
    has_faults: AtomicBool,
    faults: Mutex<Faults>,
    frozen: watch::Sender<bool>,
    messages: Mutex<Vec<ReceivedMessage>>,
}

#[derive(Default)]
struct Faults {
    down: bool,
    rules: Vec<FailureRule>,
    hook: Option<Hook>,
}

type Hook = Arc<dyn Fn(&Publication) + Send + Sync>;

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inner").field("config", &self.config).field("received", &self.received).finish_non_exhaustive()
    }
}

impl MemoryBroker {
    /// Creates a broker that is up and has received nothing.
    pub fn new(config: Config) -> Self {
        Self(Arc::new(Inner {
            config,
            received: AtomicU64::new(0),
            has_faults: AtomicBool::new(false),
            faults: Mutex::default(),
            frozen: watch::Sender::new(false),
            messages: Mutex::default(),
        }))
    }

    /// Adds a failure rule.
    pub fn add_failure(&self, rule: FailureRule) {
        self.change_faults(|faults| faults.rules.push(rule));
    }

    /// Removes all failure rules.
    pub fn clear_failures(&self) {
        self.change_faults(|faults| faults.rules.clear());
    }

    /// Makes every message fail as an outage. Nothing is received.
    pub fn down(&self) {
        self.change_faults(|faults| faults.down = true);
    }

    /// Ends [`down`](Self::down).
    pub fn up(&self) {
        self.change_faults(|faults| faults.down = false);
    }

    /// Makes every call wait until [`thaw`](Self::thaw). Nothing is received.
    pub fn freeze(&self) {
        self.0.frozen.send_replace(true);
    }

    /// Lets frozen calls continue.
    pub fn thaw(&self) {
        self.0.frozen.send_replace(false);
    }

    /// Calls `hook` for every received message, in order. The hook may call the broker.
    pub fn on_receipt(&self, hook: impl Fn(&Publication) + Send + Sync + 'static) {
        self.change_faults(|faults| faults.hook = Some(Arc::new(hook)));
    }

    /// The number of received messages, including repeats.
    pub fn received(&self) -> u64 {
        self.0.received.load(Ordering::Relaxed)
    }

    /// The received messages in order, if the configuration enables recording.
    pub fn received_messages(&self) -> Vec<ReceivedMessage> {
        self.0.messages.lock().clone()
    }

    fn change_faults(&self, change: impl FnOnce(&mut Faults)) {
        let mut faults = self.0.faults.lock();
        change(&mut faults);
        let has_faults = faults.down || !faults.rules.is_empty() || faults.hook.is_some();
        self.0.has_faults.store(has_faults, Ordering::Release);
    }

    /// Receives all messages that no fault rejects.
    fn accept(&self, batch: &[Publication]) -> Vec<Outcome> {
        let no_faults =
            !self.0.has_faults.load(Ordering::Acquire) && batch.iter().all(|publication| self.is_small(publication));
        if no_faults {
            self.receive(batch);
            return batch.iter().map(|_| Ok(())).collect();
        }
        let mut failed = BTreeSet::new();
        batch
            .iter()
            .map(|publication| {
                let key = &*publication.message.key;
                if self.0.config.ordered_in_flight && failed.contains(key) {
                    return Err(Failure::new(Class::Unknown, "an earlier message of its key failed"));
                }
                let outcome = self.accept_one(publication);
                if outcome.is_err() {
                    failed.insert(key);
                }
                outcome
            })
            .collect()
    }

    fn accept_one(&self, publication: &Publication) -> Outcome {
        if !self.is_small(publication) {
            return Err(Failure::new(Class::Poison, "the payload is too large"));
        }
        let mut faults = self.0.faults.lock();
        if faults.down {
            return Err(Failure::new(Class::Outage, "the broker is down"));
        }
        let verdict = apply_rules(&mut faults.rules, publication);
        let hook = faults.hook.clone();
        drop(faults);
        if verdict.is_none_or(|(_, received)| received) {
            self.receive(std::slice::from_ref(publication));
            if let Some(hook) = hook {
                hook(publication);
            }
        }
        verdict.map_or(Ok(()), |(class, _)| Err(Failure::new(class, "a failure rule matched")))
    }

    fn is_small(&self, publication: &Publication) -> bool {
        publication.message.payload.len() <= self.0.config.message_size_max
    }

    fn receive(&self, batch: &[Publication]) {
        if self.0.config.keeps_messages {
            self.0.messages.lock().extend(batch.iter().map(|publication| ReceivedMessage {
                id: publication.message.id,
                key: publication.message.key.to_string(),
                address: Arc::clone(&publication.address),
                seq: publication.seq,
                epoch: publication.epoch,
                message: Arc::clone(&publication.message),
            }));
        }
        self.0.received.fetch_add(batch.len() as u64, Ordering::Relaxed);
    }
}

#[async_trait]
impl Broker for MemoryBroker {
    fn capabilities(&self) -> Capabilities {
        Capabilities { ordered_in_flight: self.0.config.ordered_in_flight }
    }

    async fn publish(&self, batch: &[Publication], confirms: &OutcomeSender) {
        if *self.0.frozen.borrow() {
            // The sender lives as long as the broker, so the wait ends only by thawing.
            drop(self.0.frozen.subscribe().wait_for(|frozen| !frozen).await);
        }
        let outcomes = self.accept(batch);
        // Receipt comes first. A call that is cancelled during this wait has arrived, as with a real broker.
        if !self.0.config.latency.is_zero() {
            tokio::time::sleep(self.0.config.latency).await;
        }
        confirms.report_all(outcomes.into_iter().enumerate());
    }
}
