//! Scenarios: the publishers, the consumers and the faults of a seed.

use std::time::Duration;

use relevo_inbox::{Config, MessageOrder, RetryStorage};

use crate::inbox::config;
use crate::link::{FaultRates, LinkFaults};
use crate::process_faults::{DeadLetterEnding, ProcessFaults};
use crate::time_range::TimeRange;
use relevo_core::random::SplitMix64;

/// A key and how its messages behave.
#[derive(Clone, Debug)]
pub struct KeyPlan {
    /// Its name.
    pub name: String,
    /// The number of failing messages per thousand.
    pub failing_permille: u64,
    /// The number of messages per thousand whose handler calls an external service.
    pub call_permille: u64,
}

/// A consumer and its group at the broker.
#[derive(Clone, Debug)]
pub struct ConsumerPlan {
    /// Its name.
    pub name: String,
    /// Whether it keeps order.
    pub ordered: bool,
    /// The number of its processes.
    pub members: usize,
    /// The number of lanes of its group.
    pub lanes: usize,
    /// Whether several members receive the same lane at once.
    pub shared: bool,
    /// The maximum number of unacknowledged messages per lane.
    pub prefetch: usize,
    /// Whether the broker loses acknowledgements when it crashes.
    pub forgets_acks: bool,
    /// The configuration of its members.
    pub config: Config,
    /// The server ends a transaction after this time without a call.
    pub idle_timeout: Duration,
    /// When the external service is down, for the messages of one lane.
    pub outages: Vec<(usize, TimeRange)>,
}

/// A complete run.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The seed of the scenario.
    pub seed: u64,
    /// Only messages and the external service fail, so any other delay is caused by them.
    pub calm: bool,
    /// The keys.
    pub keys: Vec<KeyPlan>,
    /// The consumers.
    pub consumers: Vec<ConsumerPlan>,
    /// The number of publishers.
    pub publishers: u64,
    /// The mean delay between two messages of a publisher.
    pub pause: Duration,
    /// The number of messages per thousand that are published twice.
    pub duplicate_permille: u64,
    /// How long faults happen.
    pub faults_for: Duration,
    /// The fault rates of calls to the store.
    pub store: FaultRates,
    /// The fault rates of calls to the broker.
    pub broker: FaultRates,
    /// The mean time between spontaneous lane moves, redeliveries and connection losses at the broker. `None` disables
    /// them.
    pub broker_fault_interval: Option<Duration>,
    /// The faults of members.
    pub member: ProcessFaults,
    /// When the database is down. The flag is whether it restarts, which loses open transactions.
    pub database_outages: Vec<(TimeRange, bool)>,
    /// When the broker is down.
    pub broker_outages: Vec<TimeRange>,
    /// How often operators check the dead letters.
    pub operator_interval: Duration,
    /// The mean time between two operator commands. `None` disables them.
    pub control_interval: Option<Duration>,
    /// When replays start.
    pub replays: Vec<Duration>,
    /// The treatment of dead letters at the end.
    pub ending: DeadLetterEnding,
}

impl Scenario {
    /// Creates the scenario of a seed.
    pub fn of(seed: u64) -> Self {
        let mut random = SplitMix64::for_part(seed, "inbox scenario", 0);
        let random = &mut random;
        let calm = random.permille(200);
        let faults_for = Duration::from_secs(random.between(20, 60));
        let consumers = random.between(1, 2);
        let mut scenario = Self {
            seed,
            calm,
            keys: keys(random),
            consumers: (0..consumers).map(|number| consumer(random, number, faults_for)).collect(),
            publishers: random.between(1, 3),
            pause: random.millis(300, 2000),
            duplicate_permille: if random.permille(600) { random.between(1, 100) } else { 0 },
            faults_for,
            store: FaultRates::default(),
            broker: FaultRates { slow: 50, ..FaultRates::default() },
            broker_fault_interval: None,
            member: ProcessFaults::default(),
            database_outages: Vec::new(),
            broker_outages: Vec::new(),
            operator_interval: random.millis(2000, 10_000),
            control_interval: None,
            replays: Vec::new(),
            ending: *random.pick(&[
                DeadLetterEnding::Redrive,
                DeadLetterEnding::Redrive,
                DeadLetterEnding::Discard,
                DeadLetterEnding::Leave,
            ]),
        };
        if !calm {
            scenario.add_faults(random);
        }
        scenario
    }

