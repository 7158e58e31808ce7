//! What a seed means: who publishes, who consumes, what goes wrong and when.

use std::time::Duration;

use relevo_inbox::{Config, Durable, Order};

use crate::inbox::config;
use crate::line::{CallFaults, Weather};
use crate::span::Span;
use relevo_core::random::SplitMix64;

/// A key and how its messages fare.
#[derive(Clone, Debug)]
pub struct KeyPlan {
    /// Its name.
    pub name: String,
    /// How many of a thousand messages are trouble.
    pub trouble: u64,
    /// How many of a thousand are handled by a call to a far side.
    pub calls: u64,
}

/// A consumer and its group at the broker.
#[derive(Clone, Debug)]
pub struct ConsumerPlan {
    /// Its name.
    pub name: String,
    /// It keeps order.
    pub ordered: bool,
    /// How many processes it has.
    pub members: usize,
    /// Lanes of its group.
    pub lanes: usize,
    /// One lane is several members' at once.
    pub shared: bool,
    /// What is out of each lane at most.
    pub prefetch: usize,
    /// The broker forgets acknowledgements when it crashes.
    pub forgets: bool,
    /// How its members are configured.
    pub config: Config,
    /// After so long without a call the server ends a transaction.
    pub stall: Duration,
    /// When what the handlers need is away, for the messages of one lane.
    pub away: Vec<(usize, Span)>,
}

/// What happens to members.
#[derive(Clone, Debug, Default)]
pub struct MemberFaults {
    /// How long one lives at most before something happens to it; `None` for ever.
    pub life: Option<Duration>,
    /// How many of a thousand happenings are deaths.
    pub killed: u64,
    /// How many are pauses; the rest are polite stops.
    pub paused: u64,
}

/// What becomes of dead letters in the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Handlers are mended and they are redriven.
    Redrive,
    /// They are put aside.
    Archive,
    /// They stay, and what waits behind them.
    Leave,
}

/// A whole run.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Where it came from.
    pub seed: u64,
    /// Nothing goes wrong but messages and what handlers need, so that whatever else is late is late because of them.
    pub calm: bool,
    /// The keys.
    pub keys: Vec<KeyPlan>,
    /// The consumers.
    pub consumers: Vec<ConsumerPlan>,
    /// How many publishers.
    pub publishers: u64,
    /// The mean pause of a publisher.
    pub pause: Duration,
    /// How many of a thousand messages are published twice.
    pub repeated: u64,
    /// How long things go wrong.
    pub faults_for: Duration,
    /// What happens to calls of the store.
    pub store: CallFaults,
    /// What happens to calls of the broker.
    pub broker: CallFaults,
    /// The mean pause between two moves of lanes, redeliveries and cuts of the broker's own making; `None` for none.
    pub restless: Option<Duration>,
    /// What happens to members.
    pub member: MemberFaults,
    /// When the database is away; it restarts, and open transactions are lost, where this says so.
    pub database_away: Vec<(Span, bool)>,
    /// When the broker is away.
    pub broker_away: Vec<Span>,
    /// How often operators look at dead letters.
    pub operator_every: Duration,
    /// The mean pause between two orders of a person; `None` for none.
    pub orders_every: Option<Duration>,
    /// When messages are replayed on purpose.
    pub replays: Vec<Duration>,
    /// What becomes of dead letters in the end.
    pub ending: Ending,
}

