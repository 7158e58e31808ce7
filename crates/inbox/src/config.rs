//! Configuration of a consumer.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytestring::ByteString;
use jiff::Timestamp;
use relevo_core::inbox::retry_policy::HandlerRetryPolicy;
use relevo_core::retry::{Backoff, ExponentialBackoff};
use relevo_core::{AfterDead, Broker, RetryPolicy, Tracer};

use crate::schema::Validator;

/// Which messages may be handled at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageOrder {
    /// No order: any messages may be handled at the same time.
    None {
        /// Maximum number of handlers that run at once.
        concurrency: usize,
    },
    /// Messages of one key are handled one at a time, in order; different keys run concurrently. One process at a time
    /// works on a lane.
    ByKey {
        /// Maximum number of handlers that run at once.
        concurrency: usize,
    },
}

impl MessageOrder {
    pub(crate) const fn concurrency(self) -> usize {
        match self {
            Self::None { concurrency } | Self::ByKey { concurrency } => concurrency,
        }
    }

    pub(crate) const fn is_by_key(self) -> bool {
        matches!(self, Self::ByKey { .. })
    }
}

/// Where a message waits for a durable retry, after its retries in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RetryStorage {
    /// In the retry table. Works with every broker; later messages of the same key wait behind it.
    #[default]
    Inbox,
    /// At the broker, if it supports delayed retries (RabbitMQ: a ladder of delay queues). Requires [`MessageOrder::None`]. The
    /// broker stores how often it delayed the message, which gives the attempts; other redeliveries do not count.
    Broker,
}

/// How to read foreign messages: those that are not CloudEvents written by Relevo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignMessages {
    /// Their type, which selects the handler.
    pub kind: ByteString,
    /// Header with their id, if they have one. Without it the id is derived from payload, address and offset.
    pub id_header: Option<String>,
    /// Header with their key, if they have one. Without it each message has its own key.
    pub key_header: Option<String>,
}

/// Where copies of dead letters are published. The dead letter itself is in the store.
#[derive(Clone)]
pub struct DeadLetterCopy {
    /// The broker.
    pub broker: Arc<dyn Broker>,
    /// The address at that broker.
    pub address: Arc<str>,
}

impl fmt::Debug for DeadLetterCopy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeadLetterCopy({})", self.address)
    }
}

/// The wall clock, which determines the age of a message.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> Timestamp + Send + Sync>);

