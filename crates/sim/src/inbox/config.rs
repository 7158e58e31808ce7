//! The configuration of consumers. All times are shorter than in production, so that much happens in a minute.

use std::time::Duration;

use relevo_core::inbox::Keeping;
use relevo_core::inbox::retries::Retries;
use relevo_core::retry::Backoff;
use relevo_core::{AfterDead, Policy};
use relevo_inbox::{Config, Durable, Order};

use relevo_core::random::SplitMix64;

/// The configuration of one consumer's members. `out_max` is the maximum of unacknowledged messages per lane.
pub(crate) fn random(random: &mut SplitMix64, number: u64, ordered: bool, out_max: usize) -> Config {
    let concurrency = random.count(1, 6);
    let (order, durable) = if ordered {
        (Order::ByKey { concurrency }, Durable::Table)
    } else {
        (Order::None { concurrency }, *random.pick(&[Durable::Table, Durable::Broker]))
    };
    let beat_every = random.millis(300, 1000);
    let traced = random.permille(300).then_some(Duration::from_hours(1));
    Config {
        order,
        durable,
        retries: retries(random),
        deadline: random.millis(1000, 3000),
        after_dead: *random.pick(&[AfterDead::Hold, AfterDead::Hold, AfterDead::Continue]),
        starts_max: u32::try_from(random.between(2, 5)).unwrap_or(2),
        keeping: Keeping { trace: traced, ..Keeping::default() },
        batch_max: if random.permille(500) { random.count(2, 8) } else { 1 },
        receive_max: random.count(1, 30),
        in_memory_max: out_max + random.count(1, 20),
        settle_max: random.count(1, 20),
        breaker: Policy {
            base: random.millis(300, 1500),
            backoff: Backoff::Exponential { factor: 2 },
            ceiling: Duration::from_secs(4),
            jitter_percent: 20,
            attempts_max: u32::MAX,
        },
        beat_every,
        beat_lasts: random.time(beat_every * 2, beat_every * 6),
        lane_every: random.millis(100, 400),
        lane_idle: random.millis(300, 2000),
        due_every: random.millis(100, 500),
        due_queues: random.count(1, 5),
        due_messages: random.count(1, 6),
        prune_every: Duration::from_secs(5),
        busy_pause: random.millis(50, 200),
        claim_margin: random.millis(500, 2000),
        store_deadline: random.millis(1000, 4000),
        broker_deadline: random.millis(1000, 4000),
        outage_min: random.millis(50, 200),
        outage_max: random.millis(1000, 3000),
        grace: random.millis(500, 4000),
        ..Config::new(format!("c{number}"))
    }
}

fn retries(random: &mut SplitMix64) -> Retries {
    let tries = random.between(0, 3);
    Retries {
        memory: (0..tries).map(|_| random.millis(100, 1000)).collect(),
        durable: Policy {
            base: random.millis(300, 2000),
            backoff: if random.permille(800) { Backoff::Exponential { factor: 2 } } else { Backoff::Linear },
            ceiling: Duration::from_secs(5),
            jitter_percent: 20,
            attempts_max: u32::try_from(random.between(2, 6)).unwrap_or(2),
        },
    }
}
