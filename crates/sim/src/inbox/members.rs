//! Hosts that kill, pause, stop and restart members.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use relevo_inbox::{Clock, Config, Order, Runtime, RuntimeError};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::inbox::broker::Group;
use crate::inbox::connection::Connection;
use crate::inbox::event::{Event, History};
use crate::inbox::gate::Gate;
use crate::inbox::handlers::{Handler, Trials};
use crate::inbox::mutants::{Mutant, Port};
use crate::inbox::scenario::{ConsumerPlan, Scenario};
use crate::inbox::server::Server;
use crate::inbox::store::FaultyInbox;
use crate::line::Line;
use crate::wire::Wire;
use relevo_core::random::SplitMix64;

/// Longer than any run.
const FOREVER: Duration = Duration::from_hours(24);

/// A host that runs one member at a time and restarts it.
pub struct Host {
    /// Its consumer.
    pub consumer: usize,
    /// Its number.
    pub number: usize,
    /// The scenario.
    pub scenario: Arc<Scenario>,
    /// The history.
    pub history: Arc<History>,
    /// The inbox's server.
    pub server: Arc<Server>,
    /// The consumer's group at the broker.
    pub group: Arc<Group>,
    /// The shared state of the handlers.
    pub trials: Arc<Trials>,
    /// The network.
    pub wire: Wire,
    /// The wall clock time at the start.
    pub began_at: Timestamp,
    /// The fault of the member, if any.
    pub mutant: Option<Mutant>,
    /// Cancelled when the run ends.
    pub ending: CancellationToken,
}

/// A running member.
struct Life {
    connection: u64,
    running: JoinSet<Result<(), RuntimeError>>,
    stop: CancellationToken,
    gate: Gate,
    doom: Arc<Notify>,
}

/// How a member ended.
#[derive(PartialEq, Eq)]
enum End {
    ByItself,
    Killed,
    Stopped,
    Over,
}

impl Host {
    /// Runs members one after the other, until the run ends.
    pub async fn work(self) {
        let mut random = SplitMix64::for_part(self.scenario.seed, "member", (self.consumer * 100 + self.number) as u64);
        sleep(random.millis(0, 3000)).await;
        loop {
            self.tell("starts");
            let mut life = self.start(&mut random);
            let end = self.live(&mut life, &mut random).await;
            let Life { connection, mut running, .. } = life;
            // A killed process ends at once, without a message to any server.
            running.abort_all();
            let notice = if end == End::Killed { random.millis(0, 4000) } else { Duration::ZERO };
            let group = Arc::clone(&self.group);
            self.wire.carry(async move {
                sleep(notice).await;
                group.close(connection);
            });
            match end {
                End::ByItself => return self.tell("stopped by itself"),
                End::Over => return,
                End::Killed | End::Stopped => {}
            }
            tokio::select! {
                biased;
                () = self.ending.cancelled() => return,
                () = sleep(random.time(Duration::ZERO, self.plan().config.beat_lasts * 2)) => {}
            }
        }
    }

    fn start(&self, random: &mut SplitMix64) -> Life {
        let (gate, doom) = (Gate::default(), Arc::<Notify>::default());
        let mut line = |weather| {
            Line::new(Arc::clone(&self.history), self.wire.clone(), weather, SplitMix64::new(random.next_u64()))
        };
        let (store, broker) =
            (line(self.scenario.store_weather(self.plan())), line(self.scenario.broker_weather(self.plan())));
        let inbox = FaultyInbox::new(Arc::clone(&self.server), store, gate.clone(), self.wire.clone());
        let connection = self.group.connect();
        let port = Connection::new(Arc::clone(&self.group), connection, broker, gate.clone());
        let port = Port::new(port, self.mutant);
        let chances = SplitMix64::new(random.next_u64());
        let trials = Arc::clone(&self.trials);
        let handler = Handler::new(self.consumer, trials, gate.clone(), Arc::clone(&doom), chances, self.mutant);
        let runtime =
            Runtime::with_seed(Arc::new(inbox), Arc::new(port), handler.registered(), self.config(), random.next_u64());
        let stop = CancellationToken::new();
        let mut running = JoinSet::new();
        running.spawn(runtime.run(stop.clone()));
        Life { connection, running, stop, gate, doom }
    }

    fn config(&self) -> Config {
        let (history, began_at) = (Arc::clone(&self.history), self.began_at);
        let config = self.plan().config.clone();
        let order = match (self.mutant, config.order) {
            (Some(Mutant::KeysAtOnce), Order::ByKey { concurrency }) => Order::None { concurrency },
            (_, order) => order,
        };
        let name = format!("member-{}", self.number);
        Config { name, order, clock: Clock::new(move || began_at + history.now()), ..config }
    }

    /// Runs a member until something ends it.
    async fn live(&self, life: &mut Life, random: &mut SplitMix64) -> End {
        let faults = &self.scenario.member;
        loop {
            let time = match faults.life {
                Some(longest) if !self.is_quiet() => random.time(Duration::from_millis(100), longest),
                _ => FOREVER,
            };
            tokio::select! {
                biased;
                () = self.ending.cancelled() => {
                    life.stop.cancel();
                    self.tell(if self.ended(life, FOREVER).await { "stopped in the end" } else { "stopped by itself" });
                    return End::Over;
                }
                () = life.doom.notified() => {
                    self.tell("is taken down by a message");
                    return End::Killed;
                }
                ended = timeout(time, life.running.join_next()) => if ended.is_ok() {
                    return End::ByItself;
                },
            }
            if self.is_quiet() {
                continue;
            }
            if random.permille(faults.killed) {
                self.tell("is killed");
                return End::Killed;
            }
            if random.permille(faults.paused) {
                self.pause(life, random).await;
                continue;
            }
            self.tell("is told to stop");
            life.stop.cancel();
            let patience = if random.permille(200) { random.millis(0, 1000) } else { FOREVER };
            let ended = self.ended(life, patience).await;
            self.tell(if ended { "stopped" } else { "is killed while it stops" });
            return if ended { End::Stopped } else { End::Killed };
        }
    }

    async fn pause(&self, life: &Life, random: &mut SplitMix64) {
        self.tell("is paused");
        life.gate.shut(true);
        if random.permille(500) {
            // The broker detects that the member does not respond, and assigns its lanes to others.
            self.group.miss(life.connection);
        }
        let lasts = self.plan().config.beat_lasts;
        sleep(random.time(lasts / 4, lasts * 3)).await;
        self.tell("goes on");
        life.gate.shut(false);
    }

    /// Whether it ends successfully in time.
    async fn ended(&self, life: &mut Life, patience: Duration) -> bool {
        matches!(timeout(patience, life.running.join_next()).await, Ok(Some(Ok(Ok(())))))
    }

    fn plan(&self) -> &ConsumerPlan {
        &self.scenario.consumers[self.consumer]
    }

    fn is_quiet(&self) -> bool {
        self.history.now() >= self.scenario.faults_for
    }

    fn tell(&self, what: &'static str) {
        self.history.record(Event::Member { consumer: self.consumer, member: self.number, what });
    }
}