impl Clock {
    /// A clock that calls this function.
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

/// Configuration of a consumer. The defaults suit handlers that take milliseconds.
#[derive(Clone, Debug)]
pub struct Config {
    /// Name of this process, shown to operators. Default: its process id.
    pub member_name: String,
    /// Which messages may be handled at the same time.
    pub order: MessageOrder,
    /// Where messages wait for durable retries.
    pub retry_storage: RetryStorage,
    /// Retry policy. A handler can override it.
    pub retry: HandlerRetryPolicy,
    /// Timeout of one handler attempt. A handler can override it.
    pub handler_timeout: Duration,
    /// What happens to the key of a dead-lettered message, if order is kept. A handler can override it.
    pub after_dead: AfterDead,
    /// Maximum number of starts that end in a crash of the process. After more starts the message is dead-lettered.
    pub starts_max: u32,
    /// Maximum number of first deliveries handled in one transaction; 1 disables batches.
    pub batch_max: usize,
    /// Maximum number of messages in one call to receive.
    pub receive_batch_max: usize,
    /// Receiving pauses while this many messages are in memory. It must exceed lanes times prefetch; otherwise one
    /// blocked lane stops the others.
    pub in_memory_messages_max: usize,
    /// Maximum number of deliveries settled in one call.
    pub ack_batch_max: usize,
    /// Number of keys whose last sequence number is remembered, to count out-of-order deliveries.
    pub sequence_keys_max: usize,
    /// Pauses between probes while a service that a handler needs is down.
    pub breaker: RetryPolicy,
    /// How often the process sends a heartbeat.
    pub heartbeat_interval: Duration,
    /// Lifetime of a heartbeat. After a crash, other members take over the lanes when it expires.
    pub heartbeat_ttl: Duration,
    /// How often to request a lane that another member holds.
    pub lane_acquire_interval: Duration,
    /// A lane without messages for this long is released, so that the member to which the broker assigned it can
    /// acquire it.
    pub lane_idle_timeout: Duration,
    /// How often the retry table is polled.
    pub retry_poll_interval: Duration,
    /// Maximum number of retry queues processed at once, within the concurrency of [`order`](Self::order).
    pub retry_queues_max: usize,
    /// Maximum number of messages claimed from one retry queue at once.
    pub retry_batch_max: usize,
    /// How often expired rows are pruned.
    pub prune_interval: Duration,
    /// Maximum number of rows of each kind deleted by one prune.
    pub prune_batch_max: usize,
    /// How often the lag is read from the broker, for monitoring; `None` disables it.
    pub lag_interval: Option<Duration>,
    /// How long a message waits if another worker has claimed or locked it.
    pub busy_delay: Duration,
    /// Time that a claim lasts beyond the handler timeout, for slow responses.
    pub claim_margin: Duration,
    /// Timeout of a call to the database.
    pub store_timeout: Duration,
    /// Timeout of a call to the broker, except for the one that waits for messages.
    pub broker_timeout: Duration,
    /// First pause while the database or the broker is unreachable; it doubles up to `outage_backoff_max`.
    pub outage_backoff_min: Duration,
    /// Longest pause while the database or the broker is unreachable.
    pub outage_backoff_max: Duration,
    /// Grace period: how long a stopping consumer waits for running handlers.
    pub shutdown_grace: Duration,
    /// How to read foreign messages. Without it they are undecodable.
    pub foreign_messages: Option<ForeignMessages>,
    /// Validates payloads before their handler runs.
    pub validator: Option<Arc<dyn Validator>>,
    /// Where copies of dead letters are published.
    pub dead_letter_copy: Option<DeadLetterCopy>,
    /// The wall clock.
    pub clock: Clock,
    /// Receives the trace spans of handled messages.
    pub tracer: Tracer,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            member_name: format!("process-{}", std::process::id()),
            order: MessageOrder::ByKey { concurrency: 16 },
            retry_storage: RetryStorage::default(),
            retry: HandlerRetryPolicy::default(),
            handler_timeout: Duration::from_secs(30),
            after_dead: AfterDead::default(),
            starts_max: 5,
            batch_max: 1,
            receive_batch_max: 500,
            in_memory_messages_max: 10_000,
            ack_batch_max: 1000,
            sequence_keys_max: 10_000,
            breaker: RetryPolicy {
                base: Duration::from_secs(1),
                backoff: Backoff::Exponential { factor: 2 },
                max: Duration::from_mins(1),
                jitter_percent: 20,
                attempts_max: u32::MAX,
            },
            heartbeat_interval: Duration::from_secs(2),
            heartbeat_ttl: Duration::from_secs(10),
            lane_acquire_interval: Duration::from_millis(250),
            lane_idle_timeout: Duration::from_secs(2),
            retry_poll_interval: Duration::from_millis(200),
            retry_queues_max: 8,
            retry_batch_max: 50,
            prune_interval: Duration::from_mins(1),
            prune_batch_max: 1000,
            lag_interval: Some(Duration::from_secs(5)),
            busy_delay: Duration::from_millis(100),
            claim_margin: Duration::from_secs(5),
            store_timeout: Duration::from_secs(10),
            broker_timeout: Duration::from_secs(10),
            outage_backoff_min: Duration::from_millis(100),
            outage_backoff_max: Duration::from_secs(5),
            shutdown_grace: Duration::from_secs(10),
            foreign_messages: None,
            validator: None,
            dead_letter_copy: None,
            clock: Clock::default(),
            tracer: Tracer::off(),
        }
    }
}

impl Config {
    /// Pauses while the database or the broker is unreachable.
    pub(crate) fn outage_backoff(&self) -> ExponentialBackoff {
        ExponentialBackoff::new(self.outage_backoff_min, self.outage_backoff_max)
    }

    /// Describes the first contradiction in the configuration.
    pub(crate) fn validate(&self) -> Result<(), String> {
        let at_least_one = [
            ("order.concurrency", self.order.concurrency()),
            ("batch_max", self.batch_max),
            ("receive_batch_max", self.receive_batch_max),
            ("in_memory_messages_max", self.in_memory_messages_max),
            ("ack_batch_max", self.ack_batch_max),
            ("retry_queues_max", self.retry_queues_max),
            ("retry_batch_max", self.retry_batch_max),
            ("prune_batch_max", self.prune_batch_max),
        ];
        if let Some((name, _)) = at_least_one.iter().find(|(_, value)| *value == 0) {
            return Err(format!("`{name}` is 0"));
        }
        if self.heartbeat_interval * 2 > self.heartbeat_ttl {
            return Err(
                "`heartbeat_interval` is more than half of `heartbeat_ttl`; one late heartbeat would lose the lanes"
                    .to_owned(),
            );
        }
        match self.retry_storage {
            RetryStorage::Broker if self.order.is_by_key() => {
                Err("`retry_storage` is `Broker`, which does not keep order by key; use `Inbox`, or `order: None`"
                    .to_owned())
            }
            RetryStorage::Broker | RetryStorage::Inbox => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_configuration_is_valid() {
        assert_eq!(Config::default().validate(), Ok(()));
    }

    #[test]
    fn a_contradictory_configuration_is_rejected() {
        let unordered = MessageOrder::None { concurrency: 4 };
        let by_broker = Config { retry_storage: RetryStorage::Broker, ..Config::default() };
        assert!(by_broker.validate().unwrap_err().contains("order"));
        let by_broker = Config { order: unordered, ..by_broker };
        assert_eq!(by_broker.validate(), Ok(()));
        assert_eq!(Config { batch_max: 0, ..Config::default() }.validate(), Err("`batch_max` is 0".to_owned()));
        let late = Config { heartbeat_interval: Duration::from_secs(6), ..Config::default() };
        assert!(late.validate().unwrap_err().contains("heartbeat_interval"));
    }
}
