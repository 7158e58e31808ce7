//! Scenarios: the writers, the relays and the faults of a seed.

use std::time::Duration;

use relevo_core::retry::Backoff;
use relevo_core::{AfterDead, RetryPolicy, Route, Routes};
use relevo_relay::{Advanced, Config};

use crate::link::{FaultRates, LinkFaults};
use crate::process_faults::{DeadLetterEnding, ProcessFaults};
use crate::time_range::TimeRange;
use relevo_core::random::SplitMix64;

/// A key and how its writers use it.
#[derive(Clone, Debug)]
pub struct KeyPlan {
    /// Its name.
    pub name: String,
    /// Whether writers lock it before they emit. Its order is then guaranteed.
    pub locked: bool,
    /// Its messages are scheduled.
    pub scheduled: bool,
    /// The addresses of its messages.
    pub addresses: Vec<usize>,
    /// The number of failing messages per thousand.
    pub failing_permille: u64,
}

/// An address and when it rejects messages.
#[derive(Clone, Debug)]
pub struct AddressPlan {
    /// The topic, which is also the address.
    pub topic: String,
    /// When it rejects every message.
    pub blocked: Vec<TimeRange>,
    /// When it requests a pause.
    pub throttled: Vec<TimeRange>,
}

/// Faults per thousand messages to the broker.
#[derive(Clone, Debug, Default)]
pub struct BrokerFaults {
    /// The message takes up to a second.
    pub slow: u64,
    /// The message arrives after its sender's timeout.
    pub late: u64,
    /// The message never arrives.
    pub lost: u64,
    /// The message arrives, and the confirmation is lost.
    pub reply_lost: u64,
    /// The connection breaks, with everything on it.
    pub disconnected: u64,
}

/// A complete run.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The seed of the scenario.
    pub seed: u64,
    /// Only messages and addresses fail, so any other delay is caused by them.
    pub calm: bool,
    /// The number of shards at the start.
    pub shards: u16,
    /// The number of relays.
    pub relays: usize,
    /// The number of writers.
    pub writers: u64,
    /// The mean delay of a writer between transactions.
    pub pause: Duration,
    /// The longest time that a transaction stays open.
    pub open_max: Duration,
    /// The keys.
    pub keys: Vec<KeyPlan>,
    /// The addresses.
    pub addresses: Vec<AddressPlan>,
    /// How long faults happen.
    pub faults_for: Duration,
    /// The configuration of the relays.
    pub config: Config,
    /// The maximum number of attempts per message.
    pub attempts_max: u32,
    /// Whether the broker keeps the order of a key's messages in flight.
    pub ordered_in_flight: bool,
    /// How long settled messages are retained.
    pub retention: Duration,
    /// The fault rates of the store.
    pub store: FaultRates,
    /// The fault rates of the broker.
    pub broker: BrokerFaults,
    /// The faults of relays.
    pub relay: ProcessFaults,
    /// When the database is down. The flag is whether it restarts, which loses open transactions.
    pub database_outages: Vec<(TimeRange, bool)>,
    /// When the broker is down.
    pub broker_outages: Vec<TimeRange>,
    /// When an operator requests resharding, and the number of shards.
    pub reshards: Vec<(Duration, u16)>,
    /// How often an operator checks the dead letters.
    pub operator_interval: Duration,
    /// The treatment of dead letters at the end.
    pub ending: DeadLetterEnding,
}