impl Scenario {
    /// The scenario of a seed.
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
            repeated: if random.permille(600) { random.between(1, 100) } else { 0 },
            faults_for,
            store: CallFaults::default(),
            broker: CallFaults { slow: 50, ..CallFaults::default() },
            restless: None,
            member: MemberFaults::default(),
            database_away: Vec::new(),
            broker_away: Vec::new(),
            operator_every: random.millis(2000, 10_000),
            orders_every: None,
            replays: Vec::new(),
            ending: *random.pick(&[Ending::Redrive, Ending::Redrive, Ending::Archive, Ending::Leave]),
        };
        if !calm {
            scenario.go_wrong(random);
        }
        scenario
    }

    fn go_wrong(&mut self, random: &mut SplitMix64) {
        // Each kind of fault is often absent, so that the others are seen alone; in some runs the rest is frequent.
        let times = if self.seed % 5 == 4 { 5 } else { 1 };
        let mut share = |max: u64| if random.permille(400) { 0 } else { (random.between(1, max) * times).min(1000) };
        self.store =
            CallFaults { slow: share(60), stalled: share(4), refused: share(15), lost: share(15), late: share(8) };
        self.broker =
            CallFaults { slow: share(100), stalled: share(4), refused: share(20), lost: share(40), late: share(20) };
        let deaths = (share(1000), share(1000));
        self.member.killed = deaths.0;
        self.member.paused = (1000 - deaths.0) * deaths.1 / 1000;
        let lives = random.millis(2000, 30_000);
        self.member.life = random.permille(800).then_some(lives);
        let restless = random.millis(500, 10_000);
        self.restless = random.permille(700).then_some(restless);
        let orders = random.millis(2000, 15_000);
        self.orders_every = random.permille(400).then_some(orders);
        for _ in 0..random.between(0, 2) {
            let span = Span::random(random, self.faults_for, Duration::from_secs(10));
            self.database_away.push((span, random.permille(500)));
        }
        for _ in 0..random.between(0, 2) {
            self.broker_away.push(Span::random(random, self.faults_for, Duration::from_secs(10)));
        }
        for _ in 0..random.between(0, 2) {
            self.replays.push(random.time(self.faults_for / 4, self.faults_for));
        }
        self.replays.sort();
    }

    /// What a member's line to the store has to bear.
    pub fn store_weather(&self, plan: &ConsumerPlan) -> Weather {
        let away = self.database_away.iter().map(|(span, _)| *span).collect();
        Weather { faults: self.store.clone(), until: self.faults_for, lease: plan.config.beat_lasts, away }
    }

    /// What an operator's line to the store has to bear.
    pub fn office_weather(&self) -> Weather {
        let away = self.database_away.iter().map(|(span, _)| *span).collect();
        Weather { faults: self.store.clone(), until: self.faults_for, lease: Duration::from_secs(5), away }
    }

    /// What a member's line to the broker has to bear.
    pub fn broker_weather(&self, plan: &ConsumerPlan) -> Weather {
        let away = self.broker_away.clone();
        Weather { faults: self.broker.clone(), until: self.faults_for, lease: plan.config.beat_lasts, away }
    }
}

impl ConsumerPlan {
    /// Whether attempts are counted by the broker.
    pub fn counts_at_broker(&self) -> bool {
        self.config.durable == Durable::Broker
    }

    /// Handlers that run at once in each member.
    pub const fn concurrency(&self) -> usize {
        match self.config.order {
            Order::None { concurrency } | Order::ByKey { concurrency } => concurrency,
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
            trouble: if random.permille(500) { random.between(20, 400) } else { 0 },
            calls: *random.pick(&[0, 0, 300, 1000]),
        })
        .collect()
}

fn consumer(random: &mut SplitMix64, number: u64, within: Duration) -> ConsumerPlan {
    let ordered = random.permille(600);
    let lanes = random.count(1, 4);
    let prefetch = random.count(1, 12);
    let config = config::random(random, number, ordered, lanes * prefetch);
    let away = if random.permille(300) { random.between(1, 3) } else { 0 };
    ConsumerPlan {
        name: format!("c{number}"),
        ordered,
        members: random.count(1, 3),
        lanes,
        shared: !ordered && random.permille(600),
        prefetch,
        forgets: random.permille(300),
        stall: config.deadline * 2 + random.millis(1000, 5000),
        away: (0..away)
            .map(|_| (random.count(0, lanes - 1), Span::random(random, within, Duration::from_secs(12))))
            .collect(),
        config,
    }
}
