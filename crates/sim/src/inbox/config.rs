//! The configuration of consumers. All times are shorter than in production, so that many events happen in a minute.

use std::time::Duration;

use relevo_core::inbox::retry_policy::HandlerRetryPolicy;
use relevo_core::retry::Backoff;
use relevo_core::{AfterDead, RetryPolicy};
use relevo_inbox::{Config, MessageOrder, RetryStorage};

use relevo_core::random::SplitMix64;

/// The configuration of one consumer's members. `prefetch` is the maximum number of unacknowledged messages per lane.
pub(crate) fn random(random: &mut SplitMix64, ordered: bool, prefetch: usize) -> Config {
    let concurrency = random.count(1, 6);
    let (order, durable) = if ordered {
        (MessageOrder::ByKey { concurrency }, RetryStorage::Inbox)
    } else {
        (MessageOrder::None { concurrency }, *random.pick(&[RetryStorage::Inbox, RetryStorage::Broker]))
    };
    let heartbeat_interval = random.millis(300, 1000);
    Config {
        order,
        retry_storage: durable,
        retry: retries(random),
        handler_timeout: random.millis(1000, 3000),
        after_dead: *random.pick(&[AfterDead::Hold, AfterDead::Hold, AfterDead::Continue]),
        starts_max: u32::try_from(random.between(2, 5)).unwrap_or(2),
        batch_max: if random.permille(500) { random.count(2, 8) } else { 1 },
        receive_batch_max: random.count(1, 30),
        in_memory_messages_max: prefetch + random.count(1, 20),
        ack_batch_max: random.count(1, 20),
        breaker: RetryPolicy {
            base: random.millis(300, 1500),
            backoff: Backoff::Exponential { factor: 2 },
            max: Duration::from_secs(4),
            jitter_percent: 20,
            attempts_max: u32::MAX,
        },
        heartbeat_interval,
        heartbeat_ttl: random.time(heartbeat_interval * 2, heartbeat_interval * 6),
        lane_acquire_interval: random.millis(100, 400),
        lane_idle_timeout: random.millis(300, 2000),
        retry_poll_interval: random.millis(100, 500),
        retry_queues_max: random.count(1, 5),
        retry_batch_max: random.count(1, 6),
        prune_interval: Duration::from_secs(5),
        busy_delay: random.millis(50, 200),
        claim_margin: random.millis(500, 2000),
        store_timeout: random.millis(1000, 4000),
        broker_timeout: random.millis(1000, 4000),
        outage_backoff_min: random.millis(50, 200),
        outage_backoff_max: random.millis(1000, 3000),
        shutdown_grace: random.millis(500, 4000),
        ..Config::default()
    }
}

fn retries(random: &mut SplitMix64) -> HandlerRetryPolicy {
    let count = random.between(0, 3);
    HandlerRetryPolicy {
        in_memory: (0..count).map(|_| random.millis(100, 1000)).collect(),
        durable: RetryPolicy {
            base: random.millis(300, 2000),
            backoff: if random.permille(800) { Backoff::Exponential { factor: 2 } } else { Backoff::Linear },
            max: Duration::from_secs(5),
            jitter_percent: 20,
            attempts_max: u32::try_from(random.between(2, 6)).unwrap_or(2),
        },
    }
}
