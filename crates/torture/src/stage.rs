//! One run: its processes and servers, and its course.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::consumers::{self, FORGETS, GROUPS};
use crate::database::Database;
use crate::far::{Broker, Far};
use crate::operator::{Operator, Seen};
use crate::oracle::{Change, Findings, judge, judge_effects};
use crate::process::Process;
use crate::producers::{Done, Producer};
use crate::relays;
use crate::report::{Deeds, Report};
use crate::server::Server;
use relevo_core::random::SplitMix64;

const RELAYS: usize = 3;
const SHARDS: u16 = 8;
pub(crate) const DESTINATION: &str = "main";

/// The store under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Victim {
    /// A private PostgreSQL server.
    Postgres,
    /// A SQLite file.
    Sqlite,
}

impl Victim {
    /// The display name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Postgres => "PostgreSQL",
            Self::Sqlite => "SQLite",
        }
    }
}

/// The plan of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The binary under test.
    pub relevo: PathBuf,
    /// The binary `ledger`, if the run includes consumers.
    pub ledger: Option<PathBuf>,
    /// The store.
    pub victim: Victim,
    /// The broker.
    pub far: Far,
    /// The seed of all random choices.
    pub seed: u64,
    /// Minimum time for which producers write.
    pub write_for: Duration,
    /// Minimum number of committed messages. If it is not 0, producers write without pauses.
    pub messages: u64,
    /// Minimum number of injected faults.
    pub faults: u32,
    /// Breaks the consumers: one forgets what it handled, the other acknowledges before it commits. The oracle must
    /// detect both.
    pub careless: bool,
}

/// Executes a plan. Returns an error only if it could not be executed, or if a process ended by itself.
pub async fn torture(plan: &Plan) -> Result<Report> {
    let directory = Scratch::new(plan)?;
    let mut stage = Stage::set(plan, &directory.0).await?;
    let mut ended = stage.play(plan).await;
    if !plan.careless && !ended.as_ref().is_ok_and(Report::is_sound) {
        // Keep the directory: the logs of the processes show the cause.
        ended = ended.map(|report| Report { logs: Some(directory.0.clone()), ..report });
        std::mem::forget(directory);
    }
    ended
}

/// The run's own directory. It is deleted if the run ends well.
struct Scratch(PathBuf);