    fn add_faults(&mut self, random: &mut SplitMix64) {
        // Each kind of fault is often absent, so that others occur alone. In some runs the remaining faults are
        // frequent.
        let times = if self.seed % 5 == 4 { 5 } else { 1 };
        let mut share = |max: u64| if random.permille(400) { 0 } else { (random.between(1, max) * times).min(1000) };
        self.store = FaultRates {
            slow: share(60),
            stalled: share(4),
            refused: share(15),
            reply_lost: share(15),
            late: share(8),
            busy: 0,
        };
        self.broker = FaultRates {
            slow: share(100),
            stalled: share(4),
            refused: share(20),
            reply_lost: share(40),
            late: share(20),
            busy: 0,
        };
        let deaths = (share(1000), share(1000));
        self.member.killed_permille = deaths.0;
        self.member.paused_permille = (1000 - deaths.0) * deaths.1 / 1000;
        let lives = random.millis(2000, 30_000);
        self.member.lifetime_max = random.permille(800).then_some(lives);
        let restless = random.millis(500, 10_000);
        self.broker_fault_interval = random.permille(700).then_some(restless);
        let orders = random.millis(2000, 15_000);
        self.control_interval = random.permille(400).then_some(orders);
        for _ in 0..random.between(0, 2) {
            let span = TimeRange::random(random, self.faults_for, Duration::from_secs(10));
            self.database_outages.push((span, random.permille(500)));
        }
        for _ in 0..random.between(0, 2) {
            self.broker_outages.push(TimeRange::random(random, self.faults_for, Duration::from_secs(10)));
        }
        for _ in 0..random.between(0, 2) {
            self.replays.push(random.time(self.faults_for / 4, self.faults_for));
        }
        self.replays.sort();
    }

    /// The faults of a member's link to the store.
    pub fn store_link_faults(&self, plan: &ConsumerPlan) -> LinkFaults {
        let outages = self.database_outages.iter().map(|(span, _)| *span).collect();
        LinkFaults { rates: self.store.clone(), until: self.faults_for, lease: plan.config.heartbeat_ttl, outages }
    }

    /// The faults of an operator's link to the store.
    pub fn operator_link_faults(&self) -> LinkFaults {
        let outages = self.database_outages.iter().map(|(span, _)| *span).collect();
        LinkFaults { rates: self.store.clone(), until: self.faults_for, lease: Duration::from_secs(5), outages }
    }

    /// The faults of a member's link to the broker.
    pub fn broker_link_faults(&self, plan: &ConsumerPlan) -> LinkFaults {
        let outages = self.broker_outages.clone();
        LinkFaults { rates: self.broker.clone(), until: self.faults_for, lease: plan.config.heartbeat_ttl, outages }
    }
}

impl ConsumerPlan {
    /// Whether the broker counts the attempts.
    pub fn retries_at_broker(&self) -> bool {
        self.config.retry_storage == RetryStorage::Broker
    }

    /// The number of handlers that run at once in each member.
    pub const fn concurrency(&self) -> usize {
        match self.config.order {
            MessageOrder::None { concurrency } | MessageOrder::ByKey { concurrency } => concurrency,
        }
    }

    /// The lane of a key.
    pub const fn lane_of(&self, key: usize) -> usize {
        key % self.lanes
    }
}

fn keys(random: &mut SplitMix64) -> Vec<KeyPlan> {
    let count = random.between(2, 8);
    (0..count)
        .map(|number| KeyPlan {
            name: format!("k{number}"),
            failing_permille: if random.permille(500) { random.between(20, 400) } else { 0 },
            call_permille: *random.pick(&[0, 0, 300, 1000]),
        })
        .collect()
}

fn consumer(random: &mut SplitMix64, number: u64, within: Duration) -> ConsumerPlan {
    let ordered = random.permille(600);
    let lanes = random.count(1, 4);
    let prefetch = random.count(1, 12);
    let config = config::random(random, ordered, lanes * prefetch);
    let outages = if random.permille(300) { random.between(1, 3) } else { 0 };
    ConsumerPlan {
        name: format!("c{number}"),
        ordered,
        members: random.count(1, 3),
        lanes,
        shared: !ordered && random.permille(600),
        prefetch,
        forgets_acks: random.permille(300),
        idle_timeout: config.handler_timeout * 2 + random.millis(1000, 5000),
        outages: (0..outages)
            .map(|_| (random.count(0, lanes - 1), TimeRange::random(random, within, Duration::from_secs(12))))
            .collect(),
        config,
    }
}
