//! Scenarios: which writers and relays a seed creates, and which faults happen when.

use std::time::Duration;

use relevo_core::retry::Backoff;
use relevo_core::{AfterDead, Policy, Route, Routes};
use relevo_relay::Config;

use crate::line::{CallFaults, Weather};
use crate::span::Span;
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
    pub trouble: u64,
}

/// An address and when it rejects messages.
#[derive(Clone, Debug)]
pub struct AddressPlan {
    /// The topic, which is also the address.
    pub topic: String,
    /// When it rejects every message.
    pub blocked: Vec<Span>,
    /// When it requests a pause.
    pub throttled: Vec<Span>,
}

/// Faults per thousand messages to the broker.
#[derive(Clone, Debug, Default)]
pub struct BrokerFaults {
    /// The message takes up to a second.
    pub slow: u64,
    /// The message arrives after its sender's deadline.
    pub late: u64,
    /// The message never arrives.
    pub vanished: u64,
    /// The message arrives, and the confirmation is lost.
    pub unanswered: u64,
    /// The connection breaks, with everything on it.
    pub cut: u64,
}

/// Faults of relays.
#[derive(Clone, Debug, Default)]
pub struct RelayFaults {
    /// The maximum time before a fault. `None` means no faults.
    pub life: Option<Duration>,
    /// How many of a thousand faults are kills.
    pub killed: u64,
    /// How many of a thousand faults are pauses. The rest are orderly stops.
    pub paused: u64,
}

/// What happens to dead letters at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The broker is fixed, and they are redriven.
    Redrive,
    /// They are discarded.
    Discard,
    /// They stay, with the messages that wait behind them.
    Leave,
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
    pub fenced: bool,
    /// How long settled messages are retained.
    pub retention: Duration,
    /// The fault rates of the store.
    pub store: CallFaults,
    /// The fault rates of the broker.
    pub broker: BrokerFaults,
    /// The faults of relays.
    pub relay: RelayFaults,
    /// When the database is down. The flag is whether it restarts, which loses open transactions.
    pub database_away: Vec<(Span, bool)>,
    /// When the broker is down.
    pub broker_away: Vec<Span>,
    /// When an operator requests resharding, and the number of shards.
    pub regroups: Vec<(Duration, u16)>,
    /// How often an operator checks the dead letters.
    pub operator_every: Duration,
    /// What happens to dead letters at the end.
    pub ending: Ending,
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
            fenced: random.permille(300),
            retention: if random.permille(300) { random.millis(1000, 30_000) } else { Duration::from_hours(24) },
            store: CallFaults::default(),
            broker: BrokerFaults { slow: 50, ..BrokerFaults::default() },
            relay: RelayFaults::default(),
            database_away: Vec::new(),
            broker_away: Vec::new(),
            regroups: Vec::new(),
            operator_every: random.millis(2000, 15_000),
            ending: *random.pick(&[Ending::Redrive, Ending::Redrive, Ending::Discard, Ending::Leave]),
        };
        if !calm {
            scenario.go_wrong(random);
        }
        scenario
    }

    /// The faults of a link to the store.
    pub fn weather(&self) -> Weather {
        Weather {
            faults: self.store.clone(),
            until: self.faults_for,
            lease: self.config.lease,
            away: self.database_away.iter().map(|(span, _)| *span).collect(),
        }
    }

    fn go_wrong(&mut self, random: &mut SplitMix64) {
        // Each kind of fault is often absent, so that others occur alone. In some runs the remaining faults are
        // frequent.
        let times = if self.seed % 5 == 4 { 6 } else { 1 };
        let mut share = |max: u64| if random.permille(400) { 0 } else { (random.between(1, max) * times).min(1000) };
        self.store =
            CallFaults { slow: share(100), stalled: share(4), refused: share(20), lost: share(20), late: share(10) };
        self.broker = BrokerFaults {
            slow: share(200),
            late: share(30),
            vanished: share(30),
            unanswered: share(60),
            cut: share(10),
        };
        let deaths = (share(1000), share(1000));
        self.relay.killed = deaths.0;
        self.relay.paused = (1000 - deaths.0) * deaths.1 / 1000;
        let lives = random.millis(2000, 30_000);
        self.relay.life = random.permille(800).then_some(lives);
        let longest = self.config.lease * 3;
        for _ in 0..random.between(0, 2) {
            self.database_away.push((Span::random(random, self.faults_for, longest), random.permille(500)));
        }
        for _ in 0..random.between(0, 3) {
            self.broker_away.push(Span::random(random, self.faults_for, longest));
        }
        for _ in 0..random.between(0, 3) {
            self.regroups.push((random.time(Duration::ZERO, self.faults_for), shards(random)));
        }
        self.regroups.sort();
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
                (0..count).map(|_| Span::random(random, within, Duration::from_secs(20))).collect()
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
                trouble: if random.permille(350) { random.between(20, 300) } else { 0 },
            }
        })
        .collect()
}

fn config(random: &mut SplitMix64, attempts_max: u32) -> Config {
    let lease = random.millis(3000, 10_000);
    let policy = Policy {
        base: random.millis(100, 1000),
        backoff: if random.permille(800) { Backoff::Exponential { factor: 2 } } else { Backoff::Linear },
        ceiling: Duration::from_secs(8),
        jitter_percent: 20,
        attempts_max,
    };
    let hold = Route { policy, ..Route::everything() };
    let after =
        Route { name: "going on".to_owned(), topic: "c.*".to_owned(), after_dead: AfterDead::Continue, ..hold.clone() };
    Config {
        name: "sim".to_owned(),
        routes: Routes::new(vec![after, hold]),
        lease,
        lease_margin: lease / 5,
        page_messages: random.count(1, 20),
        pages_max: random.count(1, 4),
        batch_max: random.count(1, 20),
        in_flight_max: random.count(1, 30),
        publish_deadline: random.time(Duration::from_millis(500), lease / 2),
        idle_min: Duration::from_millis(5),
        idle_max: random.millis(50, 1000),
        due_every: random.millis(100, 1000),
        runs_max: random.count(1, 6),
        run_messages: random.count(1, 6),
        maintain_every: Duration::from_secs(5),
        settle_every: random.millis(100, 2000),
        outage_max: random.millis(500, 3000),
        hold_probe: random.millis(1000, 5000),
        quarantine_probe: random.millis(5000, 20_000),
        grace: random.millis(500, 5000),
        ..Config::default()
    }
}