impl Scratch {
    fn new(plan: &Plan) -> Result<Self> {
        let on_stage = if plan.ledger.is_some() { "-consumers" } else { "" };
        let (process, Plan { victim, far, seed, .. }) = (std::process::id(), plan);
        let path = std::env::temp_dir().join(format!("relevo-torture-{process}-{victim:?}-{far:?}{on_stage}-{seed}"));
        std::fs::create_dir_all(&path).with_context(|| format!("`{}` cannot be made", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// How far producers may be ahead of consumers: normally, and when the plan sets a number of messages. A longer queue
/// only prolongs the end of the run.
const AHEAD_MAX: [u64; 2] = [500, 5000];
/// Maximum number of changes in one transaction when the plan sets a number of messages: commits take most of the time.
const BURST: u32 = 100;

/// Minimum number of commits, whatever the plan says. A suspended process that holds the lock of a SQLite file blocks
/// all writers, and fewer commits would prove little.
const COMMITTED_MIN: u64 = 101;

/// All processes and servers of a run.
pub(crate) struct Stage {
    pub(crate) server: Option<Server>,
    pub(crate) database: Database,
    pub(crate) broker: Broker,
    pub(crate) relays: Vec<Process>,
    pub(crate) consumers: Vec<Process>,
    /// Whether the consumers are broken on purpose.
    pub(crate) careless: bool,
    pub(crate) random: SplitMix64,
    pub(crate) deeds: Deeds,
}

impl Stage {
    /// Prepares a database with an outbox and the producers' tables, and starts relays and consumers.
    async fn set(plan: &Plan, directory: &Path) -> Result<Self> {
        let (server, database, url) = match plan.victim {
            Victim::Postgres => {
                let server = Server::start().await;
                let (options, url) = (server.options(), server.url());
                (Some(server), Database::Postgres(Box::new(options)), url)
            }
            Victim::Sqlite => {
                let file = directory.join("outbox.db");
                let url = format!("sqlite:{}", file.display());
                (None, Database::Sqlite(file), url)
            }
        };
        database.make_outbox(DESTINATION, SHARDS).await?;
        database.prepare().await?;
        crate::ledger::prepare(&database.ledger()).await?;
        let groups = if plan.ledger.is_some() { &GROUPS[..] } else { &[] };
        let broker = Broker::start(plan.far, directory, groups).await?;
        let mut stage = Self {
            server,
            database,
            broker,
            relays: Vec::new(),
            consumers: Vec::new(),
            careless: plan.careless,
            random: SplitMix64::new(plan.seed),
            deeds: Deeds::default(),
        };
        let destination = stage.broker.config(DESTINATION);
        for number in 0..RELAYS {
            stage.relays.push(relays::start(&plan.relevo, directory, number, &url, &destination)?);
        }
        for (ledger, group) in plan.ledger.iter().flat_map(|ledger| groups.iter().map(move |group| (ledger, *group))) {
            let feed = stage.broker.spec(group);
            stage.consumers.extend(consumers::start(ledger, directory, group, &url, &feed, plan.careless)?);
        }
        Ok(stage)
    }

    async fn play(&mut self, plan: &Plan) -> Result<Report> {
        let done = Arc::new(Done::default());
        let stop = CancellationToken::new();
        let mut producers = self.start_producers(plan, &done, &stop);
        let mut operators = JoinSet::new();
        if !self.consumers.is_empty() {
            let forgets = plan.careless.then_some(FORGETS);
            let operator = Operator::new(&self.database, self.random.fork(), Arc::clone(&done), forgets);
            operators.spawn(operator.run(stop.clone()));
        }
        let began = Instant::now();
        self.torment(plan, &done).await?;
        stop.cancel();
        while let Some(ended) = producers.join_next().await {
            ended??;
        }
        let seen = operators.join_next().await.transpose()?.unwrap_or_default();
        let wrote_for = began.elapsed();
        let drained_in = self.drain().await?;
        for process in self.relays.iter_mut().chain(&mut self.consumers) {
            process.leave().await?;
        }
        let committed = self.database.changes().await?;
        let arrived = self.broker.arrivals().await?;
        Ok(Report {
            store: plan.victim.name(),
            broker: plan.far.name(),
            seed: plan.seed,
            wrote_for,
            drained_in,
            deeds: self.deeds,
            unhappy: [&done.rolled_back, &done.vanished, &done.unknown].map(|count| count.load(Ordering::Relaxed)),
            judgement: judge(&committed, &arrived),
            findings: self.judge_consumers(&committed, &seen).await?,
            logs: None,
        })
    }

    fn start_producers(&mut self, plan: &Plan, done: &Arc<Done>, stop: &CancellationToken) -> JoinSet<Result<()>> {
        let mut producers = JoinSet::new();
        let (count, pause_ms) = match plan.victim {
            Victim::Postgres => (6, 8),
            Victim::Sqlite => (3, 12),
        };
        let (pause_ms, burst_max) = if plan.messages > 0 { (0, BURST) } else { (pause_ms, 1) };
        for number in 0..count {
            let producer = Producer {
                name: format!("p{number}"),
                database: self.database.clone(),
                done: Arc::clone(done),
                random: self.random.fork(),
                pause_ms,
                burst_max,
                ahead_max: plan.ledger.is_some().then_some(AHEAD_MAX[usize::from(plan.messages > 0)]),
            };
            producers.spawn(producer.run(stop.clone()));
        }
        producers
    }

    /// Injects faults until the plan is complete.
    async fn torment(&mut self, plan: &Plan, done: &Done) -> Result<()> {
        let end = Instant::now() + plan.write_for;
        let enough = plan.messages.max(COMMITTED_MIN);
        let mut round = 0;
        loop {
            let (committed, deeds) = (done.committed.load(Ordering::Relaxed), self.deeds.all());
            if Instant::now() >= end && committed >= enough && deeds >= plan.faults {
                return Ok(());
            }
            sleep(Duration::from_millis(u64::from(200 + self.random.below(700)))).await;
            self.mend()?;
            // If the plan sets both numbers, the faults are spread over the messages.
            let early = u64::from(deeds) * plan.messages > committed * u64::from(plan.faults);
            if plan.faults == 0 || !early || committed >= plan.messages {
                self.harm(round).await?;
                round += 1;
            }
        }
    }

    /// Resumes processes that were suspended for long enough, and restarts some of those that have ended.
    fn mend(&mut self) -> Result<()> {
        for process in self.relays.iter_mut().chain(&mut self.consumers) {
            process.expect_alive()?;
            process.thaw(Instant::now())?;
            if process.is_gone() && self.random.one_in(2) {
                process.start_again()?;
            }
        }
        Ok(())
    }

    async fn judge_consumers(&self, committed: &[Change], seen: &Seen) -> Result<Vec<Findings>> {
        let mut findings = Vec::new();
        for group in GROUPS.iter().filter(|_| !self.consumers.is_empty()) {
            let marks = seen.get(group.name).map_or(&[][..], Vec::as_slice);
            let left = self.database.left(group.name, marks).await?;
            findings.push(judge_effects(group.name, group.ordered, committed, &left));
        }
        Ok(findings)
    }
}
