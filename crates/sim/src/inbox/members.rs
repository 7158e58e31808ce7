//! Hosts that kill, pause, stop and restart members.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use relevo_inbox::{Clock, Config, ConsumerError, ConsumerRuntime, MessageOrder};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::inbox::broker::Group;
use crate::inbox::connection::Connection;
use crate::inbox::event::{Event, History};
use crate::inbox::handlers::{SharedHandlerState, SimHandler};
use crate::inbox::mutants::{Mutant, MutantConsumer};
use crate::inbox::pause::PauseGate;
use crate::inbox::scenario::{ConsumerPlan, Scenario};
use crate::inbox::server::Server;
use crate::inbox::store::FaultyInbox;
use crate::link::FaultyLink;
use crate::network::Network;
use relevo_core::random::SplitMix64;

/// Longer than any run.
const FOREVER: Duration = Duration::from_hours(24);

/// A host that runs one member at a time and restarts it.
pub struct MemberHost {
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
    pub shared: Arc<SharedHandlerState>,
    /// The network.
    pub network: Network,
    /// The wall clock time at the start.
    pub started_at: Timestamp,
    /// The fault of the member, if any.
    pub mutant: Option<Mutant>,
    /// Cancelled when the run ends.
    pub run_ended: CancellationToken,
}

/// A running member.
struct RunningMember {
    connection: u64,
    running: JoinSet<Result<(), ConsumerError>>,
    stop: CancellationToken,
    pause_gate: PauseGate,
    kill_signal: Arc<Notify>,
}

/// How a member ended.
#[derive(PartialEq, Eq)]
enum MemberEnd {
    Exited,
    Killed,
    Stopped,
    RunEnded,
}

impl MemberHost {
    /// Runs members one after the other, until the run ends.
    pub async fn run(self) {
        let mut random = SplitMix64::for_part(self.scenario.seed, "member", (self.consumer * 100 + self.number) as u64);
        sleep(random.millis(0, 3000)).await;
        loop {
            self.record("starts");
            let mut member = self.start(&mut random);
            let end = self.run_until_fault(&mut member, &mut random).await;
            let RunningMember { connection, mut running, .. } = member;
            // A killed process ends at once, without a message to any server.
            running.abort_all();
            let detection_delay = if end == MemberEnd::Killed { random.millis(0, 4000) } else { Duration::ZERO };
            let group = Arc::clone(&self.group);
            self.network.spawn(async move {
                sleep(detection_delay).await;
                group.close(connection);
            });
            match end {
                MemberEnd::Exited => return self.record("stopped by itself"),
                MemberEnd::RunEnded => return,
                MemberEnd::Killed | MemberEnd::Stopped => {}
            }
            tokio::select! {
                biased;
                () = self.run_ended.cancelled() => return,
                () = sleep(random.time(Duration::ZERO, self.plan().config.heartbeat_ttl * 2)) => {}
            }
        }
    }

    fn start(&self, random: &mut SplitMix64) -> RunningMember {
        let (pause_gate, kill_signal) = (PauseGate::default(), Arc::<Notify>::default());
        let mut link = |faults| {
            FaultyLink::new(Arc::clone(&self.history), self.network.clone(), faults, SplitMix64::new(random.next_u64()))
        };
        let (store, broker) =
            (link(self.scenario.store_link_faults(self.plan())), link(self.scenario.broker_link_faults(self.plan())));
        let inbox = FaultyInbox::new(Arc::clone(&self.server), store, pause_gate.clone(), self.network.clone());
        let connection = self.group.connect();
        let port = Connection::new(Arc::clone(&self.group), connection, broker, pause_gate.clone());
        let port = MutantConsumer::new(port, self.mutant);
        let handler_random = SplitMix64::new(random.next_u64());
        let shared = Arc::clone(&self.shared);
        let handler = SimHandler::new(
            self.consumer,
            shared,
            pause_gate.clone(),
            Arc::clone(&kill_signal),
            handler_random,
            self.mutant,
        );
        let runtime = ConsumerRuntime::with_seed(
            Arc::new(inbox),
            Arc::new(port),
            handler.handlers(),
            self.config(),
            random.next_u64(),
        );
        let stop = CancellationToken::new();
        let mut running = JoinSet::new();
        running.spawn(runtime.run(stop.clone()));
        RunningMember { connection, running, stop, pause_gate, kill_signal }
    }

    fn config(&self) -> Config {
        let (history, started_at) = (Arc::clone(&self.history), self.started_at);
        let config = self.plan().config.clone();
        let order = match (self.mutant, config.order) {
            (Some(Mutant::KeysAtOnce), MessageOrder::ByKey { concurrency }) => MessageOrder::None { concurrency },
            (_, order) => order,
        };
        let name = format!("member-{}", self.number);
        Config { member_name: name, order, clock: Clock::new(move || started_at + history.now()), ..config }
    }

    /// Runs a member until something ends it.
    async fn run_until_fault(&self, member: &mut RunningMember, random: &mut SplitMix64) -> MemberEnd {
        let faults = &self.scenario.member;
        loop {
            let time = match faults.lifetime_max {
                Some(max) if !self.faults_ended() => random.time(Duration::from_millis(100), max),
                _ => FOREVER,
            };
            tokio::select! {
                biased;
                () = self.run_ended.cancelled() => {
                    member.stop.cancel();
                    self.record(if self.stops_within(member, FOREVER).await { "stopped in the end" } else { "stopped by itself" });
                    return MemberEnd::RunEnded;
                }
                () = member.kill_signal.notified() => {
                    self.record("is taken down by a message");
                    return MemberEnd::Killed;
                }
                ended = timeout(time, member.running.join_next()) => if ended.is_ok() {
                    return MemberEnd::Exited;
                },
            }
            if self.faults_ended() {
                continue;
            }
            if random.permille(faults.killed_permille) {
                self.record("is killed");
                return MemberEnd::Killed;
            }
            if random.permille(faults.paused_permille) {
                self.pause(member, random).await;
                continue;
            }
            self.record("is told to stop");
            member.stop.cancel();
            let patience = if random.permille(200) { random.millis(0, 1000) } else { FOREVER };
            let stopped = self.stops_within(member, patience).await;
            self.record(if stopped { "stopped" } else { "is killed while it stops" });
            return if stopped { MemberEnd::Stopped } else { MemberEnd::Killed };
        }
    }

    async fn pause(&self, member: &RunningMember, random: &mut SplitMix64) {
        self.record("is paused");
        member.pause_gate.set_paused(true);
        if random.permille(500) {
            // The broker detects that the member does not respond, and assigns its lanes to others.
            self.group.mark_missing(member.connection);
        }
        let ttl = self.plan().config.heartbeat_ttl;
        sleep(random.time(ttl / 4, ttl * 3)).await;
        self.record("goes on");
        member.pause_gate.set_paused(false);
    }

    /// Whether it ends successfully in time.
    async fn stops_within(&self, member: &mut RunningMember, patience: Duration) -> bool {
        matches!(timeout(patience, member.running.join_next()).await, Ok(Some(Ok(Ok(())))))
    }

    fn plan(&self) -> &ConsumerPlan {
        &self.scenario.consumers[self.consumer]
    }

    fn faults_ended(&self) -> bool {
        self.history.now() >= self.scenario.faults_for
    }

    fn record(&self, text: &'static str) {
        self.history.record(Event::Member { consumer: self.consumer, member: self.number, text });
    }
}