impl Scenario {
    /// Creates the scenario of a seed.
    pub fn of(seed: u64) -> Self {
        let mut random = SplitMix64::for_part(seed, "scenario", 0);
        let random = &mut random;
        let calm = random.permille(250);
        let faults_for = Duration::from_secs(random.between(30, 90));
        let attempts_max = u32::try_from(random.between(2, 5)).unwrap_or(2);
        let addresses = addresses(random, faults_for);
        let keys = keys(random, addresses.len());
        let mut scenario = Self {
            seed,
            calm,
            shards: shards(random),
            relays: random.count(1, 4),
            writers: random.between(1, 4),
            pause: random.millis(300, 3000),
            open_max: random.millis(100, 20_000),
            keys,
            addresses,
            faults_for,
            config: config(random, attempts_max),
            attempts_max,
            ordered_in_flight: random.permille(300),
            retention: if random.permille(300) { random.millis(1000, 30_000) } else { Duration::from_hours(24) },
            store: FaultRates::default(),
            broker: BrokerFaults { slow: 50, ..BrokerFaults::default() },
            relay: ProcessFaults::default(),
            database_outages: Vec::new(),
            broker_outages: Vec::new(),
            reshards: Vec::new(),
            operator_interval: random.millis(2000, 15_000),
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

    /// The faults of a link to the store.
    pub fn link_faults(&self) -> LinkFaults {
        LinkFaults {
            rates: self.store.clone(),
            until: self.faults_for,
            lease: self.config.lease_duration,
            outages: self.database_outages.iter().map(|(span, _)| *span).collect(),
        }
    }

    fn add_faults(&mut self, random: &mut SplitMix64) {
        // Each kind of fault is often absent, so that others occur alone. In some runs the remaining faults are
        // frequent.
        let times = if self.seed % 5 == 4 { 6 } else { 1 };
        let mut share = |max: u64| if random.permille(400) { 0 } else { (random.between(1, max) * times).min(1000) };
        self.store = FaultRates {
            slow: share(100),
            stalled: share(4),
            refused: share(20),
            reply_lost: share(20),
            late: share(10),
            busy: 0,
        };
        self.broker = BrokerFaults {
            slow: share(200),
            late: share(30),
            lost: share(30),
            reply_lost: share(60),
            disconnected: share(10),
        };
        let deaths = (share(1000), share(1000));
        self.relay.killed_permille = deaths.0;
        self.relay.paused_permille = (1000 - deaths.0) * deaths.1 / 1000;
        let lives = random.millis(2000, 30_000);
        self.relay.lifetime_max = random.permille(800).then_some(lives);
        let longest = self.config.lease_duration * 3;
        for _ in 0..random.between(0, 2) {
            self.database_outages.push((TimeRange::random(random, self.faults_for, longest), random.permille(500)));
        }
        for _ in 0..random.between(0, 3) {
            self.broker_outages.push(TimeRange::random(random, self.faults_for, longest));
        }
        for _ in 0..random.between(0, 3) {
            self.reshards.push((random.time(Duration::ZERO, self.faults_for), shards(random)));
        }
        self.reshards.sort();
        self.store.busy = if random.permille(400) { 0 } else { random.between(1, 30) * times };
    }
}

fn shards(random: &mut SplitMix64) -> u16 {
    *random.pick(&[1, 2, 3, 4, 8])
}

fn addresses(random: &mut SplitMix64, within: Duration) -> Vec<AddressPlan> {
    let topics = ["h.0", "h.1", "h.2", "c.0", "c.1"];
    topics
        .iter()
        .map(|topic| {
            let mut spans = |share: u64| {
                let count = if random.permille(share) { random.between(1, 2) } else { 0 };
                (0..count).map(|_| TimeRange::random(random, within, Duration::from_secs(20))).collect()
            };
            AddressPlan { topic: (*topic).to_owned(), blocked: spans(250), throttled: spans(200) }
        })
        .collect()
}

fn keys(random: &mut SplitMix64, addresses: usize) -> Vec<KeyPlan> {
    let count = random.between(2, 12);
    (0..count)
        .map(|number| {
            let scheduled = number > 1 && random.permille(120);
            let one = random.count(0, addresses - 1);
            let other = if random.permille(150) { random.count(0, addresses - 1) } else { one };
            KeyPlan {
                name: format!("k{number}"),
                locked: !scheduled && random.permille(900),
                scheduled,
                addresses: vec![one, other],
                failing_permille: if random.permille(350) { random.between(20, 300) } else { 0 },
            }
        })
        .collect()
}

fn config(random: &mut SplitMix64, attempts_max: u32) -> Config {
    let lease = random.millis(3000, 10_000);
    let policy = RetryPolicy {
        base: random.millis(100, 1000),
        backoff: if random.permille(800) { Backoff::Exponential { factor: 2 } } else { Backoff::Linear },
        max: Duration::from_secs(8),
        jitter_percent: 20,
        attempts_max,
    };
    let hold = Route { policy, ..Route::catch_all() };
    let after =
        Route { name: "going on".to_owned(), topic: "c.*".to_owned(), after_dead: AfterDead::Continue, ..hold.clone() };
    // The order of the draws decides every run of a seed.
    let advanced = Advanced {
        lease_margin: lease / 5,
        page_messages: random.count(1, 20),
        pages_max: random.count(1, 4),
        poll_interval_min: Duration::from_millis(5),
        ..Advanced::default()
    };
    let config = Config {
        name: "sim".to_owned(),
        routes: Routes::new(vec![after, hold]),
        lease_duration: lease,
        batch_messages_max: random.count(1, 20),
        in_flight_messages_max: random.count(1, 30),
        publish_timeout: random.time(Duration::from_millis(500), lease / 2),
        poll_interval_max: random.millis(50, 1000),
        ..Config::default()
    };
    let advanced = Advanced {
        parked_poll_interval: random.millis(100, 1000),
        parked_keys_per_poll: random.count(1, 6),
        parked_messages_per_key: random.count(1, 6),
        maintenance_interval: Duration::from_secs(5),
        settle_interval_max: random.millis(100, 2000),
        ..advanced
    };
    let outage_backoff_max = random.millis(500, 3000);
    let advanced = Advanced {
        blocked_probe_interval: random.millis(1000, 5000),
        quarantine_probe_interval: random.millis(5000, 20_000),
        ..advanced
    };
    Config { outage_backoff_max, advanced, shutdown_grace: random.millis(500, 5000), ..config }
}
