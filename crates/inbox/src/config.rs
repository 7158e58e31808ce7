//! Every limit and pause of a consumer.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytestring::ByteString;
use jiff::Timestamp;
use relevo_core::inbox::Keeping;
use relevo_core::inbox::retries::Retries;
use relevo_core::retry::Backoff;
use relevo_core::{AfterDead, Broker, Policy, Traces};

use crate::validate::Validator;

/// Which messages may be handled at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Any, so many at once.
    None {
        /// Handlers that run at once.
        concurrency: usize,
    },
    /// One of a key at a time, in order; so many keys at once. One process at a time works on a lane.
    ByKey {
        /// Handlers that run at once.
        concurrency: usize,
    },
}

impl Order {
    pub(crate) const fn concurrency(self) -> usize {
        match self {
            Self::None { concurrency } | Self::ByKey { concurrency } => concurrency,
        }
    }

    pub(crate) const fn is_by_key(self) -> bool {
        matches!(self, Self::ByKey { .. })
    }
}

/// Where a message waits that is tried again later than memory should hold it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durable {
    /// In the retry table. Works with every broker, and the key's later messages wait behind it.
    #[default]
    Table,
    /// At the broker, where it has delayed retries: RabbitMQ's ladder. Only without order. The broker keeps how often it
    /// waited, which tells the attempts; what it delivers again for other reasons is no attempt.
    Broker,
}

/// How messages are read that are no CloudEvents of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Foreign {
    /// Their type, by which their handler is found.
    pub kind: ByteString,
    /// The header that holds their id, if there is one. Without it the id is made from bytes, address and place.
    pub id_header: Option<String>,
    /// The header that holds their key, if there is one. Without it each is a key of its own.
    pub key_header: Option<String>,
}

/// Where copies of dead letters are published to. The dead letter itself is in the store.
#[derive(Clone)]
pub struct DeadLetterTo {
    /// The broker.
    pub broker: Arc<dyn Broker>,
    /// The address there.
    pub address: Arc<str>,
}

impl fmt::Debug for DeadLetterTo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeadLetterTo({})", self.address)
    }
}

/// The wall clock, by which the age of a message is told.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> Timestamp + Send + Sync>);

impl Clock {
    /// A clock that asks this function.
    pub fn new(now: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    pub(crate) fn now(&self) -> Timestamp {
        (self.0)()
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new(Timestamp::now)
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clock")
    }
}

/// How a consumer works. The defaults suit handlers that take milliseconds.
#[derive(Clone, Debug)]
pub struct Config {
    /// The consumer's name: the one that its inbox is bound to. Calls to far sides are named by it.
    pub consumer: String,
    /// This process's name, for people.
    pub name: String,
    /// Which messages may be handled at the same time.
    pub order: Order,
    /// Where messages wait for durable tries.
    pub durable: Durable,
    /// When messages are tried again and given up, for handlers that say nothing else.
    pub retries: Retries,
    /// No try of a handler takes longer, for handlers that say nothing else.
    pub deadline: Duration,
    /// What happens to the key of a message that was given up, for a consumer that keeps order.
    pub after_dead: AfterDead,
    /// A message whose handling was begun more often than this, and took the process down each time, goes to the dead
    /// letters.
    pub starts_max: u32,
    /// How long things are kept: what the inbox was opened with.
    pub keeping: Keeping,
    /// At most so many first deliveries are handled in one transaction; 1 for none together.
    pub batch_max: usize,
    /// Messages asked of the broker at once.
    pub receive_max: usize,
    /// No more messages are asked for while so many are in memory. More than lanes times prefetch, or a lane that waits
    /// keeps others from flowing.
    pub in_memory_max: usize,
    /// Answers given to the broker in one call.
    pub settle_max: usize,
    /// Keys whose last sequence number is remembered, to count inversions.
    pub sequence_keys_max: usize,
    /// The pauses between probes while what a handler needs is away.
    pub breaker: Policy,
    /// How often the process says that it is alive.
    pub beat_every: Duration,
    /// How long it counts as alive after that. So long its lanes are missed if it is killed.
    pub beat_lasts: Duration,
    /// How often a lane is asked for that another member has.
    pub lane_every: Duration,
    /// After so long without a message a lane is given back, so that the member which the broker gave it to can have it.
    pub lane_idle: Duration,
    /// How often the retry table is looked at.
    pub due_every: Duration,
    /// Queues of the retry table that are worked on at once, among the handlers that [`order`](Self::order) allows.
    pub due_queues: usize,
    /// Messages of one queue that are taken at once.
    pub due_messages: usize,
    /// How often rows are pruned whose time has come.
    pub prune_every: Duration,
    /// Rows of each kind that are pruned at once.
    pub prune_limit: usize,
    /// How often the broker is asked how much waits, for whoever watches; `None` for never.
    pub lag_every: Option<Duration>,
    /// How long a message waits that another worker has in hand.
    pub busy_pause: Duration,
    /// What a claim has beyond the handler's deadline, for slow answers.
    pub claim_margin: Duration,
    /// No call to the database takes longer.
    pub store_deadline: Duration,
    /// No call to the broker takes longer, but for the one that waits for messages.
    pub broker_deadline: Duration,
    /// The first pause while database or broker are away, doubled up to `outage_max`.
    pub outage_min: Duration,
    /// The longest pause while database or broker are away.
    pub outage_max: Duration,
    /// How long a consumer that is told to stop waits for what runs.
    pub grace: Duration,
    /// How messages are read that are no CloudEvents of ours; without it they are undecodable.
    pub foreign: Option<Foreign>,
    /// What payloads are checked by before their handler gets them.
    pub validator: Option<Arc<dyn Validator>>,
    /// Where copies of dead letters are published to.
    pub dead_letter_to: Option<DeadLetterTo>,
    /// The wall clock.
    pub clock: Clock,
    /// Who is told what is done with messages.
    pub traces: Traces,
}

impl Config {
    /// The defaults, for a consumer of this name.
    pub fn new(consumer: impl Into<String>) -> Self {
        let consumer = consumer.into();
        Self {
            name: consumer.clone(),
            consumer,
            order: Order::ByKey { concurrency: 16 },
            durable: Durable::default(),
            retries: Retries::default(),
            deadline: Duration::from_secs(30),
            after_dead: AfterDead::default(),
            starts_max: 5,
            keeping: Keeping::default(),
            batch_max: 1,
            receive_max: 500,
            in_memory_max: 10_000,
            settle_max: 1000,
            sequence_keys_max: 10_000,
            breaker: Policy {
                base: Duration::from_secs(1),
                backoff: Backoff::Exponential { factor: 2 },
                ceiling: Duration::from_mins(1),
                jitter_percent: 20,
                attempts_max: u32::MAX,
            },
            beat_every: Duration::from_secs(2),
            beat_lasts: Duration::from_secs(10),
            lane_every: Duration::from_millis(250),
            lane_idle: Duration::from_secs(2),
            due_every: Duration::from_millis(200),
            due_queues: 8,
            due_messages: 50,
            prune_every: Duration::from_mins(1),
            prune_limit: 1000,
            lag_every: Some(Duration::from_secs(5)),
            busy_pause: Duration::from_millis(100),
            claim_margin: Duration::from_secs(5),
            store_deadline: Duration::from_secs(10),
            broker_deadline: Duration::from_secs(10),
            outage_min: Duration::from_millis(100),
            outage_max: Duration::from_secs(5),
            grace: Duration::from_secs(10),
            foreign: None,
            validator: None,
            dead_letter_to: None,
            clock: Clock::default(),
            traces: Traces::off(),
        }
    }

    /// The pause before the next call to a database or broker that failed so many times in a row.
    pub(crate) fn outage(&self, failures: u32) -> Duration {
        self.outage_min.saturating_mul(1 << failures.min(16)).min(self.outage_max)
    }

    /// What contradicts itself, in words.
    pub(crate) fn check(&self) -> Result<(), String> {
        let at_least_one = [
            ("order.concurrency", self.order.concurrency()),
            ("batch_max", self.batch_max),
            ("receive_max", self.receive_max),
            ("in_memory_max", self.in_memory_max),
            ("settle_max", self.settle_max),
            ("due_queues", self.due_queues),
            ("due_messages", self.due_messages),
            ("prune_limit", self.prune_limit),
        ];
        if let Some((name, _)) = at_least_one.iter().find(|(_, value)| *value == 0) {
            return Err(format!("`{name}` is 0"));
        }
        if self.beat_every * 2 > self.beat_lasts {
            return Err("`beat_every` is more than half of `beat_lasts`: one late beat would cost the lanes".to_owned());
        }
        match self.durable {
            Durable::Broker if self.order.is_by_key() => {
                Err("`durable` is the broker, which does not keep the order that was asked for".to_owned())
            }
            Durable::Broker | Durable::Table => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_contradict_nothing() {
        assert_eq!(Config::new("billing").check(), Ok(()));
    }

    #[test]
    fn what_contradicts_itself_is_named() {
        let unordered = Order::None { concurrency: 4 };
        let by_broker = Config { durable: Durable::Broker, ..Config::new("billing") };
        assert!(by_broker.check().unwrap_err().contains("order"));
        let by_broker = Config { order: unordered, ..by_broker };
        assert_eq!(by_broker.check(), Ok(()));
        assert_eq!(Config { batch_max: 0, ..Config::new("billing") }.check(), Err("`batch_max` is 0".to_owned()));
        let late = Config { beat_every: Duration::from_secs(6), ..Config::new("billing") };
        assert!(late.check().unwrap_err().contains("beat_every"));
    }

    #[test]
    fn the_pause_of_an_outage_grows_up_to_its_longest() {
        let config = Config::new("billing");
        let pauses: Vec<u128> = (0..8).map(|failures| config.outage(failures).as_millis()).collect();
        assert_eq!(pauses, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
    }
}
